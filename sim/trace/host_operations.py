"""Operations of Kineto ranks that hold no device spans: CPU training, profiles of the host alone.

The threads of a training step take turns, so all of a rank's threads are one sequence: what runs waits for
what ended last before it, on whichever thread, and for the time in between, which is kept as measured. Of
nested operators the innermost counts. Collectives run beside the threads and are joined between ranks.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

import numpy as np

from sim.errors import InputError
from sim.graph.execution import Cause
from sim.trace.issues import Issues
from sim.trace.kineto_operations import (
    COLLECTIVE_CAUSES,
    END_SPREAD,
    clock_shifts,
    collective_keys,
    shared_keys,
)
from sim.trace.model import COMMUNICATION, COMPUTE, RankTrace, timeline
from sim.trace.operations import DEVICE, HOST, TRANSFER, Operations, rank_numbers
from sim.trace.perfetto import lanes, nanoseconds
from sim.trace.readers.kineto_operators import BACKWARD, Spans
from sim.trace.span_operations import GAP, innermost

#: What describes a collective on the host; the collective itself is a span of its own.
_DESCRIPTIONS = ("record_param_comms", "nccl:", "gloo:", "mpi:", "hccl:", "ucc:", "xccl:")


def has_host_spans(rank: RankTrace) -> bool:
    """Whether a rank has operators of the host and nothing of a device."""
    host = rank.host
    return host is not None and not len(rank.timeline) and bool((host.kind == 0).any())


def host_operations(ranks: list[RankTrace], issues: Issues) -> Operations:
    """Operations of several ranks of one job, clocks aligned, collectives joined.

    Parameters
    ----------
    ranks : list of RankTrace
        Read with ``host=True``, without device spans.
    issues : Issues
        Where findings are counted.

    Raises
    ------
    InputError
        If no rank has operators or collectives with times.
    """
    ranks = [rank for rank in map(with_host_spans, ranks) if len(rank.timeline)]
    if not ranks:
        raise InputError("trace", "hold operators of the host with times", "none")
    ops = Operations(rank_numbers([rank.rank for rank in ranks]), issues)
    keys = [collective_keys(rank) for rank in ranks]
    shared, shift = shared_keys(keys), clock_shifts(ranks, keys)
    first = min(float(rank.timeline["start"].min()) + by for rank, by in zip(ranks, shift, strict=True))
    numbers: dict[tuple[object, ...], int] = {}
    for row, rank in enumerate(ranks):
        join = {s: numbers.setdefault(key, len(numbers)) for s, key in keys[row].items() if key in shared}
        alone = (rank.world_size or len(ranks)) > 1
        issues.add("collective_of_absent_ranks", len(keys[row]) - len(join) if alone else 0)
        _rank(ops, row, rank, float(shift[row]) - first, join)
    issues.add(
        "host_operators_replayed",
        sum(int((rank.timeline.integer("kind") == COMPUTE).sum()) for rank in ranks),
    )
    ops.resolve_joins(tolerance=END_SPREAD)
    return ops


def with_host_spans(rank: RankTrace) -> RankTrace:
    """The rank with its operators and collectives as a timeline, one stream per thread."""
    host = rank.host
    assert host is not None
    dull = np.array(
        [name.startswith(("ProfilerStep", *_DESCRIPTIONS)) for name in host.names] or [False], bool
    )
    rows = np.flatnonzero((host.kind == 0) & ~dull[host.name])
    moved = [c for c in rank.collectives if np.isfinite(c.start) and np.isfinite(c.end)]
    names = [*host.names, *dict.fromkeys(c.kind for c in moved)]
    number = {name: len(host.names) + i for i, name in enumerate(names[len(host.names) :])}
    spans = timeline(
        start=np.concatenate([host.start[rows], [c.start for c in moved]]),
        end=np.concatenate([host.end[rows], [c.end for c in moved]]),
        name=np.concatenate([host.name[rows], [number[c.kind] for c in moved]]).astype(np.int64),
        kind=np.repeat([COMPUTE, COMMUNICATION], [len(rows), len(moved)]),
        names=names,
        stream=np.concatenate([host.thread[rows], np.full(len(moved), len(host.threads))]).astype(np.int64),
        streams=(*(f"thread {i}" for i in range(len(host.threads))), "communication"),
    )
    found = tuple(replace(c, row=len(rows) + i) for i, c in enumerate(moved))
    return replace(rank, timeline=spans, collectives=found)


def _rank(ops: Operations, row: int, rank: RankTrace, shift: float, join: dict[int, int]) -> None:
    """One rank: pieces of all threads, collectives and the marks of steps, in order of their starts."""
    spans = rank.timeline
    stream, kind = spans.integer("stream"), spans.integer("kind")
    start, end = spans["start"] + shift, spans["end"] + shift
    pieces: list[tuple[float, float, int, int]] = []
    for thread in np.unique(stream).tolist():
        rows = np.flatnonzero(stream == thread)
        if kind[rows[0]] == COMMUNICATION:
            lane_of = lanes(nanoseconds(start[rows]), nanoseconds(end[rows])).tolist()
            pieces += [
                (float(start[s]), float(end[s]), int(s), n) for s, n in zip(rows, lane_of, strict=True)
            ]
            continue
        cut = innermost(start[rows].tolist(), end[rows].tolist())
        pieces += [(a, b, int(rows[s]), lane) for lane, found in enumerate(cut) for a, b, s in found]
    steps = [step for step in rank.steps if np.isfinite(step.start)]
    for place, step in enumerate(steps):  # a mark is known by its number below 0
        pieces += [
            (t + shift, t + shift, -2 * place - side, 0) for side, t in ((1, step.start), (2, step.end))
        ]
    marks = _sequence(ops, row, rank, sorted(pieces), join)
    if not steps:
        mine = [o for o in range(len(ops)) if ops.rank[o] == row and ops.name[o] != GAP]
        begin, last = min(mine, key=lambda o: ops.start[o]), max(mine, key=lambda o: ops.end[o])
        ops.marks.append(("trace", row, begin, last, ops.end[last] - ops.start[begin]))
    for place, step in enumerate(steps):
        ops.marks.append((step.name, row, marks[-2 * place - 1], marks[-2 * place - 2], step.duration))


def _sequence(
    ops: Operations,
    row: int,
    rank: RankTrace,
    pieces: list[tuple[float, float, int, int]],
    join: dict[int, int],
) -> dict[int, int]:
    """Add pieces so that each waits for what ended last before it began; returns operations of marks."""
    causes = _Causes(rank)
    marks: dict[int, int] = {}
    ends: list[tuple[float, int]] = []
    for start, end, at, lane in pieces:
        before = bisect_right(ends, (start, len(ops))) - 1
        ready, source = ends[before] if before >= 0 else (min(start, 0.0), -1)
        if start > ready:
            gap = ops.add(row, "", HOST, GAP, ready, start)
            ops.after(gap, source)
            source = gap
        if at < 0:
            operation = marks[at] = ops.add(row, "", HOST, "step", start, end, type="mark")
        else:
            operation = _add(ops, row, rank, (start, end, at, lane), causes, join.get(at, -1))
        ops.after(operation, source)
        ends.insert(bisect_right(ends, (end, operation)), (end, operation))
    return marks


def _add(
    ops: Operations,
    row: int,
    rank: RankTrace,
    piece: tuple[float, float, int, int],
    causes: _Causes,
    join: int,
) -> int:
    """A piece of an operator, or a collective."""
    spans, (start, end, at, lane) = rank.timeline, piece
    thread = spans.streams[int(spans.integer("stream")[at])] + (f" ({lane + 1})" if lane else "")
    name = spans.names[int(spans.integer("name")[at])]
    one = causes.collective.get(at)
    if one is None:
        return ops.add(row, thread, DEVICE, name, start, end, cause=causes(at))
    cause = COLLECTIVE_CAUSES.get(one.kind, Cause.GRADIENT_COMM)
    return ops.add(
        row, thread, TRANSFER, name, start, end, cause=cause, join=join, size=one.size_bytes or 0.0
    )


class _Causes:
    """Forward, backward or optimiser, by where an operator began."""

    def __init__(self, rank: RankTrace) -> None:
        host, self.spans = rank.host, rank.timeline
        assert host is not None
        self.collective = {c.row: c for c in rank.collectives}
        engine = np.array([bool(BACKWARD.search(name)) for name in host.names] or [False], bool)
        mine = (host.kind == 0) & engine[host.name]
        self.backward = Spans(host.thread[mine], host.start[mine], host.end[mine])
        self.updates = [(u.start, u.end) for u in rank.updates if u.name.startswith("Optimizer.step")]

    def __call__(self, at: int) -> Cause:
        time, thread = float(self.spans["start"][at]), int(self.spans.integer("stream")[at])
        if (thread, time) in self.backward:
            return Cause.BACKWARD
        updating = any(first <= time <= last for first, last in self.updates)
        return Cause.OPTIMIZER if updating else Cause.FORWARD
