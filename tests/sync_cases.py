"""Cases of the rules on synchronisation, update and topology: (rule, strategy, field, piece of its text)."""

from __future__ import annotations

from typing import Any

Fields = dict[str, Any]
GRAPH: Fields = {"topology": "graph"}
ASP_GRAPH: Fields = {"topology": "graph", "graph": "random", "synchronization": "asp"}
SERVERS: Fields = {"state": "ps_dedicated", "num_servers": 2}
LOCAL: Fields = {"synchronization": "local", "local_steps": 4}

REFUSED: list[tuple[str, Fields, str, str]] = [
    ("C2-17", GRAPH | SERVERS, "state", "be replicated while topology is graph"),
    ("C2-17", {"topology": "full_mesh", "state": "zero3"}, "state", "peers of a graph know no centre"),
    ("topology-servers", {"topology": "tree", "group_size": 4}, "topology", "be auto, full_mesh or graph"),
    ("star-servers", SERVERS | {"topology": "star"}, "num_servers", "be 1 while topology is star. Got 2."),
    (
        "star-servers",
        {"state": "ps_dedicated", "topology": "sharded_star"},
        "num_servers",
        "be 2 or more while topology is sharded_star. Got 1.",
    ),
    ("gossip-graph", {"update": "push_sum"}, "topology", "be graph for push_sum"),
    ("gossip-graph", GRAPH | {"update": "gradient_sum"}, "update", "be gossip_average or push_sum"),
    ("C2-16", {"update": "elastic_average"}, "update", "needs a centre"),
    ("C2-16", {"update": "elastic_average", "state": "zero1"}, "update", "needs a centre"),
    ("update-rule", LOCAL | {"update": "gradient_sum"}, "update", "exchange models for local SGD"),
    ("update-rule", {"update": "outer_optimizer"}, "update", "go with local, not bsp"),
    ("update-rule", LOCAL | {"update": "sma"}, "update", "go with bsp, not local"),
    ("sma-collective", SERVERS | {"update": "sma"}, "state", "be replicated for sma. Got ps_dedicated."),
    ("models-replica", {"update": "sma", "cp": 2}, "cp", "be 1 for replicas with models of their own"),
    (
        "partial-replica",
        {"synchronization": "partial_allreduce", "group_size": 4, "tp": 2},
        "tp",
        "a group forms rank by rank",
    ),
    (
        "partial-servers",
        SERVERS | {"synchronization": "partial_allreduce", "group_size": 4},
        "state",
        "be replicated for a partial all-reduce",
    ),
    ("group-size", SERVERS | {"topology": "tree", "group_size": 5}, "group_size", "divide dp (32). Got 5."),
    (
        "group-size",
        {"synchronization": "partial_allreduce", "group_size": 64},
        "group_size",
        "be at most dp (32). Got 64.",
    ),
    ("peers-number", GRAPH | {"dp": 1}, "topology", "be auto for a single replica"),
    ("graph-degree", GRAPH | {"graph_degree": 40}, "graph_degree", "be at most 31. Got 40."),
    ("C2-18", GRAPH | {"graph": "random", "dp": 3}, "graph", "an odd number of replicas (3)"),
    (
        "peers-rule",
        GRAPH | {"synchronization": "delayed", "delay": 1},
        "synchronization",
        "be bsp, ssp or asp",
    ),
    (
        "peers-collective",
        GRAPH | {"collective": "ring"},
        "collective",
        "be auto where no collective is called",
    ),
    ("mesh-ranks", {"topology": "full_mesh", "dp": 2048}, "dp", "be at most 1024 for exchanges among all"),
    ("fragments-steps", LOCAL | {"fragments": 8}, "fragments", "be at most local_steps (4). Got 8."),
    ("fragments-steps", LOCAL | {"exchange_overlap": 4}, "exchange_overlap", "be less than local_steps (4)"),
    ("models-compression", GRAPH | {"compression": "fp16"}, "compression", "be none for gossip_average"),
    (
        "C2-3-servers",
        SERVERS | {"synchronization": "backup", "backup_workers": 1, "topology": "tree", "group_size": 4},
        "topology",
        "what is dropped is one gradient",
    ),
    (
        "soft-sync-size",
        SERVERS | {"synchronization": "soft_sync", "gradients_per_update": 33},
        "gradients_per_update",
        "be at most dp (32). Got 33.",
    ),
    (
        "soft-sync-tree",
        SERVERS
        | {"synchronization": "soft_sync", "gradients_per_update": 2, "topology": "tree", "group_size": 4},
        "topology",
        "aggregators already decide",
    ),
    (
        "delayed-sharded",
        {"synchronization": "delayed", "delay": 1, "state": "zero3"},
        "state",
        "be replicated or zero1 for delayed updates",
    ),
    (
        "delayed-schedule",
        {"synchronization": "delayed", "delay": 1, "overlap": False},
        "overlap",
        "nothing goes on beside a blocking exchange",
    ),
    ("synchronous-steps-owner", {"synchronous_steps": 4}, "synchronous_steps", "be 0 unless"),
    ("gradients-per-update-owner", {"gradients_per_update": 4}, "gradients_per_update", "be 1 unless"),
    ("delay-owner", {"delay": 2}, "delay", "be 0 unless synchronization is delayed. Got 2."),
    ("reads-owner", {"reads": "eager"}, "reads", "be lazy unless synchronization is ssp"),
    ("group-size-owner", {"group_size": 4}, "group_size", "be absent unless"),
    ("graph-owner", {"graph": "random"}, "graph", "be fixed unless topology is graph. Got random."),
    ("graph-degree-owner", {"graph_degree": 3}, "graph_degree", "be 2 unless topology is graph. Got 3."),
    ("push-probability-owner", GRAPH | {"push_probability": 0.5}, "push_probability", "be 1.0 unless"),
    ("fragments-owner", {"fragments": 2}, "fragments", "be 1 unless"),
    ("exchange-overlap-owner", {"exchange_overlap": 2}, "exchange_overlap", "be 0 unless"),
    ("delay-compensation-owner", {"delay_compensation": True}, "delay_compensation", "be false unless"),
    ("exchange-bits-owner", {"exchange_bits": 8}, "exchange_bits", "be absent unless models are exchanged"),
]

WARNED: list[tuple[str, Fields, str, str]] = [
    ("C2-34", LOCAL, "overlap", "has no effect where models are averaged"),
    (
        "soft-sync-limits",
        SERVERS | {"synchronization": "soft_sync", "gradients_per_update": 32},
        "gradients_per_update",
        "like bsp",
    ),
    ("soft-sync-limits", SERVERS | {"synchronization": "soft_sync"}, "gradients_per_update", "like asp"),
    ("delayed-zero", {"synchronization": "delayed"}, "delay", "at once, like bsp"),
    ("partial-alone", {"synchronization": "partial_allreduce", "group_size": 32}, "group_size", "like bsp"),
    (
        "hybrid-one-group",
        SERVERS | {"synchronization": "group_hybrid", "group_size": 32},
        "group_size",
        "of a single group",
    ),
]
