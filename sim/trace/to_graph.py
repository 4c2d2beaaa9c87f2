"""Measured operations -> ExecutionGraph: the job as it happened, ready to be played."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from sim.errors import InputError
from sim.graph.builder import GraphBuilder
from sim.graph.execution import ExecutionGraph, IntArray, LinkTable, Ragged, TaskKind
from sim.trace.chakra_operations import chakra_operations
from sim.trace.goal_operations import goal_operations
from sim.trace.host_operations import has_host_spans, host_operations
from sim.trace.issues import Issues
from sim.trace.job_operations import job_operations
from sim.trace.kineto_operations import kineto_operations
from sim.trace.model import RankTrace, Trace
from sim.trace.operations import TRANSFER, Operations
from sim.trace.span_operations import SPAN_FORMATS, span_operations
from sim.trace.tensors import join_tensors


@dataclass(frozen=True)
class Imported:
    """A graph and where its tasks come from.

    Attributes
    ----------
    graph : ExecutionGraph
        One iteration holds the whole trace.
    task : ndarray of int, shape (operations,)
        Task of each operation; participants of a transfer share one.
    """

    graph: ExecutionGraph
    task: IntArray


#: Formats whose spans are replayed as streams that wait for each other.
_SPANS = ("kineto", "clusterloom", "nsys-csv", "nsys-sqlite", "xplane", "pytorch-et")


def operations_of(trace: Trace) -> Operations:
    """Operations of a trace with their dependencies.

    Raises
    ------
    InputError
        If the trace holds no timed operations of devices.
    """
    issues = Issues()
    job = next((rank.job for rank in trace.ranks if rank.job is not None), None)
    if job is not None:
        return job_operations(job, issues)
    spans = [rank for rank in trace.ranks if rank.format in _SPANS and len(rank.timeline)]
    # An execution trace with times of its own stands in for a profile, not beside it.
    spans = [rank for rank in spans if rank.format != "pytorch-et"] or spans
    if spans:
        join_tensors(trace)
        return kineto_operations(spans, issues)
    hosts = [rank for rank in trace.ranks if has_host_spans(rank)]
    if hosts:
        return host_operations(hosts, issues)
    chakra = [rank for rank in trace.ranks if rank.nodes and any(n.seconds for n in rank.nodes)]
    if chakra:
        return chakra_operations(chakra, issues)
    goal = [rank for rank in trace.ranks if rank.goal]
    if goal:
        return goal_operations(goal, issues)
    alone = [rank for rank in trace.ranks if rank.format in SPAN_FORMATS and _lists_something(rank)]
    if alone:
        return span_operations(alone, issues)
    untimed = [rank for rank in trace.ranks if rank.nodes]
    if untimed:
        issues.add("no_times", len(untimed))
        return chakra_operations(untimed, issues)
    formats = ", ".join(sorted({rank.format for rank in trace.ranks})) or "no events"
    raise InputError(
        "trace",
        "hold operations: device spans, operators of the host, or nodes with durations",
        formats,
        hint="Give the Kineto trace of the rank, or the op table of the job.",
    )


def _lists_something(rank: RankTrace) -> bool:
    return bool(len(rank.timeline) or rank.operators or rank.collectives or rank.simai is not None)


def to_graph(operations: Operations) -> Imported:
    """The graph that plays the operations: what waited for what, on which streams, for how long."""
    node, members = _merge_joins(operations)
    target, source = _node_edges(operations, node, len(members))
    order = _order(operations, node, members, (target, source))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    builder = GraphBuilder()
    stages = operations.stages or (0,) * len(operations.ranks)
    devices = [
        builder.device(f"rank {number}", row, stage=stages[row])
        for row, number in enumerate(operations.ranks)
    ]
    first = members[order]
    streams = _streams(builder, operations, place[node], devices)
    moves = (np.array(operations.category)[first] == TRANSFER) & (np.diff(streams.offsets) > 0)
    builder.tasks(
        streams=streams,
        edges=(place[target], place[source]),
        names=[
            (operations.type if moving else operations.name)[o]
            for o, moving in zip(first.tolist(), moves.tolist(), strict=True)
        ],
        kind=np.where(moves, TaskKind.TRANSFER, TaskKind.COMPUTE),
        cause=np.fromiter(map(int, operations.cause), np.int64, len(operations))[first],
        device=np.where(moves, -1, np.array(devices, np.int64)[np.array(operations.rank)[first]]),
        work=np.array(operations.work)[first],
        micro_batch=np.array(operations.micro_batch)[first],
        step=np.array(operations.step)[first],
    )
    _end_ranks(builder, operations, place[node], devices)
    steps = max(operations.step, default=0) + 1
    table = LinkTable((), np.zeros(0), np.zeros(0, np.int64), ())
    graph = builder.build(table, steps_per_iteration=steps, max_iterations=1, metadata={"origin": "trace"})
    return Imported(graph, place[node])


def _end_ranks(builder: GraphBuilder, operations: Operations, task: IntArray, devices: list[int]) -> None:
    """A rank's iteration ends with the last task of each of its streams."""
    last: dict[tuple[int, str], int] = {}
    for rank, stream, found in zip(operations.rank, operations.stream, task.tolist(), strict=True):
        key = (rank, stream)
        last[key] = max(last.get(key, -1), found)
    for rank, device in enumerate(devices):
        ends = sorted({found for (owner, _), found in last.items() if owner == rank})
        builder.control("end of trace", after=ends, boundary=True, device=device)


