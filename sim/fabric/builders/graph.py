"""Graphs of hosts, NICs and switches, routed over shortest paths: explicit ones, and those of other builders.

Nodes are ``hostI`` (all NICs of host I meet there), ``nicI`` (port number I, counted over all hosts; takes
the place of the host's node for that port) and switches by any name. Under ECMP every node splits a flow
evenly over the neighbours on shortest paths; static and hashed routing take one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np

from sim.errors import InputError
from sim.fabric.builders.base import FloatArray, Hops, IntArray, PathChoice, Ports, Wiring, require_size
from sim.spec.fabric import Fabric


@dataclass(frozen=True)
class Cable:
    """A full-duplex cable: its ends, bytes/s in one direction, seconds."""

    a: str
    b: str
    bandwidth: float
    latency: float


class CableGraph(Wiring):
    """Cables as given; routes are found per destination when first needed and kept.

    Parameters
    ----------
    cables : iterable of Cable
        Parallel ones become one.
    ports : Ports
        What is attached; the first links are those of ports to their nodes.
    choice : PathChoice
    reach : (float[P], float[P]), optional
        Capacity and latency of the links of ports; the NICs' own if absent.
    nodes : sequence of str, optional
        Node each port hangs on; ``nicI`` or ``hostI`` if absent.
    """

    def __init__(
        self,
        cables: Iterable[Cable],
        ports: Ports,
        choice: PathChoice,
        reach: tuple[FloatArray, FloatArray] | None = None,
        nodes: Sequence[str] | None = None,
    ) -> None:
        self.ports, self.choice = ports, choice
        joined: dict[tuple[str, str], list[float]] = {}
        for cable in cables:
            for ends in ((cable.a, cable.b), (cable.b, cable.a)):
                entry = joined.setdefault(ends, [0.0, cable.latency, 0])
                entry[0] += cable.bandwidth
                entry[2] += 1
        self.arcs = list(joined)
        self.num_port_links = 2 * len(ports)
        bandwidths, latencies, members = (np.array([c[i] for c in joined.values()]) for i in range(3))
        own, delay = reach or (ports.bandwidth, ports.latency)
        self.capacity = np.concatenate([own, own, bandwidths])
        self.latency = np.concatenate([delay, delay, latencies])
        self.members = np.concatenate([np.ones(self.num_port_links), members]).astype(np.int64)
        self.graph: nx.DiGraph[str] = nx.DiGraph()
        for i, (a, b) in enumerate(self.arcs):
            self.graph.add_edge(a, b, link=self.num_port_links + i)
        self._reverse = self.graph.reverse(copy=False)
        self.graph.add_nodes_from(nodes or ())
        self.number = {node: i for i, node in enumerate(self.graph)}
        self.node = list(nodes or (self._node_of(port) for port in range(len(ports))))
        self._distance: dict[str, dict[str, int]] = {}
        self._between: dict[tuple[str, str, int], dict[int, float]] = {}

    def _node_of(self, port: int) -> str:
        own, shared = f"nic{port}", f"host{self.ports.host[port]}"
        if own in self.graph:
            return own
        if shared not in self.graph:
            raise InputError("cluster.fabric", "attach every host", f"no cable at {shared}")
        return shared

    def route(self, src: IntArray, dst: IntArray) -> Hops:
        """NIC up, the cables of the paths with their shares, NIC down."""
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
        label = {"ecmp": 0, "static": dst, "hashed": src * len(self.ports) + dst}[self.choice.routing]
        key = (start, goal, label)
        if key not in self._between:
            self._between[key] = self._spread(start, goal, src, dst)
        return self._between[key]

    def _spread(self, start: str, goal: str, src: int, dst: int) -> dict[int, float]:
        distance = self._distance_to(goal)
        if start not in distance:
            raise InputError("cluster.fabric", "connect all hosts", f"no path from {start} to {goal}")
        shares: dict[int, float] = {}
        layer = {start: 1.0}
        for left in range(distance[start] - 1, -1, -1):
            following: dict[str, float] = {}
            for node, amount in layer.items():
                nearer = self._next(node, left, distance, src, dst)
                for other in nearer:
                    link = self.graph[node][other]["link"]
                    shares[link] = shares.get(link, 0.0) + amount / len(nearer)
                    following[other] = following.get(other, 0.0) + amount / len(nearer)
            layer = following
        return shares

    def _next(self, node: str, left: int, distance: dict[str, int], src: int, dst: int) -> list[str]:
        nearer = [other for other in self.graph[node] if distance.get(other) == left]
        if self.choice.routing == "ecmp" or len(nearer) == 1:
            return nearer
        if self.choice.routing == "static":
            return [nearer[dst % len(nearer)]]
        flow = np.array([src]), np.array([dst])
        lane = self.choice.lanes(*flow, len(nearer), level=self.number[node])
        return [nearer[int(lane[0, 0])]]

    def _distance_to(self, goal: str) -> dict[str, int]:
        if goal not in self._distance:
            self._distance[goal] = dict(nx.single_source_shortest_path_length(self._reverse, goal))
        return self._distance[goal]

    def ends(self, link: int) -> tuple[str, str]:
        """Port and node names."""
        if link >= self.num_port_links:
            return self.arcs[link - self.num_port_links]
        port = link % len(self.ports)
        pair = self.ports.name(port), self.node[port]
        return pair if link < len(self.ports) else pair[::-1]


def graph(fabric: Fabric, ports: Ports) -> Wiring:
    """Explicit graph.

    Raises
    ------
    InputError
        If a cable ends at a host or NIC that there is not.
    """
    counts = {"host": ports.num_hosts, "nic": len(ports)}
    for number, edge in enumerate(fabric.edges):
        for node in (node for pair in edge.pairs() for node in pair):
            for kind, count in counts.items():
                if node.startswith(kind) and int(node[len(kind) :]) >= count:
                    must = f"name a {kind} below {count}, of which the cluster has {count}"
                    raise InputError(f"cluster.fabric.edges.{number}", must, node)
    require_size("edges", sum(len(edge.pairs()) for edge in fabric.edges), cables=True)
    cables = [Cable(a, b, edge.bandwidth, edge.latency) for edge in fabric.edges for a, b in edge.pairs()]
    return CableGraph(cables, ports, PathChoice.of(fabric))


def without_failures(wiring: Wiring, ports: Ports, fabric: Fabric) -> Wiring:
    """The same fabric without the switches and cables that are down; shortest paths over what is left.

    Raises
    ------
    InputError
        If a name is none of this fabric's, or is a port's own cable.
    """
    first = wiring.num_port_links
    if not first:
        raise InputError("cluster.fabric.failed", "not be given where devices are joined directly")
    attached = [wiring.ends(port)[1] for port in range(len(ports))]
    arcs = {link: wiring.ends(link) for link in range(first, len(wiring.capacity))}
    nodes = {node for pair in arcs.values() for node in pair} | set(attached)
    dead_nodes = {name for name in fabric.failed if name in nodes}
    dead_cables = {frozenset(name.split("-")) for name in fabric.failed if name not in nodes}
    unknown = dead_cables - {frozenset(pair) for pair in arcs.values()}
    if unknown:
        known = ", ".join(sorted(nodes)[:4])
        raise InputError(
            "cluster.fabric.failed", "name switches or cables of the fabric", "-".join(sorted(unknown.pop())),
            hint=f"Some of its nodes: {known}.",
        )  # fmt: skip
    gone = dead_nodes & set(attached)
    if gone:
        raise InputError("cluster.fabric.failed", "leave every host attached", ", ".join(sorted(gone)))
    cables = [
        Cable(a, b, float(wiring.capacity[link]), float(wiring.latency[link]))
        for link, (a, b) in arcs.items()
        if a < b and not {a, b} & dead_nodes and frozenset((a, b)) not in dead_cables
    ]
    reach = wiring.capacity[: len(ports)], wiring.latency[: len(ports)]
    return CableGraph(cables, ports, PathChoice.of(fabric), reach, attached)
