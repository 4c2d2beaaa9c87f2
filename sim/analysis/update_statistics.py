"""What a step is worth under a rule of synchronisation and update: staleness, batch, bytes, dropped work."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.analysis.staleness import Staleness
from sim.engine.record import RunRecord
from sim.graph.execution import Cause, ExecutionGraph, TaskKind
from sim.taxonomy.synchronizations import BARRIER_FREE

_EXCHANGES = (Cause.GRADIENT_COMM, Cause.PARAMETER_COMM)


def update_statistics(graph: ExecutionGraph, run: RunRecord, stale: Staleness | None) -> dict[str, Any]:
    """Statistics of the updates of a run.

    Parameters
    ----------
    graph, run : ExecutionGraph, RunRecord
        What was played, lowered from a strategy.
    stale : Staleness, optional
        What was measured where workers have no common step.

    Returns
    -------
    dict
        ``update``, ``samples_per_update`` (samples behind one exchange that becomes part of the model),
        ``effective_batch_size`` (samples whose gradients are applied together), ``local_steps``,
        ``bytes_per_update_per_worker`` (gradients and parameters a worker sends or receives for an update,
        what was dropped aside), ``dropped_gradient_share`` (0 .. 1), ``staleness_mean``, ``staleness_p95``,
        ``staleness_max`` and ``staleness_histogram`` (updates -> share). Empty without a strategy.
    """
    data = graph.metadata
    workers, replicas = _number(data.get("num_devices")), _number(data.get("workers"))
    samples, period = _number(data.get("samples_per_iteration")), _number(data.get("steps_per_exchange"))
    if not workers or not replicas or samples is None or not period:
        return {}
    per_step = samples / graph.steps_per_iteration / replicas  # of one replica
    together = _number(data.get("replicas_per_update")) or 1.0
    exchanges = graph.steps_per_iteration / period
    dropped = _dropped_share(graph, run)
    histogram, mean, p95, most = _distribution(graph, stale)
    per_update = per_step * together * period
    counted = _number(data.get("workers_counted")) or replicas
    if counted < replicas:  # samples of dropped gradients are in nobody's update
        per_update = samples / exchanges
    return {
        "update": data.get("update"),
        "samples_per_update": per_update,
        "effective_batch_size": per_update / period,
        "local_steps": int(period),
        "bytes_per_update_per_worker": exchanged_bytes(graph, run) / workers / exchanges,
        "dropped_gradient_share": dropped,
        "staleness_mean": mean,
        "staleness_p95": p95,
        "staleness_max": most,
        "staleness_histogram": {str(key): share for key, share in sorted(histogram.items())},
    }


def exchanged_bytes(graph: ExecutionGraph, run: RunRecord) -> float:
    """Bytes of gradients and parameters per iteration, summed over the workers that send or receive them."""
    moving = (graph.kind == TaskKind.TRANSFER) & np.isin(graph.cause, _EXCHANGES)
    multiplicity = graph.devices.multiplicity.astype(np.float64)
    worker = np.array([kind == "worker" for kind in graph.devices.kind], bool)
    rows = graph.streams.rows()
    device = graph.stream_table.device[graph.streams.index] if len(graph.streams.index) else rows
    mine = moving[rows] & (device >= 0) & worker[np.maximum(device, 0)]
    share = np.bincount(rows[mine], multiplicity[device[mine]], minlength=graph.num_tasks)
    played = np.bincount(run.task[~run.dropped], minlength=graph.num_tasks).astype(np.float64)
    every = np.bincount(run.task, minlength=graph.num_tasks)
    kept = np.divide(played, every, out=np.ones(graph.num_tasks), where=every > 0)
    return float((graph.total_bytes * share * kept).sum())


def _dropped_share(graph: ExecutionGraph, run: RunRecord) -> float:
    """Share of gradients that came too late, by bytes."""
    gradient = (graph.kind == TaskKind.TRANSFER) & (graph.cause == Cause.GRADIENT_COMM)
    inside = gradient[run.task] & (run.iteration >= run.window_iterations[0])
    inside &= run.iteration < run.window_iterations[1]
    size = graph.flow_bytes[run.task[inside]]
    return float(size[run.dropped[inside]].sum() / size.sum()) if size.sum() > 0 else 0.0


def _distribution(
    graph: ExecutionGraph, stale: Staleness | None
) -> tuple[dict[int, float], float | None, float | None, int | None]:
    if stale is not None:
        return stale.histogram, stale.mean, stale.p95, stale.maximum
    if graph.metadata.get("synchronization") in BARRIER_FREE:
        return {}, None, None, None
    return {0: 1.0}, 0.0, 0.0, 0


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float | np.number) else None
