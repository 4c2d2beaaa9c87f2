"""Play a measured trace again, say how far the replay is from what was measured, and ask what if."""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable, MutableSequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sim.engine import RunRecord, play
from sim.errors import InputError
from sim.graph.execution import Cause, ExecutionGraph
from sim.trace.issues import Issues
from sim.trace.model import FloatArray
from sim.trace.operations import DELAY, DEVICE, HOST, LAUNCH_DELAY, TRANSFER, Operations, typical
from sim.trace.to_graph import Imported, to_graph
from sim.units import parse_quantity

#: Findings about device spans whose launch, or whose peers, the trace does not hold.
UNMATCHED = ("kernel_without_launch", "collective_of_absent_ranks", "collective_not_simultaneous")

#: Relative differences that are rounding: of times of days in floats.
ROUNDING = 1e-10
#: Edits that say what a message takes.
_PRICES = ("latency=", "bandwidth=")


@dataclass(frozen=True)
class Played:
    """A replay: start and end of every operation, seconds from the beginning."""

    operations: Operations
    graph: ExecutionGraph
    run: RunRecord
    start: FloatArray
    end: FloatArray


@dataclass
class Replay:
    """How the replay compares with the measurement; see :func:`replay`."""

    ranks: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    kinds: list[dict[str, Any]]
    measured_step_s: float
    replayed_step_s: float
    worst_error: float
    joined_collectives: int
    unmatched_kernels: int = 0
    what_if: dict[str, Any] | None = None
    undelayed_step_s: float | None = None
    ideal_step_s: float | None = None
    slowdowns: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def error(self) -> float:
        """Relative error of the mean step."""
        return relative(self.replayed_step_s, self.measured_step_s)

    def to_json(self) -> dict[str, Any]:
        """Plain data; times in seconds, errors as fractions."""
        return {
            "error": self.error if self.measured_step_s else None,
            "measured_step_s": self.measured_step_s,
            "replayed_step_s": self.replayed_step_s,
            "worst_error": self.worst_error,
            "joined_collectives": self.joined_collectives,
            "unmatched_kernels": self.unmatched_kernels,
            "ranks": self.ranks,
            "steps": self.steps,
            "kinds": self.kinds,
            "what_if": self.what_if,
            "without_launch_delays_s": self.undelayed_step_s,
            "ideal_step_s": self.ideal_step_s,
            "slowdowns": self.slowdowns,
            "warnings": self.warnings,
        }


def play_operations(operations: Operations) -> Played:
    """Play operations as they wait for each other."""
    imported = to_graph(operations)
    # Few operations of a trace form chains: fusing them costs more memory than it saves time.
    run = play(imported.graph, contract=False)
    return _times(operations, imported, run)


def _times(operations: Operations, imported: Imported, run: RunRecord) -> Played:
    start, end = np.zeros(imported.graph.num_tasks), np.zeros(imported.graph.num_tasks)
    start[run.task], end[run.task] = run.start, run.end
    return Played(operations, imported.graph, run, start[imported.task], end[imported.task])


def replay(
    operations: Operations,
    edits: list[str] | None = None,
    *,
    slowdowns: bool = False,
    elsewhere: tuple[str, Operations] | None = None,
) -> tuple[Replay, Played]:
    """Replay, compare with the measurement and, with edits, with the changed job.

    Parameters
    ----------
    operations : Operations
        From :func:`sim.trace.to_graph.operations_of`.
    edits : list of str, optional
        See :func:`edited`.
    slowdowns : bool
        Also what each type of operation costs by straggling: the job in which all others take their typical
        time, relative to the job in which all do.
    elsewhere : (str, Operations), optional
        The same operations as they would be elsewhere, and where: the changed job that edits act on.

    Returns
    -------
    Replay, Played
        The second is the changed job if there are edits, otherwise the replay.
    """
    played = play_operations(operations)
    marks = _marks(played)
    measured = float(np.mean([m["measured_s"] for m in marks])) if marks else 0.0
    replayed = float(np.mean([m["replayed_s"] for m in marks])) if marks else 0.0
    steps = [m for m in marks if m["rank"] is None]
    ranks = _by_rank(marks)
    result = Replay(
        ranks,
        steps,
        _kinds(played),
        measured,
        replayed,
        max((abs(m["error"]) for m in ranks or steps), default=0.0),
        len(operations.members()),
        sum(operations.issues.counts[name] for name in UNMATCHED),
        warnings=operations.issues.to_json(),
    )
    shown = played
    if edits or elsewhere is not None:
        place, other = elsewhere if elsewhere is not None else ("", operations)
        edits = [*([place] if place else []), *(edits or [])]
        shown = play_operations(edited(other, edits[bool(place) :]))
        step, speedup = _changed_step(played, shown, replayed)
        result.what_if = {"edits": list(edits), "step_s": step, "speedup": speedup}
        after = {row["type"]: row for row in _kinds(shown)}
        for row in result.kinds:
            row["edited_s"] = after[row["type"]]["replayed_s"]
            row["edited_work_s"] = after[row["type"]]["work_s"]
        result.warnings = shown.operations.issues.to_json()
    if slowdowns:
        result.slowdowns, result.undelayed_step_s, result.ideal_step_s = straggler_slowdowns(operations)
    return result, shown


