"""Lowering: a scenario becomes one ExecutionGraph."""

from sim.lowering.collective import lower_collective
from sim.lowering.footprint import memory_by_stage, memory_capacity, stage_footprints
from sim.lowering.lower import lower, lower_plan
from sim.lowering.plan import make_plan

__all__ = [
    "lower",
    "lower_collective",
    "lower_plan",
    "make_plan",
    "memory_by_stage",
    "memory_capacity",
    "stage_footprints",
]
