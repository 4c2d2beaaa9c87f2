"""Collective plans against closed forms, information bounds and published cases (shared cases 1, 2, 4, 5)."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from sim.errors import InputError
from sim.fabric.network import Network
from sim.models.closed_forms import closed_form
from sim.models.collectives import (
    ALGORITHMS,
    IN_NETWORK_ALGORITHMS,
    OPERATIONS,
    Plan,
    bus_factor,
    choose,
    flows,
    plan,
    wire_bytes,
)
from sim.spec import Cluster
from tests.clusters import cluster, dgx1, plain_host, switched_host

SIZES = [2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 31, 64]


def supported(op: str, algorithm: str, n: int) -> Plan | None:
    try:
        return plan(op, algorithm, n)
    except InputError:
        return None


def on_switch(phases: Plan, n: int, size: float, bandwidth: float, alpha: float) -> float:
    """Time on full-duplex ports of a non-blocking switch: the busiest port decides each phase."""
    total = 0.0
    for phase in phases:
        ports = [np.bincount(end, phase.relative, n).max() for end in (phase.src, phase.dst)]
        total += phase.steps * alpha + phase.fraction * size * max(ports) / bandwidth
    return total


def on_network(
    cluster_spec: Cluster, phases: Plan, size: float, orders: list[np.ndarray] | None = None
) -> float:
    """Time alone on a real network, phase after phase."""
    network = Network.build(cluster_spec)
    orders = orders or [np.arange(network.num_devices)]
    total = 0.0
    for phase in phases:
        load = network.load(*flows(phase, orders))
        rate = (network.link_capacity[load.link] / load.coefficient).min()
        total += phase.steps * load.latency + phase.fraction * size / rate
    return total


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("op", OPERATIONS)
def test_idle_switch_gives_the_closed_form_and_never_beats_the_bound(op: str, n: int) -> None:
    found = 0
    for algorithm in ALGORITHMS:
        phases = supported(op, algorithm, n)
        if phases is None:
            continue
        found += 1
        size, bandwidth, alpha = 1e8, 50e9, 3e-6
        time = on_switch(phases, n, size, bandwidth, alpha)
        assert time == pytest.approx(closed_form(op, algorithm, n, size, bandwidth, alpha), rel=1e-12)
        bound = bus_factor(op, n, in_network=algorithm in IN_NETWORK_ALGORITHMS)
        assert time - sum(p.steps for p in phases) * alpha >= bound * size / bandwidth * (1 - 1e-12)
    assert found >= 1


@pytest.mark.parametrize("n", SIZES)
def test_bytes_are_conserved(n: int) -> None:
    """What any algorithm must move at least, and what the optimal ones move exactly."""
    for op in ("all_reduce", "all_gather", "reduce_scatter"):
        for algorithm in ALGORITHMS:
            phases = supported(op, algorithm, n)
            if phases is None:
                continue
            sent = wire_bytes(phases, n, 1.0)
            received = sum((np.bincount(p.dst, p.relative, n) * p.fraction for p in phases), np.zeros(n))
            assert sent.sum() == pytest.approx(received.sum(), rel=1e-12)
            passes = 2 if op == "all_reduce" else 1
            if algorithm in IN_NETWORK_ALGORITHMS and op == "all_reduce":
                assert sent.tolist() == pytest.approx([1.0] * n)  # every rank sends its buffer to the switch
                continue
            assert sent.sum() >= passes * (n - 1) * (1 - 1e-12)  # n - 1 ranks' data must leave, and come back
            power_of_two = n & (n - 1) == 0
            optimal = ("ring", "direct", "hierarchical", "torus2d", "halving_doubling", "tree")
            if algorithm in optimal and (power_of_two or algorithm != "halving_doubling"):
                assert sent.sum() == pytest.approx(passes * (n - 1), rel=1e-12)


@pytest.mark.parametrize("n", SIZES)
def test_tree_steps_are_the_longest_way_up_and_down(n: int) -> None:
    """Walk the double tree: no rank is deeper than the latency count says, and both trees span."""
    (phase,) = plan("all_reduce", "tree", n)
    half = len(phase.src) // 2
    child, parent = phase.src[:half], phase.dst[:half]
    for tree in (slice(0, n - 1), slice(n - 1, None)):
        up = dict(zip(child[tree].tolist(), parent[tree].tolist(), strict=True))
        roots = set(range(n)) - set(up)
        assert len(roots) == 1
        assert len(up) == n - 1
        depths = []
        for rank in range(n):
            depth = 0
            while rank in up:
                rank, depth = up[rank], depth + 1
            depths.append(depth)
        assert 2 * max(depths) <= phase.steps
    inner = [set(parent[t].tolist()) for t in (slice(0, n - 1), slice(n - 1, None))]
    assert len(inner[0] & inner[1]) <= (n % 2)  # a rank is inside one tree only (one exception if n is odd)


def test_case_1_bandwidth_conservation_on_a_switch() -> None:
    """astra-sim#296: ring and direct both take 2 (n-1)/n S/B = 3.500 ms; here by real routes and links."""
    spec = cluster(plain_host(50e9, latency=5e-9), 8)
    times = [on_network(spec, plan("all_reduce", a, 8), 100e6) for a in ("ring", "direct")]
    assert times[0] == pytest.approx(3.5e-3 + 14 * 10e-9, rel=1e-12)
    assert times[1] == pytest.approx(3.5e-3 + 2 * 10e-9, rel=1e-12)
    assert abs(times[0] / times[1] - 1) < 0.01


