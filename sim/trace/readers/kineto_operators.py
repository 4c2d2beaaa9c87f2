"""Forward operators of a Kineto file, step by step, with their shapes and host times."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import replace

import numpy as np

from sim.trace.model import FloatArray, IntArray, RankTrace, Update
from sim.trace.operators import Operator
from sim.trace.readers.chrome import ChromeEvents

MICROSECOND = 1e-6
#: Operators that only the autograd engine runs.
BACKWARD = re.compile(r"^(torch::)?autograd::|Backward\d*$")


def read_operators(events: ChromeEvents, rank: RankTrace) -> None:
    """Fill in the operators of every step, those of a typical one, and the optimiser's calls."""
    rank.optimizer = events.optimizer
    updates = (Update(n, s * MICROSECOND, e * MICROSECOND) for n, s, e in events.updates)
    rank.updates = tuple(sorted(updates, key=lambda update: update.start))
    spans = _backward(events)
    outermost = _outermost(events, spans)
    windows = step_windows(rank)
    begins = np.array([operator.start for operator in outermost])
    found = []
    for first, last in windows:
        inside = outermost[np.searchsorted(begins, first) : np.searchsorted(begins, last)]
        found.append(_segments(inside, spans.between(first, last)))
    rank.operator_steps = tuple(found)
    rank.operators = typical_step(found)


def step_windows(rank: RankTrace) -> list[tuple[float, float]]:
    """Begin and end of every step: profiler steps, else from one update to the next, else everything."""
    if rank.steps:
        return [(step.start, step.end) for step in rank.steps if np.isfinite(step.start)]
    ends = [update.end for update in rank.updates if update.name.startswith("Optimizer.step")]
    if len(ends) > 1:
        return list(itertools.pairwise(ends))
    return [(-np.inf, np.inf)]


def typical_step(steps: list[tuple[Operator, ...]]) -> tuple[Operator, ...]:
    """The operators of a step that runs what most steps run; the second of them, as the first warms up."""
    keys = [tuple((o.name, o.inputs) for o in step) for step in steps]
    counts = Counter(key for key in keys if key)
    if not counts:
        return ()
    wanted = max(counts, key=lambda key: (counts[key], len(key)))
    same = [step for step, key in zip(steps, keys, strict=True) if key == wanted]
    return same[min(1, len(same) - 1)]


class Spans:
    """What the autograd engine ran, by thread; times in seconds."""

    def __init__(self, thread: IntArray, start: FloatArray, end: FloatArray) -> None:
        order = np.lexsort((start, thread))
        self._all = np.sort(start)
        self._of: dict[int, tuple[FloatArray, FloatArray]] = {}
        for number in np.unique(thread).tolist():
            rows = order[thread[order] == number]
            self._of[number] = (start[rows], np.maximum.accumulate(end[rows]))

    def __contains__(self, place: tuple[int, float]) -> bool:
        """Whether a (thread, time) lies inside one of them."""
        starts, ends = self._of.get(place[0], (np.zeros(0), np.zeros(0)))
        at = int(np.searchsorted(starts, place[1], "right")) - 1
        return at >= 0 and place[1] <= float(ends[at])

    def between(self, first: float, last: float) -> FloatArray:
        """Their starts in a window, in order."""
        return self._all[np.searchsorted(self._all, first) : np.searchsorted(self._all, last)]


def _backward(events: ChromeEvents) -> Spans:
    names = events.names.texts()
    engine = np.array([bool(BACKWARD.search(name)) for name in names] or [False], bool)
    table = events.operator
    mine = engine[table.integer("name")] if len(table) else np.zeros(0, bool)
    start = table.real("start")[mine] * MICROSECOND
    return Spans(table.integer("thread")[mine], start, start + table.real("duration")[mine] * MICROSECOND)


def _outermost(events: ChromeEvents, backward: Spans) -> list[Operator]:
    """Known operators outside of the backward pass that lie in no other known one, in order of time."""
    found: list[Operator] = []
    covered: dict[int, float] = {}
    engines = _engine_threads(events, backward)
    kinds, table = list(events.operators), events.known
    starts, ends = table.real("start"), table.real("end")
    threads, numbers = table.integer("thread"), table.integer("operator")
    for row in np.lexsort((-ends, starts)).tolist():
        thread, start, end = int(threads[row]), float(starts[row]), float(ends[row])
        operator = kinds[numbers[row]]
        inside = thread in engines or (thread, start * MICROSECOND) in backward
        if inside or start < covered.get(thread, -np.inf):
            continue
        covered[thread] = end
        if operator is not None:  # None: the optimizer's own operators are no part of the model
            begin, finish = start * MICROSECOND, end * MICROSECOND
            found.append(replace(operator, start=begin, end=finish, thread=thread))
    return found


def _engine_threads(events: ChromeEvents, backward: Spans) -> set[int]:
    """Threads most of whose known operators belong to the backward pass.

    A forward thread may run a few of the engine's operators, and an engine's thread some outside of them.
    """
    count: Counter[int] = Counter()
    table = events.known
    for thread, start in zip(table.integer("thread").tolist(), table.real("start").tolist(), strict=True):
        count[thread] += 1 if (thread, start * MICROSECOND) in backward else -1
    return {thread for thread, surplus in count.items() if surplus > 0}


def _segments(operators: list[Operator], backward: FloatArray) -> tuple[Operator, ...]:
    """Number the forward passes of a step: a new one begins after a backward pass."""
    if not len(backward):
        return tuple(operators)
    result, segment, last = [], 0, -np.inf
    for operator in operators:
        between = np.searchsorted(backward, operator.start) > np.searchsorted(backward, last)
        segment += bool(between and np.isfinite(last))
        last = operator.start
        result.append(replace(operator, segment=segment) if segment else operator)
    return tuple(result)
