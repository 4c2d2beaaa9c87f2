"""What each forward operator of a Kineto trace took on the device, forward and backward.

Every device span is traced back to the host call that launched it, and from there to the operator that was
running: forward by time on its thread, backward by the sequence number that autograd gives both sides. The
device's clock is walked in order: a span counts from where the one before it ended, so what overlaps counts
once, and a gap before a span that is no wait for communication is time the host needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sim.trace.host_layer_times import walk_step
from sim.trace.model import COMMUNICATION, FloatArray, HostTable, IntArray, RankTrace
from sim.trace.operators import Operator
from sim.trace.readers.kineto_operators import BACKWARD, Spans, step_windows

#: Owners of spans besides the operators.
UPDATE, REST, UNKNOWN_BACKWARD = -1, -2, -3
#: A gap shorter than this (seconds) is the device's own.
SMALL_GAP = 2e-6


@dataclass
class LayerTimes:
    """Times of the operators of one step, seconds; means over the steps that run the same operators.

    Attributes
    ----------
    forward_s, backward_s : ndarray, shape (operators,)
        Device time.
    forward_host_s, backward_host_s : ndarray, shape (operators,)
        Time that passed on the device's clock where the host could not keep it busy.
    gradient_bytes : ndarray, shape (operators,)
        Bytes all-reduced by collectives that were launched during the operator's backward pass.
    update_s, rest_s : float
        Time of the optimiser, and of everything else between two steps.
    exposed_s : float
        Waiting for communication.
    step_s : float
        Mean length of the steps used.
    steps : int
        How many.
    unknown_backward_s : float
        Backward time whose operator the trace does not say; it is in ``backward_s``, spread like the rest.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    forward_host_s: FloatArray
    backward_host_s: FloatArray
    gradient_bytes: FloatArray
    update_s: float = 0.0
    rest_s: float = 0.0
    exposed_s: float = 0.0
    step_s: float = 0.0
    steps: int = 0
    unknown_backward_s: float = 0.0


@dataclass
class _Step:
    """Accounts of one step, by owner (operator index, or one of the constants) and direction."""

    device: dict[tuple[int, bool], float] = field(default_factory=lambda: defaultdict(float))
    gap: dict[tuple[int, bool], float] = field(default_factory=lambda: defaultdict(float))
    sent: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    exposed: float = 0.0


def layer_times(rank: RankTrace) -> LayerTimes | None:
    """Times of the operators of ``rank.operators``; None without launches or device spans.

    Parameters
    ----------
    rank : RankTrace
        A Kineto rank, read with ``host=True``.
    """
    if rank.host is None or rank.correlation is None or not rank.operators:
        return None
    if not len(rank.timeline):
        return host_layer_times(rank)
    windows, chosen = step_windows(rank), _chosen(rank)
    launches = _Launches(rank)
    if not launches.found:
        return None
    steps = []
    for index in chosen:
        owners = _Owners(rank, rank.operator_steps[index], windows[index], rank.host)
        steps.append(_account(rank, launches, owners, windows[index]))
    if not any(step.device for step in steps):
        return None
    return _mean(rank, steps, [windows[i] for i in chosen], len(rank.operators))


def host_layer_times(rank: RankTrace) -> LayerTimes | None:
    """Times where the host computes; None without finite steps. Waiting for communication is not known."""
    assert rank.host is not None
    windows = step_windows(rank)
    host = rank.host
    if windows == [(-np.inf, np.inf)] and len(host.start):  # no steps: everything is one
        windows = [(float(host.start.min()), float(host.end.max()))]
    chosen = [i for i in _chosen(rank) if np.isfinite(windows[i][1] - windows[i][0])]
    if not chosen:
        return None
    steps = [walk_step(rank, host, rank.operator_steps[i], windows[i]) for i in chosen]
    forward = np.asarray(np.mean([s[0] for s in steps], axis=0), np.float64)
    backward = np.asarray(np.mean([s[1] for s in steps], axis=0), np.float64)
    none = np.zeros(len(forward))
    return LayerTimes(
        forward,
        backward,
        none,
        none,
        none,
        update_s=float(np.mean([s[2] for s in steps])),
        rest_s=float(np.mean([s[3] for s in steps])),
        step_s=float(np.mean([windows[i][1] - windows[i][0] for i in chosen])),
        steps=len(chosen),
    )


