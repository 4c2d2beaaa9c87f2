"""Groups of ranks that exchange activations: families of tensor, expert, context and pipeline parallelism."""

from __future__ import annotations

import numpy as np

from sim.lowering import offload
from sim.lowering.context import context_lowering
from sim.lowering.halo import Halo
from sim.lowering.plan import Plan
from sim.models.collectives import plan as collective_plan


def request_families(plan: Plan) -> None:
    """Families of tensor, expert and pipeline parallelism."""
    strategy, layout = plan.strategy, plan.layout
    if strategy.tp > 1:
        groups = layout.groups("tp")
        operations = ("all_gather", "reduce_scatter") if strategy.sequence_parallel else ("all_reduce",)
        if strategy.scatter_gather and strategy.pp > 1 and not strategy.sequence_parallel:
            operations = (*operations, "all_gather")
        for operation in operations:
            plan.request_by_size(f"tp_{operation}", groups, operation)
    if plan.held:
        for operation in ("all_gather", "reduce_scatter"):
            plan.request_by_size(f"held_{operation}", plan.gradient_groups(), operation)
        plan.request_collective("held_all_to_all", plan.gradient_groups(), "all_to_all", "direct")
    context = context_lowering(strategy)
    if context is not None:
        context.request_families(plan)
    if strategy.is_spatial:
        Halo.request_families(plan)
    if strategy.folds_experts:
        request_experts(plan)
    if strategy.offload_optimizer or strategy.offload_activations:
        offload.request_families(plan)
    if strategy.pp > 1:
        ring = layout.groups("pp")
        wrap = plan.schedule.placement == "loop" and strategy.virtual_stages > 1
        ahead = np.concatenate(
            [ring[:, [s, (s + 1) % strategy.pp]] for s in range(strategy.pp - (0 if wrap else 1))]
        )
        phases = collective_plan("send", "direct", 2)
        sent = ("send", "direct")
        plan.request("pp_forward", ahead, phases, asymmetric=True, collective=sent)
        plan.request("pp_backward", ahead[:, ::-1], phases, asymmetric=True, collective=sent)
        if plan.tied_elements:
            plan.request_collective("embedding", ring[:, [0, -1]], "all_reduce", "ring")


def request_experts(plan: Plan) -> None:
    """Families of expert parallelism, and of tensor parallelism inside experts where that is another."""
    ep, tensor = plan.strategy.ep, plan.strategy.expert_tensor_degree
    plan.request_collective("ep", plan.layout.expert_groups(ep, tensor), "all_to_all", "direct")
    if tensor != plan.strategy.tp:
        groups = plan.layout.expert_tensor_groups(ep, tensor)
        for operation in ("all_gather", "reduce_scatter"):
            plan.request_by_size(f"expert_tp_{operation}", groups, operation)
