"""k-ary fat-tree (Al-Fares, Loukissas, Vahdat, SIGCOMM 2008).

``k`` pods of k/2 edge and k/2 aggregation switches, (k/2)^2 core switches, k^3/4 ports. Aggregation switch i
of every pod is joined to cores i*k/2 .. (i+1)*k/2 - 1. Ports fill edge switches in order.
"""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from sim.fabric.builders.base import (
    MAX_REAL_LINKS,
    FloatArray,
    Hops,
    IntArray,
    PathChoice,
    Ports,
    Wiring,
    port_cables,
    require_room,
    require_size,
)
from sim.spec.fabric import Fabric


class FatTree(Wiring):
    """Ports, edge, aggregation and core switches.

    Links: port up, port down, edge up, edge down, pod up, pod down. Edge and pod links are real, or bundles
    (all uplinks of an edge switch; all links between a pod and the cores) if they are many and traffic is
    split evenly.
    """

    def __init__(self, fabric: Fabric, ports: Ports, k: int) -> None:
        self.ports, self.k, self.half, self.choice = ports, k, k // 2, PathChoice.of(fabric)
        cable, delay = port_cables(fabric, ports)
        self.num_pods = -(-len(ports) * 4 // k**2)
        self.num_edges = self.num_pods * self.half
        self.bundled = self.choice.may_bundle and 4 * self.num_edges * self.half > MAX_REAL_LINKS
        self.edge_lanes, self.pod_lanes = (1, 1) if self.bundled else (self.half, self.half**2)
        require_size("k", 2 * self.num_edges * self.edge_lanes + 2 * self.num_pods * self.pod_lanes)
        edge_bundle, pod_bundle = self.half // self.edge_lanes, self.half**2 // self.pod_lanes
        uplink = fabric.uplink_bandwidth or float(cable[0]) / fabric.oversubscription
        uplink_latency = fabric.latency if fabric.uplink_latency is None else fabric.uplink_latency
        tiers = [
            (2 * self.num_edges * self.edge_lanes, edge_bundle),
            (2 * self.num_pods * self.pod_lanes, pod_bundle),
        ]
        upper = sum(count for count, _ in tiers)
        self.num_port_links = 2 * len(ports)
        self.capacity = np.concatenate([cable, cable, *(np.full(count, m * uplink) for count, m in tiers)])
        self.latency = np.concatenate([delay, delay, np.full(upper, uplink_latency)])
        self.members = np.concatenate(
            [np.ones(self.num_port_links, np.int64), *(np.full(count, m) for count, m in tiers)]
        )
        counts = [len(ports)] * 2 + [count // 2 for count, _ in tiers for _ in range(2)]
        self.first = np.concatenate([[0], np.cumsum(counts)])

    def route(self, src: IntArray, dst: IntArray) -> Hops:
        """Up to the lowest switch that both ports share, and down."""
        n = len(src)
        rise, fall = src // self.half, dst // self.half
        if self.choice.single:  # static: destination modulo k/2 is the aggregation switch, then the core
            aggregation = self.choice.lanes(src, dst, self.half)
            core = aggregation * self.half + self.choice.lanes(src, dst, self.half, level=1)
        else:
            aggregation, core = np.arange(self.edge_lanes)[None, :], np.arange(self.pod_lanes)[None, :]

        def columns(tier: int, switch: IntArray, lanes: int, lane: IntArray, crosses: IntArray) -> IntArray:
            return np.where(crosses[:, None], self.first[tier] + switch[:, None] * lanes + lane, -1)

        edges_differ = rise != fall
        pods_differ = rise // self.half != fall // self.half
        edge = [columns(t, s, self.edge_lanes, aggregation, edges_differ) for t, s in ((2, rise), (3, fall))]
        pods = ((4, rise // self.half), (5, fall // self.half))
        pod = [columns(t, s, self.pod_lanes, core, pods_differ) for t, s in pods]
        edge_share, pod_share = 1 / aggregation.shape[1], 1 / core.shape[1]
        return Hops.of(
            n,
            (src, 1.0),
            (edge[0], edge_share),
            (pod[0], pod_share),
            (pod[1], pod_share),
            (edge[1], edge_share),
            (len(self.ports) + dst, 1.0),
        )

    @override
    def demand(self, sending: FloatArray, receiving: FloatArray) -> FloatArray:
        """All ports of an edge switch (a pod) at once, over its uplinks (on any one if flows take one)."""
        edge = np.arange(len(self.ports)) // self.half
        bounds = [np.full(self.num_port_links, np.inf)]
        tiers = (edge, self.num_edges, self.edge_lanes), (edge // self.half, self.num_pods, self.pod_lanes)
        for switch, count, lanes in tiers:
            share = 1.0 if self.choice.single else 1 / lanes
            bounds += [
                np.repeat(np.bincount(switch, rate, count) * share, lanes) for rate in (sending, receiving)
            ]
        return np.concatenate(bounds)

    def ends(self, link: int) -> tuple[str, str]:
        """Port, edge, aggregation and core names; a bundle names a whole tier of the pod."""
        tier = int(np.searchsorted(self.first, link, side="right")) - 1
        row = link - int(self.first[tier])
        if tier < 2:
            pair = self.ports.name(row), f"edge{row // self.half}"
        elif tier < 4:
            edge, lane = divmod(row, self.edge_lanes)
            pod = edge // self.half
            pair = f"edge{edge}", f"pod{pod}" if self.bundled else f"aggregation{pod * self.half + lane}"
        else:
            pod, core = divmod(row, self.pod_lanes)
            upper = pod * self.half + core // self.half
            pair = (f"pod{pod}", "cores") if self.bundled else (f"aggregation{upper}", f"core{core}")
        return pair if tier % 2 == 0 else pair[::-1]


def fat_tree(fabric: Fabric, ports: Ports) -> Wiring:
    """Fat-tree with ``k`` given, or the smallest even k that holds all ports."""
    smallest = 2
    while smallest**3 // 4 < len(ports):
        smallest += 2
    k = fabric.k or smallest
    require_room("k", k**3 // 4, len(ports), "NIC ports (k^3/4)", hint=f"Try {smallest}.")
    return FatTree(fabric, ports, k)
