"""Instants that follow from the ends of a run, for whole iterations at once."""

from __future__ import annotations

import numpy as np

from sim.graph.execution import ExecutionGraph, FloatArray


def ready_times(graph: ExecutionGraph, end: FloatArray) -> FloatArray:
    """Seconds at which the last predecessor of each instance had finished.

    Parameters
    ----------
    graph : ExecutionGraph
    end : float[K, n]
        Seconds per iteration and task; NaN where not played.

    Returns
    -------
    float[K, n]
        0 without predecessors, NaN if one was not played.
    """
    ready = np.zeros(end.shape)
    source, distance = graph.predecessors.index, graph.predecessor_distance
    width = np.diff(graph.predecessors.offsets)
    targets = np.flatnonzero(width)
    if not len(targets):
        return ready
    starts = graph.predecessors.offsets[targets]
    near = int(distance.max())
    for k in range(len(end)):
        if near == 0:
            values = end[k, source]
        elif k >= near:
            values = end[k - distance, source]
        else:
            values = np.where(distance <= k, end[np.maximum(k - distance, 0), source], 0.0)
        ready[k, targets] = np.maximum.reduceat(values, starts) if len(values) > len(starts) else values
    return ready
