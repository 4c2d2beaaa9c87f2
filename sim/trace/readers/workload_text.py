"""Workloads and logs as text: AICB CSV (generated or measured), SimAI workload text, GOAL schedules."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass, field
from itertools import pairwise

from sim.errors import InputError
from sim.trace.issues import Issues
from sim.trace.model import (
    COMMUNICATION,
    COMPUTE,
    Collective,
    ProcessGroup,
    RankTrace,
    collective_kind,
    rank_from_name,
    timeline,
)
from sim.trace.readers.columns import Names
from sim.trace.readers.container import Member
from sim.trace.simai import SimaiRow, SimaiTable

NANOSECOND = 1e-9
_NAN = float("nan")


def lines(member: Member) -> io.TextIOWrapper:
    """The member as text."""
    return io.TextIOWrapper(member.stream, encoding="utf-8-sig", errors="replace", newline="")


@dataclass
class _Sequence:
    """Spans that follow each other on one clock."""

    now: float = 0.0
    names: Names = field(default_factory=Names)
    start: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)
    name: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)

    def add(self, name: str, kind: int, seconds: float) -> int:
        self.start.append(self.now)
        self.now += seconds
        self.end.append(self.now)
        self.name.append(self.names(name))
        self.kind.append(kind)
        return len(self.start) - 1

    def rank(self, label: str, form: str, issues: Issues) -> RankTrace:
        spans = timeline(
            start=self.start, end=self.end, name=self.name, kind=self.kind, names=self.names.texts()
        )
        return RankTrace(label=label, format=form, timeline=spans, rank=rank_from_name(label), issues=issues)


# ---- AICB -----------------------------------------------------------------------------------------------


def read_aicb(member: Member, issues: Issues) -> list[RankTrace]:
    """AICB's list of operations; ``_elapsed_time`` in ms where it was measured. One rank stands for all."""
    source = (line.replace("\0", "") for line in lines(member))
    rows = csv.reader(source)
    header: list[str] = []
    world: int | None = None
    for row in rows:
        match = re.match(r"\[rank(\d+) ~ rank(\d+)\]", ",".join(row))
        if match:
            world = int(match.group(2)) - int(match.group(1)) + 1
        elif "comm_type" in row:
            header = row
            break
    if not header:
        raise InputError("columns", "hold comm_type", "none", where=member.label)
    sequence, count = _Sequence(), 0
    found: list[Collective] = []
    groups: dict[str, ProcessGroup] = {}
    for row in rows:
        if not row:
            continue
        count += 1
        if len(row) < 4 or len(row) > len(header) + 8:
            issues.add("bad_row")
            continue
        _aicb_row(dict(zip(header, row, strict=False)), sequence, found, groups, issues)
    rank = sequence.rank(member.label, "aicb-csv", issues)
    rank.num_events, rank.world_size = count, world
    rank.collectives, rank.groups = tuple(found), tuple(groups.values())
    _finish(rank, any(c.end > c.start for c in found))
    return [rank]


def _aicb_row(
    cell: dict[str, str],
    sequence: _Sequence,
    found: list[Collective],
    groups: dict[str, ProcessGroup],
    issues: Issues,
) -> None:
    word = cell["comm_type"].split(".")[-1]
    milliseconds = _number(cell.get("_elapsed_time"))
    seconds = (milliseconds or 0.0) * 1e-3
    if seconds < 0:
        issues.add("negative_duration")
        seconds = 0.0
    if word == "computation":
        issues.add("no_durations", int(milliseconds is None))
        sequence.add(cell.get("stage") or word, COMPUTE, seconds)
        return
    kind = collective_kind(word)
    if kind == "unknown":
        issues.add("collective_kind_unknown" if word not in ("epoch_end", "None") else "unknown_operation")
        if word == "epoch_end":
            return
    group = (cell.get("comm_group") or "").split(".")[-1].replace("None", "")
    members, size = _number(cell.get("comm_group_size")), _number(cell.get("msg_size"))
    issues.add("group_size_unknown", int(members is None))
    issues.add("collective_without_size", int(size is None))
    row = sequence.add(f"{word} {cell.get('stage', '')}".strip(), COMMUNICATION, seconds)
    number = int(members) if members and members > 0 else None
    peer = _number(cell.get("dst" if kind == "send" else "src"))
    found.append(
        Collective(
            kind,
            size,
            "",
            group,
            number,
            sequence.start[row],
            sequence.end[row],
            row,
            None,
            int(peer) if peer is not None and kind in ("send", "recv") else None,
        )
    )
    if group and group not in groups:
        groups[group] = ProcessGroup(group, "", "", (), number)


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else _NAN
    except ValueError:
        return None
    return value if abs(value) < 1e18 else None


