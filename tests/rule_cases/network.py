"""Cases of the rules on switches that aggregate and on protocols."""

from __future__ import annotations

from typing import Any

from sim.spec import Cluster, Fabric, Host, Nic
from sim.spec.fabric import FabricKind
from tests.rule_cases.case import RACK, Case, cluster, cnn

TORUS = RACK.model_copy(update={"fabric": Fabric(kind="torus", bandwidth=1e10)})
LEAVES = RACK.model_copy(update={"fabric": Fabric(kind="leaf_spine", bandwidth=1e10, hosts_per_leaf=2)})


def talking(**fields: object) -> Cluster:
    """The rack with another protocol."""
    return RACK.model_copy(update=fields)


def on(kind: FabricKind, **fields: Any) -> Cluster:
    """The rack on another fabric."""
    return RACK.model_copy(update={"fabric": Fabric(kind=kind, **fields)})


def _with_ports(host: Host, count: int) -> Host:
    nics = tuple(Nic(name=f"nic{i}", bandwidth=1e10) for i in range(count))
    return host.model_copy(update={"nics": nics})


_TWO_KINDS = cluster(4, 8)
UNEVEN = _TWO_KINDS.model_copy(update={"host_types": tuple(map(_with_ports, _TWO_KINDS.host_types, (2, 4)))})

REFUSED: list[Case] = [
    Case(
        "in-network-options",
        {"switch_slots": 64},
        "switch_slots",
        "be absent while in_network is none. Got 64.",
        advice="Try leaving it out or strategy.in_network=atp.",
    ),
    Case(
        "in-network-options",
        {"switch_fallback": 0.1, "in_network": "switchml"},
        "switch_fallback",
        "be 0 while in_network is switchml",
        advice="Try 0 or strategy.in_network=atp.",
    ),
    Case(
        "switch-trees",
        {"in_network": "sharp", "switch_jobs": 64},
        "switch_jobs",
        "be at most 63 while in_network is sharp, because switches have so many reduction trees",
        cnn(),
        advice="Try 63 or strategy.in_network=none with strategy.switch_jobs=1.",
    ),
    Case(
        "switch-rows",
        {"in_network": "libra"},
        "in_network",
        "go with sparse_embeddings servers",
        cnn(),
        advice="Try strategy.sparse_embeddings=servers or none.",
    ),
    Case(
        "C2-10",
        {"in_network": "switchml", "switch_numbers": "float"},
        "switch_numbers",
        "be int32, because the adders of such switches know 32-bit integers only",
        advice="Try int32 or strategy.in_network=sharp.",
    ),
    Case(
        "C2-11",
        {"in_network": "sharp", "collective": "ring"},
        "collective",
        "be auto while in_network is sharp, because the reduction tree needs switches",
        cnn(),
    ),
    Case(
        "C2-11",
        {"in_network": "sharp"},
        "in_network",
        "be none except for a fabric whose switches form a tree",
        cnn(),
        TORUS,
    ),
    Case(
        "C2-11",
        {"in_network": "switchml"},
        "in_network",
        "be none except for hosts on one switch",
        cnn(),
        LEAVES,
    ),
    Case(
        "C2-12",
        {"in_network": "iswitch", "state": "ps_dedicated", "synchronization": "asp"},
        "in_network",
        "be none unless replicas all-reduce, because a slot waits for all workers",
    ),
    Case(
        "in-network-code",
        {"in_network": "sharp", "compression": "topk"},
        "compression",
        "be a compressor whose codes can be summed while in_network is sharp",
        advice="Try none or strategy.in_network=none.",
    ),
    Case(
        "C2-29",
        {},
        "cluster.gpudirect_rdma",
        "be false for tcp, because a network port reads device memory only by remote direct memory access",
        cluster=talking(protocol="tcp", gpudirect_rdma=True),
        advice="Try false or cluster.protocol=roce_v2.",
    ),
    Case(
        "C2-30",
        {},
        "cluster.fabric.kind",
        "not be bcube of 2 levels for hosts with 1 network port, because hosts are the switches",
        cluster=on("bcube", k=2),
        advice="Try cluster.fabric.k=4.",
    ),
    Case(
        "C2-30",
        {"state": "ps_dedicated"},
        "cluster.fabric.kind",
        "not be dcell of 2 levels for hosts with 1 network port",
        cluster=cluster(8, 8, 8, 8, 8).model_copy(update={"fabric": Fabric(kind="dcell", k=2)}),
        advice="Try cluster.fabric.k=6.",
    ),
    Case(
        "C2-31",
        {},
        "cluster.fabric.kind",
        "not be rail_optimized of 4 rails for hosts with 2 network ports, because port i of every host",
        cluster=UNEVEN.model_copy(update={"fabric": Fabric(kind="rail_optimized")}),
        advice="Try leaf_spine.",
    ),
    Case(
        "fabric-places",
        {"state": "ps_dedicated"},
        "state",
        "not need hosts of their own, of which this torus has no place for 1, because every host",
        cluster=on("torus", dims=(2, 2)),
        advice="Try ps_colocated or replicated.",
    ),
    Case(
        "fabric-places",
        {},
        "cluster.num_hosts",
        "be what fills this dcell",
        cluster=cluster(8, 8, 8).model_copy(update={"fabric": Fabric(kind="dcell", k=2)}),
        advice="Try 2.",
    ),
    Case(
        "fabric-places",
        {},
        "cluster.num_hosts",
        "be at most the places of this torus",
        cluster=on("torus", dims=(1, 3)),
        advice="Try leaving out cluster.fabric.dims or 3.",
    ),
]

WARNED: list[Case] = []
