"""80 % intervals of predicted recordings.

What a model of messages and layer times leaves out differs by operation: copies of an all-gather, the order
in which an all-to-all's receivers are served, queues of one line. So each kind of row has its own spread: the
10th and 90th percentile of measured over predicted, minus 1, over recordings of gloo of torch 2.13 on two
machines: 2 to 8 network namespaces, 200 and 1000 Mbit/s, cables of 0.1 and 1 ms. These spreads contain the
error of a ping and of a trace of the usual quality. On top come a ping that was worse, and the repeat noise
of the row itself; beyond 8 ranks they grow with the root of the number of doublings.

A spread taken on a few networks is too narrow for the next one. ``sim.validate.recordings.left_out`` leaves
out one group (ranks, rate, delay and model) at a time and widens the spread of the others until it holds 80 %
of the rows left out: by 1.3 for collectives (9 groups) and 1.25 for steps (27 groups). With
spread and widening both chosen without the group that is judged, 82 % and 80 % of the rows are inside (ranks
that shared cores or had no real-time priority aside). Of 17 recordings that had no part in this (other ranks,
rates and delays; ``measurements/recordings/more``) 83 % of the collectives and 85 % of the steps are inside.
"""

from __future__ import annotations

from math import hypot, log2, sqrt

from sim.errors import InputError
from sim.validate.recordings.rows import Row

SMALL = 256 * 1024  # bytes: collectives below are bound by latency
USUAL_LATENCY_SPREAD = 0.08
"""Relative half-width of the interval of a good ping; the spreads below contain it."""
COLLECTIVE_WIDENING, STEP_WIDENING = 1.3, 1.25
"""What makes the spread of all other groups hold 80 % of a left-out one's rows."""
_KNOWN_RANKS = 8
_Z80 = 1.2816  # of a normal distribution: 80 % lie within so many standard deviations
_MEDIAN = 1.2533  # standard error of a median over that of a mean
_MOST_NOISE = 0.3

_COLLECTIVES: dict[str, tuple[tuple[float, float], ...]] = {
    # small, large; the same with one queue for everything
    "all_gather": ((0.0, 0.225), (0.0, 0.107), (0.0, 1.88), (0.0, 0.31)),
    "all_reduce": ((-0.06, 0.02), (-0.002, 0.03), (-0.04, 0.07), (-0.04, 0.03)),
    "all_to_all": ((0.0, 0.31), (0.0, 0.61), (0.0, 0.56), (0.0, 0.67)),
    "barrier": ((-0.05, 0.1), (-0.05, 0.1), (0.0, 0.21), (0.0, 0.21)),
    "broadcast": ((-0.12, 0.065), (-0.015, 0.01), (0.0, 0.49), (0.0, 0.45)),
    "reduce": ((-0.126, 0.017), (-0.01, 0.255), (-0.046, 0.077), (-0.06, 0.31)),
    "reduce_scatter": ((-0.08, 0.13), (0.0, 0.054), (0.0, 0.235), (-0.007, 0.2)),
    "send": ((-0.02, 0.02), (-0.005, 0.005), (-0.036, 0.046), (-0.002, 0.008)),
    "sendrecv_ring": ((-0.01, 0.068), (0.0, 0.053), (0.0, 0.24), (0.0, 0.55)),
}
_OTHER_COLLECTIVE = ((-0.074, 0.19), (0.0, 0.08), (-0.02, 0.54), (0.0, 0.45))
"""All operations together."""

_STEPS = {
    "training": (-0.005, 0.021),
    "training, one queue": (-0.011, 0.031),
    "training, real compute": (-0.015, 0.028),
    "compression": (0.0, 0.136),
    "local": (-0.005, 0.017),
    "server": (-0.093, 0.044),
    "pipeline": (-0.044, 0.045),
    "sharded": (-0.043, 0.05),
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
