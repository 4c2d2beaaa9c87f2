from __future__ import annotations

import numpy as np
import pytest

from sim.analysis.critical_path import critical_path, share_by_cause
from sim.engine import play
from sim.graph.builder import GraphBuilder
from sim.graph.execution import Cause, TaskKind
from tests.handmade import links, record


def test_contention_dependency_and_stream_are_told_apart():
    builder = GraphBuilder()
    one, two = builder.device("rank0", 0), builder.device("rank1", 1)
    load = builder.load_row(np.array([0]), np.array([1.0]))

    def send(device: int, after: list[int]) -> int:
        return builder.task(
            TaskKind.TRANSFER, "send", Cause.GRADIENT_COMM, device=device, after=after, flow_bytes=2.0,
            loads=load, streams=(builder.stream(device, "comm"),),
        )  # fmt: skip

    first = builder.compute(one, 1.0, "forward", Cause.FORWARD)
    other = builder.compute(two, 1.0, "forward", Cause.FORWARD)
    sends = [send(one, [first]), send(two, [other])]
    second = builder.compute(one, 1.5, "backward", Cause.BACKWARD)  # held by the stream, not by an edge
    third = builder.compute(one, 2.0, "update", Cause.OPTIMIZER, after=[sends[0], second])
    builder.control("step_end", device=one, after=[third], boundary=True)
    builder.control("step_end", device=two, after=[sends[1]], boundary=True)
    graph = builder.build(links(1.0))
    # Two sends of 2 B share 1 B/s: 4 s instead of 2.
    path = critical_path(graph, play(graph, max_iterations=1))
    assert path["task"].tolist() == ["forward", "send", "update", "step_end"]
    assert path["duration_s"].tolist() == pytest.approx([1.0, 4.0, 2.0, 0.0])
    assert path["contention_s"].tolist() == pytest.approx([0.0, 2.0, 0.0, 0.0])
    assert path["held_by"].tolist() == ["start", "dependency", "dependency", "dependency"]
    assert share_by_cause(path) == pytest.approx(
        {"forward": 1 / 7, "gradient_comm": 4 / 7, "optimizer": 2 / 7}
    )


def test_program_order_holds_a_task():
    builder = GraphBuilder()
    rank = builder.device("rank0", 0)
    builder.compute(rank, 1.0, "forward", Cause.FORWARD)
    builder.compute(rank, 2.0, "backward", Cause.BACKWARD, boundary=True)
    graph = builder.build(links())
    path = critical_path(graph, play(graph, max_iterations=2))
    assert path["held_by"].tolist() == ["start", "stream", "stream", "stream"]
    assert path["iteration"].tolist() == [0, 0, 1, 1]


def test_a_counter_holds_a_task():
    builder = GraphBuilder()
    one, two = builder.device("rank0", 0), builder.device("rank1", 1)
    clock = builder.counter("clock")
    slow = builder.compute(one, 3.0, "forward", Cause.FORWARD)
    builder.add(slow, clock)
    waits = builder.compute(two, 1.0, "forward", Cause.FORWARD, boundary=True)
    builder.wait(waits, clock, 1.0)
    graph = builder.build(links())
    path = critical_path(graph, play(graph, max_iterations=1))
    assert path["device"].tolist() == ["rank0", "rank1"]
    assert path["held_by"].tolist() == ["start", "counter"]


def test_the_window_clips_the_path():
    builder = GraphBuilder()
    rank = builder.device("rank0", 0)
    step = builder.compute(rank, 2.0, "forward", Cause.FORWARD, boundary=True)
    graph = builder.build(links())
    run = record(
        graph, [(step, k, 2.0 * k, 2.0 * k + 2) for k in range(4)], window=(2, 6), window_iterations=(1, 3)
    )
    path = critical_path(graph, run)
    assert path["iteration"].tolist() == [1, 2]
    assert path["share"].sum() == pytest.approx(1.0)


def test_unexplained_time_is_named():
    builder = GraphBuilder()
    rank = builder.device("rank0", 0)
    step = builder.compute(rank, 2.0, "forward", Cause.FORWARD, boundary=True)
    graph = builder.build(links())
    run = record(graph, [(step, 0, 2.0, 4.0)], window=(0.0, 4.0))
    assert share_by_cause(critical_path(graph, run)) == pytest.approx({"forward": 0.5, "idle": 0.5})
