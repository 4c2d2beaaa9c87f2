"""The rules, one file per group of dimensions. A rule is one decorated pure function."""

from __future__ import annotations

from sim.taxonomy.rule import Rule
from sim.taxonomy.ruleset import (
    batch,
    collective,
    compression,
    data,
    degrees,
    network,
    owned,
    pipeline,
    schedule,
    size,
    state,
    synchronization,
    transfers,
    updates,
)

ALL_RULES: tuple[Rule, ...] = (
    *synchronization.RULES,
    *state.RULES,
    *updates.RULES,
    *owned.RULES,
    *collective.RULES,
    *compression.RULES,
    *network.RULES,
    *transfers.RULES,
    *degrees.RULES,
    *pipeline.RULES,
    *schedule.RULES,
    *batch.RULES,
    *size.RULES,
    *data.RULES,
)
"""In the order in which they speak: what contradicts itself first, then what the model, the cluster and the
batch do not allow."""
