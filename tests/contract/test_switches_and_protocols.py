"""Switches that add up gradients, and what protocols cost: closed forms and link loads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim.analysis.simulate import simulate
from sim.fabric.network import Network
from sim.lowering import lower
from sim.spec import Cluster, Scenario, Strategy
from sim.spec.cluster import Protocol
from sim.spec.names import names_of
from sim.spec.strategy import InNetwork
from sim.taxonomy import check, dimension
from sim.wire.aggregators import AGGREGATORS
from sim.wire.transports import TRANSPORTS
from tests.clusters import cluster, dgx1, plain_host, switched_host
from tests.random_jobs import resolved
from tests.scenarios import scenario, serving_host, timed_layer, workload

M, N, B = 40e6, 8, 1e9
MODEL = workload([timed_layer(0, 0.1, 0.2, parameters=1e7)])


def rack(latency: float = 0.0, **fabric: Any) -> Cluster:
    return resolved([(serving_host(B), N)], latency=latency, **fabric)


def loads(one: Scenario) -> dict[str, float]:
    """Bytes per link name in one iteration."""
    graph = lower(one)
    moved = graph.flow_bytes[graph.links.rows()] * graph.link_coefficient
    total = np.bincount(graph.links.index, moved, len(graph.link_table.capacity))
    return dict(zip(graph.link_table.name, total.tolist(), strict=True))


def seconds(where: Cluster, **strategy: Any) -> float:
    found = simulate(scenario(MODEL, where, bucket_size=1e18, **strategy)).step_time_s
    assert found is not None
    return found - 0.3


def test_registries_fields_and_dimensions_agree() -> None:
    def listed(name: str, field: str) -> list[Any]:
        return sorted(v.settings[field] for v in dimension(name).values if field in v.settings)

    assert (
        sorted(["none", *AGGREGATORS]) == sorted(names_of(InNetwork)) == listed("D10", "strategy.in_network")
    )
    assert sorted(TRANSPORTS) == sorted(names_of(Protocol)) == listed("D9", "cluster.protocol")


@pytest.mark.parametrize("name", [name for name, each in AGGREGATORS.items() if not each.sparse])
def test_every_port_carries_the_buffer_once_each_way(name: str) -> None:
    """Whatever the number of ranks: M over the payload of a packet (SwitchML, section 3)."""
    one = scenario(MODEL, rack(), in_network=name, bucket_size=1e18, fold=False)
    found = loads(one)
    assert len(found) == 2 * N
    assert list(found.values()) == pytest.approx([M / AGGREGATORS[name].payload] * 2 * N, rel=1e-9)
    convert = 2 * 1e7 * 8 / 1e12 if AGGREGATORS[name].integers else 0.0
    assert seconds(rack(), in_network=name) == pytest.approx(
        M / AGGREGATORS[name].payload / B + convert, rel=1e-9
    )


@pytest.mark.parametrize("slots", [16, 64, 256])
def test_slots_bound_what_is_under_way(slots: int) -> None:
    """Rate: slots x 128 bytes over a round trip of two cables, 20 us; 1 GB/s of packets at most."""
    rate = min(slots * 128 / 20e-6, B * 128 / 180)
    expected = M / rate + 20e-6 + 2 * 1e7 * 8 / 1e12
    assert seconds(rack(10e-6), in_network="switchml", switch_slots=slots) == pytest.approx(
        expected, rel=1e-6
    )


def test_what_finds_no_slot_is_summed_by_hosts() -> None:
    found = loads(scenario(MODEL, rack(), in_network="atp", switch_fallback=0.25, bucket_size=1e18))
    expected = 0.75 * M / AGGREGATORS["atp"].payload + 0.25 * M * 2 * (N - 1) / N
    assert max(found.values()) == pytest.approx(expected, rel=1e-9)


def test_a_leaf_sends_its_sum_over_the_spine_once() -> None:
    """Two leaves of four hosts below one spine: one buffer up and one down per leaf."""
    where = rack(kind="leaf_spine", hosts_per_leaf=4, num_spines=1, oversubscription=16)
    found = loads(scenario(MODEL, where, in_network="sharp", bucket_size=1e18, fold=False))
    spine = {name: size for name, size in found.items() if "spine" in name}
    assert list(spine.values()) == pytest.approx([M] * 4, rel=1e-9)


def test_devices_of_a_host_share_out_the_buffer() -> None:
    """Four devices with a port each: a quarter of the buffer through each of them."""
    where = resolved([(switched_host(4, 4), 4)])
    found = loads(scenario(MODEL, where, in_network="sharp", bucket_size=1e18, fold=False))
    ports = [size for name, size in found.items() if "leaf" in name]
    assert ports
    assert ports == pytest.approx([M / 4] * len(ports), rel=1e-9)


@pytest.mark.parametrize("name", ["sharp", "iswitch", "atp"])
@pytest.mark.parametrize("kind", ["leaf_spine", "fat_tree", "rail_optimized"])
def test_folded_equals_unfolded(name: str, kind: str) -> None:
    shape = {} if kind == "fat_tree" else {"hosts_per_leaf": 2, "num_spines": 2}
    where = resolved([(switched_host(4, 4), 4)], kind=kind, latency=1e-6, oversubscription=2, **shape)
    times = [seconds(where, in_network=name, fold=fold) for fold in (True, False)]
    assert times[0] == pytest.approx(times[1], rel=1e-9)


# --- protocols ----------------------------------------------------------------------------------------------


def test_infiniband_with_direct_access_is_the_default() -> None:
    plain = Network.build(cluster(dgx1(), 2))
    stated = cluster(dgx1(), 2).model_copy(update={"protocol": "rdma_ib", "gpudirect_rdma": True})
    other = Network.build(stated)
    assert np.array_equal(plain.link_capacity, other.link_capacity)
    assert np.array_equal(plain.link_latency, other.link_latency)


@pytest.mark.parametrize("protocol", ["tcp", "dpdk"])
@pytest.mark.parametrize("cores", [1, 4])
def test_processors_move_every_byte_in_and_out(protocol: str, cores: int) -> None:
    """A ring sends and receives 2 (n - 1) / n M; cores / time per byte is the rate of both together."""
    spec = TRANSPORTS[protocol]
    fast = resolved([(plain_host(100e9), N)])
    where = fast.model_copy(update={"protocol": protocol, "protocol_cores": cores})
    sent = 2 * (N - 1) / N * M
    processors = 2 * sent * spec.cpu_time / cores
    copies = 2 * sent / (1e12 / 2)  # the memory of the host's processors: written and read
    expected = max(processors, copies, sent / (100e9 * spec.goodput))
    steps = 2 * (N - 1) * (spec.latency + 2 * 5e-6)
    assert seconds(where, collective="ring") == pytest.approx(expected + steps, rel=1e-6)


@pytest.mark.parametrize("protocol", ["roce_v2", "iwarp"])
def test_headers_take_their_part_of_the_wire(protocol: str) -> None:
    where = rack().model_copy(update={"protocol": protocol})
    spec, sent = TRANSPORTS[protocol], 2 * (N - 1) / N * M
    expected = sent / (B * spec.goodput) + 2 * (N - 1) * spec.latency
    assert seconds(where, collective="ring") == pytest.approx(expected, rel=1e-9)


def test_bounce_copies_load_pcie_twice() -> None:
    """gpu0 -> plx0 -> nic0 becomes gpu0 -> plx0 -> cpu0, a copy, cpu0 -> plx0 -> nic0."""
    base = cluster(dgx1(), 2)
    staged = Network.build(base.model_copy(update={"gpudirect_rdma": False}))

    def names(network: Network) -> list[str]:
        return [network.link_name(int(link)).removeprefix("host0/") for link in network.routes([0], [8]).link]

    direct = [name for name in names(Network.build(base)) if not name.startswith("host1")]
    copied = [name for name in names(staged) if not name.startswith("host1")]
    assert direct[:2] == ["gpu0->plx0", "plx0->nic0"]
    assert copied[:5] == ["gpu0->plx0", "plx0->cpu0", "copy", "cpu0->plx0", "plx0->nic0"]
    far = Network.build(base.model_copy(update={"gpudirect_rdma": False}))
    inside = [far.link_name(int(link)) for link in far.routes([5], [13]).link]
    assert "host0/plx2->cpu1" in inside, "the memory next to the device"


def test_peers_without_nvlink_meet_in_host_memory() -> None:
    host = dgx1().model_copy(update={"links": tuple(link for link in dgx1().links if link.kind != "nvlink")})
    base = cluster(host, 1)
    staged = Network.build(base.model_copy(update={"gpudirect_p2p": False}))
    route = [staged.link_name(int(link)) for link in staged.routes([0], [1]).link]
    assert route == [
        f"host0/{name}" for name in ("gpu0->plx0", "plx0->cpu0", "copy", "cpu0->plx0", "plx0->gpu1")
    ]
    nvlinked = Network.build(cluster(dgx1(), 1).model_copy(update={"gpudirect_p2p": False}))
    assert [nvlinked.link_name(int(link)) for link in nvlinked.routes([0], [1]).link] == ["host0/gpu0->gpu1"]


def test_tcp_is_well_below_a_fast_line() -> None:
    """Zhang et al., NetAI 2020: no more than 32 of 100 Gb/s through TCP; one core per port here."""
    where = resolved([(plain_host(12.5e9), N)]).model_copy(update={"protocol": "tcp"})
    sent = 2 * (N - 1) / N * M
    assert 20e9 < 8 * sent / seconds(where, collective="ring") < 32e9


def test_jobs_share_slots_and_large_messages_go_to_hosts() -> None:
    """Half of the slots is half of the window; a message that switches do not take is a ring's."""
    alone = {"in_network": "switchml", "switch_slots": 64}
    assert seconds(rack(), **alone, switch_jobs=2) == seconds(rack(), in_network="switchml", switch_slots=32)
    ring = seconds(rack(), collective="ring")
    assert seconds(rack(), in_network="sharp", switch_max_message=1e3) == pytest.approx(ring, rel=1e-9)
    assert seconds(rack(), in_network="sharp", switch_max_message=1e12) < ring


def test_switches_that_sum_whoever_comes_first() -> None:
    """Rule C2-12: of asynchronous workers only iSwitch's; each sends its message once, and gets a sum."""
    fields = {"synchronization": "partial_allreduce", "group_size": 3, "update": "gradient_sum"}
    for name, each in AGGREGATORS.items():
        broken = {refusal.rule for refusal in check(Strategy(in_network=name, **fields), MODEL, rack())}
        assert ("C2-12" in broken) != each.partial
    found = loads(scenario(MODEL, rack(), in_network="iswitch", bucket_size=1e18, fold=False, **fields))
    assert list(found.values()) == pytest.approx([M / AGGREGATORS["iswitch"].payload] * 2 * N, rel=1e-9)
    assert seconds(rack(), in_network="iswitch", **fields) < seconds(rack(), **fields)
