"""Diamonds: a computation and a collective side by side between the same two tasks.

The backward of a tensor-parallel layer is a chain of them: the input gradient, then its all-reduce beside the
weight gradient, then the next input gradient, which waits for both. With sequence parallelism the input is
gathered again beside the input gradient, and diamonds meet: both tasks of one wait for both of another.
Nobody else can tell when either of the two ends, and while both run the device both computes and communicates
whatever else runs on it: they slow each other down and nothing else can. So a diamond is played as one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.graph.execution import BoolArray, ExecutionGraph, FloatArray, IntArray, TaskKind

EdgeColumns = tuple[IntArray, IntArray, IntArray]


@dataclass(frozen=True)
class Diamonds:
    """Pairs that run side by side.

    Attributes
    ----------
    first, second : int[d]
        The task of each pair that ends first when nothing else disturbs, and the one that ends last.
    span : float[n]
        Seconds of each task when nothing else disturbs; of a pair, beside the other.
    """

    first: IntArray
    second: IntArray
    span: FloatArray

    def advance(self) -> FloatArray:
        """Seconds that each task adds to the chain it is in, float[n]: of a pair, only the second does."""
        added = self.span.copy()
        added[self.first] = 0.0
        return added

    def without_second(self, edges: EdgeColumns) -> EdgeColumns:
        """The edges as if each pair were its first task alone."""
        source, target, distance = edges
        dropped = np.zeros(len(self.span), np.bool_)
        dropped[self.second] = True
        keep = ~(dropped[source] | dropped[target])
        return source[keep], target[keep], distance[keep]


def find_diamonds(
    graph: ExecutionGraph, edges: EdgeColumns, *, duration: FloatArray, plain: BoolArray, home: IntArray
) -> Diamonds:
    """Pairs of a compute task and a transfer with the same predecessors and the same successors.

    One or two of each: a pair may follow a pair.

    Parameters
    ----------
    graph : ExecutionGraph
    edges : (source, target, distance), int[E] each
        All precedence edges.
    duration : float[n]
        Seconds of each task alone.
    plain : bool[n]
        Tasks that may be fused and neither wait for a counter, nor add to one, nor end an iteration.
    home : int[n]
        Device on which alone a task runs.
    """
    n, (source, target, distance) = graph.num_tasks, edges
    before, after = _neighbours(n, target, source, distance), _neighbours(n, source, target, distance)
    tasks = np.flatnonzero(plain & (duration > 0) & (before >= 0) & (after >= 0))
    tasks = tasks[np.lexsort((after[tasks], before[tasks]))]
    new = (np.diff(before[tasks], prepend=-1) != 0) | (np.diff(after[tasks], prepend=-1) != 0)
    begin = np.flatnonzero(new)
    begin = begin[np.diff(begin, append=len(tasks)) == 2]
    one, other = tasks[begin], tasks[begin + 1]
    computes = graph.kind[one] == TaskKind.COMPUTE
    compute, transfer = np.where(computes, one, other), np.where(computes, other, one)
    fits = (graph.kind[transfer] == TaskKind.TRANSFER) & (graph.kind[compute] == TaskKind.COMPUTE)
    fits &= home[compute] == home[transfer]
    compute, transfer = compute[fits], transfer[fits]
    span = duration.copy()
    span[compute], span[transfer] = _side_by_side(graph, duration, compute, transfer)
    last = span[compute] >= span[transfer]
    return Diamonds(np.where(last, transfer, compute), np.where(last, compute, transfer), span)


def _neighbours(n: int, task: IntArray, other: IntArray, distance: IntArray) -> IntArray:
    """What is at the other ends of each task's edges, as one number; -1 unless there are one or two, all in
    the same iteration."""
    count = np.bincount(task, minlength=n)
    fits = (count == 1) | (count == 2)
    fits[task[distance != 0]] = False
    ends = other[np.argsort(task, kind="stable")]
    first = np.cumsum(count) - count
    one, two = ends[first[fits]], ends[(first + count - 1)[fits]]
    found = np.full(n, -1, np.int64)
    found[fits] = np.minimum(one, two) * n + np.maximum(one, two)
    return found


def _side_by_side(
    graph: ExecutionGraph, duration: FloatArray, compute: IntArray, transfer: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Seconds until a computation and a transfer end that start together; a latency is never stretched."""
    computing, sending = graph.compute_speed_under_communication, graph.communication_speed_under_compute
    work, latency = duration[compute], graph.work[transfer]
    flow = duration[transfer] - latency
    slow_work, slow_transfer = work / computing, latency + flow / sending
    # Whoever outlives the other goes on at full speed with what is left.
    moved = np.maximum(slow_work - latency, 0.0) * sending
    transfer_after = np.maximum(slow_work, latency) + flow - moved
    compute_after = slow_transfer + work - slow_transfer * computing
    compute_is_first = slow_work <= slow_transfer
    return (
        np.where(compute_is_first, slow_work, compute_after),
        np.where(compute_is_first, transfer_after, slow_transfer),
    )