def _changed_step(played: Played, shown: Played, replayed: float) -> tuple[float, float | None]:
    """Seconds of a step of the changed job, and how many times as fast it is.

    A job that took no time, as messages without times do, cannot be scaled: its changed step stands alone.
    """
    before, after = steps_length(played), steps_length(shown)
    if not before:
        return after / max(1, len({mark["name"] for mark in _marks(shown)})), None
    ratio = after / before
    ratio = ratio if abs(ratio - 1) > ROUNDING else 1.0
    return replayed * ratio, 1 / ratio if ratio else None


def _marks(played: Played) -> list[dict[str, Any]]:
    """Measured intervals and how long they took in the replay; a job's steps if it has no marks of ranks."""
    ops = played.operations
    if ops.marks:
        return [
            _interval(name, ops.ranks[row], measured, float(played.end[last] - played.start[first]))
            for name, row, first, last, measured in ops.marks
        ]
    found = []
    step = np.array(ops.step)
    real = np.array([category != DELAY for category in ops.category])
    barrier = np.array([name == "step end" for name in ops.name])
    start, end = np.array(ops.start), np.array(ops.end)
    for number in np.unique(step).tolist():
        mine = (step == number) & real & ~barrier
        if not mine.any():
            continue
        before = (step == number - 1) & barrier
        begin = float(played.end[before].max()) if before.any() else 0.0
        # Traces without start times (Chakra) say nothing about the length of a step.
        measured = float(end[mine].max() - start[mine].min()) if start[mine].any() else 0.0
        found.append(_interval(f"step {number}", None, measured, float(played.end[mine].max()) - begin))
    return found


def steps_length(played: Played) -> float:
    """Seconds from the begin of the first step to the end of the last one, device work included; over ranks.

    A host that does not wait for its device may end all steps early: the work that it launched counts, too.
    """
    ops = played.operations
    if not ops.marks:
        return float(sum(mark["replayed_s"] for mark in _marks(played)))
    issuer = np.full(len(ops), -1, np.int64)
    for target, source in ops.edges:
        if ops.category[source] == HOST and ops.category[target] in (DEVICE, TRANSFER):
            issuer[target] = max(issuer[target], source)
    total, rank = 0.0, np.array(ops.rank)
    for row in np.unique([mark[1] for mark in ops.marks]).tolist():
        marks = [mark for mark in ops.marks if mark[1] == row]
        first, last = min(mark[2] for mark in marks), max(mark[3] for mark in marks)
        inside = (rank == row) & (issuer >= first) & (issuer <= last)
        if marks[0][0] == "trace":  # no steps: everything is one
            inside = rank == row
        end = max(float(played.end[mark[3]]) for mark in marks)
        begin = min(float(played.start[mark[2]]) for mark in marks)
        total += max(end, float(played.end[inside].max(initial=end))) - begin
    return total


def relative(replayed: float, measured: float) -> float:
    """Relative error; 0 without a measurement, and where only rounding differs."""
    error = replayed / measured - 1 if measured > 0 else 0.0
    return error if abs(error) > ROUNDING else 0.0


def _interval(name: str, rank: int | None, measured: float, replayed: float) -> dict[str, Any]:
    error = relative(replayed, measured)
    return {"name": name, "rank": rank, "measured_s": measured, "replayed_s": replayed, "error": error}


def _by_rank(marks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for mark in marks:
        if mark["rank"] is not None:
            groups[mark["rank"]].append(mark)
    return [
        _interval(
            f"{len(same)} steps" if len(same) > 1 else same[0]["name"],
            rank,
            float(np.mean([m["measured_s"] for m in same])),
            float(np.mean([m["replayed_s"] for m in same])),
        )
        for rank, same in sorted(groups.items())
    ]


def _kinds(played: Played) -> list[dict[str, Any]]:
    """Per type of operation: count, measured and replayed seconds (waiting for other ranks included)."""
    ops = played.operations
    ready = _ready(played)
    table: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0, 0.0])
    for o, kind in enumerate(ops.type):
        if ops.category[o] not in (DEVICE, TRANSFER):
            continue
        row = table[kind]
        row[0] += 1
        row[1] += ops.end[o] - ops.start[o]
        row[2] += float(played.end[o] - (ready[o] if ops.join[o] >= 0 else played.start[o]))
        row[3] += ops.work[o]
    ordered = sorted(table.items(), key=lambda item: -item[1][1])
    return [
        {"type": kind, "count": int(r[0]), "measured_s": r[1], "replayed_s": r[2], "work_s": r[3]}
        for kind, r in ordered
    ]


