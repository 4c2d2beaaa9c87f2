"""What every (operation, algorithm) must hold on a simulated idle cluster, and what several at once must."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sim.catalog import default_catalog
from sim.engine.play import play
from sim.errors import InputError
from sim.lowering.collective import lower_collective
from sim.models.closed_forms import closed_form
from sim.models.collectives import (
    ALGORITHMS,
    GRID_ALGORITHMS,
    IN_NETWORK_ALGORITHMS,
    OPERATIONS,
    bus_factor,
    plan,
)
from sim.spec import Cluster
from tests.clusters import cluster, plain_host, switched_host

B = 50e9
IDEAL = default_catalog().calibration(("default", "ideal"))


def pairs() -> list[tuple[str, str]]:
    found = []
    for op, algorithm in itertools.product(OPERATIONS, ALGORITHMS):
        try:
            plan(op, algorithm, 8)
        except InputError:
            continue
        found.append((op, algorithm))
    return found


def seconds(spec: Cluster, op: str, algorithm: str, size: float, **options: object) -> float:
    graph = lower_collective(spec, op, algorithm, size, calibration=IDEAL, **options)  # type: ignore[arg-type]
    return play(graph).makespan


def on_switch(n: int, latency: float = 0.0) -> Cluster:
    return cluster(plain_host(B, latency), n)


def dims_of(algorithm: str, n: int) -> tuple[int, ...] | None:
    if algorithm in ("nvls_tree", "packed_trees"):  # the switch stands for the NVSwitches of one host
        return (n, 1)
    return (2, n // 2) if algorithm in GRID_ALGORITHMS else None


@pytest.mark.parametrize("n", [2, 8])
@pytest.mark.parametrize(("op", "algorithm"), pairs())
def test_idle_it_takes_the_closed_form(op: str, algorithm: str, n: int) -> None:
    """Alone on a switch with latencies: the textbook's time, and never below the information bound."""
    spec, size, alpha = on_switch(n, 1e-6), 1e8, 2e-6  # a NIC on either side
    dims = dims_of(algorithm, n)
    if dims == (2, 1):
        pytest.skip("two ranks have one dimension")
    time = seconds(spec, op, algorithm, size, dims=dims)
    assert time == pytest.approx(
        closed_form(op, algorithm, n, size, B, alpha, dims=dims), rel=1e-9, abs=1e-12
    )
    bound = bus_factor(op, n, in_network=algorithm in IN_NETWORK_ALGORITHMS)
    assert time >= bound * size / B * (1 - 1e-12)


@pytest.mark.parametrize(("op", "algorithm"), pairs())
def test_bytes_in_are_bytes_out(op: str, algorithm: str) -> None:
    """What leaves the ports arrives at ports, and no port carries more than the plan says."""
    spec, size = on_switch(8), 1e8
    graph = lower_collective(
        spec, op, algorithm, size, calibration=IDEAL, dims=dims_of(algorithm, 8), fold=False
    )
    run = play(graph)
    sent = (
        sum(
            phase.relative.sum() * phase.fraction
            for phase in plan(op, algorithm, 8, dims=dims_of(algorithm, 8))
        )
        * size
    )
    names = graph.link_table.name
    out = sum(b for name, b in zip(names, run.link_bytes, strict=True) if name.startswith("host"))
    into = sum(b for name, b in zip(names, run.link_bytes, strict=True) if not name.startswith("host"))
    if graph.link_table.members.max() == 1 and len(names) == 16:
        assert out == pytest.approx(sent, rel=1e-9)
        assert into == pytest.approx(sent, rel=1e-9)


@pytest.mark.parametrize(("op", "algorithm"), pairs())
def test_time_rises_with_size_and_falls_with_bandwidth(op: str, algorithm: str) -> None:
    dims = dims_of(algorithm, 8)
    times = [seconds(on_switch(8, 1e-6), op, algorithm, size, dims=dims) for size in (0, 1e3, 1e6, 1e9)]
    assert times == sorted(times)
    wide = cluster(plain_host(2 * B, 1e-6), 8)
    assert seconds(wide, op, algorithm, 1e9, dims=dims) <= times[-1]


