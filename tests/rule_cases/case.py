"""What a case of a rule is, and the clusters and workloads that cases play on."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sim.architecture import generate
from sim.spec import Cluster, Device, Fabric, Host, Workload
from sim.spec.host import HostLink, Nic


@cache
def cluster(
    *devices_per_host: int,
    processors: bool = True,
    nvlink: bool = True,
    dtypes: tuple[str, ...] = ("fp32", "fp16"),
    routing: str = "ecmp",
) -> Cluster:
    """Hosts with the given numbers of devices."""
    device = Device(
        name="gpu",
        kind="gpu",
        peak_flops=dict.fromkeys(dtypes, 1e14),
        memory_bytes=8e10,
        memory_bandwidth=1e12,
        idle_power=50,
        peak_power=300,
        price_per_hour=1,
        num_multiprocessors=100,
    )
    cpu = device.model_copy(update={"name": "cpu", "kind": "cpu", "peak_flops": {"int8": 1e12}})
    sizes = sorted(set(devices_per_host))
    hosts = tuple(
        Host(
            name=f"host{size}",
            devices=(("gpu", size),),
            nics=(Nic(name="nic0", bandwidth=1e10),),
            cpu_cores=8,
            memory_bytes=1e11,
            cpu_device="cpu" if processors else None,
            links=(
                HostLink(
                    a=f"gpu[0-{size - 1}]", b="nvswitch0", bandwidth=1e11, kind="nvlink" if nvlink else "pcie"
                ),
            ),
        )
        for size in sizes
    )
    return Cluster(
        name="test",
        host=hosts[0],
        num_hosts=len(devices_per_host),
        fabric=Fabric(kind="single_switch", bandwidth=1e10, routing=routing),
        host_types=hosts,
        host_type_of=tuple(sizes.index(size) for size in devices_per_host),
        device_types=(device, cpu),
    )


HOST, PAIR, RACK = cluster(8), cluster(8, 8), cluster(8, 8, 8, 8)


@cache
def gpt(**changes: Any) -> Workload:
    """12 blocks of 12 heads (hidden 768) on 2048 tokens."""
    fields: dict[str, Any] = {
        "name": "gpt",
        "num_layers": 12,
        "hidden": 768,
        "num_heads": 12,
        "vocabulary": 50304,
        "sequence_length": 2048,
        "dtype": "fp32",
        "optimizer": "adam",
        "global_batch_size": 96,
    }
    return generate("transformer", fields | changes)


@cache
def moe() -> Workload:
    return generate(
        "moe",
        {
            "name": "moe",
            "num_layers": 4,
            "hidden": 512,
            "num_heads": 8,
            "num_experts": 6,
            "vocabulary": 1024,
            "sequence_length": 512,
            "dtype": "fp32",
            "optimizer": "adam",
            "batch_per_device": 4,
        },
    )


@cache
def cnn(**changes: Any) -> Workload:
    return generate("cnn:resnet50", {"name": "resnet50", "batch_per_device": 32, "dtype": "fp32"} | changes)


@dataclass
class Case:
    """A strategy one rule objects to: the field it blames and a piece of its text."""

    rule: str
    strategy: dict[str, Any]
    field: str
    text: str
    workload: Workload = field(default_factory=gpt)
    cluster: Cluster = RACK
    advice: str | None = None
