"""Routes inside hosts and through fabrics, link by link."""

from __future__ import annotations

import time

import numpy as np
import pytest

from sim.errors import InputError
from sim.fabric.network import Network
from sim.spec import Calibration, Cluster, Fabric, HostGroup, HostLink, Nic, Parameter
from tests.clusters import cluster, device, dgx1, host, plain_host, switched_host


def names(network: Network, src: int, dst: int) -> list[str]:
    routes = network.routes([src], [dst])
    return [network.link_name(int(link)) for link in routes.link]


def test_dgx1_neighbours_use_nvlink_and_strangers_two_hops() -> None:
    network = Network.build(cluster(dgx1(), 1))
    assert names(network, 0, 3) == ["host0/gpu0->gpu3"]
    # 0-4 has two NVLinks but 4-6 one; 0-2-6 has one and one: equally wide, the first is taken.
    assert names(network, 0, 6) == ["host0/gpu0->gpu2", "host0/gpu2->gpu6"]
    # 0-3-7 is one wide, 0-4-7 two wide.
    assert names(network, 0, 7) == ["host0/gpu0->gpu4", "host0/gpu4->gpu7"]
    assert names(network, 2, 2) == []


def test_pcie_between_sockets_shares_one_bus() -> None:
    links = (
        HostLink(a="gpu[0-3]", b="plx[0-1]", bandwidth=16e9, kind="pcie"),
        HostLink(a="plx[0-1]", b="cpu[0-1]", bandwidth=16e9, kind="pcie"),
        HostLink(a="nic0", b="plx0", bandwidth=16e9, kind="pcie"),
        HostLink(a="cpu0", b="cpu1", bandwidth=19.2e9, kind="qpi", duplex="half"),
    )
    network = Network.build(cluster(host(4, (Nic(name="nic0", bandwidth=12.5e9),), links), 1))
    assert names(network, 0, 1) == ["host0/gpu0->plx0", "host0/plx0->gpu1"]
    there, back = names(network, 0, 3), names(network, 3, 0)
    assert there[2] == back[2] == "host0/cpu0-cpu1"
    load = network.load([0, 3], [3, 0])
    bus = dict(zip((network.link_name(int(i)) for i in load.link), load.coefficient, strict=True))
    assert bus["host0/cpu0-cpu1"] == 2
    assert bus["host0/plx0->cpu0"] == 1


def test_between_hosts_through_the_nearest_nic() -> None:
    network = Network.build(cluster(dgx1(), 2))
    assert names(network, 5, 8 + 3) == [
        "host0/gpu5->plx2", "host0/plx2->nic2", "host0/nic2->leaf0",
        "leaf0->host1/nic1", "host1/nic1->plx1", "host1/plx1->gpu3",
    ]  # fmt: skip


def test_memory_uses_the_nic_of_its_peer() -> None:
    network = Network.build(cluster(dgx1(), 2), num_server_hosts=1)
    server = network.memory_endpoint(2)
    assert server == 16 + 2
    assert network.endpoint_name(server) == "host2/cpu0"
    assert "host0/nic2->leaf0" in names(network, 5, server)
    assert "leaf0->host2/nic2" in names(network, 5, server)
    assert names(network, 0, network.memory_endpoint(0)) == ["host0/gpu0->plx0", "host0/plx0->cpu0"]
    assert names(network, 8, network.memory_endpoint(0))[-1] == "host0/plx0->cpu0"


def test_rails_meet_below_the_spine() -> None:
    network = Network.build(cluster(switched_host(), 4, kind="rail_optimized", hosts_per_leaf=4))
    assert [name for name in names(network, 3, 11) if "leaf" in name] == [
        "host0/nic3->leaf3",
        "leaf3->host1/nic3",
    ]
    other_rail = [name for name in names(network, 3, 12) if "leaf" in name]
    assert other_rail[0] == "host0/nic3->leaf3"
    assert other_rail[-1] == "leaf4->host1/nic4"
    assert len([name for name in other_rail if "spine" in name]) == 2 * network.wiring.num_spines


def test_torus_is_routed_dimension_by_dimension_the_short_way() -> None:
    spec = cluster(plain_host(), 12, kind="torus", attach="device", dims=(4, 3), bandwidth=1e9)
    network = Network.build(spec)
    # (0, 0) to (3, 2): one hop down around in x, one hop down around in y.
    assert names(network, 0, 11) == ["host0/gpu0->host3/gpu0", "host3/gpu0->host11/gpu0"]
    # (0, 0) to (2, 1): a tie in x goes upwards.
    assert names(network, 0, 6) == [
        "host0/gpu0->host1/gpu0", "host1/gpu0->host2/gpu0", "host2/gpu0->host6/gpu0",
    ]  # fmt: skip


