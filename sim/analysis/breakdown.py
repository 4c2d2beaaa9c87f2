"""Where the time of a training step goes: every instant of a device has exactly one cause.

By precedence: optimizer, compute, data, exposed communication (an own transfer is progressing), wait (a
transfer, or a task that waits for a counter, is posted and its peer is missing), bubble (nothing at all).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.analysis.intervals import by_precedence, clip_to_segments, occupancy
from sim.engine.record import RunRecord
from sim.graph.execution import Cause, ExecutionGraph, TaskKind
from sim.taxonomy.synchronizations import BARRIER_FREE
from sim.timeline import Timeline

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

#: Names of the parts, highest precedence first; the last is what remains.
PARTS: tuple[str, ...] = ("optimizer_s", "compute_s", "data_s", "exposed_comm_s", "wait_s", "bubble_s")
OPTIMIZER, COMPUTE, DATA, COMM, WAIT = range(5)
NUM_LEVELS = 5
_BUSY_BITS = (1 << OPTIMIZER) | (1 << COMPUTE)
_HIDING_BITS = _BUSY_BITS | (1 << DATA)


@dataclass(frozen=True)
class Breakdown:
    """One step of the critical device (or the mean worker cycle) in seconds.

    Parameters
    ----------
    parts : dict of str to float
        Seconds per name in :data:`PARTS`; they add up to ``step_time_s``.
    step_time_s : float
        Seconds per training step.
    overlap_fraction : float
        Share of communication time hidden under computation on its device, 0 .. 1; 0 if there is none.
    communication_s, busy_s : float
        Seconds per step in which a transfer progresses, and in which the device computes.
    critical_device : str
        Name of the device (rank class) that ends most steps; empty for asynchronous runs.
    """

    parts: dict[str, float]
    step_time_s: float
    overlap_fraction: float
    communication_s: float
    busy_s: float
    critical_device: str


@dataclass(frozen=True)
class Activities:
    """Intervals of activity on devices: the input of every breakdown."""

    device: IntArray
    level: IntArray
    start: FloatArray
    end: FloatArray


def activities(timeline: Timeline, *, waits: BoolArray | None = None) -> Activities:
    """Activity intervals of the rows of a timeline.

    Parameters
    ----------
    timeline : Timeline
        Simulated or measured rows.
    waits : ndarray of bool, optional
        Rows, other than transfers, whose span from posted to start is waiting for a peer.
    """
    kind, cause = timeline.integer("kind"), timeline.integer("cause")
    transfer = kind == TaskKind.TRANSFER
    level = np.full(len(kind), COMPUTE, np.int64)
    level[transfer] = COMM
    level[cause == Cause.DATA] = DATA
    level[(cause == Cause.OPTIMIZER) & ~transfer] = OPTIMIZER
    waiting = transfer if waits is None else transfer | waits
    device = timeline.integer("device")
    return Activities(
        np.concatenate([device, device[waiting]]),
        np.concatenate([level, np.full(int(waiting.sum()), WAIT, np.int64)]),
        np.concatenate([timeline["start"], timeline["posted"][waiting]]),
        np.concatenate([timeline["end"], timeline["start"][waiting]]),
    )


def counter_waits(graph: ExecutionGraph, timeline: Timeline) -> BoolArray:
    """Rows of a simulated timeline whose task waits for a counter."""
    counted = np.diff(graph.waits.offsets) > 0
    result: BoolArray = counted[timeline.integer("task")]
    return result


def device_occupancy(found: Activities, edges: FloatArray, owner: IntArray) -> FloatArray:
    """Seconds per set of activities of device ``owner[j]`` within segment ``edges[j] .. edges[j + 1]``.

    Returns
    -------
    ndarray, shape (len(owner), 2 ** 5)
        See :func:`sim.analysis.intervals.occupancy`.
    """
    interval, segment = clip_to_segments(found.start, found.end, edges)
    keep = found.device[interval] == owner[segment]
    interval, segment = interval[keep], segment[keep]
    start = np.maximum(found.start[interval], edges[segment])
    end = np.minimum(found.end[interval], edges[segment + 1])
    return occupancy(segment, found.level[interval], start, end, len(owner), NUM_LEVELS)


def summarize(table: FloatArray, span: float, divisor: float, critical_device: str) -> Breakdown:
    """Turn one row of occupancy (seconds per mask, over ``span`` seconds) into a breakdown per step.

    The bubble is the remainder, so that the parts add up to the step.
    """
    masks = np.arange(len(table))
    seconds = by_precedence(table[None, :], NUM_LEVELS)[0] / divisor
    step = span / divisor
    parts = dict(zip(PARTS, (float(value) for value in seconds), strict=False))
    rest = step - float(seconds.sum())
    parts["bubble_s"] = rest if rest > 1e-12 * step else 0.0
    communication = float(table[(masks & (1 << COMM)) != 0].sum())
    hidden = float(table[((masks & (1 << COMM)) != 0) & ((masks & _HIDING_BITS) != 0)].sum())
    busy = float(table[(masks & _BUSY_BITS) != 0].sum())
    return Breakdown(
        parts,
        step,
        min(hidden / communication, 1.0) if communication > 0 else 0.0,
        communication / divisor,
        busy / divisor,
        critical_device,
    )


def critical_devices(graph: ExecutionGraph, run: RunRecord, first: int, last: int) -> IntArray:
    """Per iteration ``first <= k < last``: the device whose last task ends it (lowest rank on ties).

    Returns
    -------
    ndarray of int, shape (last - first,)
        Rows of ``graph.devices``; -1 where no boundary task was played.
    """
    eligible = graph.boundary & (graph.device >= 0)
    workers = np.array([kind == "worker" for kind in graph.devices.kind], bool)
    if len(workers) and (eligible & workers[np.maximum(graph.device, 0)]).any():
        eligible &= workers[np.maximum(graph.device, 0)]
    rows = np.flatnonzero(eligible[run.task] & (run.iteration >= first) & (run.iteration < last))
    iteration, device, end = run.iteration[rows] - first, graph.device[run.task[rows]], run.end[rows]
    latest = np.full(last - first, -np.inf)
    np.maximum.at(latest, iteration, end)
    tied = end >= latest[iteration] - np.maximum(1e-12, 1e-12 * np.abs(latest[iteration]))
    order = np.lexsort((graph.devices.rank[device[tied]], iteration[tied]))[::-1]
    result = np.full(last - first, -1, np.int64)
    # Assigned last to first, the lowest rank of each iteration is written last.
    result[iteration[tied][order]] = device[tied][order]
    return result


def iteration_edges(graph: ExecutionGraph, run: RunRecord) -> FloatArray:
    """Times (s) at which the iterations of the averaging window end, from window start to window end."""
    first, last = run.window_iterations
    edges = np.full(last - first + 1, run.window[0], np.float64)
    inside = graph.boundary[run.task] & (run.iteration >= first) & (run.iteration < last)
    np.maximum.at(edges, run.iteration[inside] - first + 1, run.end[inside])
    edges = np.minimum(np.maximum.accumulate(edges), run.window[1])
    edges[0], edges[-1] = run.window
    return edges


def synchronous_breakdown(graph: ExecutionGraph, run: RunRecord, timeline: Timeline) -> Breakdown:
    """Breakdown of a step on the critical device, averaged over the window's steps."""
    first, last = run.window_iterations
    edges = iteration_edges(graph, run)
    owner = critical_devices(graph, run, first, last)
    found = activities(timeline, waits=counter_waits(graph, timeline))
    table = device_occupancy(found, edges, owner).sum(axis=0)
    steps = window_steps(graph, run)
    known = owner[owner >= 0]
    name = graph.devices.name[int(np.bincount(known).argmax())] if len(known) else ""
    return summarize(table, float(edges[-1] - edges[0]), steps, name)