@pytest.mark.parametrize("oversubscription", [1.0, 2.0, 4.0])
def test_case_2_topology_matters(oversubscription: float) -> None:
    """An all-reduce that crosses leaves on every hop slows down with the uplinks; one in order does not."""
    spec = cluster(
        plain_host(), 16, kind="leaf_spine", hosts_per_leaf=8, num_spines=4, oversubscription=oversubscription
    )
    interleaved = np.arange(16).reshape(2, 8).T.ravel()  # neighbours on different leaves
    phases = plan("all_reduce", "ring", 16)
    best = 2 * 15 / 16 * 1e9 / 50e9
    assert on_network(spec, phases, 1e9, [interleaved]) == pytest.approx(best * oversubscription, rel=1e-12)
    assert on_network(spec, phases, 1e9) == pytest.approx(best, rel=1e-12)
    ring = cluster(plain_host(), 16, kind="ring")
    assert on_network(ring, phases, 1e9, [interleaved]) > 3 * best


def test_case_4_no_free_collective() -> None:
    """64 MiB broadcast over 8 ranks at 400 GB/s takes at least S/B = 167.8 us."""
    size = 64 * 2**20
    for algorithm in ("ring", "tree", "direct", "hierarchical"):
        assert (
            on_network(cluster(plain_host(400e9), 8), plan("broadcast", algorithm, 8), size) >= size / 400e9
        )
    assert size / 400e9 == pytest.approx(167.8e-6, rel=1e-3)


def test_case_5_size_semantics_of_all_gather() -> None:
    """PyTorch _allgather_base: 1,048,576 bf16 in, 8 ranks; all descriptions agree on the wire bytes."""
    shard, n = 1_048_576 * 2, 8
    sent = wire_bytes(plan("all_gather", "ring", n), n, shard * n)
    np.testing.assert_array_equal(sent, np.full(n, 14_680_064.0))
    np.testing.assert_array_equal(wire_bytes(plan("reduce_scatter", "ring", n), n, shard * n), sent)


@pytest.mark.parametrize(("hosts", "expected"), [(8, 10.2436e-3), (64, 11.0156e-3), (512, 12.8841e-3)])
def test_hierarchical_baseline(hosts: int, expected: float) -> None:
    """1 GiB on [8 at 300 GiB/s, 500 ns] x [N at 50 GiB/s, 2 us], one chunk (measured on ASTRA-sim)."""
    dims, gib = (8, hosts), 2.0**30
    bandwidths, alphas = (300 * gib, 50 * gib), (5e-7, 2e-6)
    total = sum(
        p.fraction * gib / bandwidths[p.dimension] + p.steps * alphas[p.dimension]
        for p in plan("all_reduce", "hierarchical", math.prod(dims), dims=dims)
    )
    form = closed_form("all_reduce", "hierarchical", 8 * hosts, gib, bandwidths, alphas, dims=dims)
    assert total == pytest.approx(form, rel=1e-12)
    assert total == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(("n", "expected"), [(8, 37.587964e-3), (64, 42.341584e-3), (512, 43.376787e-3)])
