"""What no play of a graph can beat, in seconds per training step. Only this may prune a search."""

from __future__ import annotations

import numpy as np

from sim.engine.bounds import cycle_bound, rate_bound
from sim.engine.phases import idle_durations
from sim.graph.execution import ExecutionGraph, FloatArray
from sim.taxonomy.synchronizations import BARRIER_FREE


def step_bound(graph: ExecutionGraph, *, tight: bool = False) -> float:
    """Lower bound on ``step_time_s``.

    Parameters
    ----------
    graph : ExecutionGraph
    tight : bool
        Also follow the longest chain from a step of the busiest stream to its next one, which takes a sweep
        over all tasks.

    Notes
    -----
    Without jitter. Workers that are not synchronised each have a rate of their own, and work that may be
    skipped bounds nothing.
    """
    if (graph.skip_counter >= 0).any() or graph.skip_ticket is not None:
        return 0.0
    if graph.metadata.get("synchronization") in BARRIER_FREE - {"ssp"}:
        return _unsynchronised(graph) / graph.steps_per_iteration
    bound = max(rate_bound(graph), cycle_bound(graph)) if tight else rate_bound(graph)
    return bound / graph.steps_per_iteration


def _unsynchronised(graph: ExecutionGraph) -> float:
    """Workers over the sum of their largest possible rates; shared links bound the sum."""
    workers = np.array([kind == "worker" for kind in graph.devices.kind], bool)
    count = graph.devices.multiplicity[workers].astype(np.float64)
    least = _busiest_streams(graph)[workers]
    if not len(count) or not (least > 0).all():
        return 0.0
    bound = float(count.sum() / (count / least).sum())
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