def window_steps(graph: ExecutionGraph, run: RunRecord) -> float:
    """Training steps in the averaging window (of the slowest worker, under asynchrony)."""
    first, last = run.window_iterations
    return float((last - first) * graph.steps_per_iteration)


def worker_cycles(
    graph: ExecutionGraph, run: RunRecord
) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """Steps that each worker finished in the window, and over which span.

    Where the state recurred the span is the window. Otherwise it runs from the worker's first to its last
    step boundary inside it, because nobody recorded what was still running when the simulation stopped. A
    worker without a whole cycle counts with the steps it finished in the whole window.

    Returns
    -------
    tuple of ndarray
        Rows of ``graph.devices`` that are workers with steps to finish; their number of steps, begin and end
        of the span (s).
    """
    workers = np.flatnonzero(np.array([kind == "worker" for kind in graph.devices.kind], bool))
    rows = np.flatnonzero(graph.boundary[run.task] & (graph.device[run.task] >= 0))
    device, end = graph.device[run.task[rows]], run.end[rows]
    count = len(graph.devices.name)
    inside = (end > run.window[0]) & (end <= run.window[1] * (1 + 1e-12))
    steps = np.bincount(device[inside], minlength=count).astype(np.float64)
    begin, finish = np.full(count, run.window[0], np.float64), np.full(count, run.window[1], np.float64)
    if run.stop != "recurrence":
        finish = np.full(count, -np.inf)
        np.maximum.at(finish, device[inside], end[inside])
        if run.window[0] > 0:
            begin = np.full(count, np.inf)
            np.minimum.at(begin, device[inside], end[inside])
            steps -= 1
        slow = (steps <= 0) | (finish <= begin)
        begin[slow], finish[slow] = run.window
        steps[slow] = np.bincount(device[inside], minlength=count)[slow]
    owners = np.unique(graph.device[graph.boundary & (graph.device >= 0)])
    workers = workers[np.isin(workers, owners) & (finish[workers] > begin[workers])]
    if not steps[workers].any():
        workers = workers[:0]
    return workers, steps[workers] * graph.steps_per_iteration, begin[workers], finish[workers]


