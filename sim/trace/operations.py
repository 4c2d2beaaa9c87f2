"""Measured operations with their dependencies: the form between a trace and an ExecutionGraph.

An operation is one span of one rank. Operations of several ranks that are one collective or one message share
a *join*: together they become one transfer that starts when its last participant is ready and takes the true
cost, the time from the last arrival to the first end.
"""

from __future__ import annotations

import itertools
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sim.graph.execution import Cause
from sim.trace.issues import Issues
from sim.trace.model import FloatArray, IntArray

HOST, DELAY, DEVICE, TRANSFER = 0, 1, 2, 3
#: Delays that a job would not have if its hosts were fast (unlike the latency of a kernel launch).
LAUNCH_DELAY = "launch delay"


def _integers() -> array[int]:
    return array("i")


def _numbers() -> array[float]:
    return array("d")


#: Ranks of each of several groups.
Groups = tuple[tuple[int, ...], ...]


class Edges:
    """Pairs (operation, operation it waits for), 8 bytes each."""

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._target, self._source = _integers(), _integers()
        for target, source in pairs:
            self.add(target, source)

    def add(self, target: int, source: int) -> None:
        """``target`` waits for ``source``."""
        self._target.append(target)
        self._source.append(source)

    def arrays(self) -> tuple[IntArray, IntArray]:
        """Targets and sources."""
        return np.array(self._target, np.int64), np.array(self._source, np.int64)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._target, self._source, strict=True)

    def __len__(self) -> int:
        return len(self._target)

    def __eq__(self, other: object) -> bool:
        """Whether the same pairs were added in the same order."""
        return isinstance(other, Edges) and list(self) == list(other)


@dataclass
class Operations:
    """Operations as columns that grow: plain numbers, and texts that are one object each.

    Attributes
    ----------
    rank : array of int
        Row of ``ranks``.
    stream : list of str
        Stream of the rank, "" for none (a delay occupies nothing).
    category : array of int
        ``HOST``, ``DELAY``, ``DEVICE`` or ``TRANSFER``.
    type : list of str
        What the operation is called when durations are edited or compared.
    work : array of float
        Seconds it takes once it may start; transfers get theirs from :meth:`resolve_joins`.
    start, end : array of float
        As measured, seconds.
    join : array of int
        Operations with the same number >= 0 are one transfer.
    edges : Edges
        (operation, operation it waits for).
    marks : list of (str, int, int, int, float)
        Measured intervals to be replayed: name, rank row, first operation, last operation, seconds. It runs
        from the start of the first to the end of the last.
    row : array of int
        Row of the rank's timeline; -1 where it is no span of it, empty if that was not kept.
    groups : dict of int to tuple of tuple of int
        Ranks between which a transfer runs, all groups that run it at once, for transfers that a cluster can
        price: those of lists and schedules. A message goes from the first to the second.
    """

    ranks: tuple[int, ...]
    issues: Issues
    rank: array[int] = field(default_factory=_integers)
    stream: list[str] = field(default_factory=list)
    category: array[int] = field(default_factory=_integers)
    cause: list[Cause] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    type: list[str] = field(default_factory=list)
    work: array[float] = field(default_factory=_numbers)
    start: array[float] = field(default_factory=_numbers)
    end: array[float] = field(default_factory=_numbers)
    step: array[int] = field(default_factory=_integers)
    micro_batch: array[int] = field(default_factory=_integers)
    size: array[float] = field(default_factory=_numbers)
    join: array[int] = field(default_factory=_integers)
    edges: Edges = field(default_factory=Edges)
    marks: list[tuple[str, int, int, int, float]] = field(default_factory=list)
    stages: tuple[int, ...] = ()
    row: array[int] = field(default_factory=_integers)
    groups: dict[int, Groups] = field(default_factory=dict)

    def add(
        self,
        rank: int,
        stream: str,
        category: int,
        name: str,
        start: float,
        end: float,
        *,
        type: str = "",
        cause: Cause | None = None,
        work: float | None = None,
        step: int = 0,
        micro_batch: int = -1,
        size: float = 0.0,
        join: int = -1,
        row: int = -1,
    ) -> int:
        """Append an operation; its work is its length unless given."""
        self.rank.append(rank)
        self.stream.append(sys.intern(stream))
        self.category.append(category)
        # What the breakdown must not take for work of the device.
        idle = Cause.CONTROL if category in (HOST, DELAY) else Cause.OTHER
        self.cause.append(idle if cause is None else cause)
        self.name.append(sys.intern(name))
        self.type.append(sys.intern(type or name))
        self.work.append(max(end - start, 0.0) if work is None else work)
        self.start.append(start)
        self.end.append(end)
        self.step.append(step)
        self.micro_batch.append(micro_batch)
        self.size.append(size)
        self.join.append(join)
        self.row.append(row)
        return len(self.rank) - 1

    def after(self, operation: int, *sources: int) -> None:
        """``operation`` waits for the sources; negative ones mean none."""
        for source in sources:
            if source >= 0 and source != operation:
                self.edges.add(operation, source)

    def __len__(self) -> int:
        return len(self.rank)

    def members(self) -> dict[int, list[int]]:
        """Operations of each join."""
        found: dict[int, list[int]] = defaultdict(list)
        for operation, join in enumerate(self.join):
            if join >= 0:
                found[join].append(operation)
        return found

    def resolve_joins(self, *, tolerance: float | None = None) -> None:
        """Give transfers their true cost; take apart what cannot have been one transfer.

        Parameters
        ----------
        tolerance : float, optional
            Largest spread of the ends (seconds, or half of the cost if that is more) of one transfer.
        """
        members = self.members()
        apart: Counter[str] = Counter()
        total: Counter[str] = Counter()
        cost: dict[int, float] = {}
        for join, same in members.items():
            ends = [self.end[o] for o in same]
            cost[join] = min(ends) - max(self.start[o] for o in same)
            spread = max(ends) - min(ends)
            kind = self.type[same[0]]
            total[kind] += 1
            apart[kind] += cost[join] < 0 or (
                tolerance is not None and spread > max(tolerance, 0.5 * cost[join])
            )
        for join, same in members.items():
            kind = self.type[same[0]]
            ends = [self.end[o] for o in same]
            spread = max(ends) - min(ends)
            wrong = cost[join] < 0 or (tolerance is not None and spread > max(tolerance, 0.5 * cost[join]))
            # Kinds that mostly do not match are local operations that only share a name.
            if wrong or 2 * apart[kind] > total[kind]:
                self.issues.add("collective_not_simultaneous")
                for operation in same:
                    self.join[operation] = -1
            else:
                for operation in same:
                    self.work[operation] = cost[join]

    def laid_out(self) -> array[float]:
        """Starts on one clock: steps that restart it (op tables) follow each other."""
        step, start = np.array(self.step, np.int64), np.array(self.start)
        if not len(step) or not step.max():
            return self.start
        count = int(step.max()) + 1
        first, last = np.full(count, np.inf), np.full(count, -np.inf)
        np.minimum.at(first, step, start)
        np.maximum.at(last, step, np.array(self.end))
        if (first[1:] >= last[:-1] - 1e-9).all():
            return self.start
        begin = np.concatenate([[0.0], np.cumsum(np.maximum(last - first, 0.0))[:-1]])
        return array("d", start - first[step] + begin[step])

    def with_work(self, work: Iterable[float]) -> Operations:
        """The same operations with other durations."""
        return replace(self, work=array("d", work))


