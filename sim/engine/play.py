"""play(): an ExecutionGraph in, a RunRecord out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sim.engine import invariants
from sim.engine.deadlock import explain
from sim.engine.instants import ready_times
from sim.engine.loop import Never, Player
from sim.engine.plan import Plan
from sim.engine.record import RunRecord
from sim.engine.steady import SteadyState
from sim.engine.unfold import unfold
from sim.errors import Deadlock, InputError
from sim.graph.collector import collector_off
from sim.graph.execution import ExecutionGraph, FloatArray

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
    progress: Callable[[str], None] | None = None,
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
    progress : callable, optional
        Called with a few words when an iteration begins.

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
    with collector_off():
        plan = Plan(graph, analytic=fidelity == "analytic", max_iterations=exactly, contracted=contract)
        player = Player(plan, progress)
        steady: SteadyState | None = None
        if exactly is None:
            steady = SteadyState(player, confidence=confidence, min_iterations=min_iterations, limit=limit)
        player.run(steady if steady is not None else Never())
        complete = (
            bool(steady.stop) if steady is not None else len(player.order) == plan.num_tasks * (exactly or 0)
        )
        if not complete:
            raise Deadlock(explain(player.stuck()))
        return _record(player, steady)


def _record(player: Player, steady: SteadyState | None) -> RunRecord:
    """Check the run and write it down, by (iteration, task) first and then in order of completion."""
    plan, graph = player.plan, player.plan.original
    spans = unfold(player)
    ready = ready_times(graph, spans.end)
    invariants.check(plan, ready, spans.start, spans.end, spans.dropped, spans.factors)
    _admit(player, ready)
    finished = ~np.isnan(spans.end) & ~spans.dropped
    boundary = np.array(player.boundary_times)
    first, last = steady.window_iterations if steady is not None else (0, len(boundary))
    window = (float(boundary[first - 1]) if first else 0.0, float(boundary[last - 1]))
    step = (window[1] - window[0]) / (last - first) / graph.steps_per_iteration
    half = steady.half_width if steady is not None else 0.0
    stop = steady.stop if steady is not None else "iterations"
    iteration, task = np.divmod(spans.order, graph.num_tasks)
    return RunRecord(
        task=task,
        iteration=iteration,
        ready=ready.ravel()[spans.order],
        start=spans.start.ravel()[spans.order],
        end=spans.end.ravel()[spans.order],
        dropped=spans.dropped.ravel()[spans.order],
        link_bytes=invariants.link_bytes(graph, finished.sum(axis=0).astype(np.float64)),
        makespan=float(np.nanmax(spans.end)),
        window=window,
        window_iterations=(first, last),
        boundary_times=boundary,
        step_time=step,
        step_time_interval=(step * (1 - half), step * (1 + half)),
        stop=stop,
        converged=stop != "limit",
        num_events=player.num_events,
    )


def _admit(player: Player, ready: FloatArray) -> None:
    """A task with counters is ready when they let it pass."""
    if player.admitted:
        instance = np.fromiter(player.admitted, np.int64)
        when = np.fromiter(player.admitted.values(), np.float64)
        iteration, task = np.divmod(instance, player.plan.stride)
        inside = iteration < len(ready)
        ready[iteration[inside], player.plan.origin[task[inside]]] = when[inside]