def asynchronous_breakdown(graph: ExecutionGraph, run: RunRecord, timeline: Timeline) -> Breakdown:
    """Mean breakdown over the cycles of all workers; the step time is workers / (sum of their rates)."""
    workers, steps, begin, finish = worker_cycles(graph, run)
    if not len(workers):
        return synchronous_breakdown(graph, run, timeline)
    found = activities(timeline, waits=counter_waits(graph, timeline))
    group = np.full(len(graph.devices.name) + 1, -1, np.int64)
    group[workers] = np.arange(len(workers))
    of = group[found.device]
    start = np.maximum(found.start, begin[of])
    end = np.minimum(found.end, finish[of])
    keep = (of >= 0) & (end > start)
    table = occupancy(of[keep], found.level[keep], start[keep], end[keep], len(workers), NUM_LEVELS)
    weight = graph.devices.multiplicity[workers] / (finish - begin)
    # Time per second of each worker, summed; divided by all their steps per second.
    return summarize(weight @ table, float(weight @ (finish - begin)), float(weight @ steps), "")


def busy_fractions(graph: ExecutionGraph, run: RunRecord, timeline: Timeline) -> FloatArray:
    """Fraction of the window each device (rank class) computes, shape (devices,)."""
    kind = timeline.integer("kind")
    device = timeline.integer("device")
    start = np.maximum(timeline["start"], run.window[0])
    end = np.minimum(timeline["end"], run.window[1])
    rows = (kind == TaskKind.COMPUTE) & (device >= 0) & (end > start)
    count = len(graph.devices.name)
    table = occupancy(device[rows], np.zeros(int(rows.sum()), np.int64), start[rows], end[rows], count, 1)
    span = float(run.window[1] - run.window[0])
    return table[:, 1] / span if span > 0 else np.zeros(count)


def task_seconds_by_cause(timeline: Timeline, steps: float) -> dict[str, float]:
    """Seconds of task time per step and cause in the window, summed over devices with their multiplicity.

    Overlapping tasks both count, unlike in the breakdown.
    """
    start = np.maximum(timeline["start"], timeline.window[0])
    end = np.minimum(timeline["end"], timeline.window[1])
    seconds = np.maximum(end - start, 0.0) * timeline["multiplicity"]
    cause = timeline.integer("cause")
    known = (cause >= 0) & (timeline.integer("device") >= 0)
    sums = np.bincount(cause[known], weights=seconds[known], minlength=len(timeline.causes)) / steps
    return {name: float(value) for name, value in zip(timeline.causes, sums, strict=False) if value > 0}


def breakdown(graph: ExecutionGraph, run: RunRecord, timeline: Timeline) -> Breakdown:
    """Breakdown of a run; see :func:`synchronous_breakdown` and :func:`asynchronous_breakdown`.

    Parameters
    ----------
    graph, run : ExecutionGraph, RunRecord
        What was played. ``graph.metadata["synchronization"]`` decides.
    timeline : Timeline
        Rows that overlap the averaging window.
    """
    if graph.metadata.get("synchronization") in BARRIER_FREE:
        return asynchronous_breakdown(graph, run, timeline)
    return synchronous_breakdown(graph, run, timeline)
