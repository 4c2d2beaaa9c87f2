"""Nsight Systems: traces as CSV (reports of ``nsys stats``, Enter/Leave rows) and the SQLite export."""

from __future__ import annotations

import csv
import io
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from itertools import takewhile
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
    IntArray,
    RankTrace,
    collective_kind,
    rank_from_name,
    timeline,
)
from sim.trace.readers.columns import Columns, Names
from sim.trace.readers.container import Member
from sim.trace.readers.nsys_host import HostEvents, read_database, read_reports
from sim.trace.readers.ranges import iterations

NANOSECOND = 1e-9
_ENTER_LEAVE = {"Name", "Event Type", "Timestamp (ns)"}
#: Columns that only reports of the host have: NVTX ranges, calls of the CUDA runtime.
_HOST = {"RangeId", "CorrID"}
#: Format of such a report that stands alone.
HOST_REPORT = "nsys-host-csv"


class _Spans:
    """Device spans in nanoseconds after the first one, and the name of each device that ran some."""

    def __init__(self, issues: Issues) -> None:
        self.issues = issues
        self.names, self.streams, self.devices = Names(), Names(), Names()
        self.columns = Columns((), ("start", "duration", "correlation"), ("name", "kind", "stream", "device"))
        self.host = HostEvents(issues)
        self.origin: int | None = None
        self.device_names: dict[str, str] = {}

    def add(
        self,
        name: str,
        stream: str,
        start: int,
        duration: int,
        memory: bool,
        device: str = "",
        correlation: int = -1,
    ) -> None:
        if duration < 0:
            self.issues.add("negative_duration")
            duration = 0
        if not -(2**62) < start < 2**62 or duration >= 2**62:
            self.issues.add("not_finite_time")
            return
        if self.origin is None:
            self.origin = start
        kind = MEMORY if memory else (COMMUNICATION if COMMUNICATION_NAME.search(name) else COMPUTE)
        place = (self.names(name), kind, self.streams(stream), self.devices(device))
        self.columns.add(start - self.origin, duration, correlation, *place)

    def ranks(self, label: str, form: str, num_events: int, marker: str) -> list[RankTrace]:
        """One rank for each device: a report of a node holds all that its processes used."""
        devices, self.marker = self.devices.texts(), marker
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
        start, duration, name, kind, stream, place, launched = (
            self.columns.integer(n)
            for n in ("start", "duration", "name", "kind", "stream", "device", "correlation")
        )
        order = np.lexsort((duration, start))
        order = order if only is None else order[place[order] == only]
        start, duration, name, kind, stream, launched = (
            c[order] for c in (start, duration, name, kind, stream, launched)
        )
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
        issues.add("no_device_events", int(not len(start)))
        attach(rank, self.host, launched, self.marker)
        return rank


def attach(rank: RankTrace, host: HostEvents, launched: IntArray, marker: str) -> None:
    """Give a rank its steps, launches and waits.

    Parameters
    ----------
    rank : RankTrace
    host : HostEvents
        Of the whole report.
    launched : ndarray of int
        Correlation of each span of the rank, -1 where unknown.
    marker : str
        How the names of steps begin.
    """
    rank.correlation = launched
    rank.steps = iterations(host.of_process(host.processes_of(launched)), marker, rank.clock_origin_ns)
    rank.issues.add("no_steps", int(not rank.steps))
    rank.host = host.table(launched, rank.clock_origin_ns)
    if rank.host is None or not len(launched):
        return
    order = np.argsort(rank.host.correlation, kind="stable")
    known = rank.host.correlation[order]
    at = np.minimum(np.searchsorted(known, launched), len(known) - 1)
    posted, start = rank.host.start[order[at]], rank.timeline["start"]
    found = (known[at] == launched) & (launched >= 0) & (posted <= start)
    for column in ("posted", "ready"):
        rank.timeline.columns[column] = np.where(found, posted, start)


