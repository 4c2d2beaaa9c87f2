"""A short name for a strategy, for tables and plots."""

from __future__ import annotations

from sim.spec import Strategy
from sim.taxonomy.states import STATES

_PARAMETER = {
    "soft_sync": "gradients_per_update",
    "delayed": "delay",
    "partial_allreduce": "group_size",
    "group_hybrid": "group_size",
}


def describe(strategy: Strategy) -> str:
    """What distinguishes a strategy, e.g. ``all-reduce ring, 25 MiB, overlap`` or ``PS x4, ssp(3)``."""
    parts = [_locus(strategy), *_degrees(strategy), *_rule(strategy)]
    bucketed = strategy.synchronization != "local" and strategy.sharding < 3
    if bucketed and not strategy.has_servers:
        parts.append(f"{strategy.bucket_size / 2**20:g} MiB")
    if not strategy.overlap:
        parts.append("no overlap")
    if strategy.compression != "none":
        parts.append(f"{strategy.compression} gradients")
    if strategy.recompute != "none":
        parts.append(f"{strategy.recompute} recompute")
    return ", ".join(parts)


def _locus(strategy: Strategy) -> str:
    collective = "" if strategy.collective == "auto" else f" {strategy.collective.replace('_', '-')}"
    facts = STATES[strategy.state]
    if facts.servers:
        servers = strategy.num_servers or facts.server_hosts
        return f"{facts.label} x{int(servers)}" if servers else facts.label
    if facts.label:
        return facts.label + collective
    if strategy.has_peers:
        kind = "" if strategy.topology == "full_mesh" else f" {strategy.graph} graph"
        return f"{strategy.update_semantics.replace('_', '-')}{kind or ' full mesh'}"
    if strategy.synchronization == "local":
        name = "local SGD" if strategy.update_semantics == "model_average" else strategy.update_semantics
        return name.replace("_", "-") + collective
    return "all-reduce" + collective


def _degrees(strategy: Strategy) -> list[str]:
    degrees = [
        f"{axis}{getattr(strategy, axis)}" for axis in ("tp", "cp", "ep", "pp") if getattr(strategy, axis) > 1
    ]
    parts = [" ".join(degrees)] if degrees else []
    if strategy.sequence_parallel:
        parts.append("sp")
    if strategy.pp > 1:
        chunks = f" v{strategy.virtual_stages}" if strategy.virtual_stages > 1 else ""
        parts.append(strategy.schedule + chunks)
    if strategy.micro_batch_size:
        parts.append(f"micro-batch {strategy.micro_batch_size}")
    return parts


def _rule(strategy: Strategy) -> list[str]:
    rule = strategy.synchronization
    if rule == "ssp":
        return [f"ssp({strategy.staleness})"]
    if rule == "backup":
        return [f"backup({strategy.backup_workers})"]
    if rule == "local":
        return [f"tau {strategy.local_steps}"]
    if rule in _PARAMETER:
        return [f"{rule.replace('_', '-')}({getattr(strategy, _PARAMETER[rule])})"]
    return ["asp"] if rule == "asp" else (["bsp"] if strategy.has_servers else [])
