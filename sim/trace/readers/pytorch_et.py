"""PyTorch execution traces (``ExecutionTraceObserver``), schemas 1.0.1 to 1.1.1-chakra: host operators.

They hold no times (unless joined with Kineto upstream) and no kernels, but every collective with its sizes
and the process groups.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import Any

from sim.trace.issues import Issues
from sim.trace.model import (
    Collective,
    OptimizerName,
    ProcessGroup,
    RankTrace,
    Step,
    TensorNode,
    empty_timeline,
    optimizer_of,
    rank_from_name,
)
from sim.trace.operators import KNOWN, Operator, device_storages, element_word, shapes, storages
from sim.trace.readers.columns import as_list, integer
from sim.trace.readers.comm_metadata import CommRecord, from_named, from_positional, parse_groups, tuple_bytes
from sim.trace.readers.joined_et import MICROSECOND, DeviceNode, add_device_spans, device_node, times
from sim.trace.readers.json_stream import JsonStream


def read(stream: JsonStream, label: str, issues: Issues, *, host: bool = False) -> list[RankTrace]:
    """Read one rank's execution trace; with ``host`` its operators and the tensors they pass on too."""
    rank = RankTrace(label=label, format="pytorch-et", timeline=empty_timeline(), issues=issues)
    found = _Found()
    timed = 0
    tree = _Tree() if host else None
    for block in stream.blocks():
        for node in block:
            rank.num_events += 1
            if not isinstance(node, dict):
                issues.add("event_not_an_object")
                continue
            start, end = times(node, issues)
            timed += start == start
            name = node.get("name")
            number, parent = (integer(v) for v in (node.get("id"), node.get("ctrl_deps", node.get("parent"))))
            found.above[number] = parent
            if not isinstance(name, str):
                continue
            found.add(node, name, number, start, end)
            if tree is not None and not found.on_device(number):
                tree.add(node, name)
    issues.add("dependency_missing", sum(p > 0 and p not in found.above for p in found.above.values()))
    _finish(rank, found, timed, stream.header)
    if tree is not None:
        rank.operators, rank.optimizer = tree.forward(), tree.optimizer
        rank.tensor_nodes = tuple(node for _, node in sorted(tree.tensors.items()))
    return [rank]


