from __future__ import annotations

import math

import numpy as np
import pytest

from sim.analysis.breakdown import PARTS, activities, breakdown, busy_fractions, device_occupancy, summarize
from sim.analysis.timeline_from_run import timeline_from_run
from sim.graph.builder import GraphBuilder
from sim.graph.execution import Cause, Discipline, TaskKind
from sim.timeline import Timeline
from tests.handmade import links, record


def measured(*rows: tuple[str, float, float], posted: dict[int, float] | None = None) -> Timeline:
    """A one-device timeline of ("compute"|"comm", start, end) rows."""
    kinds = [TaskKind.TRANSFER if kind == "comm" else TaskKind.COMPUTE for kind, _, _ in rows]
    start = [row[1] for row in rows]
    return Timeline.build(
        names=("task",),
        devices=("rank0",),
        name=[0] * len(rows),
        device=[0] * len(rows),
        start=start,
        end=[row[2] for row in rows],
        posted=[(posted or {}).get(i, start[i]) for i in range(len(rows))],
        kind=kinds,
        cause=[Cause.GRADIENT_COMM if kind == "comm" else Cause.FORWARD for kind, _, _ in rows],
    )


def one_device(timeline: Timeline, span: float):
    edges = np.array([0.0, span])
    table = device_occupancy(activities(timeline), edges, np.array([0]))
    return summarize(table[0], span, 1.0, "rank0")


def test_overlap_of_comm_0_10_and_compute_5_8():
    result = one_device(measured(("comm", 0, 10), ("compute", 5, 8)), 10.0)
    assert result.overlap_fraction == pytest.approx(0.3)
    assert result.parts["exposed_comm_s"] == pytest.approx(7.0)
    assert result.parts["compute_s"] == pytest.approx(3.0)


def test_waiting_for_a_late_peer_is_not_communication():
    result = one_device(measured(("compute", 0, 10), ("comm", 15, 18), posted={1: 10.0}), 18.0)
    assert result.parts == pytest.approx(
        {"optimizer_s": 0, "compute_s": 10, "data_s": 0, "exposed_comm_s": 3, "wait_s": 5, "bubble_s": 0}
    )


def test_overlapping_communications_count_once():
    result = one_device(measured(("comm", 0, 6), ("comm", 4, 10), ("compute", 9, 10)), 12.0)
    assert result.parts["exposed_comm_s"] == pytest.approx(9.0)
    assert result.communication_s == pytest.approx(10.0)
    assert result.parts["bubble_s"] == pytest.approx(2.0)


def straggler_graph(slow: float, comm: float):
    """Eight ranks in two classes that all-reduce after computing for 1 s (one of them ``slow`` s)."""
    builder = GraphBuilder()
    late = builder.device("rank0", 0)
    others = builder.device("rank1", 1, multiplicity=7)
    first = builder.compute(late, slow, "backward", Cause.BACKWARD)
    second = builder.compute(others, 1.0, "backward", Cause.BACKWARD)
    streams = (builder.stream(late, "comm"), builder.stream(others, "comm"))
    reduce = builder.task(
        TaskKind.TRANSFER, "all_reduce", Cause.GRADIENT_COMM, device=late, streams=streams,
        after=[first, second], work=comm,
    )  # fmt: skip
    for device, compute in ((late, first), (others, second)):
        end = builder.control("step_end", device=device, after=[reduce], boundary=True)
        builder.edge(compute, end, 1)
    return builder.build(links())


def test_straggler_shows_as_wait_on_the_other_ranks():
    graph = straggler_graph(1.2, 0.5)
    rows = [(1, 0, 0, 1.0), (0, 0, 0, 1.2), (2, 0, 1.2, 1.7), (3, 0, 1.7, 1.7), (4, 0, 1.7, 1.7)]
    run = record(graph, rows)
    timeline = timeline_from_run(graph, run)
    edges = np.array([0.0, 1.7])
    found = activities(timeline)
    fast = summarize(device_occupancy(found, edges, np.array([1]))[0], 1.7, 1.0, "rank1")
    assert fast.parts["wait_s"] == pytest.approx(0.2)
    assert fast.parts["compute_s"] == pytest.approx(1.0)
    critical = breakdown(graph, run, timeline)
    assert critical.critical_device == "rank0"
    assert critical.step_time_s == pytest.approx(1.7)
    assert critical.parts["wait_s"] == 0.0
    assert busy_fractions(graph, run, timeline) == pytest.approx([1.2 / 1.7, 1.0 / 1.7])


def test_critical_device_follows_the_iteration():
    builder = GraphBuilder()
    devices = [builder.device(f"rank{i}", i) for i in range(2)]
    tasks = [builder.compute(d, 1.0, "forward", Cause.FORWARD, boundary=True) for d in devices]
    graph = builder.build(links())
    # Rank 1 is late in iteration 0, rank 0 in iteration 1; the other one idles meanwhile.
    rows = [(tasks[0], 0, 0, 1), (tasks[1], 0, 0, 3), (tasks[0], 1, 3, 7), (tasks[1], 1, 3, 4)]
    run = record(graph, rows)
    result = breakdown(graph, run, timeline_from_run(graph, run))
    assert result.step_time_s == pytest.approx(3.5)
    assert result.parts["compute_s"] == pytest.approx(3.5)
    assert result.critical_device == "rank0"


