"""A played run as a trace file: its spans, and the load of its busiest links as counters."""

from __future__ import annotations

from pathlib import Path

from sim.analysis.breakdown import window_steps
from sim.analysis.links import link_rate_steps, link_table
from sim.analysis.timeline_from_run import timeline_from_run
from sim.engine.record import RunRecord
from sim.graph.execution import ExecutionGraph
from sim.trace.perfetto import CounterTrack, write_trace

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
    return write_trace(path, timeline_from_run(graph, run), link_counters(graph, run))
