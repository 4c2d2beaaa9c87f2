"""Cases of the rules on switches that aggregate and on protocols."""

from __future__ import annotations

from sim.spec import Cluster, Fabric
from tests.rule_cases.case import RACK, Case, cnn

TORUS = RACK.model_copy(update={"fabric": Fabric(kind="torus", bandwidth=1e10)})
LEAVES = RACK.model_copy(update={"fabric": Fabric(kind="leaf_spine", bandwidth=1e10, hosts_per_leaf=2)})


def talking(**fields: object) -> Cluster:
    """The rack with another protocol."""
    return RACK.model_copy(update=fields)


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
]

WARNED: list[Case] = []
