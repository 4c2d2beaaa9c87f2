"""Scenarios whose right answer can be worked out by hand: ideal calibration, layers of a given duration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sim.catalog import Catalog, default_catalog
from sim.spec import Calibration, Cluster, Device, Host, Layer, Nic, Scenario, Strategy, Workload
from sim.spec.calibration import Parameter
from sim.spec.layer import MemoryBound
from sim.spec.scenario import Perturbation
from tests.clusters import cluster, device

BANDWIDTH = device().memory_bandwidth
ELEMENT = 4.0  # bytes of fp32
FAST = 1e18  # an efficiency that makes a task take no time that could be seen


def processor(bandwidth: float = BANDWIDTH) -> Device:
    """Processors of a host that serves parameters."""
    return Device(
        name="processor",
        kind="cpu",
        peak_flops={"fp32": 1e12},
        memory_bytes=256e9,
        memory_bandwidth=bandwidth,
        idle_power=50,
        peak_power=200,
        price_per_hour=0,
        num_multiprocessors=32,
    )


def fast_host(catalog: Catalog) -> Calibration:
    """The default calibration with a host that never holds the device up: these tests are about its time."""
    default = catalog.calibration("default")
    host = {"kernel_issue_time": 6e-6, "exposed_launches": 0.0}
    known = default.framework["default"]
    changed = {name: known[name].model_copy(update={"value": value}) for name, value in host.items()}
    framework = {**default.framework, "default": {**known, **changed}}
    return default.model_copy(update={"framework": framework})


def ideal(*, server_speed: float = FAST, **library: float) -> Calibration:
    """The catalogue's ``ideal`` calibration, with updates that take no time at all.

    ``server_speed`` is the fraction of its memory bandwidth that a parameter server attains; ``library`` sets
    parameters of the collective library.
    """

    def section(**values: float) -> dict[str, dict[str, Parameter]]:
        return {"default": {name: Parameter(value=value, source="test") for name, value in values.items()}}

    changes = Calibration(
        name="test",
        device={"processor": section(memory_efficiency=server_speed)["default"]},
        library=section(**library),
        framework=section(optimizer_bandwidth_efficiency=FAST),
    )
    return default_catalog().calibration("ideal").merge(changes)


def timed_layer(
    index: int, forward: float, backward: float, *, parameters: float = 0.0, **fields: Any
) -> Layer:
    """A layer, a block by itself, that takes ``forward`` and ``backward`` seconds per sample."""
    work = MemoryBound(
        elements=forward * BANDWIDTH / ELEMENT, backward_elements=backward * BANDWIDTH / ELEMENT
    )
    defaults: dict[str, Any] = {"name": f"layer{index}", "kind": "mlp", "block": index}
    return Layer(**(defaults | fields), ops=(work,), parameters=parameters)


def workload(
    layers: Sequence[Layer], *, batch: int = 1, global_batch: int | None = None, **fields: Any
) -> Workload:
    """A workload of ``batch`` samples per replica (or ``global_batch`` in all), plain SGD in fp32."""
    size = {"global_batch_size": global_batch} if global_batch else {"batch_per_device": batch}
    return Workload(
        name="test", layers=tuple(layers), family="transformer", optimizer="sgd", **size, **fields
    )


def even_workload(
    count: int, forward: float, backward: float, *, parameters: float = 0.0, batch: int = 1, **fields: Any
) -> Workload:
    """``count`` equal layers that together take ``forward`` and ``backward`` seconds per sample."""
    layers = [
        timed_layer(i, forward / count, backward / count, parameters=parameters / count, **fields)
        for i in range(count)
    ]
    return workload(layers, batch=batch)


def serving_host(bandwidth: float = 1e9, latency: float = 0.0) -> Host:
    """One device that is its NIC, on a machine whose processors can serve parameters."""
    return Host(
        name="serving",
        devices=(("unit", 1),),
        nics=(Nic(name="nic0", bandwidth=bandwidth, latency=latency),),
        cpu_cores=8,
        cpu_device="processor",
        memory_bytes=64e9,
    )


def serving(host: Host, num_hosts: int, **fabric: Any) -> Cluster:
    """A cluster of hosts that name ``processor`` as their processors."""
    built = cluster(host, num_hosts, **fabric)
    return built.model_copy(update={"device_types": (*built.device_types, processor())})


def scenario(
    model: Workload,
    where: Cluster,
    *,
    calibration: Calibration | None = None,
    fold: bool = True,
    slow_ranks: dict[int, float] | None = None,
    seed: int = 0,
    **strategy: Any,
) -> Scenario:
    """A scenario with an ideal calibration unless another is given."""
    return Scenario(
        workload=model,
        cluster=where,
        strategy=Strategy(**strategy),
        calibration=calibration or ideal(),
        perturbation=Perturbation(slow_ranks=slow_ranks or {}),
        fold=fold,
        seed=seed,
    )
