"""How much of a group of recordings the spread of all other groups holds."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot

import numpy as np

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
                ends = _ends(others)
                inside += [_holds(ends, widening, row, ratio) for row, ratio in mine]
    return float(np.mean(inside)) if inside else float("nan")


def chosen_widening(ratios: Sequence[Ratio], level: float = 0.8, *, step: float = 0.05) -> float:
    """Smallest factor on the spread of other groups that holds a part ``level`` of the rows left out.

    Returns
    -------
    float
        From 1 to 3, in steps; 3 where nothing holds so much.
    """
    factors = [1 + step * i for i in range(round(2 / step) + 1)]
    return next((f for f in factors if left_out_coverage(ratios, f) >= level), factors[-1])


def nested_coverage(ratios: Sequence[Ratio], level: float = 0.8) -> float:
    """Part of the rows inside intervals of which neither spread nor widening has seen their group.

    The factor for a group is chosen on all others, as :func:`chosen_widening` does.
    """
    groups = dict.fromkeys(_group(row) for row, _ in ratios)
    held, counted = 0.0, 0
    for group in groups:
        others = [item for item in ratios if _group(item[0]) != group]
        factor = chosen_widening(others, level)
        for row, ratio in ratios:
            mine = [x for other, x in others if _class(other) == _class(row)]
            if _group(row) == group and mine:
                held += _holds(_ends(mine), factor, row, ratio)
                counted += 1
    return held / counted if counted else float("nan")


def _ends(ratios: Sequence[float]) -> tuple[float, float]:
    low, high = np.quantile(ratios, (0.1, 0.9)).tolist()
    return low, high


def _holds(ends: tuple[float, float], widening: float, row: Row, ratio: float) -> bool:
    low, high = (widening * end for end in ends)
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
