"""From the nodes that were played back to the tasks of the graph, by (iteration, task)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.engine.perturbation import jitter_factors
from sim.graph.contract import Contraction
from sim.graph.execution import BoolArray, ExecutionGraph, FloatArray, IntArray

if TYPE_CHECKING:
    from sim.engine.loop import Player


@dataclass(frozen=True)
class Spans:
    """What happened to every task of ``K`` iterations.

    Attributes
    ----------
    start, end : float[K, n]
        Seconds; NaN where not played.
    dropped : bool[K, n]
        Skipped.
    factors : float[K, n] or float[1, n]
        Jitter of each task.
    order : int[N]
        ``iteration * n + task`` of finished tasks in order of completion.
    """

    start: FloatArray
    end: FloatArray
    dropped: BoolArray
    factors: FloatArray
    order: IntArray


def unfold(player: Player) -> Spans:
    """Spans of the original tasks of a finished run."""
    plan, stride, nodes = player.plan, player.plan.stride, player.plan.num_tasks
    order = np.fromiter(player.order, np.int64, len(player.order))
    opened = int(order.max()) // stride + 1
    count = opened * stride
    columns = (np.fromiter(column[:count], np.float64, count) for column in (player.start, player.end))
    start, end = (np.ascontiguousarray(column.reshape(-1, stride)[:, :nodes]) for column in columns)
    dropped = np.zeros(end.shape, np.bool_)
    if player.skipped:
        iteration, node = np.divmod(np.fromiter(player.skipped, np.int64), stride)
        dropped[iteration[iteration < opened], node[iteration < opened]] = True
    if stride != nodes:
        order = order // stride * nodes + order % stride
    factors = np.ones((1, plan.original.num_tasks))
    if plan.original.has_random_compute:
        factors = np.array([jitter_factors(plan.original, k) for k in range(opened)])
    if plan.contraction is None:
        return Spans(start, end, dropped, factors, order)
    inner_start, inner_end = _inner_spans(player, plan.contraction, start, end, factors)
    order = _inner_order(plan.contraction, order, inner_end)
    return Spans(inner_start, inner_end, dropped[:, plan.contraction.node], factors, order)


def _prefix(
    original: ExecutionGraph, contraction: Contraction, factors: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Seconds within its node at which each member starts and ends, in the order of ``members.index``."""
    members, first = contraction.members, contraction.members.offsets[contraction.members.rows()]
    scale = np.broadcast_to(factors, (len(factors), original.num_tasks))[:, members.index]
    total = np.cumsum(contraction.advance[members.index] * scale, axis=1)
    before = np.hstack([np.zeros((len(total), 1)), total[:, :-1]])
    base = before[:, first]
    before, after = before - base, total - base
    ends_first = np.append(contraction.beside[members.index][1:], False)
    after[:, ends_first] += (contraction.span[members.index] * scale)[:, ends_first]
    beside = np.flatnonzero(contraction.beside[members.index])
    before[:, beside] = before[:, beside - 1]
    return before, after


def _inner_spans(
    player: Player, contraction: Contraction, start: FloatArray, end: FloatArray, factors: FloatArray
) -> tuple[FloatArray, FloatArray]:
    members, row = contraction.members, contraction.members.rows()
    before, after = _prefix(player.plan.original, contraction, factors)
    last = members.offsets[1:] - 1
    total = after[:, last][:, row]
    scale = np.divide(end[:, row] - start[:, row], total, out=np.zeros_like(end[:, row]), where=total > 0)
    single = np.diff(members.offsets)[row] == 1
    inner_start = np.where(before > 0, start[:, row] + before * scale, start[:, row])
    inner_end = start[:, row] + after * scale
    behind = np.ones(len(row), np.bool_)
    behind[members.offsets[:-1]] = False  # of a node under way, all that is known is that its first began
    inner_start[:, behind] = np.where(np.isnan(end[:, row[behind]]), np.nan, inner_start[:, behind])
    if player.coupling is not None:
        for instance, history in player.coupling.histories.items():
            iteration, node = divmod(instance, player.plan.stride)
            a, b = int(members.offsets[node]), int(members.offsets[node + 1])
            if b - a > 1 and iteration < len(end) and not np.isnan(end[iteration, node]):
                k = min(iteration, len(after) - 1)
                done = [seconds for _, seconds in history] + [float(after[k, b - 1])]
                when = [time for time, _ in history] + [float(end[iteration, node])]
                inner_end[iteration, a:b] = np.interp(after[k, a:b], done, when)
                inner_start[iteration, a + 1 : b] = np.interp(before[k, a + 1 : b], done, when)
    # The last member ends with its node, and a lone one is its node, to the last bit.
    inner_end[:, last] = end
    inner_end[:, single] = end[:, row[single]]
    result = np.empty_like(inner_start), np.empty_like(inner_end)
    result[0][:, members.index], result[1][:, members.index] = inner_start, np.maximum(inner_end, inner_start)
    return result


def _inner_order(contraction: Contraction, order: IntArray, end: FloatArray) -> IntArray:
    """Order of completion of the members: by end, ties as their nodes."""
    members, num_nodes = contraction.members, len(contraction.members)
    iteration, node = np.divmod(order, num_nodes)
    width = np.diff(members.offsets)[node]
    step = np.arange(width.sum()) - np.repeat(np.cumsum(width) - width, width)
    task = members.index[np.repeat(members.offsets[node], width) + step]
    place = np.repeat(iteration, width) * len(contraction.node) + task
    result: IntArray = place[np.argsort(end.ravel()[place], kind="stable")]
    return result
