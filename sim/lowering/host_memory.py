"""What strategies move off devices must fit the memory of hosts: states, parameters, activations (D13)."""

from __future__ import annotations

import numpy as np

from sim.lowering.plan import Plan
from sim.models.memory import activation_elements, in_flight_micro_batches, leaves, narrow_elements
from sim.spec.workload import OPTIMIZER_STATES

FP32 = 4.0


def host_footprint(plan: Plan) -> tuple[dict[str, float], float]:
    """Bytes by component on the host that holds most for its size, and that host's memory.

    fp32 parameters and optimiser states where processors update; gradients that wait for them; the copy that
    is computed with, where parameters live there too; activations of all micro-batches in flight. What goes
    on to disks needs no room but for what passes through, which is left out.

    Returns
    -------
    held : dict of str to float
        Empty where nothing leaves the devices.
    capacity : float
        Bytes.
    """
    strategy = plan.strategy
    if not (strategy.offload_optimizer or strategy.offload_activations):
        return {}, 0.0
    by_stage = [_of_rank(plan, stage) for stage in range(strategy.pp)]
    if not any(by_stage):
        return {}, 0.0
    ranks = np.arange(plan.layout.num_ranks)
    hosts, stages = plan.network.device_host[ranks], plan.layout.coordinates["pp"][ranks]
    fullest: tuple[float, dict[str, float], float] = (-1.0, {}, 0.0)
    for host in np.unique(hosts).tolist():
        counts = np.bincount(stages[hosts == host], minlength=strategy.pp)
        held: dict[str, float] = {}
        for count, each in zip(counts.tolist(), by_stage, strict=True):
            for name, size in each.items():
                held[name] = held.get(name, 0.0) + count * size
        capacity = plan.cluster.host_of(host).memory_bytes
        share = sum(held.values()) / capacity if capacity else np.inf
        if share > fullest[0]:
            fullest = share, held, capacity
    return fullest[1], fullest[2]


def _of_rank(plan: Plan, stage: int) -> dict[str, float]:
    """Bytes that a rank of a stage keeps in its host's memory."""
    strategy, held = plan.strategy, dict[str, float]()
    layers = [layer for virtual in plan.chunks_of(stage) for layer in plan.chunks[virtual]]
    elements = sum(
        plan.local_elements(layer, expert=expert)
        / (plan.shard_size(expert=expert) if strategy.sharding else 1)
        for expert in plan.parameter_kinds
        for layer in layers
    )
    if strategy.offload_optimizer and strategy.offload_target == "host":
        states = FP32 * (1 + OPTIMIZER_STATES[plan.workload.optimizer])
        held["optimizer"] = elements * states
        held["gradients"] = elements * plan.workload.gradient_bytes
        if strategy.offload_parameters:
            held["weights"] = elements * plan.element_bytes
    if strategy.offload_activations:
        away = [plan.workload.layers[index] for index in layers]
        away = [layer for layer in away if leaves(layer, strategy)]
        kept, _ = activation_elements(away, strategy)
        if strategy.recompute != "full":
            kept -= sum(narrow_elements(layer, strategy, plan.workload) for layer in away)
        samples = plan.micro_batch_size / strategy.token_slices
        flying = in_flight_micro_batches(strategy, stage, plan.micro_batches)
        held["activations"] = kept * flying * samples * plan.element_bytes
    return held