def _chosen(rank: RankTrace) -> list[int]:
    """Steps that run the typical operators; the first one warms up."""
    wanted = _key(rank.operators)
    chosen = [i for i, operators in enumerate(rank.operator_steps) if _key(operators) == wanted]
    return chosen[1:] if len(chosen) > 2 else chosen


def _key(operators: Sequence[Operator]) -> tuple[object, ...]:
    return tuple((operator.name, operator.inputs) for operator in operators)


class _Launches:
    """When and on which thread each device span was launched, spans in order of their starts."""

    def __init__(self, rank: RankTrace) -> None:
        host, correlation = rank.host, rank.correlation
        assert host is not None
        assert correlation is not None
        calls = np.flatnonzero((host.kind == 1) & (host.correlation >= 0))
        order = calls[np.argsort(host.correlation[calls], kind="stable")]
        self.found = bool(len(order)) and bool((correlation >= 0).any())
        self.time = np.full(len(correlation), np.nan)
        self.thread = np.full(len(correlation), -1, np.int64)
        if not self.found:
            return
        at = np.minimum(np.searchsorted(host.correlation[order], correlation), len(order) - 1)
        known = (host.correlation[order[at]] == correlation) & (correlation >= 0)
        self.time[known] = host.start[order[at]][known]
        self.thread[known] = host.thread[order[at]][known]
        # A span without its launch runs with the one before it on its stream.
        self.time[~known] = rank.timeline["start"][~known]


class _Owners:
    """Says to which operator (and direction) a launch belongs."""

    def __init__(
        self, rank: RankTrace, operators: Sequence[Operator], window: tuple[float, float], host: HostTable
    ) -> None:
        self.starts = np.array([operator.start for operator in operators])
        self.forward = operators[0].thread
        self.updates = [u for u in rank.updates if u.end > window[0] and u.start < window[1]]
        engine = np.array([bool(BACKWARD.search(name)) for name in host.names] or [False], bool)
        inside = (host.start >= window[0]) & (host.start < window[1]) & (host.kind == 0)
        mine = inside & engine[host.name] if len(host.name) else inside
        self.backward = {int(thread) for thread in np.unique(host.thread[mine])}
        self.spans = Spans(host.thread[mine], host.start[mine], host.end[mine])
        self.begin_backward = float(host.start[mine].min()) if mine.any() else np.inf
        self.layer_of = self._sequences(host, inside & ~mine & (host.thread == self.forward))
        self.engine_start: dict[int, FloatArray] = {}
        self.engine_layer: dict[int, IntArray] = {}
        numbered = mine & (host.sequence >= 0)
        for thread in self.backward:
            rows = np.flatnonzero(numbered & (host.thread == thread))
            rows = rows[np.argsort(host.start[rows], kind="stable")]
            layers = [self.layer_of.get(int(n), UNKNOWN_BACKWARD) for n in host.sequence[rows]]
            self.engine_start[thread] = host.start[rows]
            self.engine_layer[thread] = np.array(layers, np.int64)

    def _sequences(self, host: HostTable, rows: np.ndarray) -> dict[int, int]:
        """Operator of each sequence number: the last one to state it is the one that made its node."""
        at = np.flatnonzero(rows & (host.sequence >= 0))
        at = at[np.argsort(host.start[at], kind="stable")]
        owner = np.searchsorted(self.starts, host.start[at], "right") - 1
        pairs = zip(host.sequence[at].tolist(), owner.tolist(), strict=True)
        return {number: layer for number, layer in pairs if layer >= 0}

    def __call__(self, time: float, thread: int) -> tuple[int, bool]:
        """Owner of a launch and whether it is backward."""
        if thread in self.backward and (thread != self.forward or (thread, time) in self.spans):
            at = int(np.searchsorted(self.engine_start[thread], time, "right")) - 1
            return (int(self.engine_layer[thread][at]) if at >= 0 else UNKNOWN_BACKWARD), True
        for update in self.updates:
            if update.start <= time <= update.end:
                return (UPDATE if update.name.startswith("Optimizer.step") else REST), False
        at = int(np.searchsorted(self.starts, time, "right")) - 1
        return (REST if at < 0 or time >= self.begin_backward else at), False


