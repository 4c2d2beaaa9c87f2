"""Enumeration: valid points pass every rule, refused ones do not, and none is lost."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.architecture import generate
from sim.errors import InputError
from sim.spec import Cluster, Device, Fabric, Host, Strategy
from sim.spec.host import HostLink, Nic
from sim.taxonomy import check, enumerate, resolve
from sim.taxonomy.rules import num_micro_batches, rule

DEVICE = Device(
    name="gpu",
    kind="gpu",
    peak_flops={"fp32": 1e14},
    memory_bytes=8e10,
    memory_bandwidth=1e12,
    idle_power=50,
    peak_power=300,
    price_per_hour=1,
    num_multiprocessors=100,
)


def cluster(num_hosts: int, devices: int) -> Cluster:
    host = Host(
        name="host",
        devices=(("gpu", devices),),
        nics=(Nic(name="nic0", bandwidth=1e10),),
        cpu_cores=8,
        memory_bytes=1e11,
        cpu_device="cpu",
        links=(HostLink(a=f"gpu[0-{devices - 1}]", b="nvswitch0", bandwidth=1e11, kind="nvlink"),),
    )
    return Cluster(
        name="test",
        host=host,
        num_hosts=num_hosts,
        fabric=Fabric(kind="single_switch", bandwidth=1e10),
        host_types=(host,),
        host_type_of=(0,) * num_hosts,
        device_types=(DEVICE,),
    )


WORKLOADS = [
    generate("cnn:resnet50", {"name": "resnet50", "batch_per_device": 32, "dtype": "fp32"}),
    generate(
        "transformer",
        {
            "name": "gpt",
            "num_layers": 12,
            "hidden": 768,
            "num_heads": 12,
            "vocabulary": 50304,
            "sequence_length": 1024,
            "dtype": "fp32",
            "optimizer": "adam",
            "global_batch_size": 96,
        },
    ),
    generate(
        "moe",
        {
            "name": "moe",
            "num_layers": 4,
            "hidden": 512,
            "num_heads": 8,
            "num_experts": 8,
            "vocabulary": 1024,
            "sequence_length": 512,
            "dtype": "fp32",
            "optimizer": "adam",
            "global_batch_size": 64,
        },
    ),
]

VALUES: dict[str, list[Any]] = {
    "tp": [1, 2, 3, 4, 8],
    "cp": [1, 2],
    "ep": [1, 2, 4],
    "pp": [1, 2, 3, 16],
    "dp": [None, 1, 4, 100],
    "micro_batch_size": [None, 1, 5],
    "schedule": ["naive", "gpipe", "1f1b", "interleaved"],
    "virtual_stages": [1, 2],
    "sequence_parallel": [False, True],
    "recompute": ["none", "selective", "alternate", "full"],
    "state": ["replicated", "zero1", "zero2", "zero3", "ps_dedicated", "ps_colocated"],
    "num_servers": [None, 2, 50],
    "synchronization": ["bsp", "ssp", "asp", "backup", "local"],
    "staleness": [0, 3],
    "backup_workers": [0, 1, 9],
    "local_steps": [1, 4],
    "collective": [
        "auto",
        "ring",
        "tree",
        "halving_doubling",
        "recursive_doubling",
        "hierarchical",
        "torus2d",
        "direct",
    ],
    "chunks": [1, 4],
    "compression": ["none", "fp16"],
    "placement": [("tp", "cp", "dp", "pp"), ("dp", "tp", "cp", "pp"), ("tp", "tp", "dp", "pp")],
}

axes_of_few_fields = st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4, unique=True).flatmap(
    lambda names: st.fixed_dictionaries(
        {name: st.lists(st.sampled_from(VALUES[name]), min_size=1, max_size=3, unique=True) for name in names}
    )
)
clusters = st.builds(cluster, st.integers(1, 4), st.sampled_from([1, 3, 4, 8]))


@settings(max_examples=60, deadline=None)
@given(axes=axes_of_few_fields, where=clusters, workload=st.sampled_from(WORKLOADS))
def test_enumeration_agrees_with_check_and_loses_no_point(
    axes: dict[str, list[Any]], where: Cluster, workload: Any
) -> None:
    found = enumerate(workload, where, axes)
    assert found.total == prod(len(values) for values in axes.values())
    assert len(found.valid) + sum(found.refused.values()) == found.total
    for strategy in found.valid:
        assert check(strategy, workload, where) == ()
    for identifier, example in found.examples.items():
        assert check(example, workload, where)[0].rule == identifier
    assert set(found.reasons) == set(found.refused) == set(found.examples)
    assert all(found.reasons[identifier] == rule(identifier).reason for identifier in found.refused)


@settings(max_examples=150, deadline=None)
@given(
    fields=st.fixed_dictionaries(
        {}, optional={name: st.sampled_from(values) for name, values in VALUES.items()}
    ),
    where=clusters,
    workload=st.sampled_from(WORKLOADS),
)
def test_any_strategy_is_refused_with_a_line_or_resolves(
    fields: dict[str, Any], where: Cluster, workload: Any
) -> None:
    strategy = Strategy(**fields)
    refusals = check(strategy, workload, where)
    for refusal in refusals:
        assert "\n" not in str(refusal)
        assert str(refusal).count(": must ") == 1
    if refusals:
        return
    resolved = resolve(strategy, workload, where)
    assert resolved.dp is not None
    ranks = resolved.tp * resolved.cp * resolved.pp * resolved.dp
    assert ranks <= where.num_devices
    if strategy.dp is None:
        assert ranks == where.num_devices
    assert resolved.micro_batch_size is not None
    batch = num_micro_batches(resolved, workload) * resolved.micro_batch_size * resolved.dp
    assert batch == (workload.global_batch_size or workload.batch_per_device * resolved.dp)
    assert (resolved.num_servers is not None) == resolved.state.startswith("ps_")


def test_refusals_count_under_the_first_rule() -> None:
    found = enumerate(
        WORKLOADS[0],
        cluster(4, 8),
        {"strategy.synchronization": ["bsp", "ssp", "asp"], "state": ["replicated", "zero3", "ps_dedicated"]},
    )
    assert found.refused == Counter({"C2-2": 2, "C2-4": 2})
    assert [(s.synchronization, s.state) for s in found.valid] == [
        ("bsp", "replicated"),
        ("bsp", "zero3"),
        ("bsp", "ps_dedicated"),
        ("ssp", "ps_dedicated"),
        ("asp", "ps_dedicated"),
    ]


def test_fields_outside_the_axes_come_from_the_base() -> None:
    found = enumerate(
        WORKLOADS[0], cluster(2, 8), {"overlap": [True, False]}, base=Strategy(collective="tree")
    )
    assert [(s.overlap, s.collective) for s in found.valid] == [(True, "tree"), (False, "tree")]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"tpp": [1]}, r"axes.tpp: must be a field of the strategy. Did you mean (tp|pp)\?"),
        ({"tp": [1, 0]}, r"axes.tp\[1\]: must be a value of the field.*Got 0"),
        ({"strategy.state": ["zero4"]}, r"axes.state\[0\]: must be a value of the field.*Got zero4"),
    ],
)
def test_bad_axes_are_one_line(axes: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        enumerate(WORKLOADS[0], cluster(1, 8), axes)
