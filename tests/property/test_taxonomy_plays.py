"""A strategy is refused, does not fit the memory, or plays. Nothing else happens."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sim
from sim.analysis.result import Result
from sim.spec import Cluster, Strategy, Workload
from sim.spec.names import names_of
from sim.spec.strategy import (
    ActivationCompression,
    CollectiveAlgorithm,
    Compression,
    ContextParallelism,
    Fusion,
    LogicalTopology,
    Negotiation,
    PeerGraph,
    Recompute,
    Schedule,
    Store,
    Synchronization,
    TransferOrder,
    UpdateSemantics,
)
from sim.taxonomy import check
from sim.taxonomy.context import Context
from tests.random_jobs import CLUSTERS as BUILT

WORKLOADS = {
    "gpt": sim.workload("gpt2", num_layers=4, sequence_length=128, global_batch_size=8),
    "moe": sim.workload("mixtral-8x7b", num_layers=2, hidden=512, sequence_length=128, global_batch_size=8),
    "cnn": sim.workload("alexnet", batch_per_device=4),
    "tables": sim.workload("ncf", batch_per_device=64),
}
CLUSTERS = {
    name: sim.cluster(name, num_hosts=hosts)
    for name, hosts in {"single-gpu": 4, "g4dn-12xlarge": 1, "v100-dlperf": 1, "p2-8xlarge": 2}.items()
} | {name: BUILT[name] for name in ("mixed", "torus", "oversubscribed")}


def members(annotation: Any, *often: str) -> list[Any]:
    """Values of a field, the ones that go with most others more often."""
    return [*often, *names_of(annotation)]


PARALLEL: dict[str, list[Any]] = {
    "tp": [1, 1, 2, 4],
    "pp": [1, 1, 2, 4],
    "ep": [1, 1, 1, 2, 4],
    "cp": [1, 1, 2],
    "dp": [None, None, 2, 3],
    "placement": [("tp", "cp", "dp", "pp"), ("dp", "cp", "pp", "tp"), ("pp", "tp", "cp", "dp")],
    "expert_tp": [None, None, 1],
    "expert_imbalance": [1.0, 1.5],
    "expert_capacity": [None, 1.25],
    "sequence_parallel": [False, True],
    "context_parallelism": members(ContextParallelism),
    "context_balance": [True, False],
    "micro_batch_size": [None, 1],
    "embedding_in_split": [False, True],
    "head_in_split": [False, True],
    "stage_blocks": [None, None, None, (1, 3), (4, 0), (0, 2)],
    "fusion": members(Fusion),
    "cycle_time": [0.0, 1e-3],
    "order": members(TransferOrder, "fifo"),
    "partition_size": [None, None, 4e6],
    "negotiation": members(Negotiation, "none"),
    "schedule": members(Schedule, "1f1b"),
    "recompute": members(Recompute),
    "overlap": [True, False],
    "compression": members(Compression, *["none"] * 6),
    "compression_rank": [1, 4],
    "compression_ratio": [None, 0.01, 0.5],
    "compression_levels": [None, 16],
    "compression_exchange": ["auto", "auto", "requantize", "all_gather"],
    "compress_pull": [False, False, True],
    "compression_engine": ["device", "nic"],
    "activation_compression": members(ActivationCompression, "none"),
    "bucket_size": [25 * 2.0**20, 1e6],
    "virtual_stages": [1, 2],
    "weight_stash": [False, True],
    "token_slices": [1, 4],
    "recompute_layers": [(), ("mlp",), ("conv", "linear")],
    "offload_activations": [False, True],
    "prefetch": [0, 1, 3],
    "store": members(Store),
    "sample_format": ["records", "files"],
    "shuffle": ["shard", "global"],
    "decode": ["cpu", "device"],
    "decode_workers": [None, 2],
    "prefetch_batches": [1, 3],
    "checkpoint_every": [None, 3],
    "checkpoint_mode": ["sync", "async"],
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
    "switch_slots": [None, 64],
    "switch_fallback": [0, 0.3],
    "switch_max_message": [None, 1e6],
    "collective": members(CollectiveAlgorithm),
    "synchronization": ["bsp"],
}
LOCAL = {
    "synchronization": ["local"],
    "state": ["replicated", "replicated", "ps_dedicated", "ps_colocated"],
    "update": [None, "model_average", "outer_optimizer", "elastic_average", "gradient_sum"],
    "local_steps": [1, 2, 5],
    "collective": ["auto", "tree", "torus2d"],
    "fragments": [1, 2, 4],
    "exchange_overlap": [0, 1, 3],
    "exchange_bits": [None, 8],
    "synchronous_steps": [0, 1],
    "participation": [1.0, 1.0, 0.5],
    "availability": [1.0, 1.0, 0.5],
    "moving_rate": [None, 0.1],
}
SERVERS = {
    "state": ["ps_dedicated", "ps_colocated", "ps_mixed"],
    "num_servers": [None, 1, 2, 3],
    "synchronization": members(Synchronization),
    "topology": ["auto", "auto", "star", "sharded_star", "tree"],
    "update": [None, None, None, "model_average", "elastic_average", "outer_optimizer"],
    "staleness": [0, 1, 3],
    "backup_workers": [0, 1],
    "gradients_per_update": [1, 2, 3],
    "delay": [0, 1, 2],
    "reads": ["lazy", "eager"],
    "local_steps": [1, 1, 3],
    "tree_levels": [1, 2],
    "group_size": [None, 2],
    "delay_compensation": [False, True],
    "participation": [1.0, 1.0, 0.5],
    "availability": [1.0, 1.0, 0.5],
}
EXCHANGES = {
    "state": ["replicated", "replicated", "ps_dedicated", "ps_colocated", "zero1"],
    "synchronization": members(Synchronization),
    "update": [None, *names_of(UpdateSemantics)],
    "topology": members(LogicalTopology),
    "graph": members(PeerGraph),
    "graph_degree": [1, 2, 3],
    "fragments": [1, 2],
    "exchange_bits": [None, 8],
    "group_size": [None, None, 2],
    "local_steps": [1, 1, 2],
    "gradients_per_update": [1, 1, 3],
    "staleness": [0, 0, 2],
    "delay": [0, 0, 1],
    "tree_levels": [1, 1, 2],
    "push_probability": [1.0, 0.5],
    "graph_draws": [16, 3],
    "participation": [1.0, 1.0, 0.5],
    "availability": [1.0, 1.0, 0.5],
    "moving_rate": [None, None, 0.1],
}
fields = st.sampled_from([COLLECTIVE, LOCAL, SERVERS, EXCHANGES]).flatmap(
    lambda family: st.fixed_dictionaries(
        {},
        optional={name: st.sampled_from(values) for name, values in family.items()}
        | {name: st.sampled_from(values) for name, values in PARALLEL.items()},
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


def plausible(result: Result, fidelity: str, jitter: float) -> None:
    """Numbers that hold for every strategy: positive, finite, consistent, never below the bound."""
    step, parts = result.step_time_s, result.parts
    assert step is not None
    assert result.samples_per_s is not None
    assert result.peak_memory_bytes is not None
    for number in (step, result.samples_per_s, result.peak_memory_bytes, result.energy_joules_per_step):
        assert number is not None
        assert 0 < number < math.inf
    assert min(parts.values()) >= -1e-12
    assert sum(parts.values()) == pytest.approx(step, rel=1e-6)
    assert result.overlap_fraction is None or 0 <= result.overlap_fraction <= 1 + 1e-9
    assert step >= (result.bound_s or 0.0) * (1 - 1e-9)
    worth = result.updates
    assert worth["bytes_per_update_per_worker"] >= 0
    assert worth["samples_per_update"] >= worth["effective_batch_size"] > 0
    assert 0 <= worth["staleness_mean"] <= worth["staleness_max"] + 1e-9
    assert sum(worth["staleness_histogram"].values()) == pytest.approx(1)
    assert 0 <= worth["dropped_gradient_share"] < 1


def holds(
    fields: dict[str, Any], model: str, where: str, slow: tuple[int, float], jitter: float, fidelity: str
) -> None:
    cluster = CLUSTERS[where]
    workload = WORKLOADS[model]
    if workload.global_batch_size is not None:
        workload = workload.model_copy(update={"global_batch_size": 2 * cluster.num_devices})
    for strategy in (Strategy(**fields), repaired(fields, workload, cluster)):
        ranks = Context.of(strategy, workload, cluster).num_ranks or 1
        result = sim.run(
            workload,
            cluster,
            strategy,
            slow_ranks={slow[0] % ranks: slow[1]},
            jitter=jitter,
            fidelity=fidelity,
        )
        refusals = check(strategy, workload, cluster)
        if refusals:
            assert result.status == "invalid"
            assert "\n" not in result.message
        else:
            assert result.status in ("ok", "infeasible")
        if result.ok:
            plausible(result, fidelity, jitter)


points = given(
    fields=fields,
    model=st.sampled_from(sorted(WORKLOADS)),
    where=st.sampled_from(sorted(CLUSTERS)),
    slow=st.tuples(st.integers(0, 63), st.sampled_from([1.0, 1.5, 3.0])),
    jitter=st.sampled_from([0.0, 0.0, 0.1]),
    fidelity=st.sampled_from(["fluid", "fluid", "analytic"]),
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@points
def test_refused_infeasible_or_plays(**point: Any) -> None:
    holds(**point)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@points
def test_refused_infeasible_or_plays_at_many_points(**point: Any) -> None:
    holds(**point)
