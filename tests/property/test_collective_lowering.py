"""Single collectives on any cluster: folding, and leaving out links that ports hold back, change no time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine import play
from sim.errors import InputError
from sim.fabric.network import Network
from sim.lowering import lower_collective
from sim.lowering.patterns import Router
from sim.spec import Cluster
from tests.clusters import cluster, dgx1, plain_host, switched_host
from tests.scenarios import ideal

CALIBRATION = ideal(step_latency=1e-6, step_latency_network=5e-6)
FABRICS: list[dict[str, Any]] = [
    {},
    {"kind": "leaf_spine", "hosts_per_leaf": 2, "num_spines": 2},
    {"kind": "leaf_spine", "hosts_per_leaf": 3, "num_spines": 2, "oversubscription": 2},
    {"kind": "leaf_spine", "hosts_per_leaf": 2, "num_spines": 2, "routing": "static"},
    {"kind": "rail_optimized", "hosts_per_leaf": 2},
    {"kind": "fat_tree", "oversubscription": 2},
    {"kind": "fat_tree", "routing": "static"},
    {"kind": "torus"},
    {"kind": "ring"},
]
HOSTS = [plain_host(10e9, 1e-6), switched_host(4, 2), switched_host(4, 4, nic=40e9), dgx1(2)]
ALGORITHMS = [
    ("all_reduce", "ring"), ("all_reduce", "tree"), ("all_reduce", "hierarchical"), ("all_reduce", "direct"),
    ("all_reduce", "halving_doubling"), ("all_gather", "ring"), ("all_to_all", "direct"),
    ("broadcast", "tree"), ("gather", "direct"), ("send", "direct"), ("all_reduce", "bcube"),
    ("all_reduce", "binomial_tree"), ("all_reduce", "kary_tree"), ("all_reduce", "packed_trees"),
    ("all_reduce", "blueconnect"), ("broadcast", "packed_trees"), ("all_to_allv", "direct"),
]  # fmt: skip


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Cluster, dict[str, Any]]:
    where = cluster(draw(st.sampled_from(HOSTS)), draw(st.integers(2, 6)), **draw(st.sampled_from(FABRICS)))
    op, algorithm = draw(st.sampled_from(ALGORITHMS))
    everyone = draw(st.permutations(range(where.num_devices)))
    size = 2 if op == "send" else draw(st.integers(2, len(everyone)))
    count = draw(st.integers(1, len(everyone) // size))
    groups = [everyone[i * size : (i + 1) * size] for i in range(count)]
    if op == "send":  # several senders to one receiver
        groups = [[pair[0], everyone[-1]] for pair in groups if pair[0] != everyone[-1]]
    if algorithm in ("hierarchical", "blueconnect"):
        groups = [list(range(where.num_devices))]
    sizes = draw(st.sampled_from([1e6, 1e9])) * np.array(draw(st.sampled_from([1, [1, 2, 3, 4, 5, 6] * 4])))
    sizes = sizes if sizes.ndim == 0 else sizes[: len(groups)]
    if np.ndim(sizes) and len(sizes) < len(groups):
        sizes = sizes[0]
    chunks = draw(st.sampled_from([1, 3])) if algorithm == "hierarchical" else 1
    return where, {
        "op": op, "algorithm": algorithm, "size_bytes": sizes, "ranks": groups, "chunks": chunks,
        "calibration": CALIBRATION, "skew": 1.0 if op == "all_to_allv" else 0.0,
    }  # fmt: skip


def end_of_rank(where: Cluster, job: dict[str, Any], *, fold: bool) -> dict[int, float]:
    """When each rank (each class's representative) is done."""
    graph = lower_collective(where, **job, fold=fold)
    run = play(graph)
    last = graph.boundary[run.task]
    ranks = graph.devices.rank[graph.device[run.task[last]]]
    return dict(zip(ranks.tolist(), run.end[last].tolist(), strict=True))


@given(jobs())
@settings(max_examples=60)
def test_folded_equals_unfolded(job: tuple[Cluster, dict[str, Any]]) -> None:
    folded, unfolded = (end_of_rank(*job, fold=fold) for fold in (True, False))
    assert folded.keys() <= unfolded.keys()
    assert folded == pytest.approx({rank: unfolded[rank] for rank in folded}, rel=1e-9)
    assert max(folded.values()) == pytest.approx(max(unfolded.values()), rel=1e-9)


@given(jobs())
@settings(max_examples=60)
def test_links_that_ports_hold_back_can_be_left_out(job: tuple[Cluster, dict[str, Any]]) -> None:
    where, what = job
    quick = play(lower_collective(where, **what, fold=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Network, "without_held_back", lambda self, *_: self._all_links)
        exact = lower_collective(where, **what, fold=False)
        patch.setattr(Router, "_never_bottleneck", lambda self, _: np.zeros(len(self.capacity), bool))
        everything = lower_collective(where, **what, fold=False)
    assert len(everything.link_table.capacity) >= len(exact.link_table.capacity)
    assert quick.makespan == pytest.approx(play(exact).makespan, rel=1e-9)
    assert quick.makespan == pytest.approx(play(everything).makespan, rel=1e-9)
    assert np.sort(quick.end) == pytest.approx(np.sort(play(everything).end), rel=1e-9)


@pytest.mark.parametrize("fabric", FABRICS[:6])
def test_the_quick_test_is_never_bolder_than_the_exact_one(fabric: dict[str, Any]) -> None:
    """What is left out at first would be left out by the exact test, too: the graphs are the same."""
    where = cluster(switched_host(4, 2), 6, **fabric)
    job = {"op": "all_reduce", "algorithm": "ring", "size_bytes": 1e9, "calibration": CALIBRATION}
    quick = lower_collective(where, **job)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Network, "without_held_back", lambda self, *_: self._all_links)
        exact = lower_collective(where, **job)
    assert quick.link_table.name == exact.link_table.name
    assert quick.link_coefficient.tolist() == exact.link_coefficient.tolist()


@pytest.mark.parametrize("algorithm", ["ring", "tree", "hierarchical", "halving_doubling"])
def test_repeats_follow_each_other(algorithm: str) -> None:
    where = cluster(switched_host(4, 4), 4)
    once, often = (
        play(
            lower_collective(
                where, "all_reduce", algorithm, 1e8, chunks=3, repeat=repeat, calibration=CALIBRATION
            )
        )
        for repeat in (1, 5)
    )
    assert often.makespan == pytest.approx(5 * once.makespan, rel=1e-9)
    assert len(often.boundary_times) == 5


def test_groups_of_different_widths_run_at_once() -> None:
    """A ring of 2 and one of 4 on ports of their own: the wider one decides."""
    where = cluster(plain_host(1e9), 6)
    run = play(
        lower_collective(
            where, "all_reduce", "ring", [1e9, 1e9], ranks=[[0, 1], [2, 3, 4, 5]], calibration=ideal()
        )
    )
    assert run.makespan == pytest.approx(1.5, rel=1e-9)
    assert np.sort(run.end)[0] == pytest.approx(1.0, rel=1e-9)


def test_roots_are_first_in_their_group() -> None:
    """Two broadcasts from the same root share its port; two to the same root share it inwards."""
    where = cluster(plain_host(1e9), 5)
    for op in ("broadcast", "reduce"):
        run = play(
            lower_collective(where, op, "direct", 1e9, ranks=[[4, 0, 1], [4, 2, 3]], calibration=ideal())
        )
        assert run.makespan == pytest.approx(4.0, rel=1e-9)


def test_auto_is_the_librarys_choice() -> None:
    where = cluster(switched_host(4, 4), 8)
    small, large = (
        lower_collective(where, "all_reduce", "auto", size, calibration=CALIBRATION) for size in (1e3, 1e9)
    )
    assert small.names[small.name[0]] == large.names[large.name[0]] == "all_reduce"
    tree, ring = (
        lower_collective(where, "all_reduce", name, size, calibration=CALIBRATION)
        for name, size in (("tree", 1e3), ("ring", 1e9))
    )
    assert play(small).makespan == play(tree).makespan
    assert play(large).makespan == play(ring).makespan


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"ranks": [[0, 9]]}, "ranks"),
        ({"ranks": [[0, 0]]}, "ranks"),
        ({"ranks": [[0, 1], []]}, "ranks"),
        ({"size_bytes": -1}, "size_bytes"),
        ({"size_bytes": float("nan")}, "size_bytes"),
        ({"size_bytes": [1e6, 1e6]}, "size_bytes"),
        ({"chunks": 0}, "chunks"),
        ({"repeat": 0}, "repeat"),
        ({"dims": (3, 2), "algorithm": "hierarchical"}, "dims"),
        ({"algorithm": "smoke_signals"}, "algorithm"),
        ({"op": "all_shout"}, "operation"),
    ],
)
def test_bad_input_is_refused(change: dict[str, Any], field: str) -> None:
    job: dict[str, Any] = {
        "op": "all_reduce",
        "algorithm": "ring",
        "size_bytes": 1e6,
        "calibration": CALIBRATION,
    }
    with pytest.raises(InputError, match=f"collective.{field}"):
        lower_collective(cluster(plain_host(), 4), **(job | change))
