"""Schedules that never flush: a period of the steady state.

Rank s has p - 1 - s forwards more behind it than backwards: where its backward is on micro-batch g, counted
through all steps, its forward is on g + p - 1 - s. The forwards of a period therefore belong to later steps.
"""

from __future__ import annotations

from sim.models.schedules.base import Action, Order, Schedule, single


def pipedream(stage: int, stages: int, micro_batches: int, chunks: int) -> Order:
    """PipeDream's 1F1B: a stage updates its weights after its own last backward of a step (SOSP 2019)."""
    return single([*_one_for_one(stage, stages, micro_batches), Action("U", 0, 0)])


def two_buffered_weights(stage: int, stages: int, micro_batches: int, chunks: int) -> Order:
    """PipeDream-2BW: the gradients of step t - 1 are applied before the first forward of step t + 1.

    W(t+1) = W(t) - grad(W(t-1)): all micro-batches see weights that are one update old (ICML 2021, 3.1).
    """
    order = _one_for_one(stage, stages, micro_batches)
    ahead = (number for number, action in enumerate(order) if action.kind == "F" and action.ahead)
    place = next(ahead, len(order))
    return single([*order[:place], Action("U", 0, 0), *order[place:]])


def _one_for_one(stage: int, stages: int, micro_batches: int) -> list[Action]:
    order = []
    for number in range(micro_batches):
        ahead, micro_batch = divmod(number + stages - 1 - stage, micro_batches)
        order += [Action("F", micro_batch, 0, ahead), Action("B", number, 0)]
    return order


PIPEDREAM = Schedule(
    order=pipedream,
    in_flight=lambda stage, p, m, v: float(p - stage),
    bubble=lambda p, m, v, f, i, w: 0.0,
)
TWO_BUFFERED_WEIGHTS = Schedule(
    order=two_buffered_weights,
    in_flight=lambda stage, p, m, v: float(p - stage),
    bubble=lambda p, m, v, f, i, w: 0.0,
)

SCHEDULES: dict[str, Schedule] = {
    "pipedream_async": PIPEDREAM,
    "2bw": TWO_BUFFERED_WEIGHTS,
}
