"""What a row leaves open is chosen so that its job fits: somebody ran it.

Sharding and recomputation that a row does not state are first the framework's default. Where the model of
memory says that this is more than the device has, the next in :func:`_ways` that fits is taken; if none does,
the default stays and the prediction says how much memory it takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sim.errors import ClusterloomError
from sim.lowering.plan import memory_by_stage
from sim.validate.boards import board_key

if TYPE_CHECKING:
    from sim.spec import Calibration
    from sim.validate.runs_loader import Run

TOLERANCE = 1.1
"""Memory over the device's that the model is allowed to be wrong by; the worst run of the calibration split
that no other memory helped takes 1.06."""
SPILLING = ("GB", "GH", "MI300A")
"""Boards on which activations may go to the processor's memory at the speed of NVLink, as NVIDIA's recipes
for them do: what is too much for the device need not be computed again."""
OPEN = ("shard", "recompute", "mbs")
"""Columns that are chosen here where they are open."""


def made_to_fit(run: Run, calibration: Calibration) -> Run:
    """The run with what it leaves open changed until it fits into memory, as little as possible."""
    spills = (board_key(run.row.text("gpu")) or "").startswith(SPILLING)
    if spills or not set(OPEN) & set(run.assumed) or _fits(run, calibration):
        return run
    return next((other for other in _ways(run) if _fits(other, calibration)), run)


def _fits(run: Run, calibration: Calibration) -> bool:
    try:
        needed = max(sum(stage.values()) for stage in memory_by_stage(run.scenario(calibration)))
    except ClusterloomError:
        return True  # refused for another reason, which the prediction names
    return needed <= TOLERANCE * run.cluster.main_device.capacity


def _ways(run: Run) -> Iterator[Run]:
    """Other choices, cheapest first: optimiser states sharded, recomputation, parameters sharded, both."""
    strategy, free = run.strategy, set(run.assumed)
    states, replicas = [strategy.state], (strategy.dp or 1) * strategy.cp
    if "shard" in free and replicas > 1:
        states += [state for state in ("zero1", "zero3") if state > strategy.state or not strategy.sharding]
    policies = [strategy.recompute] + ["full"] * ("recompute" in free and strategy.recompute != "full")
    ways: list[dict[str, Any]] = [
        {"state": state, "recompute": policy}
        for group in (states[:2], states[2:])
        for policy in policies
        for state in group
    ]
    for way in ways[1:]:
        yield _changed(run, way)
    size = strategy.micro_batch_size or 1
    if "mbs" in free and size > 1:
        for way in ways:
            yield _changed(run, {**way, "micro_batch_size": 1})


def _changed(run: Run, fields: dict[str, Any]) -> Run:
    """The run with another strategy; a smaller micro-batch is accumulated more often."""
    if fields["state"] != run.strategy.state:  # what only the other placement knows
        fields = {"shard_reduction": "reduce_scatter", **fields}
    strategy = run.strategy.model_copy(update=fields)
    size = (run.strategy.micro_batch_size or 1) // (strategy.micro_batch_size or 1)
    return replace(run, strategy=strategy, micro_batches=run.micro_batches * size)
