"""How long each combination of activities lasts: the one primitive below breakdown, overlap and busy time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def occupancy(
    group: IntArray, level: IntArray, start: FloatArray, end: FloatArray, num_groups: int, num_levels: int
) -> FloatArray:
    """Seconds that each set of levels is active together, per group.

    Parameters
    ----------
    group, level : ndarray of int, shape (n,)
        The group (a device, a step) and the level (an activity, below ``num_levels``) of each interval.
    start, end : ndarray of float, shape (n,)
        Intervals in seconds; empty ones are ignored. They may overlap in any way.
    num_groups, num_levels : int
        Sizes of the result.

    Returns
    -------
    ndarray of float, shape (num_groups, 2 ** num_levels)
        Column ``mask`` holds the seconds in which exactly the levels of the set bits are active (at least
        one interval each). Column 0 is zero: idle time is the caller's span minus the sum.
    """
    masks = 1 << num_levels
    keep = end > start
    group, level, start, end = group[keep], level[keep], start[keep], end[keep]
    if not len(start):
        return np.zeros((num_groups, masks))
    time = np.concatenate([start, end])
    groups = np.concatenate([group, group])
    order = np.lexsort((time, groups))
    time, groups = time[order], groups[order]
    mask = np.zeros(len(time), np.int64)
    for bit in range(num_levels):
        change = (level == bit).astype(np.int64)
        active = np.cumsum(np.concatenate([change, -change])[order]) > 0
        mask |= active.astype(np.int64) << bit
    same = groups[1:] == groups[:-1]
    duration = np.where(same, time[1:] - time[:-1], 0.0)
    flat = np.bincount(groups[:-1] * masks + mask[:-1], weights=duration, minlength=num_groups * masks)
    result = flat.reshape(num_groups, masks)
    result[:, 0] = 0.0
    return np.asarray(result, np.float64)


def by_precedence(table: FloatArray, num_levels: int) -> FloatArray:
    """Give each instant to the lowest active level.

    Parameters
    ----------
    table : ndarray, shape (groups, 2 ** num_levels)
        Result of :func:`occupancy`.

    Returns
    -------
    ndarray, shape (groups, num_levels)
        Seconds per level; level 0 has the highest precedence.
    """
    masks = np.arange(1 << num_levels)
    result = np.zeros((len(table), num_levels))
    for bit in range(num_levels):
        first = (masks & ((1 << (bit + 1)) - 1)) == 1 << bit
        result[:, bit] = table[:, first].sum(axis=1)
    return result


def clip_to_segments(start: FloatArray, end: FloatArray, edges: FloatArray) -> tuple[IntArray, IntArray]:
    """Pairs (interval, segment) that overlap, for sorted segment ``edges``.

    Parameters
    ----------
    start, end : ndarray, shape (n,)
        Intervals in seconds.
    edges : ndarray, shape (s + 1,)
        Segment ``j`` is ``edges[j] .. edges[j + 1]``.

    Returns
    -------
    tuple of ndarray of int
        Interval index and segment index of each overlapping pair.
    """
    segments = len(edges) - 1
    first = np.clip(np.searchsorted(edges, start, "right") - 1, 0, segments)
    last = np.clip(np.searchsorted(edges, end, "left"), 0, segments)
    count = np.where(end > start, np.maximum(last - first, 0), 0)
    interval = np.repeat(np.arange(len(start)), count)
    offset = np.arange(len(interval)) - np.repeat(np.cumsum(count) - count, count)
    return interval.astype(np.int64), (first[interval] + offset).astype(np.int64)
