"""Synchronisation rules of parameter servers: what a server waits for, and what a worker waits for.

One row per rule; :mod:`sim.lowering.state.parameter_server` says what the columns do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sim.spec.strategy import Strategy


def _all(workers: int, strategy: Strategy) -> int:
    return workers


@dataclass(frozen=True)
class ServerRule:
    """One synchronisation rule.

    Parameters
    ----------
    updates : {"collected", "batched", "own"}
        An update takes the gradients of ``required`` workers of this step; the next ``gradients_per_update``
        ones, whoever's; or one.
    required : callable
        (workers, strategy) -> gradients that a collected update waits for.
    drops : bool
        Gradients that come later are dropped, and their workers skip to the newest step.
    bounded : bool
        A worker waits while it is more than ``staleness`` clocks ahead of the slowest.
    """

    updates: Literal["collected", "batched", "own"]
    required: Callable[[int, Strategy], int] = _all
    drops: bool = False
    bounded: bool = False


SERVER_RULES: dict[str, ServerRule] = {
    "bsp": ServerRule("collected"),
    "delayed": ServerRule("collected"),
    "local": ServerRule("collected"),
    "backup": ServerRule(
        "collected", required=lambda workers, strategy: workers - strategy.backup_workers, drops=True
    ),
    "soft_sync": ServerRule("batched"),
    "ssp": ServerRule("own", bounded=True),
    "asp": ServerRule("own"),
    "group_hybrid": ServerRule("own"),  # of a group, whose members are in step
}
