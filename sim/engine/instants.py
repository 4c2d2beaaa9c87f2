"""Instants that follow from the starts and ends of a run: ready and posted, for whole iterations at once."""

from __future__ import annotations

import numpy as np

from sim.engine.plan import data_edges, program_entries
from sim.graph.execution import ExecutionGraph, FloatArray, IntArray


def ready_times(graph: ExecutionGraph, end: FloatArray) -> FloatArray:
    """Seconds at which the last data predecessor of each instance had finished, shape (iterations, tasks)."""
    return _latest(end, data_edges(graph).source, graph.predecessors.rows(), graph.predecessor_distance)


def posting_times(graph: ExecutionGraph, start: FloatArray, end: FloatArray) -> FloatArray:
    """Seconds at which the first participant of each instance had posted it, shape (iterations, tasks).

    Tasks off program streams are posted when they start.
    """
    stream, task = program_entries(graph, chained=True)
    posted = np.full(end.shape, np.inf)
    if not len(task):
        return start.copy()
    first = np.concatenate([[True], stream[1:] != stream[:-1]])
    starts = np.flatnonzero(first)
    before = np.arange(len(task)) - 1
    before[starts] = np.append(starts[1:], len(task)) - 1
    free = np.zeros((len(end), len(task)))
    free[:, ~first] = end[:, task[before[~first]]]
    free[1:, first] = end[:-1, task[before[first]]]
    rows, source = graph.predecessors.rows(), graph.predecessors.index
    entry, edge = _entries_by_edge(task, rows)
    device = graph.stream_table.device[stream[entry]]
    same = graph.device[source[edge]] == device
    has_local = np.zeros(len(task), np.bool_)
    has_local[entry[same]] = True
    use = same | ~has_local[entry]
    done = _latest(end, source[edge[use]], entry[use], graph.predecessor_distance[edge[use]], width=len(task))
    np.minimum.at(posted, (slice(None), task), np.fmax(free, done))
    return np.where(np.isinf(posted), start, posted)


def _entries_by_edge(task: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """All (participant entry, predecessor edge) pairs of the same task."""
    count = np.bincount(rows, minlength=int(task.max()) + 1)
    first = np.cumsum(count) - count
    width = count[task]
    entry = np.repeat(np.arange(len(task)), width)
    step = np.arange(len(entry)) - np.repeat(np.cumsum(width) - width, width)
    return entry, first[task[entry]] + step


def _latest(
    end: FloatArray, source: IntArray, target: IntArray, distance: IntArray, width: int | None = None
) -> FloatArray:
    """Latest end of the sources of each target column; 0 where there is none."""
    latest = np.zeros((len(end), width if width is not None else end.shape[1]))
    if not len(source):
        return latest
    order = np.argsort(target, kind="stable")
    source, target, distance = source[order], target[order], distance[order]
    starts = np.flatnonzero(np.concatenate([[True], target[1:] != target[:-1]]))
    near = int(distance.max())
    padded = np.concatenate([np.zeros((near, end.shape[1])), end])
    for k in range(len(end)):
        values = padded[k + near - distance, source]
        latest[k, target[starts]] = np.maximum.reduceat(values, starts)
    return latest
