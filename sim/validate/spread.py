"""How sure a step time is: what the model leaves unexplained, by where the time goes.

The logarithm of measured over predicted time is taken as normal. Its standard deviation adds in squares: a
part common to all runs, the share of computation, of exposed communication and bubbles, and of the optimiser
and fixed overhead times one deviation each, and one more for every column that the row leaves open. The
deviations are parameters of the calibration (``framework/default/spread_*``), fitted on calibration
residuals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sim.spec import Calibration
from sim.validate.runs import Prediction

Z80 = 1.2816
"""Standard deviations on either side of the mean that hold 80 % of a normal distribution."""

TERMS = ("common", "compute", "communication", "overhead", "assumed")
FALLBACK = 0.08


def shares(prediction: Prediction, assumed: Sequence[str]) -> dict[str, float]:
    """Factor of each term's deviation for one prediction."""
    step = prediction.step_time_s or 1.0
    parts = prediction.parts
    waiting = parts.get("exposed_comm_s", 0.0) + parts.get("wait_s", 0.0) + parts.get("bubble_s", 0.0)
    rest = parts.get("optimizer_s", 0.0) + parts.get("data_s", 0.0)
    return {
        "common": 1.0,
        "compute": parts.get("compute_s", 0.0) / step,
        "communication": waiting / step,
        "overhead": rest / step,
        "assumed": math.sqrt(len(assumed)),
    }


def deviations(calibration: Calibration) -> dict[str, float]:
    """Deviation of each term."""
    return {
        term: calibration.value("framework", "default", f"spread_{term}")
        if calibration.has("framework", "default", f"spread_{term}")
        else FALLBACK
        for term in TERMS
    }


def interval(
    prediction: Prediction, assumed: Sequence[str], calibration: Calibration
) -> tuple[float, float] | None:
    """Ends of the 80 % interval of a step time, in seconds."""
    if not prediction.ok or prediction.step_time_s is None:
        return None
    sizes = deviations(calibration)
    factors = shares(prediction, assumed)
    width = Z80 * math.sqrt(sum((sizes[term] * factors[term]) ** 2 for term in TERMS))
    return prediction.step_time_s * math.exp(-width), prediction.step_time_s * math.exp(width)
