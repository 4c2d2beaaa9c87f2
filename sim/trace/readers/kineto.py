"""Kineto traces (``torch.profiler``): columns of events -> one rank's timeline, steps and collectives."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from sim.trace.model import (
    COMMUNICATION,
    COMMUNICATION_NAME,
    COMPUTE,
    Collective,
    FloatArray,
    HostTable,
    IntArray,
    ProcessGroup,
    RankTrace,
    collective_kind,
    rank_from_name,
    timeline,
)
from sim.trace.readers.chrome import ChromeEvents
from sim.trace.readers.columns import integer
from sim.trace.readers.comm_metadata import CommRecord, parse_groups
from sim.trace.readers.kineto_operators import read_operators

MICROSECOND = 1e-6


def build(events: ChromeEvents, header: dict[str, Any], label: str) -> RankTrace:
    """The rank that a Kineto file describes."""
    issues = events.issues
    issues.add("unknown_category", len(events.span))
    info = header.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    table = _device_table(events)
    names = events.names.texts()
    start, posted = table["start"] * MICROSECOND, table["posted"] * MICROSECOND
    streams = tuple(f"{device}:{stream}" for device, stream in events.streams.index)
    steps = tuple(sorted(events.steps, key=lambda step: step.start))
    rank = RankTrace(
        label=label,
        format="kineto",
        timeline=timeline(
            start=start,
            end=start + table["duration"] * MICROSECOND,
            posted=posted,
            name=table["name"],
            kind=table["kind"],
            names=names,
            stream=table["stream"],
            streams=streams,
        ),
        num_events=events.num_events,
        steps=steps,
        issues=issues,
        clock_origin_ns=_origin(events, header),
        categories=dict(sorted(events.counts.items())),
        correlation=table["correlation"],
    )
    rank.rank, rank.world_size = _identity(info, label, rank)
    rank.backend = info["backend"] if isinstance(info.get("backend"), str) else None
    rank.device, rank.device_memory = _device_name(header, table["device"], rank)
    rank.groups = _groups(info, events.records, rank)
    rank.collectives = _collectives(events, table, names, rank)
    if events.host:
        read_operators(events, rank)
        rank.host = _host_table(events)
    events.operator.drop()
    events.launch.drop()
    if not len(start):
        issues.add("no_device_events")
    if not steps:
        issues.add("no_steps")
    return rank


# ---- device spans ---------------------------------------------------------------------------------------


def _device_table(events: ChromeEvents) -> dict[str, Any]:
    """Device spans in time order with their launch time and thread; findings are counted."""
    issues, device = events.issues, events.device
    start, duration = device.real("start"), device.real("duration")
    columns = {
        n: device.integer(n)
        for n in ("name", "kind", "stream", "device", "correlation", "external", "record")
    }
    issues.add("unordered_events", int((np.diff(start) < 0).sum()))
    order = np.lexsort((columns["stream"], start + duration, start))
    start, duration = start[order], duration[order]
    columns = {name: column[order] for name, column in columns.items()}
    comm_name = np.array([bool(COMMUNICATION_NAME.search(text)) for text in events.names.texts()], bool)
    if len(start):
        communicates = (columns["kind"] == COMPUTE) & comm_name[columns["name"]]
        columns["kind"] = np.where(communicates, COMMUNICATION, columns["kind"])
        rows = np.stack([start, duration, columns["name"], columns["stream"]], axis=1)
        issues.add("duplicate_event", len(rows) - len(np.unique(rows, axis=0)))
    issues.add("zero_length_event", int((duration == 0).sum()))
    issues.add("overlap_on_stream", _overlaps(start, start + duration, columns["stream"]))
    if len(np.unique(columns["device"])) > 1:
        issues.add("several_devices")
    posted, thread = _launches(events, start, columns["correlation"])
    return {"start": start, "duration": duration, "posted": posted, "thread": thread, **columns}


def _overlaps(start: FloatArray, end: FloatArray, stream: IntArray) -> int:
    """Spans that start more than 1 ns before an earlier one on their stream has ended."""
    order = np.lexsort((start, stream))
    start, end, stream = start[order], end[order], stream[order]
    if len(start) < 2:
        return 0
    # The end of everything before on the stream: streams are set so far apart that none reaches the next.
    apart = stream * (float(end.max() - start.min()) + 1.0)
    reached = np.maximum.accumulate(end + apart)
    return int(((stream[1:] == stream[:-1]) & (start[1:] + apart[1:] < reached[:-1] - 1e-3)).sum())


def _launches(events: ChromeEvents, start: FloatArray, correlation: IntArray) -> tuple[FloatArray, IntArray]:
    """Launch time and thread (-1: none) of each device span, joined by correlation."""
    launch, thread = events.launch.real("start"), events.launch.integer("thread")
    key = events.launch.integer("correlation")
    posted, found_thread = start.copy(), np.full(len(start), -1, np.int64)
    if not len(start) or not len(key):
        events.issues.add("launch_missing", len(start))
        return posted, found_thread
    order = np.argsort(key, kind="stable")
    at = np.minimum(np.searchsorted(key[order], correlation), len(key) - 1)
    row = order[at]
    known = (key[row] == correlation) & (correlation >= 0)
    late = known & (launch[row] > start)
    events.issues.add("launch_missing", int((~known).sum()))
    events.issues.add("clock_of_launch_after_start", int(late.sum()))
    posted[known & ~late] = launch[row][known & ~late]
    found_thread[known] = thread[row][known]
    return posted, found_thread


# ---- who this is ----------------------------------------------------------------------------------------


def _origin(events: ChromeEvents, header: dict[str, Any]) -> int:
    """Absolute time of the clock's 0 in ns since 1970: base + the first timestamp."""
    base = header.get("baseTimeNanoseconds")
    return (base if isinstance(base, int) else 0) + events.clock.origin_ns


