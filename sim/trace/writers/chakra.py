"""Chakra execution traces (``et_def.proto``): one file per rank, messages with their length before them."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import Any

from sim.files import write_whole
from sim.trace.model import collective_kind
from sim.trace.operations import DELAY, HOST, TRANSFER, Operations
from sim.trace.readers import wire
from sim.trace.readers.chakra import COLLECTIVES, COMM_COLL, COMM_RECV, COMM_SEND, COMP, Node
from sim.trace.to_graph import merged_order

VERSION = "0.0.4"
# Field numbers of AttributeProto.
_NAME, _INT32, _INT64, _UINT64, _BOOL, _STRING = 1, 7, 9, 13, 27, 29
#: Attributes that readers expect as int32; other integers are int64 (uint64 beyond it).
_INT32_NAMES = {"comm_src", "comm_dst", "comm_tag", "comm_priority"}


def write_nodes(path: Path, nodes: Iterable[Node], *, version: str = VERSION) -> Path:
    """Write one rank's nodes; a name that ends in ``.gz`` is compressed."""
    messages = [wire.encode_field(1, version), *(encode_node(node) for node in nodes)]
    data = b"".join(wire.encode_varint(len(message)) + message for message in messages)
    return write_whole(path, gzip.compress(data, mtime=0) if path.name.endswith(".gz") else data)


def encode_node(node: Node) -> bytes:
    """One ``Node`` message. Durations are whole microseconds there; ``duration_ns`` keeps the rest."""
    field = wire.encode_field
    parts = [field(1, node.id), field(2, node.name), field(3, node.type)]
    for number, dependencies in ((4, node.ctrl_deps), (5, node.data_deps)):
        if dependencies:
            parts.append(field(number, b"".join(wire.encode_varint(d) for d in dependencies)))
    parts += [field(6, round(node.start)), field(7, round(node.duration))]
    if node.input_values:
        parts.append(field(8, field(1, node.input_values)))
    parts += [
        field(10, _attribute(name, value)) for name, value in node.attributes.items() if value is not None
    ]
    return b"".join(parts)


def _attribute(name: str, value: Any) -> bytes:
    if isinstance(value, bool):
        number, content = _BOOL, int(value)
    elif isinstance(value, int):
        number = _INT32 if name in _INT32_NAMES else (_INT64 if value < 1 << 63 else _UINT64)
        content = value
    elif isinstance(value, float):
        return wire.encode_field(_NAME, name) + wire.encode_field(3, value)
    else:
        return wire.encode_field(_NAME, name) + wire.encode_field(_STRING, str(value))
    return wire.encode_field(_NAME, name) + wire.encode_field(number, content)


