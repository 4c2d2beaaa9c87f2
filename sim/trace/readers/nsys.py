"""Nsight Systems: GPU trace as CSV (reports of ``nsys stats``, Enter/Leave rows) and the SQLite export."""

from __future__ import annotations

import csv
import io
import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

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
    rank_from_name,
    timeline,
)
from sim.trace.readers.columns import Columns, Names
from sim.trace.readers.container import Member

NANOSECOND = 1e-9
_ENTER_LEAVE = {"Name", "Event Type", "Timestamp (ns)"}


class _Spans:
    """Device spans in nanoseconds after the first one."""

    def __init__(self, issues: Issues) -> None:
        self.issues = issues
        self.names, self.streams = Names(), Names()
        self.columns = Columns((), ("start", "duration", "name", "kind", "stream"))
        self.origin: int | None = None

    def add(self, name: str, stream: str, start: int, duration: int, memory: bool) -> None:
        if duration < 0:
            self.issues.add("negative_duration")
            duration = 0
        if not -(2**62) < start < 2**62 or duration >= 2**62:
            self.issues.add("not_finite_time")
            return
        if self.origin is None:
            self.origin = start
        kind = MEMORY if memory else (COMMUNICATION if COMMUNICATION_NAME.search(name) else COMPUTE)
        self.columns.add(start - self.origin, duration, self.names(name), kind, self.streams(stream))

    def rank(self, label: str, form: str, num_events: int, device: str | None) -> RankTrace:
        start, duration, name, kind, stream = (
            self.columns.integer(n) for n in ("start", "duration", "name", "kind", "stream")
        )
        order = np.lexsort((duration, start))
        start, duration, name, kind, stream = (c[order] for c in (start, duration, name, kind, stream))
        names, begin = self.names.texts(), start.astype(np.float64) * NANOSECOND
        end = (start + duration).astype(np.float64) * NANOSECOND
        rank = RankTrace(
            label=label,
            format=form,
            timeline=timeline(
                start=begin,
                end=end,
                name=name,
                kind=kind,
                names=names,
                stream=stream,
                streams=self.streams.texts(),
            ),
            num_events=num_events,
            rank=rank_from_name(label),
            device=device,
            issues=self.issues,
            clock_origin_ns=self.origin or 0,
        )
        rank.collectives = tuple(
            Collective(
                collective_kind(names[name[row]]), None, "", "", None, float(begin[row]), float(end[row]), row
            )
            for row in np.flatnonzero(kind == COMMUNICATION).tolist()
        )
        issues = self.issues
        issues.add("collective_without_metadata", len(rank.collectives))
        issues.add("rank_unknown" if rank.rank is None else "rank_from_file_name")
        issues.add("world_size_unknown")
        issues.add("device_unknown", int(device is None))
        issues.add("no_steps")
        issues.add("no_device_events", int(not len(start)))
        return rank


def read_csv(member: Member, issues: Issues) -> list[RankTrace]:
    """A CSV GPU trace."""
    source = io.TextIOWrapper(member.stream, encoding="utf-8-sig", errors="replace", newline="")
    rows = csv.reader(_no_nul(source))
    header = next((row for row in rows if len(row) > 2), None)
    if header is None:
        raise InputError("file", "have a header row", member.label)
    spans = _Spans(issues)
    if set(header) >= _ENTER_LEAVE:
        count = _enter_leave(rows, header, spans)
        return [spans.rank(member.label, "nsys-csv", count, None)]
    count, device = _report(rows, header, spans, member.label)
    return [spans.rank(member.label, "nsys-csv", count, device)]


def _no_nul(lines: Iterable[str]) -> Iterable[str]:
    return (line.replace("\0", "") for line in lines)


def _cells(rows: Any, header: list[str], issues: Issues) -> Iterable[dict[str, str]]:
    """Rows as dictionaries; short and broken ones are counted."""
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error:
            issues.add("bad_row")
            continue
        if not row:
            continue
        if len(row) < len(header):
            issues.add("bad_row")
            continue
        yield dict(zip(header, row, strict=False))


def _enter_leave(rows: Any, header: list[str], spans: _Spans) -> int:
    """Enter and Leave rows, matched by name and stream, innermost first."""
    open_spans: dict[tuple[str, str], list[int]] = defaultdict(list)
    count = 0
    for cell in _cells(rows, header, spans.issues):
        count += 1
        try:
            time = int(float(cell["Timestamp (ns)"]))
        except (ValueError, OverflowError):
            spans.issues.add("bad_row")
            continue
        key = (cell["Name"], cell.get("streamId", ""))
        if cell["Event Type"] == "Enter":
            open_spans[key].append(time)
        elif not open_spans[key]:
            spans.issues.add("end_without_begin")
        else:
            begin = open_spans[key].pop()
            memory = cell.get("type", "kernel").lower() not in ("kernel", "")
            spans.add(cell["Name"], cell.get("streamId", ""), begin, time - begin, memory)
    spans.issues.add("unclosed_begin", sum(len(stack) for stack in open_spans.values()))
    return count


