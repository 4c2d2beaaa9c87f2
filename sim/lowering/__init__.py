"""Lowering: a scenario becomes one ExecutionGraph."""

from sim.lowering.collective import collective_loads, lower_collective
from sim.lowering.lower import lower, lower_plan
from sim.lowering.plan import make_plan, memory_by_stage

__all__ = [
    "collective_loads",
    "lower",
    "lower_collective",
    "lower_plan",
    "make_plan",
    "memory_by_stage",
]
