"""What every fabric builder must hold: connected, right degrees and bisection, valid routes, exact shares."""

from __future__ import annotations

import math
from importlib import import_module

import networkx as nx
import numpy as np
import pytest

from sim.errors import InputError
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
    "rail-only": cluster(switched_host(4, 4), 6, kind="rail_only"),
    "rail-forwarding": cluster(
        switched_host(4, 4), 6, kind="rail_optimized", hosts_per_leaf=2, rail_forwarding=True
    ),
    "multi-plane": cluster(switched_host(4, 4), 8, kind="multi_plane", hosts_per_leaf=4),
    "hypercube": pair(16, kind="hypercube"),
    "dragonfly": pair(36, kind="dragonfly", hosts_per_leaf=1, k=4),  # 9 groups of 4 routers, p = 1, h = 2
    "dragonfly-default": pair(40, kind="dragonfly"),
    "bcube": pair(16, kind="bcube", k=4),
    "dcell": pair(20, kind="dcell", k=4),
    "bigraph": cluster(switched_host(4, 4), 8, kind="bigraph", hosts_per_leaf=4, num_spines=4),
    "leaf-spine-hashed": pair(
        16, kind="leaf_spine", hosts_per_leaf=4, num_spines=4, routing="hashed", seed=3
    ),
    "fat-tree-hashed": pair(16, kind="fat_tree", k=4, routing="hashed"),
    "dragonfly-hashed": pair(36, kind="dragonfly", hosts_per_leaf=1, k=4, routing="hashed"),
    "leaf-spine-failed": pair(
        16, kind="leaf_spine", hosts_per_leaf=4, num_spines=4, failed=("spine1", "leaf0-spine2")
    ),
    "fat-tree-failed": pair(16, kind="fat_tree", k=4, failed=("core0", "aggregation3")),
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
    if network.cluster.fabric.routing == "hashed" or network.forwards:
        pytest.skip("the way back may differ")
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
        ("hypercube", 8 * B),  # n / 2 cables between two halves (Dally, Towles 2004, section 3.3)
        ("bcube", 8 * B),  # BCube(n, 1): n^2 / 2 hosts per half, each with a cable up (Guo 2009, section 3.4)
        ("leaf-spine-failed", 5 * B),  # 2 leaves of 3 and 2 uplinks left
        (
            "fat-tree-failed",
            4 * B,
        ),  # 3 ways up from pod 0, and 1 from pod 1, which lost an aggregation switch
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