_UNITS = {"ns": 1.0, "us": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9}


def _report(rows: Any, header: list[str], spans: _Spans, label: str) -> tuple[int, str | None]:
    """``nsys stats --report cuda_gpu_trace``: Start (ns), Duration (ns), ..., Device, Strm, Name."""
    start, duration = (_timed_column(header, word) for word in ("Start", "Duration"))
    stream = next((c for c in ("Strm", "Stream", "StreamId") if c in header), None)
    if start is None or duration is None or "Name" not in header:
        raise InputError("columns", "hold Start, Duration and Name", ", ".join(header)[:120], where=label)
    count, devices = 0, set()
    for cell in _cells(rows, header, spans.issues):
        count += 1
        try:
            begin = round(float(cell[start[0]].replace(",", "")) * start[1])
            length = round(float(cell[duration[0]].replace(",", "")) * duration[1])
        except (ValueError, OverflowError):
            spans.issues.add("bad_row")
            continue
        name = cell["Name"]
        memory = name.lower().startswith(("[cuda memcpy", "[cuda memset"))
        spans.add(name, cell[stream] if stream else "", begin, length, memory)
        if cell.get("Device"):
            devices.add(cell["Device"].rsplit(" (", 1)[0])
    return count, (devices.pop() if len(devices) == 1 else None)


def _timed_column(header: list[str], word: str) -> tuple[str, float] | None:
    for column in header:
        if column.startswith(f"{word} (") or column == word:
            unit = column[len(word) :].strip(" ()") or "ns"
            if unit in _UNITS:
                return column, _UNITS[unit]
    return None


def read_sqlite(member: Member, issues: Issues) -> list[RankTrace]:
    """The SQLite export of ``nsys export``."""
    database = _connect(member)
    try:
        tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "CUPTI_ACTIVITY_KIND_KERNEL" not in tables:
            raise InputError("database", "hold the table CUPTI_ACTIVITY_KIND_KERNEL", member.label)
        spans, count = _Spans(issues), 0
        columns = {row[1] for row in database.execute("PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)")}
        text = "demangledName" if "demangledName" in columns else "shortName"
        join = "LEFT JOIN StringIds ON StringIds.id" if "StringIds" in tables else ""
        name, tail = ("StringIds.value", f"{join} = k.{text}") if join else (f"k.{text}", "")
        query = f"SELECT {name}, k.streamId, k.start, k.end FROM CUPTI_ACTIVITY_KIND_KERNEL k {tail}"
        for row in database.execute(query):
            count += 1
            _database_row(row, spans, memory=False)
        for table, label in (("MEMCPY", "[CUDA memcpy]"), ("MEMSET", "[CUDA memset]")):
            if f"CUPTI_ACTIVITY_KIND_{table}" in tables:
                for row in database.execute(
                    f"SELECT '{label}', streamId, start, end FROM CUPTI_ACTIVITY_KIND_{table}"
                ):
                    count += 1
                    _database_row(row, spans, memory=True)
        return [spans.rank(member.label, "nsys-sqlite", count, _gpu_name(database, tables))]
    except sqlite3.Error as error:
        raise InputError(
            "file", "be a readable SQLite database", str(error)[:100], where=member.label
        ) from None
    finally:
        database.close()


def _connect(member: Member) -> sqlite3.Connection:
    if member.path is not None:
        return sqlite3.connect(f"{member.path.resolve().as_uri()}?mode=ro", uri=True)
    database = sqlite3.connect(":memory:")
    try:
        database.deserialize(member.stream.read())
    except (sqlite3.Error, OverflowError) as error:
        raise InputError(
            "file", "be a readable SQLite database", str(error)[:100], where=member.label
        ) from None
    return database


def _database_row(row: tuple[Any, ...], spans: _Spans, *, memory: bool) -> None:
    name, stream, start, end = row
    if not isinstance(start, int) or not isinstance(end, int):
        spans.issues.add("bad_row")
        return
    spans.add(str(name), str(stream), start, end - start, memory)


def _gpu_name(database: sqlite3.Connection, tables: set[str]) -> str | None:
    if "TARGET_INFO_GPU" not in tables:
        return None
    try:
        names = {str(row[0]) for row in database.execute("SELECT DISTINCT name FROM TARGET_INFO_GPU")}
    except sqlite3.Error:
        return None
    return names.pop() if len(names) == 1 else None
