"""play(): an ExecutionGraph in, a RunRecord out."""

from __future__ import annotations

import numpy as np

from sim.engine import invariants
from sim.engine.deadlock import explain
from sim.engine.loop import Player
from sim.engine.plan import Plan, data_edges, jitter_factors, program_entries
from sim.engine.record import RunRecord
from sim.engine.steady import SteadyState
from sim.errors import Deadlock, InputError
from sim.graph.execution import ExecutionGraph, FloatArray, IntArray

FIDELITIES = ("fluid", "analytic")


def play(
    graph: ExecutionGraph,
    *,
    fidelity: str = "fluid",
    confidence: float = 0.02,
    min_iterations: int = 8,
    max_iterations: int | None = None,
    limit: int = 2000,
    contract: bool = True,
) -> RunRecord:
    """Play a graph in simulated time.

    Parameters
    ----------
    graph : ExecutionGraph
        One iteration of a job; iterations follow each other as its edges allow.
    fidelity : {"fluid", "analytic"}
        ``fluid``: transfers share links; ``analytic``: every transfer at its idle rate.
    confidence : float
        Largest relative 80 % half-width of the mean iteration time at which a run that is random, or does not
        recur, stops.
    min_iterations : int
        Iterations such a run plays at least.
    max_iterations : int, optional
        Play exactly this many iterations; ``graph.max_iterations`` by default, and until the steady state if
        that is None, too.
    limit : int
        Give up looking for a steady state after this many iterations (``converged`` is then False).
    contract : bool
        Fuse chains of compute tasks while playing; the record is the same.

    Returns
    -------
    RunRecord

    Raises
    ------
    Deadlock
        If tasks remain that can never start; the message has the wait-for chain.
    InvariantError
        If the run broke a law (a defect of the engine or of the graph's numbers).
    """
    if fidelity not in FIDELITIES:
        raise InputError("fidelity", f"be one of {', '.join(FIDELITIES)}", fidelity)
    exactly = max_iterations if max_iterations is not None else graph.max_iterations
    if exactly is not None and exactly < 1:
        raise InputError("max_iterations", "be >= 1", exactly)
    plan = Plan(graph, analytic=fidelity == "analytic", max_iterations=exactly)
    player = Player(plan)
    steady: SteadyState | None = None
    if exactly is None:
        steady = SteadyState(player, confidence=confidence, min_iterations=min_iterations, limit=limit)
        player.run(steady)
    else:
        player.run(_never)
    if (
        (len(player.order) < plan.num_tasks * exactly)
        if exactly is not None
        else not (steady and steady.stop)
    ):
        raise Deadlock(explain(player.stuck()))
    return _record(player, steady)


def _never(_iteration: int, _now: float) -> bool:
    return False


