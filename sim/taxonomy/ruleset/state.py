"""Rules on where parameters and optimiser state live (dimension D2)."""

from __future__ import annotations

from sim.taxonomy.context import Context
from sim.taxonomy.rule import Finding, Overrides, RuleSet, near_divisors, ways
from sim.taxonomy.schedules import SCHEDULES

RULES = RuleSet()

TO_SERVERS: Overrides = {"strategy.state": "ps_dedicated"}
TO_REPLICATED: Overrides = {"strategy.state": "replicated"}
_EXCHANGE = "strategy.activation_exchange"


@RULES.refuse("servers-state", "num_servers state", "only parameter server states have servers")
def servers_have_a_role(c: Context) -> Finding | None:
    """num_servers only with a parameter server."""
    if c.strategy.num_servers is None or c.uses_servers or c.strategy.serves_tables:
        return None
    return Finding(
        "strategy.num_servers",
        f"be absent while state is {c.strategy.state}",
        c.strategy.num_servers,
        (
            {"strategy.num_servers": None},
            TO_SERVERS,
            {**TO_SERVERS, "strategy.collective": "auto"},
        ),
    )


@RULES.refuse("offload-blocks", "offload_blocks", "activations are offloaded of blocks that the model has")
def offloaded_blocks_exist(c: Context) -> Finding | None:
    """No more offloaded blocks than blocks."""
    given, blocks = c.strategy.offload_blocks, c.workload_facts.num_blocks
    if given is None or given <= blocks:
        return None
    must = f"be at most the number of blocks of {c.workload.name} ({blocks})"
    return Finding("strategy.offload_blocks", must, given, ({"strategy.offload_blocks": None},))


@RULES.refuse(
    "servers-colocated", "num_servers state", "a co-located server shares the host of at least one worker"
)
def colocated_servers_have_hosts(c: Context) -> Finding | None:
    """No more co-located servers than worker devices on the hosts in use."""
    strategy = c.strategy
    beside = (c.uses_servers and not strategy.has_server_hosts) or strategy.serves_tables
    if not beside or strategy.num_servers is None or c.num_ranks is None:
        return None
    most = sum(c.cluster.devices_of_host[: c.used_hosts])
    if strategy.num_servers <= most:
        return None
    return Finding(
        "strategy.num_servers",
        f"be at most the devices of the {c.used_hosts} worker hosts ({most}) for co-located servers",
        strategy.num_servers,
        ({"strategy.num_servers": most}, TO_SERVERS),
    )


@RULES.refuse("C2-1", "collective state", "a server aggregates, so there is no collective among the workers")
def servers_need_no_collective(c: Context) -> Finding | None:
    """A parameter server with an explicit collective algorithm."""
    strategy = c.strategy
    if not c.uses_servers or strategy.collective == "auto":
        return None
    return Finding(
        "strategy.collective",
        f"be auto while state is {strategy.state}",
        strategy.collective,
        (
            {"strategy.collective": "auto"},
            {"strategy.collective": "auto", "strategy.chunks": 1},
            TO_REPLICATED,
            {**TO_REPLICATED, "strategy.num_servers": None},
        ),
        explain=True,
    )


@RULES.refuse(
    "servers-experts",
    "ep state",
    "expert parallel ranks hold different experts, so no server shard serves all workers alike",
)
def servers_serve_equal_workers(c: Context) -> Finding | None:
    """Expert parallelism with a parameter server."""
    if not c.uses_servers or c.strategy.ep == 1:
        return None
    return Finding(
        "strategy.ep",
        f"be 1 while state is {c.strategy.state}",
        c.strategy.ep,
        ({"strategy.ep": 1}, TO_REPLICATED, {**TO_REPLICATED, "strategy.num_servers": None}),
        explain=True,
    )


@RULES.refuse(
    "servers-mixed",
    "state synchronization update",
    "servers that only sum know no parameters: workers update once everybody's gradients have been added",
)
def summing_servers_wait_for_all(c: Context) -> Finding | None:
    """Summing servers without a barrier, or for something else than gradients."""
    strategy = c.strategy
    if not strategy.servers_only_sum or (
        strategy.synchronization in ("bsp", "delayed") and strategy.update_semantics == "gradient_sum"
    ):
        return None
    other = {"strategy.state": "ps_dedicated"}
    return Finding(
        "strategy.state", "not be ps_mixed unless every step sums all gradients", strategy.state,
        (other, {"strategy.synchronization": "bsp", "strategy.update": None}), explain=True,
    )  # fmt: skip


