"""A bare collective, as nccl-tests runs it: time, algorithm and bus bandwidth per size, load of each link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from sim.engine import play
from sim.engine.record import RunRecord
from sim.errors import InputError
from sim.fabric.network import Network
from sim.graph.execution import ExecutionGraph
from sim.lowering.collective import Ranks, collective_loads, lower_collective
from sim.lowering.library import switches_reduce
from sim.models.collectives import bus_factor
from sim.spec import Calibration, Cluster

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CollectiveResult:
    """One operation on one cluster, over sizes.

    Attributes
    ----------
    operation : str
    cluster : Cluster
    num_ranks, num_groups : int
        Ranks of each group, and groups that run at once.
    rows : tuple of dict
        One per size: ``size_bytes, algorithm, protocol, time_s``, as nccl-tests defines them
        ``algorithm_bandwidth_bytes_per_s, bus_bandwidth_bytes_per_s``, and ``busiest_link,
        busiest_link_utilisation``.
    link_bytes : float[L]
        Bytes on each link of the network for the last size.
    link_utilisation : float[L]
        The same over what the link could carry in that time.
    """

    operation: str
    cluster: Cluster
    num_ranks: int
    num_groups: int
    rows: tuple[dict[str, Any], ...]
    link_bytes: FloatArray = field(repr=False, compare=False)
    link_utilisation: FloatArray = field(repr=False, compare=False)

    def table(self) -> pd.DataFrame:
        """One row per size."""
        return pd.DataFrame(list(self.rows))

    def links(self) -> pd.DataFrame:
        """Loaded links for the last size, busiest first: ``link, kind, bytes, utilisation``."""
        network = Network.build(self.cluster)
        used = np.flatnonzero(self.link_bytes)
        used = used[np.argsort(-self.link_utilisation[used], kind="stable")]
        return pd.DataFrame(
            {
                "link": [network.link_name(int(link)) for link in used],
                "kind": network.link_kind[used],
                "bytes": self.link_bytes[used],
                "utilisation": self.link_utilisation[used],
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "operation": self.operation,
            "cluster": self.cluster.name,
            "num_hosts": self.cluster.size,
            "num_devices": self.cluster.num_devices,
            "num_ranks": self.num_ranks,
            "num_groups": self.num_groups,
            "rows": list(self.rows),
        }


def simulate_collective(
    operation: str,
    cluster: Cluster,
    sizes: Sequence[float],
    calibration: Calibration,
    *,
    algorithm: str = "auto",
    ranks: Ranks = None,
    chunks: int = 1,
    **shape: Any,
) -> CollectiveResult:
    """Simulate one operation for each of some sizes.

    Parameters
    ----------
    operation, cluster, algorithm, ranks, chunks
        As in :func:`sim.lowering.lower_collective`.
    sizes : sequence of float
        Bytes, in the meaning of nccl-tests.
    calibration : Calibration
    **shape
        ``dims``, ``radix``, ``matrix`` and ``skew`` of that function.

    Raises
    ------
    InputError
        If the operation, or the cluster, has no such algorithm, or ranks, sizes or shape make no sense.
    """
    if not len(sizes):
        raise InputError("collective.size_bytes", "be at least one size")
    if algorithm in ("nvls", "nvls_tree") and not switches_reduce(cluster):
        must = "be another one on hosts without NVSwitches that add up (NVLink 4 and later)"
        raise InputError("collective.algorithm", must, f"{algorithm} on {cluster.name}", hint="Try ring.")
    options = {"calibration": calibration, "ranks": ranks, **shape}
    rows = []
    for size in sizes:
        graph = lower_collective(cluster, operation, algorithm, size, chunks=chunks, **options)
        rows.append(_row(operation, float(size), graph, play(graph), algorithm))
    moved, capacity = collective_loads(cluster, operation, algorithm, sizes[-1], **options)
    seconds = rows[-1]["time_s"]
    busy = np.divide(moved, capacity * seconds, out=np.zeros_like(moved), where=moved > 0)
    num_ranks, num_groups = rows[-1].pop("_ranks"), rows[-1].pop("_groups")
    for row in rows[:-1]:
        del row["_ranks"], row["_groups"]
    return CollectiveResult(
        operation, cluster, num_ranks, num_groups, tuple(rows), moved, np.minimum(busy, 1.0)
    )


def _row(
    operation: str, size: float, graph: ExecutionGraph, run: RunRecord, algorithm: str
) -> dict[str, Any]:
    seconds = float(run.makespan)
    capacity = graph.link_table.capacity
    busy = np.divide(
        run.link_bytes, capacity * seconds, out=np.zeros(len(capacity)), where=run.link_bytes > 0
    )
    busiest = int(busy.argmax()) if busy.any() else -1
    known: Any = graph.metadata["collectives"]
    num_ranks: Any = graph.metadata["num_ranks"]
    speed = size / seconds if seconds else 0.0
    return {
        "size_bytes": size,
        "algorithm": ",".join(dict.fromkeys(each["algorithm"] for each in known)) or algorithm,
        "protocol": ",".join(dict.fromkeys(each["protocol"] for each in known if each["protocol"])),
        "time_s": seconds,
        "algorithm_bandwidth_bytes_per_s": speed,
        "bus_bandwidth_bytes_per_s": speed * bus_factor(operation, int(num_ranks)),
        "busiest_link": graph.link_table.name[busiest] if busiest >= 0 else "",
        "busiest_link_utilisation": min(float(busy[busiest]), 1.0) if busiest >= 0 else 0.0,
        "_ranks": num_ranks,
        "_groups": graph.metadata["num_groups"],
    }
