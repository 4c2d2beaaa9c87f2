"""Operations of Chakra execution traces: dependencies are in the file, durations too.

A node runs when what it depends on has finished and its stream is free; METADATA nodes take no time.
Collectives of several ranks are joined by communicator, kind, size and order, messages by sender, receiver
and tag. A transfer costs what it took on the rank that waited least.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from sim.graph.execution import Cause
from sim.trace.issues import Issues
from sim.trace.model import RankTrace
from sim.trace.operations import DEVICE, HOST, TRANSFER, Operations, rank_numbers
from sim.trace.readers.chakra import COMM_COLL, COMM_RECV, COMM_SEND, COMP, METADATA, Node
from sim.trace.readers.chakra import kind_of as collective_of

_MOVES = (COMM_SEND, COMM_RECV, COMM_COLL)
_CAUSES = {
    "all_to_all": Cause.EXPERT_COMM,
    "all_gather": Cause.PARAMETER_COMM,
    "send": Cause.PIPELINE_COMM,
    "recv": Cause.PIPELINE_COMM,
}


@dataclass
class _Joins:
    """Number of each transfer by what identifies it, and its cost so far."""

    number: dict[tuple[object, ...], int] = field(default_factory=dict)
    members: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, key: tuple[object, ...], operation: int) -> int:
        number = self.number.setdefault(key, len(self.number))
        self.members[number].append(operation)
        return number


def chakra_operations(ranks: list[RankTrace], issues: Issues) -> Operations:
    """Operations of several ranks of one job.

    Parameters
    ----------
    ranks : list of RankTrace
        With ``nodes``.
    issues : Issues
        Where findings are counted.
    """
    numbers = rank_numbers([rank.rank for rank in ranks])
    ops, joins = Operations(numbers, issues), _Joins()
    for row, rank in enumerate(ranks):
        _rank(ops, row, rank, joins)
    for same in joins.members.values():
        if len(same) < 2:
            issues.add("collective_of_absent_ranks", int(len(ranks) > 1))
            ops.join[same[0]] = -1
            continue
        cost = min(ops.work[o] for o in same)
        for operation in same:
            ops.work[operation] = cost
    return ops


def _rank(ops: Operations, row: int, rank: RankTrace, joins: _Joins) -> None:
    nodes = [node for node in rank.nodes if node.type != 0]
    base = min((node.start for node in nodes if node.start > 0), default=0.0)
    of_node: dict[int, int] = {}
    count: dict[tuple[object, ...], int] = defaultdict(int)
    for node in nodes:
        operation = _add(ops, row, node, max(node.start - base, 0.0) * 1e-6)
        of_node.setdefault(node.id, operation)
        if node.type in _MOVES:
            key = _key(rank, node)
            ops.join[operation] = joins.add((*key, count[key]), operation)
            count[key] += 1
    _depend(ops, nodes, of_node)
    mine = [o for o in range(len(ops)) if ops.rank[o] == row]
    if mine and base > 0:
        first = min(mine, key=lambda o: ops.start[o])
        last = max(mine, key=lambda o: ops.end[o])
        ops.marks.append(("trace", row, first, last, ops.end[last] - ops.start[first]))
    ops.issues.add("no_timestamps", int(not base))


def _depend(ops: Operations, nodes: list[Node], of_node: dict[int, int]) -> None:
    """Add the dependencies; control dependencies that close a circle give way to data dependencies."""
    data = [(of_node[n.id], of_node.get(d, -1)) for n in nodes for d in n.data_deps]
    control = [(of_node[n.id], of_node.get(d, -1)) for n in nodes for d in n.ctrl_deps]
    ops.issues.add("dependency_missing", sum(source < 0 for _, source in (*data, *control)))
    pairs = np.array([p for p in (*data, *control) if p[1] >= 0 and p[0] != p[1]], np.int64).reshape(-1, 2)
    size = len(ops)
    matrix = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(size, size))
    circle = connected_components(matrix, connection="strong")[1]
    for operation, source in data:
        ops.after(operation, source)
    dropped = 0
    for operation, source in control:
        if source >= 0 and source != operation and circle[source] == circle[operation]:
            dropped += 1
        else:
            ops.after(operation, source)
    ops.issues.add("dependency_in_a_circle", dropped)


def _add(ops: Operations, row: int, node: Node, start: float) -> int:
    moves = node.type in _MOVES
    kind = collective_of(node) if moves else node.name
    stream = str(node.attributes.get("stream") or "")
    host = node.on_host or node.type == METADATA
    seconds = 0.0 if node.type == METADATA else node.seconds
    # Threads of a host and unnamed streams are ordered by dependencies alone, as launch delays overlap.
    place = "" if host else (f"stream {stream}" if stream else ("comm" if moves else "compute"))
    return ops.add(
        row,
        place,
        TRANSFER if moves else (HOST if host or node.type != COMP else DEVICE),
        node.name,
        start,
        start + seconds,
        type=kind,
        cause=_CAUSES.get(kind, Cause.GRADIENT_COMM) if moves else (None if host else Cause.OTHER),
        size=float(size) if isinstance(size := node.attributes.get("comm_size"), int | float) else 0.0,
    )


def _key(rank: RankTrace, node: Node) -> tuple[object, ...]:
    attributes = node.attributes
    if node.type == COMM_COLL:
        return (attributes.get("pg_name", ""), collective_of(node), attributes.get("comm_size"))
    sender = attributes.get("comm_src", rank.rank)
    receiver = attributes.get("comm_dst", rank.rank)
    return ("message", sender, receiver, attributes.get("comm_tag", 0))
