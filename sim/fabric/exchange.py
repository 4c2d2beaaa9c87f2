"""Link loads of an all-to-all by counting peers per tier, without the n (n - 1) flows.

Every device of a set sends one unit to every other. What a link carries is then a product of two counts: at a
port the devices behind it and those in other hosts; above a leaf, an edge switch or a pod the devices below
it and those that are neither below it nor in the same host. So 65,536 ranks cost as much as their links.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sim.fabric.builders.fat_tree import FatTree
from sim.fabric.builders.two_tier import Planes, TwoTier
from sim.fabric.network import Network
from sim.fabric.routes import Load

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def exchange_load(network: Network, devices: npt.ArrayLike) -> Load:
    """Coefficient of each link when every device sends one unit to every other of the set.

    Counted per tier on leaf-spine and fat-tree fabrics whose traffic is split evenly; other fabrics are
    summed flow by flow.

    Parameters
    ----------
    network : Network
    devices : int[n]
        Distinct devices.
    """
    members = np.asarray(devices, np.int64)
    wiring = network.wiring
    if isinstance(wiring, Planes) or not isinstance(wiring, TwoTier | FatTree):
        return _flow_by_flow(network, members)
    if network.forwards or wiring.choice.single:
        return _flow_by_flow(network, members)
    total = np.zeros(network.num_links)
    _inside(network, members, total)
    _outside(network, wiring, members, total)
    link = np.flatnonzero(total)
    return Load(link, total[link], _latency(network, members))


def _flow_by_flow(network: Network, members: IntArray) -> Load:
    src, dst = (grid.ravel() for grid in np.meshgrid(members, members))
    apart = src != dst
    return network.load(src[apart], dst[apart])


def _inside(network: Network, members: IntArray, total: FloatArray) -> None:
    """Links inside hosts: pairs within a host, and what passes between each device and its port.

    Hosts with the same devices in use are done at once, from the routes of one of them.
    """
    hosts = network.device_host[members]
    order = np.argsort(hosts, kind="stable")
    used, starts = np.unique(hosts[order], return_index=True)
    groups = np.split(members[order], starts[1:])
    alike: dict[tuple[int, bytes], list[int]] = {}
    for number, host in enumerate(used.tolist()):
        local = groups[number] - network.first_device[host]
        alike.setdefault((int(network.host_kind[host]), local.tobytes()), []).append(number)
    for numbers in alike.values():
        mine, host = groups[numbers[0]], int(used[numbers[0]])
        peers = len(members) - len(mine)
        load = np.zeros(network.num_links)
        src, dst = (grid.ravel() for grid in np.meshgrid(mine, mine))
        near = network.load(src[src != dst], dst[src != dst])
        load[near.link] += near.coefficient
        other = next((int(groups[i][0]) for i, h in enumerate(used.tolist()) if h != host), None)
        if other is not None:
            for ends in ((mine, np.full(len(mine), other)), (np.full(len(mine), other), mine)):
                away = network.load(*ends)
                load[away.link] += peers * away.coefficient
        first, last = network.host_links(host)
        for number in numbers:
            begin, _ = network.host_links(int(used[number]))
            total[begin : begin + last - first] = load[first:last]


def _outside(network: Network, wiring: TwoTier | FatTree, members: IntArray, total: FloatArray) -> None:
    """Ports and switches."""
    ports = network.ports
    at = network.port_of_device(members)
    count = np.bincount(at, minlength=len(ports)).astype(np.float64)
    of_host: FloatArray = np.bincount(ports.host, count)[ports.host].astype(np.float64)
    everyone = float(len(members))
    base = network.num_links - len(wiring.capacity)
    total[base : base + 2 * len(ports)] = np.tile(count * (everyone - of_host), 2)
    if isinstance(wiring, TwoTier):
        if wiring.num_leaves > 1:
            tiers = [(wiring.leaf, wiring.num_leaves, wiring.lanes)]
        else:
            return
    else:
        edge = np.arange(len(ports)) // wiring.half
        tiers = [
            (edge, wiring.num_edges, wiring.edge_lanes),
            (edge // wiring.half, wiring.num_pods, wiring.pod_lanes),
        ]
    place = base + 2 * len(ports)
    for group, number, lanes in tiers:
        crossing = _crossing(ports.host, group, number, count, everyone, of_host)
        both = np.repeat(np.tile(crossing / lanes, 2), lanes)
        total[place : place + len(both)] = both
        place += len(both)


def _crossing(
    host: IntArray, group: IntArray, number: int, count: FloatArray, everyone: float, of_host: FloatArray
) -> FloatArray:
    """Units that leave each group of ports (as many come in)."""
    of_group = np.bincount(group, count, number)[group]
    _, both = np.unique(host * np.int64(number) + group, return_inverse=True)
    shared = np.bincount(both, count)[both]
    left = count * (everyone - of_group - of_host + shared)
    return np.bincount(group, left, number).astype(np.float64)


def _latency(network: Network, members: IntArray) -> float:
    """Largest latency: between the first device and all others, which covers every tier of these fabrics."""
    others = members[1:]
    return network.load(np.full(len(others), members[0]), others).latency if len(others) else 0.0