def _identity(info: dict[str, Any], label: str, rank: RankTrace) -> tuple[int | None, int | None]:
    number, world = integer(info.get("rank")), integer(info.get("world_size"))
    found = number if number >= 0 else None
    if found is None:
        found = rank_from_name(label)
        rank.issues.add("rank_unknown" if found is None else "rank_from_file_name")
    if world <= 0:
        rank.issues.add("world_size_unknown")
    return found, (world if world > 0 else None)


def _device_name(
    header: dict[str, Any], devices: IntArray, rank: RankTrace
) -> tuple[str | None, float | None]:
    """Name and memory of the device that most spans ran on; of the only kind there is if none ran."""
    properties = header.get("deviceProperties", header.get("computeProperties"))
    entries = [e for e in properties if isinstance(e, dict)] if isinstance(properties, list) else []
    by_id = {
        integer(e.get("id")): e["name"]
        for e in entries
        if isinstance(e.get("name"), str) and e["name"].strip()
    }
    used = Counter(devices.tolist()).most_common(1)
    name = by_id.get(used[0][0]) if used else None
    if name is None and len(set(by_id.values())) == 1:
        name = next(iter(by_id.values()))
    if name is None:
        rank.issues.add("device_unknown")
    sizes = (integer(e.get("totalGlobalMem")) for e in entries if e.get("name") == name)
    return name, next((float(size) for size in sizes if size > 0), None)


def _groups(info: dict[str, Any], records: list[CommRecord], rank: RankTrace) -> tuple[ProcessGroup, ...]:
    """Groups of the header, then those that only events mention."""
    groups = {group.name: group for group in parse_groups(info.get("pg_config"), rank.world_size)}
    stated = integer(info.get("pg_count"))
    if groups and stated >= 0 and stated != len(groups):
        rank.issues.add("group_count_mismatch")
    for record in records:
        known = groups.get(record.group)
        if record.group and (known is None or (not known.ranks and record.group_ranks)):
            backend = known.backend if known else ""
            groups[record.group] = ProcessGroup(
                record.group, record.description, backend, record.group_ranks, record.group_size
            )
    return tuple(groups.values())


# ---- collectives ----------------------------------------------------------------------------------------


def _collectives(
    events: ChromeEvents, table: dict[str, Any], names: tuple[str, ...], rank: RankTrace
) -> tuple[Collective, ...]:
    issues = rank.issues
    issued = _issued(events)
    rows = np.flatnonzero(table["kind"] == COMMUNICATION)
    owner = _owners(events, table, rows, issued)
    result: list[Collective] = []
    used: set[int] = set()
    for row, issue in zip(rows.tolist(), owner, strict=True):
        record = events.records[table["record"][row]] if table["record"][row] >= 0 else None
        if issue >= 0:
            used.add(issue)
            record = record or issued["record"][issue]
        start, length = float(table["start"][row]), float(table["duration"][row])
        result.append(_collective(record, names[table["name"][row]], start, length, row, rank))
    for issue, record in enumerate(issued["record"]):
        if issue not in used:
            issues.add("collective_without_kernel")
            start, length = float(issued["start"][issue]), float(issued["duration"][issue])
            result.append(_collective(record, "", start, length, -1, rank))
    return tuple(sorted(result, key=lambda collective: (collective.start, collective.row)))


