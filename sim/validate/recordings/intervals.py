"""80 % intervals of predicted recordings.

What a model of messages and layer times leaves out differs by operation: copies of an all-gather, the order
in which an all-to-all's receivers are served, queues of one line. So each kind of row has its own spread: the
10th and 90th percentile of measured over predicted, minus 1, on recordings that no parameter was fitted to:
gloo of torch 2.13 between 2 and 4 network namespaces at 200 and 1000 Mbit/s. These spreads contain the error
of a ping and of a trace of the usual quality. On top come a ping that was worse, and the repeat noise of the
row itself; beyond 4 ranks they grow with the root of the number of doublings.

A spread taken on a few networks is too narrow for the next one. ``sim.validate.recordings.left_out`` leaves
out one group (ranks, rate, delay and model) at a time and looks at how many of its rows the spread of the
others holds: 72 % of collectives and 79 % of steps as the spreads are, 80 % and 82 % once they are widened as
below (ranks that shared cores or had no real-time priority aside).
"""

from __future__ import annotations

from math import hypot, log2, sqrt

from sim.errors import InputError
from sim.validate.recordings.rows import Row

SMALL = 256 * 1024  # bytes: collectives below are bound by latency
USUAL_LATENCY_SPREAD = 0.08
"""Relative half-width of the interval of a good ping; the spreads below contain it."""
COLLECTIVE_WIDENING, STEP_WIDENING = 1.5, 1.2
"""What makes the spread of all other groups hold 80 % of a left-out one's rows."""
_KNOWN_RANKS = 4
_Z80 = 1.2816  # of a normal distribution: 80 % lie within so many standard deviations
_MEDIAN = 1.2533  # standard error of a median over that of a mean
_MOST_NOISE = 0.3

_COLLECTIVES: dict[str, tuple[tuple[float, float], ...]] = {
    # small, large; the same with one queue for everything
    "all_gather": ((0.0, 0.225), (0.0, 0.11), (0.0, 1.9), (0.0, 0.47)),
    "all_reduce": ((-0.06, 0.015), (-0.002, 0.03), (-0.02, 0.07), (0.0, 0.29)),
    "all_to_all": ((0.0, 0.315), (0.0, 0.58), (0.0, 0.56), (0.0, 0.62)),
    "barrier": ((-0.05, 0.12), (-0.05, 0.12), (0.0, 0.23), (0.0, 0.23)),
    "broadcast": ((-0.1, 0.05), (-0.006, 0.01), (0.0, 0.49), (0.0, 0.45)),
    "reduce": ((-0.126, 0.015), (-0.02, 0.26), (-0.02, 0.08), (0.0, 0.26)),
    "reduce_scatter": ((-0.087, 0.12), (0.0, 0.055), (0.0, 0.235), (0.0, 0.55)),
    "send": ((-0.025, 0.025), (-0.005, 0.005), (-0.035, 0.046), (-0.002, 0.008)),
    "sendrecv_ring": ((-0.01, 0.055), (0.0, 0.058), (0.0, 0.24), (0.0, 0.5)),
}
_OTHER_COLLECTIVE = ((-0.08, 0.17), (-0.01, 0.11), (-0.01, 0.5), (0.0, 0.38))
"""All operations together."""

_STEPS = {
    "training": (-0.005, 0.024),
    "training, one queue": (-0.02, 0.2),  # none recorded: between those of its all-reduces
    "training, real compute": (-0.02, 0.045),
    "compression": (-0.03, 0.04),
    "local": (-0.01, 0.02),
    "server": (-0.035, 0.05),
    "pipeline": (-0.025, 0.015),
    "sharded": (-0.05, 0.05),
}


def interval(row: Row, value: float, ends: tuple[float, ...] = ()) -> tuple[float, float]:
    """Low and high end for a predicted value.

    Parameters
    ----------
    row : Row
    value : float
        Seconds or updates/s.
    ends : tuple of float
        Predictions with parameters at those ends of their intervals that the usual spread does not reach.
    """
    below, above = spread(row)
    far = sqrt(max(1.0, log2(max(_ranks(row), 1)) / log2(_KNOWN_RANKS)))
    noise = repeat_noise(row)
    low = hypot(below * far, noise, 1 - min(value, *ends, value) / value if value else 0.0)
    high = hypot(above * far, noise, max(value, *ends, value) / value - 1 if value else 0.0)
    return value * max(1 - low, 0.0), value * (1 + high)


def spread(row: Row) -> tuple[float, float]:
    """10th and 90th percentile of measured over predicted, minus 1, for rows of this kind, widened."""
    widening = COLLECTIVE_WIDENING if row.kind == "collective" else STEP_WIDENING
    below, above = _seen(row)
    return below * widening, above * widening


def _seen(row: Row) -> tuple[float, float]:
    if row.kind == "collective":
        own = _COLLECTIVES.get(row.text("op"), _OTHER_COLLECTIVE)
        return own[2 * row.queued + (row.number_of("bytes", 0.0) >= SMALL)]
    if row.kind != "training":
        return _STEPS[row.kind]
    if row.text("algo") == "local":
        return _STEPS["local"]
    if row.text("hook", "none") != "none":
        return _STEPS["compression"]
    if row.queued:
        return _STEPS["training, one queue"]
    return _STEPS["training, real compute" if row.text("mode") == "real" else "training"]


def repeat_noise(row: Row) -> float:
    """Half-width of the 80 % interval of a row's median, from the spread of its repeats; 0 if not given."""
    if row.text("algo") == "local":  # its steps differ because only some communicate
        return 0.0
    try:
        variation = row.number_of("cv", 0.0)
        repeats = row.number_of("reps" if row.kind == "collective" else "steps", 10.0)
    except InputError:
        return 0.0
    return min(_Z80 * _MEDIAN * max(variation, 0.0) / sqrt(max(repeats, 1.0)), _MOST_NOISE)


def _ranks(row: Row) -> float:
    """Ranks that take part."""
    column = {"server": "workers", "pipeline": "stages"}.get(row.kind, "world")
    return row.number_of(column, 2.0)
