"""Hand-computed sharing examples."""

from __future__ import annotations

import numpy as np

from sim.fabric.sharing import fifo_rates, max_min

INF = np.inf


def test_textbook_chain_of_two_links() -> None:
    """One flow on each link alone and one over both: the long flow gets half the narrow link."""
    parts = np.array([3.0, 1.0]), np.array([0, 1, 2, 4]), np.array([0, 1, 0, 1]), np.ones(4)
    np.testing.assert_allclose(max_min(*parts, np.full(3, INF)), [2.5, 0.5, 0.5])


def test_a_collective_of_many_flows_gets_as_many_shares() -> None:
    """A row with coefficient 3 is three flows: rates of elementary flows are equal, not link shares."""
    rates = max_min(
        np.array([8.0]), np.array([0, 1, 2]), np.array([0, 0]), np.array([3.0, 1.0]), np.full(2, INF)
    )
    np.testing.assert_allclose(rates, [2.0, 2.0])


def test_caps_leave_room_for_others() -> None:
    rates = max_min(np.array([9.0]), np.arange(4), np.zeros(3, int), np.ones(3), np.array([1.0, INF, INF]))
    np.testing.assert_allclose(rates, [1.0, 4.0, 4.0])


def test_weights_divide_a_link_in_proportion() -> None:
    rates = max_min(
        np.array([6.0]), np.arange(3), np.zeros(2, int), np.ones(2), np.full(2, INF), np.array([1.0, 2.0])
    )
    np.testing.assert_allclose(rates, [2.0, 4.0])


def test_rows_without_links_run_at_their_cap() -> None:
    rates = max_min(np.array([1.0]), np.array([0, 0, 1]), np.array([0]), np.ones(1), np.array([5.0, INF]))
    np.testing.assert_allclose(rates, [5.0, 1.0])


def test_fifo_is_work_conserving() -> None:
    """The first flow is limited elsewhere to 1; the second takes the rest of its link; the third waits."""
    capacity, link = np.array([1.0, 5.0]), np.array([0, 1, 1, 1])
    rates = fifo_rates(capacity, np.array([0, 2, 3, 4]), link, np.ones(4), np.full(3, INF))
    np.testing.assert_allclose(rates, [1.0, 4.0, 0.0])
