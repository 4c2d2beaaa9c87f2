"""Order of tasks: program, arrival and priority streams, widths, simultaneity, deadlocks."""

from __future__ import annotations

import numpy as np
import pytest

from sim.engine import play
from sim.errors import Deadlock, InputError
from tests.graphs import make_graph, spans


def test_large_times_do_not_wrap() -> None:
    """Two dependent computations of 3e9 ns end at exactly 6e9 ns (shared case 3: 3e9 > 2^31)."""
    graph = make_graph(
        [{"name": "a", "work": 3.0}, {"name": "b", "work": 3.0, "after": ["a"]}], max_iterations=1
    )
    assert play(graph).makespan == 6.0
    assert play(graph, contract=False).makespan == 6.0


def test_program_stream_blocks_at_its_head() -> None:
    graph = make_graph(
        [
            {"name": "slow", "work": 5},
            {"name": "first", "work": 1, "on": ["s"], "after": ["slow"]},
            {"name": "second", "work": 1, "on": ["s"]},
        ],
        max_iterations=1,
    )
    assert spans(graph, play(graph))["second", 0] == (6.0, 7.0)


def test_task_on_two_program_streams_starts_with_the_last_arrival() -> None:
    graph = make_graph(
        [
            {"name": "a", "work": 1, "on": ["s"]},
            {"name": "b", "work": 4, "on": ["t"]},
            {"name": "both", "work": 2, "on": ["s", "t"]},
        ],
        max_iterations=1,
    )
    assert spans(graph, play(graph))["both", 0] == (4.0, 6.0)


def test_program_order_repeats_over_iterations() -> None:
    graph = make_graph([{"name": "a", "work": 1, "on": ["s"]}, {"name": "b", "work": 2, "on": ["s"]}])
    found = spans(graph, play(graph, max_iterations=3))
    assert [found["a", k][0] for k in range(3)] == [0.0, 3.0, 6.0]


def test_wide_program_stream_starts_in_order_up_to_its_width() -> None:
    tasks = [{"name": f"t{i}", "work": w, "on": ["cpu"]} for i, w in enumerate([5, 1, 1, 1])]
    tasks.append({"name": "late", "work": 3})
    tasks[2]["after"] = ["late"]  # t2 blocks t3 although a slot is free
    graph = make_graph(tasks, streams={"cpu": {"width": 2}}, max_iterations=1)
    found = spans(graph, play(graph))
    assert [found[f"t{i}", 0][0] for i in range(4)] == [0.0, 0.0, 3.0, 4.0]


