"""Leaf switches below spine switches: single switch, leaf-spine, rail-optimised.

They differ only in which leaf a port hangs on. A single switch is one leaf. In a leaf-spine fabric all NICs
of ``hosts_per_leaf`` consecutive hosts share a leaf; in a rail-optimised one NIC i of those hosts hangs on
leaf i of their group (Wang et al., HotI 2023), so that equal NICs meet below the spine.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from typing_extensions import override

from sim.errors import InputError
from sim.fabric.builders.base import (
    MAX_REAL_LINKS,
    FloatArray,
    Hops,
    IntArray,
    PathChoice,
    Ports,
    Wiring,
    port_cables,
    require_size,
)
from sim.spec.fabric import Fabric

# Half the ports of a 64-port switch face down.
_DEFAULT_PORTS_PER_LEAF = 32
_EVENLY = PathChoice()


class TwoTier(Wiring):
    """Leaves of ports, every leaf joined to every spine.

    Parameters
    ----------
    ports : Ports
        What is attached.
    leaf : int[P]
        Leaf of each port.
    cable_bandwidth, cable_latency : float[P]
        Cable between a port and its leaf.
    uplink_bandwidth, uplink_latency : float
        Cable between a leaf and a spine.
    num_spines : int
        Spine switches; without effect for one leaf.
    choice : PathChoice
        Which spine a flow takes.
    """

    def __init__(
        self,
        ports: Ports,
        leaf: IntArray,
        cable_bandwidth: FloatArray,
        cable_latency: FloatArray,
        uplink_bandwidth: float = 0.0,
        uplink_latency: float = 0.0,
        num_spines: int = 1,
        choice: PathChoice = _EVENLY,
    ) -> None:
        self.ports, self.leaf, self.choice, self.num_spines = ports, leaf, choice, num_spines
        self.num_leaves = int(leaf.max()) + 1 if len(leaf) else 0
        pairs = self.num_leaves * num_spines if self.num_leaves > 1 else 0
        self.bundled = choice.may_bundle and 2 * pairs > MAX_REAL_LINKS
        self.lanes = 1 if self.bundled else max(num_spines, 1)
        bundle = max(num_spines // self.lanes, 1)
        uplinks = 2 * (pairs // bundle)
        require_size("num_spines", uplinks)
        self.num_port_links = 2 * len(ports)
        self.capacity = np.concatenate(
            [cable_bandwidth, cable_bandwidth, np.full(uplinks, bundle * uplink_bandwidth)]
        )
        self.latency = np.concatenate([cable_latency, cable_latency, np.full(uplinks, uplink_latency)])
        self.members = np.concatenate([np.ones(self.num_port_links, np.int64), np.full(uplinks, bundle)])

    def route(self, src: IntArray, dst: IntArray) -> Hops:
        """Up, over the spines if the leaves differ, and down."""
        num_ports, n = len(self.ports), len(src)
        if self.num_leaves <= 1:
            return Hops.of(n, (src, 1.0), (num_ports + dst, 1.0))
        rise, fall = self.leaf[src], self.leaf[dst]
        lane = self.choice.lanes(src, dst, self.lanes)
        cross = (rise != fall)[:, None]
        up = np.where(cross, 2 * num_ports + rise[:, None] * self.lanes + lane, -1)
        down = np.where(cross, 2 * num_ports + (self.num_leaves + fall[:, None]) * self.lanes + lane, -1)
        share = 1 / lane.shape[1]
        return Hops.of(n, (src, 1.0), (up, share), (down, share), (num_ports + dst, 1.0))

    @override
    def demand(self, sending: FloatArray, receiving: FloatArray) -> FloatArray:
        """All ports of a leaf at once, evenly over the spines (on any one if a flow takes one)."""
        bound = np.full(len(self.capacity), np.inf)
        if self.num_leaves > 1 and len(bound) > self.num_port_links:
            share = 1.0 if self.choice.single else 1 / self.lanes
            leaves = [np.bincount(self.leaf, rate, self.num_leaves) for rate in (sending, receiving)]
            bound[self.num_port_links :] = np.repeat(np.concatenate(leaves) * share, self.lanes)
        return bound

    def ends(self, link: int) -> tuple[str, str]:
        """Port, leaf and spine names."""
        num_ports = len(self.ports)
        if link < 2 * num_ports:
            port = link % num_ports
            pair = self.ports.name(port), f"leaf{self.leaf[port]}"
            return pair if link < num_ports else pair[::-1]
        row, lane = divmod(link - 2 * num_ports, self.lanes)
        pair = (
            f"leaf{row % self.num_leaves}",
            f"spines[0-{self.num_spines - 1}]" if self.bundled else f"spine{lane}",
        )
        return pair if row < self.num_leaves else pair[::-1]


def single_switch(fabric: Fabric, ports: Ports) -> Wiring:
    """One non-blocking switch."""
    return TwoTier(ports, np.zeros(len(ports), np.int64), *port_cables(fabric, ports))


def leaf_spine(fabric: Fabric, ports: Ports) -> Wiring:
    """All NICs of consecutive hosts on one leaf; 32 ports per leaf if ``hosts_per_leaf`` is absent."""
    nics = int(ports.index.max()) + 1
    hosts_per_leaf = fabric.hosts_per_leaf or max(1, _DEFAULT_PORTS_PER_LEAF // nics)
    return _with_spines(fabric, ports, ports.host // hosts_per_leaf, hosts_per_leaf * nics)


def rail_optimized(fabric: Fabric, ports: Ports) -> Wiring:
    """NIC i of consecutive hosts on leaf i of their group; groups of 32 if ``hosts_per_leaf`` is absent."""
    rails = int(ports.index.max()) + 1
    hosts_per_leaf = fabric.hosts_per_leaf or _DEFAULT_PORTS_PER_LEAF
    return _with_spines(fabric, ports, ports.host // hosts_per_leaf * rails + ports.index, hosts_per_leaf)


class Planes(TwoTier):
    """Two-tier fabrics side by side, one per NIC of a host; nothing leads from one to another.

    A flow between NICs of different index has to change planes inside a host, over NVLink (NCCL's PXN).
    """

    def __init__(self, ports: Ports, plane_of_leaf: IntArray, *args: Any) -> None:
        self.plane = plane_of_leaf
        super().__init__(ports, *args)

    def route(self, src: IntArray, dst: IntArray) -> Hops:
        """Within one plane."""
        if (self.plane[self.leaf[src]] != self.plane[self.leaf[dst]]).any():
            must = "reach the NICs of other rails through a device of the sender's host"
            raise InputError("cluster.fabric.kind", must)
        return super().route(src, dst)

    def ends(self, link: int) -> tuple[str, str]:
        """As in a single fabric, with the plane in the names of spines."""
        a, b = super().ends(link)
        if link < self.num_port_links:
            return a, b
        plane = self.plane[int((a if a.startswith("leaf") else b)[4:])]
        return (a, f"plane{plane}_{b}") if a.startswith("leaf") else (f"plane{plane}_{a}", b)


def rail_only(fabric: Fabric, ports: Ports) -> Wiring:
    """NIC i of every host on switch i, and no spine (W. Wang et al., HotI 2024, Rail-only)."""
    rails = int(ports.index.max(initial=0)) + 1
    bandwidth, latency = port_cables(fabric, ports)
    return Planes(ports, np.arange(rails), ports.index, bandwidth, latency, 0.0, 0.0, 0)


def multi_plane(fabric: Fabric, ports: Ports) -> Wiring:
    """NIC i of every host in leaf-spine fabric i (DeepSeek-V3: eight planes, arXiv:2505.09343, section 5)."""
    rails = int(ports.index.max(initial=0)) + 1
    hosts_per_leaf = fabric.hosts_per_leaf or _DEFAULT_PORTS_PER_LEAF
    leaf = ports.host // hosts_per_leaf * rails + ports.index
    plane = np.arange(int(leaf.max(initial=0)) + 1) % rails
    bandwidth, latency = port_cables(fabric, ports)
    uplink, num_spines = uplinks(fabric, hosts_per_leaf, float(bandwidth[0]))
    uplink_latency = fabric.latency if fabric.uplink_latency is None else fabric.uplink_latency
    return Planes(
        ports, plane, leaf, bandwidth, latency, uplink, uplink_latency, num_spines, PathChoice.of(fabric)
    )


def _with_spines(fabric: Fabric, ports: Ports, leaf: IntArray, ports_per_leaf: int) -> Wiring:
    bandwidth, latency = port_cables(fabric, ports)
    uplink, num_spines = uplinks(fabric, ports_per_leaf, float(bandwidth[0]))
    uplink_latency = fabric.latency if fabric.uplink_latency is None else fabric.uplink_latency
    return TwoTier(ports, leaf, bandwidth, latency, uplink, uplink_latency, num_spines, PathChoice.of(fabric))


def uplinks(fabric: Fabric, ports_per_leaf: int, cable: float) -> tuple[float, int]:
    """Bandwidth of one leaf-spine cable and number of spines.

    A full leaf has ``ports_per_leaf * cable / oversubscription`` bytes/s upwards. Spines are as many as
    given, or as cables of ``uplink_bandwidth`` (of the host cable if absent) are needed; the cables share
    the total evenly, unless ``uplink_bandwidth`` is given too: then they have exactly that.
    """
    total = ports_per_leaf * cable / fabric.oversubscription
    num_spines = fabric.num_spines or max(1, math.ceil(total / (fabric.uplink_bandwidth or cable) - 1e-9))
    if fabric.uplink_bandwidth is None:
        return total / num_spines, num_spines
    given = num_spines * fabric.uplink_bandwidth
    if fabric.oversubscription != 1 and fabric.num_spines and abs(given / total - 1) > 0.01:
        ratio = ports_per_leaf * cable / given
        raise InputError(
            "cluster.fabric.oversubscription",
            f"agree with num_spines and uplink_bandwidth, which give {ratio:g}",
            f"{fabric.oversubscription:g}",
        )
    return fabric.uplink_bandwidth, num_spines
