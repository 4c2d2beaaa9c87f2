"""The catalogue of synchronisation rules (dimension D3): what validity rules and the table know of each.

What a rule makes tasks wait for is in ``sim.lowering.state``, under the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Pace = Literal["synchronous", "bounded", "asynchronous"]


@dataclass(frozen=True)
class SynchronizationFacts:
    """One synchronisation rule.

    Parameters
    ----------
    description : str
        For the table of dimensions: when a worker may start its next step.
    pace : {"synchronous", "bounded", "asynchronous"}
        How far replicas may drift apart (Langer et al. 2020).
    label : str
        Its name in the table, with the number it takes; its plain name if empty.
    fields : tuple of str
        Strategy fields that take its numbers.
    barrier_free : bool
        Whether workers have no common step.
    drops : bool
        Whether late gradients are dropped, which only a server can do.
    lowering, server_lowering : str
        ``module:class`` of replicas, of servers, where the rule needs tasks that the state's does not emit.
    """

    description: str
    pace: Pace
    label: str = ""
    fields: tuple[str, ...] = ()
    barrier_free: bool = False
    drops: bool = False
    lowering: str = ""
    server_lowering: str = ""


SYNCHRONIZATIONS: Mapping[str, SynchronizationFacts] = {
    "bsp": SynchronizationFacts("after everybody's update", "synchronous"),
    "ssp": SynchronizationFacts(
        "while it is at most s clocks ahead of the slowest", "bounded", "ssp(s)", ("staleness", "reads"),
        barrier_free=True,
    ),
    "asp": SynchronizationFacts("at once", "asynchronous", barrier_free=True),
    "backup": SynchronizationFacts(
        "after all but the b latest gradients; late ones are dropped", "synchronous", "backup(b)",
        ("backup_workers",), drops=True,
    ),
    "local": SynchronizationFacts(
        "at once, except after every tau-th step", "bounded", "local(tau)",
        ("local_steps", "synchronous_steps"), lowering="sim.lowering.state.periodic:LocalSgdState",
    ),
    "soft_sync": SynchronizationFacts(
        "when the update that the next c gradients make, its own among them, is done", "bounded",
        "soft_sync(c)", ("gradients_per_update",), barrier_free=True,
    ),
    "delayed": SynchronizationFacts(
        "at once; the update of a step applies the gradients of d steps before", "bounded", "delayed(d)",
        ("delay",),
    ),
    "partial_allreduce": SynchronizationFacts(
        "when k replicas, whoever comes first, have all-reduced", "asynchronous", "partial_allreduce(k)",
        ("group_size",), barrier_free=True, lowering="sim.lowering.state.partial:PartialAllReduceState",
    ),
    "group_hybrid": SynchronizationFacts(
        "in step with its group, at its own pace beside other groups", "asynchronous", "group_hybrid(g)",
        ("group_size",), barrier_free=True,
        server_lowering="sim.lowering.state.server_tree:ServerTreeState",
    ),
}  # fmt: skip

BARRIER_FREE = frozenset(name for name, facts in SYNCHRONIZATIONS.items() if facts.barrier_free)
"""Synchronisation rules under which workers have no common step."""
