"""XPlane protobuf of the JAX and TensorFlow profilers: one plane per device, one line per stream."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sim.errors import InputError
from sim.trace.issues import Issues
from sim.trace.model import (
    COMMUNICATION,
    COMMUNICATION_NAME,
    COMPUTE,
    MEMORY,
    Collective,
    RankTrace,
    collective_kind,
    timeline,
)
from sim.trace.readers import wire
from sim.trace.readers.columns import Columns, Names
from sim.trace.readers.container import Member

PICOSECOND = 1e-12
_DERIVED = (
    "XLA Modules",
    "XLA Ops",
    "XLA TraceMe",
    "Steps",
    "Framework",
    "Source",
    "Launch Stats",
    "Step",
    "XLA Op",
)


@dataclass
class _Plane:
    name: str = ""
    lines: list[memoryview] = field(default_factory=list)
    events: dict[int, str] = field(default_factory=dict)


def read(member: Member, issues: Issues) -> list[RankTrace]:
    """One rank per device plane that has events; a file without devices is one rank of host events."""
    try:
        planes = [
            _plane(v)
            for n, k, v in wire.fields(memoryview(member.stream.read()))
            if n == 1 and k == wire.BYTES
        ]
        devices = [p for p in planes if p.name.startswith("/device:") and "CUSTOM" not in p.name]
        ranks = [
            _rank(plane, member.label, issues if i == 0 else Issues()) for i, plane in enumerate(devices)
        ]
    except wire.WireError as error:
        raise InputError("file", "be an XPlane protobuf", str(error), where=member.label) from None
    ranks = [rank for rank in ranks if len(rank.timeline)]
    if not ranks:
        ranks = [_rank(_Plane("host"), member.label, issues)]
        issues.add("no_device_events")
    for rank in ranks:
        rank.issues.add("rank_unknown")
        rank.issues.add("world_size_unknown")
        rank.issues.add("no_steps", int(not rank.steps))
        rank.issues.add("device_unknown")
    return ranks


def _plane(data: memoryview) -> _Plane:
    plane = _Plane()
    for number, kind, value in wire.fields(data):
        if kind != wire.BYTES:
            continue
        if number == 2:
            plane.name = wire.text(value)
        elif number == 3:
            plane.lines.append(value)
        elif number == 4:  # map<int64, XEventMetadata>
            key, name = 0, ""
            for n, _, v in wire.fields(value):
                if n == 1:
                    key = v
                elif n == 2:
                    parts = {m: wire.text(w) for m, k, w in wire.fields(v) if m in (2, 4) and k == wire.BYTES}
                    name = parts.get(2) or parts.get(4, "")
            plane.events[key] = name
    return plane


def _rank(plane: _Plane, label: str, issues: Issues) -> RankTrace:
    table = Columns((), ("start", "duration", "name", "stream"))
    names, streams = Names(), Names()
    count = 0
    origin: int | None = None
    for data in plane.lines:
        line, begin, events = "", 0, []
        for number, kind, value in wire.fields(data):
            if number in (2, 11) and kind == wire.BYTES:
                line = line or wire.text(value)
            elif number == 3:
                begin = value
            elif number == 4:
                events.append(value)
        count += len(events)
        if line.startswith(_DERIVED):
            continue  # the same work again, summed by module or operator
        for event in events:
            parts = {n: v for n, k, v in wire.fields(event) if k == wire.VARINT}
            # Picoseconds since 1970 do not fit 64 bits: relative to the first line.
            origin = begin if origin is None else origin
            start = (begin - origin) * 1000 + wire.signed(parts.get(2, 0))
            if not abs(start) < 2**63 or parts.get(3, 0) >= 2**62:
                issues.add("not_finite_time")
                continue
            table.add(
                start, parts.get(3, 0), names(plane.events.get(parts.get(1, 0), "unknown")), streams(line)
            )
    return _build(table, names.texts(), streams.texts(), count, origin or 0, (plane.name, label), issues)


def _build(
    table: Columns,
    names: tuple[str, ...],
    streams: tuple[str, ...],
    count: int,
    line_origin_ns: int,
    places: tuple[str, str],
    issues: Issues,
) -> RankTrace:
    start, duration, name, stream = (table.integer(n) for n in ("start", "duration", "name", "stream"))
    order = np.lexsort((duration, start))
    start, duration, name, stream = start[order], duration[order], name[order], stream[order]
    origin = int(start[0]) if len(start) else 0
    begin = (start - origin).astype(np.float64) * PICOSECOND
    end = begin + duration * PICOSECOND
    kinds = np.array([_kind(text) for text in names], np.int64)
    kind = kinds[name] if len(name) else np.zeros(0, np.int64)
    spans = timeline(start=begin, end=end, name=name, kind=kind, names=names, stream=stream, streams=streams)
    collectives = tuple(
        Collective(
            collective_kind(names[name[row]]), None, "", "", None, float(begin[row]), float(end[row]), row
        )
        for row in np.flatnonzero(kind == COMMUNICATION).tolist()
    )
    issues.add("collective_without_metadata", len(collectives))
    return RankTrace(
        label=f"{places[1]} > {places[0]}",
        format="xplane",
        timeline=spans,
        num_events=count,
        collectives=collectives,
        issues=issues,
        clock_origin_ns=line_origin_ns + origin // 1000,
    )


def _kind(name: str) -> int:
    if COMMUNICATION_NAME.search(name):
        return COMMUNICATION
    return MEMORY if name.lower().startswith(("memcpy", "memset")) else COMPUTE
