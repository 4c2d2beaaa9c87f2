"""Counters: stale-synchronous clocks, backup workers, soft synchronisation, skips."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim.engine import play
from sim.errors import InputError, InvariantError
from tests.graphs import make_graph, spans


def stale_synchronous(work: list[float], staleness: int) -> Any:
    """Workers that may be ``staleness`` steps ahead of the slowest: one cumulative clock counter each."""
    tasks = [
        {
            "name": f"step{i}",
            "work": seconds,
            "on": [f"worker{i}"],
            "adds": {f"clock{i}": 1},
            "waits": [(f"clock{j}", -staleness, 1) for j in range(len(work))],
            "boundary": True,
        }
        for i, seconds in enumerate(work)
    ]
    return make_graph(tasks, counters={f"clock{i}": False for i in range(len(work))})


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_stale_synchronous_bound_is_never_exceeded_and_reached(staleness: int) -> None:
    graph = stale_synchronous([1.0, 2.5], staleness)
    run = play(graph, max_iterations=20)
    found = spans(graph, run)
    lead = 0
    for k in range(20):
        start = found["step0", k][0]
        slowest = sum(found["step1", j][1] <= start + 1e-9 for j in range(20))
        lead = max(lead, k - slowest)
    assert lead == staleness
    assert found["step1", 19][1] == 20 * 2.5  # the slow worker never waits


def test_stale_synchronous_run_recurs_at_the_slow_workers_pace() -> None:
    run = play(stale_synchronous([1.0, 2.5], 3))
    assert run.stop == "recurrence"
    assert run.step_time == pytest.approx(2.5, rel=1e-9)


def test_k_of_n_takes_the_fastest_and_skips_the_late() -> None:
    """Backup workers: the update needs 2 of 3 gradients; a push that comes later is skipped, at no cost."""
    workers = [1.0, 2.0, 5.0]
    tasks: list[dict[str, Any]] = []
    for i, seconds in enumerate(workers):
        tasks.append({"name": f"compute{i}", "work": seconds, "on": [f"w{i}"]})
        tasks.append(
            {
                "name": f"push{i}",
                "kind": "transfer",
                "bytes": 10.0,
                "links": {"port": 1},
                "on": [f"w{i}"],
                "after": [f"compute{i}"],
                "skip": ("arrived", 2),
                "adds": {"arrived": 1},
            }
        )
    tasks.append({"name": "update", "work": 0.5, "waits": [("arrived", 2)], "on": ["server"]})
    graph = make_graph(tasks, links={"port": 10.0}, counters={"arrived": True}, max_iterations=1)
    run = play(graph)
    found = spans(graph, run)
    assert found["update", 0] == (3.0, 3.5)
    assert found["push2", 0] == (5.0, 5.0)
    dropped = {graph.names[task] for task in run.task[run.dropped]}
    assert dropped == {"push2"}
    assert run.link_bytes.tolist() == [20.0]  # the skipped push moved nothing


def test_skip_decision_is_shared_with_the_leader() -> None:
    graph = make_graph(
        [
            {"name": "first", "work": 1, "adds": {"done": 1}},
            {"name": "leader", "work": 2, "after": ["first"], "skip": ("done", 1)},
            {"name": "follower", "work": 3, "after": ["leader"], "skip_with": "leader"},
            {"name": "end", "work": 1, "after": ["follower"]},
        ],
        counters={"done": True},
        max_iterations=1,
    )
    run = play(graph)
    assert run.makespan == 2.0
    assert run.dropped.sum() == 2


def test_follower_before_its_leader_is_an_error() -> None:
    graph = make_graph(
        [
            {"name": "late", "work": 5},
            {"name": "leader", "work": 2, "after": ["late"], "skip": ("c", 1)},
            {"name": "follower", "work": 3, "skip_with": "leader"},
        ],
        counters={"c": True},
        max_iterations=1,
    )
    with pytest.raises(InvariantError, match="shares the skip decision"):
        play(graph)


def test_soft_synchronisation_updates_after_every_c_gradients() -> None:
    """One update per 2 gradients of 4 workers: a cumulative counter, values 2 and 4 plus 4 per iteration."""
    tasks: list[dict[str, Any]] = [
        {"name": f"g{i}", "work": 1.0 + i, "on": [f"w{i}"], "adds": {"gradients": 1}} for i in range(4)
    ]
    tasks += [
        {
            "name": f"u{j}",
            "work": 0.25,
            "on": ["server"],
            "waits": [("gradients", 2 * j + 2, 4)],
            "boundary": j == 1,
        }
        for j in range(2)
    ]
    graph = make_graph(tasks, counters={"gradients": False})
    found = spans(graph, play(graph, max_iterations=2))
    # gradients arrive at 1, 2, 2, 3, 3, 4, ...: worker i every 1 + i seconds, each worker twice
    arrivals = sorted((1.0 + i) * (k + 1) for i in range(4) for k in range(2))
    for update in range(4):
        assert found[f"u{update % 2}", update // 2][0] == pytest.approx(arrivals[2 * update + 1])


def test_per_iteration_wait_may_look_back() -> None:
    graph = make_graph(
        [
            {"name": "a", "work": 1, "on": ["s"], "waits": [("c", 1, 0, 2)]},
            {"name": "b", "work": 5, "on": ["t"], "adds": {"c": 1}},
        ],
        counters={"c": True},
        max_iterations=4,
    )
    found = spans(graph, play(graph))
    assert [found["a", k][0] for k in range(4)] == [0.0, 1.0, 5.0, 10.0]


def test_ready_of_a_waiting_task_is_when_its_counters_allow_it() -> None:
    graph = make_graph(
        [{"name": "a", "work": 2, "adds": {"c": 1}}, {"name": "b", "work": 1, "waits": [("c", 1)]}],
        counters={"c": True},
        max_iterations=1,
    )
    run = play(graph)
    assert run.ready[np.flatnonzero(run.task == 1)[0]] == 2.0


def test_counters_cannot_shrink() -> None:
    graph = make_graph(
        [{"name": "a", "work": 1, "on": ["s"], "adds": {"c": -1}}], counters={"c": True}, max_iterations=1
    )
    with pytest.raises(InputError, match="add_amount"):
        play(graph)
