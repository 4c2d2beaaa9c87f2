"""What is left between a measured curve and the model, carried over to sizes and ranks next to it.

Real curves have steps that no smooth model has: a library changes its protocol, a transport its rendezvous.
A system's own residuals (logarithms of measured over modelled time) are therefore interpolated as a Gaussian
process (kriging; C. E. Rasmussen, C. K. I. Williams, *Gaussian Processes for Machine Learning*, 2006, chapter
2) over the logarithms of size and ranks. Its kernel is exponential, whose paths may have kinks: between two
measured points it interpolates nearly linearly, far from all of them it returns to the model. The variance it
predicts grows with that distance, and so do the intervals of predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

_OCTAVES_OF_SIZE = 6.0
_OCTAVES_OF_RANKS = 6.0
_FEW = 6  # of so many points one may be odd
_OUTLYING = 3.0  # standard deviations of a leave-one-out error
_OTHER_OPERATION = 0.4  # correlation of residuals of two operations at one size


@dataclass(frozen=True, eq=False)
class Points:
    """Where residuals are known or wanted: operation, ranks, hosts and bytes of each point."""

    operation: npt.NDArray[np.str_]
    ranks: FloatArray
    hosts: FloatArray
    size: FloatArray

    @classmethod
    def of(cls, points: Sequence[tuple[str, float, float, float]]) -> Points:
        """From (operation, ranks, hosts, size) of each point."""
        operation, ranks, hosts, size = zip(*points, strict=True) if points else ((), (), (), ())
        return cls(
            np.array(operation, str),
            np.array(ranks, np.float64),
            np.array(hosts, np.float64),
            np.array(size, np.float64),
        )

    def correlation(self, other: Points) -> FloatArray:
        """Prior correlation of the residuals of each point with each of ``other``'s, float[m, k]."""
        size = np.abs(np.log2(np.maximum(self.size, 1.0))[:, None] - np.log2(np.maximum(other.size, 1.0)))
        ranks = np.abs(np.log2(self.ranks)[:, None] - np.log2(other.ranks))
        alike = np.where(self.operation[:, None] == other.operation, 1.0, _OTHER_OPERATION)
        reach = (self.hosts[:, None] > 1) == (other.hosts > 1)  # in a host and between hosts: other parts
        result: FloatArray = alike * reach * np.exp(-size / _OCTAVES_OF_SIZE - ranks / _OCTAVES_OF_RANKS)
        return result


def interpolate(
    known: Points,
    residual: FloatArray,
    target: Points,
    *,
    deviation: float,
    noise: float,
    scatter: FloatArray | float = 0.0,
) -> tuple[FloatArray, FloatArray]:
    """Residual at other points, and the standard deviation of a measurement there.

    Parameters
    ----------
    known : Points
    residual : float[k]
        log(measured / modelled) at ``known``.
    target : Points
    deviation : float
        Standard deviation of residuals where nothing is known.
    noise : float
        Standard deviation of the logarithm of repeated measurements.
    scatter : float[k]
        Standard error of each known residual, where that is more than ``noise``.

    Returns
    -------
    mean, deviation : float[m]
    """
    far = np.full(len(target.size), np.hypot(deviation, noise))
    if not len(residual) or deviation <= 0.0:
        return np.zeros(len(target.size)), far
    own = (np.maximum(noise, scatter) / deviation) ** 2 + np.full(len(residual), 1e-6)
    within = known.correlation(known) + np.diag(own)
    across = target.correlation(known)
    weights = np.linalg.solve(within, across.T).T
    mean: FloatArray = weights @ residual
    left = np.maximum(1.0 - (weights * across).sum(axis=1), 0.0)
    return mean, np.sqrt(deviation**2 * left + noise**2)


def outlying(known: Points, residual: FloatArray, *, deviation: float, noise: FloatArray) -> FloatArray:
    """Scatter of points that do not fit to their neighbours: their distance from what those say; else 0.

    A hiccup of one measurement must not bend the curve around it. Leave-one-out errors follow from the
    inverse of the covariance (Rasmussen, Williams, section 5.4.2).
    """
    if len(residual) < _FEW or deviation <= 0.0:
        return np.zeros(len(residual))
    covariance = known.correlation(known) * deviation**2 + np.diag(noise**2 + 1e-6 * deviation**2)
    odd = np.zeros(len(residual))
    for _ in range(len(residual) // _FEW):  # the oddest first: its neighbours only look odd beside it
        inverse = np.linalg.inv(covariance + np.diag(odd**2))
        error, expected = (inverse @ residual) / np.diag(inverse), 1 / np.sqrt(np.diag(inverse))
        ratio = np.where(odd > 0, 0.0, np.abs(error) / expected)
        worst = int(ratio.argmax())
        if ratio[worst] <= _OUTLYING:
            break
        odd[worst] = abs(error[worst])
    return odd
