"""What forward operators took where the host itself computes: CPU training, traces without device spans.

The host's clock is walked through the operators of a step: each lasts until the next one begins. Waiting for
collectives, which PyTorch records as spans of their own, is taken out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.trace.model import FloatArray, HostTable, IntArray, RankTrace
from sim.trace.readers.kineto_operators import BACKWARD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.trace.operators import Operator


def walk_step(
    rank: RankTrace, host: HostTable, operators: Sequence[Operator], window: tuple[float, float]
) -> tuple[FloatArray, FloatArray, float, float]:
    """Forward and backward seconds of every operator, of the update, and of the rest of the step.

    Parameters
    ----------
    rank : RankTrace
    host : HostTable
    operators : sequence of Operator
        Forward operators of the step, in order.
    window : (float, float)
        The step (s); must be finite.
    """
    starts = np.array([operator.start for operator in operators])
    rows = np.flatnonzero((host.start >= window[0]) & (host.start < window[1]) & (host.kind == 0))
    engine = np.array([bool(BACKWARD.search(name)) for name in host.names] or [False], bool)
    mine = rows[engine[host.name[rows]]]
    calls = [u.start for u in rank.updates if window[0] <= u.start < window[1]]
    backward, chain = _chain(host, starts, operators[0].thread, rows, mine)
    # An operator lasts until the next thing begins, whatever that is: nothing is counted twice.
    end = float(host.end[mine].max()) if len(mine) else window[1]
    begins = np.sort(np.concatenate([starts, chain, calls, [max(end, float(starts[-1]))]]))
    forward = _until_next(starts, begins)
    lengths = _until_next(chain, begins)
    seconds = np.zeros(len(starts))
    for layer, length in zip(backward, lengths.tolist(), strict=True):
        if layer >= 0:
            seconds[layer] += length
    update = sum(
        u.end - u.start
        for u in rank.updates
        if u.name.startswith("Optimizer.step") and window[0] <= u.start < window[1]
    )
    rest = window[1] - window[0] - forward.sum() - seconds.sum() - update
    return forward, seconds, float(update), max(float(rest), 0.0)


def _until_next(times: FloatArray, begins: FloatArray) -> FloatArray:
    """Seconds from each time to the next begin after it; 0 where there is none."""
    at = np.searchsorted(begins, times, "right")
    found = np.append(begins, np.nan)[at] - times
    return np.where(np.isfinite(found), found, 0.0)


def _chain(
    host: HostTable, starts: FloatArray, thread: int, rows: IntArray, mine: IntArray
) -> tuple[list[int], FloatArray]:
    """Operator (-1: none yet) and begin of every numbered operator of the engine, in order."""
    numbered = rows[(host.sequence[rows] >= 0) & (host.thread[rows] == thread)]
    numbered = np.setdiff1d(numbered, mine, assume_unique=True)
    numbered = numbered[np.argsort(host.start[numbered], kind="stable")]
    owner = np.searchsorted(starts, host.start[numbered], "right") - 1
    layer_of = {int(n): int(o) for n, o in zip(host.sequence[numbered], owner, strict=True) if o >= 0}
    chain = mine[host.sequence[mine] >= 0]
    chain = chain[np.argsort(host.start[chain], kind="stable")]
    layers, current = [], -1
    for row in chain.tolist():
        current = layer_of.get(int(host.sequence[row]), current)
        layers.append(current)
    return layers, np.asarray(host.start[chain], np.float64)