def _account(rank: RankTrace, launches: _Launches, owners: _Owners, window: tuple[float, float]) -> _Step:
    """Walk the device's clock through the spans launched in one step."""
    start, end = rank.timeline["start"], rank.timeline["end"]
    moves = rank.timeline.integer("kind") == COMMUNICATION
    mine = (launches.time >= window[0]) & (launches.time < window[1])
    before = ~mine & (launches.time < window[0]) & ~moves
    clock = max(float(end[before].max()) if before.any() else -np.inf, window[0])
    if not np.isfinite(clock):
        clock = float(start[mine].min()) if mine.any() else 0.0
    busy = Union(start[moves], end[moves])
    step, size = _Step(), {c.row: c.size_bytes or 0.0 for c in rank.collectives if c.kind == "all_reduce"}
    rows = np.flatnonzero(mine)
    for row in rows[np.lexsort((end[rows], start[rows]))].tolist():
        owner, backward = owners(float(launches.time[row]), int(launches.thread[row]))
        if moves[row]:
            step.sent[owner] += size.get(row, 0.0) if backward else 0.0
            continue
        gap = float(start[row]) - clock
        if gap > 0:
            waited = busy.length(clock, float(start[row]))
            step.exposed += waited
            step.gap[owner, backward] += gap - waited
        step.device[owner, backward] += max(float(end[row]) - max(clock, float(start[row])), 0.0)
        clock = max(clock, float(end[row]))
    return step


class Union:
    """Length of a union of intervals within a window."""

    def __init__(self, start: FloatArray, end: FloatArray) -> None:
        order = np.argsort(start, kind="stable")
        first, last = start[order], np.maximum.accumulate(end[order]) if len(end) else end
        fresh = np.concatenate([[True], first[1:] > last[:-1]]) if len(first) else np.zeros(0, bool)
        self.first = first[fresh]
        self.last = last[np.append(np.flatnonzero(fresh)[1:] - 1, len(last) - 1)] if len(first) else last
        self.total = np.concatenate([[0.0], np.cumsum(self.last - self.first)])

    def _until(self, time: float) -> float:
        at = int(np.searchsorted(self.first, time, "right")) - 1
        if at < 0:
            return 0.0
        return float(self.total[at] + min(time, self.last[at]) - self.first[at])

    def length(self, begin: float, end: float) -> float:
        """Seconds of the union between ``begin`` and ``end``."""
        return self._until(end) - self._until(begin)


def _mean(rank: RankTrace, steps: list[_Step], windows: list[tuple[float, float]], count: int) -> LayerTimes:
    """Means over steps; backward time of unknown operators is spread over the known ones."""

    def column(kind: str, backward: bool) -> FloatArray:
        values = [[getattr(s, kind).get((i, backward), 0.0) for i in range(count)] for s in steps]
        return np.asarray(np.mean(values, axis=0), np.float64)

    def total(owner: int) -> float:
        keys = [(owner, backward) for backward in (False, True)]
        return float(np.mean([sum(s.device.get(k, 0.0) + s.gap.get(k, 0.0) for k in keys) for s in steps]))

    forward, backward = column("device", False), column("device", True)
    forward_gap, backward_gap = column("gap", False), column("gap", True)
    unknown = total(UNKNOWN_BACKWARD)
    weight = backward if backward.sum() > 0 else forward
    if weight.sum() > 0:
        backward = backward + unknown * weight / weight.sum()
    lengths = [last - first for first, last in windows if np.isfinite(last - first)]
    span = rank.timeline
    whole = float(span["end"].max() - span["start"].min())
    return LayerTimes(
        forward,
        backward,
        np.where(forward_gap > SMALL_GAP, forward + forward_gap, 0.0),
        np.where(backward_gap > SMALL_GAP, backward + backward_gap, 0.0),
        np.asarray(np.mean([[s.sent.get(i, 0.0) for i in range(count)] for s in steps], axis=0), np.float64),
        update_s=total(UPDATE),
        rest_s=total(REST),
        exposed_s=float(np.mean([s.exposed for s in steps])),
        step_s=float(np.mean(lengths)) if lengths else whole,
        steps=len(steps),
        unknown_backward_s=unknown,
    )
