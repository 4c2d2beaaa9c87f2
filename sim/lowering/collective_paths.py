"""Paths of a collective over all devices of a cluster: steps, and seconds per byte of its busiest links.

The loads come from the same routes and plans that a simulation plays; the library model
(:mod:`sim.models.library`) turns them into times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sim.fabric.exchange import exchange_load
from sim.fabric.network import Network
from sim.models.collectives import Phase, flows, plan
from sim.models.library import Path
from sim.spec.cluster import Cluster

IntArray = npt.NDArray[np.int64]

_DIRECT = ("all_to_all", "all_to_allv", "send", "gather", "scatter")


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
    network = Network.build(cluster)
    return group_paths(network, np.arange(cluster.num_devices), operation, in_switch=in_switch)


def group_paths(
    network: Network, ranks: IntArray, operation: str, *, in_switch: bool = False
) -> tuple[Path, ...]:
    """As :func:`collective_paths`, over any group of devices; trees need equally many on every host."""
    if len(ranks) < 2:
        return (Path("ring", 0, 0, 0.0, 0.0, 0.0),)
    per_host, hosts, even = _span(network, ranks)
    usual = "recursive_doubling" if operation == "barrier" else "ring"
    names = ["direct"] if operation in _DIRECT else [usual]
    if operation == "all_reduce" and hosts > 1 and even:
        names.append("tree")
    if operation == "all_reduce" and in_switch and per_host > 2 and even:
        names.append("nvls" if hosts == 1 else "nvls_tree")
    if operation == "all_reduce" and network.cluster.fabric.in_network_reduction and hosts > 1 and even:
        names.append("collnet")
    return tuple(_path(network, ranks, operation, name, per_host, hosts) for name in names)


def _span(network: Network, ranks: IntArray) -> tuple[int, int, bool]:
    """Most ranks on a host, hosts, and whether all have equally many, next to each other."""
    changes = np.flatnonzero(np.diff(network.device_host[ranks])) + 1
    counts = np.diff(np.concatenate([[0], changes, [len(ranks)]]))
    hosts = len(np.unique(network.device_host[ranks]))
    return int(counts.max()), hosts, len(counts) == hosts and bool((counts == counts[0]).all())


def _path(
    network: Network, ranks: IntArray, operation: str, algorithm: str, per_host: int, hosts: int
) -> Path:
    dims = (per_host, hosts) if algorithm in ("tree", "nvls_tree", "collnet") else None
    phases = plan(operation, algorithm, len(ranks), dims=dims)
    local, slot, between = _inverse_rates(network, phases, algorithm, ranks)
    return Path(algorithm, *steps(operation, algorithm, per_host, hosts), local, slot, between)


def link_parts(network: Network) -> IntArray:
    """What each link counts as: 0 among devices, 1 PCIe to the NICs (beside NVLink), 2 between hosts."""
    kinds = network.link_kinds
    nvlink = "nvlink" in kinds
    code = [2 if kind in ("nic", "fabric") else int(nvlink and kind != "nvlink") for kind in kinds]
    parts: IntArray = np.array(code, np.int64)[network.link_kind_code]
    return parts


def _inverse_rates(
    network: Network, phases: Sequence[Phase], algorithm: str, ranks: IntArray
) -> tuple[float, float, float]:
    """Seconds per byte on links among devices, on PCIe to the NICs, and between hosts."""
    parts = link_parts(network)
    order = _order(algorithm)
    orders = network.orders(ranks, order) if order else [ranks]
    totals = np.zeros(3)
    for phase in phases:
        if phase.everyone:
            load = exchange_load(network, ranks)
        else:
            load = network.load(*flows(phase, orders))
        inverse = phase.fraction * load.coefficient / network.link_capacity[load.link]
        for part in range(3):
            totals[part] += inverse[parts[load.link] == part].max(initial=0.0)
    return float(totals[0]), float(totals[1]), float(totals[2])


def _order(algorithm: str) -> str:
    return "" if algorithm.startswith("nvls") or algorithm == "direct" else algorithm


def steps(operation: str, algorithm: str, per_host: int, hosts: int) -> tuple[int, int]:
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
    if algorithm == "recursive_doubling":
        return math.ceil(math.log2(per_host)), depth
    if algorithm == "collnet":  # one way through the switches, whatever their levels
        return 2 * min(1, per_host - 1), 1
    return (1, 0) if hosts == 1 else (0, 1)
