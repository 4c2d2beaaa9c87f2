"""What Nsight Systems recorded on the host: NVTX ranges and CUDA runtime calls, SQLite or CSV."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sim.trace.issues import Issues
from sim.trace.model import HostTable, IntArray
from sim.trace.readers.columns import Columns, Names
from sim.trace.readers.ranges import Range

_PUSH_POP, _START_END = 59, 60  # eventType of NVTX ranges
_WHOLE = 1 << 62


@dataclass
class HostEvents:
    """Ranges and runtime calls in nanoseconds; ``process`` of each, "" where it is not stated."""

    issues: Issues
    ranges: list[tuple[str, Range]] = field(default_factory=list)
    names: Names = field(default_factory=Names)
    threads: Names = field(default_factory=Names)
    calls: Columns = field(
        default_factory=lambda: Columns((), ("start", "end", "correlation"), ("name", "thread"))
    )

    def range(self, text: Any, start: Any, end: Any, process: str) -> None:
        """One NVTX range; unfinished ones are counted."""
        if not isinstance(start, int) or not isinstance(end, int):
            self.issues.add("unclosed_begin")
        elif isinstance(text, str) and -_WHOLE < start <= end < _WHOLE:
            self.ranges.append((process, (text, start, end)))

    def call(self, name: str, start: int, end: int, correlation: int, thread: str) -> None:
        """One call of the CUDA runtime or driver."""
        if -_WHOLE < start <= end < _WHOLE:
            self.calls.add(start, end, correlation, self.names(name), self.threads(thread))

    def extend(self, other: HostEvents) -> None:
        """Add what another report of the same recording holds."""
        self.ranges += other.ranges
        names, threads, calls = other.names.texts(), other.threads.texts(), other.calls
        columns = [calls.integer(n).tolist() for n in ("start", "end", "correlation", "name", "thread")]
        for start, end, correlation, name, thread in zip(*columns, strict=True):
            self.call(names[name], start, end, correlation, threads[thread])

    def of_process(self, processes: set[str]) -> list[Range]:
        """Ranges of some processes, of all where none is known."""
        known = [found for process, found in self.ranges if process in processes]
        return known or [found for _, found in self.ranges]

    def table(self, launched: IntArray, origin: int) -> HostTable | None:
        """Calls of the threads that launched something of ``launched`` (correlations), as a host table."""
        correlation, thread = self.calls.integer("correlation"), self.calls.integer("thread")
        mine = np.isin(thread, np.unique(thread[np.isin(correlation, launched[launched >= 0])]))
        if not mine.any():
            return None
        start, end = self.calls.integer("start")[mine], self.calls.integer("end")[mine]
        none = np.full(len(start), -1, np.int64)
        return HostTable(
            name=self.calls.integer("name")[mine].astype(np.int32),
            thread=thread[mine].astype(np.int32),
            start=(start - origin).astype(np.float64) * 1e-9,
            end=(end - origin).astype(np.float64) * 1e-9,
            kind=np.ones(len(start), np.int8),
            correlation=correlation[mine],
            sequence=none,
            record_function=none,
            names=self.names.texts(),
            threads=self.threads.texts(),
        )

    def processes_of(self, launched: IntArray) -> set[str]:
        """Processes whose threads launched something of ``launched``."""
        mine = np.isin(self.calls.integer("correlation"), launched[launched >= 0])
        texts = self.threads.texts()
        return {texts[t].partition(":")[0] for t in np.unique(self.calls.integer("thread")[mine]).tolist()}


def process_of(thread: Any) -> str:
    """Process in Nsight's ``globalTid``: bits 24 to 47."""
    return str((thread >> 24) & 0xFFFFFF) if isinstance(thread, int) else ""


def read_database(database: sqlite3.Connection, tables: set[str], issues: Issues) -> HostEvents:
    """Ranges and calls of an export."""
    found = HostEvents(issues)
    strings = "StringIds" in tables
    if "NVTX_EVENTS" in tables:
        columns = {row[1] for row in database.execute("PRAGMA table_info(NVTX_EVENTS)")}
        text = "e.text" if "text" in columns else "NULL"
        if strings and "textId" in columns:
            text = f"COALESCE({text}, (SELECT value FROM StringIds WHERE id = e.textId))"
        kind = "eventType" if "eventType" in columns else str(_PUSH_POP)
        thread = "globalTid" if "globalTid" in columns else "NULL"
        query = (
            f'SELECT {text}, e.start, e."end", {thread} FROM NVTX_EVENTS e '
            f"WHERE {kind} IN ({_PUSH_POP}, {_START_END})"
        )
        for words, start, end, tid in database.execute(query):
            found.range(words, start, end, process_of(tid))
    for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"):
        if table in tables:
            _read_calls(database, table, strings, found)
    return found


def _read_calls(database: sqlite3.Connection, table: str, strings: bool, found: HostEvents) -> None:
    columns = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
    if not {"start", "end", "correlationId"} <= columns:
        return
    thread = "globalTid" if "globalTid" in columns else "0"
    name = "NULL"
    if strings and "nameId" in columns:
        name = "(SELECT value FROM StringIds WHERE id = nameId)"
    for words, start, end, correlation, tid in database.execute(
        f'SELECT {name}, start, "end", correlationId, {thread} FROM {table}'
    ):
        if all(isinstance(value, int) for value in (start, end, correlation)):
            found.call(str(words or ""), start, end, correlation, f"{process_of(tid)}:{tid}")
        else:
            found.issues.add("bad_row")


def read_reports(rows: Iterable[dict[str, str]], timed: tuple[Any, Any], found: HostEvents) -> int:
    """Rows of ``nsys stats --report nvtx_pushpop_trace`` or ``cuda_api_trace``; how many there were.

    Parameters
    ----------
    rows : iterable of dict
    timed : (start, duration)
        Column and nanoseconds per unit of each.
    found : HostEvents
        Where they go.
    """
    (first, first_unit), (length, length_unit) = timed
    count = 0
    for cell in rows:
        count += 1
        try:
            start = round(float(cell[first].replace(",", "")) * first_unit)
            end = start + round(float(cell[length].replace(",", "")) * length_unit)
            correlation = int(cell["CorrID"]) if cell.get("CorrID") else -1
        except (ValueError, OverflowError):
            found.issues.add("bad_row")
            continue
        process = cell.get("PID") or cell.get("Pid") or ""
        if "CorrID" in cell:
            tid = cell.get("TID") or cell.get("Tid") or ""
            found.call(cell["Name"], start, end, correlation, f"{process}:{tid}")
        else:
            # Nsight writes the domain and a colon before the text.
            text = cell["Name"]
            found.range(text[1:] if text.startswith(":") else text, start, end, process)
    return count