def test_asynchronous_breakdown_is_the_mean_over_worker_cycles():
    builder = GraphBuilder()
    fast = builder.device("rank0", 0, multiplicity=3)
    slow = builder.device("rank1", 1)
    a = builder.compute(fast, 1.0, "forward", Cause.FORWARD, boundary=True)
    b = builder.compute(slow, 2.0, "forward", Cause.FORWARD, boundary=True)
    graph = builder.build(links(), metadata={"synchronization": "asp"})
    rows = [(a, k, k, k + 1) for k in range(4)] + [(b, k, 2 * k, 2 * k + 2) for k in range(2)]
    run = record(graph, rows, window=(0.0, 4.0), window_iterations=(0, 2))
    result = breakdown(graph, run, timeline_from_run(graph, run))
    # 3 workers at 1 step/s and one at 1/2: 3.5 steps/s for 4 workers.
    assert result.step_time_s == pytest.approx(4 / 3.5)
    assert result.parts["compute_s"] == pytest.approx(4 / 3.5)


def test_asynchronous_without_recurrence_uses_whole_cycles():
    builder = GraphBuilder()
    devices = [builder.device(f"rank{i}", i) for i in range(2)]
    tasks = [builder.compute(d, 1.0, "forward", Cause.FORWARD, boundary=True) for d in devices]
    graph = builder.build(links(), metadata={"synchronization": "asp"})
    rows = [(tasks[0], k, 1.1 * k, 1.1 * k + 1.1) for k in range(9)] + [
        (tasks[1], k, k, k + 1) for k in range(9)
    ]
    run = record(graph, rows, window=(1.05, 9.9), window_iterations=(1, 9), stop="confidence")
    result = breakdown(graph, run, timeline_from_run(graph, run))
    assert result.step_time_s == pytest.approx(2 / (1 / 1.1 + 1))
    assert result.parts["bubble_s"] == pytest.approx(0.0, abs=1e-12)


def test_what_runs_across_a_recurring_boundary_is_counted_at_both_ends():
    builder = GraphBuilder()
    rank = builder.device("rank0", 0)
    step = builder.compute(rank, 2.0, "forward", Cause.FORWARD, boundary=True)
    push = builder.task(
        TaskKind.TRANSFER, "push", Cause.GRADIENT_COMM, device=rank, streams=(builder.stream(rank, "comm"),),
        after=[step], work=1.0,
    )  # fmt: skip
    graph = builder.build(links())
    # The push of iteration k ends 1 s into iteration k + 1; the engine stopped at the end of iteration 1.
    rows = [(step, 0, 0, 2), (push, 0, 2, 3), (step, 1, 3, 5)]
    run = record(graph, rows, window=(2.0, 5.0), window_iterations=(1, 2))
    result = breakdown(graph, run, timeline_from_run(graph, run, window=run.window))
    assert result.parts["exposed_comm_s"] == pytest.approx(1.0)
    assert sum(result.parts.values()) == pytest.approx(3.0)


def test_head_of_a_pipeline_stream_without_local_predecessors_is_a_bubble_not_a_wait():
    builder = GraphBuilder()
    sender, receiver = builder.device("rank0", 0, stage=0), builder.device("rank1", 1, stage=1)
    forward = builder.compute(sender, 3.0, "forward", Cause.FORWARD)
    send = builder.task(
        TaskKind.TRANSFER, "send", Cause.PIPELINE_COMM, device=sender, after=[forward], work=1.0,
        streams=(builder.stream(sender, "send"), builder.stream(receiver, "receive")),
    )  # fmt: skip
    last = builder.compute(receiver, 2.0, "forward", Cause.FORWARD, after=[send], boundary=True)
    graph = builder.build(links())
    run = record(graph, [(forward, 0, 0, 3), (send, 0, 3, 4), (last, 0, 4, 6)])
    result = breakdown(graph, run, timeline_from_run(graph, run))
    assert result.critical_device == "rank1"
    assert result.parts["bubble_s"] == pytest.approx(3.0)
    assert result.parts["exposed_comm_s"] == pytest.approx(1.0)


def test_a_worker_that_waits_for_its_server_waits():
    builder = GraphBuilder()
    worker, server = builder.device("rank0", 0), builder.device("server0", 8, stage=-1, kind="server")
    push = builder.task(
        TaskKind.TRANSFER, "push", Cause.GRADIENT_COMM, device=worker, work=1.0,
        streams=(builder.stream(worker, "push"),),
    )  # fmt: skip
    shelf = builder.stream(server, "server", discipline=Discipline.ARRIVAL)
    update = builder.compute(server, 2.0, "update", Cause.OPTIMIZER, streams=(shelf,), after=[push])
    pull = builder.task(
        TaskKind.TRANSFER, "pull", Cause.PARAMETER_COMM, device=worker, work=1.0, after=[update],
        streams=(builder.stream(worker, "pull"),), boundary=True,
    )  # fmt: skip
    graph = builder.build(links())
    run = record(graph, [(push, 0, 0, 1), (update, 0, 1, 3), (pull, 0, 3, 4)])
    result = breakdown(graph, run, timeline_from_run(graph, run))
    assert result.parts["wait_s"] == pytest.approx(2.0)
    assert result.parts["optimizer_s"] == 0.0  # the server's, not the worker's


def test_parts_are_complete_and_add_up():
    graph = straggler_graph(1.3, 0.7)
    rows = [(1, 0, 0, 1.0), (0, 0, 0, 1.3), (2, 0, 1.3, 2.0), (3, 0, 2.0, 2.0), (4, 0, 2.0, 2.0)]
    run = record(graph, rows)
    result = breakdown(graph, run, timeline_from_run(graph, run))
    assert tuple(result.parts) == PARTS
    assert math.fsum(result.parts.values()) == pytest.approx(result.step_time_s, rel=1e-12)
