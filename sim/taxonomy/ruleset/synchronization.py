"""Rules on synchronisation (dimension D3) and on what an update means (D4)."""

from __future__ import annotations

from sim.taxonomy.context import Context
from sim.taxonomy.rule import Finding, Overrides, RuleSet, ways
from sim.taxonomy.ruleset.state import TO_REPLICATED, TO_SERVERS
from sim.taxonomy.synchronizations import BARRIER_FREE, SYNCHRONIZATIONS

RULES = RuleSet()

_TO_BSP: Overrides = {"strategy.synchronization": "bsp"}
_SERVERS_OR_BSP: tuple[Overrides, ...] = (
    TO_SERVERS,
    {**TO_SERVERS, "strategy.collective": "auto"},
    {**TO_SERVERS, "strategy.collective": "auto", "strategy.chunks": 1},
    _TO_BSP,
    {**_TO_BSP, "strategy.staleness": 0},
    {**_TO_BSP, "strategy.backup_workers": 0},
)


def _needs_servers(c: Context) -> Finding:
    instead = "bsp or local" if c.strategy.state == "replicated" else "bsp"
    peers: Overrides = {"strategy.topology": "graph"}
    return Finding(
        "strategy.synchronization",
        f"be {instead} while state is {c.strategy.state}",
        c.strategy.synchronization,
        (*_SERVERS_OR_BSP, peers) if c.strategy.state == "replicated" else _SERVERS_OR_BSP,
        explain=True,
    )


@RULES.refuse(
    "C2-2",
    "synchronization state",
    "a collective is a barrier among its members; only servers or peers let workers run ahead",
)
def no_barrier_in_a_collective(c: Context) -> Finding | None:
    """SSP or asynchronous with replicated or ZeRO-1 state, without peers."""
    strategy = c.strategy
    if strategy.synchronization not in BARRIER_FREE or strategy.state not in ("replicated", "zero1"):
        return None
    grouped = strategy.synchronization == "partial_allreduce" and strategy.state == "replicated"
    if strategy.has_peers or grouped:
        return None
    return _needs_servers(c)


@RULES.refuse(
    "C2-3",
    "synchronization state",
    "every member must contribute to a collective; only a server can go on without the last gradients",
)
def backup_needs_a_server(c: Context) -> Finding | None:
    """Backup workers with an all-reduce."""
    if not _drops(c) or c.strategy.state != "replicated":
        return None
    return _needs_servers(c)


def _drops(c: Context) -> bool:
    return SYNCHRONIZATIONS[c.strategy.synchronization].drops


@RULES.refuse(
    "C2-4", "synchronization state", "each layer gathers parameters or scatters gradients by a collective"
)
def sharded_gradients_are_synchronous(c: Context) -> Finding | None:
    """SSP or asynchronous with ZeRO-2 or ZeRO-3."""
    if c.strategy.synchronization not in BARRIER_FREE or c.strategy.state not in ("zero2", "zero3"):
        return None
    return _needs_servers(c)


@RULES.refuse("C2-36", "synchronization state", "every shard owner is needed in every step")
def shard_owners_are_needed(c: Context) -> Finding | None:
    """Backup workers with sharded state."""
    if not _drops(c) or not c.is_sharded:
        return None
    return _needs_servers(c)


@RULES.refuse(
    "local-state",
    "synchronization state",
    "between two averagings every replica updates a full model of its own",
)
def local_steps_update_own_state(c: Context) -> Finding | None:
    """Local SGD with sharded state."""
    if c.strategy.synchronization != "local" or not c.is_sharded:
        return None
    return Finding(
        "strategy.state",
        "be replicated or a parameter server for local SGD",
        c.strategy.state,
        (
            TO_REPLICATED,
            {**TO_REPLICATED, "strategy.num_servers": None},
            {**_TO_BSP, "strategy.local_steps": 1},
        ),
        explain=True,
    )


@RULES.refuse(
    "local-replica",
    "synchronization ep cp",
    "replicas that take steps of their own may share nothing within a step",
)
def local_replicas_are_independent(c: Context) -> Finding | None:
    """Local SGD with expert or context parallelism across the averaged ranks."""
    if c.strategy.synchronization != "local":
        return None
    for axis in ("ep", "cp"):
        degree: int = getattr(c.strategy, axis)
        if degree > 1:
            leave: tuple[Overrides, ...] = ({f"strategy.{axis}": 1}, {**_TO_BSP, "strategy.local_steps": 1})
            return Finding(f"strategy.{axis}", "be 1 for local SGD", degree, leave, explain=True)
    return None


