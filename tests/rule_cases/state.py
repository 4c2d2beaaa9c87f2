"""Cases of the rules on state of parameters and servers."""

from __future__ import annotations

from sim.spec.host import Storage
from tests.rule_cases.case import HOST, RACK, Case, cluster, cnn, moe

REFUSED: list[Case] = [
    Case(
        "second-shard",
        {"state": "zero3", "backward_shard_ranks": 5},
        "backward_shard_ranks",
        "divide 32 ranks that share state. Got 5.",
        advice="Try 4 or 8.",
    ),
    Case(
        "offload-disks",
        {"offload_optimizer": True, "offload_target": "nvme"},
        "offload_target",
        "be host where hosts have no local_storage",
        advice="Try host.",
    ),
    Case(
        "offload-activations",
        {"offload_activations": True, "pp": 4, "schedule": "zb_h1", "micro_batch_size": 1},
        "offload_activations",
        "be false unless a backward is whole and in the step of its forward",
        advice="Try false or strategy.schedule=1f1b.",
    ),
    Case(
        "offload-activations",
        {"offload_activations": True, "recompute": "alternate"},
        "offload_activations",
        "be false unless a backward is whole",
        advice="Try false or strategy.recompute=full.",
    ),
    Case(
        "recompute-early-stop",
        {"recompute_early_stop": True, "recompute": "selective"},
        "recompute_early_stop",
        "be false unless recompute is full",
        advice="Try false or strategy.recompute=full.",
    ),
    Case(
        "replicas-per-device",
        {"replicas_per_device": 2, "state": "zero1", "dp": 16},
        "replicas_per_device",
        "be 1 unless whole replicated models",
        cnn(),
        advice="Try 1.",
    ),
    *(
        Case(f"{field.replace('_', '-')}-owner", {field: value}, field, text)
        for field, value, text in (
            ("graph_draws", 8, "be 16 unless topology is graph and graph random. Got 8."),
            ("tree_levels", 2, "be 1 unless topology is tree"),
            ("moving_rate", 0.1, "be absent unless update is elastic_average"),
            ("participation", 0.5, "be 1.0 unless synchronization is local on servers"),
            ("availability", 0.5, "be 1.0 unless synchronization is local on servers"),
            ("offload_target", "nvme", "be host unless offload_optimizer is true"),
            ("offload_parameters", True, "be false unless state is zero3 and offload_optimizer is true"),
            ("offload_blocks", 2, "be absent unless offload_activations is true"),
            ("overlap_tensor", True, "be false unless sequence_parallel is true"),
            ("shard_reduction", "all_reduce", "be reduce_scatter unless state is zero1"),
            ("gather_bits", 8, "be absent unless state is zero3"),
            ("backward_shard_ranks", 4, "be absent unless state is zero3"),
        )
    ),
    Case(
        "offload-blocks",
        {"offload_activations": True, "offload_blocks": 13},
        "offload_blocks",
        "be at most the number of blocks of gpt (12)",
    ),
    Case(
        "sparse-replicas",
        {"sparse_embeddings": "servers", "state": "zero1"},
        "sparse_embeddings",
        "be never unless whole replicas sum the gradients of every step",
        advice="Try never.",
    ),
    Case(
        "sparse-processors",
        {"sparse_embeddings": "servers"},
        "sparse_embeddings",
        "not be servers on hosts without a cpu_device",
        cluster=cluster(8, processors=False),
        advice="Try gather.",
    ),
    Case(
        "shard-group",
        {"shard_ranks": 5, "state": "zero3"},
        "shard_ranks",
        "divide dp x cp (32). Got 5.",
        advice="Try 4 or 8.",
    ),
    Case(
        "offload-optimizer",
        {"offload_optimizer": True},
        "offload_optimizer",
        "be false on hosts without a cpu_device",
        cluster=cluster(8, processors=False),
        advice="Try false.",
    ),
    Case(
        "offload-optimizer",
        {"offload_optimizer": True, "state": "ps_dedicated"},
        "offload_optimizer",
        "be false unless every rank updates",
    ),
    Case(
        "C2-13",
        {"sufficient_factors": "always"},
        "sufficient_factors",
        "be never, as moe has no fully connected layer",
        moe(),
        advice="Try never.",
    ),
    Case(
        "C2-14",
        {"sufficient_factors": "always", "state": "zero1"},
        "sufficient_factors",
        "be never unless replicas sum uncompressed gradients",
        cnn(),
    ),
    Case(
        "exchange-layers",
        {"activation_exchange": "always"},
        "activation_exchange",
        "be never, as moe has no fully connected layer",
        moe(),
        advice="Try never.",
    ),
    *(
        Case(
            "exchange-barrier",
            {"activation_exchange": "cheaper", **other},
            "activation_exchange",
            "be never unless replicas sum the gradients of every step",
            cnn(),
        )
        for other in (
            {"state": "zero1"},
            {"state": "ps_dedicated", "synchronization": "asp"},
            {"synchronization": "local", "local_steps": 4},
            {"sufficient_factors": "always"},
        )
    ),
    Case(
        "servers-mixed",
        {"state": "ps_mixed", "synchronization": "asp"},
        "state",
        "not be ps_mixed unless every step sums all gradients",
    ),
    Case("shard-group", {"shard_ranks": 4}, "shard_ranks", "be absent while state is replicated. Got 4."),
    Case(
        "shard-group",
        {"shard_ranks": 4, "state": "zero1", "collective": "hierarchical"},
        "shard_ranks",
        "be absent while collective is hierarchical",
    ),
    Case("servers-state", {"num_servers": 4}, "num_servers", "be absent while state is replicated. Got 4."),
    Case(
        "servers-colocated",
        {"state": "ps_colocated", "num_servers": 9},
        "num_servers",
        "be at most the devices of the 1 worker hosts (8)",
        cluster=HOST,
        workload=cnn(),
        advice="Try 8 or strategy.state=ps_dedicated.",
    ),
    Case(
        "servers-processors",
        {"state": "ps_dedicated"},
        "state",
        "hosts without a cpu_device",
        cluster=cluster(8, processors=False),
        advice="Try replicated.",
    ),
    Case(
        "servers-experts", {"state": "ps_dedicated", "ep": 2}, "ep", "be 1 while state is ps_dedicated", moe()
    ),
    Case(
        "C2-1",
        {"state": "ps_dedicated", "collective": "ring"},
        "collective",
        "be auto while state is ps_dedicated, because a server aggregates",
        advice="Try auto or strategy.state=replicated.",
    ),
]

WARNED: list[Case] = [
    Case(
        "C2-35",
        {"checkpoint_every": 100, "state": "ps_dedicated", "synchronization": "asp"},
        "checkpoint_every",
        "the servers' parameters and optimiser state are saved",
        cluster=RACK.model_copy(update={"storage": Storage(kind="shared_fs", bandwidth=1e9)}),
    ),
    Case(
        "moving-rate",
        {"moving_rate": 0.5, "update": "elastic_average", "state": "ps_dedicated", "synchronization": "asp"},
        "moving_rate",
        "0.5 times 32 workers is above 1: the centre overshoots",
    ),
    Case(
        "sparse-tables",
        {"sparse_embeddings": "gather"},
        "sparse_embeddings",
        "all gradients of resnet50 are dense",
        cnn(),
    ),
    Case("sharding-alone", {"dp": 1, "state": "zero1"}, "state", "shards nothing"),
    Case(
        "reshard-state",
        {"reshard_after_forward": False},
        "reshard_after_forward",
        "while state is replicated",
    ),
    Case("prefetch-state", {"prefetch": 2}, "prefetch", "no effect while state is replicated"),
]
