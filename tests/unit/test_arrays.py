"""Grouping of arrays against numpy's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from sim.lowering.arrays import by_first_appearance, dense, distinct, first_places

arrays = st_numpy.arrays(np.int64, st.integers(0, 40), elements=st.integers(-1, 12))


@given(arrays)
def test_distinct_and_dense_are_those_of_unique(values: np.ndarray) -> None:
    expected, inverse = np.unique(values, return_inverse=True)
    assert distinct(values).tolist() == expected.tolist()
    assert dense(values).tolist() == inverse.tolist()


@given(arrays)
def test_classes_are_numbered_as_they_appear(values: np.ndarray) -> None:
    seen: dict[int, int] = {-1: -1}
    for value in values.tolist():
        seen.setdefault(value, len(seen) - 1)
    assert by_first_appearance(values).tolist() == [seen[value] for value in values.tolist()]


def test_first_places() -> None:
    assert first_places(np.array([2, -1, 0, 2, 0]), 4).tolist() == [2, 5, 0, 5]


@pytest.mark.parametrize("function", [distinct, dense, by_first_appearance])
def test_nothing_stays_nothing(function: object) -> None:
    assert len(function(np.zeros(0, np.int64))) == 0
