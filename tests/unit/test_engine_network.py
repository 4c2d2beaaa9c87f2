"""Fluid sharing of links by hand examples; coupling of compute and communication; fidelities."""

from __future__ import annotations

from typing import Any

import pytest

from sim.engine import play
from sim.graph.execution import ExecutionGraph
from tests.graphs import make_graph, spans


def transfers(rows: list[dict[str, Any]], links: dict[str, float], **fields: Any) -> ExecutionGraph:
    tasks = [{"kind": "transfer", "name": f"t{i}", **row} for i, row in enumerate(rows)]
    return make_graph(tasks, links=links, max_iterations=1, **fields)


def ends(graph: ExecutionGraph, **options: Any) -> list[float]:
    found = spans(graph, play(graph, **options))
    return [found[name, 0][1] for name in graph.names]


def test_two_transfers_share_and_the_survivor_speeds_up() -> None:
    # 10 B/s: both at 5 until the 10-byte one is done at 2 s, then the other's remaining 20 at 10.
    graph = transfers([{"bytes": 10, "links": {"a": 1}}, {"bytes": 30, "links": {"a": 1}}], {"a": 10.0})
    assert ends(graph) == pytest.approx([2.0, 4.0], rel=1e-12)


def test_latency_comes_before_the_bytes_and_loads_nothing() -> None:
    rows = [{"bytes": 10, "links": {"a": 1}}, {"bytes": 10, "links": {"a": 1}, "work": 0.5}]
    # First alone at 10 B/s until 0.5 (5 bytes), then both at 5: first done at 1.5, second has 5 left -> 2.0.
    assert ends(transfers(rows, {"a": 10.0})) == pytest.approx([1.5, 2.0], rel=1e-12)


def test_fairness_is_over_elementary_flows_not_transfers() -> None:
    # 3 flows and 1 flow on a 8 B/s link: each flow 2 B/s; per-flow bytes 4 and 8.
    graph = transfers([{"bytes": 4, "links": {"a": 3}}, {"bytes": 8, "links": {"a": 1}}], {"a": 8.0})
    assert ends(graph) == pytest.approx([2.0, 2.5], rel=1e-12)


def test_max_min_gives_the_leftover_to_flows_limited_elsewhere() -> None:
    # b limits t0 to 2; t1 gets the other 8 of a. t2 shares b with t0.
    rows = [
        {"bytes": 4, "links": {"a": 1, "b": 1}},
        {"bytes": 16, "links": {"a": 1}},
        {"bytes": 4, "links": {"b": 1}},
    ]
    assert ends(transfers(rows, {"a": 10.0, "b": 4.0})) == pytest.approx([2.0, 2.0, 2.0], rel=1e-12)


def test_cap_bounds_a_flow_and_frees_the_rest() -> None:
    rows = [{"bytes": 6, "links": {"a": 1}, "cap": 3.0}, {"bytes": 14, "links": {"a": 1}}]
    assert ends(transfers(rows, {"a": 10.0})) == pytest.approx([2.0, 2.0], rel=1e-12)


def test_transfer_without_links_runs_at_its_cap() -> None:
    assert ends(transfers([{"bytes": 6, "cap": 3.0, "work": 1.0}], {})) == [3.0]


def test_half_duplex_bus_is_one_link_for_both_directions() -> None:
    rows = [{"bytes": 10, "links": {"bus": 1}}, {"bytes": 10, "links": {"bus": 1}}]
    assert ends(transfers(rows, {"bus": 10.0})) == pytest.approx([2.0, 2.0])


def test_groups_that_touch_merge_and_fall_apart() -> None:
    # t0 on a, t1 on b; t2 joins both at 1 s and leaves; links 10 B/s.
    rows = [
        {"bytes": 30, "links": {"a": 1}},
        {"bytes": 30, "links": {"b": 1}},
        {"bytes": 5, "links": {"a": 1, "b": 1}, "work": 1.0},
    ]
    # From 1 s all at 5 until t2 is done at 2 s; t0 and t1 then have 15 left at 10.
    assert ends(transfers(rows, {"a": 10.0, "b": 10.0})) == pytest.approx([3.5, 3.5, 2.0], rel=1e-12)


def test_first_come_first_served_is_strict_and_work_conserving() -> None:
    rows = [
        {"bytes": 10, "links": {"a": 1, "b": 1}},
        {"bytes": 10, "links": {"a": 1}},
        {"bytes": 10, "links": {"b": 1, "c": 1}},
        {"bytes": 10, "links": {"c": 1}},  # c is idle while t2 waits for b: it may be used
    ]
    graph = transfers(rows, {"a": 10.0, "b": 10.0, "c": 10.0}, link_service="fifo")
    assert ends(graph) == pytest.approx([1.0, 2.0, 2.0, 1.0], rel=1e-12)