def _ready(played: Played) -> FloatArray:
    """When each participant of a transfer had arrived: its own last predecessor's end."""
    ready = np.zeros(len(played.operations))
    for target, source in played.operations.edges:
        ready[target] = max(ready[target], played.end[source])
    return ready


# ---- what if --------------------------------------------------------------------------------------------


def edited(operations: Operations, edits: list[str]) -> Operations:
    """Operations with other durations.

    Parameters
    ----------
    edits : list of str
        ``no-stragglers``: every type at its typical time, launch delays of jobs gone.
        ``no-launch-delays``: every delay between launch and start gone.
        ``TYPE=mean`` or ``TYPE=FACTOR``: typical time, or times the factor; TYPE is a type of operation, a
        pattern of names with ``*`` and ``?``, a cause (``forward``, ``backward`` ...) or one of
        ``compute``, ``communication``, ``host``. ``links=FACTOR``, ``device=FACTOR``: transfers,
        kernels faster by the factor. ``rank:N=FACTOR``: times of the kernels of one rank.
        ``latency=TIME``, ``bandwidth=RATE``: what a message between two ranks takes, from its bytes; the one
        that is not given costs nothing.

    Raises
    ------
    InputError
        If an edit is not one of these.
    """
    found = operations.with_work(operations.work)
    work = found.work
    found.issues = Issues()
    found.issues.merge(operations.issues)
    usual = typical(operations)
    _price_messages(operations, work, [edit for edit in edits if edit.startswith(_PRICES)])
    for edit in edits:
        if edit.startswith(_PRICES):
            continue
        name, equals, value = edit.rpartition("=")  # names of kernels may hold one
        if not equals:
            name = value
            _named_edit(operations, work, usual, name)
            continue
        rows = _selected(operations, name)
        found.issues.add("edit_without_effect", int(not rows))
        if value == "mean":
            for row in rows:
                work[row] = usual.get(operations.type[row], work[row])
            continue
        factor = _factor(edit, value)
        for row in rows:
            work[row] *= 1 / factor if name in ("links", "device") else factor
    return found


def _price_messages(operations: Operations, work: MutableSequence[float], edits: list[str]) -> None:
    """Give messages the time that latency and bandwidth make of their bytes."""
    if not edits:
        return
    given = dict(edit.split("=", 1) for edit in edits)
    latency = _quantity(given["latency"], "seconds", "latency") if "latency" in given else 0.0
    per_byte = (
        1 / _quantity(given["bandwidth"], "bytes_per_second", "bandwidth") if "bandwidth" in given else 0.0
    )
    rows = [
        row
        for row, category in enumerate(operations.category)
        if category == TRANSFER
        and operations.type[row].endswith(("send", "recv", "send_recv"))
        and operations.size[row] > 0
    ]
    if not rows:
        raise InputError("--what-if", "be given for a trace with messages of known size", edits[0])
    for row in rows:
        work[row] = latency + operations.size[row] * per_byte


def _quantity(text: str, dimension: str, name: str) -> float:
    try:
        value = parse_quantity(text, dimension)
    except InputError as error:
        raise InputError("--what-if", f"be {name}=QUANTITY, {error.must}", f"{name}={text}") from None
    if not 0 < value < 1e24:
        raise InputError("--what-if", f"have a {name} > 0", f"{name}={text}")
    return value


def _named_edit(
    operations: Operations, work: MutableSequence[float], usual: dict[str, float], name: str
) -> None:
    if name == "no-stragglers":
        for row, kind in enumerate(operations.type):
            if operations.category[row] in (DEVICE, TRANSFER):
                work[row] = usual[kind]
    if name in ("no-stragglers", "no-launch-delays"):
        for row, kind in enumerate(operations.type):
            if kind == LAUNCH_DELAY or (operations.category[row] == DELAY and name == "no-launch-delays"):
                work[row] = 0.0
    else:
        raise InputError("--what-if", "be no-stragglers, no-launch-delays or NAME=mean|FACTOR", name)


