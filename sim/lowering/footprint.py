"""Memory of every pipeline stage of a scenario, before anything is emitted."""

from __future__ import annotations

from sim.lowering.arrays import distinct
from sim.lowering.plan import Plan, make_plan
from sim.models.memory import stage_memory
from sim.spec import Scenario


def memory_by_stage(scenario: Scenario) -> list[dict[str, float]]:
    """Peak bytes per device by component, one entry per pipeline stage.

    Raises
    ------
    InvalidStrategyError
        If a taxonomy rule refuses the strategy.
    """
    return stage_footprints(make_plan(scenario))


def memory_capacity(plan: Plan) -> float:
    """Memory in bytes of the smallest device that carries a rank."""
    kinds = distinct(plan.network.device_type[: plan.layout.num_ranks])
    return min(plan.cluster.device_types[int(kind)].memory_bytes for kind in kinds)


def stage_footprints(plan: Plan) -> list[dict[str, float]]:
    """The same for a plan."""
    stages = plan.strategy.pp
    return [
        stage_memory(
            [plan.workload.layers[i] for chunk in plan.chunks[stage::stages] for i in chunk],
            strategy=plan.strategy,
            workload=plan.workload,
            micro_batch=plan.micro_batch_size,
            dp=plan.layout.degrees["dp"],
            calibration=plan.calibration,
            num_micro_batches=plan.micro_batches,
            stage=stage,
            first=stage == 0,
            last=stage == stages - 1,
        )
        for stage in range(stages)
    ]
