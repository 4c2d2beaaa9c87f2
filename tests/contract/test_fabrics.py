"""What every fabric builder must hold: connected, right degrees and bisection, valid routes, exact shares."""

from __future__ import annotations

import math
from importlib import import_module

import networkx as nx
import numpy as np
import pytest

from sim.fabric.builders import BUILDERS
from sim.fabric.network import Network
from sim.spec import Cluster, FabricEdge
from tests.clusters import cluster, dgx1, plain_host, switched_host

B = 50e9


def pair(n: int, **fabric: object) -> Cluster:
    return cluster(plain_host(B, 1e-6), n, latency=2e-6, **fabric)


def ring_edges(n: int) -> tuple[FabricEdge, ...]:
    return tuple(
        FabricEdge(a=f"host{i}", b=f"host{(i + 1) % n}", bandwidth=B, latency=1e-6) for i in range(n)
    )


CASES: dict[str, Cluster] = {
    "switch": pair(8, kind="single_switch"),
    "switch-alone": pair(1, kind="single_switch"),
    "leaf-spine": pair(16, kind="leaf_spine", hosts_per_leaf=4, num_spines=4),
    "leaf-spine-2to1": pair(16, kind="leaf_spine", hosts_per_leaf=4, num_spines=2, oversubscription=2),
    "leaf-spine-static": pair(16, kind="leaf_spine", hosts_per_leaf=4, num_spines=4, routing="static"),
    "leaf-spine-partial": pair(10, kind="leaf_spine", hosts_per_leaf=4, uplink_latency=7e-6),
    "leaf-spine-bundled": pair(256, kind="leaf_spine", hosts_per_leaf=8, num_spines=40),
    "fat-tree": pair(16, kind="fat_tree", k=4),
    "fat-tree-static": pair(16, kind="fat_tree", k=4, routing="static"),
    "fat-tree-default": pair(20, kind="fat_tree"),
    "fat-tree-bundled": pair(1024, kind="fat_tree", k=16),
    "rail": cluster(switched_host(), 8, kind="rail_optimized", hosts_per_leaf=2),
    "rail-2to1": cluster(switched_host(4, 4), 8, kind="rail_optimized", hosts_per_leaf=4, oversubscription=2),
    "torus-2d": pair(12, kind="torus", dims=(4, 3)),
    "torus-3d": pair(24, kind="torus", dims=(4, 3, 2)),
    "torus-devices": cluster(plain_host(), 16, kind="torus", attach="device", dims=(4, 4), bandwidth=B),
    "torus-multi": cluster(switched_host(4, 2), 4, kind="torus"),
    "ring": pair(7, kind="ring"),
    "graph-ring": pair(6, kind="graph", edges=ring_edges(6)),
    "graph-tree": pair(
        4,
        kind="graph",
        edges=(
            FabricEdge(a="host[0-3]", b="switch[0-1]", bandwidth=B),
            FabricEdge(a="switch[0-1]", b="switch2", bandwidth=B),
            FabricEdge(a="switch[0-1]", b="switch3", bandwidth=B),
        ),
    ),
    "dgx1-leaf": cluster(dgx1(), 4, kind="leaf_spine", hosts_per_leaf=2),
}
SMALL = [name for name in CASES if "bundled" not in name]


def test_every_kind_is_covered() -> None:
    assert {case.fabric.kind for case in CASES.values()} == set(BUILDERS)


