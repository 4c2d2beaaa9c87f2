"""Operations of Kineto ranks: a host that issues, streams that run, waits in both directions.

All host threads of a rank are one sequence of launches and waits: the threads of a training step take turns.
The time between two of them is host work and stays as measured; waiting for the device does not, it follows
from what is waited for.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from sim.graph.execution import Cause
from sim.trace.issues import Issues
from sim.trace.model import COMMUNICATION, Collective, FloatArray, IntArray, RankTrace
from sim.trace.operations import DELAY, DEVICE, HOST, TRANSFER, Operations, clock_offsets, rank_numbers
from sim.trace.readers.kineto_operators import BACKWARD

_SYNCHRONIZE = re.compile(r"Synchronize", re.IGNORECASE)
_COPY = re.compile(r"^(cuda|hip|cu)Memcpy", re.IGNORECASE)
#: What a collective of a traced rank is for, by its kind; all-reduces carry gradients.
COLLECTIVE_CAUSES = {
    "all_to_all": Cause.EXPERT_COMM,
    "all_gather": Cause.PARAMETER_COMM,
    "send": Cause.PIPELINE_COMM,
    "recv": Cause.PIPELINE_COMM,
    "send_recv": Cause.PIPELINE_COMM,
}
#: Marks the keys of sends and receives.
MESSAGE = "message"
#: A span that starts this soon after another one's end was waiting for it, seconds.
CLOSE = 20e-6
#: Ends of one collective may differ by this much between ranks, seconds.
END_SPREAD = 1e-3


def kineto_operations(ranks: list[RankTrace], issues: Issues) -> Operations:
    """Operations of several ranks of one job, clocks aligned, collectives joined.

    Parameters
    ----------
    ranks : list of RankTrace
        Read with ``host=True``; without launches a rank's streams only follow themselves.
    issues : Issues
        Where findings are counted.
    """
    ops = Operations(rank_numbers([rank.rank for rank in ranks]), issues)
    keys = [collective_keys(rank) for rank in ranks]
    shift = clock_shifts(ranks, keys)
    first = min(_first_time(rank) + offset for rank, offset in zip(ranks, shift, strict=True))
    numbers: dict[tuple[object, ...], int] = {}
    shared = shared_keys(keys)
    for row, rank in enumerate(ranks):
        join = {
            span: numbers.setdefault(key, len(numbers)) for span, key in keys[row].items() if key in shared
        }
        lonely = len(keys[row]) - len(join)
        # A folded export lists one of several equal ranks: nobody is absent.
        alone = (rank.world_size or len(ranks)) > 1 and rank.format != "clusterloom"
        issues.add("collective_of_absent_ranks", lonely if alone else 0)
        _Rank(ops, row, rank, shift[row] - first, join).build()
    ops.resolve_joins(tolerance=END_SPREAD)
    return ops


def collective_keys(rank: RankTrace) -> dict[int, tuple[object, ...]]:
    """Row of each collective's span -> what identifies the collective among the ranks.

    Sends and receives are known by who sends to whom, and their order.
    """
    groups = {group.name: group.ranks for group in rank.groups}
    count: dict[tuple[object, ...], int] = defaultdict(int)
    found: dict[int, tuple[object, ...]] = {}
    for one in rank.collectives:
        if one.row < 0:
            continue
        members = groups.get(one.group, ())
        if one.kind in ("send", "recv"):
            pair = _pair(rank, one, members)
            if pair is None:
                continue
            key: tuple[object, ...] = (one.group, members, MESSAGE, *pair)
            found[one.row] = (*key, count[key])
        else:
            key = (one.group, members, one.kind, one.size_bytes)
            found[one.row] = (*key, one.sequence if one.sequence is not None else count[key])
        count[key] += 1
    return found


def _pair(rank: RankTrace, one: Collective, members: tuple[int, ...]) -> tuple[int, int] | None:
    """Sender and receiver of a message; the trace names the peer by its place in the group."""
    if one.peer is None or rank.rank is None:
        return None
    inside = members[one.peer] if 0 <= one.peer < len(members) else one.peer
    other = one.peer if inside == rank.rank else inside
    if other == rank.rank:
        return None
    return (rank.rank, other) if one.kind == "send" else (other, rank.rank)


def shared_keys(keys: list[dict[int, tuple[object, ...]]]) -> set[tuple[object, ...]]:
    """Keys that more than one rank has."""
    seen: dict[tuple[object, ...], int] = defaultdict(int)
    for rank in keys:
        for key in set(rank.values()):
            seen[key] += 1
    return {key for key, count in seen.items() if count > 1}


def clock_shifts(ranks: list[RankTrace], keys: list[dict[int, tuple[object, ...]]]) -> FloatArray:
    """What to add to each rank's times to have them on the first rank's clock."""
    base = min(rank.clock_origin_ns for rank in ranks)
    origin = np.array([(rank.clock_origin_ns - base) * 1e-9 for rank in ranks])
    order = sorted(shared_keys(keys), key=repr)
    ends = []
    for row, rank in enumerate(ranks):
        end = {key: rank.timeline["end"][span] + origin[row] for span, key in keys[row].items()}
        ends.append(np.array([end.get(key, np.nan) for key in order]))
    # Messages may be buffered and end apart: they only bridge ranks that share no collective.
    trust = np.array([1e-6 if MESSAGE in key else 1.0 for key in order])
    return origin - clock_offsets(ends, trust)


def _first_time(rank: RankTrace) -> float:
    times = [float(rank.timeline["posted"].min())]
    times += [step.start for step in rank.steps if np.isfinite(step.start)]
    return min(times)


@dataclass(slots=True)
class _Call:
    """A point of the host's sequence: a launch, a wait for the device, or a mark."""

    start: float
    end: float
    kind: str
    spans: list[int] = field(default_factory=list)
    name: str = ""
    backward: bool = False