def _merge_joins(operations: Operations) -> tuple[IntArray, IntArray]:
    """Node of each operation, and the first operation of each node."""
    join, row = np.array(operations.join, np.int64), np.arange(len(operations))
    leader = row.copy()
    joined = np.flatnonzero(join >= 0)
    _, first, same = np.unique(join[joined], return_index=True, return_inverse=True)
    leader[joined] = joined[first[same]]
    members = np.flatnonzero(leader == row)
    return np.searchsorted(members, leader).astype(np.int64), members


def _node_edges(operations: Operations, node: IntArray, count: int) -> tuple[IntArray, IntArray]:
    """Distinct pairs (node, node it waits for), in order."""
    target, source = operations.edges.arrays()
    target, source = node[target], node[source]
    key = np.unique((target * count + source)[target != source])
    return key // max(count, 1), key % max(count, 1)


def merged_order(operations: Operations) -> list[list[int]]:
    """Operations grouped by transfer, in an order in which none comes before what it waits for."""
    node, members = _merge_joins(operations)
    groups: list[list[int]] = [[] for _ in members]
    for operation, at in enumerate(node.tolist()):
        groups[at].append(operation)
    edges = _node_edges(operations, node, len(members))
    return [groups[i] for i in _order(operations, node, members, edges).tolist()]


def _order(
    operations: Operations, node: IntArray, members: IntArray, edges: tuple[IntArray, IntArray]
) -> IntArray:
    """Nodes so that none comes before what it waits for, otherwise in order of time.

    Program streams issue in this order, so it must agree with the dependencies.
    """
    count = len(members)
    time = np.full(count, -np.inf)
    np.maximum.at(time, node, np.array(operations.start))
    # Steps restart the clock in some traces: step first.
    by_time = np.lexsort((np.arange(count), time, np.array(operations.step, np.int64)[members]))
    turn = np.empty(count, np.int64)
    turn[by_time] = np.arange(count)
    target, source = turn[edges[0]], turn[edges[1]]
    if (source < target).all():
        return by_time.astype(np.int64)
    order = np.array(_sorted_turns(target, source, count), np.int64)
    if len(order) < count:
        raise InputError(
            "trace", "have dependencies without a cycle", f"{count - len(order)} operations in one"
        )
    return by_time[order].astype(np.int64)


def _sorted_turns(target: IntArray, source: IntArray, count: int) -> list[int]:
    """Numbers up to ``count`` so that sources come before their targets, otherwise ascending."""
    missing: list[int] = np.bincount(target, minlength=count).tolist()
    followers = Ragged.from_pairs(count, source, target)
    bounds: list[int] = followers.offsets.tolist()
    heap = [turn for turn, waits in enumerate(missing) if not waits]
    order = []
    while heap:
        turn = heapq.heappop(heap)
        order.append(turn)
        for other in followers.index[bounds[turn] : bounds[turn + 1]].tolist():
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(heap, other)
    return order


def _streams(builder: GraphBuilder, operations: Operations, task: IntArray, devices: list[int]) -> Ragged:
    """Streams of every task, those of the first participant first; named in order of first use."""
    streams = np.empty(len(operations), np.int64)
    order = np.lexsort((np.arange(len(operations)), task))
    for o in order.tolist():
        name = operations.stream[o]
        streams[o] = builder.stream(devices[operations.rank[o]], name) if name else -1
    rows, found = task[order], streams[order]
    rows, found = rows[found >= 0], found[found >= 0]
    # Participants of one transfer may share a stream.
    pair = rows * (int(found.max(initial=0)) + 1) + found
    keep = np.sort(np.unique(pair, return_index=True)[1])
    return Ragged.from_pairs(int(task.max(initial=-1)) + 1, rows[keep], found[keep])
