"""A played run as a trace file: its spans, and the load of its busiest links as counters."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sim.analysis.breakdown import window_steps
from sim.analysis.links import link_rate_steps, link_table
from sim.analysis.timeline_from_run import timeline_from_run
from sim.engine.record import RunRecord
from sim.graph.execution import ExecutionGraph, TaskKind
from sim.timeline import Timeline
from sim.trace.perfetto import CounterTrack, Flows, write_trace

#: Links beyond these many are left out of traces; the table of links has all.
MAX_LINK_TRACKS = 32


def link_counters(graph: ExecutionGraph, run: RunRecord, count: int = MAX_LINK_TRACKS) -> list[CounterTrack]:
    """Load over time (s, bytes/s) of the ``count`` links with the highest utilisation."""
    table = link_table(graph, run, window_steps(graph, run))
    busy = table[table["bytes_per_step"] > 0]["link"].head(count)
    index = {name: row for row, name in enumerate(graph.link_table.name)}
    return [(str(name), *link_rate_steps(graph, run, index[str(name)], (0.0, run.makespan))) for name in busy]


def save_trace(path: Path, graph: ExecutionGraph, run: RunRecord) -> Path:
    """Write a run as a Perfetto trace; see :func:`sim.trace.perfetto.write_trace`."""
    spans = timeline_from_run(graph, run)
    return write_trace(path, spans, link_counters(graph, run), flows=dependencies(graph, spans))


def dependencies(graph: ExecutionGraph, spans: Timeline) -> Flows:
    """Which rows of a played timeline waited for which others of the same device, besides their streams.

    What waits for a counter operation waits for what that waited for: it has no span. On other devices a
    task waits for transfers, which have a row on every device that takes part.
    """
    before = _spanning(graph)
    task, device, iteration = (spans.integer(name).tolist() for name in ("task", "device", "iteration"))
    stream = spans.integer("stream").tolist()
    row_of: dict[tuple[int, int, int], int] = {}
    for row, place in enumerate(zip(task, device, iteration, strict=True)):
        row_of.setdefault(place, row)
    pairs: dict[tuple[int, int], None] = {}
    for row, place in enumerate(zip(task, device, iteration, strict=True)):
        for source, distance in before[place[0]]:
            other = row_of.get((source, place[1], place[2] - distance))
            if other is not None and stream[other] != stream[row]:
                pairs[(row, other)] = None
    rows = np.array(list(pairs), np.int64).reshape(-1, 2)
    return rows[:, 0], rows[:, 1]


def _spanning(graph: ExecutionGraph) -> list[list[tuple[int, int]]]:
    """What each task waits for: (task, iterations back). Counter operations stand for what they wait for."""
    index, distance = graph.predecessors.index.tolist(), graph.predecessor_distance.tolist()
    bounds = graph.predecessors.offsets.tolist()
    counter = (graph.kind == TaskKind.COUNTER).tolist()
    found: list[list[tuple[int, int]]] = []
    for task in range(graph.num_tasks):
        mine: dict[tuple[int, int], None] = {}
        for entry in range(bounds[task], bounds[task + 1]):
            source, back = index[entry], distance[entry]
            if not counter[source]:
                mine[(source, back)] = None
            elif source < task:  # added before it, so its own are known
                mine.update({(other, more + back): None for other, more in found[source]})
        found.append(list(mine))
    return found
