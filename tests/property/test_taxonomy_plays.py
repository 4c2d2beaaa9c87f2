"""A strategy is refused, does not fit the memory, or plays. Nothing else happens."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sim
from sim.spec import Cluster, Strategy, Workload
from sim.spec.names import names_of
from sim.spec.strategy import LogicalTopology, Synchronization, UpdateSemantics
from sim.taxonomy import check

WORKLOADS = {
    "gpt": sim.workload("gpt2", num_layers=4, sequence_length=128, global_batch_size=8),
    "moe": sim.workload("mixtral-8x7b", num_layers=2, hidden=512, sequence_length=128, global_batch_size=8),
    "cnn": sim.workload("alexnet", batch_per_device=4),
    "tables": sim.workload("ncf", batch_per_device=64),
}
CLUSTERS = {
    name: sim.cluster(name, num_hosts=hosts)
    for name, hosts in {"single-gpu": 4, "g4dn-12xlarge": 1, "v100-dlperf": 1, "p2-8xlarge": 2}.items()
}

PARALLEL: dict[str, list[Any]] = {
    "tp": [1, 1, 2],
    "pp": [1, 1, 2],
    "ep": [1, 1, 1, 2],
    "cp": [1, 1, 2],
    "expert_tp": [None, None, 1],
    "expert_imbalance": [1.0, 1.5],
    "expert_capacity": [None, 1.25],
    "sequence_parallel": [False, True],
    "context_parallelism": ["ring", "ulysses", "all_gather", "spatial"],
    "context_balance": [True, False],
    "dp": [None, 2],
    "micro_batch_size": [None, 1],
    "embedding_in_split": [False, True],
    "head_in_split": [False, True],
    "stage_blocks": [None, None, None, (1, 3), (4, 0), (0, 2)],
    "fusion": ["size", "none", "time", "merge_plan"],
    "cycle_time": [0.0, 1e-3],
    "order": ["fifo", "fifo", "priority_layer", "critical_path"],
    "partition_size": [None, None, 4e6],
    "negotiation": ["none", "none", "coordinator"],
    "schedule": ["1f1b", "1f1b", "gpipe", "naive", "zb_h1", "chimera", "pipedream_async", "2bw"],
    "recompute": ["none", "selective", "alternate", "full"],
    "overlap": [True, False],
    "compression": [
        "none",
        "fp16",
        "fp8",
        "onebit",
        "qsgd",
        "topk",
        "dgc",
        "coarse_chunk",
        "powersgd",
        "sketch",
    ],
    "compression_exchange": ["auto", "auto", "requantize", "all_gather"],
    "compress_pull": [False, False, True],
    "bucket_size": [25 * 2.0**20, 1e6],
    "virtual_stages": [1, 2],
    "weight_stash": [False, True],
    "token_slices": [1, 4],
    "recompute_layers": [(), ("mlp",), ("conv", "linear")],
    "offload_activations": [False, True],
    "activation_compression": ["none", "fp8"],
    "prefetch": [0, 1, 3],
    "store": ["cluster", "local", "memory_cache"],
    "sample_format": ["records", "files"],
    "decode": ["cpu", "device"],
    "prefetch_batches": [1, 3],
    "checkpoint_every": [None, 3],
    "compression_engine": ["device", "nic"],
    "chunks": [1, 2],
    "collective_dims": [None, (2, 2), (4, 2)],
    "collective_radix": [None, 2],
    "credit": [None, 8e6],
}
COLLECTIVE = {
    "state": ["replicated", "zero1", "zero2", "zero3"],
    "shard_ranks": [None, None, 2],
    "sufficient_factors": ["never", "never", "cheaper", "always"],
    "activation_exchange": ["never", "never", "cheaper", "always"],
    "offload_optimizer": [False, False, True],
    "offload_parameters": [False, False, True],
    "reshard_after_forward": [True, False],
    "sparse_embeddings": ["never", "never", "gather", "servers"],
    "replicas_per_device": [1, 1, 2],
    "gather_bits": [None, None, 8],
    "backward_shard_ranks": [None, None, 2],
    "in_network": ["none", "none", "none", "sharp", "switchml", "atp", "libra"],
    "switch_jobs": [1, 1, 2],
    "collective": ["auto", "ring", "tree", "halving_doubling", "hierarchical", "direct"],
    "synchronization": ["bsp"],
}
LOCAL = {
    "synchronization": ["local"],
    "local_steps": [1, 3],
    "collective": ["auto", "tree", "torus2d"],
    "fragments": [1, 2],
    "exchange_overlap": [0, 1],
    "exchange_bits": [None, 8],
    "synchronous_steps": [0, 1],
}
SERVERS = {
    "state": ["ps_dedicated", "ps_colocated", "ps_mixed"],
    "num_servers": [None, 2],
    "synchronization": ["bsp", "ssp", "asp", "backup"],
}
EXCHANGES = {
    "state": ["replicated", "replicated", "ps_dedicated", "ps_colocated", "zero1"],
    "synchronization": list(names_of(Synchronization)),
    "update": [None, *names_of(UpdateSemantics)],
    "topology": ["auto", *names_of(LogicalTopology)],
    "graph": ["fixed", "random", "exponential"],
    "group_size": [None, None, 2],
    "local_steps": [1, 1, 2],
    "gradients_per_update": [1, 1, 3],
    "staleness": [0, 0, 2],
    "delay": [0, 0, 1],
    "tree_levels": [1, 1, 2],
    "push_probability": [1.0, 0.5],
    "graph_draws": [16, 3],
    "participation": [1.0, 1.0, 0.5],
    "moving_rate": [None, None, 0.1],
}
fields = st.sampled_from([COLLECTIVE, LOCAL, SERVERS, EXCHANGES, EXCHANGES]).flatmap(
    lambda family: st.fixed_dictionaries(
        {name: st.sampled_from(values) for name, values in family.items()},
        optional={name: st.sampled_from(values) for name, values in PARALLEL.items()},
    )
)


def repaired(fields: dict[str, Any], workload: Workload, cluster: Cluster) -> Strategy:
    """The strategy, or what comes of following the advice of its refusals: most random points are refused."""
    strategy = Strategy(**fields)
    for _ in range(12):
        refusals = check(strategy, workload, cluster)
        ways = [way for refusal in refusals for way in refusal.alternatives]
        ours = [way for way in ways if all(name.startswith("strategy.") for name in way)]
        if not ours:
            break
        changes = {name.removeprefix("strategy."): value for name, value in ours[0].items()}
        strategy = strategy.replace(**changes)
    return strategy


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(fields=fields, model=st.sampled_from(sorted(WORKLOADS)), where=st.sampled_from(sorted(CLUSTERS)))
def test_refused_infeasible_or_plays(fields: dict[str, Any], model: str, where: str) -> None:
    workload, cluster = WORKLOADS[model], CLUSTERS[where]
    for strategy in (Strategy(**fields), repaired(fields, workload, cluster)):
        result = sim.run(workload, cluster, strategy)
        if check(strategy, workload, cluster):
            assert result.status == "invalid"
        else:
            assert result.status in ("ok", "infeasible")
            assert result.status == "infeasible" or result.step_time_s > 0
