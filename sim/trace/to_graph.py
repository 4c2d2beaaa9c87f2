"""Measured operations -> ExecutionGraph: the job as it happened, ready to be played."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from sim.errors import InputError
from sim.graph.builder import GraphBuilder
from sim.graph.execution import ExecutionGraph, IntArray, LinkTable, TaskKind
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
    node, nodes = _merge_joins(operations)
    edges = _node_edges(operations, node, len(nodes))
    order = _order(operations, nodes, edges)
    builder = GraphBuilder()
    stages = operations.stages or (0,) * len(operations.ranks)
    devices = [
        builder.device(f"rank {number}", row, stage=stages[row])
        for row, number in enumerate(operations.ranks)
    ]
    place = np.full(len(nodes), -1, np.int64)
    for index in order:
        place[index] = _add(builder, operations, nodes[index], devices, [int(place[s]) for s in edges[index]])
    _end_ranks(builder, operations, place[node], devices)
    steps = max(operations.step, default=0) + 1
    table = LinkTable((), np.zeros(0), np.zeros(0, np.int64), ())
    graph = builder.build(table, steps_per_iteration=steps, max_iterations=1, metadata={"origin": "trace"})
    return Imported(graph, place[node])


def _end_ranks(builder: GraphBuilder, operations: Operations, task: IntArray, devices: list[int]) -> None:
    """A rank's iteration ends with the last task of each of its streams."""
    last: dict[tuple[int, str], int] = {}
    for operation, rank in enumerate(operations.rank):
        key = (rank, operations.stream[operation])
        last[key] = max(last.get(key, -1), int(task[operation]))
    for rank, device in enumerate(devices):
        ends = sorted({found for (owner, _), found in last.items() if owner == rank})
        builder.control("end of trace", after=ends, boundary=True, device=device)


def _merge_joins(operations: Operations) -> tuple[IntArray, list[list[int]]]:
    """Node of each operation, and operations of each node."""
    node = np.full(len(operations), -1, np.int64)
    nodes: list[list[int]] = []
    of_join: dict[int, int] = {}
    for operation, join in enumerate(operations.join):
        if join >= 0 and join in of_join:
            node[operation] = of_join[join]
            nodes[of_join[join]].append(operation)
            continue
        node[operation] = len(nodes)
        if join >= 0:
            of_join[join] = len(nodes)
        nodes.append([operation])
    return node, nodes


def _node_edges(operations: Operations, node: IntArray, count: int) -> list[list[int]]:
    found: list[set[int]] = [set() for _ in range(count)]
    for target, source in operations.edges:
        if node[target] != node[source]:
            found[int(node[target])].add(int(node[source]))
    return [sorted(sources) for sources in found]


def merged_order(operations: Operations) -> list[list[int]]:
    """Operations grouped by transfer, in an order in which none comes before what it waits for."""
    node, nodes = _merge_joins(operations)
    return [nodes[i] for i in _order(operations, nodes, _node_edges(operations, node, len(nodes)))]


def _order(operations: Operations, nodes: list[list[int]], edges: list[list[int]]) -> list[int]:
    """Nodes so that none comes before what it waits for, otherwise in order of time.

    Program streams issue in this order, so it must agree with the dependencies.
    """
    missing = [len(sources) for sources in edges]
    followers: dict[int, list[int]] = defaultdict(list)
    for target, sources in enumerate(edges):
        for source in sources:
            followers[source].append(target)
    time = [max(operations.start[o] for o in members) for members in nodes]
    # Steps restart the clock in some traces: step first.
    key = [(operations.step[members[0]], time[i], i) for i, members in enumerate(nodes)]
    heap = [key[i] for i, count in enumerate(missing) if count == 0]
    heapq.heapify(heap)
    order = []
    while heap:
        index = heapq.heappop(heap)[2]
        order.append(index)
        for target in followers[index]:
            missing[target] -= 1
            if missing[target] == 0:
                heapq.heappush(heap, key[target])
    if len(order) < len(nodes):
        raise InputError(
            "trace", "have dependencies without a cycle", f"{len(nodes) - len(order)} operations in one"
        )
    return order


def _add(
    builder: GraphBuilder, operations: Operations, members: list[int], devices: list[int], after: list[int]
) -> int:
    first = members[0]
    streams = tuple(
        dict.fromkeys(
            builder.stream(devices[operations.rank[o]], operations.stream[o])
            for o in members
            if operations.stream[o]
        )
    )
    moves = operations.category[first] == TRANSFER and bool(streams)
    return builder.task(
        TaskKind.TRANSFER if moves else TaskKind.COMPUTE,
        operations.type[first] if moves else operations.name[first],
        operations.cause[first],
        device=-1 if moves else devices[operations.rank[first]],
        streams=streams,
        after=after,
        work=operations.work[first],
        micro_batch=operations.micro_batch[first],
        step=operations.step[first],
    )
