"""Bulk transfers against packets: finish times of the fluid network and of an independent packet model."""

from __future__ import annotations

import numpy as np
import pytest

from sim.catalog import default_catalog
from sim.engine import play
from sim.fabric.network import Network
from sim.graph.execution import TaskKind
from sim.lowering import lower_collective
from sim.spec import Cluster
from tests.clusters import cluster, plain_host
from tests.oracle.packets import Packets

B = 10e9
IDEAL = default_catalog().calibration(("default", "ideal"))
SPINE = {"kind": "leaf_spine", "hosts_per_leaf": 4, "num_spines": 1, "routing": "static"}
CASES: dict[str, tuple[Cluster, list[list[int]]]] = {
    "one": (cluster(plain_host(B, 1e-6), 4), [[0, 1]]),
    "incast": (cluster(plain_host(B, 1e-6), 9), [[i, 0] for i in range(1, 9)]),
    "dumbbell": (
        cluster(plain_host(B, 1e-6), 8, uplink_bandwidth=1.5 * B, **SPINE),
        [[0, 4], [1, 5], [2, 6], [3, 7]],
    ),
    "parking lot": (  # the long way shares each cable with a short one
        cluster(plain_host(2 * B, 1e-6), 4, kind="torus", dims=(4,), bandwidth=B),
        [[0, 2], [0, 1], [1, 2], [2, 3]],
    ),
    "two bottlenecks": (
        cluster(plain_host(B, 1e-6), 8, uplink_bandwidth=0.5 * B, **SPINE),
        [[0, 4], [1, 4], [2, 3], [2, 4], [5, 6]],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bulk_transfers_end_as_with_packets(name: str) -> None:
    """2,000 packets each, sizes apart by up to half: every finish time within 2 %."""
    spec, pairs = CASES[name]
    sizes = 2e7 * (1 + np.arange(len(pairs)) / (2 * len(pairs)))
    graph = lower_collective(spec, "send", "direct", sizes, calibration=IDEAL, ranks=pairs, fold=False)
    run = play(graph)
    transfers = np.flatnonzero(graph.kind[run.task] == TaskKind.TRANSFER)
    fluid = run.end[transfers][np.argsort(run.task[transfers])]

    network = Network.build(spec)
    names = [network.link_name(link) for link in range(network.num_links)]
    packets = Packets(
        dict(zip(names, network.link_capacity.tolist(), strict=True)),
        dict(zip(names, network.link_latency.tolist(), strict=True)),
        packet_bytes=1e4,
    )
    routes = network.routes(*np.array(pairs).T)
    for i, size in enumerate(sizes):
        row = slice(routes.offsets[i], routes.offsets[i + 1])
        packets.send([names[link] for link in routes.link[row]], float(size))
    np.testing.assert_allclose(fluid, packets.run(), rtol=0.02)
