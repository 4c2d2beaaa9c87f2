"""Explicit graph of hosts, NICs and switches, routed over shortest paths.

Nodes are ``hostI`` (all NICs of host I meet there), ``nicI`` (port number I, counted over all hosts; takes
the place of the host's node for that port) and ``switchI``. Under ECMP every node splits a flow evenly over
the neighbours on shortest paths; static routing takes one of them, by destination.
"""

from __future__ import annotations

import networkx as nx
import numpy as np

from sim.errors import InputError
from sim.fabric.builders.base import Hops, IntArray, Ports, Wiring
from sim.spec.fabric import Fabric


class ExplicitGraph(Wiring):
    """Cables as given; routes are found per destination when first needed and kept."""

    def __init__(self, fabric: Fabric, ports: Ports) -> None:
        self.ports, self.static = ports, fabric.routing == "static"
        cables: dict[tuple[str, str], list[float]] = {}
        for edge in fabric.edges:
            for a, b in edge.pairs():
                for ends in ((a, b), (b, a)):
                    cable = cables.setdefault(ends, [0.0, edge.latency, 0])
                    cable[0] += edge.bandwidth  # parallel cables
                    cable[2] += 1
        self.arcs = list(cables)
        self.num_port_links = 2 * len(ports)
        bandwidths, latencies, members = (np.array([c[i] for c in cables.values()]) for i in range(3))
        self.capacity = np.concatenate([ports.bandwidth, ports.bandwidth, bandwidths])
        self.latency = np.concatenate([ports.latency, ports.latency, latencies])
        self.members = np.concatenate([np.ones(self.num_port_links), members]).astype(np.int64)
        self.graph: nx.DiGraph[str] = nx.DiGraph()
        for i, (a, b) in enumerate(self.arcs):
            self.graph.add_edge(a, b, link=self.num_port_links + i)
        self._reverse = self.graph.reverse(copy=False)
        self.node = [self._node_of(port) for port in range(len(ports))]
        self._distance: dict[str, dict[str, int]] = {}
        self._between: dict[tuple[str, str], dict[int, float]] = {}

    def _node_of(self, port: int) -> str:
        own, shared = f"nic{port}", f"host{self.ports.host[port]}"
        if own in self.graph:
            return own
        if shared not in self.graph:
            raise InputError("cluster.fabric.edges", "attach every host", f"none at {shared}")
        return shared

    def route(self, src: IntArray, dst: IntArray) -> Hops:
        """NIC up, the cables of all shortest paths with their shares, NIC down."""
        n, num_ports = len(src), len(self.ports)
        keys, inverse = np.unique(src * num_ports + dst, return_inverse=True)
        splits = [self._split(*divmod(int(key), num_ports)) for key in keys]
        width = 2 + max((len(split) for split in splits), default=0)
        link, share = np.full((len(keys), width), -1, np.int64), np.ones((len(keys), width))
        for row, (key, split) in enumerate(zip(keys, splits, strict=True)):
            link[row, : len(split) + 2] = [key // num_ports, *split, num_ports + key % num_ports]
            share[row, 1 : len(split) + 1] = list(split.values())
        return Hops(link[inverse].reshape(n, width), share[inverse].reshape(n, width))

    def _split(self, src: int, dst: int) -> dict[int, float]:
        """Share of the flow between two ports on each cable, in order of distance from the source."""
        start, goal = self.node[src], self.node[dst]
        if (start, goal) not in self._between:
            self._between[start, goal] = self._spread(start, goal, dst)
        return self._between[start, goal]

    def _spread(self, start: str, goal: str, dst: int) -> dict[int, float]:
        if goal not in self._distance:
            self._distance[goal] = dict(nx.single_source_shortest_path_length(self._reverse, goal))
        distance = self._distance[goal]
        if start not in distance:
            raise InputError("cluster.fabric.edges", "connect all hosts", f"no path from {start} to {goal}")
        shares: dict[int, float] = {}
        layer = {start: 1.0}
        for left in range(distance[start] - 1, -1, -1):
            following: dict[str, float] = {}
            for node, amount in layer.items():
                nearer = [other for other in self.graph[node] if distance.get(other) == left]
                if self.static:
                    nearer = [nearer[dst % len(nearer)]]
                for other in nearer:
                    shares[self.graph[node][other]["link"]] = amount / len(nearer)
                    following[other] = following.get(other, 0.0) + amount / len(nearer)
            layer = following
        return shares

    def ends(self, link: int) -> tuple[str, str]:
        """Port and node names."""
        if link >= self.num_port_links:
            return self.arcs[link - self.num_port_links]
        port = link % len(self.ports)
        pair = self.ports.name(port), self.node[port]
        return pair if link < len(self.ports) else pair[::-1]


def graph(fabric: Fabric, ports: Ports) -> Wiring:
    """Explicit graph."""
    return ExplicitGraph(fabric, ports)
