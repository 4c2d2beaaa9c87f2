"""How well the mean of a run's iterations is known, and whether the run has left its start behind."""

from __future__ import annotations

from math import sqrt

import numpy as np

from sim.graph.execution import FloatArray

_NORMAL_90 = 1.2815515655446004  # 90 % quantile of the normal distribution: two-sided 80 %
_T_90 = (3.0777, 1.8856, 1.6377, 1.5332, 1.4759, 1.4398)  # Student's t for 1 to 6 degrees of freedom
_T_95_OF_3 = 3.1824  # 97.5 % quantile of Student's t for 3 degrees of freedom
_BATCHES = 8
_SLICES = 16


def confidence_interval(cumulative: FloatArray, *, least: int = _BATCHES) -> tuple[int, float]:
    """Batch-means interval of the increments of ``cumulative`` after dropping their transient.

    Parameters
    ----------
    cumulative : float[K + 1]
        Mean end of iterations, starting with 0.
    least : int
        Fewest batches, 2 or more.

    Returns
    -------
    (int, float)
        First iteration of the averaging window; relative 80 % half-width of the mean iteration time (infinite
        if there are fewer than ``least`` increments).

    Notes
    -----
    A. M. Law, *Simulation Modeling and Analysis*, 5th ed. 2015, section 9.5.3 (batch means). The first
    iteration starts from an empty cluster and is always dropped where that leaves enough, and the first tenth
    at least. Where what is left has a trend, more is dropped; see :func:`truncation`.
    """
    played = len(cumulative) - 1
    first = max(1, played // 10) if played > least else 0
    if played - first >= _BATCHES and trend(cumulative, first) > 1.0:
        first = max(first, truncation(np.diff(cumulative)))
    kept = played - first
    if kept < least:
        return first, float("inf")
    # Long batches outlive the correlation between iterations; never fewer than 8 of them.
    batches = min(kept, max(_BATCHES, int(sqrt(kept))))
    length = kept // batches
    first = played - batches * length
    means = np.diff(cumulative[first::length]) / length
    mean = float(means.mean())
    if mean <= 0:
        return first, 0.0
    half = student_t_90(batches - 1) * float(means.std(ddof=1)) / sqrt(batches)
    return first, half / mean


def student_t_90(freedom: int) -> float:
    """90 % quantile of Student's t: tabulated up to 6 degrees of freedom, then the Cornish-Fisher expansion.

    Source: Abramowitz and Stegun, *Handbook of Mathematical Functions*, 26.7.5; error below 1e-4 here.
    """
    if freedom <= len(_T_90):
        return _T_90[freedom - 1]
    x = _NORMAL_90
    first = (x**3 + x) / 4
    second = (5 * x**5 + 16 * x**3 + 3 * x) / 96
    third = (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384
    return x + first / freedom + second / freedom**2 + third / freedom**3


def truncation(increments: FloatArray) -> int:
    """How many of the first increments are transient, by the marginal standard error rule (MSER).

    The number d that minimises the variance of the rest over its length, sum((x - mean)^2) / (n - d)^2; at
    most half of all.

    Source: K. P. White, "An effective truncation heuristic for bias reduction in simulation output",
    *Simulation* 69 (1997). Single increments and not batches of five (MSER-5), as runs are short.
    """
    count = len(increments)
    kept = count - np.arange(count // 2 + 1)
    total = np.cumsum(increments[::-1])[::-1][: len(kept)]
    squares = np.cumsum(increments[::-1] ** 2)[::-1][: len(kept)]
    return int(np.argmin((squares - total**2 / kept) / kept**2))


def trend(cumulative: FloatArray, first: int) -> float:
    """Difference of the halves of the increments from ``first`` on, over what chance explains (95 %).

    Each half is averaged in four batches; above 1 the halves differ by more than batches of a steady state
    do. As Geweke's diagnostic, with fewer and longer batches in place of spectral estimates.

    Source: J. Geweke, "Evaluating the accuracy of sampling-based approaches to the calculation of posterior
    moments", *Bayesian Statistics* 4 (1992).
    """
    length = (len(cumulative) - 1 - first) // _BATCHES
    if length < 1:
        return 0.0
    means = np.diff(cumulative[len(cumulative) - 1 - _BATCHES * length :: length]) / length
    half = _BATCHES // 2
    error = sqrt(2.0 * means[half:].var(ddof=1) / half)  # a transient would inflate that of the first half
    difference = abs(float(means[:half].mean() - means[half:].mean()))
    return difference / max(_T_95_OF_3 * error, 1e-9 * abs(float(means.mean())), 1e-300)


def has_settled(cumulative: FloatArray, first: int, tolerance: float) -> bool:
    """Whether the increments from ``first`` on have no trend, or one too small to matter.

    Parameters
    ----------
    cumulative : float[K + 1]
        Mean end of iterations, starting with 0.
    first : int
        First increment of the averaging window.
    tolerance : float
        Half of this share of the mean is too small a difference of the halves to matter.
    """
    middle = (first + len(cumulative) - 1) // 2
    if middle <= first:
        return True
    early = (cumulative[middle] - cumulative[first]) / (middle - first)
    late = (cumulative[-1] - cumulative[middle]) / (len(cumulative) - 1 - middle)
    small = abs(early - late) <= tolerance / 2 * (early + late) / 2
    return bool(small or trend(cumulative, first) <= 1.0)


def rate_interval(ends: FloatArray, begin: float, now: float) -> float:
    """Relative 80 % half-width of the rate at which workers finish iterations, in equal slices of time.

    Parameters
    ----------
    ends : float[K, w]
        Seconds at which each worker finished each iteration; NaN where it has not.
    begin, now : float
        Window in seconds. Workers that finished nothing in it are known to a whole iteration only.
    """
    inside = (ends > begin) & (ends <= now)
    counts, _ = np.histogram(ends[inside], bins=_SLICES, range=(begin, now))
    if not counts.sum():
        return float("inf")
    deviation = float(counts.std(ddof=1)) / float(counts.mean())
    behind = int((inside.sum(axis=0) < 2).sum())
    return student_t_90(_SLICES - 1) * deviation / sqrt(_SLICES) + behind / float(counts.sum())