def _finish(rank: RankTrace, measured: bool) -> None:
    issues = rank.issues
    issues.add("no_times", int(not measured))
    issues.add("rank_unknown", int(rank.rank is None))
    issues.add("world_size_unknown", int(rank.world_size is None))
    issues.add("device_unknown")
    issues.add("no_steps")


# ---- SimAI ----------------------------------------------------------------------------------------------

_PHASES = (("forward", 2), ("input gradient", 5), ("weight gradient", 8))


def read_simai(member: Member, issues: Issues) -> list[RankTrace]:
    """SimAI/ASTRA-sim workload text: per layer compute times (ns) and collectives of the three passes."""
    source = lines(member)
    head = source.readline().split()
    stated = {key.rstrip(":"): value for key, value in pairwise(head) if key.endswith(":")}
    count = source.readline().strip()
    if not count.isdigit():
        raise InputError(
            "layer count", "be a number in the second line", repr(count[:40]), where=member.label
        )
    sequence, rows = _Sequence(), 0
    found: list[Collective] = []
    table = SimaiTable(stated)
    tensor = _positive(stated.get("model_parallel_NPU_group"))
    for text in source:
        cells = text.split()
        if not cells:
            continue
        rows += 1
        if len(cells) < 12:
            issues.add("bad_row")
            continue
        for phase, at in _PHASES:
            _simai_phase(cells, phase, at, sequence, found, issues, tensor)
        row = _simai_row(cells)
        if row is not None:
            table.rows.append(row)
    if rows != int(count):
        issues.add("truncated_file" if rows < int(count) else "bad_row", abs(int(count) - rows))
    rank = sequence.rank(member.label, "simai-text", issues)
    rank.num_events, rank.world_size = rows, _positive(stated.get("all_gpus"))
    rank.collectives = tuple(found)
    rank.simai = table
    _finish(rank, False)
    return [rank]


def _simai_row(cells: list[str]) -> SimaiRow | None:
    """A line as numbers; None where one of them is no number."""
    values = [_number(cells[at]) for at in (2, 4, 5, 7, 8, 10)]
    if any(value is None or value < 0 for value in values):
        return None
    forward, sent, back, sent_back, weight, sent_weight = (value or 0.0 for value in values)
    return SimaiRow(
        cells[0],
        forward * NANOSECOND,
        back * NANOSECOND,
        weight * NANOSECOND,
        (cells[3], sent),
        (cells[6], sent_back),
        (cells[9], sent_weight),
    )


def _simai_phase(
    cells: list[str],
    phase: str,
    at: int,
    sequence: _Sequence,
    found: list[Collective],
    issues: Issues,
    tensor: int | None,
) -> None:
    compute, word, size = _number(cells[at]), cells[at + 1], _number(cells[at + 2])
    if compute is None or size is None or compute < 0:
        issues.add("bad_row")
        return
    sequence.add(f"{cells[0]} {phase}", COMPUTE, compute * NANOSECOND)
    if word == "NONE":
        return
    stem, _, suffix = word.partition("_")
    kind = collective_kind(stem)
    issues.add("collective_kind_unknown", int(kind == "unknown"))
    group = suffix.lower() or ("dp" if phase == "weight gradient" else "tp")
    members = tensor if group == "tp" else None
    issues.add("group_size_unknown", int(members is None))
    found.append(Collective(kind, size, "", group, members, sequence.now, _NAN, -1))