def test_the_ring_is_slower_with_more_ranks() -> None:
    """2 (n - 1) / n and 2 (n - 1) steps both rise with n; a reduction in the switch does not."""
    ring = [seconds(on_switch(n, 1e-6), "all_reduce", "ring", 1e8) for n in (2, 4, 8, 16)]
    assert ring == sorted(ring)
    network = [seconds(on_switch(n, 1e-6), "all_reduce", "in_network", 1e8) for n in (4, 8, 16)]
    assert max(network) == pytest.approx(min(network), rel=1e-9)


def test_reduction_in_the_network_of_many_hosts_leaves_one_flow_per_leaf() -> None:
    """Above a leaf that has reduced its ports, one buffer goes up and one comes down, however many ports."""
    spec = cluster(plain_host(B), 16, kind="leaf_spine", hosts_per_leaf=4, num_spines=1, uplink_bandwidth=B)
    assert seconds(spec, "all_reduce", "in_network", 1e9) == pytest.approx(1e9 / B, rel=1e-9)
    assert seconds(spec, "all_reduce", "ring", 1e9) > 1.8 * 1e9 / B


def test_nvls_over_hosts_is_bound_by_nvlink_or_the_nics() -> None:
    """Each NVLink carries the buffer once; each of 8 NICs an eighth of it, twice above two hosts."""
    two = cluster(switched_host(8, 8, nvlink=300e9, nic=25e9), 2)
    assert seconds(two, "all_reduce", "nvls_tree", 1e9) == pytest.approx(1e9 / (8 * 25e9), rel=0.05)
    fast = cluster(switched_host(8, 8, nvlink=300e9, nic=1000e9), 2)
    assert seconds(fast, "all_reduce", "nvls_tree", 1e9) >= 1e9 / 300e9


def test_groups_on_disjoint_links_do_not_disturb_each_other() -> None:
    spec = on_switch(8)
    alone = seconds(spec, "all_reduce", "ring", 1e8, ranks=[0, 1, 2, 3])
    both = seconds(spec, "all_reduce", "ring", 1e8, ranks=[[0, 1, 2, 3], [4, 5, 6, 7]])
    assert both == pytest.approx(alone, rel=1e-9)


def test_two_groups_on_one_spine_share_it() -> None:
    """Each ring crosses the one uplink once each way: two at once take twice as long."""
    spec = cluster(plain_host(B), 4, kind="leaf_spine", hosts_per_leaf=2, num_spines=1, uplink_bandwidth=B)
    alone = seconds(spec, "all_reduce", "ring", 1e8, ranks=[0, 2])
    both = seconds(spec, "all_reduce", "ring", 1e8, ranks=[[0, 2], [1, 3]])
    assert both == pytest.approx(2 * alone, rel=1e-9)


@pytest.mark.parametrize("ranks", [[0, 3, 5], [7, 1], [6, 4, 2, 0]])
def test_any_set_of_ranks_is_a_group(ranks: list[int]) -> None:
    n = len(ranks)
    time = seconds(on_switch(8), "all_reduce", "ring", 1e8, ranks=ranks)
    assert time == pytest.approx(2 * (n - 1) / n * 1e8 / B, rel=1e-9)


def test_all_to_all_on_an_oversubscribed_fat_tree() -> None:
    """2:1 above the edge switches: 3 of 4 parts of an edge's traffic leave it, over half the bandwidth."""
    size = 1e8
    flat = seconds(cluster(plain_host(B), 8, kind="fat_tree", k=4), "all_to_all", "direct", size)
    thin = cluster(plain_host(B), 8, kind="fat_tree", k=4, oversubscription=2)
    assert flat == pytest.approx(7 / 8 * size / B, rel=1e-9)
    leaving = 2 * 6 / 8 * size  # two ports below an edge switch, six of eight parts of each
    assert seconds(thin, "all_to_all", "direct", size) == pytest.approx(leaving / B, rel=1e-9)


def test_incast_is_paced_by_the_receiver() -> None:
    assert seconds(on_switch(9), "gather", "direct", 9e8) == pytest.approx(8e8 / B, rel=1e-9)
    assert np.isclose(seconds(on_switch(9), "scatter", "direct", 9e8), 8e8 / B)