@RULES.refuse(
    "staleness-ssp",
    "staleness synchronization",
    "only stale synchronous parallel has a bound on how far workers run ahead",
)
def staleness_has_a_bound(c: Context) -> Finding | None:
    """A staleness bound without SSP."""
    strategy = c.strategy
    if strategy.staleness == 0 or strategy.synchronization == "ssp":
        return None
    return Finding(
        "strategy.staleness",
        f"be 0 while synchronization is {strategy.synchronization}",
        strategy.staleness,
        ({"strategy.staleness": 0}, {"strategy.synchronization": "ssp"}),
    )


@RULES.refuse(
    "backup-workers",
    "backup_workers synchronization dp",
    "a step needs at least one gradient, and only `backup` drops late ones",
)
def backup_leaves_a_worker(c: Context) -> Finding | None:
    """Backup workers without `backup`, or none left that count."""
    strategy = c.strategy
    if strategy.backup_workers == 0:
        return None
    if strategy.synchronization != "backup":
        return Finding(
            "strategy.backup_workers",
            f"be 0 while synchronization is {strategy.synchronization}",
            strategy.backup_workers,
            ({"strategy.backup_workers": 0}, {"strategy.synchronization": "backup"}),
        )
    if c.dp is None or strategy.backup_workers < c.dp:
        return None
    return Finding(
        "strategy.backup_workers",
        f"be less than dp ({c.dp})",
        strategy.backup_workers,
        ways("strategy.backup_workers", [c.dp - 1]),
    )


@RULES.refuse(
    "backup-replica",
    "synchronization tp pp",
    "a late gradient is dropped rank by rank, and a replica of several ranks would drop only parts of one",
)
def backup_drops_whole_replicas(c: Context) -> Finding | None:
    """Backup workers with replicas of several ranks."""
    strategy = c.strategy
    if not _drops(c) or strategy.tp * strategy.pp == 1:
        return None
    axis = "tp" if strategy.tp > 1 else "pp"
    return Finding(
        f"strategy.{axis}",
        "be 1 for backup workers",
        getattr(strategy, axis),
        (
            {f"strategy.{axis}": 1},
            {"strategy.tp": 1, "strategy.pp": 1},
            {**_TO_BSP, "strategy.backup_workers": 0},
        ),
        explain=True,
    )


@RULES.refuse(
    "local-steps",
    "local_steps synchronization state topology",
    "only local SGD, peers and workers without a common step take several steps between two exchanges",
)
def local_steps_are_local(c: Context) -> Finding | None:
    """local_steps > 1 without local SGD."""
    strategy = c.strategy
    if strategy.local_steps == 1 or strategy.synchronization == "local" or strategy.has_peers:
        return None
    if c.uses_servers and strategy.synchronization in ("asp", "ssp"):
        return None  # pushes and pulls every tau steps (Downpour, elastic averaging)
    return Finding(
        "strategy.local_steps",
        f"be 1 while synchronization is {strategy.synchronization}",
        strategy.local_steps,
        (
            {"strategy.local_steps": 1},
            {"strategy.synchronization": "local"},
            {"strategy.synchronization": "local", **TO_REPLICATED},
        ),
    )


@RULES.warn(
    "C2-15",
    "local_steps synchronization",
    "averaging models after one plain SGD step equals averaging gradients",
)
def local_takes_several_steps(c: Context) -> Finding | None:
    """Local SGD with tau = 1."""
    if c.strategy.synchronization != "local" or c.strategy.local_steps > 1:
        return None
    if c.strategy.update_semantics != "model_average" or c.strategy.synchronous_steps:
        return None
    return Finding(
        "strategy.local_steps",
        "local SGD with 1 local step averages after every step, like bsp with model-sized messages",
    )


@RULES.warn("ssp-zero", "staleness synchronization", "a bound of zero clocks is a barrier")
def ssp_allows_staleness(c: Context) -> Finding | None:
    """SSP with s = 0."""
    if c.strategy.synchronization != "ssp" or c.strategy.staleness > 0:
        return None
    return Finding("strategy.staleness", "ssp with staleness 0 waits for every worker, like bsp")


@RULES.warn(
    "backup-zero", "backup_workers synchronization", "without spare workers every gradient is waited for"
)
def backup_has_spares(c: Context) -> Finding | None:
    """Backup synchronisation without backup workers."""
    if c.strategy.synchronization != "backup" or c.strategy.backup_workers > 0:
        return None
    return Finding(
        "strategy.backup_workers", "backup with 0 backup workers waits for every gradient, like bsp"
    )


@RULES.warn("C2-38", "synchronization", "layer norm ratios are computed from stale weights")
def lamb_sees_fresh_weights(c: Context) -> Finding | None:
    """LAMB with asynchronous updates."""
    if c.workload.optimizer != "lamb" or c.strategy.synchronization != "asp":
        return None
    return Finding("strategy.synchronization", "lamb takes its trust ratios from stale weights under asp")