def test_ring_baseline(n: int, expected: float) -> None:
    """1 GiB, one link of 50 GB/s and 500 ns per neighbour: SimGrid's figures, on a ring of devices."""
    spec = cluster(plain_host(), n, kind="ring", attach="device", bandwidth=50e9, latency=5e-7)
    order = Network.build(spec).ring_orders(np.arange(n))
    assert on_network(spec, plan("all_reduce", "ring", n), 2.0**30, order) == pytest.approx(
        expected, rel=1e-6
    )


def test_dgx1_rings_use_all_nvlinks() -> None:
    """Six 25 GB/s NVLinks per V100: six rings, 150 GB/s of bus bandwidth before protocol losses."""
    spec = cluster(dgx1(), 1)
    orders = Network.build(spec).ring_orders(np.arange(8))
    time = on_network(spec, plan("all_reduce", "ring", 8), 1e9, orders) - 14e-6
    assert bus_factor("all_reduce", 8) * 1e9 / time == pytest.approx(150e9, rel=1e-9)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "hierarchical"])
def test_all_nics_of_all_hosts_work(algorithm: str) -> None:
    """Four hosts with eight 25 GB/s NICs each: every algorithm drives 200 GB/s per host."""
    spec = cluster(switched_host(), 4, kind="rail_optimized")
    orders = Network.build(spec).orders(np.arange(32), algorithm)
    dims = None if algorithm == "ring" else (8, 4)
    time = on_network(spec, plan("all_reduce", algorithm, 32, dims=dims), 1e12, orders)
    inside = 2 * 7 / 8 / 300e9 if algorithm == "hierarchical" else 0.0
    outside = {"ring": 2 * 31 / 32, "tree": 2.0, "hierarchical": 2 * 3 / 4}[algorithm] / 200e9
    assert time == pytest.approx((inside + outside) * 1e12, rel=1e-4)


def test_unsupported_pairs_raise() -> None:
    with pytest.raises(InputError, match=r"must support all_to_all.*Try direct"):
        plan("all_to_all", "ring", 8)
    with pytest.raises(InputError, match="power of two"):
        plan("all_gather", "recursive_doubling", 6)
    with pytest.raises(InputError, match="multiply to the number of ranks"):
        plan("all_reduce", "hierarchical", 8, dims=(3, 2))
    with pytest.raises(InputError, match="one of"):
        plan("all_reduce", "magic", 8)


def test_one_rank_needs_nothing() -> None:
    assert plan("all_reduce", "ring", 1) == ()


def test_choice_goes_from_tree_to_ring_with_size() -> None:
    """A multi-host all-reduce is a tree while latency dominates and a ring for bulk; inside a host a ring."""
    picks = [choose("all_reduce", size, 128, 16) for size in np.logspace(2, 10, 50)]
    assert (picks[0], picks[-1]) == ("tree", "ring")
    assert sum(a != b for a, b in pairwise(picks)) == 1
    assert choose("all_reduce", 1e3, 8, 1) == "ring"
    for op in OPERATIONS:
        assert plan(op, choose(op, 1e6, 8, 2), 8)


def test_choice_inside_a_host_with_reducing_switches() -> None:
    """Measured on 8 H200 (NCCL 2.27): rings up to 1 MiB, NVLS from 2 MiB or so on."""
    assert [choose("all_reduce", size, 8, 1, in_switch=True) for size in (1 << 16, 1 << 20)] == ["ring"] * 2
    assert choose("all_reduce", 1 << 26, 8, 1, in_switch=True) == "nvls"
    assert choose("all_reduce", 1 << 26, 8, 1) == "ring"
    assert choose("all_gather", 1 << 26, 8, 1, in_switch=True) == "ring"


def test_choice_over_hosts_goes_from_tree_to_ring() -> None:
    picks = [choose("all_reduce", 2.0**k, 128, 16) for k in range(8, 34)]
    assert picks[0] == "tree"
    assert picks[-1] == "ring"
    assert picks == sorted(picks, reverse=True)  # one change only
    assert choose("all_reduce", 1 << 30, 16, 2, in_switch=True) == "nvls_tree"


def test_choice_of_gloo() -> None:
    assert choose("all_reduce", 8, 64, 8, library="gloo") == "ring"
    assert choose("broadcast", 8, 64, 8, library="gloo") == "tree"
    assert choose("all_to_all", 8, 64, 8, library="gloo") == "direct"
