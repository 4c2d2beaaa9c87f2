"""Operations of traces that hold spans but neither launches nor dependencies.

Tensor timelines (Horovod, BytePS, MXNet) and Chrome timelines of unknown origin: what follows on one thread
(a tensor is a thread there) waits for what came before it and for the time in between, which is kept as
measured. Of nested spans the innermost counts; spans that overlap otherwise run side by side. What one thread
waited for on another is not in such files.

AICB's measured log: one operation behind the other. SimAI's text: a forward pass over the rows, a backward
pass in the opposite order; its collectives have bytes but no times, and take none here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.graph.execution import Cause
from sim.trace.issues import Issues
from sim.trace.model import COMMUNICATION, COMPUTE, Collective, RankTrace, collective_kind
from sim.trace.operations import DEVICE, HOST, TRANSFER, Groups, Operations, rank_numbers
from sim.trace.placement import group_sizes, placed
from sim.trace.simai import SimaiTable

#: Time on a thread in which nothing was recorded.
GAP = "unrecorded"
_CAUSES = {
    "all_to_all": Cause.EXPERT_COMM,
    "all_gather": Cause.PARAMETER_COMM,
    "send": Cause.PIPELINE_COMM,
    "recv": Cause.PIPELINE_COMM,
}
_Piece = tuple[float, float, int]


@dataclass
class _Lane:
    """Spans that follow each other or lie inside each other; ``open``: those not ended, outermost first."""

    open: list[list[float]]
    pieces: list[_Piece]

    def takes(self, start: float, end: float) -> bool:
        """Whether a span that starts last so far fits: behind all others, or inside the innermost."""
        self.close(start)
        return not self.open or end <= self.open[-1][1]

    def add(self, start: float, end: float, row: int) -> None:
        if self.open:
            self._cut(self.open[-1], start)
        self.open.append([start, end, row])

    def close(self, time: float) -> None:
        """End what ends by ``time``; what lies around it goes on."""
        while self.open and self.open[-1][1] <= time:
            inner = self.open.pop()
            self._cut(inner, inner[1])
            if self.open:
                self.open[-1][0] = inner[1]

    def _cut(self, span: list[float], end: float) -> None:
        if end > span[0] or (end == span[1] and end == span[0]):
            self.pieces.append((span[0], end, int(span[2])))


def innermost(start: Sequence[float], end: Sequence[float]) -> list[list[_Piece]]:
    """Cut spans of one thread so that only the innermost counts at any time.

    Parameters
    ----------
    start, end : sequence of float
        Seconds.

    Returns
    -------
    list of list of (start, end, index)
        Per lane, in order of time; more than one where spans overlap without being nested.
    """
    lanes: list[_Lane] = []
    for row in sorted(range(len(start)), key=lambda i: (start[i], -end[i])):
        lane = next((lane for lane in lanes if lane.takes(start[row], end[row])), None)
        if lane is None:
            lane = _Lane([], [])
            lanes.append(lane)
        lane.add(start[row], end[row], row)
    for lane in lanes:
        lane.close(float("inf"))
    return [sorted(lane.pieces) for lane in lanes]


def span_operations(ranks: list[RankTrace], issues: Issues) -> Operations:
    """Operations of ranks that are known by their spans alone.

    Parameters
    ----------
    ranks : list of RankTrace
        Of a format in ``SPAN_FORMATS``.
    issues : Issues
        Where findings are counted.

    Without any times (execution traces, AICB's workloads) the operations are there and take none.
    """
    timed = [rank for rank in ranks if _seconds(rank) > 0]
    issues.add("no_times", len(ranks) - len(timed))
    ranks = timed or ranks
    ops = Operations(rank_numbers([rank.rank for rank in ranks]), issues)
    for row, rank in enumerate(ranks):
        if rank.simai is not None:
            _simai(ops, row, rank, rank.simai)
        elif not len(rank.timeline):
            _listed(ops, row, rank)
        else:
            _threads(ops, row, rank)
    issues.add("dependency_between_threads_unknown", sum(rank.format.endswith("timeline") for rank in ranks))
    return ops


def _seconds(rank: RankTrace) -> float:
    spans = rank.timeline
    return float((spans["end"] - spans["start"]).sum()) if len(spans) else 0.0


def _threads(ops: Operations, row: int, rank: RankTrace) -> None:
    """All threads of a rank, as measured."""
    spans = rank.timeline
    stream, origin = spans.integer("stream"), float(spans["start"].min())
    first = len(ops)
    for number in np.unique(stream).tolist():
        rows = np.flatnonzero(stream == number)
        start, end = spans["start"][rows] - origin, spans["end"][rows] - origin
        name = (spans.streams[number] if 0 <= number < len(spans.streams) else "") or "operations"
        _thread(ops, row, rank, name, rows.tolist(), innermost(start.tolist(), end.tolist()))
    mine = range(first, len(ops))
    # Without times the order tells what comes last.
    begin, last = min(mine, key=lambda o: ops.start[o]), max(mine, key=lambda o: (ops.end[o], o))
    ops.marks.append(("trace", row, begin, last, ops.end[last] - ops.start[begin]))


def _thread(
    ops: Operations, row: int, rank: RankTrace, name: str, rows: list[int], lanes: list[list[_Piece]]
) -> None:
    """One thread: a piece waits for the one that ended last before it, and for the time in between."""
    pieces = sorted(
        (start, end, lane, rows[at]) for lane, found in enumerate(lanes) for start, end, at in found
    )
    ends: list[tuple[float, int]] = []
    moved = {one.row: one for one in rank.collectives} if rank.format == "aicb-csv" else {}
    places = _Places(ops, rank)
    for start, end, lane, at in pieces:
        before = bisect_right(ends, (start, len(ops))) - 1
        ready, source = ends[before] if before >= 0 else (0.0, -1)
        if start > ready:
            gap = ops.add(row, "", HOST, GAP, ready, start)
            ops.after(gap, source)
            source = gap
        operation = _span(
            ops, row, rank, moved, places, at, f"{name} ({lane + 1})" if lane else name, start, end
        )
        ops.after(operation, source)
        ends.insert(bisect_right(ends, (end, operation)), (end, operation))


def _span(
    ops: Operations,
    row: int,
    rank: RankTrace,
    moved: dict[int, Collective],
    places: _Places,
    at: int,
    stream: str,
    start: float,
    end: float,
) -> int:
    """One span; what is neither work nor a transfer (queues, negotiation) is the host's."""
    spans = rank.timeline
    kind, name = int(spans.integer("kind")[at]), spans.names[int(spans.integer("name")[at])]
    if kind != COMMUNICATION:
        work = kind == COMPUTE or rank.format == "chrome-timeline"
        return ops.add(row, stream, DEVICE if work else HOST, name, start, end)
    word = collective_kind(name)
    one = moved.get(at)
    found = ops.add(
        row, stream, TRANSFER, name, start, end,
        type=name if word == "unknown" else word, cause=_CAUSES.get(word, Cause.GRADIENT_COMM),
        size=(one.size_bytes or 0.0) if one is not None else 0.0,
    )  # fmt: skip
    if one is not None:
        places(found, one.kind, one.group)
    return found


class _Places:
    """Says which ranks run the collectives of a list, as far as the list says enough."""

    def __init__(self, ops: Operations, rank: RankTrace) -> None:
        self.ops, self.world = ops, rank.world_size
        self.sizes = group_sizes(rank)
        self.known: dict[tuple[str, str], Groups] = {}

    def __call__(self, operation: int, kind: str, group: str) -> None:
        key = (kind, group)
        if key not in self.known:
            self.known[key] = placed(kind, group, self.sizes, self.world)
        if self.known[key]:
            self.ops.groups[operation] = self.known[key]


def _listed(ops: Operations, row: int, rank: RankTrace) -> None:
    """What a trace without times lists: forward operators in order, and collectives beside them."""
    before = -1
    for operator in rank.operators:
        found = ops.add(row, "host", DEVICE, operator.name, 0.0, 0.0, cause=Cause.FORWARD)
        ops.after(found, before)
        before = found
    for one in rank.collectives:
        cause = _CAUSES.get(one.kind, Cause.GRADIENT_COMM)
        ops.add(row, "communication", TRANSFER, one.kind, 0.0, 0.0, cause=cause, size=one.size_bytes or 0.0)
        ops.issues.add("collective_without_time")


def _simai(ops: Operations, row: int, rank: RankTrace, table: SimaiTable) -> None:
    """Forward over the rows, then backward; gradients are reduced behind the computation."""
    clock, before, gradients = 0.0, -1, -1
    begin, places = len(ops), _Places(ops, rank)

    def compute(name: str, seconds: float, cause: Cause) -> None:
        nonlocal clock, before
        found = ops.add(
            row, "compute", DEVICE, name, clock, clock + seconds, type=cause.name.lower(), cause=cause
        )
        ops.after(found, before)
        clock, before = clock + seconds, found

    def move(stream: str, collective: tuple[str, float], source: int) -> int:
        word = collective[0].partition("_")
        if word[0] in ("NONE", ""):
            return -1
        kind = collective_kind(word[0])
        cause = Cause.GRADIENT_COMM if stream == "gradients" else _CAUSES.get(kind, Cause.TENSOR_COMM)
        found = ops.add(
            row,
            stream,
            TRANSFER,
            collective[0].lower(),
            clock,
            clock,
            type=kind,
            cause=cause,
            size=collective[1],
        )
        ops.after(found, source)
        group = word[2].lower() or ("dp" if stream == "gradients" else "tp")
        places(found, kind, group)
        ops.issues.add("collective_without_time")
        return found

    for one in table.rows:
        compute(one.name, one.forward_s, Cause.FORWARD)
        before = max(move("blocking", one.forward, before), before)
    for one in reversed(table.rows):
        compute(one.name, one.input_gradient_s, Cause.BACKWARD)
        before = max(move("blocking", one.input_gradient, before), before)
        compute(one.name, one.weight_gradient_s, Cause.BACKWARD)
        gradients = max(move("gradients", one.weight_gradient, before), gradients)
    ops.marks.append(("step", row, begin, before, clock))


#: Formats of spans or lists alone.
SPAN_FORMATS = ("tensor-timeline", "chrome-timeline", "aicb-csv", "simai-text", "pytorch-et")