def test_wide_program_stream_repeats() -> None:
    graph = make_graph(
        [{"name": f"t{i}", "work": 1, "on": ["cpu"]} for i in range(3)], streams={"cpu": {"width": 2}}
    )
    found = spans(graph, play(graph, max_iterations=4))
    starts = sorted(start for start, _ in found.values())
    assert starts == [float(i // 2) for i in range(12)]


def test_arrival_stream_serves_by_ready_time_then_priority_then_id() -> None:
    graph = make_graph(
        [
            {"name": "late", "work": 2},
            {"name": "x", "work": 10, "on": ["q"]},
            {"name": "c", "work": 1, "on": ["q"], "after": ["late"], "priority": 5},
            {"name": "d", "work": 1, "on": ["q"], "after": ["late"], "priority": 1},
            {"name": "e", "work": 1, "on": ["q"], "after": ["soon"]},
            {"name": "soon", "work": 1},
        ],
        streams={"q": {"discipline": "arrival"}},
        max_iterations=1,
    )
    found = spans(graph, play(graph))
    assert sorted("xedc", key=lambda name: found[name, 0]) == ["x", "e", "d", "c"]


def test_priority_stream_overtakes_but_does_not_preempt() -> None:
    graph = make_graph(
        [
            {"name": "x", "work": 10, "on": ["q"], "priority": 9},
            {"name": "low", "work": 1, "on": ["q"], "priority": 2, "after": ["one"]},
            {"name": "high", "work": 1, "on": ["q"], "priority": 1, "after": ["two"]},
            {"name": "one", "work": 1},
            {"name": "two", "work": 2},
        ],
        streams={"q": {"discipline": "priority"}},
        max_iterations=1,
    )
    found = spans(graph, play(graph))
    assert found["high", 0] == (10.0, 11.0)
    assert found["low", 0] == (11.0, 12.0)


def test_arrival_task_takes_all_streams_at_once_and_holds_none_while_waiting() -> None:
    graph = make_graph(
        [
            {"name": "busy", "work": 5, "on": ["a"]},
            {"name": "both", "work": 1, "on": ["a", "b"], "after": ["t1"]},
            {"name": "other", "work": 2, "on": ["b"], "after": ["t2"]},
            {"name": "t1", "work": 1},
            {"name": "t2", "work": 2},
        ],
        streams={"a": {"discipline": "arrival"}, "b": {"discipline": "arrival"}},
        max_iterations=1,
    )
    found = spans(graph, play(graph))
    assert found["other", 0] == (2.0, 4.0)  # b was free although `both` waited for it first
    assert found["both", 0] == (5.0, 6.0)


def test_mixed_streams_acquire_at_the_program_head() -> None:
    graph = make_graph(
        [
            {"name": "hold", "work": 4, "on": ["q"]},
            {"name": "mixed", "work": 1, "on": ["p", "q"]},
            {"name": "behind", "work": 1, "on": ["p"]},
        ],
        streams={"p": {}, "q": {"discipline": "arrival"}},
        max_iterations=1,
    )
    found = spans(graph, play(graph))
    assert found["mixed", 0] == (4.0, 5.0)
    assert found["behind", 0] == (5.0, 6.0)


def test_simultaneous_completions_are_all_processed_before_anything_starts() -> None:
    """0.1 + 0.2 and 0.3 differ in the last bit; the higher priority must still win the queue."""
    graph = make_graph(
        [
            {"name": "a", "work": 0.1},
            {"name": "b", "work": 0.2, "after": ["a"]},
            {"name": "c", "work": 0.3},
            {"name": "from_c", "work": 1, "on": ["q"], "after": ["c"], "priority": 2},
            {"name": "from_b", "work": 1, "on": ["q"], "after": ["b"], "priority": 1},
        ],
        streams={"q": {"discipline": "arrival"}},
        max_iterations=1,
    )
    found = spans(graph, play(graph, contract=False))
    assert found["from_b", 0][0] < found["from_c", 0][0]


def test_zero_duration_tasks_chain_within_an_instant() -> None:
    tasks = [{"name": "a", "work": 1}] + [
        {"name": f"z{i}", "kind": "counter", "after": [f"z{i - 1}" if i else "a"]} for i in range(50)
    ]
    graph = make_graph([*tasks, {"name": "end", "work": 1, "after": ["z49"]}], max_iterations=1)
    assert play(graph).makespan == 2.0


def test_edges_may_reach_back_several_iterations() -> None:
    graph = make_graph([{"name": "a", "work": 1, "after": [("a", 2)], "boundary": True}])
    found = spans(graph, play(graph, max_iterations=6))
    assert [found["a", k][0] for k in range(6)] == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]


def test_record_is_in_order_of_completion_with_ready_times() -> None:
    graph = make_graph(
        [
            {"name": "a", "work": 3, "on": ["s"]},
            {"name": "b", "work": 1, "on": ["t"]},
            {"name": "c", "work": 1, "on": ["s"], "after": ["b"]},
        ],
        max_iterations=2,
    )
    run = play(graph)
    assert (np.diff(run.end) >= 0).all()
    row = {(graph.names[t], k): i for i, (t, k) in enumerate(zip(run.task, run.iteration, strict=True))}
    assert run.ready[row["c", 0]] == 1.0
    assert run.start[row["c", 0]] == 3.0
    assert run.boundary_times.tolist() == [4.0, 8.0]
    assert run.window == (0.0, 8.0)
    assert run.step_time == 4.0


def test_mismatched_collective_orders_deadlock_with_the_chain() -> None:
    graph = make_graph(
        [
            {"name": "reduce A", "kind": "transfer", "work": 1, "on": ["rank0", "rank1"]},
            {"name": "reduce B", "kind": "transfer", "work": 1, "on": ["rank0", "rank1"], "after": ["go"]},
            {"name": "go", "work": 1, "after": ["reduce C"]},
            {"name": "reduce C", "kind": "transfer", "work": 1, "on": ["rank0"]},
        ],
        max_iterations=1,
    )
    with pytest.raises(Deadlock) as caught:
        play(graph)
    text = str(caught.value)
    assert "'reduce C'" in text
    assert "stream 'rank0'" in text
    assert "closes a cycle of 3 tasks" in text


def test_counter_that_nobody_raises_is_named() -> None:
    graph = make_graph(
        [
            {"name": "a", "work": 1, "on": ["s"]},
            {"name": "b", "work": 1, "on": ["s"], "waits": [("tokens", 2)]},
        ],
        counters={"tokens": True},
        max_iterations=1,
    )
    with pytest.raises(
        Deadlock, match=r"counter 'tokens' >= 2 \(it is 0\) and no unfinished task adds to it"
    ):
        play(graph)


def test_part_that_runs_ahead_for_ever_while_the_rest_is_stuck_is_a_deadlock() -> None:
    graph = make_graph(
        [
            {"name": "free", "work": 1, "on": ["s"]},
            {"name": "stuck", "work": 1, "on": ["t"], "waits": [("never", 1)], "boundary": True},
        ],
        counters={"never": True},
    )
    with pytest.raises(Deadlock, match=r"'stuck'.*never"):
        play(graph)


def test_root_without_any_bound_is_refused() -> None:
    graph = make_graph([{"name": "a", "work": 1}, {"name": "b", "work": 1, "after": ["a"], "boundary": True}])
    with pytest.raises(InputError, match="predecessor"):
        play(graph)
    assert play(graph, max_iterations=1).makespan == 2.0


def test_bad_arguments_are_refused() -> None:
    graph = make_graph([{"name": "a", "work": 1, "on": ["s"]}])
    with pytest.raises(InputError, match="fidelity"):
        play(graph, fidelity="packets")
    with pytest.raises(InputError, match="max_iterations"):
        play(graph, max_iterations=0)
    with pytest.raises(InputError, match="finite"):
        play(make_graph([{"name": "t", "kind": "transfer", "bytes": 1, "on": ["s"]}]))


def test_iterations_that_take_no_time_are_refused() -> None:
    with pytest.raises(InputError, match="let an iteration take time"):
        play(make_graph([{"name": "a", "work": 0, "on": ["s"]}, {"name": "b", "work": 1, "on": ["t"]}]))
