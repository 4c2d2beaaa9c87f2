"""Nsight Systems: GPU trace as CSV (reports of ``nsys stats``, Enter/Leave rows) and the SQLite export."""

from __future__ import annotations

import csv
import io
import re
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
    """Device spans in nanoseconds after the first one, and the name of each device that ran some."""

    def __init__(self, issues: Issues) -> None:
        self.issues = issues
        self.names, self.streams, self.devices = Names(), Names(), Names()
        self.columns = Columns((), ("start", "duration", "name", "kind", "stream", "device"))
        self.origin: int | None = None
        self.device_names: dict[str, str] = {}

    def add(self, name: str, stream: str, start: int, duration: int, memory: bool, device: str = "") -> None:
        if duration < 0:
            self.issues.add("negative_duration")
            duration = 0
        if not -(2**62) < start < 2**62 or duration >= 2**62:
            self.issues.add("not_finite_time")
            return
        if self.origin is None:
            self.origin = start
        kind = MEMORY if memory else (COMMUNICATION if COMMUNICATION_NAME.search(name) else COMPUTE)
        row = (start - self.origin, duration, self.names(name), kind, self.streams(stream))
        self.columns.add(*row, self.devices(device))

    def ranks(self, label: str, form: str, num_events: int) -> list[RankTrace]:
        """One rank for each device: a report of a node holds all that its processes used."""
        devices = self.devices.texts()
        if len(devices) < 2:
            return [self._rank(label, form, num_events, None, devices[0] if devices else "")]
        self.issues.add("rank_of_device", len(devices))
        order = sorted(range(len(devices)), key=lambda d: (len(devices[d]), devices[d]))
        found = []
        for place, device in enumerate(order):
            rank = self._rank(label, form, num_events if not place else 0, device, devices[device])
            number = devices[device]
            rank.rank = int(number) if number.isdigit() and len(number) < 6 else place
            found.append(rank)
            self.issues = Issues()
        return found

    def _rank(
        self, label: str, form: str, num_events: int, only: int | None, device_number: str
    ) -> RankTrace:
        start, duration, name, kind, stream, place = (
            self.columns.integer(n) for n in ("start", "duration", "name", "kind", "stream", "device")
        )
        order = np.lexsort((duration, start))
        order = order if only is None else order[place[order] == only]
        start, duration, name, kind, stream = (c[order] for c in (start, duration, name, kind, stream))
        known = set(self.device_names.values())
        device = self.device_names.get(device_number) or (known.pop() if len(known) == 1 else None)
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
        if only is None:
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
    # What the tool says about itself may stand before the header.
    header = next(([cell.strip() for cell in row] for row in rows if _is_header(row)), None)
    if header is None:
        raise InputError("file", "have a header row", member.label)
    spans = _Spans(issues)
    read_rows = _enter_leave if set(header) >= _ENTER_LEAVE else _report
    count = read_rows(rows, header, spans)
    return spans.ranks(member.label, "nsys-csv", count)


def _is_header(row: list[str]) -> bool:
    cells = [cell.strip() for cell in row]
    timed = all(_timed_column(cells, word) is not None for word in ("Start", "Duration"))
    return set(cells) >= _ENTER_LEAVE or ("Name" in cells and timed)


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


_UNITS = {
    "ns": 1.0,
    "nsec": 1.0,
    "us": 1e3,
    "μs": 1e3,
    "usec": 1e3,
    "ms": 1e6,
    "msec": 1e6,
    "s": 1e9,
    "sec": 1e9,
}


