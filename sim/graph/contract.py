"""Chains of tasks fused into one: an exact pass before playing, undone in the record afterwards.

A layer-by-layer program has long runs of compute tasks, perhaps alternating with tensor-parallel collectives
that nobody else can disturb, between two points that others see. The engine plays such a run as one task; its
members' spans follow from the run's span by prefix sums of their durations. Two tasks side by side may be one
link of such a chain (:mod:`sim.graph.diamonds`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sim.graph.diamonds import Diamonds, EdgeColumns, find_diamonds
from sim.graph.execution import (
    BoolArray,
    Discipline,
    ExecutionGraph,
    FloatArray,
    IntArray,
    Ragged,
    TaskKind,
)


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
    beside : bool[n]
        Tasks that run side by side with the member before them, which ends first.
    span, advance : float[n]
        Seconds from the start to the end of each task when nothing else disturbs, and those that it adds to
        its node.
    """

    graph: ExecutionGraph
    members: Ragged
    node: IntArray
    beside: BoolArray
    span: FloatArray
    advance: FloatArray


def contract(
    graph: ExecutionGraph,
    edges: EdgeColumns,
    *,
    duration: FloatArray,
    fusible: BoolArray,
    home: IntArray,
    least: float = 0.05,
) -> Contraction | None:
    """Fuse successive tasks that nothing else can tell apart.

    Task ``b`` joins ``a`` if both are fusible, at home on the same device and only on program streams of
    width 1, ``b`` waits for nothing but ``a``, and nothing but ``b`` waits for ``a``; neither has a skip
    rule, ``b`` waits for no counter, and ``a`` neither adds to one nor ends an iteration. A pair side by
    side counts as one task, except where compute times are random.

    Parameters
    ----------
    graph : ExecutionGraph
    edges : (source, target, distance), int[E] each
        All precedence edges: the graph's own and those of its program streams, without implied ones.
    duration : float[n]
        Seconds of each task alone.
    fusible : bool[n]
        Tasks whose duration does not depend on the network: compute, and transfers with private links.
    home : int[n]
        Device on which alone a task runs; -1 where it matters and there is more than one.
    least : float
        Contract only if at least this fraction of the tasks disappears.

    Returns
    -------
    Contraction or None
        None if it does not pay.
    """
    plain = _plain(graph, fusible & (home >= 0))
    pairs = _pairs(graph, edges, duration, plain, home)
    before = _joined_to(graph, pairs.without_second(edges), plain, home)
    before[pairs.second] = pairs.first
    joined = before >= 0
    if not joined.any() or joined.mean() < least:
        return None
    root = np.where(joined, before, np.arange(graph.num_tasks))
    depth = 2 * joined.astype(np.int64)  # place in the chain
    depth[pairs.second] = 1  # right after the first, before whatever follows
    while True:  # pointer doubling: chains of length l need log2(l) rounds
        further = root[root]
        if (further == root).all():
            break
        depth += depth[root]
        root = further
    heads = np.flatnonzero(~joined)
    place = np.full(graph.num_tasks, -1, np.int64)
    place[heads] = np.arange(len(heads))
    node = place[root]
    in_order = np.argsort(depth, kind="stable")
    members = Ragged.from_pairs(len(heads), node[in_order], in_order)
    beside = np.zeros(graph.num_tasks, np.bool_)
    beside[pairs.second] = True
    advance = pairs.advance()
    return Contraction(_contracted(graph, heads, node, advance), members, node, beside, pairs.span, advance)


def _pairs(
    graph: ExecutionGraph, edges: EdgeColumns, duration: FloatArray, plain: BoolArray, home: IntArray
) -> Diamonds:
    """Tasks side by side; none where times are drawn per task, since which one ends first would vary."""
    if graph.has_random_compute:
        none = np.zeros(0, np.int64)
        return Diamonds(none, none, duration)
    alone = plain & (np.diff(graph.adds.offsets) == 0) & (np.diff(graph.waits.offsets) == 0)
    return find_diamonds(graph, edges, duration=duration, plain=alone & ~graph.boundary, home=home)


