"""Chains of compute tasks fused into one: an exact pass before playing, undone in the record afterwards.

A layer-by-layer program has long runs of compute tasks on one stream between two communications. Nothing
outside sees the inner ends of such a run, so the engine may play it as one task; its members' spans follow
from the run's span by prefix sums of their work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sim.graph.execution import BoolArray, Discipline, ExecutionGraph, IntArray, Ragged, TaskKind


@dataclass(frozen=True)
class Contraction:
    """A contracted graph and where its nodes come from.

    Attributes
    ----------
    graph : ExecutionGraph
        ``m`` nodes; the work of a node is the sum over its members.
    members : Ragged
        Per node, its tasks of the original graph in the order in which they run.
    node : int[n]
        Node of each original task.
    """

    graph: ExecutionGraph
    members: Ragged
    node: IntArray


def contract(
    graph: ExecutionGraph, source: IntArray, target: IntArray, distance: IntArray, *, least: float = 0.05
) -> Contraction | None:
    """Fuse successive compute tasks that nothing else can tell apart.

    Task ``b`` joins ``a`` if both are compute tasks of one device on the same single program stream of width
    1, ``b`` follows ``a`` there, waits for nothing but ``a``, and nothing but ``b`` waits for ``a``; neither
    has a skip rule, ``b`` waits for no counter, and ``a`` neither adds to one nor ends an iteration.

    Parameters
    ----------
    graph : ExecutionGraph
    source, target, distance : int[E]
        All precedence edges: the graph's own and those of its program streams, without duplicates.
    least : float
        Contract only if at least this fraction of the tasks disappears.

    Returns
    -------
    Contraction or None
        None if it does not pay.
    """
    before = _joined_to(graph, source, target, distance)
    joined = before >= 0
    if not joined.any() or joined.mean() < least:
        return None
    root = np.where(joined, before, np.arange(graph.num_tasks))
    while True:  # pointer doubling: chains of length l need log2(l) rounds
        further = root[root]
        if (further == root).all():
            break
        root = further
    heads = np.flatnonzero(~joined)
    place = np.full(graph.num_tasks, -1, np.int64)
    place[heads] = np.arange(len(heads))
    node = place[root]
    members = Ragged.from_pairs(len(heads), node, np.arange(graph.num_tasks))
    return Contraction(_contracted(graph, heads, node), members, node)


def _joined_to(graph: ExecutionGraph, source: IntArray, target: IntArray, distance: IntArray) -> IntArray:
    """The task that each task is fused to, or -1."""
    n = graph.num_tasks
    incoming, outgoing = np.bincount(target, minlength=n), np.bincount(source, minlength=n)
    plain = (graph.kind == TaskKind.COMPUTE) & (np.diff(graph.streams.offsets) == 1)
    plain &= (graph.skip_counter < 0) & (graph.skip_leader < 0)
    leaders = graph.skip_leader[graph.skip_leader >= 0]
    plain[leaders] = False
    stream = np.full(n, -1, np.int64)
    single = np.flatnonzero(plain)
    stream[single] = graph.streams.index[graph.streams.offsets[single]]
    table = graph.stream_table
    plain[single] &= (table.discipline[stream[single]] == Discipline.PROGRAM) & (
        table.width[stream[single]] == 1
    )
    may_lead: BoolArray = plain & (outgoing == 1) & (np.diff(graph.adds.offsets) == 0) & ~graph.boundary
    may_follow: BoolArray = plain & (incoming == 1) & (np.diff(graph.waits.offsets) == 0)
    fused = (distance == 0) & may_lead[source] & may_follow[target] & (stream[source] == stream[target])
    fused &= graph.device[source] == graph.device[target]
    before = np.full(n, -1, np.int64)
    before[target[fused]] = source[fused]
    return before


def _contracted(graph: ExecutionGraph, heads: IntArray, node: IntArray) -> ExecutionGraph:
    count = len(heads)
    rows, source = node[graph.predecessors.rows()], node[graph.predecessors.index]
    outer = (rows != source) | (graph.predecessor_distance > 0)
    order = np.argsort(rows[outer], kind="stable")
    add_rows = node[graph.adds.rows()]
    add_order = np.argsort(add_rows, kind="stable")
    leader = graph.skip_leader[heads]
    columns = (
        "kind", "flow_bytes", "cap", "total_bytes", "priority", "cause", "name", "micro_batch", "step",
        "device", "closes_update", "opens_pull", "skip_counter", "skip_value", "spins",
    )  # fmt: skip
    return replace(
        graph,
        **{column: getattr(graph, column)[heads] for column in columns},
        work=np.bincount(node, graph.work, count).astype(np.float64),
        boundary=np.bincount(node, graph.boundary, count) > 0,
        predecessors=Ragged.from_pairs(count, rows[outer], source[outer]),
        predecessor_distance=graph.predecessor_distance[outer][order],
        streams=_rows(graph.streams, heads)[0],
        links=_rows(graph.links, heads)[0],
        link_coefficient=graph.link_coefficient[_rows(graph.links, heads)[1]],
        adds=Ragged.from_pairs(count, add_rows, graph.adds.index),
        add_amount=graph.add_amount[add_order],
        waits=_rows(graph.waits, heads)[0],
        wait_value=graph.wait_value[_rows(graph.waits, heads)[1]],
        wait_slope=graph.wait_slope[_rows(graph.waits, heads)[1]],
        wait_distance=graph.wait_distance[_rows(graph.waits, heads)[1]],
        skip_leader=np.where(leader >= 0, node[np.maximum(leader, 0)], -1),
    )


def _rows(ragged: Ragged, rows: IntArray) -> tuple[Ragged, IntArray]:
    """The given rows of a ragged table, and the positions of their entries in it."""
    first, width = ragged.offsets[rows], ragged.offsets[rows + 1] - ragged.offsets[rows]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(width)])
    entry = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], width)
    return Ragged(offsets, ragged.index[entry]), entry