@RULES.refuse(
    "C2-3-servers", "synchronization topology local_steps", "what is dropped is one gradient of one worker"
)
def backup_drops_gradients(c: Context) -> Finding | None:
    """Backup workers behind aggregators."""
    if not _drops(c) or c.strategy.topology != "tree":
        return None
    leave: tuple[Overrides, ...] = (
        {"strategy.topology": "auto"},
        {"strategy.topology": "auto", "strategy.group_size": None},
        {**_TO_BSP, "strategy.backup_workers": 0},
    )
    return Finding("strategy.topology", "not be tree for backup workers", "tree", leave, explain=True)


@RULES.refuse(
    "soft-sync-size", "gradients_per_update synchronization dp", "no more gradients are under way at once"
)
def soft_updates_can_fill(c: Context) -> Finding | None:
    """Batches of gradients larger than the number of workers."""
    size = c.strategy.gradients_per_update
    if c.strategy.synchronization != "soft_sync" or c.dp is None or size <= c.dp:
        return None
    return Finding(
        "strategy.gradients_per_update", f"be at most dp ({c.dp})", size,
        ways("strategy.gradients_per_update", [c.dp]),
    )  # fmt: skip


@RULES.refuse(
    "soft-sync-tree", "synchronization topology", "aggregators already decide which gradients go together"
)
def soft_updates_are_of_workers(c: Context) -> Finding | None:
    """Soft synchronisation or a delay behind aggregators."""
    if c.strategy.synchronization != "soft_sync" or c.strategy.topology != "tree":
        return None
    leave: tuple[Overrides, ...] = (
        {"strategy.topology": "auto"},
        {"strategy.topology": "auto", "strategy.group_size": None},
        {"strategy.synchronization": "asp", "strategy.gradients_per_update": 1},
    )
    return Finding("strategy.topology", "not be tree for soft_sync", "tree", leave, explain=True)


@RULES.refuse("delayed-sharded", "synchronization state", "its layers are scattered while the backward runs")
def late_gradients_are_whole(c: Context) -> Finding | None:
    """Delayed updates with ZeRO-2 or ZeRO-3."""
    if c.strategy.synchronization != "delayed" or c.strategy.state not in ("zero2", "zero3"):
        return None
    leave: tuple[Overrides, ...] = (
        {"strategy.state": "zero1"},
        TO_REPLICATED,
        {**_TO_BSP, "strategy.delay": 0},
    )
    return Finding(
        "strategy.state", "be replicated or zero1 for delayed updates", c.strategy.state, leave, explain=True
    )


@RULES.refuse("delayed-schedule", "synchronization overlap", "nothing goes on beside a blocking exchange")
def late_gradients_overlap(c: Context) -> Finding | None:
    """Delayed updates without overlap on replicas."""
    if c.strategy.synchronization != "delayed" or c.strategy.overlap or c.uses_servers:
        return None
    return Finding(
        "strategy.overlap", "be true for delayed updates", False,
        ({"strategy.overlap": True}, {**_TO_BSP, "strategy.delay": 0}), explain=True,
    )  # fmt: skip


@RULES.warn("soft-sync-limits", "gradients_per_update synchronization dp", "it counts all workers, or none")
def soft_updates_are_between(c: Context) -> Finding | None:
    """Soft synchronisation that equals asynchronous or synchronous training."""
    size = c.strategy.gradients_per_update
    if c.strategy.synchronization != "soft_sync" or (size > 1 and size != c.dp):
        return None
    like = "asp" if size == 1 else "bsp while no worker is ahead"
    return Finding(
        "strategy.gradients_per_update", f"soft_sync with {size} gradients per update is like {like}"
    )


@RULES.warn("delayed-zero", "delay synchronization", "a delay of no steps is none")
def delays_are_late(c: Context) -> Finding | None:
    """Delayed updates with d = 0."""
    if c.strategy.synchronization != "delayed" or c.strategy.delay > 0:
        return None
    return Finding("strategy.delay", "delayed with delay 0 applies gradients at once, like bsp")


@RULES.warn(
    "partial-alone",
    "group_size synchronization dp",
    "a group of one exchanges nothing, one of all is a barrier",
)
def partial_groups_are_partial(c: Context) -> Finding | None:
    """A partial all-reduce of one or all replicas."""
    if c.strategy.synchronization != "partial_allreduce" or c.dp is None:
        return None
    if 1 < c.group_size < c.dp:
        return None
    like = "training alone" if c.group_size == 1 else "bsp"
    return Finding("strategy.group_size", f"a partial all-reduce of {c.group_size} of {c.dp} is like {like}")


@RULES.warn("hybrid-one-group", "group_size synchronization dp", "there is no other group to be ahead of")
def hybrids_have_groups(c: Context) -> Finding | None:
    """A group hybrid of one group."""
    if c.strategy.synchronization != "group_hybrid" or c.dp is None or c.dp > c.group_size:
        return None
    return Finding("strategy.group_size", "group_hybrid of a single group is like bsp")
