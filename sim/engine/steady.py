"""When an open-ended run may stop: its state has recurred, or its mean is known well enough."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from sim.engine.confidence import confidence_interval, has_settled, rate_interval
from sim.graph.execution import FloatArray, IntArray

if TYPE_CHECKING:
    from sim.engine.loop import Player

_TOLERANCE = 1e-9
# A run without randomness that does not recur (an asynchronous one) is given this many iterations to do so.
_PATIENCE = 16
MAX_INSTANCES = 500_000
"""Task instances (half a minute) after which an open-ended run is content with the interval it has; looking
at links and transfers to share bandwidth counts as well."""
MAX_UNFOLDED = 8_000_000
"""The same for tasks that were played as parts of chains: each has a row in what is analysed afterwards."""
_FIRST_LOOK = 1 / 10
"""Part of them after which a run that waits for one worker is asked whether its interval will do already."""
_LOOK_AGAIN = 1.25  # times the work of the last look
_LEAST_ITERATIONS = 4
# A worker so many iterations behind the first is not waited for once the work is done.
_STRAGGLING = 64


class SteadyState:
    """Watches the ends of iterations; callable as the loop's ``stop``.

    A deterministic run stops when its complete state, relative to now and to the current iteration, equals an
    earlier one within 1e-9; the empty state at time 0 counts, so a job that flushes needs one iteration. A
    random run, and one that has not recurred after 16 iterations, stops when the 80 % confidence half-width
    of the mean iteration time (8 or more batch means, Student's t) is at most ``confidence`` of it and the
    iterations averaged show no trend. All end with the interval they have when they have cost a number of
    task instances; if workers without a barrier have left one far behind by then, the window ends in the
    middle of its iteration.

    Attributes
    ----------
    stop : str
        ``recurrence``, ``confidence`` or ``limit``; empty while running.
    window_iterations : (int, int)
        Half-open range of iterations to average over.
    half_width : float
        Relative half-width of the mean.
    """

    def __init__(self, player: Player, *, confidence: float, min_iterations: int, limit: int) -> None:
        graph = player.plan.graph
        self._player = player
        self._random = graph.has_random_compute or graph.link_service == "weighted"
        if graph.slow_state is not None:  # rare states have to be seen before a mean says anything
            seldom = graph.slow_state[0] * max(1, len(graph.devices.name))
            min_iterations = max(min_iterations, 64, min(1000, ceil(8 / seldom)))
        self._confidence, self._min, self._limit = confidence, min(min_iterations, limit), limit
        self._seen: dict[object, list[tuple[int, float, FloatArray, FloatArray]]] = {}
        self._boundary_tasks: IntArray = np.flatnonzero(player.plan.boundary)
        self._means: list[float] = []
        chained = player.plan.original.num_tasks / max(1, player.plan.num_tasks)
        self._most = min(float(MAX_INSTANCES), MAX_UNFOLDED / max(1.0, chained))
        self.budget = self._look_at = self._most * _FIRST_LOOK
        self.stop = ""
        self.window_iterations = (0, 0)
        self.half_width = 0.0

    def __call__(self, iteration: int, now: float) -> bool:
        """Whether the run may stop after ``iteration`` (-1: before anything ran)."""
        if iteration >= 0:
            self._means.append(self._mean_boundary(iteration))
        if not self._random:
            previous = self._recurrence(iteration, now)
            if previous is not None:
                self.stop, self.window_iterations = "recurrence", (previous + 1, iteration + 1)
                return True
        played = iteration + 1
        enough = played >= (self._min if self._random else max(self._min, _PATIENCE))
        if enough or played >= self._limit:
            cumulative = np.array([0.0, *self._means])
            first, width = confidence_interval(cumulative)
            if enough and width <= self._confidence and has_settled(cumulative, first, self._confidence):
                return self._finish("confidence", first, played, width)
            if played >= self._limit:
                return self._finish("limit", first, played, width)
        return False

    def give_up(self, now: float) -> bool:
        """Whether a run that has cost its budget ends here; if so, with what is known.

        It ends once it has cost all that a run may cost: with whole iterations, or in the middle of one if
        they are too large to play four. Before that only if one worker has been left far behind, for which no
        iteration can end, and the rate of the others is known well enough without it.
        """
        player, played, work = self._player, len(self._player.boundary_times), self._player.work()
        spent = work >= self._most
        if not spent and work < self._look_at:
            return False
        self._look_at = work * _LOOK_AGAIN
        if spent and played >= _LEAST_ITERATIONS:
            first, width = confidence_interval(np.array([0.0, *self._means[:played]]), least=2)
            return self._finish("limit", first, played, width)
        if not (self._waits_for_one(played) or (spent and played and self._has_gone_round(now))):
            return False
        first = 1 if played else 0
        begin = player.boundary_times[0] if played else 0.0
        width = rate_interval(self._boundary_ends(), begin, now)
        if not spent and width > self._confidence:
            return False
        player.boundary_times.append(now)
        return self._finish("limit" if spent else "confidence", first, played + 1, width)

    def _waits_for_one(self, played: int) -> bool:
        """Whether others are far ahead of the iteration that ends next, and somebody works on it."""
        opened = len(self._player.pending) // self._player.plan.stride
        return opened - played > _STRAGGLING and self._player.works_on(played)

    def _has_gone_round(self, now: float) -> bool:
        """Whether the time since the first iteration is as long as that, or its workers did as much again."""
        begin = self._player.boundary_times[0]
        ends = self._boundary_ends()
        return now >= 2.0 * begin or int(((ends > begin) & (ends <= now)).sum()) >= ends.shape[1]

    def _boundary_ends(self) -> FloatArray:
        """Ends of the boundary tasks of all iterations, shape (iterations, tasks); NaN where not reached."""
        ends = np.array(self._player.end).reshape(-1, self._player.plan.stride)
        return ends[:, self._boundary_tasks]

    def _finish(self, stop: str, first: int, last: int, width: float) -> bool:
        self.stop, self.window_iterations, self.half_width = stop, (first, last), width
        return True

    def _mean_boundary(self, iteration: int) -> float:
        """Mean end of the boundary tasks: less noisy than the latest end, with the same mean increment."""
        end, stride = self._player.end, self._player.plan.stride
        base = iteration * stride
        return float(np.mean([end[base + task] for task in self._boundary_tasks.tolist()]))

    def _recurrence(self, iteration: int, now: float) -> int | None:
        key, times, fractions = fingerprint(self._player, iteration, now)
        scale = now / (iteration + 1) if iteration >= 0 else _first_duration(times)
        for earlier, _, old_times, old_fractions in self._seen.get(key, ()):
            close = np.abs(times - old_times) <= _TOLERANCE * max(scale, 1e-12)
            if close.all() and (np.abs(fractions - old_fractions) <= _TOLERANCE).all():
                return earlier
        self._seen.setdefault(key, []).append((iteration, now, times, fractions))
        return None


def _first_duration(times: FloatArray) -> float:
    return float(np.abs(times).max()) if len(times) else 0.0


def fingerprint(player: Player, iteration: int, now: float) -> tuple[object, FloatArray, FloatArray]:
    """The complete state relative to ``now`` and ``iteration``.

    Returns
    -------
    key : hashable
        What is discrete: unfinished predecessors, who runs, waits and queues where, counters.
    times : float[a]
        Seconds left of running tasks, seconds since queued tasks became ready.
    fractions : float[b]
        Bytes left of active transfers over their total; counters.
    """
    stride = player.plan.stride
    first = player.lowest_incomplete()
    shift = (iteration + 1) * stride
    pending = np.array(player.pending[first * stride :], np.int32)
    running = sorted((i - shift, t - now) for i, t in player.running())
    flowing = [] if player.network is None else [(i - shift, f) for i, f in player.network.state(now)]
    queued: list[tuple[int, float]] = []
    if player.streams is not None:
        queued = sorted((i - shift, now - ready) for i, ready in player.streams.waiting.items())
    parts: list[object] = [
        first - iteration,
        pending.tobytes(),
        tuple(i for i, _ in running),
        tuple(i for i, _ in flowing),
        tuple(i for i, _ in queued),
        player.counters.waiting_relative(iteration + 1, shift),
        tuple(sorted(i - shift for i in player.skipped if i >= first * stride)),
    ]
    if player.streams is not None:
        parts.append(player.streams.turns_relative(iteration + 1))
    if player.coupling is not None:
        parts.append(tuple(sorted((i - shift, d) for i, d in player.coupling.state())))
    readings = player.counters.relative(iteration + 1, first)
    parts.append(tuple(key for key, _ in readings))
    tickets = player.counters.tickets_relative(iteration + 1, first, shift)
    parts.append(tuple(i for i, _ in tickets))
    times = np.array([t for _, t in running] + [t for _, t in queued])
    fractions = np.array([f for _, f in flowing] + [value for _, value in [*readings, *tickets]])
    return tuple(parts), times, fractions
