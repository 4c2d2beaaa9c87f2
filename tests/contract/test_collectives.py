"""What every (operation, algorithm) must hold on a simulated idle cluster, and what several at once must."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sim.catalog import default_catalog
from sim.engine.play import play
from sim.errors import InputError
from sim.lowering.collective import lower_collective
from sim.models import collectives
from sim.models.closed_forms import closed_form
from sim.models.collectives import (
    ALGORITHMS,
    GRID_ALGORITHMS,
    IN_NETWORK_ALGORITHMS,
    OPERATIONS,
    PAIRS,
    bus_factor,
    plan,
)
from sim.spec import Cluster
from tests.clusters import cluster, dgx1, plain_host, switched_host

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


SHAPES = [
    ("bcube", 16, {"radix": 4}), ("bcube", 12, {"dims": (3, 4)}), ("bcube", 12, {}),
    ("kary_tree", 13, {"radix": 3}),
    ("kary_tree", 7, {"radix": 6}), ("blueconnect", 24, {"dims": (2, 3, 4)}),
    ("hierarchical", 12, {"dims": (6, 2)}),
    ("leaders", 12, {"dims": (3, 4)}), ("leaders", 6, {"dims": (6, 1)}),
    ("torus2d", 12, {"dims": (4, 3)}), ("binomial_tree", 11, {}), ("packed_trees", 5, {"dims": (5, 1)}),
]  # fmt: skip


@pytest.mark.parametrize(("algorithm", "n", "shape"), SHAPES)
def test_any_shape_takes_its_closed_form(algorithm: str, n: int, shape: dict[str, object]) -> None:
    for op in ("all_reduce", "reduce_scatter", "broadcast"):
        if (op, algorithm) not in PAIRS or (op == "broadcast" and algorithm == "packed_trees"):
            continue
        time = seconds(on_switch(n, 1e-6), op, algorithm, 1e8, **shape)
        assert time == pytest.approx(closed_form(op, algorithm, n, 1e8, B, 2e-6, **shape), rel=1e-9)  # type: ignore[arg-type]
        assert time >= bus_factor(op, n) * 1e8 / B * (1 - 1e-12)


def test_an_uneven_exchange_is_as_long_as_its_busiest_port() -> None:
    matrix = np.random.default_rng(5).integers(0, 10**8, (6, 6)).astype(float)
    size = matrix.sum() / 6
    off = matrix - np.diag(np.diag(matrix))
    time = seconds(on_switch(6, 1e-6), "all_to_allv", "direct", size, matrix=matrix)
    assert time == pytest.approx(max(off.sum(0).max(), off.sum(1).max()) / B + 2e-6, rel=1e-9)
    even = seconds(on_switch(6, 1e-6), "all_to_allv", "direct", size)
    assert even == pytest.approx(seconds(on_switch(6, 1e-6), "all_to_all", "direct", size), rel=1e-12)
    skewed = [seconds(on_switch(6), "all_to_allv", "direct", size, skew=skew) for skew in (0, 0.5, 1, 2)]
    assert skewed == sorted(skewed)
    assert skewed[0] < skewed[-1]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"matrix": [[1, 2], [3]]}, "matrix"), ({"matrix": np.ones((3, 3))}, "matrix"),
        ({"matrix": -np.ones((4, 4))}, "matrix"), ({"matrix": np.zeros((4, 4))}, "matrix"),
        ({"skew": -1}, "skew"),
        ({"op": "all_reduce", "algorithm": "ring", "skew": 1}, "skew"),
        ({"op": "all_reduce", "algorithm": "bcube", "radix": 3}, "radix"),
        ({"op": "all_reduce", "algorithm": "torus2d", "dims": (3, 2)}, "dims"),
        ({"op": "all_reduce", "algorithm": "torus2d", "dims": (1, 2, 2)}, "dims"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit_are_bad_input(change: dict[str, object], field: str) -> None:
    options: dict[str, object] = {"op": "all_to_allv", "algorithm": "direct", "size": 1e6} | change
    with pytest.raises(InputError, match=f"collective.{field}"):
        seconds(on_switch(4), **options)  # type: ignore[arg-type]


def test_packed_trees_reach_the_maximum_flow_of_a_mesh() -> None:
    """Edmonds: as many disjoint trees as units flow from the root to any rank, six of 25 GB/s on a DGX-1."""
    spec = cluster(dgx1(), 1)
    assert seconds(spec, "broadcast", "packed_trees", 6e9) == pytest.approx(6e9 / 150e9, rel=1e-3)
    # Four ranks whose links form no ring: a library's ring goes the long way, over PCIe or shared NVLinks.
    part = [0, 1, 4, 6]
    ring = seconds(spec, "all_reduce", "ring", 1e9, ranks=part)
    assert seconds(spec, "all_reduce", "packed_trees", 1e9, ranks=part) < ring


def test_grids_follow_a_torus() -> None:
    """On a 4 x 2 x 2 torus of hosts rings run along its dimensions: no cable carries more than one hop."""
    spec = cluster(plain_host(100 * B), 16, kind="torus", dims=(4, 2, 2), bandwidth=B)
    expected = closed_form("all_reduce", "hierarchical", 16, 1e9, B, dims=(4, 2, 2))
    assert seconds(spec, "all_reduce", "hierarchical", 1e9) == pytest.approx(expected, rel=1e-9)
    assert seconds(spec, "all_reduce", "hierarchical", 1e9, dims=(2, 8)) > expected * 1.01


@pytest.mark.parametrize("kind", ["single_switch", "leaf_spine", "rail_optimized", "fat_tree", "multi_plane"])
def test_a_counted_exchange_takes_as_long_as_a_listed_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"oversubscription": 2.0} if kind in ("leaf_spine", "rail_optimized", "fat_tree") else {}
    leaf = {"hosts_per_leaf": 2} if kind in ("leaf_spine", "rail_optimized", "multi_plane") else {}
    spec = cluster(switched_host(4, 4), 8, kind=kind, latency=1e-6, **fields, **leaf)
    times = []
    for limit in (10**9, 1):
        monkeypatch.setattr(collectives, "MAX_LISTED_RANKS", limit)
        collectives._cached_plan.cache_clear()
        times.append(
            [seconds(spec, op, "direct", 1e8, ranks=ranks) for op in ("all_to_all", "all_reduce")
             for ranks in (None, [0, 1, 2, 5, 9, 13], [[0, 4, 8, 12], [1, 5, 9, 13]])]
        )  # fmt: skip
    collectives._cached_plan.cache_clear()
    assert times[1] == pytest.approx(times[0], rel=1e-9)


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


def test_incast_of_a_thousand_workers() -> None:
    """All send at once: the port is full until the end, and nobody waits behind another."""
    spec = on_switch(1001, 1e-6)
    pairs_of_ranks = [[worker, 0] for worker in range(1, 1001)]
    sizes = 1e6 * (1 + np.arange(1000) / 1000)
    time = seconds(spec, "send", "direct", sizes, ranks=pairs_of_ranks)
    assert time == pytest.approx(sizes.sum() / B + 2e-6, rel=1e-9)


def test_two_jobs_on_one_spine_share_by_max_min() -> None:
    """A long and a short transfer over one uplink: half each until the short one is done."""
    spec = cluster(plain_host(B), 4, kind="leaf_spine", hosts_per_leaf=2, num_spines=1, uplink_bandwidth=B)
    graph = lower_collective(spec, "send", "direct", [3e9, 1e9], calibration=IDEAL, ranks=[[0, 2], [1, 3]])
    assert sorted(play(graph).end)[-1] == pytest.approx(4e9 / B, rel=1e-9)
    ends = {round(float(end) * B / 1e9, 6) for end in play(graph).end}
    assert {2.0, 4.0} <= ends  # 1 GB at half speed; then 2 GB at full speed


def test_nvls_of_a_strategy_is_the_switches_of_a_host_or_trees_of_them() -> None:
    """Gradients of 8 ranks per host: each NVLink carries the buffer once, and no ring is left."""
    from sim.analysis.simulate import simulate
    from tests.scenarios import scenario, timed_layer, workload

    model = workload([timed_layer(0, 0.01, 0.02, parameters=1e8)])

    for hosts, algorithm in ((1, "nvls"), (4, "nvls_tree")):
        where = cluster(switched_host(8, 8, nvlink=450e9), hosts)
        step = simulate(
            scenario(model, where, collective="nvls", overlap=False, bucket_size=1e18)
        ).step_time_s
        assert step == pytest.approx(0.03 + seconds(where, "all_reduce", algorithm, 4e8), rel=1e-9)
    assert seconds(cluster(switched_host(8, 8, nvlink=450e9), 1), "all_reduce", "nvls", 4e8) == pytest.approx(
        4e8 / 450e9, rel=0.01
    )
