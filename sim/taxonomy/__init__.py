"""The design space of distributed training: dimensions, validity rules, presets, enumeration."""

from __future__ import annotations

from sim.taxonomy.dimensions import DIMENSIONS, Dimension, dimension
from sim.taxonomy.enumerate import Enumeration, enumerate
from sim.taxonomy.presets import ARCHETYPES, archetype
from sim.taxonomy.rule import Refusal, Rule
from sim.taxonomy.rules import (
    check,
    gradient_grid,
    num_micro_batches,
    replica_batch,
    require_valid,
    resolve,
    warnings,
)
from sim.taxonomy.ruleset import ALL_RULES

__all__ = [
    "ALL_RULES",
    "ARCHETYPES",
    "DIMENSIONS",
    "Dimension",
    "Enumeration",
    "Refusal",
    "Rule",
    "archetype",
    "check",
    "dimension",
    "enumerate",
    "gradient_grid",
    "num_micro_batches",
    "replica_batch",
    "require_valid",
    "resolve",
    "warnings",
]