def test_ecmp_splits_evenly_and_static_does_not() -> None:
    fields = {"kind": "leaf_spine", "hosts_per_leaf": 2, "num_spines": 2}
    split = Network.build(cluster(plain_host(), 4, **fields)).routes([0], [2])
    np.testing.assert_array_equal(split.share, [1, 0.5, 0.5, 0.5, 0.5, 1])
    fixed = Network.build(cluster(plain_host(), 4, routing="static", **fields))
    assert names(fixed, 0, 2) == ["host0/nic0->leaf0", "leaf0->spine0", "spine0->leaf1", "leaf1->host2/nic0"]
    assert "leaf0->spine1" in names(fixed, 0, 3)


def test_one_host_alone() -> None:
    network = Network.build(cluster(switched_host(), 1))
    assert names(network, 0, 7) == ["host0/gpu0->nvswitch0", "host0/nvswitch0->gpu7"]
    assert network.num_devices == 8
    assert set(network.device_host.tolist()) == {0}


def test_mixed_hosts() -> None:
    types = (dgx1(), switched_host(4, 2))
    spec = Cluster(
        name="mixed",
        hosts=(HostGroup(host="a", count=1), HostGroup(host="b", count=2)),
        fabric=Fabric(kind="single_switch"),
        host_types=types,
        host_type_of=(0, 1, 1),
        device_types=(device(),),
    )
    network = Network.build(spec)
    assert network.device_host.tolist() == [0] * 8 + [1] * 4 + [2] * 4
    assert names(network, 0, 3) == ["host0/gpu0->gpu3"]
    assert names(network, 8, 11) == ["host1/gpu0->nvswitch0", "host1/nvswitch0->gpu3"]
    assert "leaf0->host2/nic1" in names(network, 7, 15)


def test_effective_capacity_by_kind() -> None:
    def efficiency(value: float) -> dict[str, Parameter]:
        return {"bandwidth_efficiency": Parameter(value=value, source="test")}

    calibration = Calibration(
        name="c", link={"nvlink": efficiency(0.8), "nic": efficiency(0.9), "default": efficiency(0.5)}
    )
    network = Network.build(cluster(switched_host(), 4, kind="leaf_spine", hosts_per_leaf=2))
    ratio = network.effective_capacity(calibration) / network.link_capacity
    expected = {"nvlink": 0.8, "nic": 0.9, "fabric": 0.9, "pcie": 0.5, "qpi": 0.5}
    np.testing.assert_allclose(ratio, [expected[kind] for kind in network.link_kind.tolist()])


def test_bad_descriptions_are_refused_in_one_line() -> None:
    unconnected = host(2, (Nic(name="nic0", bandwidth=1e9),))
    with pytest.raises(InputError, match=r"links: must connect gpu0 and gpu1"):
        Network.build(cluster(unconnected, 1)).routes([0], [1])
    with pytest.raises(InputError, match=r"k: must hold all 20 NIC ports.*Try 6"):
        Network.build(cluster(plain_host(), 20, kind="fat_tree", k=4))
    with pytest.raises(InputError, match=r"dims: must hold all 10 hosts"):
        Network.build(cluster(plain_host(), 10, kind="torus", dims=(3, 3)))
    with pytest.raises(InputError, match=r"endpoint: must be between 0 and 3"):
        Network.build(cluster(plain_host(), 2)).routes([0], [4])
    fields = {"hosts_per_leaf": 4, "num_spines": 2, "uplink_bandwidth": 50e9, "oversubscription": 4}
    with pytest.raises(InputError, match=r"oversubscription: must agree.*give 2"):
        Network.build(cluster(plain_host(), 8, kind="leaf_spine", **fields))


def test_large_clusters_cost_milliseconds() -> None:
    """8,192 hosts with 65,536 devices: build and one ring's routes, with room for a busy machine."""
    spec = cluster(switched_host(), 8192, kind="fat_tree")
    started = time.process_time()
    network = Network(spec)
    order = network.ring_order(np.arange(65_536))
    routes = network.routes(order, np.roll(order, -1))
    assert time.process_time() - started < 1.0
    assert len(routes.latency) == 65_536
