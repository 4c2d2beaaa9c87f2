"""The workload of a trace together with what the user says it ran on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sim.analysis.collective import simulate_collective
from sim.analysis.trace_prices import cluster_of
from sim.catalog import Catalog
from sim.spec import Cluster, Device, Workload
from sim.trace.job_workload import job_workload
from sim.trace.model import Trace
from sim.trace.operations import Operations, typical
from sim.trace.to_workload import import_workload, stated_workload

_PROBE = 1e9  # bytes; far above latencies
_ELEMENT_BYTES = 2  # gradients of mixed precision on the wire
Described = tuple[Workload, dict[str, Any] | None, str]


def traced_workloads(
    trace: Trace, operations: Operations, cluster: str, world: int, catalog: Catalog
) -> Iterator[Described]:
    """Workloads that a trace may show, the one that says most first.

    Parameters
    ----------
    trace : Trace
        Read with ``host=True``.
    operations : Operations
        Of the trace.
    cluster : str
        What it ran on: its devices are those of the measured times where the trace does not name one.
    world : int
        Ranks of the job.
    catalog : Catalog

    Yields
    ------
    Workload, dict or None, str
        With the strategy that the trace states, and a note on what was assumed ("" for nothing). Op tables
        state no gradients: they are taken to be as large as makes their reduction on the cluster take its
        measured time; a second workload without them follows for where these do not fit into memory.
    """
    where = catalog.cluster(cluster)
    device = _device(where, catalog)
    if trace.simai is not None:
        stated = stated_workload(trace, "traced")
        assert stated is not None
        yield stated[0], trace.simai.strategy(world), ""
        return
    rank = next((rank for rank in trace.ranks if rank.job is not None), None)
    if rank is None:
        imported = import_workload(trace, name="traced")
        timed = imported.times is not None and imported.device is None
        again = import_workload(trace, name="traced", device=device) if timed and device else imported
        yield again.workload, None, ""
        return
    _, strategy, _ = job_workload(rank, "traced", device=device)
    elements = _gradients(operations, strategy, where, world, catalog)
    if elements:
        with_gradients, strategy, _ = job_workload(rank, "traced", device=device, parameters=elements)
        note = f"gradients of {elements:.3g} elements per stage assumed: so long takes their reduction"
        yield with_gradients, strategy, note
    workload, strategy, _ = job_workload(rank, "traced", device=device)
    note = "the table has no gradient bytes: edits of their exchange change nothing"
    yield workload, strategy, note


def _device(cluster: Cluster, catalog: Catalog) -> Device | None:
    """The one kind of device of a cluster."""
    names = {str(name) for host in cluster.host_types for name, _ in host.devices}
    return catalog.device(names.pop()) if len(names) == 1 else None


def _gradients(
    operations: Operations, strategy: dict[str, Any], cluster: Cluster, world: int, catalog: Catalog
) -> float:
    """Elements of a stage's gradients, from how long their reduce-scatter takes without stragglers."""
    seconds = typical(operations).get("grads-reduce-scatter", 0.0)
    replicas = int(strategy.get("dp", 1))
    if not seconds or replicas < 2 or len(cluster.host_types) != 1:
        return 0.0
    where = cluster_of(cluster.name, world, catalog)
    groups = [range(first, first + replicas) for first in range(0, world - replicas + 1, replicas)]
    result = simulate_collective(
        "reduce_scatter", where, [_PROBE], catalog.calibration(("collectives",)), ranks=groups
    )
    return seconds / float(result.rows[0]["time_s"]) * _PROBE / _ELEMENT_BYTES