@RULES.refuse("servers-processors", "state", "a server sums gradients at the speed of its processors' memory")
def servers_have_processors(c: Context) -> Finding | None:
    """A parameter server on a host that does not say which processors it has."""
    state = c.strategy.state
    if not c.uses_servers or c.cluster.can_serve(state):
        return None
    other = "ps_colocated" if state == "ps_dedicated" else "ps_dedicated"
    return Finding(
        "strategy.state",
        "not be a parameter server on hosts without a cpu_device",
        state,
        (
            TO_REPLICATED,
            {**TO_REPLICATED, "strategy.num_servers": None},
            {"strategy.state": other},
            {**TO_REPLICATED, "strategy.synchronization": "bsp"},
            {**TO_REPLICATED, "strategy.num_servers": None, "strategy.synchronization": "bsp"},
        ),
        explain=True,
    )


def _without_matrices(c: Context, field: str, chosen: str) -> Finding | None:
    """A choice for fully connected layers where the model has none."""
    if chosen != "always" or c.workload_facts.has_fully_connected:
        return None  # cheaper: of no layer
    must = f"be never, as {c.workload.name} has no fully connected layer"
    return Finding(field, must, chosen, ({field: "never"},))


@RULES.refuse(
    "C2-13",
    "sufficient_factors",
    "only the gradient of a fully connected layer is an outer product per sample",
)
def factors_have_matrices(c: Context) -> Finding | None:
    """Sufficient factors of a model without fully connected layers."""
    return _without_matrices(c, "strategy.sufficient_factors", c.strategy.sufficient_factors)


@RULES.refuse(
    "exchange-layers",
    "activation_exchange",
    "only a fully connected layer is cheap enough to be held by parts for everybody's samples",
)
def exchanges_have_matrices(c: Context) -> Finding | None:
    """Exchange of activations in a model without fully connected layers."""
    return _without_matrices(c, _EXCHANGE, c.strategy.activation_exchange)


@RULES.refuse(
    "exchange-barrier",
    "activation_exchange sufficient_factors state synchronization update topology tp cp pp ep",
    "every rank computes its columns for the samples of all others, in every layer of every step",
)
def exchanges_meet_in_every_layer(c: Context) -> Finding | None:
    """Exchange of activations without a common step, or of layers that are divided already."""
    strategy = c.strategy
    together = strategy.synchronization in ("bsp", "delayed") and strategy.update is None
    together = together and strategy.state == "replicated" and not strategy.has_peers
    whole = strategy.tp == strategy.cp == strategy.pp == strategy.ep == 1
    if strategy.activation_exchange == "never" or (
        together and whole and strategy.sufficient_factors == "never"
    ):
        return None
    return Finding(
        _EXCHANGE,
        "be never unless replicas sum the gradients of every step, and divide no layer otherwise",
        strategy.activation_exchange,
        ({_EXCHANGE: "never"},),
        explain=True,
    )


@RULES.refuse(
    "C2-14",
    "sufficient_factors state synchronization update compression tp",
    "factors cannot be summed on the way: every rank needs all of them, and updates the whole matrix",
)
def factors_reach_every_rank(c: Context) -> Finding | None:
    """Sufficient factors with servers, shards, compression, or updates of something else than gradients."""
    strategy = c.strategy
    plain = strategy.state == "replicated" and strategy.synchronization == "bsp" and strategy.update is None
    if strategy.sufficient_factors == "never" or (
        plain and strategy.compression in ("none", "fp16", "bf16") and strategy.tp == 1
    ):
        return None
    return Finding(
        "strategy.sufficient_factors",
        "be never unless replicas sum uncompressed gradients",
        strategy.sufficient_factors,
        ({"strategy.sufficient_factors": "never"},),
        explain=True,
    )


_TABLES = "strategy.sparse_embeddings"


@RULES.refuse(
    "sparse-replicas",
    "sparse_embeddings state synchronization update topology tp cp pp ep order",
    "rows of tables go to everybody or to their servers once per step of whole replicas",
)
def rows_belong_to_whole_replicas(c: Context) -> Finding | None:
    """Sparse gradients where replicas do not sum gradients in step, or are divided."""
    strategy = c.strategy
    if strategy.sparse_embeddings == "never":
        return None
    summed = strategy.state == "replicated" and strategy.synchronization == "bsp" and strategy.update is None
    whole = strategy.tp == strategy.cp == strategy.pp == strategy.ep == 1
    if summed and whole and not strategy.has_peers and (strategy.order == "fifo"):
        return None
    must = "be never unless whole replicas sum the gradients of every step, in the order in which they come"
    back: Overrides = {_TABLES: "never"}
    ways_out = (back, {**back, "strategy.num_servers": None})
    return Finding(_TABLES, must, strategy.sparse_embeddings, ways_out, explain=True)


