"""Hold a strategy against every rule: refuse, warn, or fill in what the strategy leaves open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from sim.errors import InputError
from sim.spec.cluster import Cluster
from sim.spec.strategy import Strategy
from sim.spec.workload import Workload
from sim.taxonomy.context import ClusterFacts, Context
from sim.taxonomy.rule import Finding, Overrides, Refusal, Rule
from sim.taxonomy.ruleset import ALL_RULES
from sim.taxonomy.ruleset.network import OFF
from sim.wire.aggregators import AGGREGATORS

FIRST_BUCKET_BYTES = 2.0**20
_SHOWN_ALTERNATIVES = 2
_TRIED_ALTERNATIVES = 24
_CHAINED_ALTERNATIVES = 6
_LONGEST_CHAIN = 4


@cache
def rules(verdict: str) -> tuple[Rule, ...]:
    """The rules of one verdict, in the order in which they speak.

    Parameters
    ----------
    verdict : {"invalid", "warn"}
    """
    return tuple(rule for rule in ALL_RULES if rule.verdict == verdict)


def rule(identifier: str) -> Rule:
    """The rule of a given id.

    Raises
    ------
    KeyError
        If there is no such rule.
    """
    return {each.id: each for each in ALL_RULES}[identifier]


def violations(context: Context) -> list[tuple[Rule, Finding]]:
    """Rules that refuse a strategy, with what they found. No alternatives are tried, so it is fast."""
    found = ((each, each.find(context)) for each in rules("invalid"))
    return [(each, finding) for each, finding in found if finding is not None]


def check(strategy: Strategy, workload: Workload, cluster: Cluster) -> tuple[Refusal, ...]:
    """Every rule a strategy breaks for a workload on a cluster; empty if it is valid.

    Parameters
    ----------
    strategy : Strategy
    workload : Workload
    cluster : Cluster

    Returns
    -------
    tuple of Refusal
        In rule order. Their alternatives have been tried: each settles its rule and breaks no other.
    """
    return tuple(_refusals(Context.of(strategy, workload, cluster)))


def _refusals(context: Context) -> Iterator[Refusal]:
    """Refusals one by one: trying the alternatives of each costs more than finding it."""
    broken = violations(context)
    ids = frozenset(each.id for each, _ in broken)
    for each, finding in broken:
        yield Refusal(
            rule=each.id,
            field=finding.field,
            must=f"{finding.must}, because {each.reason}" if finding.explain else finding.must,
            got=finding.got,
            reason=each.reason,
            alternatives=_settling(context, each, finding, ids),
        )


def _settling(context: Context, broken: Rule, finding: Finding, ids: frozenset[str]) -> tuple[Overrides, ...]:
    """The ways out that work: first those that leave a valid strategy, else those that make nothing worse."""
    valid: list[Overrides] = []
    better: list[Overrides] = []
    for way in finding.ways_out[:_TRIED_ALTERNATIVES]:
        overrides = {name: value for name, value in way.items() if value != _current(context, name)}
        if not overrides or any(known.items() <= overrides.items() for known in valid):
            continue  # says nothing new
        remaining = _remaining(apply(context, overrides), ids - {broken.id})
        if remaining is None:
            continue
        (better if remaining else valid).append(overrides)
        if len(valid) == _SHOWN_ALTERNATIVES:
            break
    if not (valid or better):
        chained = _chained(context, finding, ids - {broken.id})
        return () if chained is None else (chained,)
    return tuple((valid or better)[:_SHOWN_ALTERNATIVES])


def _chained(context: Context, finding: Finding, allowed: frozenset[str]) -> Overrides | None:
    """The shortest chain of advice that works: what a change breaks is settled in turn."""
    for length in range(2, _LONGEST_CHAIN + 1):
        chain = _chain(context, finding, allowed, length)
        if chain is not None:
            shorter = {name: value for name, value in chain.items() if value != _current(context, name)}
            return shorter or None
    return None


def _chain(context: Context, finding: Finding, allowed: frozenset[str], length: int) -> Overrides | None:
    for way in finding.ways_out[:_CHAINED_ALTERNATIVES]:
        changed = apply(context, way)
        found = (each.find(changed) for each in rules("invalid") if each.id not in allowed)
        objection = next((each for each in found if each is not None), None)
        if objection is None:
            return way
        rest = _chain(changed, objection, allowed, length - 1) if length > 1 else None
        if rest is not None:
            return {**way, **rest}
    return None


def _current(context: Context, name: str) -> object:
    """What a dotted field has now."""
    owner, *fields = name.split(".")
    value: object = getattr(context, owner)
    for field in fields:
        value = getattr(value, field)
    return value


def _remaining(context: Context, allowed: frozenset[str]) -> set[str] | None:
    """Rules that a changed strategy still breaks; None as soon as it breaks one that is not ``allowed``."""
    remaining: set[str] = set()
    for each in rules("invalid"):
        if each.find(context) is not None:
            if each.id not in allowed:
                return None
            remaining.add(each.id)
    return remaining


def apply(context: Context, overrides: Overrides) -> Context:
    """A context with dotted fields ``strategy.*``, ``workload.*`` and ``cluster.*`` changed."""
    changes: dict[str, dict[str, Any]] = {"strategy": {}, "workload": {}, "cluster": {}}
    for name, value in overrides.items():
        owner, field = name.split(".", 1)
        if field.startswith("fabric."):
            fabric = changes["cluster"].get("fabric", context.cluster.fabric)
            field, value = "fabric", fabric.model_copy(update={field.removeprefix("fabric."): value})
        changes[owner][field] = value
    hosts = changes["cluster"].pop("num_hosts", None)
    if hosts is not None:
        changes["cluster"] |= _of_hosts(context.cluster, hosts)
    return replace(
        context,
        strategy=context.strategy.model_copy(update=changes["strategy"]),
        workload=context.workload.model_copy(update=changes["workload"]),
        cluster=replace(context.cluster, **changes["cluster"]),
    )


def _of_hosts(cluster: ClusterFacts, count: int) -> dict[str, Any]:
    """What is different of a cluster with so many hosts like its first one."""
    devices = cluster.devices_of_host[:1] * count
    single = cluster.fabric.kind == "single_switch"
    racks = {"rack_hosts": count} if single else {}
    return {"devices_of_host": devices, "num_devices": sum(devices), **racks}


def require_valid(strategy: Strategy, workload: Workload, cluster: Cluster, *, where: str = "") -> None:
    """Raise the first refusal, if any.

    Parameters
    ----------
    strategy, workload, cluster
        As for `check`.
    where : str
        ``file:line`` to name in the message.

    Raises
    ------
    InvalidStrategyError
        ``strategy.tp: must divide num_heads (96). Got 7. Try 6 or 8.``; its ``rule`` names the rule.
    """
    _require_valid(Context.of(strategy, workload, cluster), where)


def _require_valid(context: Context, where: str = "") -> None:
    for refusal in _refusals(context):
        raise refusal.error(where)


def warnings(strategy: Strategy, workload: Workload, cluster: Cluster) -> tuple[str, ...]:
    """What a user should know about a valid strategy: degenerate or expensive, but it plays.

    Returns
    -------
    tuple of str
        One sentence each, ``field: sentence. (reason)``.
    """
    context = Context.of(strategy, workload, cluster)
    found = ((each, each.find(context)) for each in rules("warn"))
    return tuple(
        f"{finding.field}: {finding.must} ({each.reason})." for each, finding in found if finding is not None
    )


def num_micro_batches(strategy: Strategy, workload: Workload) -> int:
    """Micro-batches per model replica and step.

    Parameters
    ----------
    strategy : Strategy
        ``dp`` is needed if the workload fixes its global batch; `resolve` fills it in.
    workload : Workload

    Raises
    ------
    InputError
        If ``dp`` is missing or the batch does not divide.
    """
    batch = replica_batch(strategy, workload)
    size = strategy.micro_batch_size or batch
    if batch % size:
        raise InputError("strategy.micro_batch_size", f"divide the batch of a replica ({batch})", size)
    return batch // size


def replica_batch(strategy: Strategy, workload: Workload) -> int:
    """Samples per model replica and step; same parameters and errors as `num_micro_batches`."""
    if workload.batch_per_device is not None:
        return workload.batch_per_device
    if workload.global_batch_size is None:
        raise InputError("workload.global_batch_size", "be given, or batch_per_device")
    if strategy.dp is None:
        raise InputError(
            "strategy.dp", "be known to divide the global batch", hint="Resolve the strategy first."
        )
    replicas = strategy.dp * strategy.replicas_per_device
    if workload.global_batch_size % replicas:
        raise InputError(
            "workload.global_batch_size", f"be a multiple of dp ({replicas})", workload.global_batch_size
        )
    return workload.global_batch_size // replicas


def gradient_grid(strategy: Strategy, workload: Workload, cluster: Cluster) -> tuple[int, ...] | None:
    """Shape (ranks per host, hosts) of the groups that share parameters; ``None`` if they form no grid.

    These are the ``dims`` of a hierarchical or 2-D torus collective over the dp x cp ranks of a group.
    """
    return Context.of(strategy, workload, cluster).gradient_grid


def resolve(strategy: Strategy, workload: Workload, cluster: Cluster) -> Strategy:
    """Fill in every derived field of a valid strategy.

    ``dp`` from the device count, ``micro_batch_size`` from the batch of a replica, ``num_servers`` (one per
    host in use if co-located, else one) and ``first_bucket_size`` (1 MiB, as PyTorch DDP, while
    ``bucket_size`` is at its default; else ``bucket_size``). ``collective: auto`` stays: the choice depends
    on message sizes. Resolving twice changes nothing.

    Raises
    ------
    InvalidStrategyError
        If a rule refuses the strategy.
    """
    context = Context.of(strategy, workload, cluster)
    _require_valid(context)
    update: dict[str, object] = {"dp": context.dp, "update": strategy.update_semantics}
    update |= _plain_rule(strategy, context)
    if strategy.micro_batch_size is None:
        update["micro_batch_size"] = context.replica_batch
    update |= _tables(strategy, context)
    if strategy.num_servers is None and context.uses_servers:
        update["num_servers"] = 1 if strategy.has_server_hosts else context.used_hosts
    if strategy.first_bucket_size is None:
        default = Strategy.model_fields["bucket_size"].default
        update["first_bucket_size"] = (
            FIRST_BUCKET_BYTES if strategy.bucket_size == default else strategy.bucket_size
        )
    return strategy.model_copy(update=update)


def _tables(strategy: Strategy, context: Context) -> dict[str, object]:
    """Servers of embedding tables, one per host; a model without such tables needs none, nor switches."""
    if strategy.sparse_embeddings == "never":
        return {}
    if context.workload_facts.has_sparse_tables:
        servers = strategy.num_servers or context.used_hosts
        return {"num_servers": servers} if strategy.serves_tables else {}
    aggregator = AGGREGATORS.get(strategy.in_network)
    off = OFF if aggregator is not None and aggregator.sparse else {}
    return {"sparse_embeddings": "never", "num_servers": None} | {
        name.removeprefix("strategy."): value for name, value in off.items()
    }


def _plain_rule(strategy: Strategy, context: Context) -> dict[str, object]:
    """A degenerate synchronisation rule as what it equals; the size of groups where it is left open."""
    rule, update = strategy.synchronization, dict[str, object]()
    if rule == "soft_sync" and strategy.gradients_per_update == 1:
        rule = "asp"
    elif (
        (rule == "ssp" and strategy.staleness == 0)
        or (rule == "backup" and strategy.backup_workers == 0)
        or (rule == "delayed" and strategy.delay == 0)
        or (rule == "soft_sync" and strategy.gradients_per_update == context.dp)
    ):
        rule = "bsp"
    if rule != strategy.synchronization:
        update["synchronization"] = rule
    if context.uses_groups:
        update["group_size"] = context.group_size
    return update
