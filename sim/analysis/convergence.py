"""Time and cost to a target, where a user says how many epochs it takes (taxonomy D16)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from sim.spec.convergence import Convergence


def interpolate(points: Mapping[float, float], at: float, *, shift: float = 0.0) -> float | None:
    """Piecewise linear over log(x + shift), both at the points and at ``at``; None beyond the points."""
    known = sorted(points.items())
    if not known or at < known[0][0] * (1 - 1e-9) or at > known[-1][0] * (1 + 1e-9):
        return None
    for (low, a), (high, b) in pairwise(known):
        if at <= high:
            width = math.log(high + shift) - math.log(low + shift)
            share = (math.log(max(at, low) + shift) - math.log(low + shift)) / width
            return a + (b - a) * share
    return known[-1][1]


def epochs_to_target(
    curve: Convergence, *, batch: float, staleness: float, local_steps: float, compression: str
) -> tuple[float | None, str]:
    """Epochs, or None and what the curve does not cover.

    Parameters
    ----------
    curve : Convergence
    batch : float
        Samples whose gradients are applied together.
    staleness : float
        Mean staleness in updates.
    local_steps : float
        Steps between two exchanges.
    compression : str
        Name of the compressor.
    """
    epochs = interpolate(curve.epochs, batch)
    if epochs is None:
        low, high = min(curve.epochs), max(curve.epochs)
        return None, f"an effective batch of {batch:g}; epochs are given from {low:g} to {high:g}"
    factors = (("staleness", 0.0, staleness, 1.0), ("local_steps", 1.0, local_steps, 0.0))
    for name, neutral, at, shift in factors:
        given: dict[float, float] = getattr(curve, name)
        if not given or at == neutral:
            continue
        factor = interpolate({neutral: 1.0, **given}, at, shift=shift)
        if factor is None:
            return None, f"{name.replace('_', ' ')} of {at:g}; factors are given up to {max(given):g}"
        epochs *= factor
    if compression != "none" and curve.compression:
        if compression not in curve.compression:
            return None, f"compression {compression}; factors are given for {', '.join(curve.compression)}"
        epochs *= curve.compression[compression]
    return epochs, ""


def time_to_target(
    curve: Convergence,
    updates: Mapping[str, Any],
    *,
    samples_per_s: float | None,
    price_per_sample: float | None,
    compression: str,
) -> tuple[dict[str, Any], str]:
    """Epochs, seconds and dollars to the target; empty, with the reason, where the curve does not reach.

    Parameters
    ----------
    curve : Convergence
    updates : mapping
        See :func:`sim.analysis.update_statistics.update_statistics`.
    samples_per_s, price_per_sample : float, optional
        Of the simulated job.
    compression : str
        Name of the compressor.
    """
    batch = updates.get("effective_batch_size")
    if batch is None or not samples_per_s:
        return {}, "the job does not say how many samples an update has"
    if curve.staleness and updates.get("staleness_mean") is None:
        return {}, "how stale updates are, which this job does not say"
    epochs, missing = epochs_to_target(
        curve,
        batch=float(batch),
        staleness=float(updates.get("staleness_mean") or 0.0),
        local_steps=float(updates.get("local_steps") or 1),
        compression=compression,
    )
    if epochs is None:
        return {}, f"the convergence curve does not cover {missing}"
    samples = epochs * curve.samples_per_epoch
    return {
        "target": curve.target,
        "epochs_to_target": epochs,
        "time_to_target_s": samples / samples_per_s,
        "cost_to_target": None if price_per_sample is None else samples * price_per_sample,
    }, ""
