"""Fields that only one rule of synchronisation, update or topology gives a meaning (dimensions D3 to D5)."""

from __future__ import annotations

from collections.abc import Callable

from sim.spec.strategy import Strategy
from sim.taxonomy.context import Context
from sim.taxonomy.rule import Finding, Overrides, RuleSet

RULES = RuleSet()


def _owned(
    field: str, owners: str, where: str, reason: str, owns: Callable[[Context], bool], *ways: Overrides
) -> None:
    """Refuse a field that is not at its default while ``owns`` is false."""
    default = Strategy.model_fields[field].default

    def find(c: Context) -> Finding | None:
        value = getattr(c.strategy, field)
        if value == default or owns(c):
            return None
        back: Overrides = {f"strategy.{field}": default}
        plain = str(default).lower() if isinstance(default, bool) else default
        said = "be absent" if default is None else f"be {plain}"
        got = str(value).lower() if isinstance(value, bool) else value
        return Finding(f"strategy.{field}", f"{said} unless {where}", got, (back, *ways))

    find.__doc__ = f"``{field}`` unless {where}."
    RULES.refuse(f"{field.replace('_', '-')}-owner", f"{field} {owners}", reason)(find)


def _sync(*values: str) -> Callable[[Context], bool]:
    return lambda c: c.strategy.synchronization in values


def _local(c: Context) -> bool:
    return c.strategy.synchronization == "local" and not c.uses_servers


_owned(
    "synchronous_steps", "synchronization state", "synchronization is local on replicated state",
    "only post-local SGD has steps that are synchronised and steps that are not", _local,
)  # fmt: skip
_owned(
    "gradients_per_update", "synchronization", "synchronization is soft_sync",
    "only soft synchronisation counts the gradients of an update", _sync("soft_sync"),
    {"strategy.synchronization": "soft_sync"},
)  # fmt: skip
_owned(
    "delay", "synchronization", "synchronization is delayed",
    "only delayed updates are late by a fixed number of steps", _sync("delayed"),
    {"strategy.synchronization": "delayed"},
)  # fmt: skip
_owned(
    "reads", "synchronization state", "synchronization is ssp on parameter servers",
    "only there a pull may come before the clock allows the step",
    lambda c: c.strategy.synchronization == "ssp" and c.uses_servers,
)  # fmt: skip
_owned(
    "group_size", "synchronization topology",
    "synchronization is partial_allreduce or group_hybrid, or topology is tree",
    "nothing else forms groups of replicas", lambda c: c.uses_groups,
)  # fmt: skip
_owned(
    "graph", "topology", "topology is graph", "only a graph has peers to choose",
    lambda c: c.strategy.topology == "graph", {"strategy.topology": "graph"},
)  # fmt: skip
_owned(
    "graph_degree", "topology", "topology is graph", "only a graph has peers to choose",
    lambda c: c.strategy.topology == "graph", {"strategy.topology": "graph"},
)  # fmt: skip
_owned(
    "push_probability", "topology graph synchronization",
    "replicas of a random graph exchange without waiting (asp, group_hybrid)",
    "who waits for a peer cannot leave it to chance whether the peer sends",
    lambda c: (
        c.strategy.topology == "graph"
        and c.strategy.graph == "random"
        and c.strategy.synchronization in ("asp", "group_hybrid")
    ),
)  # fmt: skip
_owned(
    "fragments", "synchronization state topology",
    "synchronization is local on replicated state, or topology is full_mesh",
    "only there parts of the model are exchanged in turn",
    lambda c: _local(c) or c.strategy.topology == "full_mesh",
)  # fmt: skip
_owned(
    "exchange_overlap", "synchronization state", "synchronization is local on replicated state",
    "only there an exchange may end steps after it began", _local,
)  # fmt: skip
_owned(
    "exchange_bits", "update synchronization topology", "models are exchanged (D4)",
    "gradients are narrowed by compression", lambda c: c.strategy.update_semantics != "gradient_sum",
)  # fmt: skip
_owned(
    "delay_compensation", "state synchronization update",
    "servers update with late gradients (asp or ssp, update gradient_sum)",
    "only a late gradient belongs to an older model", lambda c: (
        c.uses_servers
        and c.strategy.synchronization in ("asp", "ssp")
        and c.strategy.update_semantics == "gradient_sum"
    ),
)  # fmt: skip
_owned(
    "graph_draws", "graph synchronization", "topology is graph and graph random",
    "only a random graph is drawn",
    lambda c: c.strategy.topology == "graph" and c.strategy.graph == "random",
)  # fmt: skip
_owned(
    "tree_levels", "topology", "topology is tree", "only a tree has levels of aggregators",
    lambda c: c.strategy.topology == "tree",
)  # fmt: skip
_owned(
    "moving_rate", "update", "update is elastic_average", "only there models move towards a centre",
    lambda c: c.strategy.update_semantics == "elastic_average", {"strategy.update": "elastic_average"},
)  # fmt: skip
for _field, _whom in (("participation", "whoever it has drawn"), ("availability", "whoever is there")):
    _owned(
        _field, "synchronization state topology tp pp cp",
        "synchronization is local on servers without aggregators, and a replica is one rank",
        f"only a server can begin a round with {_whom}",
        lambda c: (
            c.strategy.synchronization == "local"
            and c.uses_servers
            and c.strategy.topology != "tree"
            and c.model_parallel == 1
        ),
    )  # fmt: skip
_owned(
    "offload_target", "offload_optimizer", "offload_optimizer is true", "nothing else is offloaded to disks",
    lambda c: c.strategy.offload_optimizer, {"strategy.offload_optimizer": True},
)  # fmt: skip
_owned(
    "offload_parameters", "state offload_optimizer", "state is zero3 and offload_optimizer is true",
    "only ZeRO-3 gathers parameters when it needs them, and what updates them is where they are",
    lambda c: c.strategy.sharding == 3 and c.strategy.offload_optimizer,
    {"strategy.state": "zero3", "strategy.offload_optimizer": True},
)  # fmt: skip
_owned(
    "offload_blocks", "offload_activations", "offload_activations is true", "no other activations move",
    lambda c: c.strategy.offload_activations, {"strategy.offload_activations": True},
)  # fmt: skip
_owned(
    "overlap_tensor", "tp sequence_parallel", "sequence_parallel is true",
    "an all-reduce has no part that a product could begin with, as gathers and scatters have",
    lambda c: c.strategy.sequence_parallel, {"strategy.sequence_parallel": True},
)  # fmt: skip
_owned(
    "shard_reduction", "state", "state is zero1", "only ZeRO-1 has whole gradients to sum for everybody",
    lambda c: c.strategy.sharding == 1, {"strategy.state": "zero1"},
)  # fmt: skip
_owned(
    "gather_bits", "state", "state is zero3", "only ZeRO-3 gathers parameters layer by layer",
    lambda c: c.strategy.state == "zero3", {"strategy.state": "zero3"},
)  # fmt: skip
_owned(
    "backward_shard_ranks", "state ep reshard_after_forward",
    "state is zero3, parameters are resharded after forward, and experts are not spread",
    "only then parameters are gathered for the backward again",
    lambda c: (
        c.strategy.state == "zero3" and c.strategy.reshard_after_forward and not c.strategy.folds_experts
    ),
)  # fmt: skip
