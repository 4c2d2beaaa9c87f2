"""Laws that every run obeys, checked with NumPy after each one."""

from __future__ import annotations

import numpy as np

from sim.engine.phases import idle_durations
from sim.engine.plan import Plan
from sim.errors import InvariantError
from sim.graph.execution import BoolArray, ExecutionGraph, FloatArray, TaskKind

_TOLERANCE = 1e-9


def link_bytes(graph: ExecutionGraph, count: FloatArray) -> FloatArray:
    """Bytes per link row when task ``i`` ran ``count[i]`` times."""
    rows = graph.links.rows()
    moved = np.where(graph.kind == TaskKind.TRANSFER, graph.flow_bytes * count, 0.0)
    load = graph.link_coefficient * moved[rows]
    return np.bincount(graph.links.index, load, len(graph.link_table.capacity)).astype(np.float64)


def check(
    plan: Plan, ready: FloatArray, start: FloatArray, end: FloatArray, dropped: BoolArray, factors: FloatArray
) -> None:
    """Raise InvariantError if a run broke a law.

    Parameters
    ----------
    plan : Plan
        What was played.
    ready, start, end : float[K, n]
        Last end of the predecessors, start and end in seconds per iteration and task; NaN where not played.
    dropped : bool[K, n]
        Skipped instances.
    factors : float[K, n] or float[1, n]
        Jitter drawn for each compute task.

    Notes
    -----
    Causality along every edge together with a lower bound on every duration implies makespan >= critical
    path, for any critical path of the played instances.
    """
    played = ~np.isnan(end)
    if not played.any():
        return
    makespan = float(np.nanmax(end))
    slack = max(1e-12, _TOLERANCE * makespan)
    _check_causality(plan, ready, start, end, slack)
    graph, idle = plan.original, idle_durations(plan.original)
    least = np.where(graph.kind == TaskKind.COMPUTE, idle * factors, idle)
    least = np.where(dropped, 0.0, np.broadcast_to(least, end.shape))
    # A completion may be recorded up to the tolerance of simultaneity early, and 1e-9 of a transfer early.
    short = played & (end - start < least * (1 - 2 * _TOLERANCE) - slack)
    if short.any():
        iteration, task = np.argwhere(short)[0].tolist()
        took, needs = end[iteration, task] - start[iteration, task], least[iteration, task]
        raise InvariantError(
            f"{_label(graph, task)} of iteration {iteration} took {took:g} s, but needs {needs:g} s when idle"
        )
    busy = np.where(played, least, 0.0).sum(axis=0)
    _check_streams(graph, busy, makespan + slack)
    if plan.analytic:
        return  # every transfer had its links to itself, whoever else used them
    count = (played & ~dropped).sum(axis=0).astype(np.float64)
    _check_links(graph, link_bytes(graph, count), makespan + slack)


def _check_causality(plan: Plan, ready: FloatArray, start: FloatArray, end: FloatArray, slack: float) -> None:
    """Nothing starts before its predecessors and the task ahead of it on a program stream have finished."""
    graph, started = plan.original, ~np.isnan(start)
    early = started & ~(start >= ready - slack)  # also if a predecessor was not played
    if early.any():
        iteration, task = np.argwhere(early)[0].tolist()
        raise InvariantError(
            f"{_label(graph, task)} of iteration {iteration} started before its predecessors ended"
        )
    chained = plan.chained
    for distance in (0, 1):
        some = chained.where(chained.distance == distance)
        for k in range(distance, len(end)):
            early = started[k, some.target] & ~(
                start[k, some.target] >= end[k - distance, some.source] - slack
            )
            if early.any():
                edge = int(np.argmax(early))
                raise InvariantError(
                    f"{_label(graph, int(some.target[edge]))} of iteration {k} started before"
                    f" {_label(graph, int(some.source[edge]))}, ahead of it on a stream, had ended"
                )


def _check_streams(graph: ExecutionGraph, busy: FloatArray, makespan: float) -> None:
    if not len(graph.streams.index):
        return
    work = np.bincount(graph.streams.index, busy[graph.streams.rows()], len(graph.stream_table.width))
    over = work > graph.stream_table.width * makespan * (1 + _TOLERANCE)
    if over.any():
        stream = int(np.argmax(over))
        raise InvariantError(
            f"stream {graph.stream_table.name[stream]} held {work[stream]:g} s of work in {makespan:g} s"
        )


def _check_links(graph: ExecutionGraph, moved: FloatArray, makespan: float) -> None:
    over = moved > graph.link_table.capacity * makespan * (1 + _TOLERANCE)
    if over.any():
        link = int(np.argmax(over))
        raise InvariantError(
            f"link {graph.link_table.name[link]} carried {moved[link]:g} bytes in {makespan:g} s"
        )


def _label(graph: ExecutionGraph, task: int) -> str:
    return f"'{graph.names[graph.name[task]]}' (task {task})"
