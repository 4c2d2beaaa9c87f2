"""Background traffic takes its rate from the links on its way, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim.catalog import default_catalog
from sim.engine import play
from sim.errors import InputError
from sim.fabric.network import Network
from sim.lowering import lower_collective
from sim.spec import BackgroundFlow, Cluster
from tests.clusters import cluster, plain_host, switched_host

B = 50e9
IDEAL = default_catalog().calibration(("default", "ideal"))


def with_background(spec: Cluster, *flows: dict[str, Any]) -> Cluster:
    return spec.model_copy(update={"background": tuple(BackgroundFlow(**flow) for flow in flows)})


def seconds(spec: Cluster, **options: Any) -> float:
    return play(lower_collective(spec, "send", "direct", 1e9, calibration=IDEAL, **options)).makespan


def two_leaves() -> Cluster:
    return cluster(plain_host(B), 4, kind="leaf_spine", hosts_per_leaf=2, num_spines=2)


def test_what_it_takes_is_gone() -> None:
    spec = with_background(two_leaves(), {"source": 1, "target": 0, "rate": "20GB/s"})
    assert seconds(spec, ranks=[2, 0]) == pytest.approx(1e9 / 30e9, rel=1e-9)
    assert seconds(spec, ranks=[0, 2]) == pytest.approx(1e9 / B, rel=1e-9)  # the other direction is free


def test_it_is_split_as_the_fabric_splits_it() -> None:
    spec = with_background(two_leaves(), {"source": 0, "target": 2, "rate": 30e9})
    network = Network.build(spec)
    left = network.spared(network.link_capacity)
    taken = {network.link_name(i): network.link_capacity[i] - left[i] for i in range(network.num_links)}
    on = {name: value for name, value in taken.items() if value}
    assert on == pytest.approx(
        {
            "host0/nic0->leaf0": 30e9, "leaf0->spine0": 15e9, "leaf0->spine1": 15e9, "spine0->leaf1": 15e9,
            "spine1->leaf1": 15e9, "leaf1->host2/nic0": 30e9,
        }
    )  # fmt: skip


def test_a_link_by_name_and_inside_a_host() -> None:
    """Of alike hosts one has a busy NVLink: it alone is slower, and folding keeps it apart."""
    spec = cluster(switched_host(4, 4), 4)
    name = "host2/gpu1->nvswitch0"
    busy = with_background(spec, {"link": name, "rate": 250e9})
    for host, rate in ((0, 300e9), (2, 50e9)):
        time = seconds(busy, ranks=[4 * host + 1, 4 * host + 2])
        assert time == pytest.approx(1e9 / rate + 2e-6, rel=1e-9)
    rings = np.arange(16).reshape(4, 4).tolist()
    for fold in (True, False):
        graph = lower_collective(busy, "all_reduce", "ring", 1e9, calibration=IDEAL, ranks=rings, fold=fold)
        assert play(graph).makespan == pytest.approx(1.5e9 / 50e9 + 6 * 2e-6, rel=1e-6)


@pytest.mark.parametrize(
    ("flow", "text"),
    [
        ({"source": 0, "target": 9, "rate": 1e9}, "background.0.target: must be a host below 4. Got 9."),
        ({"link": "leaf0->spine9", "rate": 1e9}, "background.0.link: must name a link"),
        ({"source": 0, "target": 1, "rate": 50e9}, "background: must leave some of host0/nic0->leaf0"),
    ],
)
def test_what_cannot_be_is_bad_input(flow: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        seconds(with_background(two_leaves(), flow), ranks=[0, 2])


@pytest.mark.parametrize(
    "flow",
    [
        {"rate": 1e9},
        {"link": "a->b", "source": 1, "rate": 1},
        {"source": 1, "rate": 1},
        {"source": 1, "target": 1, "rate": 1},
    ],
)
def test_a_flow_is_a_link_or_two_hosts(flow: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        BackgroundFlow(**flow)