def rank_numbers(stated: Sequence[int | None]) -> tuple[int, ...]:
    """Numbers of the ranks of a trace: as stated; the lowest free ones where none, or a known one, is."""
    taken = {number for number in stated if number is not None}
    free = (number for number in itertools.count() if number not in taken)
    seen: set[int] = set()
    found = []
    for number in stated:
        found.append(next(free) if number is None or number in seen else number)
        seen.add(found[-1])
    return tuple(found)


def typical(operations: Operations) -> dict[str, float]:
    """What each type of operation takes where nothing straggles: compute its mean, transfers their median.

    The convention of "Understanding Stragglers in Large Model Training Using What-if Analysis" (2025).
    """
    works: dict[str, list[float]] = defaultdict(list)
    moves: dict[str, bool] = {}
    seen: set[int] = set()
    for operation, kind in enumerate(operations.type):
        join = operations.join[operation]
        if join >= 0:
            if join in seen:
                continue
            seen.add(join)
        if operations.category[operation] != DELAY:
            works[kind].append(operations.work[operation])
            moves[kind] = moves.get(kind, False) or join >= 0
    return {
        kind: float(np.median(values) if moves[kind] else np.mean(values)) for kind, values in works.items()
    }


def clock_offsets(ends: list[FloatArray], trust: FloatArray | None = None) -> FloatArray:
    """How far each rank's clock is ahead of the first one's, seconds.

    Parameters
    ----------
    ends : list of ndarray, each of shape (n,)
        Ends of the same collectives on each rank's own clock; NaN where a rank lacks one.
    trust : ndarray, shape (n,), optional
        Weight of each collective when it is decided over which ranks a clock is compared.

    Returns
    -------
    ndarray, shape (ranks,)
        Median difference of the ends, along the pairs of ranks that share most: a collective ends everywhere
        at once, however unequal the arrivals. 0 for ranks that share nothing with any other.
    """
    table = np.array(ends, np.float64).reshape(len(ends), -1)
    weight = np.ones(table.shape[1]) if trust is None else trust
    known = np.isfinite(table)
    shared = (known * weight) @ known.T.astype(np.float64)
    offsets, seen = np.zeros(len(ends)), np.zeros(len(ends), bool)
    for root in range(len(ends)):
        if seen[root]:
            continue
        seen[root] = True
        while True:  # the maximum spanning tree, from the root outwards
            open_pairs = np.where(seen[:, None] & ~seen[None, :], shared, 0.0)
            near, far = np.unravel_index(int(np.argmax(open_pairs)), shared.shape)
            if open_pairs[near, far] <= 0:
                break
            both = known[near] & known[far]
            heavy = both & (weight >= weight[both].max())
            offsets[far] = offsets[near] + float(np.median(table[far, heavy] - table[near, heavy]))
            seen[far] = True
    return offsets