@RULES.refuse("sparse-processors", "sparse_embeddings", "servers add rows up at the speed of their memory")
def table_servers_have_processors(c: Context) -> Finding | None:
    """Tables on hosts that do not say which processors they have."""
    if not c.strategy.serves_tables or c.cluster.worker_processors:
        return None
    ways_out: tuple[Overrides, ...] = (
        {_TABLES: "gather"},
        {_TABLES: "gather", "strategy.num_servers": None},
    )
    return Finding(_TABLES, "not be servers on hosts without a cpu_device", "servers", ways_out, explain=True)


@RULES.warn(
    "sparse-tables", "sparse_embeddings", "only tables that no output layer shares are touched by rows"
)
def sparse_gradients_have_tables(c: Context) -> Finding | None:
    """Sparse gradients of a model whose gradients are all dense."""
    if c.strategy.sparse_embeddings == "never" or c.workload_facts.has_sparse_tables:
        return None
    return Finding(_TABLES, f"all gradients of {c.workload.name} are dense, and all-reduced")


@RULES.refuse(
    "offload-optimizer",
    "offload_optimizer state synchronization update",
    "the processors of each host update what its devices have summed with the others",
)
def offloading_has_processors(c: Context) -> Finding | None:
    """Optimiser state in host memory without processors, or where something else updates."""
    strategy = c.strategy
    if not strategy.offload_optimizer:
        return None
    off: Overrides = {"strategy.offload_optimizer": False}
    if c.uses_servers or strategy.synchronization != "bsp" or strategy.update is not None:
        must = "be false unless every rank updates what all of them have summed"
        return Finding("strategy.offload_optimizer", must, "true", (off,))
    if c.cluster.worker_processors:
        return None
    return Finding("strategy.offload_optimizer", "be false on hosts without a cpu_device", "true", (off,))


