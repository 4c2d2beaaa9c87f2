"""Ring orders: Hamiltonian, link-disjoint, balanced over NICs."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from sim.fabric.network import Network
from sim.fabric.rings import host_passages, host_rings
from sim.models.collectives import flows, plan
from sim.spec import HostLink, Nic
from tests.clusters import DGX1_PAIRS, cluster, dgx1, host, plain_host, switched_host


def hops(ring: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(zip(ring, (*ring[1:], ring[0]), strict=True))


def test_dgx1_v100_has_six_link_disjoint_rings() -> None:
    rings = host_rings(dgx1(), tuple(range(8)))
    assert len(rings) == 6
    used = Counter(hop for ring in rings for hop in hops(ring))
    assert all(sorted(ring) == list(range(8)) for ring in rings)
    for (a, b), count in DGX1_PAIRS.items():
        assert used[a, b] == used[b, a] == count
    assert sum(used.values()) == 2 * sum(DGX1_PAIRS.values())


def test_dgx1_p100_packs_two_cycles_of_single_links() -> None:
    """Every connection once: a 4-regular graph, so two disjoint cycles must be searched for."""
    mesh = tuple(HostLink(a=f"gpu{a}", b=f"gpu{b}", bandwidth=20e9, kind="nvlink") for a, b in DGX1_PAIRS)
    rings = host_rings(host(8, (Nic(name="nic0", bandwidth=1e9),), mesh), tuple(range(8)))
    used = Counter(hop for ring in rings for hop in hops(ring))
    assert len(rings) == 4
    assert set(used.values()) == {1}


def test_half_a_dgx1_uses_nvlink_only() -> None:
    rings = host_rings(dgx1(), (0, 1, 2, 3))
    assert len(rings) >= 4
    for hop in (hop for ring in rings for hop in hops(ring)):
        assert tuple(sorted(hop)) in DGX1_PAIRS


def test_devices_without_a_cycle_keep_a_chain_or_their_order() -> None:
    assert host_rings(dgx1(), (0, 1, 5)) == ((0, 1, 5),)
    assert host_rings(dgx1(), (0, 7)) == ((0, 7),)
    assert host_rings(switched_host(), (4, 5, 6)) == ((4, 5, 6),)


@pytest.mark.parametrize("host_type", [dgx1(), dgx1(1), switched_host(), switched_host(8, 4)], ids=str)
def test_passages_use_every_nic_equally(host_type: object) -> None:
    passages = host_passages(host_type, tuple(range(8)))  # type: ignore[arg-type]
    nics = host_type.device_nics  # type: ignore[attr-defined]
    assert len(passages) == len(set(nics))
    assert set(Counter(nics[p.order[0]] for p in passages).values()) == {1}
    assert set(Counter(nics[p.order[-1]] for p in passages).values()) == {1}


@pytest.mark.parametrize("num_hosts", [2, 3, 4, 7])
@pytest.mark.parametrize("host_type", [dgx1(), switched_host()], ids=["dgx1", "switched"])
def test_rings_over_hosts_fill_all_nics_and_stay_on_rails(host_type: object, num_hosts: int) -> None:
    spec = cluster(host_type, num_hosts, kind="rail_optimized", hosts_per_leaf=num_hosts)  # type: ignore[arg-type]
    network = Network.build(spec)
    orders = network.ring_orders(np.arange(network.num_devices))
    assert len(orders) == len(spec.host_types[0].nics)
    for order in orders:
        assert sorted(order.tolist()) == list(range(network.num_devices))
        assert [h for h, _ in itertools.groupby(network.device_host[order])] == list(range(num_hosts))
    src, dst = np.concatenate(orders), np.concatenate([np.roll(order, -1) for order in orders])
    load = network.load(src, dst, 1 / len(orders))
    amount = {network.link_name(int(i)): c for i, c in zip(load.link, load.coefficient, strict=True)}
    cables = {name: c for name, c in amount.items() if "leaf" in name and "nic" in name}
    assert len(cables) == 2 * num_hosts * len(orders)
    assert set(np.round(list(cables.values()), 12)) == {round(1 / len(orders), 12)}
    if num_hosts % 2 == 0:
        assert not any("spine" in name for name in amount)


def test_one_device_per_host_gives_one_ring() -> None:
    network = Network.build(cluster(switched_host(), 16))
    group = np.arange(3, 128, 8)
    (order,) = network.ring_orders(group)
    np.testing.assert_array_equal(order, group)


def test_uneven_groups() -> None:
    """Two, three and eight devices of three hosts, given in any order: all appear, host by host."""
    network = Network.build(cluster(dgx1(), 3))
    group = np.array([9, 1, 10, 0, 8, *range(16, 24)])
    for algorithm in ("ring", "tree", "hierarchical", "direct"):
        for order in network.orders(group, algorithm):
            assert sorted(order.tolist()) == sorted(group.tolist())
            assert [int(h) for h, _ in itertools.groupby(network.device_host[order])] == [1, 0, 2]


@pytest.mark.parametrize("dims", [(4, 4), (3, 4), (4, 2, 2), (6,)])
def test_torus_rings_walk_along_neighbours(dims: tuple[int, ...]) -> None:
    n = int(np.prod(dims))
    network = Network.build(cluster(plain_host(), n, kind="torus", attach="device", dims=dims, bandwidth=1e9))
    order = network.ring_order(np.arange(n))
    routes = network.routes(order, np.roll(order, -1))
    assert np.diff(routes.offsets).tolist() == [1] * n  # also the way back, as the last extent is even
    assert network.load(order, np.roll(order, -1)).coefficient.max() == 1


def test_rings_over_hosts_use_every_link_of_a_full_mesh_equally() -> None:
    """Eight devices, every two joined, a NIC each: eight rings load all 56 link directions alike."""
    links = tuple(
        HostLink(a=f"gpu{a}", b=f"gpu{b}", bandwidth=64e9, kind="nvlink")
        for a, b in itertools.combinations(range(8), 2)
    )
    slots = (
        HostLink(a="gpu[0-7]", b="cpu0", bandwidth=64e9, kind="pcie"),
        HostLink(a="nic[0-7]", b="cpu0", bandwidth=64e9, kind="pcie"),
    )
    nics = tuple(Nic(name=f"nic{i}", bandwidth=50e9) for i in range(8))
    network = Network.build(cluster(host(8, nics, (*links, *slots)), 2))
    (phase,) = plan("all_reduce", "ring", 16)
    load = network.load(*flows(phase, network.orders(np.arange(16), "ring")))
    on = {kind: load.coefficient[network.link_kind[load.link] == kind] for kind in ("nvlink", "nic")}
    assert len(on["nvlink"]) == 2 * 56
    np.testing.assert_allclose(on["nvlink"], 1 / 8)
    np.testing.assert_allclose(on["nic"], 1 / 8)


@pytest.mark.parametrize("count", [4, 6, 8])
def test_rings_in_a_full_mesh_use_every_link_equally(count: int) -> None:
    """2 (n - 1) directed rings, each direction of each link in two of them: the whole mesh works."""
    pairs = itertools.combinations(range(count), 2)
    links = tuple(HostLink(a=f"gpu{a}", b=f"gpu{b}", bandwidth=64e9, kind="nvlink") for a, b in pairs)
    slots = (HostLink(a=f"gpu[0-{count - 1}]", b="cpu0", bandwidth=64e9, kind="pcie"),)
    nics = (HostLink(a="nic0", b="cpu0", bandwidth=64e9, kind="pcie"),)
    machine = host(count, (Nic(name="nic0", bandwidth=50e9),), (*links, *slots, *nics))
    rings = host_rings(machine, tuple(range(count)))
    assert len(rings) == 2 * (count - 1)
    assert all(sorted(ring) == list(range(count)) for ring in rings)
    used = Counter(hop for ring in rings for hop in hops(ring))
    assert set(used.values()) == {2}
    assert len(used) == count * (count - 1)