def _report(rows: Any, header: list[str], spans: _Spans) -> int:
    """``nsys stats --report cuda_gpu_trace`` and older ones: Start, Duration, ..., Device, Strm, Name."""
    timed = [_timed_column(header, word) for word in ("Start", "Duration")]
    columns, units = [c for c, _ in filter(None, timed)], [u for _, u in filter(None, timed)]
    stream = next((c for c in ("Strm", "Stream", "StreamId") if c in header), None)
    count = 0
    for cell in _cells(rows, header, spans.issues):
        words = [cell[column].strip() for column in columns]
        if not count and all(word in _UNITS for word in words):  # nvprof: the units are the second row
            units = [_UNITS[word] for word in words]
            continue
        count += 1
        try:
            begin, length = (round(float(w.replace(",", "")) * u) for w, u in zip(words, units, strict=True))
        except (ValueError, OverflowError):
            spans.issues.add("bad_row")
            continue
        name, device = cell["Name"], cell.get("Device") or ""
        memory = name.lower().startswith(("[cuda memcpy", "[cuda memset"))
        # "NVIDIA A100 (0)": several devices of one name are told apart by the number.
        number = device.rpartition("(")[2].rstrip(") ") if device.endswith(")") else device
        if device:
            spans.device_names[number] = device.rpartition(" (")[0] or device
        spans.add(name, cell[stream] if stream else "", begin, length, memory, number)
    return count


def _timed_column(header: list[str], word: str) -> tuple[str, float] | None:
    for column in header:
        match = re.fullmatch(rf"{word}\s*(?:\(\s*(\w+)\s*\))?", column)
        if match and (match[1] or "ns") in _UNITS:
            return column, _UNITS[match[1] or "ns"]
    return None


def read_sqlite(member: Member, issues: Issues) -> list[RankTrace]:
    """The SQLite export of ``nsys export``."""
    database = _connect(member)
    try:
        tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "CUPTI_ACTIVITY_KIND_KERNEL" not in tables:
            raise InputError("database", "hold the table CUPTI_ACTIVITY_KIND_KERNEL", member.label)
        spans = _Spans(issues)
        spans.device_names = _gpu_names(database, tables)
        count = sum(
            _database_row(row, spans, memory=False) for row in database.execute(_kernels(database, tables))
        )
        for table, label in (("MEMCPY", "[CUDA memcpy]"), ("MEMSET", "[CUDA memset]")):
            if (name := f"CUPTI_ACTIVITY_KIND_{table}") in tables:
                query = f"SELECT '{label}', streamId, start, end, {_device(database, name)} FROM {name}"
                count += sum(_database_row(row, spans, memory=True) for row in database.execute(query))
        return spans.ranks(member.label, "nsys-sqlite", count)
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


def _kernels(database: sqlite3.Connection, tables: set[str]) -> str:
    """The query for kernels: name, stream, start, end, device."""
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    text = "demangledName" if "demangledName" in _columns(database, table) else "shortName"
    join = f"LEFT JOIN StringIds ON StringIds.id = k.{text}" if "StringIds" in tables else ""
    name = "StringIds.value" if join else f"k.{text}"
    return f"SELECT {name}, k.streamId, k.start, k.end, {_device(database, table)} FROM {table} k {join}"


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in database.execute(f"PRAGMA table_info({table})")}


def _device(database: sqlite3.Connection, table: str) -> str:
    """The column with the device's number; none in old exports."""
    return "deviceId" if "deviceId" in _columns(database, table) else "''"


def _database_row(row: tuple[Any, ...], spans: _Spans, *, memory: bool) -> int:
    """Take in a row; 1, so that rows can be counted."""
    name, stream, start, end, device = row
    if isinstance(start, int) and isinstance(end, int):
        spans.add(str(name), str(stream), start, end - start, memory, str(device))
    else:
        spans.issues.add("bad_row")
    return 1


def _gpu_names(database: sqlite3.Connection, tables: set[str]) -> dict[str, str]:
    """Name of each device by its number, or by a running one where the export gives none."""
    if "TARGET_INFO_GPU" not in tables:
        return {}
    columns = _columns(database, "TARGET_INFO_GPU")
    number = next((c for c in ("cuDevice", "id") if c in columns), "rowid - 1")
    try:
        rows = database.execute(f"SELECT {number}, name FROM TARGET_INFO_GPU").fetchall()
    except sqlite3.Error:
        return {}
    return {str(key): str(name) for key, name in rows}
