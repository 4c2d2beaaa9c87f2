"""What the transfers of a list or a schedule (AICB, SimAI, GOAL) take on a cluster's network."""

from __future__ import annotations

from dataclasses import replace

from sim.analysis.collective import simulate_collective
from sim.catalog import Catalog, default_catalog
from sim.models.collectives import OPERATIONS
from sim.spec import Cluster
from sim.trace.issues import Issues
from sim.trace.operations import TRANSFER, Groups, Operations

#: Findings that prices settle.
_SETTLED = ("collective_without_time", "message_without_time")


def priced(operations: Operations, cluster: str, catalog: Catalog | None = None) -> Operations:
    """The operations with the times of their transfers on a cluster.

    Each transfer is lowered and played as a bare collective of all groups that run it at once (a message of
    both ranks); transfers of different kinds do not slow each other down.

    Parameters
    ----------
    operations : Operations
        With ``groups``.
    cluster : str
        Name or file; as many hosts as the ranks need.
    catalog : Catalog, optional

    Raises
    ------
    InputError
        If the cluster cannot run one of them.
    """
    places = catalog or default_catalog()
    world = 1 + max((rank for groups in operations.groups.values() for g in groups for rank in g), default=0)
    where = cluster_of(cluster, world, places)
    calibration = places.calibration(("collectives",))
    known: dict[tuple[str, float, Groups], float] = {}
    found = operations.with_work(operations.work)
    unpriced = 0
    for row, category in enumerate(operations.category):
        if category != TRANSFER:
            continue
        kind, size = _kind(operations.type[row]), operations.size[row]
        groups = operations.groups.get(row, ())
        if kind not in OPERATIONS or not groups or (size <= 0 and kind != "barrier"):
            unpriced += 1
            continue
        key = (kind, size, groups)
        if key not in known:
            result = simulate_collective(kind, where, [size], calibration, ranks=groups)
            known[key] = float(result.rows[0]["time_s"])
        found.work[row] = known[key]
    issues = Issues()
    issues.counts.update({n: c for n, c in operations.issues.counts.items() if n not in _SETTLED})
    issues.add("transfer_not_priced", unpriced)
    return replace(found, issues=issues)


def _kind(word: str) -> str:
    return "send" if word in ("recv", "send_recv") else word


def cluster_of(cluster: str, world: int, places: Catalog) -> Cluster:
    """The cluster with the hosts that so many ranks fill; as it is where its hosts differ."""
    found = places.cluster(cluster)
    if len(found.host_types) != 1:
        return found
    per_host = sum(count for _, count in found.host_types[0].devices)
    return places.cluster(cluster, num_hosts=max(1, -(-world // max(1, per_host))))
