"""Robust non-linear least squares with a normal prior: Levenberg-Marquardt in NumPy.

K. Levenberg, Quart. Appl. Math. 2 (1944) 164; D. Marquardt, SIAM J. Appl. Math. 11 (1963) 431. Outliers are
tamed by the soft-L1 loss, through reweighting (B. Triggs et al., Bundle adjustment, 2000, section 4.3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

STEP = 1e-4  # of a parameter, for forward differences
_ENOUGH = 1e-5  # relative decrease of the cost that ends the search


@dataclass(frozen=True, eq=False)
class Fit:
    """Maximum a posteriori estimate.

    Attributes
    ----------
    x : float[p]
        Estimate.
    deviation : float[p]
        Posterior standard deviation of each parameter.
    cost : float
        Value of the loss.
    """

    x: FloatArray
    deviation: FloatArray
    cost: float


def least_squares(
    residual: Callable[[FloatArray], FloatArray],
    start: FloatArray,
    mean: FloatArray,
    covariance: FloatArray,
    upper: FloatArray,
    *,
    jacobian: Callable[[FloatArray, FloatArray], FloatArray] | None = None,
    max_iterations: int = 80,
) -> Fit:
    """Minimise soft-L1 of ``residual(x)`` plus half the squared distance from the prior.

    Parameters
    ----------
    residual : callable
        float[k, p] -> float[k, m], a row per set of parameters, in units of the standard deviation.
    start, mean : float[p]
        Starting point; mean of the prior.
    covariance : float[p] or float[p, p]
        Standard deviations of the prior, or its covariance where parameters are alike.
    upper : float[p]
        Upper bounds (projected).
    jacobian : callable, optional
        (x, residuals there) -> derivatives float[m, p]; by differences if absent.
    max_iterations : int
        Number of accepted or rejected steps.
    """
    square = covariance if covariance.ndim == 2 else np.diag(covariance**2)
    precision = np.asarray(np.linalg.inv(square), float)
    x = np.minimum(start, upper)
    values = residual(x[None])[0]
    cost = _cost(values, x - mean, precision)
    damping = 1e-2
    slopes_at = jacobian or (lambda at, found: _jacobian(residual, at, found))
    slopes = slopes_at(x, values)
    for _ in range(max_iterations):
        weight = 1 / np.sqrt(1 + values**2)
        normal = (slopes.T * weight) @ slopes + precision
        gradient = slopes.T @ (weight * values) + precision @ (x - mean)
        free = (x < upper - 1e-9) | (gradient > 0)  # the others would only be pushed against their bound
        inner = normal[np.ix_(free, free)]
        step = np.zeros(len(x))
        step[free] = np.linalg.solve(inner + damping * np.diag(np.diag(inner)), -gradient[free])
        trial = np.minimum(x + np.clip(step, -1.5, 1.5), upper)
        found = residual(trial[None])[0]
        reached = _cost(found, trial - mean, precision)
        if not reached < cost:
            damping *= 4
            if damping > 1e6:
                break
            continue
        small = cost - reached < _ENOUGH * cost
        x, values, cost, damping = trial, found, reached, max(damping / 5, 1e-7)
        if small:
            break
        slopes = slopes_at(x, values)
    weight = 1 / np.sqrt(1 + values**2)
    normal = (slopes.T * weight) @ slopes + precision
    return Fit(x, np.sqrt(np.diag(np.linalg.inv(normal))), cost)


def _cost(values: FloatArray, off: FloatArray, precision: FloatArray) -> float:
    return float(np.sum(2 * (np.sqrt(1 + values**2) - 1)) + off @ precision @ off)


def _jacobian(residual: Callable[[FloatArray], FloatArray], x: FloatArray, values: FloatArray) -> FloatArray:
    """Derivatives by differences downwards, so that a bound is never crossed; float[m, p]."""
    moved = np.tile(x, (len(x), 1)) - STEP * np.eye(len(x))
    derivatives: FloatArray = (values - residual(moved)).T / STEP
    return derivatives
