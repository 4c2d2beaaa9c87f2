"""Lowering: a scenario becomes one ExecutionGraph."""

from sim.lowering.footprint import memory_by_stage
from sim.lowering.lower import lower

__all__ = ["lower", "memory_by_stage"]
