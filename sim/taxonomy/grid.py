"""Which sub-grid of a torus a group of ranks fills."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


def sub_grid(place: IntArray, extents: Sequence[int]) -> tuple[int, ...] | None:
    """Extents of the sub-grid that every group fills, in the order of its ranks; ``None`` if some does not.

    Dimensions along which a group has one place are left out; several ranks at each place are a first
    dimension.

    Parameters
    ----------
    place : int[g, n]
        Place of each rank of each group, dimension 0 fastest.
    extents : sequence of int
        Extents of the torus.
    """
    size = place.shape[1]
    strides = [math.prod(extents[:d]) for d in range(len(extents))]
    digits = [place // stride % extent for stride, extent in zip(strides, extents, strict=True)]
    found = [len(np.unique(digit[0])) for digit in digits]
    if size % math.prod(found):
        return None
    per_place = size // math.prod(found)
    stride = per_place
    for digit, extent in zip(digits, found, strict=True):
        values = np.sort(digit, axis=1)[:, :: size // extent]
        expected = np.arange(size) // stride % extent
        if not np.array_equal(digit, values[:, expected]):
            return None
        stride *= extent
    return tuple(extent for extent in (per_place, *found) if extent > 1) or None
