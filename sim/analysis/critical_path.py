"""Why the step takes as long as it does: the chain of tasks that delayed its end, walked back in time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from sim.analysis.timeline_from_run import Instances, expand
from sim.engine.record import RunRecord
from sim.graph.execution import Cause, ExecutionGraph, TaskKind

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


@dataclass
class _Walker:
    """Finds what an instance waited for: the thing that ended when it started."""

    graph: ExecutionGraph
    run: RunRecord

    def __post_init__(self) -> None:
        self.instances = Instances(self.graph, self.run)
        self.users: dict[int, IntArray] = {}
        self.adders: dict[int, IntArray] = {}

    def tolerance(self, time: float) -> float:
        return max(2e-12, 2e-12 * abs(time))

    def blocker(self, row: int) -> tuple[int, str]:
        """The instance that ended last before ``row`` could start, and by what it held it.

        Dependencies come first, then streams, then counters; (-1, "") where the run began.
        """
        start = float(self.run.start[row])
        for reason, candidates in (
            ("dependency", self.predecessors(row)),
            ("stream", self.stream_users(row, start)),
            ("counter", self.counter_adders(row, start)),
        ):
            candidates = candidates[candidates != row]
            if not len(candidates):
                continue
            ends = self.run.end[candidates]
            # Only what came earlier in the record can have held it: zero-length tasks share instants.
            valid = (np.abs(ends - start) <= self.tolerance(start)) & (candidates < row)
            if valid.any():
                return int(candidates[valid].max()), reason
        return -1, ""

    def predecessors(self, row: int) -> IntArray:
        task = int(self.run.task[row])
        entries = slice(self.graph.predecessors.offsets[task], self.graph.predecessors.offsets[task + 1])
        before = self.run.iteration[row] - self.graph.predecessor_distance[entries]
        found = self.instances.lookup(self.graph.predecessors.index[entries], before)
        return found[found >= 0]

    def stream_users(self, row: int, start: float) -> IntArray:
        """Instances that ended at ``start`` on a stream of ``row``."""
        near = [
            self._ended_at(self._users_of(int(stream)), start)
            for stream in self.graph.streams.row(int(self.run.task[row]))
        ]
        return np.concatenate(near) if near else np.zeros(0, np.int64)

    def counter_adders(self, row: int, start: float) -> IntArray:
        """Instances that ended at ``start`` and add to a counter that ``row`` waits for."""
        near = [
            self._ended_at(self._adders_of(int(counter)), start)
            for counter in self.graph.waits.row(int(self.run.task[row]))
        ]
        return np.concatenate(near) if near else np.zeros(0, np.int64)

    def _ended_at(self, rows: IntArray, time: float) -> IntArray:
        ends = self.run.end[rows]
        width = self.tolerance(time)
        return rows[
            np.searchsorted(ends, time - width, "left") : np.searchsorted(ends, time + width, "right")
        ]

    def _users_of(self, stream: int) -> IntArray:
        if stream not in self.users:
            tasks = self.graph.streams.rows()[self.graph.streams.index == stream]
            self.users[stream] = self._rows_of(tasks)
        return self.users[stream]

    def _adders_of(self, counter: int) -> IntArray:
        if counter not in self.adders:
            tasks = self.graph.adds.rows()[self.graph.adds.index == counter]
            self.adders[counter] = self._rows_of(tasks)
        return self.adders[counter]

    def _rows_of(self, tasks: IntArray) -> IntArray:
        """Instances of the tasks, by end time."""
        wanted = np.zeros(self.graph.num_tasks, bool)
        wanted[tasks] = True
        rows = np.flatnonzero(wanted[self.run.task])
        return rows[np.argsort(self.run.end[rows], kind="stable")]


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
    closing = np.flatnonzero(graph.boundary[run.task] & (run.end <= finish + walker.tolerance(finish)))
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
            "cause": [Cause(c).name.lower() for c in graph.cause[task].tolist()],
            "kind": [TaskKind(k).name.lower() for k in graph.kind[task].tolist()],
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


def share_by_cause(path: pd.DataFrame) -> dict[str, float]:
    """Share of the window per cause on the critical path; adds up to 1 (unexplained: ``idle``)."""
    shares = {
        str(cause): float(value) for cause, value in path.groupby("cause")["share"].sum().items() if value > 0
    }
    rest = 1.0 - sum(shares.values())
    if rest > 1e-9:
        shares["idle"] = rest
    return shares