def write_operations(folder: Path, prefix: str, operations: Operations) -> list[Path]:
    """Write ``PREFIX.RANK.et`` for every rank and ``PREFIX.json`` with the communicators.

    Transfers carry their true cost, host work and launch delays are CPU nodes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    members = operations.members()
    groups: dict[tuple[int, ...], int] = {}
    for same in members.values():
        groups.setdefault(
            tuple(sorted({operations.ranks[operations.rank[o]] for o in same})), len(groups) + 1
        )
    nodes: list[list[Node]] = [[] for _ in operations.ranks]
    local = [0] * len(operations)
    operations = replace(operations, start=operations.laid_out())
    across = _across(operations)
    tags = count(max(operations.join, default=0) + 1)
    # Dependencies first: some readers look only a window ahead.
    for operation in chain.from_iterable(merged_order(operations)):
        rank = operations.rank[operation]
        received = [
            _message(nodes, operations, local, (source, operation), next(tags))
            for source in across[operation]
        ]
        local[operation] = len(nodes[rank]) + 1
        nodes[rank].append(_node(operations, operation, local[operation], members, groups))
        nodes[rank][-1].data_deps += received
    for target, source in operations.edges:
        rank = operations.rank[target]
        if rank == operations.rank[source]:
            nodes[rank][local[target] - 1].data_deps.append(local[source])
    written = []
    for row, number in enumerate(operations.ranks):
        for node in nodes[row]:
            node.data_deps = sorted(set(node.data_deps))
        written.append(write_nodes(folder / f"{prefix}.{number}.et", nodes[row]))
    communicators = folder / f"{prefix}.json"
    text = {str(number): list(ranks) for ranks, number in groups.items()}
    write_whole(communicators, json.dumps(text, indent=1) + "\n")
    return [*written, communicators]


def _across(operations: Operations) -> dict[int, list[int]]:
    """What each operation waits for on other ranks, apart from the transfers that both take part in."""
    found: dict[int, list[int]] = defaultdict(list)
    for target, source in operations.edges:
        if operations.rank[target] != operations.rank[source]:
            found[target].append(source)
    return found


def _message(
    nodes: list[list[Node]], operations: Operations, local: list[int], edge: tuple[int, int], tag: int
) -> int:
    """Let a rank wait for another: a message that takes no time; returns the node of its arrival."""
    source, target = (operations.rank[o] for o in edge)
    attributes: dict[str, Any] = {
        "is_cpu_op": False,
        "duration_ns": 0,
        "stream": f"wait {tag}",
        "comm_src": operations.ranks[source],
        "comm_dst": operations.ranks[target],
        "comm_tag": tag & 0x7FFFFFFF,
        "comm_size": round(operations.size[edge[0]]),
    }
    start = max(operations.end[edge[0]], 0.0) * 1e6 + 1
    for rank, kind, after in ((source, COMM_SEND, [local[edge[0]]]), (target, COMM_RECV, [])):
        number = len(nodes[rank]) + 1
        nodes[rank].append(Node(number, "wait", kind, [], after, start, 0.0, dict(attributes)))
    return len(nodes[target])


def _node(
    operations: Operations,
    operation: int,
    number: int,
    members: dict[int, list[int]],
    groups: dict[tuple[int, ...], int],
) -> Node:
    category, work = operations.category[operation], operations.work[operation]
    attributes: dict[str, Any] = {
        "is_cpu_op": category in (HOST, DELAY),
        "duration_ns": round(work * 1e9),
        "stream": operations.stream[operation],
    }
    start = max(operations.start[operation], 0.0) * 1e6 + 1  # readers take 0 for a time that is unknown
    node = Node(number, operations.name[operation], COMP, [], [], start, work * 1e6, attributes)
    same = members.get(operations.join[operation], [])
    if category == TRANSFER and len(same) > 1:
        ranks = tuple(sorted({operations.ranks[operations.rank[o]] for o in same}))
        _communication(node, operations, operation, ranks, groups[ranks])
    return node


def _communication(
    node: Node, operations: Operations, operation: int, ranks: tuple[int, ...], group: int
) -> None:
    """Turn a node into a send, a receive or a collective; ``comm_size`` is the bytes a rank puts in."""
    size, name = operations.size[operation], operations.name[operation]
    kind = operations.type[operation]
    mine = operations.ranks[operations.rank[operation]]
    if len(ranks) == 2 and name.endswith(("-send", "-recv")):
        other = ranks[0] if ranks[1] == mine else ranks[1]
        sends = name.endswith("-send")
        node.type = COMM_SEND if sends else COMM_RECV
        node.attributes.update(
            comm_src=mine if sends else other,
            comm_dst=other if sends else mine,
            comm_tag=operations.join[operation] & 0x7FFFFFFF,
            comm_size=round(size),
        )
        return
    collective = collective_of(kind)
    node.type = COMM_COLL
    share = size / len(ranks) if collective in ("all_gather", "gather") else size
    node.attributes.update(
        comm_type=COLLECTIVES.index(collective), comm_size=round(share), pg_name=str(group)
    )


def collective_of(kind: str) -> str:
    """Chakra's word for a type of transfer; what it has none for counts as an all-reduce."""
    word = collective_kind(kind)
    return word if word in COLLECTIVES else "all_reduce"
