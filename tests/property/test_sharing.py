"""Max-min sharing: feasible, fair, scale-free, for random flow sets."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.fabric.sharing import fifo_rates, max_min

Array = npt.NDArray[np.float64]


def problem(seed: int, rows: int, links: int, *, capped: bool) -> tuple[Array, ...]:
    """Random capacities, ragged rows and coefficients; some ties in capacity, some caps."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0 if capped else 1, 5, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    capacity = rng.choice([1.0, 2.0, 5.0, rng.uniform(0.1, 10)], links)
    coefficient = rng.choice([0.125, 1.0, 1.0, 3.0], offsets[-1])
    cap = (
        np.where(rng.random(rows) < 0.3, rng.uniform(0.01, 2, rows), np.inf)
        if capped
        else np.full(rows, np.inf)
    )
    cap[lengths == 0] = 1.0
    return capacity, offsets, rng.integers(0, links, offsets[-1]), coefficient, cap


def load(capacity: Array, offsets: Array, link: Array, coefficient: Array, rates: Array) -> Array:
    return np.bincount(link, coefficient * np.repeat(rates, np.diff(offsets)), len(capacity))


problems = st.builds(
    problem, st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 12), capped=st.booleans()
)


@settings(max_examples=80, deadline=None)
@given(problems, st.booleans(), st.integers(0, 10**6))
def test_feasible_and_every_flow_has_a_bottleneck(
    parts: tuple[Array, ...], weighted: bool, seed: int
) -> None:
    capacity, offsets, link, coefficient, cap = parts
    weight = np.random.default_rng(seed).uniform(0.5, 2, len(cap)) if weighted else None
    rates = max_min(*parts, weight)
    used = load(capacity, offsets, link, coefficient, rates)
    assert (used <= capacity * (1 + 1e-9)).all()
    assert (rates <= cap * (1 + 1e-12)).all()
    level = rates if weight is None else rates / weight
    rows = np.repeat(np.arange(len(rates)), np.diff(offsets))
    for row in range(len(rates)):
        if rates[row] >= cap[row] * (1 - 1e-9):
            continue
        own = link[offsets[row] : offsets[row + 1]]
        full = [i for i in own if used[i] >= capacity[i] * (1 - 1e-9)]
        # The definition: on some full link nobody has a higher level.
        assert any(level[rows[link == i]].max() <= level[row] * (1 + 1e-9) for i in full)


@settings(max_examples=40, deadline=None)
@given(problems, st.floats(1e-6, 1e12))
def test_scaling_capacities_and_caps_scales_rates(parts: tuple[Array, ...], factor: float) -> None:
    capacity, offsets, link, coefficient, cap = parts
    scaled = max_min(capacity * factor, offsets, link, coefficient, cap * factor)
    np.testing.assert_allclose(scaled, max_min(*parts) * factor, rtol=1e-9)


@settings(max_examples=40, deadline=None)
@given(problems, st.integers(2, 5))
def test_equal_flows_merge_into_one_row_with_their_number_as_coefficient(
    parts: tuple[Array, ...], q: int
) -> None:
    """Folding: q copies of every flow are one row whose coefficients are q times as large."""
    capacity, offsets, link, coefficient, cap = parts
    lengths = np.tile(np.diff(offsets), q)
    copies = np.concatenate([[0], np.cumsum(lengths)])
    unfolded = max_min(capacity, copies, np.tile(link, q), np.tile(coefficient, q), np.tile(cap, q))
    folded = max_min(capacity, offsets, link, coefficient * q, cap)
    np.testing.assert_allclose(unfolded, np.tile(folded, q), rtol=1e-9)


@settings(max_examples=40, deadline=None)
@given(problems)
def test_unused_links_do_not_matter(parts: tuple[Array, ...]) -> None:
    capacity, offsets, link, coefficient, cap = parts
    many = np.concatenate([capacity, np.full(1000, 7.0)])
    np.testing.assert_allclose(max_min(many, offsets, link, coefficient, cap), max_min(*parts), rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(problems)
def test_fifo_is_feasible_and_serves_in_order(parts: tuple[Array, ...]) -> None:
    capacity, offsets, link, coefficient, cap = parts
    rates = fifo_rates(*parts)
    assert (load(capacity, offsets, link, coefficient, rates) <= capacity * (1 + 1e-9)).all()
    for row in range(len(rates)):  # each row gets exactly what rows before it leave
        before = load(capacity, offsets, link, coefficient, np.where(np.arange(len(rates)) < row, rates, 0))
        own = slice(offsets[row], offsets[row + 1])
        need = np.bincount(link[own], coefficient[own], len(capacity))
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.where(need > 0, (capacity - before) / need, np.inf).min(initial=np.inf)
        assert rates[row] == pytest.approx(min(cap[row], max(room, 0)), rel=1e-6, abs=1e-9)
