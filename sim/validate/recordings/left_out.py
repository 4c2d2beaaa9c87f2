"""How much of a group of recordings the spread of all other groups holds."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot

import numpy as np

from sim.graph.execution import FloatArray
from sim.validate.recordings.intervals import SMALL, repeat_noise
from sim.validate.recordings.rows import Row

Ratio = tuple[Row, float]
"""A row, and measured over predicted, minus 1."""


def left_out_coverage(ratios: Sequence[Ratio], widening: float) -> float:
    """Part of the rows that lie inside the spread of the groups that they do not belong to.

    Parameters
    ----------
    ratios : sequence of (Row, float)
        Rows of any kind with measured over predicted, minus 1. Rows of one class (operation, size, queue, or
        kind of step) are compared; a group is what shares ranks, rate, delay and model.
    widening : float
        Factor on the spread: the 10th and 90th percentile, and at least to 0.

    Returns
    -------
    float
        Fraction; NaN where no class has two groups.
    """
    classes: dict[tuple[str, ...], dict[tuple[str, ...], list[Ratio]]] = {}
    for row, ratio in ratios:
        classes.setdefault(_class(row), {}).setdefault(_group(row), []).append((row, ratio))
    inside: list[bool] = []
    for groups in classes.values():
        for left_out, mine in groups.items():
            others = [ratio for group, rows in groups.items() if group != left_out for _, ratio in rows]
            if others:
                inside += [_holds(np.asarray(others), widening, row, ratio) for row, ratio in mine]
    return float(np.mean(inside)) if inside else float("nan")


def _holds(others: FloatArray, widening: float, row: Row, ratio: float) -> bool:
    low, high = (widening * float(np.quantile(others, part)) for part in (0.1, 0.9))
    noise = repeat_noise(row)
    return -hypot(min(low, 0.0), noise) <= ratio <= hypot(max(high, 0.0), noise)


def _class(row: Row) -> tuple[str, ...]:
    if row.kind == "collective":
        size = "small" if row.number_of("bytes", 0.0) < SMALL else "large"
        return (row.kind, row.text("op"), size, str(row.queued))
    hook = "" if row.text("hook", "none") == "none" else "compression"
    return (row.kind, "local" if row.text("algo") == "local" else "", hook, row.text("mode"))


def _group(row: Row) -> tuple[str, ...]:
    ranks = row.text("world") or row.text("workers") or row.text("stages")
    return (ranks, row.text("rate_mbit"), row.text("delay_us"), row.text("model"))