def _record(player: Player, steady: SteadyState | None) -> RunRecord:
    plan, graph, stride, n = player.plan, player.plan.graph, player.plan.stride, player.plan.num_tasks
    start = np.array(player.start).reshape(-1, stride)[:, :n]
    end = np.array(player.end).reshape(-1, stride)[:, :n]
    opened = max(player.order) // stride + 1 if player.order else 0
    start, end = start[:opened], end[:opened]
    dropped = np.zeros(end.shape, np.bool_)
    if player.skipped:
        iteration, task = np.divmod(np.fromiter(player.skipped, np.int64), stride)
        dropped[iteration, task] = True
    factors = (
        np.array([jitter_factors(graph, k) for k in range(opened)]) if graph.jitter > 0 else np.ones((1, n))
    )
    invariants.check(plan, start, end, dropped, factors)
    order = np.array(player.order, np.int64)
    iteration, task = np.divmod(order, stride)
    ready = ready_times(graph, end)
    if player.admitted:
        at = np.fromiter(player.admitted, np.int64)
        when = np.fromiter(player.admitted.values(), np.float64)
        inside = at < opened * stride
        ready[at[inside] // stride, at[inside] % stride] = when[inside]
    posted = np.fmin(posting_times(graph, start, end), start)
    moved = invariants.link_bytes(graph, (~np.isnan(end) & ~dropped).sum(axis=0).astype(np.float64))
    boundary = np.array(player.boundary_times)
    first, last = steady.window_iterations if steady is not None else (0, len(boundary))
    window = (float(boundary[first - 1]) if first else 0.0, float(boundary[last - 1]))
    step = (window[1] - window[0]) / (last - first) / graph.steps_per_iteration
    half = steady.half_width if steady is not None else 0.0
    stop = steady.stop if steady is not None else "iterations"
    return RunRecord(
        task=task,
        iteration=iteration,
        ready=ready[iteration, task],
        posted=posted[iteration, task],
        start=start[iteration, task],
        end=end[iteration, task],
        dropped=dropped[iteration, task],
        link_bytes=moved,
        makespan=float(np.nanmax(end)) if len(order) else 0.0,
        window=window,
        window_iterations=(first, last),
        boundary_times=boundary,
        step_time=step,
        step_time_interval=(step * (1 - half), step * (1 + half)),
        stop=stop,
        converged=stop != "limit",
        num_events=player.num_events,
    )


def ready_times(graph: ExecutionGraph, end: FloatArray) -> FloatArray:
    """Seconds at which the last data predecessor of each instance had finished, shape (iterations, tasks)."""
    return _latest(end, data_edges(graph).source, graph.predecessors.rows(), graph.predecessor_distance)


def posting_times(graph: ExecutionGraph, start: FloatArray, end: FloatArray) -> FloatArray:
    """Seconds at which the first participant of each instance had posted it, shape (iterations, tasks).

    Tasks off program streams are posted when they start.
    """
    stream, task = program_entries(graph, chained=True)
    posted = np.full(end.shape, np.inf)
    if not len(task):
        return start.copy()
    first = np.concatenate([[True], stream[1:] != stream[:-1]])
    starts = np.flatnonzero(first)
    before = np.arange(len(task)) - 1
    before[starts] = np.append(starts[1:], len(task)) - 1
    free = np.zeros((len(end), len(task)))
    free[:, ~first] = end[:, task[before[~first]]]
    free[1:, first] = end[:-1, task[before[first]]]
    rows, source = graph.predecessors.rows(), graph.predecessors.index
    entry, edge = _entries_by_edge(task, rows)
    device = graph.stream_table.device[stream[entry]]
    same = graph.device[source[edge]] == device
    has_local = np.zeros(len(task), np.bool_)
    has_local[entry[same]] = True
    use = same | ~has_local[entry]
    done = _latest(end, source[edge[use]], entry[use], graph.predecessor_distance[edge[use]], width=len(task))
    np.minimum.at(posted, (slice(None), task), np.fmax(free, done))
    return np.where(np.isinf(posted), start, posted)


def _entries_by_edge(task: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """All (participant entry, predecessor edge) pairs of the same task."""
    count = np.bincount(rows, minlength=int(task.max()) + 1)
    first = np.cumsum(count) - count
    width = count[task]
    entry = np.repeat(np.arange(len(task)), width)
    step = np.arange(len(entry)) - np.repeat(np.cumsum(width) - width, width)
    return entry, first[task[entry]] + step


def _latest(
    end: FloatArray, source: IntArray, target: IntArray, distance: IntArray, width: int | None = None
) -> FloatArray:
    """Latest end of the sources of each target column; 0 where there is none."""
    latest = np.zeros((len(end), width if width is not None else end.shape[1]))
    if not len(source):
        return latest
    order = np.argsort(target, kind="stable")
    source, target, distance = source[order], target[order], distance[order]
    starts = np.flatnonzero(np.concatenate([[True], target[1:] != target[:-1]]))
    near = int(distance.max())
    padded = np.concatenate([np.zeros((near, end.shape[1])), end])
    for k in range(len(end)):
        values = padded[k + near - distance, source]
        latest[k, target[starts]] = np.maximum.reduceat(values, starts)
    return latest
