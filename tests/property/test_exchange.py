"""Counting peers gives what summing all flows gives."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.catalog import default_catalog
from sim.fabric.exchange import _flow_by_flow, exchange_load
from sim.fabric.network import Network
from sim.spec import Cluster
from tests.clusters import cluster, dgx1, plain_host, switched_host

CASES: dict[str, Cluster] = {
    "switch": cluster(plain_host(), 6),
    "leaf-spine": cluster(switched_host(4, 2), 6, kind="leaf_spine", hosts_per_leaf=2, num_spines=3),
    "rails": cluster(switched_host(4, 4), 6, kind="rail_optimized", hosts_per_leaf=2),
    "fat-tree": cluster(switched_host(4, 2), 8, kind="fat_tree", k=4),
    "dgx1": cluster(dgx1(), 4, kind="leaf_spine", hosts_per_leaf=2),
    "torus": cluster(plain_host(), 9, kind="torus", dims=(3, 3)),
    "rail-only": cluster(switched_host(4, 4), 4, kind="rail_only"),
    "planes": cluster(switched_host(4, 2), 6, kind="multi_plane", hosts_per_leaf=2),
    "pxn": cluster(switched_host(4, 4), 6, kind="rail_optimized", hosts_per_leaf=2, rail_forwarding=True),
    "pxn-leaf": cluster(switched_host(4, 2), 6, kind="leaf_spine", hosts_per_leaf=2, rail_forwarding=True),
    "pxn-fat-tree": cluster(switched_host(4, 2), 8, kind="fat_tree", k=4, rail_forwarding=True),
}


@settings(max_examples=25, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(CASES)))
def test_counted_loads_equal_summed_ones(data: st.DataObject, name: str) -> None:
    network = Network.build(CASES[name])
    everyone = st.integers(0, network.num_devices - 1)
    members = np.array(data.draw(st.lists(everyone, min_size=2, max_size=network.num_devices, unique=True)))
    counted, summed = exchange_load(network, members), _flow_by_flow(network, members)
    assert counted.link.tolist() == summed.link.tolist()
    np.testing.assert_allclose(counted.coefficient, summed.coefficient, rtol=1e-9)


@pytest.mark.parametrize("count", [65_536])
def test_all_to_all_of_65536_ranks_is_counted_in_a_second(count: int) -> None:
    network = Network.build(default_catalog().cluster("a100-fat-tree", num_hosts=count // 8))
    begin = time.process_time()
    load = exchange_load(network, np.arange(count))
    assert time.process_time() - begin < 1.5  # 1 s on a quiet machine
    ports = load.coefficient[network.link_kind[load.link] == "nic"]
    np.testing.assert_allclose(ports, count - 8)  # each device to all devices of other hosts
