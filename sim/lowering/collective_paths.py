"""Paths of a collective over all devices of a cluster: steps, and seconds per byte of its busiest links.

The loads come from the same routes and plans that a simulation plays; the library model
(:mod:`sim.models.library`) turns them into times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sim.fabric.network import Network
from sim.models.collectives import Phase, flows, plan
from sim.models.library import Path
from sim.spec.cluster import Cluster

IntArray = npt.NDArray[np.int64]

_DIRECT = ("all_to_all", "send", "gather", "scatter")


def collective_paths(cluster: Cluster, operation: str, *, in_switch: bool = False) -> tuple[Path, ...]:
    """Algorithms a library may run for ``operation`` over all devices of the cluster.

    Parameters
    ----------
    cluster : Cluster
        Resolved; every host with equally many devices.
    operation : str
        One of ``sim.models.collectives.OPERATIONS``.
    in_switch : bool
        Whether NVSwitches reduce and multicast (NVLink SHARP, from Hopper on).
    """
    hosts, ranks = cluster.size, cluster.num_devices
    if ranks < 2:
        return (Path("ring", 0, 0, 0.0, 0.0, 0.0),)
    network = Network.build(cluster)
    names = ["direct"] if operation in _DIRECT else ["ring"]
    if operation == "all_reduce" and hosts > 1:
        names.append("tree")
    if operation == "all_reduce" and in_switch and ranks // hosts > 2:
        names.append("nvls" if hosts == 1 else "nvls_tree")
    return tuple(_path(network, operation, name, ranks // hosts, hosts) for name in names)


def _path(network: Network, operation: str, algorithm: str, per_host: int, hosts: int) -> Path:
    ranks = per_host * hosts
    dims = (per_host, hosts) if algorithm in ("tree", "nvls_tree") else None
    phases = plan(operation, algorithm, ranks, dims=dims)
    local, slot, between = _inverse_rates(network, phases, algorithm, ranks)
    return Path(algorithm, *_steps(operation, algorithm, per_host, hosts), local, slot, between)


def _inverse_rates(
    network: Network, phases: Sequence[Phase], algorithm: str, ranks: int
) -> tuple[float, float, float]:
    """Seconds per byte on links among devices, on PCIe to the NICs, and between hosts."""
    kinds = network.link_kind
    outside = np.isin(kinds, ("nic", "fabric"))
    slots = np.isin(kinds, ("pcie", "qpi", "memory")) & bool((kinds == "nvlink").any())
    order = _order(algorithm)
    orders = network.orders(np.arange(ranks), order) if order else [np.arange(ranks)]
    totals = np.zeros(3)
    for phase in phases:
        load = network.load(*flows(phase, orders))
        inverse = phase.fraction * load.coefficient / network.link_capacity[load.link]
        for part, mine in enumerate((~outside & ~slots, slots, outside)):
            totals[part] += inverse[mine[load.link]].max(initial=0.0)
    return float(totals[0]), float(totals[1]), float(totals[2])


def _order(algorithm: str) -> str:
    return "" if algorithm.startswith("nvls") or algorithm == "direct" else algorithm


def _steps(operation: str, algorithm: str, per_host: int, hosts: int) -> tuple[int, int]:
    """Dependent steps inside a host and between hosts, as NCCL's tuning model counts them."""
    ranks, depth = per_host * hosts, math.ceil(math.log2(hosts))
    if algorithm == "ring":
        passes = 2 if operation == "all_reduce" else 1
        crossing = passes * (hosts - 1)
        return passes * (ranks - 1) - crossing, crossing
    if algorithm == "tree":
        return 2 * (per_host - 1), 2 * depth
    if algorithm.startswith("nvls"):
        return 2, 2 * depth
    return (1, 0) if hosts == 1 else (0, 1)
