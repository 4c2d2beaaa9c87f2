"""Shortcuts of the lowering change nothing: left-out links, repeated micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given, settings

from sim.engine import play
from sim.errors import InvalidStrategyError
from sim.fabric.network import Network
from sim.graph.execution import ExecutionGraph
from sim.lowering import lower
from sim.lowering.patterns import Router
from sim.lowering.step import StepLowering
from sim.spec import Scenario
from tests.random_jobs import build, jobs


def lowered(one: Scenario) -> ExecutionGraph:
    try:
        return lower(one)
    except InvalidStrategyError:
        assume(False)
        raise


@settings(max_examples=40)
@given(jobs())
def test_links_left_out_never_matter(job: dict[str, Any]) -> None:
    """With every link on every route, the same jobs take the same time: what is left out is never full."""
    one = build(**job)
    graph = lowered(one)

    def nothing(router: Router, _: Any) -> np.ndarray:
        return np.zeros(len(router.capacity), bool)

    with (
        patch.object(Router, "_never_bottleneck", nothing),
        patch.object(Network, "without_held_back", lambda *_: None),
    ):
        complete = lower(one)
    assert len(complete.link_table.name) >= len(graph.link_table.name)
    quick, slow = play(graph, max_iterations=2), play(complete, max_iterations=2)
    assert quick.boundary_times == pytest.approx(slow.boundary_times, rel=1e-9)
    assert quick.makespan == pytest.approx(slow.makespan, rel=1e-9)


def rows(graph: ExecutionGraph) -> Iterator[tuple[Any, ...]]:
    """Everything about each task, in task order, by name instead of by number."""
    edges = list(zip(graph.predecessors.index.tolist(), graph.predecessor_distance.tolist(), strict=True))
    columns = [
        getattr(graph, column).tolist()
        for column in (
            "kind", "work", "flow_bytes", "total_bytes", "cause", "micro_batch", "step", "device", "boundary",
            "closes_update", "opens_pull", "skip_counter", "skip_leader",
        )
    ]  # fmt: skip
    for task in range(graph.num_tasks):
        first, last = graph.predecessors.offsets[task], graph.predecessors.offsets[task + 1]
        yield (
            graph.names[graph.name[task]],
            *(column[task] for column in columns),
            frozenset(edges[first:last]),
            tuple(graph.stream_table.name[s] for s in graph.streams.row(task)),
            tuple(graph.stream_table.device[s] for s in graph.streams.row(task)),
            tuple(graph.links.row(task)),
        )


@settings(max_examples=60)
@given(jobs())
def test_repeated_micro_batches_are_as_if_written_out(job: dict[str, Any]) -> None:
    one = build(**(job | {"micro_batch_size": 1}))
    graph = lowered(one)
    with patch.object(StepLowering, "_repeated", StepLowering._emitted):
        written = lower(one)
    for short, long in zip(rows(graph), rows(written), strict=True):
        assert short == long
    assert (graph.link_coefficient == written.link_coefficient).all()