def _positive(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() and int(text[:12]) > 0 else None


# ---- GOAL -----------------------------------------------------------------------------------------------

_GOAL_RANKS = re.compile(r"\s*num_ranks\s+(\d+)")
_GOAL_RANK = re.compile(r"\s*rank\s+(\d+)\s*\{")
_GOAL_TASK = re.compile(
    r"\s*(?:(?P<label>\w+)\s*:)?\s*(?:(?P<op>send|recv)\s+(?P<bytes>\d+)b\s+(?:to|from)\s+(?P<peer>\d+)"
    r"(?:\s+tag\s+(?P<tag>\d+))?|calc\s+(?P<calc>\d+))(?P<rest>[^{}]*)"
)
_GOAL_REQUIRES = re.compile(r"\s*(?P<task>\w+)\s+(?P<how>i?requires)\s+(?P<other>\w+)")


@dataclass
class GoalTask:
    """One task of a GOAL schedule: ``op`` send, recv or calc; ``amount`` bytes, or nanoseconds for calc."""

    label: str
    op: str
    amount: int
    peer: int = -1
    tag: int = 0
    stream: int = 0
    requires: list[str] = field(default_factory=list)
    starts_after: list[str] = field(default_factory=list)


def parse_goal(member: Member, issues: Issues) -> tuple[int, dict[int, list[GoalTask]]]:
    """World size and tasks per rank of a GOAL schedule."""
    world, current = 0, -1
    ranks: dict[int, list[GoalTask]] = {}
    labels: dict[str, GoalTask] = {}
    required: list[tuple[dict[str, GoalTask], re.Match[str]]] = []
    for raw in lines(member):
        text = raw.split("//")[0]
        for piece in _goal_pieces(text):
            if match := _GOAL_RANKS.match(piece):
                world = int(match.group(1)[:9])
            elif match := _GOAL_RANK.match(piece):
                current, labels = int(match.group(1)[:9]), {}
                ranks.setdefault(current, [])
            elif piece.strip() in ("", "}"):
                continue
            elif current < 0:
                issues.add("bad_row")
            elif match := _GOAL_REQUIRES.match(piece):
                required.append((labels, match))  # may stand before the tasks it names
            elif match := _GOAL_TASK.match(piece):
                task = _goal_task(match, len(ranks[current]))
                ranks[current].append(task)
                labels[task.label] = task
            else:
                issues.add("bad_row")
    for known, match in required:
        _require(known, match, issues)
    return world, ranks


def _goal_pieces(text: str) -> list[str]:
    """Statements of a line; several may share one."""
    starts = [
        m.start()
        for m in re.finditer(r"(?<!\S)(?:num_ranks|rank\s+\d+\s*\{|\w+\s*:|\w+\s+i?requires|\})", text)
    ]
    if not starts:
        return [text]
    edges = sorted({0, *starts, len(text)})
    return [text[a:b] for a, b in pairwise(edges)]


def _goal_task(match: re.Match[str], number: int) -> GoalTask:
    stream = re.search(r"cpu\s+(\d+)", match.group("rest") or "")
    label = match.group("label") or f"task {number}"
    lane = int(stream.group(1)[:9]) if stream else 0
    if match.group("calc"):
        return GoalTask(label, "calc", int(match.group("calc")[:18]), stream=lane)
    tag = int((match.group("tag") or "0")[:18])
    return GoalTask(
        label, match.group("op"), int(match.group("bytes")[:18]), int(match.group("peer")[:9]), tag, lane
    )


def _require(labels: dict[str, GoalTask], match: re.Match[str], issues: Issues) -> None:
    task, other = labels.get(match.group("task")), match.group("other")
    if task is None or other not in labels:
        issues.add("dependency_missing")
    elif match.group("how") == "requires":
        task.requires.append(other)
    else:
        task.starts_after.append(other)


def read_goal(member: Member, issues: Issues) -> list[RankTrace]:
    """A GOAL schedule: computation in ns (one unit is 1 ns), messages without times."""
    world, schedule = parse_goal(member, issues)
    if not schedule:
        raise InputError("schedule", "hold at least one rank", "none", where=member.label)
    result: list[RankTrace] = []
    for number, tasks in sorted(schedule.items()):
        sequence = _Sequence()
        found = []
        for task in tasks:
            if task.op == "calc":
                sequence.add("calc", COMPUTE, task.amount * NANOSECOND)
            else:
                found.append(
                    Collective(
                        task.op, float(task.amount), "", "", 2, sequence.now, _NAN, -1, task.tag, task.peer
                    )
                )
        rank = sequence.rank(member.label, "goal", issues if not result else Issues())
        rank.rank, rank.world_size, rank.num_events = number, world or len(schedule), len(tasks)
        rank.collectives, rank.goal = tuple(found), tuple(tasks)
        _finish(rank, False)
        result.append(rank)
    return result
