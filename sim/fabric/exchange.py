"""Link loads of an all-to-all by counting peers per tier, without the n (n - 1) flows.

Every device of a set sends one unit to every other. What a link carries is then a product of two counts: at a
port the devices that send by it and those in other hosts they send to; above a leaf, an edge switch or a pod
the devices that send from below it and those that receive elsewhere, not in the same host. So 65,536 ranks
cost as much as their links.

Where a host forwards to the NIC of the receiver's rail (rail-only and multi-plane fabrics, NCCL's PXN) all
its devices send by every NIC in use, each to the receivers on that rail.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.errors import InputError
from sim.fabric.builders.fat_tree import FatTree
from sim.fabric.builders.two_tier import TwoTier
from sim.fabric.network import Network
from sim.fabric.routes import Load

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

# Where flows have to be summed one by one, more ranks than this would take too much memory and time.
MAX_SUMMED_RANKS = 4096


def exchange_load(network: Network, devices: npt.ArrayLike) -> Load:
    """Coefficient of each link when every device sends one unit to every other of the set.

    Counted per tier on leaf-spine, rail, multi-plane and fat-tree fabrics whose traffic is split evenly;
    other fabrics are summed flow by flow.

    Parameters
    ----------
    network : Network
    devices : int[n]
        Distinct devices.

    Raises
    ------
    InputError
        If more than :data:`MAX_SUMMED_RANKS` devices would have to be summed flow by flow.
    """
    members = np.asarray(devices, np.int64)
    wiring = network.wiring
    countable = isinstance(wiring, TwoTier | FatTree) and not wiring.choice.single
    if not countable or (members >= network.num_devices).any():
        return _flow_by_flow(network, members)
    total = np.zeros(network.num_links)
    _inside(network, members, total)
    _outside(network, members, total)
    link = np.flatnonzero(total)
    return Load(link, total[link], _latency(network, members))


def exchange_samples(network: Network, devices: npt.ArrayLike) -> tuple[IntArray, IntArray]:
    """Sender and receiver of a few of the flows, every kind of way and every loaded link among them.

    From the first device to all others and back, and between all devices of one host of each pattern.
    """
    members = np.asarray(devices, np.int64)
    others = members[1:]
    hub = np.full(len(others), members[0])
    src, dst = [hub, others], [others, hub]
    for pattern in _patterns(network, members):
        mine = pattern.members
        a, b = (grid.ravel() for grid in np.meshgrid(mine, mine))
        src.append(a[a != b])
        dst.append(b[a != b])
    if network.forwards:  # a device leaves by any NIC of its host, whoever the first device is
        for pattern in _patterns(network, members):
            for peer in _rail_peers(network, members, pattern.hosts[0]).values():
                src.append(pattern.members)
                dst.append(np.full(len(pattern.members), peer))
    return np.concatenate(src), np.concatenate(dst)


@dataclass(frozen=True)
class _Pattern:
    """Hosts with the same devices in use: the devices of the first, and all the hosts."""

    members: IntArray
    hosts: list[int]


def _patterns(network: Network, members: IntArray) -> list[_Pattern]:
    hosts = network.device_host[members]
    order = np.lexsort((members, hosts))
    used, starts = np.unique(hosts[order], return_index=True)
    groups = np.split(members[order], starts[1:])
    alike: dict[tuple[int, bytes], _Pattern] = {}
    for host, mine in zip(used.tolist(), groups, strict=True):
        key = int(network.host_kind[host]), (mine - network.first_device[host]).tobytes()
        alike.setdefault(key, _Pattern(mine, [])).hosts.append(host)
    return list(alike.values())


def _rail_peers(network: Network, members: IntArray, host: int) -> dict[int, int]:
    """A device of another host on each rail that other hosts receive on."""
    away = members[network.device_host[members] != host]
    rails = network.ports.index[network.port_of_device(away)]
    first = np.unique(rails, return_index=True)
    return {int(rail): int(away[place]) for rail, place in zip(*first, strict=True)}


def _flow_by_flow(network: Network, members: IntArray) -> Load:
    if len(members) > MAX_SUMMED_RANKS:
        kind = network.cluster.fabric.kind
        raise InputError(
            "collective.num_ranks",
            f"be at most {MAX_SUMMED_RANKS} for a direct exchange on a fabric of kind {kind} with "
            f"{network.cluster.fabric.routing} routing",
            len(members),
            hint="Leaf-spine, rail and fat-tree fabrics with ecmp routing take any number.",
        )
    src, dst = (grid.ravel() for grid in np.meshgrid(members, members))
    apart = src != dst
    return network.load(src[apart], dst[apart])


def _inside(network: Network, members: IntArray, total: FloatArray) -> None:
    """Links inside hosts: pairs within a host, and what passes between each device and the ports.

    Hosts with the same devices in use are done at once, from the routes of one of them.
    """
    received: FloatArray = np.bincount(network.ports.index[network.port_of_device(members)]).astype(
        np.float64
    )
    for pattern in _patterns(network, members):
        mine, host = pattern.members, pattern.hosts[0]
        load = np.zeros(network.num_links)
        src, dst = (grid.ravel() for grid in np.meshgrid(mine, mine))
        near = network.load(src[src != dst], dst[src != dst])
        load[near.link] += near.coefficient
        own = np.bincount(network.ports.index[network.port_of_device(mine)], minlength=len(received))
        peers = _rail_peers(network, members, host)
        if peers and not network.forwards:
            peers = dict(list(peers.items())[:1])
        for rail, other in peers.items():
            count = received[rail] - own[rail] if network.forwards else float(len(members) - len(mine))
            away = network.load(mine, np.full(len(mine), other))
            load[away.link] += count * away.coefficient
        if peers:
            back = network.load(np.full(len(mine), next(iter(peers.values()))), mine)
            arriving = np.zeros(network.num_links)
            arriving[back.link] = back.coefficient * (len(members) - len(mine))
            load += arriving
        first, last = network.host_links(host)
        for each in pattern.hosts:
            begin, _ = network.host_links(each)
            total[begin : begin + last - first] = load[first:last]


def _outside(network: Network, members: IntArray, total: FloatArray) -> None:
    """Ports and switches."""
    ports, wiring = network.ports, network.wiring
    count = np.bincount(network.port_of_device(members), minlength=len(ports)).astype(np.float64)
    of_host: FloatArray = np.bincount(ports.host, count)[ports.host].astype(np.float64)
    everyone = float(len(members))
    base = network.num_links - len(wiring.capacity)
    place = base + 2 * len(ports)
    total[base + len(ports) : place] = count * (everyone - of_host)
    if network.forwards:
        on_rail: FloatArray = np.bincount(ports.index, count)[ports.index].astype(np.float64)
        total[base : base + len(ports)] = of_host * (on_rail - count)
    else:
        total[base : base + len(ports)] = count * (everyone - of_host)
    for group, number, lanes in _tiers(network):
        if network.forwards:
            up, down = _crossing_on_rails(ports.index, group, number, of_host, count)
        else:
            up = down = _crossing(ports.host, group, number, count, everyone, of_host)
        both = np.repeat(np.concatenate([up, down]) / lanes, lanes)
        total[place : place + len(both)] = both
        place += len(both)


def _tiers(network: Network) -> list[tuple[IntArray, int, int]]:
    """Switch above each port, number of such switches, and lanes up from each, tier by tier."""
    wiring = network.wiring
    if isinstance(wiring, FatTree):
        edge = np.arange(len(network.ports)) // wiring.half
        return [
            (edge, wiring.num_edges, wiring.edge_lanes),
            (edge // wiring.half, wiring.num_pods, wiring.pod_lanes),
        ]
    assert isinstance(wiring, TwoTier)
    has_spines = wiring.num_leaves > 1 and len(wiring.capacity) > wiring.num_port_links
    return [(wiring.leaf, wiring.num_leaves, wiring.lanes)] if has_spines else []


def _crossing(
    host: IntArray, group: IntArray, number: int, count: FloatArray, everyone: float, of_host: FloatArray
) -> FloatArray:
    """Units that leave each group of ports (as many come in)."""
    of_group = np.bincount(group, count, number)[group]
    _, both = np.unique(host * np.int64(number) + group, return_inverse=True)
    shared = np.bincount(both, count)[both]
    left = count * (everyone - of_group - of_host + shared)
    return np.bincount(group, left, number).astype(np.float64)


def _crossing_on_rails(
    rail: IntArray, group: IntArray, number: int, sending: FloatArray, receiving: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Units out of and into each group of ports, if a port sends to ports of its own rail only."""
    rails = int(rail.max()) + 1
    key = group * np.int64(rails) + rail
    shape = (number, rails)
    sent, received = (np.bincount(key, each, number * rails).reshape(shape) for each in (sending, receiving))
    # Ports of one host and one rail are one port, so what stays in a group is what its hosts send each other
    # and themselves; a port sends nothing to itself.
    up = (sent * (received.sum(0) - received)).sum(1)
    down = (received * (sent.sum(0) - sent)).sum(1)
    return up.astype(np.float64), down.astype(np.float64)


def _latency(network: Network, members: IntArray) -> float:
    """Largest latency: between the first device and all others, which covers every tier of these fabrics."""
    others = members[1:]
    return network.load(np.full(len(others), members[0]), others).latency if len(others) else 0.0