def read_csv(member: Member, issues: Issues, marker: str = "") -> list[RankTrace]:
    """A CSV GPU trace; a report of ranges or runtime calls becomes a rank without spans (see ``merge``)."""
    source = io.TextIOWrapper(member.stream, encoding="utf-8-sig", errors="replace", newline="")
    rows = csv.reader(_no_nul(source))
    # What the tool says about itself may stand before the header.
    header = next(([cell.strip() for cell in row] for row in rows if _is_header(row)), None)
    if header is None:
        raise InputError("file", "have a header row", member.label)
    spans = _Spans(issues)
    if _HOST & set(header):
        timed = (_timed_column(header, "Start"), _timed_column(header, "Duration"))
        count = read_reports(_cells(rows, header, issues), timed, spans.host)
        nothing = timeline(start=[], end=[], name=[], kind=[], names=())
        rank = RankTrace(member.label, HOST_REPORT, nothing, num_events=count, issues=issues)
        rank.reported = spans.host
        return [rank]
    read_rows = _enter_leave if set(header) >= _ENTER_LEAVE else _report
    count = read_rows(rows, header, spans)
    return spans.ranks(member.label, "nsys-csv", count, marker)


def join_reports(ranks: list[RankTrace], marker: str) -> list[RankTrace]:
    """Join reports of the host with the GPU traces of the same recording, those whose names begin alike.

    Returns
    -------
    list of RankTrace
        Without the reports that found their GPU trace.
    """
    devices = [rank for rank in ranks if rank.format == "nsys-csv"]
    reports = [rank for rank in ranks if rank.format == HOST_REPORT]
    if not devices or not reports:
        return ranks
    joined: dict[str, HostEvents] = {}
    for report in reports:
        assert report.reported is not None
        label = max((device.label for device in devices), key=partial(_alike, report.label))
        joined.setdefault(label, HostEvents(Issues())).extend(report.reported)
    for rank in devices:
        if rank.label in joined and rank.correlation is not None:
            rank.issues.counts.pop("no_steps", None)
            attach(rank, joined[rank.label], rank.correlation, marker)
            rank.num_events += sum(r.num_events for r in reports if len(devices) == 1)
    devices[0].issues.merge(reports[0].issues)
    return [rank for rank in ranks if rank.format != HOST_REPORT]


def _alike(one: str, other: str) -> int:
    """Characters with which both begin."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


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
            kind = cell.get("type", "kernel").lower()
            if kind == "nvtx":
                spans.host.range(cell["Name"], begin, time, "")
            else:
                memory = kind not in ("kernel", "")
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
        launch = cell.get("CorrId", "")
        correlation = int(launch) if launch.isdigit() and len(launch) < 19 else -1
        spans.add(name, cell[stream] if stream else "", begin, length, memory, number, correlation)
    return count


def _timed_column(header: list[str], word: str) -> tuple[str, float] | None:
    for column in header:
        match = re.fullmatch(rf"{word}\s*(?:\(\s*(\w+)\s*\))?", column)
        if match and (match[1] or "ns") in _UNITS:
            return column, _UNITS[match[1] or "ns"]
    return None


def read_sqlite(member: Member, issues: Issues, marker: str = "") -> list[RankTrace]:
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
                more = f"{_device(database, name)}, {_launch(database, name)}"
                query = f"SELECT '{label}', streamId, start, end, {more} FROM {name}"
                count += sum(_database_row(row, spans, memory=True) for row in database.execute(query))
        spans.host = read_database(database, tables, issues)
        return spans.ranks(member.label, "nsys-sqlite", count, marker)
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
    """The query for kernels: name, stream, start, end, device, launch."""
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    text = "demangledName" if "demangledName" in _columns(database, table) else "shortName"
    join = f"LEFT JOIN StringIds ON StringIds.id = k.{text}" if "StringIds" in tables else ""
    name = "StringIds.value" if join else f"k.{text}"
    more = f"{_device(database, table)}, {_launch(database, table)}"
    return f"SELECT {name}, k.streamId, k.start, k.end, {more} FROM {table} k {join}"


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in database.execute(f"PRAGMA table_info({table})")}


def _device(database: sqlite3.Connection, table: str) -> str:
    """The column with the device's number; none in old exports."""
    return "deviceId" if "deviceId" in _columns(database, table) else "''"


def _launch(database: sqlite3.Connection, table: str) -> str:
    """The column that joins a span with its launch."""
    return "correlationId" if "correlationId" in _columns(database, table) else "-1"


def _database_row(row: tuple[Any, ...], spans: _Spans, *, memory: bool) -> int:
    """Take in a row; 1, so that rows can be counted."""
    name, stream, start, end, device, launch = row
    if isinstance(start, int) and isinstance(end, int):
        correlation = launch if isinstance(launch, int) else -1
        spans.add(str(name), str(stream), start, end - start, memory, str(device), correlation)
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
