"""Lower bounds on the time of an iteration. Only these may prune a search."""

from __future__ import annotations

import numpy as np

from sim.engine.edges import Edges, data_edges, program_entries, stream_edges
from sim.engine.invariants import link_bytes
from sim.engine.phases import idle_durations
from sim.errors import InputError
from sim.graph.execution import ExecutionGraph, FloatArray


def critical_path(graph: ExecutionGraph) -> float:
    """Longest path through one iteration on an idle network, in seconds.

    Program streams of width 1 count as chains; counters, which only delay, do not count.
    """
    duration = idle_durations(graph)
    edges = data_edges(graph).joined(stream_edges(graph))
    return float(_longest(edges.where(edges.distance == 0), duration).max(initial=0.0))


def busiest_stream(graph: ExecutionGraph) -> float:
    """Largest work per slot of any stream over one iteration, in seconds."""
    if not len(graph.streams.index):
        return 0.0
    work = np.bincount(
        graph.streams.index, idle_durations(graph)[graph.streams.rows()], len(graph.stream_table.width)
    )
    return float((work / graph.stream_table.width).max(initial=0.0))


def busiest_link(graph: ExecutionGraph) -> float:
    """Largest bytes over capacity of any link over one iteration, in seconds."""
    moved = link_bytes(graph, np.ones(graph.num_tasks))
    return float((moved / graph.link_table.capacity).max(initial=0.0))


def bound(graph: ExecutionGraph) -> float:
    """Seconds that no engine can beat for an iteration, if every iteration waits for the one before.

    The largest of the critical path on an idle network, the busiest link and the busiest stream. Skipped
    tasks count as played. Where iterations overlap (asynchronous jobs) the critical path bounds the makespan
    and not the iteration time; see :func:`rate_bound`.
    """
    return max(critical_path(graph), rate_bound(graph))


def rate_bound(graph: ExecutionGraph) -> float:
    """Seconds per iteration that hold even if iterations overlap without limit: busiest link or stream."""
    return max(busiest_stream(graph), busiest_link(graph))


def cycle_bound(graph: ExecutionGraph) -> float:
    """Seconds from a turn of the busiest program stream to its next: the longest way through one iteration.

    The stream's first task of an iteration comes after its last of the one before, and perhaps after others,
    so that the longest chain from it to one of those, on an idle network, is a lower bound on the time of an
    iteration, however iterations overlap. Skipped tasks count as played.
    """
    duration = idle_durations(graph)
    stream, task = program_entries(graph, chained=True)
    if not len(task):
        return 0.0
    work = np.bincount(stream, duration[task], len(graph.stream_table.width))
    first = int(task[stream == int(work.argmax())][0])
    edges = data_edges(graph).joined(stream_edges(graph))
    before = edges.source[(edges.target == first) & (edges.distance == 1)]
    return float(_longest(edges.where(edges.distance == 0), duration, origin=first)[before].max(initial=0.0))


def _longest(edges: Edges, duration: FloatArray, *, origin: int | None = None) -> FloatArray:
    """End of every task on an idle cluster, in a topological sweep over plain lists.

    With an ``origin``, only chains that begin with that task count; others end at -inf.
    """
    n = len(duration)
    order = np.argsort(edges.source, kind="stable")
    target: list[int] = edges.target[order].tolist()
    bounds: list[int] = np.concatenate([[0], np.cumsum(np.bincount(edges.source, minlength=n))]).tolist()
    waiting: list[int] = np.bincount(edges.target, minlength=n).tolist()
    seconds: list[float] = duration.tolist()
    begin = [0.0 if origin is None else -np.inf] * n
    if origin is not None:
        begin[origin] = 0.0
    stack = [task for task in range(n) if not waiting[task]]
    done = 0
    while stack:
        task = stack.pop()
        done += 1
        finish = begin[task] = begin[task] + seconds[task]
        for entry in range(bounds[task], bounds[task + 1]):
            other = target[entry]
            if finish > begin[other]:
                begin[other] = finish
            waiting[other] -= 1
            if not waiting[other]:
                stack.append(other)
    if done < n:
        raise InputError("graph.predecessors", "have no cycle within an iteration")
    return np.array(begin)