def test_first_come_first_served_leaves_the_rest_of_a_capped_transfer() -> None:
    rows = [
        {"bytes": 4, "links": {"a": 1}, "cap": 4.0},
        {"bytes": 12, "links": {"a": 1}},
        {"bytes": 10, "links": {"a": 1}},
    ]
    # t0 at 4 and t1 at 6 for 1 s; then t1's remaining 6 at 10, then t2.
    graph = transfers(rows, {"a": 10.0}, link_service="fifo")
    assert ends(graph) == pytest.approx([1.0, 1.6, 2.6], rel=1e-12)


def test_weighted_service_is_seeded_and_keeps_the_link_full() -> None:
    rows = [{"bytes": 10, "links": {"a": 1}} for _ in range(5)]
    first = ends(transfers(rows, {"a": 10.0}, link_service="weighted", seed=1))
    assert len(set(first)) == 5
    assert max(first) == pytest.approx(5.0, rel=1e-9)
    assert first == ends(transfers(rows, {"a": 10.0}, link_service="weighted", seed=1))
    assert first != ends(transfers(rows, {"a": 10.0}, link_service="weighted", seed=2))


def test_analytic_fidelity_ignores_contention() -> None:
    rows = [{"bytes": 10, "links": {"a": 1}}, {"bytes": 10, "links": {"a": 1}, "work": 0.5}]
    assert ends(transfers(rows, {"a": 10.0}), fidelity="analytic") == [1.0, 1.5]


def test_link_bytes_count_flows() -> None:
    graph = transfers(
        [{"bytes": 4, "links": {"a": 3, "b": 1}}, {"bytes": 8, "links": {"a": 1}}], {"a": 8.0, "b": 9.0}
    )
    assert play(graph).link_bytes.tolist() == [20.0, 4.0]


def coupled(compute: float, communication: float, **extra: Any) -> ExecutionGraph:
    return make_graph(
        [
            {"name": "compute", "work": 10, "on": ["compute"]},
            {
                "name": "send",
                "kind": "transfer",
                "bytes": 20,
                "links": {"a": 1},
                "on": ["comm"],
                "after": ["go"],
            },
            {"name": "go", "work": 2, "device": 1, "on": ["other"]},
        ],
        streams={"compute": {}, "comm": {}, "other": {"device": 1}},
        links={"a": 10.0},
        max_iterations=1,
        compute_speed_under_communication=compute,
        communication_speed_under_compute=communication,
        **extra,
    )


def test_communication_slows_compute_while_it_lasts() -> None:
    # 2 s at full speed, 2 s at half (1 s of work), 7 s left.
    assert spans(graph := coupled(0.5, 1.0), play(graph))["compute", 0][1] == pytest.approx(11.0, rel=1e-12)


def test_compute_slows_communication_while_it_lasts() -> None:
    # 20 bytes at 2.5 B/s until compute ends at 10 s, which just suffices.
    assert spans(graph := coupled(1.0, 0.25), play(graph))["send", 0][1] == pytest.approx(10.0, rel=1e-12)


def test_both_ways_at_once() -> None:
    # From 2 s: compute at 0.5, transfer at 5 B/s: it ends at 6 s; compute has 10 - 2 - 2 = 6 s left.
    found = spans(graph := coupled(0.5, 0.5), play(graph))
    assert found["send", 0][1] == pytest.approx(6.0, rel=1e-12)
    assert found["compute", 0][1] == pytest.approx(12.0, rel=1e-12)


@pytest.mark.parametrize(("spins", "end"), [(False, 13.0), (True, 16.0)])
def test_posted_collective_takes_multiprocessors_only_if_it_spins(spins: bool, end: float) -> None:
    """Rank 0's gradient is ready at 2 s, rank 1's at 8 s; meanwhile rank 0 has 10 s of work to do."""
    graph = make_graph(
        [
            {"name": "early", "work": 2, "on": ["c0"]},
            {"name": "late", "work": 8, "device": 1, "on": ["c1"]},
            {
                "name": "reduce",
                "kind": "transfer",
                "bytes": 20,
                "links": {"a": 1},
                "on": ["m0", "m1"],
                "after": ["early", "late"],
                "device": -1,
                "spins": spins,
            },
            {"name": "next", "work": 10, "on": ["c0"]},
        ],
        streams={"c0": {}, "c1": {"device": 1}, "m0": {}, "m1": {"device": 1}},
        links={"a": 10.0},
        max_iterations=1,
        compute_speed_under_communication=0.5,
    )
    # Spinning, rank 0 runs at half speed from 2 s to 10 s (4 s of work), else from 8 s to 10 s.
    assert spans(graph, play(graph))["next", 0] == pytest.approx((2.0, end))