@dataclass
class _Found:
    """What one pass over the nodes collects; times in microseconds."""

    records: list[tuple[CommRecord, float, float]] = field(default_factory=list)
    issued: dict[int, int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    config: list[Any] = field(default_factory=list)
    device: list[DeviceNode] = field(default_factory=list)
    above: dict[int, int] = field(default_factory=dict)

    def add(self, node: dict[str, Any], name: str, number: int, start: float, end: float) -> None:
        """Keep what a node says beside its place in the tree."""
        kernel = device_node(node, name, start, end)
        if kernel is not None:
            self.device.append(kernel)
        elif name == "record_param_comms":
            record = _record(node)
            if record is not None:
                self.issued[number] = len(self.records)
                self.records.append((record, start, end))
        elif name.startswith("ProfilerStep"):
            self.steps.append(Step(name, start, end))
        elif name.startswith("## process_group:init"):
            self.config.extend(_group_config(node))

    def on_device(self, number: int) -> bool:
        """Whether the node added last is this one and ran on a device."""
        return bool(self.device) and self.device[-1].number == number

    def origin(self) -> float:
        """The first time there is; 0 without any."""
        starts = [start for _, start, _ in self.records] + [node.start for node in self.device]
        starts += [step.start for step in self.steps]
        return min((start for start in starts if start == start), default=0.0)


def _finish(rank: RankTrace, found: _Found, timed: int, header: dict[str, Any]) -> None:
    issues, records, origin = rank.issues, found.records, found.origin()
    rank.rank = rank_from_name(rank.label)
    rank.steps = tuple(
        Step(s.name, (s.start - origin) * MICROSECOND, (s.end - origin) * MICROSECOND) for s in found.steps
    )
    rank.groups = _groups(records, found.config)
    sizes = [group.size for group in rank.groups if group.description == "default_pg" or group.name == "0"]
    rank.world_size = next((size for size in sizes if size), None)
    rank.collectives = tuple(
        _collective(r, (s - origin) * MICROSECOND, (e - origin) * MICROSECOND, rank) for r, s, e in records
    )
    rank.clock_origin_ns = round(origin * 1000)
    if found.device:
        add_device_spans(rank, found.device, found.above, origin, found.issued)
    issues.add("rank_unknown" if rank.rank is None else "rank_from_file_name")
    issues.add("device_unknown")
    issues.add("no_device_events", int(not found.device))
    issues.add("no_durations", rank.num_events - timed)
    issues.add("no_steps", int(not rank.steps))
    issues.add("world_size_unknown", int(rank.world_size is None))
    schema = header.get("schema")
    rank.categories = {f"schema {schema}": rank.num_events} if isinstance(schema, str) else {}


def _collective(record: CommRecord, start: float, end: float, rank: RankTrace) -> Collective:
    size = record.size(rank.world_size)
    rank.issues.add("collective_without_size", int(size is None and record.kind != "barrier"))
    rank.issues.add("collective_without_group", int(not record.group))
    return Collective(
        record.kind,
        size,
        record.dtype,
        record.group,
        record.group_size,
        start,
        end,
        -1,
        record.sequence,
        record.peer,
    )


def _record(node: dict[str, Any]) -> CommRecord | None:
    attributes = {
        entry["name"]: entry.get("value")
        for entry in as_list(node.get("attrs"))
        if isinstance(entry, dict) and isinstance(entry.get("name"), str)
    }
    named = from_named(attributes)
    if named is not None:
        return named
    values, shapes, types = _inputs(node, "inputs")
    record = from_positional(values, shapes, types)
    if record is None:
        return None
    return replace(record, output_bytes=tuple_bytes(_inputs(node, "outputs")[0])[0])


def _inputs(node: dict[str, Any], key: str) -> tuple[list[Any], list[Any], list[Any]]:
    """Values, shapes and types; a dict in the chakra schemas, three lists in 1.0.1."""
    held = node.get(key)
    if isinstance(held, dict):
        parts = (held.get("values"), held.get("shapes"), held.get("types"))
    else:
        stem = key.removesuffix("s")
        parts = (held, node.get(f"{stem}_shapes"), node.get(f"{stem}_types"))
    values, shapes, types = map(as_list, parts)
    return values, shapes, types


def _group_config(node: dict[str, Any]) -> list[Any]:
    values = _inputs(node, "inputs")[0]
    try:
        listed = json.loads(values[0]) if values and isinstance(values[0], str) else []
    except ValueError:
        return []
    return as_list(listed)


def _groups(records: list[tuple[CommRecord, float, float]], config: list[Any]) -> tuple[ProcessGroup, ...]:
    groups = {group.name: group for group in parse_groups(config, None)}
    for record, _, _ in records:
        if record.group and record.group not in groups:
            groups[record.group] = ProcessGroup(
                record.group, record.description, "", record.group_ranks, record.group_size
            )
    return tuple(groups.values())


def _tensor_node(node: dict[str, Any], name: str) -> TensorNode:
    given = {
        entry["name"]: entry.get("value")
        for entry in as_list(node.get("attrs"))
        if isinstance(entry, dict) and entry.get("name") in ("tid", "rf_id")
    }
    thread, record = (integer(given.get(key, node.get(key))) for key in ("tid", "rf_id"))
    read, written = (device_storages(_inputs(node, key)[0]) for key in ("inputs", "outputs"))
    return TensorNode(name, thread, record, read, written)


class _Tree:
    """Which operators ran in the forward pass of one step, outermost known ones only."""

    def __init__(self) -> None:
        self.parent: dict[int, int] = {}
        self.known: dict[int, Operator] = {}
        self.backward: set[int] = set()
        self.engine: set[int] = set()
        self.steps: list[int] = []
        self.optimizer: OptimizerName | None = None
        self.tensors: dict[int, TensorNode] = {}

    def add(self, node: dict[str, Any], name: str) -> None:
        """Remember a node."""
        number = integer(node.get("id"))
        self.tensors[number] = _tensor_node(node, name)
        self.parent[number] = integer(node.get("ctrl_deps", node.get("parent")))
        if name.startswith("ProfilerStep"):
            self.steps.append(number)
        elif name.startswith(("autograd::engine", "Optimizer.")):
            self.backward.add(number)
            if name.startswith("autograd"):
                self.engine.add(number)
            self.optimizer = self.optimizer or optimizer_of(name)
        elif name in KNOWN:
            values, given, types = _inputs(node, "inputs")
            _, produced, _ = _inputs(node, "outputs")
            output = next((s for s in shapes(produced) if s), None)
            self.known[number] = Operator(name, shapes(given), output, element_word(types), storages(values))

    def forward(self) -> tuple[Operator, ...]:
        """Operators in order of their ids, which are given when they start."""
        # The first step often differs from the rest; some traces leave the later ones empty.
        steps: list[int | None] = [*sorted(self.steps)]
        for step in [*steps[1:], *steps[:1]] or [None]:
            found = [number for number in sorted(self.known) if self._counts(number, step)]
            if found:
                return self._segments(found)
        return ()

    def _segments(self, numbers: list[int]) -> tuple[Operator, ...]:
        """Operators with the number of backward passes begun before them."""
        engine = sorted(self.engine)
        result, segment = [], 0
        for before, number in zip([None, *numbers], numbers, strict=False):
            if before is not None:
                segment += bisect_left(engine, number) > bisect_left(engine, before)
            result.append(replace(self.known[number], segment=segment))
        return tuple(result)

    def _counts(self, number: int, step: int | None) -> bool:
        inside = step is None
        for _ in range(200):
            above = self.parent.get(number, -1)
            if above == number or above not in self.parent:
                return inside
            if above in self.known or above in self.backward:
                return False
            inside = inside or above == step
            number = above
        return False