class _Rank:
    """Builds the operations of one rank."""

    def __init__(
        self, ops: Operations, row: int, rank: RankTrace, shift: float, join: dict[int, int]
    ) -> None:
        self.ops, self.row, self.rank, self.join = ops, row, rank, join
        spans = rank.timeline
        self.start, self.end = spans["start"] + shift, spans["end"] + shift
        self.posted, self.stream = spans["posted"] + shift, spans.integer("stream")
        self.shift = shift
        self.known_cause = spans.integer("cause")
        self.kind, self.names = spans.integer("kind"), spans.integer("name")
        self.collective: dict[int, Collective] = {c.row: c for c in rank.collectives if c.row >= 0}
        self.operation = np.full(len(self.start), -1, np.int64)
        self.issuer = np.full(len(self.start), -1, np.int64)
        self.backward = np.zeros(len(self.start), np.bool_)
        self.rows = _without_duplicates(self.start, self.end, self.stream, self.names)
        self.by_end = self.rows[np.argsort(self.end[self.rows], kind="stable")]
        self.ends = self.end[self.by_end]
        known = np.zeros(0, np.int64) if rank.correlation is None else rank.correlation[self.rows]
        order = np.argsort(known, kind="stable")
        self.launch_key, self.launch_row = known[order], self.rows[order[: len(known)]]

    def build(self) -> None:
        """Host sequence first (it fixes who issued what), then spans in order of time, then the waits."""
        rows = self._host_rows()
        waits = self._host(self._calls(rows), alone=not len(rows))
        if (self.issuer >= 0).any():
            self.ops.issues.add("kernel_without_launch", int((self.issuer[self.rows] < 0).sum()))
        if self.rank.tensor_producers and self.rank.format != "clusterloom":
            known = sum(span in self.rank.tensor_producers for span in self.rows.tolist())
            self.ops.issues.add("kernel_without_node", len(self.rows) - known)
        self._spans()
        for operation, span in waits:
            self.ops.after(operation, int(self.operation[span]))
        self._mark_trace()

    # ---- host -------------------------------------------------------------------------------------------

    def _calls(self, rows: IntArray) -> Iterator[_Call]:
        """Marks of steps, launches and waits in order of time; ``rows``: calls of the host."""
        steps = [step for step in self.rank.steps if np.isfinite(step.start)]
        marks = [time for step in steps for time in (step.start, step.end)]
        host = self.rank.host
        times = np.array(marks) if host is None else np.concatenate([marks, host.start[rows]])
        backward = _backward_threads(self.rank)
        for place in np.argsort(times, kind="stable").tolist():
            at = float(times[place] + self.shift)
            if place < len(marks):
                yield _Call(at, at, "end" if place % 2 else "begin", name=steps[place // 2].name)
                continue
            assert host is not None
            row = int(rows[place - len(marks)])
            name, spans = host.names[host.name[row]], self._launched(int(host.correlation[row]))
            end = float(host.end[row] + self.shift)
            blocking = bool(_SYNCHRONIZE.search(name)) or (
                bool(_COPY.search(name)) and all(self.end[s] <= end + 2e-6 for s in spans)
            )
            yield _Call(
                at, end, "wait" if blocking else "launch", spans, name, int(host.thread[row]) in backward
            )

    def _host_rows(self) -> IntArray:
        """Runtime calls that launched something or wait for the device."""
        host, correlation = self.rank.host, self.rank.correlation
        if host is None or correlation is None:
            return np.zeros(0, np.int64)
        waits = np.array([bool(_SYNCHRONIZE.search(name)) for name in host.names] or [False], bool)
        calls = np.flatnonzero(host.kind == 1)
        launching = np.isin(host.correlation[calls], correlation[self.rows]) & (host.correlation[calls] >= 0)
        found: IntArray = calls[launching | waits[host.name[calls]]]
        return found

    def _launched(self, correlation: int) -> list[int]:
        """Spans of a launch, in order of their rows."""
        first, last = np.searchsorted(self.launch_key, (correlation, correlation + 1))
        return self.launch_row[first:last].tolist() if correlation >= 0 else []

    def _host(self, calls: Iterable[_Call], *, alone: bool) -> list[tuple[int, int]]:
        """The host's sequence; returns (operation, span it waits for). ``alone``: no host issues anything."""
        ops, row = self.ops, self.row
        now, previous = 0.0, -1
        waits: list[tuple[int, int]] = []
        begun: dict[str, tuple[int, float]] = {}
        for call in calls:
            at = max(call.start, now)
            # Where no host issues what the device runs, a step ends with the last of it.
            last = self._ended(at) if alone and call.kind == "end" else -1
            since = max(now, float(self.end[last])) if last >= 0 else now
            work = max(at - since, 0.0)
            operation = ops.add(row, "host", HOST, "host", now, at, type="host", work=work)
            ops.after(operation, previous)
            if last >= 0:
                waits.append((operation, last))
            now, previous = at, operation
            self.issuer[call.spans] = operation
            self.backward[call.spans] = call.backward
            if call.kind == "begin":
                begun[call.name] = (ops.add(row, "", HOST, call.name, at, at, type="mark"), at)
                ops.after(begun[call.name][0], operation)
            elif call.kind == "end" and call.name in begun:
                first, start = begun.pop(call.name)
                ops.marks.append((call.name, row, first, operation, at - start))
            elif call.kind == "wait":
                span = self._awaited(call)
                begin = max(call.start, float(self.end[span])) if span >= 0 else call.start
                length = max(call.end - max(begin, now), 0.0)
                previous = ops.add(
                    row, "host", HOST, "host", now, max(call.end, now), type="host", work=length
                )
                ops.after(previous, operation)
                now = max(call.end, now)
                if span >= 0:
                    waits.append((previous, span))
        return waits

    def _ended(self, time: float) -> int:
        """The span that is the last to end by ``time``; -1 if none does."""
        place = int(np.searchsorted(self.ends, time + 1e-9, "right")) - 1
        return int(self.by_end[place]) if place >= 0 else -1

    def _awaited(self, call: _Call) -> int:
        """The span that a blocking call waited for: the last to end inside it of those issued before."""
        first, last = np.searchsorted(self.ends, (call.start, call.end + 1e-6), "right")
        inside = self.by_end[first:last]
        issued = inside[self.posted[inside] <= call.start + 1e-9]
        both = np.union1d(
            issued, np.array([s for s in call.spans if self.end[s] <= call.end + 2e-6], np.int64)
        )
        return int(both[np.argmax(self.end[both])]) if len(both) else -1

    # ---- device -----------------------------------------------------------------------------------------

    def _spans(self) -> None:
        last: dict[int, int] = {}
        ended: deque[int] = deque(maxlen=64)  # by their ends, for finding what a span waited for
        by_end, at = self.by_end, 0
        for span in self._by_start().tolist():
            while at < len(by_end) and self.end[by_end[at]] <= self.start[span] + 1e-6:
                ended.append(int(by_end[at]))
                at += 1
            stream = int(self.stream[span])
            before = last.get(stream, -1)
            self._span(span, before, ended)
            if before < 0 or self.end[span] >= self.end[before]:  # what overlaps on a stream may end earlier
                last[stream] = span

    def _by_start(self) -> IntArray:
        """Spans in order of their starts; of equal ones first what was posted, then what ended first."""
        keys = (column[self.rows] for column in (self.end, self.posted, self.start))
        found: IntArray = self.rows[np.lexsort(tuple(keys))]
        return found

    def _span(self, span: int, before: int, ended: deque[int]) -> None:
        ops, start = self.ops, float(self.start[span])
        issuer = int(self.issuer[span])
        free = float(self.end[before]) if before >= 0 else 0.0
        ready = max(free, float(self.posted[span]) if issuer >= 0 else 0.0)
        source = before if before >= 0 and (issuer < 0 or free >= self.posted[span]) else -1
        producers = self._producers(span)
        cause = -1
        if producers is not None:
            latest = max(producers, key=lambda p: float(self.end[p]), default=-1)
            cause = latest if latest >= 0 and self.end[latest] > ready else -1
        elif start - ready > 2e-6:
            cause = self._waited_for(span, ready, ended)
        if cause >= 0:
            ready, source = float(self.end[cause]), cause
        # Of kernels that overlap on their stream each adds what it ends later.
        operation = self._operation(span, max(float(self.end[span]) - max(start, free), 0.0))
        lag = start - ready
        if lag > 0:
            delay = ops.add(self.row, "", DELAY, "launch", ready, start, type="launch")
            ops.after(delay, int(self.operation[source]) if source >= 0 else issuer)
            ops.after(operation, delay)
        elif cause >= 0:
            ops.after(operation, int(self.operation[cause]))
        ops.after(operation, issuer, int(self.operation[before]) if before >= 0 else -1)
        ops.after(operation, *(int(self.operation[p]) for p in producers or ()))
        ops.issues.add("tensor_dependency", int(bool(producers) and self.rank.format != "clusterloom"))

    def _producers(self, span: int) -> list[int] | None:
        """Spans of other streams whose tensors this one reads; None if the trace does not say."""
        known = self.rank.tensor_producers.get(span)
        if known is None:
            return None
        return [
            p
            for p in known
            if self.stream[p] != self.stream[span]
            and self.operation[p] >= 0
            and self.end[p] <= self.start[span] + 1e-6  # a name may be wrong, a clock is not
        ]

    def _waited_for(self, span: int, ready: float, ended: deque[int]) -> int:
        """The span of another stream whose end let this one start; -1 if none ended just before."""
        for other in reversed(ended):
            if self.end[other] < max(ready, self.start[span] - CLOSE):
                return -1
            if self.stream[other] != self.stream[span] and self.operation[other] >= 0:
                return other
        return -1

    def _operation(self, span: int, work: float) -> int:
        collective = self.collective.get(span)
        moving = self.kind[span] == COMMUNICATION
        name = self.rank.timeline.names[self.names[span]]
        known = int(self.known_cause[span])
        if known >= 0:
            cause = Cause(known)
        elif collective is not None and moving:
            cause = COLLECTIVE_CAUSES.get(collective.kind, Cause.GRADIENT_COMM)
        else:
            cause = Cause.BACKWARD if self.backward[span] else Cause.FORWARD
        streams = self.rank.timeline.streams
        operation = self.ops.add(
            self.row,
            f"stream {streams[self.stream[span]] if self.stream[span] >= 0 else '?'}",
            TRANSFER if moving else DEVICE,
            name,
            float(self.start[span]),
            float(self.end[span]),
            type=collective.kind if collective is not None and moving else name,
            cause=cause,
            work=work,
            join=self.join.get(span, -1),
            size=(collective.size_bytes or 0.0) if collective is not None else 0.0,
            row=span,
        )
        self.operation[span] = operation
        return operation

    def _mark_trace(self) -> None:
        """Without steps the whole trace is the interval to be replayed."""
        if any(row == self.row for _, row, *_ in self.ops.marks):
            return
        mine = [
            o for o in range(len(self.ops)) if self.ops.rank[o] == self.row and self.ops.category[o] != DELAY
        ]
        if not mine:
            return
        first = min(
            mine, key=lambda o: self.ops.start[o] if self.ops.category[o] != HOST else self.ops.end[o]
        )
        last = max(mine, key=lambda o: self.ops.end[o])
        begin = self.ops.start[first] if self.ops.category[first] != HOST else self.ops.end[first]
        if self.ops.category[first] == HOST:
            first = self._mark_at(first)
        self.ops.marks.append(("trace", self.row, first, last, self.ops.end[last] - begin))

    def _mark_at(self, operation: int) -> int:
        """An operation of no length right behind ``operation``."""
        end = self.ops.end[operation]
        mark = self.ops.add(self.row, "", HOST, "trace", end, end, type="mark")
        self.ops.after(mark, operation)
        return mark


def _without_duplicates(start: FloatArray, end: FloatArray, stream: IntArray, name: IntArray) -> IntArray:
    """Rows without exact repetitions."""
    if not len(start):
        return np.zeros(0, np.int64)
    table = np.stack([start, end, stream.astype(float), name.astype(float)], axis=1)
    return np.sort(np.unique(table, axis=0, return_index=True)[1]).astype(np.int64)


def _backward_threads(rank: RankTrace) -> set[int]:
    """Threads on which the autograd engine ran."""
    host = rank.host
    if host is None:
        return set()
    if not len(host.name):
        return set()
    engine = np.array([bool(BACKWARD.search(name)) for name in host.names], bool)
    rows = host.kind == 0
    total = np.bincount(host.thread[rows], minlength=1)
    mine = np.bincount(host.thread[rows & engine[host.name]], minlength=len(total))
    # Forward threads run a few of the engine's operators; its own threads run them and what they call.
    return set(np.flatnonzero(mine > 0.1 * total).tolist())