def _collective(
    record: CommRecord | None, name: str, start: float, duration: float, row: int, rank: RankTrace
) -> Collective:
    issues = rank.issues
    begin, end = start * MICROSECOND, (start + duration) * MICROSECOND
    if record is None:
        issues.add("collective_without_metadata")
        kind = collective_kind(name)
        if kind == "unknown":
            issues.add("collective_kind_unknown")
        return Collective(kind, None, "", "", None, begin, end, row)
    if not record.group:
        issues.add("collective_without_group")
    size = record.size(rank.world_size)
    if size is None and record.kind != "barrier":
        issues.add("collective_without_size")
    return Collective(
        record.kind,
        size,
        record.dtype,
        record.group,
        record.group_size,
        begin,
        end,
        row,
        record.sequence,
        record.peer,
    )


def _issued(events: ChromeEvents) -> dict[str, Any]:
    """Host records of collectives but waits: ``record_param_comms`` with the annotation inside it."""
    issue = events.issue
    start, duration, thread = issue.real("start"), issue.real("duration"), issue.integer("thread")
    record, external, annotation = (issue.integer(n) for n in ("record", "external", "annotation"))
    order = np.lexsort((annotation, -duration, start, thread))
    kept: list[int] = []
    records: list[CommRecord] = []
    outer = -1
    pending = -1  # a record_param_comms that says nothing itself: a wait, or it has an annotation inside
    for row in order.tolist():
        inside = (
            outer >= 0 and thread[row] == thread[outer] and start[row] < start[outer] + duration[outer] + 1e-3
        )
        if annotation[row] and inside:
            if pending == outer:
                kept.append(outer)
                records.append(events.records[record[row]])
                pending = -1
            continue
        if not annotation[row]:
            if inside and record[row] < 0:
                continue
            outer = row
            pending = row if record[row] < 0 else -1
        if record[row] >= 0:
            kept.append(row)
            records.append(events.records[record[row]])
    at = np.array(kept, np.int64)
    return {
        "start": start[at],
        "duration": duration[at],
        "thread": thread[at],
        "external": external[at],
        "record": records,
    }


def _owners(events: ChromeEvents, table: dict[str, Any], rows: IntArray, issued: dict[str, Any]) -> list[int]:
    """Issue of each communication kernel: the one its launch lies in, else the one with its External id."""
    posted, thread, external = table["posted"][rows], table["thread"][rows], table["external"][rows]
    start, end = issued["start"], issued["start"] + issued["duration"]
    by_external = {int(e): i for i, e in enumerate(issued["external"]) if e >= 0}
    owner = [-1] * len(rows)
    for number in np.unique(issued["thread"]).tolist():
        mine = np.flatnonzero(issued["thread"] == number)
        mine = mine[np.argsort(start[mine], kind="stable")]
        for k in np.flatnonzero(thread == number).tolist():
            at = int(np.searchsorted(start[mine], posted[k], "right")) - 1
            if at >= 0 and posted[k] <= end[mine[at]] + 1e-3:
                owner[k] = int(mine[at])
    return [by_external.get(int(external[k]), -1) if found < 0 else found for k, found in enumerate(owner)]


def _host_table(events: ChromeEvents) -> HostTable:
    """Operators and runtime calls as one table."""
    op, call = events.operator, events.launch
    count, calls = len(op), len(call)
    start = np.concatenate([op.real("start"), call.real("start")]) * MICROSECOND
    length = np.concatenate([op.real("duration"), call.real("duration")]) * MICROSECOND
    none = np.full(calls, -1, np.int64)
    number = {
        name: np.concatenate([op.integer(name), call.integer(name)]).astype(np.int32)
        for name in ("name", "thread")
    }
    return HostTable(
        **number,
        start=start,
        end=start + length,
        kind=np.repeat(np.array([0, 1], np.int8), [count, calls]),
        correlation=np.concatenate([np.full(count, -1, np.int64), call.integer("correlation")]),
        sequence=np.concatenate([op.integer("sequence"), none]),
        record_function=np.concatenate([op.integer("record_function"), none]),
        names=events.names.texts(),
        threads=tuple(f"{pid}:{tid}" for pid, tid in events.threads.index),
    )