def _selected(operations: Operations, name: str) -> list[int]:
    categories = {
        "compute": {DEVICE},
        "device": {DEVICE},
        "communication": {TRANSFER},
        "links": {TRANSFER},
        "host": {HOST},
    }
    if name in categories:
        return [row for row, category in enumerate(operations.category) if category in categories[name]]
    if name.startswith("rank:"):
        if name[5:] not in map(str, operations.ranks):
            ranks = ", ".join(map(str, operations.ranks[:8])) + (", ..." if len(operations.ranks) > 8 else "")
            raise InputError("--what-if", f"name a rank of the trace ({ranks})", name)
        wanted = operations.ranks.index(int(name[5:]))
        owned = zip(operations.category, operations.rank, strict=True)
        return [row for row, (category, rank) in enumerate(owned) if category == DEVICE and rank == wanted]
    rows = [row for row, kind in enumerate(operations.type) if kind == name]
    if not rows and name.upper() in Cause.__members__:
        cause, moved = Cause[name.upper()], (DEVICE, TRANSFER)
        causes = zip(operations.category, operations.cause, strict=True)
        rows = [row for row, (category, why) in enumerate(causes) if category in moved and why == cause]
    if not rows and re.search(r"[*?]", name):
        signs = (re.escape(c) if c not in "*?" else ("." if c == "?" else ".*") for c in name)
        pattern = re.compile("".join(signs), re.IGNORECASE | re.DOTALL)
        known = {kind for kind in {*operations.type, *operations.name} if pattern.fullmatch(kind)}
        pairs = zip(operations.type, operations.name, strict=True)
        rows = [row for row, (kind, label) in enumerate(pairs) if kind in known or label in known]
    if not rows:
        raise InputError(
            "--what-if", "name a type of operation of the trace", name, hint=_near(operations, name)
        )
    return rows


def _near(operations: Operations, name: str) -> str:
    """Names like one that matches nothing: those that hold its letters, else those that look like it."""
    known = {
        text
        for category, *texts in zip(operations.category, operations.type, operations.name, strict=True)
        if category in (DEVICE, TRANSFER)
        for text in texts
    }
    words = [word for word in re.split(r"[*?]+", name.lower()) if word]
    near = [text for text in sorted(known) if words and all(word in text.lower() for word in words)]
    general = ("compute", "communication", "host", "forward", "backward", "links", "device")
    bare = "".join(words)
    near = near or difflib.get_close_matches(bare, sorted({*general, *known}), 3, 0.4)
    near = near or _longest(operations)
    return f"Near: {', '.join(text[:60] for text in near[:3])}." if near else ""


def _longest(operations: Operations) -> list[str]:
    """Types of operations, those with most work first."""
    sums: dict[str, float] = defaultdict(float)
    for row, kind in enumerate(operations.type):
        if operations.category[row] in (DEVICE, TRANSFER):
            sums[kind] += operations.work[row]
    return sorted(sums, key=lambda kind: -sums[kind])


def edited_factor(value: str) -> float | None:
    """The number of an edit ``NAME=NUMBER``; None if it is none."""
    try:
        return float(value)
    except ValueError:
        return None


def _factor(edit: str, value: str) -> float:
    factor = edited_factor(value)
    if factor is None or not 0 < factor < 1e9:
        raise InputError("--what-if", "be NAME=mean or NAME=FACTOR with a factor > 0", edit)
    return factor


def straggler_slowdowns(operations: Operations) -> tuple[list[dict[str, Any]], float, float]:
    """What each type of operation costs by not always taking its typical time, worst first.

    Returns
    -------
    slowdowns : list of dict
        ``type``, ``slowdown``: the job in which every other type takes its typical time, relative to the job
        in which all do; the first row, ``all``, is the replay without launch delays relative to that job.
    undelayed, ideal : float
        Mean step (s) without launch delays, and with every type at its typical time.
    """
    ideal_work = edited(operations, ["no-stragglers"]).work
    undelayed = edited(operations, ["no-launch-delays"]).work

    def mean_step(work: Iterable[float]) -> float:
        marks = _marks(play_operations(operations.with_work(work)))
        return float(np.mean([m["replayed_s"] for m in marks])) if marks else 0.0

    ideal = mean_step(ideal_work)
    now = mean_step(undelayed)
    if ideal <= 0:
        return [], now, ideal
    kinds = sorted(
        {operations.type[row] for row, c in enumerate(operations.category) if c in (DEVICE, TRANSFER)}
    )
    found: list[dict[str, Any]] = []
    for kind in kinds:
        work = [
            old if operations.type[row] == kind else new
            for row, (old, new) in enumerate(zip(undelayed, ideal_work, strict=True))
        ]
        found.append({"type": kind, "slowdown": mean_step(work) / ideal})
    total = {"type": "all", "slowdown": now / ideal}
    return [total, *sorted(found, key=lambda row: -float(row["slowdown"]))], now, ideal
