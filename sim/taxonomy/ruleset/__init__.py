"""The rules, one file per group of dimensions. A rule is one decorated pure function."""

from __future__ import annotations

from sim.taxonomy.rule import Rule
from sim.taxonomy.ruleset import batch, collective, degrees, pipeline, state, synchronization

ALL_RULES: tuple[Rule, ...] = (
    *degrees.RULES,
    *pipeline.RULES,
    *batch.RULES,
    *state.RULES,
    *synchronization.RULES,
    *collective.RULES,
)
