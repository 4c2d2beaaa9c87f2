"""Precedence edges of a graph: its own, those of its program streams, and which of them say nothing."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np

from sim.graph.execution import BoolArray, Discipline, ExecutionGraph, IntArray
from sim.lowering.arrays import distinct

FAR = 5  # edges of the longest path that is looked for beside an edge


@dataclass(frozen=True)
class Edges:
    """Precedence: ``target`` of iteration k waits for ``source`` of iteration ``k - distance``."""

    source: IntArray
    target: IntArray
    distance: IntArray

    def joined(self, other: Edges) -> Edges:
        """Both sets of edges."""
        return Edges(
            np.concatenate([self.source, other.source]),
            np.concatenate([self.target, other.target]),
            np.concatenate([self.distance, other.distance]),
        )

    def among(self, node: IntArray) -> Edges:
        """The edges between the nodes into which tasks were fused."""
        source, target = node[self.source], node[self.target]
        outer = (source != target) | (self.distance > 0)
        return Edges(source[outer], target[outer], self.distance[outer])

    def where(self, mask: BoolArray) -> Edges:
        """The edges selected by ``mask``."""
        if mask.all():
            return self
        return Edges(self.source[mask], self.target[mask], self.distance[mask])


def data_edges(graph: ExecutionGraph) -> Edges:
    """The graph's own predecessor edges."""
    return Edges(graph.predecessors.index, graph.predecessors.rows(), graph.predecessor_distance)


def program_entries(graph: ExecutionGraph, *, chained: bool) -> tuple[IntArray, IntArray]:
    """(stream, task) pairs on program streams of width 1 (``chained``) or wider, by stream and task order."""
    table = graph.stream_table
    ordered = (table.discipline == Discipline.PROGRAM) & ((table.width == 1) == chained)
    stream, task = graph.streams.index, graph.streams.rows()
    if not ordered.all():
        keep = ordered[stream]
        stream, task = stream[keep], task[keep]
    order = np.argsort(stream, kind="stable")
    return stream[order], task[order]


def stream_edges(graph: ExecutionGraph) -> Edges:
    """Program streams of width 1 as edges: each task to the next, the last to the next iteration's first."""
    stream, task = program_entries(graph, chained=True)
    if not len(task):
        return Edges(task, task, task)
    first = np.concatenate([[True], stream[1:] != stream[:-1]])
    starts = np.flatnonzero(first)
    before = np.arange(len(task)) - 1
    before[starts] = np.append(starts[1:], len(task)) - 1
    return Edges(task[before], task, first.astype(np.int64))


def without_implied(edges: Edges, num_tasks: int) -> Edges:
    """Drop edges that a path of others implies.

    On a device that alternates between a compute and a communication stream each task waits for the one
    before it on the other stream, which implies the one before it on its own.
    """
    edges = _without_triangles(edges, num_tasks)
    return edges.where(~_passed_by(edges, num_tasks))


def _without_triangles(edges: Edges, num_tasks: int) -> Edges:
    """Drop edges that a path of two others implies, at tasks with two or three incoming edges."""
    count = np.bincount(edges.target, minlength=num_tasks)[edges.target]
    # Sorted once: np.isin would do it twice, and load numpy.ma.
    keys = distinct((edges.source * num_tasks + edges.target)[edges.distance == 0])
    keep = np.ones(len(edges.source), np.bool_)
    for width in (2, 3):
        entry = np.flatnonzero(count == width)
        rows = entry[np.argsort(edges.target[entry], kind="stable")].reshape(-1, width)
        rows = rows[(edges.distance[rows] == 0).all(axis=1)]
        for one, other in permutations(range(width), 2):
            implied = edges.source[rows[:, one]] * num_tasks + edges.source[rows[:, other]]
            keep[rows[_among(implied, keys), one]] = False
    return edges.where(keep)


def _passed_by(edges: Edges, num_tasks: int) -> BoolArray:
    """Edges beside a longer path, of up to ``FAR`` edges and ascending task numbers, from end to end.

    Ascending paths cannot be circles, so what is dropped stays implied by what is left. Tasks with many
    incoming edges are not looked behind.
    """
    found = np.zeros(len(edges.source), np.bool_)
    inner = np.flatnonzero((edges.distance == 0) & (edges.source < edges.target))
    order = inner[np.argsort(edges.target[inner], kind="stable")]
    before = edges.source[order]
    count = np.bincount(edges.target[order], minlength=num_tasks)
    first = np.cumsum(count) - count
    count[count > 3] = 0
    edge = inner[count[edges.target[inner]] > 1]
    task = edges.target[edge]
    for length in range(1, FAR + 1):
        width = count[task]
        edge, task = np.repeat(edge, width), np.repeat(first[task], width)
        task = before[task + np.arange(len(edge)) - np.repeat(np.cumsum(width) - width, width)]
        if length > 1:  # the first is the edge itself
            found[edge[task == edges.source[edge]]] = True
        further = (task > edges.source[edge]) & ~found[edge]
        edge, task = edge[further], task[further]
    return found


def _among(values: IntArray, ordered: IntArray) -> BoolArray:
    """Which values are in an ascending array."""
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    place = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    found: BoolArray = ordered[place] == values
    return found


def without_duplicates(data: Edges, chained: Edges, num_tasks: int) -> Edges:
    """Drop data edges that repeat a stream edge (a chain on one stream), which would cost twice."""
    if not len(chained.target):
        return data
    before = np.full(num_tasks, -1, np.int64)
    inner = chained.distance == 0
    before[chained.target[inner]] = chained.source[inner]
    return data.where((data.distance != 0) | (before[data.target] != data.source))