@RULES.refuse(
    "shard-group",
    "shard_ranks state dp cp ep expert_tp",
    "groups of equal size among the ranks that hold the same parameters each share one copy of sharded state",
)
def shard_groups_tile_the_replicas(c: Context) -> Finding | None:
    """Hybrid sharding: the shard group divides dp x cp, and the holders of an expert."""
    strategy, size = c.strategy, c.strategy.shard_ranks
    if size is None:
        return None
    without = ways("strategy.shard_ranks", [None])
    if not c.is_sharded:
        instead: tuple[Overrides, ...] = (*without, {"strategy.state": "zero3"})
        return Finding("strategy.shard_ranks", f"be absent while state is {strategy.state}", size, instead)
    if strategy.collective not in ("auto", "ring", "direct"):
        auto: Overrides = {"strategy.collective": "auto", "strategy.chunks": 1}
        must = f"be absent while collective is {strategy.collective}"
        return Finding("strategy.shard_ranks", must, size, (*without, auto))
    if c.dp is None:
        return None
    holders = [c.dp * strategy.cp]
    if strategy.folds_experts:
        holders.append(holders[0] * strategy.tp // (strategy.ep * strategy.expert_tensor_degree))
    for count in holders:
        if count % size:
            near = ways("strategy.shard_ranks", near_divisors(size, count))
            of = "dp x cp" if count == holders[0] else "the ranks that hold the same experts"
            return Finding("strategy.shard_ranks", f"divide {of} ({count})", size, (*near, *without))
    return None


@RULES.refuse(
    "second-shard", "backward_shard_ranks shard_ranks dp cp", "neighbours of a shard group share it"
)
def second_copies_tile_the_first(c: Context) -> Finding | None:
    """A secondary partition (hpZ) that does not divide the primary one."""
    strategy, size = c.strategy, c.strategy.backward_shard_ranks
    if size is None or c.dp is None:
        return None
    ranks = strategy.shard_ranks or c.dp * strategy.cp
    if ranks % size == 0:
        return None
    near = ways("strategy.backward_shard_ranks", [*near_divisors(size, ranks), None])
    return Finding("strategy.backward_shard_ranks", f"divide {ranks} ranks that share state", size, near)


@RULES.refuse("offload-disks", "offload_target", "states on disks are read and written in every step")
def offloading_has_disks(c: Context) -> Finding | None:
    """Optimiser state on disks that hosts do not have."""
    if c.strategy.offload_target != "nvme" or c.cluster.has_local_storage:
        return None
    return Finding(
        "strategy.offload_target", "be host where hosts have no local_storage", "nvme",
        ({"strategy.offload_target": "host"},), explain=True,
    )  # fmt: skip


@RULES.refuse(
    "offload-activations", "offload_activations schedule recompute",
    "what a forward leaves is back on the device once, for one backward of the same step",
)  # fmt: skip
def parked_activations_come_back_once(c: Context) -> Finding | None:
    """Offloaded activations that two passes need, or that a later step does, or of which parts remain."""
    strategy, facts = c.strategy, SCHEDULES[c.strategy.schedule]
    twice = strategy.pp > 1 and (facts.split_backward or not facts.flushes)
    if not strategy.offload_activations or not (twice or strategy.recompute == "alternate"):
        return None
    must = "be false unless a backward is whole and in the step of its forward"
    ways_out: tuple[Overrides, ...] = (
        {"strategy.offload_activations": False},
        {"strategy.schedule": "1f1b"} if twice else {"strategy.recompute": "full"},
    )
    return Finding("strategy.offload_activations", must, "true", ways_out, explain=True)


@RULES.refuse(
    "recompute-early-stop",
    "recompute_early_stop recompute",
    "only whole blocks that run again can stop early",
)
def only_full_recomputation_stops_early(c: Context) -> Finding | None:
    """An early stop of recomputation that does not run blocks again."""
    if not c.strategy.recompute_early_stop or c.strategy.recompute == "full":
        return None
    ways_out: tuple[Overrides, ...] = (
        {"strategy.recompute_early_stop": False},
        {"strategy.recompute": "full"},
    )
    return Finding("strategy.recompute_early_stop", "be false unless recompute is full", "true", ways_out)


@RULES.refuse(
    "replicas-per-device", "replicas_per_device state synchronization topology tp cp pp ep offload_optimizer",
    "whole models share a device, average on it, and exchange that with other devices by a collective",
)  # fmt: skip
def models_share_devices(c: Context) -> Finding | None:
    """Several replicas on a device where replicas are divided, sharded, or have servers or peers."""
    strategy = c.strategy
    if strategy.replicas_per_device == 1:
        return None
    whole = strategy.tp == strategy.cp == strategy.pp == strategy.ep == 1 and not strategy.has_peers
    plain = strategy.state == "replicated" and strategy.synchronization in ("bsp", "local", "delayed")
    alone = strategy.sparse_embeddings == strategy.sufficient_factors == strategy.activation_exchange
    if whole and plain and alone and not (strategy.offload_optimizer or strategy.offload_activations):
        return None
    must = "be 1 unless whole replicated models are summed or averaged by collectives"
    one = ways("strategy.replicas_per_device", [1])
    return Finding("strategy.replicas_per_device", must, strategy.replicas_per_device, one, explain=True)


@RULES.warn("C2-35", "checkpoint_every state synchronization", "workers are at different clocks")
def servers_are_saved_too(c: Context) -> Finding | None:
    """Saving, suspending or moving a job on asynchronous servers: valid, but their state belongs to it."""
    strategy = c.strategy
    if strategy.checkpoint_every is None or not c.uses_servers:
        return None
    if strategy.synchronization not in ("asp", "ssp", "soft_sync", "group_hybrid"):
        return None
    return Finding(
        "strategy.checkpoint_every",
        "the servers' parameters and optimiser state are saved; what workers have not pushed yet is lost",
    )


@RULES.warn("reshard-state", "reshard_after_forward state", "only ZeRO-3 gathers parameters for the forward")
def resharding_has_gathers(c: Context) -> Finding | None:
    """Parameters kept after forward where nothing was gathered."""
    if c.strategy.reshard_after_forward or c.strategy.sharding == 3:
        return None
    return Finding(
        "strategy.reshard_after_forward",
        f"reshard_after_forward has no effect while state is {c.strategy.state}",
    )


@RULES.warn("sharding-alone", "state dp", "there is no other rank to share the state with")
def sharding_has_peers(c: Context) -> Finding | None:
    """ZeRO with a single data parallel rank."""
    if not c.is_sharded or c.gradient_ranks != 1:
        return None
    return Finding("strategy.state", f"{c.strategy.state} with dp 1 shards nothing; it plays as replicated")


@RULES.warn("prefetch-state", "prefetch state", "only ZeRO-3 gathers parameters layer by layer")
def prefetch_has_gathers(c: Context) -> Finding | None:
    """A prefetch depth where nothing is gathered."""
    if c.strategy.sharding == 3 or c.strategy.prefetch == type(c.strategy).model_fields["prefetch"].default:
        return None
    return Finding(
        "strategy.prefetch",
        f"prefetch has no effect while state is {c.strategy.state}; only zero3 gathers parameters",
    )
