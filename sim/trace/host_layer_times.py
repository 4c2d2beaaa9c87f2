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
    first_backward = float(host.start[mine].min()) if len(mine) else window[1]
    last_backward = float(host.end[mine].max()) if len(mine) else window[1]
    forward = np.diff(np.append(starts, min(first_backward, window[1])))
    backward = _backward(host, starts, operators[0].thread, rows, mine, last_backward)
    update = sum(
        u.end - u.start
        for u in rank.updates
        if u.name.startswith("Optimizer.step") and window[0] <= u.start < window[1]
    )
    forward = np.maximum(forward, 0.0)
    rest = window[1] - window[0] - forward.sum() - backward.sum() - update
    return forward, backward, float(update), max(float(rest), 0.0)


def _backward(
    host: HostTable, starts: FloatArray, thread: int, rows: IntArray, mine: IntArray, end: float
) -> FloatArray:
    """Backward seconds: from one numbered operator of the engine to the next."""
    seconds = np.zeros(len(starts))
    numbered = rows[(host.sequence[rows] >= 0) & (host.thread[rows] == thread)]
    numbered = numbered[np.argsort(host.start[numbered], kind="stable")]
    numbered = np.setdiff1d(numbered, mine, assume_unique=True)
    numbered = numbered[np.argsort(host.start[numbered], kind="stable")]
    owner = np.searchsorted(starts, host.start[numbered], "right") - 1
    layer_of = {int(n): int(o) for n, o in zip(host.sequence[numbered], owner, strict=True) if o >= 0}
    chain = mine[host.sequence[mine] >= 0]
    chain = chain[np.argsort(host.start[chain], kind="stable")]
    begins = host.start[chain]
    lengths = np.diff(np.append(begins, end)) if len(chain) else np.zeros(0)
    current = -1
    for row, length in zip(chain.tolist(), lengths.tolist(), strict=True):
        current = layer_of.get(int(host.sequence[row]), current)
        if current >= 0:
            seconds[current] += length
    return seconds
