"""How sure a step time is: what the model leaves unexplained, by framework and by what a row leaves open.

The logarithm of measured over predicted time is taken as normal. Its variance is a framework's own
(``framework/<key>/spread_own``: how far its runs scatter that the fit had not seen; for a framework
without measurements, how far those of frameworks left out altogether do, on chips that others were
measured on), more for a source that the fit saw no row of (``spread_source``: how far those scatter
that were left out while their framework had others), more where communication and bubbles show
(``spread_communication`` times their share), and more for every column that the row leaves open
(``spread_assumed``). All that together is wider or narrower by a factor of the chip
(``device/<name>/spread_factor``; 1 for one without measurements). These
are parameters of the calibration, set so that 80 % of left-out rows lie inside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sim.spec import Calibration
from sim.validate.runs import Prediction

Z80 = 1.2816
"""Standard deviations on either side of the mean that hold 80 % of a normal distribution."""

TERMS = ("own", "communication", "assumed")
FALLBACK = {"own": 0.12, "communication": 0.1, "assumed": 0.03, "source": 0.0}


def shares(prediction: Prediction, assumed: Sequence[str], *, new: bool = False) -> dict[str, float]:
    """Factor of each term's deviation for one prediction; ``new``: of a source that the fit did not see."""
    step, parts = prediction.step_time_s or 1.0, prediction.parts
    waiting = parts.get("exposed_comm_s", 0.0) + parts.get("wait_s", 0.0) + parts.get("bubble_s", 0.0)
    known = {"own": 1.0, "communication": waiting / step, "assumed": math.sqrt(len(assumed))}
    return {**known, "source": float(new)}


def deviations(calibration: Calibration) -> dict[str, float]:
    """Deviation of each term; the calibration is that of one framework."""
    return {
        term: calibration.value("framework", "default", f"spread_{term}")
        if calibration.has("framework", "default", f"spread_{term}")
        else FALLBACK[term]
        for term in (*TERMS, "source")
    }


def deviation(factors: dict[str, float], sizes: dict[str, float]) -> float:
    """Standard deviation of the logarithm of a step time."""
    return math.sqrt(sum((size * factors[term]) ** 2 for term, size in sizes.items()))


FloatArray = npt.NDArray[np.float64]
ROUNDS = 200
START, SMALLEST = 0.05, 1e-3


def standard_deviations(factors: FloatArray, errors: FloatArray, weights: FloatArray) -> FloatArray:
    """Deviations of independent terms whose sum the errors are, by maximum likelihood; float[t].

    Expectation-maximisation: each term explains its share of an error, then is as wide as what it explains.

    Parameters
    ----------
    factors : float[n, t]
        What each term's deviation is multiplied with in each error.
    errors, weights : float[n]
    """
    squared = factors**2
    variances = np.full(squared.shape[1], START**2)
    for _ in range(ROUNDS):
        share = squared * variances / np.maximum(squared @ variances, 1e-30)[:, None]
        own = share * (share * (errors**2)[:, None] / np.maximum(squared, 1e-12)) + variances * (1 - share)
        variances = np.maximum((weights[:, None] * own).sum(axis=0) / weights.sum(), SMALLEST**2)
    return np.asarray(np.sqrt(variances))


def chip_factor(calibration: Calibration, device: str) -> float:
    """How much wider than elsewhere the errors of a chip are."""
    known = calibration.has("device", device, "spread_factor")
    return calibration.value("device", device, "spread_factor") if known else 1.0


def interval(
    prediction: Prediction,
    assumed: Sequence[str],
    calibration: Calibration,
    device: str = "default",
    *,
    source: str = "",
) -> tuple[float, float] | None:
    """Ends of the 80 % interval of a step time, in seconds.

    Parameters
    ----------
    prediction : Prediction
    assumed : sequence of str
        Columns that the row leaves open.
    calibration : Calibration
        With the framework's own parameters as default, see
        :func:`sim.validate.runs_loader.framework_calibration`.
    device : str
        Catalogue name of the device.
    source : str
        Short name of the source that the row comes from.
    """
    if not prediction.ok or prediction.step_time_s is None:
        return None
    new = source not in calibration.fitted_sources
    width = Z80 * deviation(shares(prediction, assumed, new=new), deviations(calibration))
    width *= chip_factor(calibration, device)
    return prediction.step_time_s * math.exp(-width), prediction.step_time_s * math.exp(width)