def _plain(graph: ExecutionGraph, fusible: BoolArray) -> BoolArray:
    """Fusible tasks without a skip rule that are only on program streams of width 1."""
    plain = fusible & (graph.skip_counter < 0) & (graph.skip_leader < 0)
    if graph.skip_ticket is not None:
        plain &= graph.skip_ticket < 0
    plain[graph.skip_leader[graph.skip_leader >= 0]] = False
    table = graph.stream_table
    arbitrated = (table.discipline != Discipline.PROGRAM) | (table.width != 1)
    if arbitrated.any():
        plain[graph.streams.rows()[arbitrated[graph.streams.index]]] = False
    return plain


def _joined_to(graph: ExecutionGraph, edges: EdgeColumns, plain: BoolArray, home: IntArray) -> IntArray:
    """The task that each task is fused to, or -1."""
    n, (source, target, distance) = graph.num_tasks, edges
    incoming, outgoing = np.bincount(target, minlength=n), np.bincount(source, minlength=n)
    may_lead: BoolArray = plain & (outgoing == 1) & (np.diff(graph.adds.offsets) == 0) & ~graph.boundary
    may_follow: BoolArray = plain & (incoming == 1) & (np.diff(graph.waits.offsets) == 0)
    fused = (distance == 0) & may_lead[source] & may_follow[target] & (home[source] == home[target])
    before = np.full(n, -1, np.int64)
    before[target[fused]] = source[fused]
    return before


def _contracted(
    graph: ExecutionGraph, heads: IntArray, node: IntArray, advance: FloatArray
) -> ExecutionGraph:
    """The graph of nodes; a fused node is a compute task of its members' total duration, without links."""
    count = len(heads)
    fused = np.bincount(node, minlength=count) > 1
    columns = _head_columns(graph, heads)
    columns["kind"] = np.where(fused, int(TaskKind.COMPUTE), columns["kind"])
    columns["flow_bytes"] = np.where(fused, 0.0, columns["flow_bytes"])
    columns["work"] = np.where(fused, np.bincount(node, advance, count), columns["work"])
    rows, source = node[graph.predecessors.rows()], node[graph.predecessors.index]
    outer = (rows != source) | (graph.predecessor_distance > 0)
    order = np.argsort(rows[outer], kind="stable")
    add_rows = node[graph.adds.rows()]
    add_order = np.argsort(add_rows, kind="stable")
    leader = graph.skip_leader[heads]
    tickets = _tickets(graph, heads, node)
    return replace(
        graph,
        **columns,
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
        **tickets,
    )


def _tickets(graph: ExecutionGraph, heads: IntArray, node: IntArray) -> dict[str, Any]:
    """The columns that name the task whose ticket decides, in terms of nodes."""
    found: dict[str, Any] = {}
    if graph.skip_ticket is not None:
        mine = graph.skip_ticket[heads]
        found["skip_ticket"] = np.where(mine >= 0, node[np.maximum(mine, 0)], -1)
    if graph.wait_ticket is not None:
        mine = graph.wait_ticket[_rows(graph.waits, heads)[1]]
        found["wait_ticket"] = np.where(mine >= 0, node[np.maximum(mine, 0)], -1)
    return found


def _head_columns(graph: ExecutionGraph, heads: IntArray) -> dict[str, Any]:
    columns = (
        "kind", "work", "flow_bytes", "cap", "total_bytes", "priority", "cause", "name", "micro_batch",
        "step", "device", "closes_update", "opens_pull", "skip_counter", "skip_value", "spins",
    )  # fmt: skip
    return {column: getattr(graph, column)[heads] for column in columns}


def _rows(ragged: Ragged, rows: IntArray) -> tuple[Ragged, IntArray]:
    """The given rows of a ragged table, and the positions of their entries in it."""
    first, width = ragged.offsets[rows], ragged.offsets[rows + 1] - ragged.offsets[rows]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(width)])
    entry = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], width)
    return Ragged(offsets, ragged.index[entry]), entry
