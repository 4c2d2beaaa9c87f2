"""Who gets how much of a link: max-min fair sharing and first-come-first-served.

The unknown is the rate ``x`` of *one elementary flow* of a transfer. A transfer loads link ``l`` with
``coefficient * x``, where the coefficient counts its elementary flows there times their relative bytes, so a
collective of many flows is one row. Fairness equalises ``x`` over the flows that meet on a link (``x /
weight`` if weights are given), never the progress of transfers.

Reference: D. Bertsekas, R. Gallager, *Data Networks*, 2nd ed. 1992, section 6.5.2 (max-min flow control).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

# Levels closer than this are one level: symmetric links differ by rounding only.
_TIE = 1e-12


def max_min(
    capacity: FloatArray,
    offsets: IntArray,
    link: IntArray,
    coefficient: FloatArray,
    cap: FloatArray,
    weight: FloatArray | None = None,
) -> FloatArray:
    """Max-min fair rates of elementary flows by progressive filling.

    In each round every *local* bottleneck is settled at once: a link whose fair level is the lowest seen by
    all of its flows, or a flow whose cap lies below the levels of all of its links. Levels of links only
    rise as other flows are settled, so this is exact, and the number of rounds is the depth of the
    bottleneck order rather than the number of bottlenecks.

    Parameters
    ----------
    capacity : float[L]
        Link capacities, bytes/s.
    offsets, link, coefficient : int[n + 1], int[nnz], float[nnz]
        Row ``i`` loads ``link[offsets[i]:offsets[i + 1]]``, each with its coefficient (> 0) per unit rate. A
        link may occur several times in a row; coefficients then add.
    cap : float[n]
        Upper bound of each rate, bytes/s; ``inf`` for none.
    weight : float[n], optional
        Relative entitlement (> 0); all 1 if absent.

    Returns
    -------
    float[n]
        Rate of one elementary flow per row, bytes/s; ``inf`` for a row without links and without a cap.
    """
    rates = np.array(cap, dtype=np.float64)
    lengths = np.diff(offsets)
    rows = np.flatnonzero(lengths)
    if len(rows) == 0:
        return rates
    residual, link = _compact(np.asarray(capacity, np.float64), link)
    scale = np.ones(len(rates)) if weight is None else np.asarray(weight, np.float64)
    limit, lengths = cap[rows] / scale[rows], lengths[rows]
    load = coefficient if weight is None else coefficient * np.repeat(scale[rows], lengths)
    num_links = len(residual)
    with np.errstate(divide="ignore", invalid="ignore"):
        while len(rows):
            starts = np.cumsum(lengths) - lengths
            level = residual / np.bincount(link, load, num_links)  # links without flows are never looked at
            seen = level[link]
            lowest = np.minimum(np.minimum.reduceat(seen, starts), limit)
            reached = np.repeat(lowest, lengths)
            contested = np.zeros(num_links, np.bool_)
            contested[link[reached < seen * (1 - _TIE)]] = True
            settled = np.logical_or.reduceat(~contested[link], starts) | (lowest >= limit * (1 - _TIE))
            rates[rows[settled]] = lowest[settled] * scale[rows[settled]]
            if settled.all():
                break
            entry = np.repeat(settled, lengths)
            residual -= np.bincount(link[entry], (load * reached)[entry], num_links)
            np.maximum(residual, 0.0, out=residual)
            rows, limit, lengths = rows[~settled], limit[~settled], lengths[~settled]
            link, load = link[~entry], load[~entry]
    return rates


def _compact(capacity: FloatArray, link: IntArray) -> tuple[FloatArray, IntArray]:
    """Restrict to the links in use when they are few, so that a round costs what the flows cost."""
    if len(capacity) <= 2 * len(link) + 64:
        return capacity.copy(), link
    used, local = np.unique(link, return_inverse=True)
    return capacity[used], local


def fifo_rates(
    capacity: FloatArray, offsets: IntArray, link: IntArray, coefficient: FloatArray, cap: FloatArray
) -> FloatArray:
    """Rates under strict first-come-first-served: each row takes all that the rows before it left.

    Work-conserving: a row that is limited elsewhere leaves the rest of a link to its successors.

    Parameters
    ----------
    capacity, offsets, link, coefficient, cap
        As in :func:`max_min`, rows in order of start.

    Returns
    -------
    float[n]
        Rate of one elementary flow per row, bytes/s; 0 for a row that has to wait.
    """
    residual = dict(zip(link.tolist(), capacity[link].tolist(), strict=True))
    floor = {key: value * _TIE for key, value in residual.items()}
    bounds, links, coefficients = offsets.tolist(), link.tolist(), coefficient.tolist()
    rates = np.empty(len(bounds) - 1)
    for row, rate in enumerate(cap.tolist()):
        load: dict[int, float] = {}
        for entry in range(bounds[row], bounds[row + 1]):
            load[links[entry]] = load.get(links[entry], 0.0) + coefficients[entry]
        for key, amount in load.items():
            rate = min(rate, residual[key] / amount)
        for key, amount in load.items():
            left = residual[key] - rate * amount
            residual[key] = left if left > floor[key] else 0.0
        rates[row] = rate
    return rates
