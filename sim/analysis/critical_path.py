"""Why the step takes as long as it does: the chain of tasks that delayed its end, walked back in time."""

from __future__ import annotations

from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from sim.analysis.timeline_from_run import Instances, expand
from sim.engine.record import RunRecord
from sim.graph.execution import Cause, ExecutionGraph, Ragged, TaskKind

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

COLUMNS = (
    "task",
    "device",
    "cause",
    "kind",
    "iteration",
    "start_s",
    "end_s",
    "duration_s",
    "contention_s",
    "share",
    "held_by",
)


class _Walker:
    """Finds what an instance waited for: the thing that ended when it started."""

    def __init__(self, graph: ExecutionGraph, run: RunRecord) -> None:
        self._run, self._before = run, graph.predecessors
        self._distance = graph.predecessor_distance
        self._instances = Instances(graph, run)
        self._streams, self._waits = graph.streams, graph.waits
        self._users = _Users(graph.streams, run)
        self._adders = _Users(graph.adds, run)

    def blocker(self, row: int) -> tuple[int, str]:
        """The instance that ended last before ``row`` could start, and by what it held it.

        Dependencies come first, then streams, then counters; (-1, "") where the run began. Only what came
        earlier in the record can have held it: zero-length tasks share instants.
        """
        task, start = int(self._run.task[row]), float(self._run.start[row])
        width = tolerance(start)
        found = self._predecessor(row, start - width, start + width)
        if found >= 0:
            return found, "dependency"
        for reason, table, users in (
            ("stream", self._streams, self._users),
            ("counter", self._waits, self._adders),
        ):
            a, b = table.offsets[task], table.offsets[task + 1]
            shared = table.index[a:b].tolist()
            found = max((users.last(key, row, start - width, start + width) for key in shared), default=-1)
            if found >= 0:
                return found, reason
        return -1, ""

    def _predecessor(self, row: int, low: float, high: float) -> int:
        """The predecessor last in the record that ended between the two times; -1 without one."""
        task, iteration, found = int(self._run.task[row]), int(self._run.iteration[row]), -1
        entries = slice(self._before.offsets[task], self._before.offsets[task + 1])
        sources, back = self._before.index[entries].tolist(), self._distance[entries].tolist()
        for source, distance in zip(sources, back, strict=True):
            other = self._instances.row(source, iteration - distance)
            if found < other < row and low <= self._run.end[other] <= high:
                found = other
        return found


class _Users:
    """Instances by what their tasks name in a table: streams they occupy, counters they add to."""

    def __init__(self, table: Ragged, run: RunRecord) -> None:
        self._table, self._run = table, run

    @cached_property
    def _groups(self) -> dict[int, tuple[IntArray, FloatArray]]:
        """Rows by end time, and those times, of each key."""
        by_end = np.argsort(self._run.end, kind="stable")
        owner, entry = expand(self._table.offsets, self._run.task[by_end])
        keys = self._table.index[entry]
        order = np.argsort(keys, kind="stable")
        keys, rows = keys[order], by_end[owner[order]]
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        bounds = [*first.tolist(), len(keys)]
        return {
            key: (rows[a:b], self._run.end[rows[a:b]])
            for key, a, b in zip(keys[first].tolist(), bounds, bounds[1:], strict=False)
        }

    def last(self, key: int, row: int, low: float, high: float) -> int:
        """The last row before ``row`` that ended between the two times; -1 without one."""
        if key not in self._groups:
            return -1
        rows, ends = self._groups[key]
        near = rows[np.searchsorted(ends, low) : np.searchsorted(ends, high, "right")]
        return int(near[near < row].max(initial=-1))


def tolerance(time: float) -> float:
    """Seconds within which two ends are one instant."""
    return max(2e-12, 2e-12 * abs(time))


def idle_duration(graph: ExecutionGraph, tasks: IntArray) -> FloatArray:
    """Seconds each task takes alone on the network (and at speed 1)."""
    owner, entry = expand(graph.links.offsets, tasks)
    rate = graph.cap[tasks].copy()
    np.minimum.at(
        rate, owner, graph.link_table.capacity[graph.links.index[entry]] / graph.link_coefficient[entry]
    )
    size = graph.flow_bytes[tasks]
    flowing = (size > 0) & np.isfinite(rate) & (rate > 0)
    return graph.work[tasks] + np.divide(size, rate, out=np.zeros_like(size), where=flowing)


def critical_path(graph: ExecutionGraph, run: RunRecord) -> pd.DataFrame:
    """The chain of task instances that decided when the averaging window ended.

    From the last boundary task back: each task was held by a predecessor, by the previous user of its
    stream, or by a counter, whichever ended when it started. Spans are clipped to the window, so their
    durations add up to the window's length.

    Returns
    -------
    DataFrame
        In order of time: ``task, device, cause, kind, iteration, start_s, end_s, duration_s`` (inside the
        window), ``contention_s`` (time beyond the task alone on an idle network), ``share`` of the window,
        ``held_by`` (dependency, stream, counter, or start).
    """
    begin, finish = float(run.window[0]), float(run.window[1])
    walker = _Walker(graph, run)
    closing = np.flatnonzero(graph.boundary[run.task] & (run.end <= finish + tolerance(finish)))
    rows: list[int] = []
    reasons: list[str] = []
    row = int(closing[np.argmax(run.end[closing])]) if len(closing) else -1
    while row >= 0 and run.end[row] > begin:
        blocker, reason = walker.blocker(row)
        rows.append(row)
        reasons.append(reason or "start")
        row = blocker
    path = np.array(rows[::-1], np.int64)
    task = run.task[path]
    start, end = np.maximum(run.start[path], begin), np.minimum(run.end[path], finish)
    duration = np.maximum(end - start, 0.0)
    slow = np.where(
        graph.kind[task] == TaskKind.TRANSFER,
        run.end[path] - run.start[path] - idle_duration(graph, task),
        0.0,
    )
    span = finish - begin
    device = [graph.devices.name[d] if d >= 0 else "" for d in graph.device[task].tolist()]
    return pd.DataFrame(
        {
            "task": [graph.names[i] for i in graph.name[task].tolist()],
            "device": device,
            "cause": _names(Cause, graph.cause[task]),
            "kind": _names(TaskKind, graph.kind[task]),
            "iteration": run.iteration[path],
            "start_s": run.start[path],
            "end_s": run.end[path],
            "duration_s": duration,
            "contention_s": np.where(slow > 1e-9 * np.maximum(duration, 1e-12), np.maximum(slow, 0.0), 0.0),
            "share": duration / span if span > 0 else duration,
            "held_by": reasons[::-1],
        },
        columns=list(COLUMNS),
    )


def _names(members: type[IntEnum], values: IntArray) -> list[str]:
    """Lower-case names of the members of an enumeration."""
    names = {int(member): member.name.lower() for member in members}
    return [names[value] for value in values.tolist()]


def share_by_cause(path: pd.DataFrame) -> dict[str, float]:
    """Share of the window per cause on the critical path; adds up to 1 (unexplained: ``idle``)."""
    shares = {
        str(cause): float(value) for cause, value in path.groupby("cause")["share"].sum().items() if value > 0
    }
    rest = 1.0 - sum(shares.values())
    if rest > 1e-9:
        shares["idle"] = rest
    return shares