def some_pairs(network: Network) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of endpoints of small networks, a random part of large ones."""
    endpoints = network.num_devices + len(network.host_kind)
    src, dst = (grid.ravel() for grid in np.meshgrid(np.arange(endpoints), np.arange(endpoints)))
    if len(src) > 2000:
        pick = np.random.default_rng(1).choice(len(src), 2000, replace=False)
        src, dst = src[pick], dst[pick]
    return src, dst


@pytest.mark.parametrize("name", CASES)
def test_routes_lead_from_sender_to_receiver(name: str) -> None:
    """At every node as much of the flow leaves as arrives, one unit from the source to the target."""
    network = Network.build(CASES[name])
    linked = bool(network.cluster.host_types[0].links)

    def node(name: str) -> str:  # device, memory and NIC of a plain host are one point
        return name if linked else name.split("/")[0]

    ends: dict[int, list[tuple[str, str]]] = {}
    for a, b, link in network.arcs():
        ends.setdefault(link, []).append((node(a), node(b)))
    src, dst = some_pairs(network)
    routes = network.routes(src, dst)
    assert routes.offsets[-1] == len(routes.link) == len(routes.share)
    for i in range(0, len(src), 1 if len(src) < 300 else 7):
        row = slice(routes.offsets[i], routes.offsets[i + 1])
        source, target = (node(network.endpoint_name(int(end[i]))) for end in (src, dst))
        nodes: dict[str, float] = {source: 1.0}
        seen: set[str] = set()
        for link, share in zip(routes.link[row].tolist(), routes.share[row].tolist(), strict=True):
            a, b = next(
                (x, y)
                for x, y in ends[link]
                if nodes.get(x, 0) > 1e-12 and (len(ends[link]) == 1 or y not in seen)
            )
            seen.add(a)
            nodes[a] = nodes[a] - share
            nodes[b] = nodes.get(b, 0.0) + share
        left = {name: amount for name, amount in nodes.items() if abs(amount) > 1e-9}
        assert left == {target: pytest.approx(1)}


@pytest.mark.parametrize("name", CASES)
def test_latency_and_shares_add_up(name: str) -> None:
    network = Network.build(CASES[name])
    routes = network.routes(*some_pairs(network))
    assert ((routes.share > 0) & (routes.share <= 1)).all()
    expected = np.bincount(
        routes.rows(), routes.share * network.link_latency[routes.link], len(routes.latency)
    )
    np.testing.assert_allclose(routes.latency, expected, rtol=1e-12, atol=1e-18)


@pytest.mark.parametrize("name", CASES)
def test_both_directions_mirror_each_other(name: str) -> None:
    """The way back has the same length and latency (ECMP), over the opposite links."""
    network = Network.build(CASES[name])
    src, dst = some_pairs(network)
    there, back = network.routes(src, dst), network.routes(dst, src)
    np.testing.assert_allclose(there.latency, back.latency, rtol=1e-9)
    np.testing.assert_array_equal(np.diff(there.offsets), np.diff(back.offsets))


@pytest.mark.parametrize("name", CASES)
def test_link_names_are_unique_and_kinds_are_known(name: str) -> None:
    network = Network.build(CASES[name])
    names = [network.link_name(i) for i in range(network.num_links)]
    assert len(set(names)) == len(names)
    assert set(network.link_kind.tolist()) <= {"nvlink", "pcie", "qpi", "memory", "nic", "fabric"}
    assert (network.link_capacity > 0).all()
    assert (network.link_latency >= 0).all()


@pytest.mark.parametrize("name", SMALL)
def test_graph_is_strongly_connected(name: str) -> None:
    network = Network.build(CASES[name])
    graph = network.graph()
    assert network.num_links == 0 or nx.is_strongly_connected(graph)
    assert {data["link"] for _, _, data in graph.edges(data=True)} == set(range(network.num_links))


def bisection(network: Network, left: list[int], right: list[int]) -> float:
    """Max-flow between two sets of ports, bytes/s."""
    graph = network.graph()
    for ports, hub in ((left, "left"), (right, "right")):
        for port in ports:
            graph.add_edge(*((hub, network.ports.name(port))[:: 1 if hub == "left" else -1]))
    return float(nx.maximum_flow_value(graph, "left", "right"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("switch", 4 * B),
        ("leaf-spine", 8 * B),
        ("leaf-spine-2to1", 4 * B),
        ("fat-tree", 8 * B),  # k^3/8 ports per half, full bisection (Al-Fares 2008)
        ("fat-tree-bundled", 512 * B),
        ("leaf-spine-bundled", 128 * B),
        ("graph-ring", 2 * B),
        ("graph-tree", 2 * B),
    ],
)
def test_bisection_bandwidth(name: str, expected: float) -> None:
    network = Network.build(CASES[name])
    half = len(network.ports) // 2
    assert bisection(network, list(range(half)), list(range(half, 2 * half))) == pytest.approx(
        expected, rel=1e-9
    )


@pytest.mark.parametrize("dims", [(4, 4), (8, 4), (4, 4, 2), (6,), (2, 2, 2), (5, 4)])
def test_torus_bisection_and_degree(dims: tuple[int, ...]) -> None:
    """Cut in half across the longest even dimension: two cables per row (one if the extent is 2)."""
    n = math.prod(dims)
    network = Network.build(cluster(plain_host(), n, kind="torus", attach="device", dims=dims, bandwidth=B))
    axis = max((d for d in range(len(dims)) if dims[d] % 2 == 0), key=lambda d: dims[d])
    place = np.arange(n) // math.prod(dims[:axis]) % dims[axis]
    left, right = (
        np.flatnonzero(side).tolist() for side in (place < dims[axis] // 2, place >= dims[axis] // 2)
    )
    cables = n // dims[axis] * min(2, dims[axis] - 1)
    assert bisection(network, left, right) == pytest.approx(cables * B, rel=1e-9)
    degree = sum(min(2, extent - 1) for extent in dims)
    assert {d for _, d in network.graph().out_degree()} == {degree}


def test_rail_bisection_is_the_uplinks() -> None:
    """Between two groups of hosts only the leaves' uplinks: 2 hosts' ports per leaf, at 2:1 half of that."""
    for name, ratio in (("rail", 1), ("rail-2to1", 2)):
        network = Network.build(CASES[name])
        group = network.cluster.fabric.hosts_per_leaf or 0
        ports = network.ports
        left = np.flatnonzero(ports.host < group).tolist()
        right = np.flatnonzero((ports.host >= group) & (ports.host < 2 * group)).tolist()
        assert bisection(network, left, right) == pytest.approx(len(left) * 25e9 / ratio, rel=1e-9)


@pytest.mark.parametrize("kind", ["leaf_spine", "fat_tree"])
def test_bundles_carry_what_their_members_would(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle's load over its capacity equals that of each real link: bundling changes names only."""
    fields = {"hosts_per_leaf": 4, "num_spines": 4} if kind == "leaf_spine" else {"k": 4}
    spec = pair(16, kind=kind, **fields)
    src, dst = np.arange(16), np.roll(np.arange(16), -5)
    worst = []
    for limit in (10**6, 0):
        for module in ("two_tier", "fat_tree"):
            monkeypatch.setattr(import_module(f"sim.fabric.builders.{module}"), "MAX_REAL_LINKS", limit)
        network = Network(spec)
        load = network.load(src, dst)
        fabric = load.link >= network.wiring.num_port_links
        worst.append((load.coefficient / network.link_capacity[load.link])[fabric].max())
        assert (network.link_members.max() > 1) == (limit == 0)
        assert network.link_members.sum() == network.link_members.size or limit == 0
    assert worst[0] == pytest.approx(worst[1], rel=1e-12)


def test_degrees_of_a_fat_tree() -> None:
    """Every switch of a k = 4 fat-tree has 4 cables: k pods, k^2/4 cores."""
    graph = Network.build(CASES["fat-tree"]).graph()
    degrees = {node: degree for node, degree in graph.out_degree() if "/" not in node}
    assert len(degrees) == 8 + 8 + 4
    assert set(degrees.values()) == {4}
