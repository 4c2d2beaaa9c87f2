"""What no play of a graph can beat, in seconds per training step."""

from __future__ import annotations

import numpy as np

from sim.analysis.breakdown import window_steps, worker_cycles
from sim.engine.bounds import busiest_stream, cycle_bound, rate_bound
from sim.engine.invariants import link_bytes
from sim.engine.perturbation import jitter_factors
from sim.engine.phases import idle_durations
from sim.engine.record import RunRecord
from sim.graph.execution import ExecutionGraph, FloatArray
from sim.taxonomy.synchronizations import BARRIER_FREE


def step_bound(graph: ExecutionGraph, *, tight: bool = False, shared: bool = True) -> float:
    """Lower bound on ``step_time_s``.

    Parameters
    ----------
    graph : ExecutionGraph
    tight : bool
        Also follow the longest chain from a step of the busiest stream to its next one, which takes a sweep
        over all tasks.
    shared : bool
        Whether transfers share their links; the fidelity ``analytic`` plays each as if it were alone.

    Notes
    -----
    Without jitter: the bound of the mean times, which a finite sample may undercut. Workers that are not
    synchronised each have a rate of their own, and work that may be skipped bounds nothing.
    """
    if _may_skip(graph):
        return 0.0
    if graph.metadata.get("synchronization") in BARRIER_FREE - {"ssp"}:
        return _unsynchronised(graph, shared) / graph.steps_per_iteration
    bound = rate_bound(graph) if shared else busiest_stream(graph)
    return (max(bound, cycle_bound(graph)) if tight else bound) / graph.steps_per_iteration


def played_bound(graph: ExecutionGraph, run: RunRecord, *, shared: bool = True) -> float:
    """Seconds per training step that no schedule of what was played in the window can beat.

    Where the state recurred every iteration does the work of the graph: :func:`step_bound`. Otherwise the
    window holds a sample, with times as they were drawn and iterations cut at its ends: a stream's work
    inside is the part of each task that lies in it times what the task takes alone, and a link's bytes are
    those of the transfers that lie in it wholly. Neither can exceed the window, so the bound never exceeds
    the step.
    """
    if run.stop == "recurrence" or _may_skip(graph):
        return step_bound(graph, shared=shared)
    if graph.metadata.get("synchronization") in BARRIER_FREE:
        workers, steps, begin, finish = worker_cycles(graph, run)
        if len(workers):
            return _cycles_bound(graph, run, workers, steps, begin, finish)
    begin, finish = (np.full(len(graph.devices.name), edge) for edge in run.window)
    busiest = _played_work(graph, run, begin, finish).max(initial=0.0)
    moved = _played_bytes(graph, run) if shared else 0.0
    return float(max(busiest, moved)) / window_steps(graph, run)


def _may_skip(graph: ExecutionGraph) -> bool:
    return bool((graph.skip_counter >= 0).any()) or graph.skip_ticket is not None


def _cycles_bound(
    graph: ExecutionGraph,
    run: RunRecord,
    workers: np.ndarray,
    steps: FloatArray,
    begin: FloatArray,
    finish: FloatArray,
) -> float:
    """Workers over the sum of the rates they would have, were their busiest streams never idle."""
    count = len(graph.devices.name)
    first, last = np.zeros(count), np.zeros(count)
    first[workers], last[workers] = begin, finish
    table = graph.stream_table
    owned = table.device >= 0
    least = np.zeros(count)
    np.maximum.at(least, table.device[owned], _played_work(graph, run, first, last)[owned])
    weight, least = graph.devices.multiplicity[workers].astype(np.float64), least[workers]
    if not (least > 0).all():
        return 0.0
    return float(weight.sum() / (weight * steps / least).sum())


def _played_work(graph: ExecutionGraph, run: RunRecord, begin: FloatArray, finish: FloatArray) -> FloatArray:
    """Seconds of work per slot of each stream between two times of its device, shape (streams,)."""
    work = idle_durations(graph)[run.task] * _drawn_factors(graph, run) * ~run.dropped
    span = run.end - run.start
    share = np.minimum(np.divide(work, span, out=np.zeros(len(span)), where=span > 0), 1.0)
    # One row per instance and stream that it occupies.
    count = np.diff(graph.streams.offsets)[run.task]
    row = np.repeat(np.arange(len(count)), count)
    place = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    stream = graph.streams.index[graph.streams.offsets[run.task[row]] + place]
    table = graph.stream_table
    shared = table.device < 0
    begin = np.where(shared, run.window[0], begin[table.device])[stream]
    finish = np.where(shared, run.window[1], finish[table.device])[stream]
    inside = np.maximum(np.minimum(run.end[row], finish) - np.maximum(run.start[row], begin), 0.0)
    return np.bincount(stream, inside * share[row], minlength=len(table.width)) / table.width


def _drawn_factors(graph: ExecutionGraph, run: RunRecord) -> FloatArray:
    """Random factor on the work of each instance."""
    factors = np.ones(len(run.task))
    if graph.has_random_compute:
        order = np.argsort(run.iteration, kind="stable")
        first, last = int(run.iteration.min(initial=0)), int(run.iteration.max(initial=-1)) + 1
        bounds = np.searchsorted(run.iteration[order], np.arange(first, last + 1))
        for k in range(first, last):
            own = order[bounds[k - first] : bounds[k - first + 1]]
            factors[own] = jitter_factors(graph, k)[run.task[own]]
    return factors


def _played_bytes(graph: ExecutionGraph, run: RunRecord) -> float:
    """Seconds the busiest link needs for the transfers that lie wholly in the window."""
    inside = (run.start >= run.window[0]) & (run.end <= run.window[1]) & ~run.dropped
    times = np.bincount(run.task[inside], minlength=graph.num_tasks).astype(np.float64)
    return float((link_bytes(graph, times) / graph.link_table.capacity).max(initial=0.0))


def _unsynchronised(graph: ExecutionGraph, shared: bool) -> float:
    """Workers over the sum of their largest possible rates; shared links bound the sum."""
    workers = np.array([kind == "worker" for kind in graph.devices.kind], bool)
    count = graph.devices.multiplicity[workers].astype(np.float64)
    least = _busiest_streams(graph)[workers]
    if not len(count) or not (least > 0).all():
        return 0.0
    bound = float(count.sum() / (count / least).sum())
    if not shared:
        return bound
    moved = _least_bytes(graph, workers)
    return max(bound, float((count.sum() * moved / graph.link_table.capacity).max(initial=0.0)))


def _busiest_streams(graph: ExecutionGraph) -> FloatArray:
    """Seconds of work on the busiest stream of each device."""
    table = graph.stream_table
    work = np.bincount(
        graph.streams.index, idle_durations(graph)[graph.streams.rows()], minlength=len(table.width)
    )
    busiest = np.zeros(len(graph.devices.name))
    owned = table.device >= 0
    np.maximum.at(busiest, table.device[owned], (work / table.width)[owned])
    return busiest


def _least_bytes(graph: ExecutionGraph, workers: np.ndarray) -> FloatArray:
    """Bytes per step that every worker of a graph puts on each link at least."""
    rows, links = graph.links.rows(), len(graph.link_table.capacity)
    share = graph.flow_bytes[rows] * graph.link_coefficient
    share = share / graph.devices.multiplicity[graph.device[rows]]
    table = np.zeros((len(workers), links))
    np.add.at(table, (graph.device[rows], graph.links.index), share)
    return np.asarray(table[workers].min(axis=0), np.float64)
