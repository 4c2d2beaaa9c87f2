"""Chakra execution traces: protobuf (``et_def.proto``, decoded here) and the JSON form."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sim.errors import InputError
from sim.trace.issues import Issues
from sim.trace.model import (
    COMMUNICATION,
    COMPUTE,
    MEMORY,
    Collective,
    ProcessGroup,
    RankTrace,
    collective_kind,
    nccl_size,
    rank_from_name,
    timeline,
)
from sim.trace.readers import wire
from sim.trace.readers.columns import integer
from sim.trace.readers.comm_metadata import parse_groups
from sim.trace.readers.container import Member
from sim.trace.readers.json_stream import JsonStream

METADATA, MEM_LOAD, MEM_STORE, COMP, COMM_SEND, COMM_RECV, COMM_COLL = 1, 2, 3, 4, 5, 6, 7
COLLECTIVES = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter",  # REDUCE_SCATTER_BLOCK
    "barrier",
)
MICROSECOND = 1e-6

# Field number in AttributeProto -> how to read it (`et_def.proto`). Each type is followed by its list.
_SCALARS = {
    3: "double", 5: "float", 7: "int", 9: "int", 11: "uint", 13: "uint", 15: "zigzag", 17: "zigzag",
    19: "uint", 21: "uint", 23: "fixed_int", 25: "fixed_int", 27: "bool", 29: "string", 31: "bytes",
}  # fmt: skip


@dataclass
class Node:
    """One operation. Times in microseconds; ``attributes`` by name."""

    id: int = -1
    name: str = ""
    type: int = 0
    ctrl_deps: list[int] = field(default_factory=list)
    data_deps: list[int] = field(default_factory=list)
    start: float = 0.0
    duration: float = 0.0
    attributes: dict[str, Any] = field(default_factory=dict)
    input_values: str = ""

    @property
    def seconds(self) -> float:
        """Duration; from our own attribute in nanoseconds where there is one."""
        exact = self.attributes.get("duration_ns")
        return exact * 1e-9 if isinstance(exact, int) and exact >= 0 else self.duration * MICROSECOND

    @property
    def on_host(self) -> bool:
        """Whether a CPU runs it; False where nothing is said."""
        return bool(self.attributes.get("is_cpu_op", False))


def decode_node(data: memoryview) -> Node:
    """One ``Node`` message."""
    node = Node()
    for number, kind, value in wire.fields(data):
        if number in (1, 3, 6, 7) and kind != wire.VARINT:
            raise wire.WireError("a number field holds something else")
        if number == 1:
            node.id = value
        elif number == 2:
            node.name = wire.text(value)
        elif number == 3:
            node.type = value
        elif number in (4, 5):
            (node.ctrl_deps if number == 4 else node.data_deps).extend(wire.numbers(value, kind))
        elif number == 6:
            node.start = float(value)
        elif number == 7:
            node.duration = float(value)
        elif number == 8 and kind == wire.BYTES:
            node.input_values = next((wire.text(v) for n, _, v in wire.fields(value) if n == 1), "")
        elif number == 10 and kind == wire.BYTES:
            name, content = decode_attribute(value)
            node.attributes[name] = content
    return node


def decode_attribute(data: memoryview) -> tuple[str, Any]:
    """Name and value of an ``AttributeProto``; lists stay undecoded."""
    name, content = "", None
    for number, kind, value in wire.fields(data):
        if number == 1:
            name = wire.text(value)
        elif number in _SCALARS:
            content = _scalar(_SCALARS[number], value, kind)
    return name, content


def _scalar(how: str, value: Any, kind: int) -> Any:
    if kind == wire.BYTES:
        return wire.text(value) if how == "string" else bytes(value)
    if how == "double" and kind == wire.FIXED64:
        return wire.double(value)
    if how == "float" and kind == wire.FIXED32:
        return wire.single(value)
    if how == "int":
        return wire.signed(value)
    if how == "zigzag":
        return wire.zigzag(value)
    if how == "fixed_int":
        bits = 64 if kind == wire.FIXED64 else 32
        return value - (1 << bits) if value >= 1 << (bits - 1) else value
    return bool(value) if how == "bool" else value


def read_protobuf(member: Member, issues: Issues) -> tuple[list[Node], str]:
    """Nodes and schema version of a ``.et`` file; a damaged end is counted."""
    nodes: list[Node] = []
    version = ""
    try:
        for index, message in enumerate(wire.messages(member.stream)):
            if index == 0:
                version = next(
                    (wire.text(v) for n, k, v in wire.fields(message) if n == 1 and k == wire.BYTES), ""
                )
            else:
                try:
                    nodes.append(decode_node(message))
                except (wire.WireError, AttributeError, TypeError):
                    issues.add("malformed_event")
    except wire.WireError:
        issues.add("truncated_file")
    if not nodes and issues.counts["truncated_file"]:
        raise InputError("file", "be a stream of Chakra messages", member.label)
    return nodes, version


def read_json(stream: JsonStream, label: str, issues: Issues) -> list[Node]:
    """Nodes of the JSON form (``workload_graph``)."""
    nodes = []
    for block in stream.blocks():
        for entry in block:
            if not isinstance(entry, dict):
                issues.add("event_not_an_object")
                continue
            nodes.append(_json_node({key.lower().replace("_", ""): value for key, value in entry.items()}))
    return nodes


def _json_node(entry: dict[str, Any]) -> Node:
    def deps(*keys: str) -> list[int]:
        listed: list[Any] = next((entry[k] for k in keys if isinstance(entry.get(k), list)), [])
        return [integer(d) for d in listed if integer(d) >= 0]

    known = {"iscpuop": "is_cpu_op", "commtype": "comm_type", "commsize": "comm_size", "commtag": "comm_tag",
             "commsrc": "comm_src", "commdst": "comm_dst", "tensorsize": "tensor_size", "numops": "num_ops",
             "pgname": "pg_name"}  # fmt: skip
    runtime = entry.get("runtime", entry.get("durationmicros", 0))
    return Node(
        integer(entry.get("id")),
        str(entry.get("name", "")),
        integer(entry.get("nodetype", entry.get("type")), 0),
        deps("ctrldeps", "ctrldep"),
        deps("datadeps", "datadep"),
        float(max(integer(entry.get("starttimemicros"), 0), 0)),
        float(runtime) if isinstance(runtime, int | float) and 0 <= runtime < 1e18 else 0.0,
        {ours: entry[key] for key, ours in known.items() if entry.get(key) is not None},
    )


def build(
    nodes: list[Node], label: str, form: str, issues: Issues, world_size: int | None = None
) -> RankTrace:
    """The rank that a Chakra trace describes. Device spans are the nodes that no CPU runs."""
    spans = [node for node in nodes if node.type in _TYPES and not node.on_host]
    groups = _groups(nodes, world_size)
    _count_missing(nodes, spans, issues)
    base = min((node.start for node in spans if node.start > 0), default=0.0)
    start = np.array([max(node.start - base, 0.0) for node in spans]) * MICROSECOND
    duration = np.array([node.seconds for node in spans], np.float64)
    names = {node.name: 0 for node in spans}
    for index, name in enumerate(names):
        names[name] = index
    streams = {str(node.attributes.get("stream", "")): 0 for node in spans}
    for index, stream in enumerate(streams):
        streams[stream] = index
    rank = RankTrace(
        label=label,
        format=form,
        timeline=timeline(
            start=start,
            end=start + duration,
            name=[names[node.name] for node in spans],
            kind=[_TYPES[node.type] for node in spans],
            names=names,
            stream=[streams[str(node.attributes.get("stream", ""))] for node in spans],
            streams=streams,
        ),
        num_events=len(nodes),
        rank=rank_from_name(label),
        world_size=world_size,
        issues=issues,
        groups=groups,
    )
    rank.nodes = tuple(nodes)
    rank.collectives = _collectives(spans, start, duration, groups, rank)
    issues.add("rank_unknown" if rank.rank is None else "rank_from_file_name")
    issues.add("world_size_unknown", int(world_size is None))
    issues.add("device_unknown")
    issues.add("no_steps")
    return rank


_TYPES = {
    MEM_LOAD: MEMORY,
    MEM_STORE: MEMORY,
    COMP: COMPUTE,
    COMM_SEND: COMMUNICATION,
    COMM_RECV: COMMUNICATION,
    COMM_COLL: COMMUNICATION,
}


def _count_missing(nodes: list[Node], spans: list[Node], issues: Issues) -> None:
    known = {node.id for node in nodes}
    absent = sum(d not in known for node in nodes for d in (*node.ctrl_deps, *node.data_deps))
    issues.add("dependency_missing", absent)
    issues.add("unknown_operation", sum(not 0 <= node.type <= COMM_COLL for node in nodes))
    issues.add("no_durations", sum(node.seconds == 0 for node in spans))
    issues.add("no_timestamps", int(bool(spans) and all(node.start == 0 for node in spans)))
    issues.add("no_device_events", int(not spans))


def _groups(nodes: list[Node], world_size: int | None) -> tuple[ProcessGroup, ...]:
    found: list[ProcessGroup] = []
    for node in nodes:
        if node.name.startswith("## process_group:init"):
            try:
                values = json.loads(node.input_values)
                listed = (
                    json.loads(values[0])
                    if isinstance(values, list) and isinstance(values[0], str)
                    else values
                )
            except (ValueError, IndexError):
                continue
            found.extend(parse_groups(listed, world_size))
    return tuple({group.name: group for group in found}.values())


def _collectives(
    spans: list[Node], start: Any, duration: Any, groups: tuple[ProcessGroup, ...], rank: RankTrace
) -> tuple[Collective, ...]:
    by_name = {group.name: group for group in groups}
    result = []
    for row, node in enumerate(spans):
        if _TYPES[node.type] != COMMUNICATION:
            continue
        kind = kind_of(node)
        group = str(node.attributes.get("pg_name", ""))
        members = by_name[group].size if group in by_name else rank.world_size
        given = integer(node.attributes.get("comm_size"))
        size = nccl_size(kind, float(given) if given >= 0 else None, None, members)
        rank.issues.add("collective_without_size", int(size is None and kind != "barrier"))
        rank.issues.add("collective_kind_unknown", int(kind == "unknown"))
        peer = integer(node.attributes.get("comm_dst" if kind == "send" else "comm_src"))
        begin = float(start[row])
        end = begin + float(duration[row])
        result.append(
            Collective(
                kind,
                size,
                "",
                group,
                members,
                begin,
                end,
                row,
                None,
                peer if kind in ("send", "recv") else None,
            )
        )
    return tuple(result)


def kind_of(node: Node) -> str:
    """Our word for a communication node."""
    if node.type == COMM_SEND:
        return "send"
    if node.type == COMM_RECV:
        return "recv"
    number = integer(node.attributes.get("comm_type"))
    return COLLECTIVES[number] if 0 <= number < len(COLLECTIVES) else collective_kind(node.name)
