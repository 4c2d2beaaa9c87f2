"""Residuals of measured curves carry over to their neighbours, and no further."""

from __future__ import annotations

import numpy as np
import pytest

from sim.models.residual import Points, interpolate, outlying

SIZES = 2.0 ** np.arange(10, 30, 2)
KNOWN = Points.of([("all_reduce", 16, 2, size) for size in SIZES])
RESIDUAL = np.where(SIZES < 1 << 19, 0.0, 0.4)  # a protocol changes


def at(operation: str, ranks: float, hosts: float, size: float) -> tuple[float, float]:
    target = Points.of([(operation, ranks, hosts, size)])
    mean, deviation = interpolate(KNOWN, RESIDUAL, target, deviation=0.3, noise=0.02)
    return float(mean[0]), float(deviation[0])


def test_known_points_come_back() -> None:
    mean, deviation = interpolate(KNOWN, RESIDUAL, KNOWN, deviation=0.3, noise=0.01)
    np.testing.assert_allclose(mean, RESIDUAL, atol=0.01)
    assert (deviation < 0.03).all()


def test_between_two_points_lies_between_their_residuals() -> None:
    low, high = at("all_reduce", 16, 2, 1 << 18)[0], at("all_reduce", 16, 2, 1 << 20)[0]
    assert low < at("all_reduce", 16, 2, 1 << 19)[0] < high
    assert at("all_reduce", 16, 2, 1 << 25)[0] == pytest.approx(0.4, abs=0.02)


def test_doubt_grows_with_the_distance() -> None:
    """Other sizes, other ranks, other operations, another part of the machine."""
    near = at("all_reduce", 16, 2, 1 << 21)[1]
    farther = at("all_reduce", 64, 8, 1 << 21)[1]
    other = at("all_gather", 64, 8, 1 << 21)[1]
    inside = at("all_reduce", 8, 1, 1 << 21)
    assert near < farther < other < inside[1]
    assert inside == (0.0, pytest.approx(np.hypot(0.3, 0.02)))


def test_nothing_known_changes_nothing() -> None:
    mean, deviation = interpolate(Points.of([]), np.zeros(0), KNOWN, deviation=0.3, noise=0.02)
    assert (mean == 0).all()
    np.testing.assert_allclose(deviation, np.hypot(0.3, 0.02))


def test_a_hiccup_is_told_from_a_step() -> None:
    """One point apart from its neighbours counts little; a step is kept."""
    noise = np.full(len(SIZES), 0.02)
    spike = RESIDUAL.copy()
    spike[3] += 1.5
    found = outlying(KNOWN, spike, deviation=0.5, noise=noise)
    assert found[3] > 1.0
    assert (np.delete(found, 3) < 0.5).all()
    assert (outlying(KNOWN, np.zeros(len(SIZES)), deviation=0.5, noise=noise) == 0).all()
