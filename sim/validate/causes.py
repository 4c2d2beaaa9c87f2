"""Where the residuals come from: computation, communication, bubbles, fixed costs, framework, repetition.

The logarithm of predicted over measured time is split in steps. Runs of one configuration that were measured
several times differ among themselves whatever the model says: that part cannot be predicted. The mean of each
framework is what its parameters miss for it. What is left is taken as a sum of independent errors, one for
each part of the predicted step, in proportion to the part's share of it; their sizes are estimated by maximum
likelihood (:func:`sim.validate.spread.standard_deviations`). Sources count alike.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.validate.board import Scored
from sim.validate.runs import identity
from sim.validate.spread import standard_deviations

FloatArray = npt.NDArray[np.float64]

PARTS: dict[str, tuple[str, ...]] = {
    "computation": ("compute_s",),
    "communication": ("exposed_comm_s", "wait_s"),
    "bubbles": ("bubble_s",),
    "optimizer and fixed costs": ("optimizer_s", "data_s"),
}


@dataclass(frozen=True)
class Cause:
    """One cause.

    Attributes
    ----------
    name : str
    share : float or None
        Mean share of the predicted step; None where the cause is no part of it.
    deviation : float or None
        Relative error of that part (standard deviation); None as above.
    percent : float
        Percent of the mean squared residual.
    """

    name: str
    share: float | None
    deviation: float | None
    percent: float


def causes(scored: Sequence[Scored]) -> list[Cause]:
    """The mean squared residual of scored runs by cause; the percentages add up to 100."""
    items = [item for item in scored if item.error is not None]
    if len(items) < 2:
        return []
    counts = Counter(item.run.row.group for item in items)
    weights = np.array([1.0 / counts[item.run.row.group] for item in items])
    errors = np.array([math.log1p(item.error or 0.0) for item in items])
    total = float((weights * errors**2).sum())
    if total == 0.0:
        return []
    repeated = errors - _means(errors, weights, [identity(item.run) for item in items])
    level = errors - repeated
    framework = _means(level, weights, [item.run.framework for item in items])
    shares = np.array([_shares(item) for item in items])
    rest = level - framework
    sizes = standard_deviations(shares, rest, weights)
    explained = (weights[:, None] * (shares * sizes) ** 2).sum(axis=0)
    left = float((weights * rest**2).sum())
    explained *= left / explained.sum()
    found = [
        Cause(
            name, float((weights * shares[:, i]).sum() / weights.sum()), float(sizes[i]), 100 * part / total
        )
        for i, (name, part) in enumerate(zip(PARTS, explained.tolist(), strict=True))
    ]
    between = float((weights * framework**2).sum())
    again = float((weights * repeated**2).sum())
    return [
        *found,
        Cause("framework (mean of its runs)", None, None, 100 * between / total),
        Cause("repetition of a configuration", None, None, 100 * again / total),
    ]


def _means(values: FloatArray, weights: FloatArray, keys: Sequence[Hashable]) -> FloatArray:
    """Weighted mean of the values with the same key, at every value."""
    members: dict[Hashable, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        members[key].append(index)
    result = np.zeros(len(values))
    for indices in members.values():
        result[indices] = np.average(values[indices], weights=weights[indices])
    return result


def _shares(item: Scored) -> list[float]:
    step = item.prediction.step_time_s or 1.0
    return [sum(item.prediction.parts.get(name, 0.0) for name in names) / step for names in PARTS.values()]
