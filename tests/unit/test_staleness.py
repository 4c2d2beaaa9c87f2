from __future__ import annotations

import pytest

from sim.analysis.staleness import pulls_of_updates, staleness
from sim.engine import play
from sim.graph.builder import GraphBuilder
from sim.graph.execution import Cause, Discipline, ExecutionGraph, TaskKind
from tests.handmade import Row, links, record


def parameter_server(
    speeds: list[float], *, bound: int | None = None, multiplicity: int = 1, update: float = 0.05
) -> ExecutionGraph:
    """Workers that pull, compute for ``1 / speed`` s, and push to a server that updates one by one."""
    builder = GraphBuilder()
    server = builder.device("server0", 100, stage=-1, kind="server")
    shelf = builder.stream(server, "server", discipline=Discipline.ARRIVAL)
    clock = builder.counter("clock")
    for number, speed in enumerate(speeds):
        worker = builder.device(f"rank{number}", number, multiplicity=multiplicity)
        stream = (builder.stream(worker, "comm"),)
        start = builder.control("step_start", device=worker)
        pull = builder.task(
            TaskKind.TRANSFER, "pull", Cause.PARAMETER_COMM, device=worker, streams=stream, after=[start],
            work=0.01, opens_pull=True,
        )  # fmt: skip
        compute = builder.compute(worker, 1 / speed, "forward", Cause.FORWARD, after=[pull])
        push = builder.task(
            TaskKind.TRANSFER,
            "push",
            Cause.GRADIENT_COMM,
            device=worker,
            streams=stream,
            after=[compute],
            work=0.01,
        )
        applied = builder.compute(
            server, update, "update", Cause.OPTIMIZER, streams=(shelf,), after=[push], closes_update=True
        )
        end = builder.control("step_end", device=worker, after=[applied], boundary=True)
        builder.add(applied, clock, 1.0)
        builder.edge(start, end, 1)
        if bound is not None:
            builder.wait(start, clock, float(len(speeds)), distance=bound + 1)
    mode = "asp" if bound is None else "ssp"
    samples = 32.0 * len(speeds) * multiplicity
    return builder.build(links(), metadata={"synchronization": mode, "samples_per_iteration": samples})


def worker_rows(first: int, iteration: int, spans: list[tuple[float, float]]) -> list[Row]:
    return [(first + offset, iteration, start, end) for offset, (start, end) in enumerate(spans)]


def test_pull_of_an_update_is_found_upstream():
    graph = parameter_server([1.0, 1.0])
    updates = [int(i) for i in graph.closes_update.nonzero()[0]]
    pulls = [int(i) for i in graph.opens_pull.nonzero()[0]]
    assert pulls_of_updates(graph) == {updates[0]: [(pulls[0], 0)], updates[1]: [(pulls[1], 0)]}


def test_equal_asynchronous_workers_are_n_minus_one_stale():
    graph = parameter_server([1.0] * 5)
    found = staleness(graph, play(graph, max_iterations=12))
    assert found is not None
    # The very first round is fresher (0, 1, 2, 3, 4); from then on everybody sees everybody once.
    assert found.maximum == 4
    assert found.mean == pytest.approx((10 + 11 * 5 * 4) / 60)
    assert sum(found.histogram.values()) == pytest.approx(1.0)
    assert found.effective_batch_size == pytest.approx(32.0)


def test_a_class_of_equal_workers_sees_its_own_peers():
    graph = parameter_server([1.0], multiplicity=5)
    found = staleness(graph, play(graph))
    assert found is not None
    assert found.mean == pytest.approx(4.0)
    assert found.effective_batch_size == pytest.approx(32.0)


def test_one_worker_is_never_stale():
    graph = parameter_server([1.0])
    found = staleness(graph, play(graph))
    assert found is not None
    assert (found.mean, found.maximum, found.mean_ahead) == (0.0, 0, 0.0)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_ssp_never_lets_a_worker_run_further_ahead(bound: int):
    graph = parameter_server([4.0, 4.0, 1.0], bound=bound)
    found = staleness(graph, play(graph, max_iterations=20))
    assert found is not None
    assert found.max_ahead == bound


def test_snapshot_is_the_start_of_the_pull():
    graph = parameter_server([1.0, 1.0])
    # Tasks of a worker: step_start, pull, forward, push, update, step_end.
    rows = worker_rows(0, 0, [(0, 0), (0, 1), (1, 8), (8, 9), (9, 10), (10, 10)])
    for k in range(3):  # the second worker updates at 3, 6, 9
        at = 3.0 * k
        spans = [
            (at, at),
            (at, at + 1),
            (at + 1, at + 2),
            (at + 2, at + 2),
            (at + 2, at + 3),
            (at + 3, at + 3),
        ]
        rows += worker_rows(6, k, spans)
    run = record(graph, rows, window=(0.0, 10.0), window_iterations=(0, 1), stop="iterations")
    found = staleness(graph, run)
    assert found is not None
    assert found.histogram == {0: pytest.approx(0.75), 3: pytest.approx(0.25)}


def test_graphs_without_pulls_have_none():
    builder = GraphBuilder()
    builder.compute(builder.device("rank0", 0), 1.0, "forward", Cause.FORWARD, boundary=True)
    graph = builder.build(links())
    assert staleness(graph, play(graph, max_iterations=2)) is None
