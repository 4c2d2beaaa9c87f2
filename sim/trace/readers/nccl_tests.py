"""Logs of nccl-tests and rccl-tests: tables of size and time among whatever else a job prints.

What real logs look like: every line may have a launcher's prefix (``0: ``, ``[1,0]<stdout>:``); NCCL INFO
lines stand between rows; the root column, the reduction and the error count may be missing or ``N/A``; sizes
may be written ``1_073_741_824``; size 0 is repeated; rows may be left out with ``...``; and the number of
ranks a page claims is often wrong, while bus bandwidth over algorithm bandwidth gives it. One file may hold
the tests of several collectives, or of several numbers of ranks, one after another. Old versions state the
bandwidth of an all-gather by what one rank sends (NVIDIA/nccl-tests issue 44).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

_PREFIX = re.compile(r"^\s*(?:\[\d+,\d+\]<std(?:out|err)>:?|\d+:\s|\S+:\s*(?=\d+\s+\d+\s+[a-z]))\s?")
_RANK = re.compile(r"#?\s*Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s+(.+)", re.IGNORECASE)
_VERSION = re.compile(r"\b(NCCL|RCCL) version\s*:?\s*([0-9][\w.+-]*)")
_TEST = re.compile(
    r"\b(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|reduce|sendrecv)_perf\b"
)
_START = re.compile(r"^#?\s*(?:nThread\b|nccl-tests version|Collective test starting)", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?[\d_]*\.?\d+(?:e[-+]?\d+)?", re.IGNORECASE)
_NETWORKS = (
    (r"NET/OFI.*efa|aws-ofi|provider.*efa", "AWS EFA"),
    (r"NET/OFI.*cxi|provider.*cxi", "Slingshot"),
    (r"NET/IB.*RoCE", "RoCE"),
    (r"NET/IB", "InfiniBand"),
    (r"NET/Socket", "TCP sockets"),
)
_NAMES = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "alltoall": "alltoall",
}  # fmt: skip


_ROW = re.compile(r"[\d_]+\s+[\d_]+\s+[a-z]")
_CLEAR = 1.0  # GB/s from which on bandwidths have the digits to tell ranks
_RANK_TOLERANCE = 0.01  # bandwidths have few digits: 127 and 128 ranks look alike


@dataclass(frozen=True)
class NcclRow:
    """One measurement: bytes, seconds, GB/s, whether the buffer was used in place, and the element type."""

    size_bytes: int
    time_s: float
    algorithm_bandwidth: float
    bus_bandwidth: float
    in_place: bool
    dtype: str


@dataclass
class NcclLog:
    """What a log says.

    Attributes
    ----------
    rows : list of NcclRow
    collective : str
        Name as nccl-tests has it (``all_reduce``); empty if the log does not say.
    num_ranks, num_hosts : int
        0 where unknown.
    device, version, network : str
        Device name, library and version, transport; empty where unknown.
    ignored : int
        Lines that look like rows but are not complete.
    """

    rows: list[NcclRow] = field(default_factory=list)
    collective: str = ""
    num_ranks: int = 0
    num_hosts: int = 0
    device: str = ""
    version: str = ""
    network: str = ""
    ignored: int = 0


def read_sections(lines: Iterable[str]) -> list[NcclLog]:
    """Read a file with the logs of one or several tests, one after another.

    What a later test does not repeat (device, library, network, ranks) is what the one before it said.
    """
    sections: list[list[str]] = [[]]
    rows, name = False, ""
    for line in lines:
        text = _PREFIX.sub("", line.rstrip("\n"), count=1).strip()
        named = _TEST.search(line)
        another = named is not None and bool(name) and _name(named) != name
        if rows and (_START.search(text) or another):
            sections.append([])
            rows, name = False, ""
        name = _name(named) if named else name
        rows = rows or bool(_ROW.match(text))
        sections[-1].append(line)
    logs: list[NcclLog] = []
    for section in sections:
        log = read_nccl_tests(section)
        for field_name in ("collective", "num_hosts", "device", "version", "network") if logs else ():
            if not getattr(log, field_name):
                setattr(log, field_name, getattr(logs[-1], field_name))
        if logs and not log.num_ranks:
            log.num_ranks = ranks_of_bandwidths(log.collective, log.rows) or logs[-1].num_ranks
        logs.append(log)
    return [log for log in logs if log.rows] or logs[:1]


def _name(test: re.Match[str]) -> str:
    name = test[1].replace("_", "")
    return _NAMES.get(name, name)


def read_nccl_tests(lines: Iterable[str]) -> NcclLog:
    """Read the log of one test; the first collective named gives the name."""
    log, hosts, ranks = NcclLog(), set[str](), set[int]()
    for line in lines:
        text = _PREFIX.sub("", line.rstrip("\n"), count=1).strip()
        _note(log, line)
        found = _RANK.search(text)
        if found:
            ranks.add(int(found[1]))
            hosts.add(found[2])
            log.device = log.device or found[3].strip()
            continue
        if _ROW.match(text):
            rows = list(_rows(text.split()))
            log.rows += rows
            log.ignored += not rows
    log.rows = [_whole_size(log.collective, row) for row in log.rows]
    log.num_ranks, log.num_hosts = len(ranks), len(hosts)
    seen = ranks_of_bandwidths(log.collective, log.rows)
    named = log.num_ranks
    if seen and (not named or abs((1 - 1 / named) / (1 - 1 / seen) - 1) > _RANK_TOLERANCE):
        log.num_ranks = seen
    return log


def _note(log: NcclLog, line: str) -> None:
    """What lines outside the table give away."""
    test = _TEST.search(line)
    if test and not log.collective:
        log.collective = _name(test)
    version = _VERSION.search(line)
    if version and not log.version:
        log.version = f"{version[1]} {version[2]}"
    if not log.network:
        log.network = next((name for pattern, name in _NETWORKS if re.search(pattern, line)), "")


def _rows(words: list[str]) -> Iterator[NcclRow]:
    """Out-of-place and in-place measurement of one line; nothing if it is damaged or of size 0."""
    size, dtype, rest = int(words[0].replace("_", "")), words[2], words[3:]
    if rest and not _NUMBER.fullmatch(rest[0]) and rest[0].upper() != "N/A":
        rest = rest[1:]  # the reduction
    per_group = 4 if len(rest) in (4, 5, 8, 9) else 3
    if len(rest) % per_group == 1:
        rest = rest[1:]  # the root
    if size == 0 or len(rest) not in (per_group, 2 * per_group):
        return
    for group in range(len(rest) // per_group):
        numbers = rest[group * per_group : group * per_group + 3]
        if all(_NUMBER.fullmatch(word) for word in numbers):
            time, algorithm, bus = (float(word.replace("_", "")) for word in numbers)
            if time > 0:
                yield NcclRow(size, time * 1e-6, algorithm, bus, group == 1, dtype)


def _whole_size(collective: str, row: NcclRow) -> NcclRow:
    """A row of an old version, whose all-gather counts what one rank sends, in today's meaning.

    There bus bandwidth is n - 1 times algorithm bandwidth; today (n - 1) / n of it, which is below 1.
    """
    if collective != "all_gather" or row.algorithm_bandwidth < _CLEAR:
        return row
    others = row.bus_bandwidth / row.algorithm_bandwidth
    if others < 1 - _RANK_TOLERANCE / 4:
        return row
    ranks = round(others) + 1
    rate = row.algorithm_bandwidth * ranks
    return replace(row, size_bytes=row.size_bytes * ranks, algorithm_bandwidth=rate)


def ranks_of_bandwidths(collective: str, rows: Iterable[NcclRow]) -> int:
    """Ranks that explain bus bandwidth over algorithm bandwidth; 0 if the rows do not say.

    All-reduce: 2 (n - 1) / n; all-gather, reduce-scatter, all-to-all: (n - 1) / n (nccl-tests,
    doc/PERFORMANCE.md). Only the fastest row is used, where rounding matters least.
    """
    passes = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "alltoall": 1}.get(collective)
    best = max(rows, key=lambda row: row.algorithm_bandwidth, default=None)
    if passes is None or best is None or best.algorithm_bandwidth < _CLEAR:
        return 0
    left = 1 - best.bus_bandwidth / best.algorithm_bandwidth / passes
    return round(1 / left) if left > 1e-3 and not math.isclose(left, 1.0) else 0