def test_bisection_of_rails_and_planes() -> None:
    """Only the NICs limit: every rail has a non-blocking switch, every plane a non-blocking fabric."""
    for name in ("rail-only", "multi-plane"):
        network = Network.build(CASES[name])
        hosts = network.num_hosts
        left, right = (
            np.flatnonzero(side).tolist()
            for side in (network.ports.host < hosts // 2, network.ports.host >= hosts // 2)
        )
        assert bisection(network, left, right) == pytest.approx(len(left) * 25e9, rel=1e-9)


def test_rails_meet_only_inside_hosts() -> None:
    """A flow to another rail takes NVLink to the device on that rail first; switches see one rail each."""
    network = Network.build(CASES["rail-only"])
    routes = network.routes([0], [4 + 3])
    names = [network.link_name(int(link)) for link in routes.link]
    assert names[:2] == ["host0/gpu0->nvswitch0", "host0/nvswitch0->gpu3"]
    assert "host0/nic3->leaf3" in names
    assert "leaf3->host1/nic3" in names
    same = network.routes([3], [4 + 3])
    assert not any("nvswitch" in network.link_name(int(link)) for link in same.link)


def test_dragonfly_groups_are_joined_pairwise() -> None:
    """9 groups of 4 routers with 2 global cables each: one cable per pair of groups, 3 hops at most."""
    network = Network.build(CASES["dragonfly"])
    graph = network.graph()
    between = [
        (a, b)
        for a, b in graph.edges
        if "router" in a and "router" in b and a.split("_")[0] != b.split("_")[0]
    ]
    pairs = {frozenset((a.split("_")[0], b.split("_")[0])) for a, b in between}
    assert len(between) == 2 * 36
    assert len(pairs) == 36
    degrees = {d for node, d in graph.out_degree() if node.startswith("router")}
    assert degrees == {3 + 2 + 1}  # routers of the group, global cables, one port
    src, dst = some_pairs(network)
    routes = network.routes(src, dst)
    hops = np.bincount(routes.rows(), routes.share, len(src))
    assert hops.max() == 2 + 3  # port up and down; local, global, local


def test_dcell_and_bcube_are_as_published() -> None:
    """DCell(4, 1): 20 hosts, one cable between every two cells (Guo 2008, figure 1)."""
    graph = Network.build(CASES["dcell"]).graph()
    hosts = [node for node in graph if node.startswith("host") and "/" not in node]
    assert len(hosts) == 20
    cells = {frozenset((int(a[4:]) // 4, int(b[4:]) // 4)) for a, b in graph.edges if {a, b} <= set(hosts)}
    assert len(cells) == 5 * 4 / 2
    bcube = Network.build(CASES["bcube"]).graph()
    assert {d for node, d in bcube.out_degree() if node.startswith("switch")} == {4}
    assert sum(node.startswith("switch") for node in bcube) == 8  # 4 on each of two levels


def test_bigraph_rows_meet_completely() -> None:
    """Every lower switch is joined to every upper one, and to nothing else (Dong 2020, figure 5)."""
    graph = Network.build(CASES["bigraph"]).graph()
    between = {(a, b) for a, b in graph.edges if a[:5] in ("lower", "upper") and b[:5] in ("lower", "upper")}
    assert len(between) == 2 * 4 * 4
    assert all(a[:5] != b[:5] for a, b in between)


def test_hashed_paths_are_single_repeatable_and_differ_by_seed() -> None:
    """A flow takes one spine; another seed deals the spines anew; over many flows all are used evenly."""
    fields = {"kind": "leaf_spine", "hosts_per_leaf": 16, "num_spines": 4, "routing": "hashed"}
    src, dst = (grid.ravel() for grid in np.meshgrid(np.arange(16), np.arange(16, 32)))
    loads = []
    for seed in (0, 0, 1):
        network = Network(pair(32, seed=seed, **fields))
        routes = network.routes(src, dst)
        assert set(routes.share.tolist()) == {1.0}
        loads.append(np.bincount(routes.link, minlength=network.num_links)[network.wiring.num_port_links :])
    assert loads[0].tolist() == loads[1].tolist() != loads[2].tolist()
    used = loads[0][loads[0] > 0]
    assert len(used) == 8  # four uplinks and four downlinks
    assert (np.abs(used / 64 - 1) < 0.5).all()


def test_names_of_what_is_down_are_checked() -> None:
    for failed, message in ((("spine9",), "name switches"), (("leaf0",), "leave every host attached")):
        with pytest.raises(InputError, match=message):
            Network(pair(16, kind="leaf_spine", hosts_per_leaf=4, num_spines=4, failed=failed))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"kind": "dragonfly", "hosts_per_leaf": 1, "k": 10**6},
            "fabric.k: must give at most 1,000,000",
        ),
        ({"kind": "torus", "dims": (10**6, 10**6)}, "fabric.dims: must have at most"),
        ({"kind": "bigraph", "num_spines": 10**6}, "fabric.num_spines: must give at most"),
        (
            {"kind": "fat_tree", "k": 10**6, "routing": "hashed"},
            "fabric.k: must give at most 20,000,000",
        ),
        (
            {"kind": "leaf_spine", "hosts_per_leaf": 1, "num_spines": 10**8, "routing": "static"},
            "fabric.num_spines: must give at most",
        ),
    ],
)
def test_absurd_sizes_are_bad_input(fields: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        Network(pair(8, **fields))


@pytest.mark.parametrize("node", ["host4", "host[3-6]", "nic9"])
def test_cables_to_hosts_that_there_are_not_are_bad_input(node: str) -> None:
    edges = (
        FabricEdge(a="host[0-3]", b="switch0", bandwidth=B),
        FabricEdge(a=node, b="switch0", bandwidth=B),
    )
    with pytest.raises(InputError, match=r"fabric.edges.1: must name a (host|nic) below 4, of which"):
        Network(pair(4, kind="graph", edges=edges))


def test_bisection_of_groups_cells_and_rows() -> None:
    """Cables between the halves: global ones of a dragonfly, direct ones of a DCell, across of a BiGraph."""
    thin = pair(36, kind="dragonfly", hosts_per_leaf=1, k=4, global_bandwidth=B / 4)
    groups = bisection(Network.build(thin), list(range(16)), list(range(16, 36)))  # 4 groups and 5
    assert groups == pytest.approx(4 * 5 * B / 4, rel=1e-9)
    cells = bisection(Network.build(CASES["dcell"]), list(range(8)), list(range(8, 20)))  # 2 cells and 3
    assert cells == pytest.approx(2 * 3 * B, rel=1e-9)
    network = Network.build(CASES["bigraph"])  # half of each row, joined to the other row's other half
    ports = network.ports.host
    halves = (np.flatnonzero(side).tolist() for side in (ports < 4, ports >= 4))
    assert bisection(network, *halves) == pytest.approx(2 * 2 * 2 * 25e9, rel=1e-9)
