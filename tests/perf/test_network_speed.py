"""The network at scale: routes and loads of tens of thousands of ranks, and transfers that share links.

Seconds are gated through bare SimPy callbacks in the same process; see ``tests.perf.test_scale``.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from sim.engine import play
from sim.graph.execution import ExecutionGraph
from tests.graphs import make_graph
from tests.perf.bare import bare_callback_loop
from tests.perf.test_scale import CALLBACKS_PER_SECOND, within
from tests.perf.works import fresh


def callbacks(work: Callable[[], object], tries: int = 2) -> float:
    """Bare callbacks that take as long as the cheapest of some runs."""
    found = []
    for _ in range(tries):
        begin = time.process_time()
        bare_callback_loop(1000, 20_000)
        bare = (time.process_time() - begin) / 20_000
        begin = time.process_time()
        work()
        found.append((time.process_time() - begin) / bare)
    return min(found)


def test_hierarchical_on_16384_takes_less_than_100_ms_from_its_spec() -> None:
    """Cold: a new process, no network built yet."""
    found = fresh("fat-tree hierarchical 16,384")
    assert (found.tasks, found.devices) == (4, 1)
    assert within(found, 0.1), found


@pytest.mark.parametrize("work", ["fat-tree ring 65,536", "fat-tree all-to-all 65,536"])
def test_loads_of_65536_ranks_take_less_than_a_second(work: str) -> None:
    """Routes, loads, folding and playing together; an all-to-all by counting peers per tier."""
    found = fresh(work, tries=1)
    assert found.tasks == 2
    assert within(found, 1.0), found


def incast(workers: int, rounds: int) -> ExecutionGraph:
    """Every worker sends ``rounds`` messages, one after another, no two of one size, through one port."""
    tasks = [
        {
            "name": f"push{i}.{turn}",
            "kind": "transfer",
            "work": 500e-9,
            "bytes": 1e7 * (1 + (i * rounds + turn) / (workers * rounds)),
            "links": {"in": 1, f"out{i}": 1},
            "on": [f"worker{i}"],
            "after": [f"push{i}.{turn - 1}"] if turn else [],
        }
        for turn in range(rounds)
        for i in range(workers)
    ]
    links = {"in": 50e9, **{f"out{i}": 50e9 for i in range(workers)}}
    return make_graph(tasks, links=links, max_iterations=1)


def test_incast_of_10000_transfers_takes_less_than_2_s() -> None:
    graph = incast(1000, 10)
    total = float(graph.flow_bytes.sum())

    def work() -> None:
        assert play(graph).makespan == pytest.approx(total / 50e9, rel=1e-3)

    assert callbacks(work, tries=1) <= 2 * CALLBACKS_PER_SECOND


def crowd(sharing: int, turns: int, alone: int) -> ExecutionGraph:
    """``sharing`` chains of transfers over contended links; ``alone`` long ones, each on its own link."""
    tasks = [
        {
            "name": f"shared{i}.{turn}",
            "kind": "transfer",
            "bytes": 1e6 * (1 + i / sharing + turn / 7),
            "links": {f"middle{i % 3}": 1, f"end{(i + turn) % 2}": 1},
            "on": [f"worker{i}"],
            "after": [f"shared{i}.{turn - 1}"] if turn else [],
        }
        for turn in range(turns)
        for i in range(sharing)
    ]
    tasks += [
        {
            "name": f"alone{i}",
            "kind": "transfer",
            "bytes": 1e12,
            "links": {f"own{i}": 1},
            "on": [f"lonely{i}"],
        }
        for i in range(alone)
    ]
    links = {"middle0": 1e9, "middle1": 2e9, "middle2": 3e9, "end0": 2e9, "end1": 4e9}
    return make_graph(tasks, links=links | {f"own{i}": 1e9 for i in range(alone)}, max_iterations=1)


def test_a_change_costs_what_shares_links_with_it() -> None:
    """600 changes among 12 transfers cost the same whether 3,000 others are on the way elsewhere or none."""
    few, many, only = crowd(12, 50, 0), crowd(12, 50, 3000), crowd(1, 1, 3000)
    ratios = []
    for _ in range(3):
        cost = [callbacks(lambda graph=graph: play(graph), tries=1) for graph in (few, many, only)]  # type: ignore[misc]
        ratios.append((cost[1] - cost[2]) / cost[0])
    assert min(ratios) <= 1.6, ratios  # 250 if a change cost all flows
