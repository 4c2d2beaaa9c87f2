"""Zero-bubble schedules: the gradients of the weights wait until there is nothing better to do.

Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024 (arXiv:2401.10241): handcrafted schedules H1 and H2
(section 2) and the V of two chunks per rank (section 6).
"""

from __future__ import annotations

from collections import Counter

from sim.models.schedules.base import Action, Kind, Order, Schedule, single


def zb_h1(stage: int, stages: int, micro_batches: int, chunks: int) -> Order:
    """1F1B whose rank s defers s weight gradients, so that every rank holds p micro-batches."""
    return _handcrafted(stages - 1 - stage, stage, micro_batches)


def zb_h2(stage: int, stages: int, micro_batches: int, chunks: int) -> Order:
    """Twice the warm-up, twice the deferral: 2p - 1 micro-batches, each rank p - 1 - s more than in H1."""
    return _handcrafted(2 * (stages - 1 - stage), 2 * stage, micro_batches)


def _handcrafted(warm_up: int, deferred: int, micro_batches: int) -> Order:
    warm_up = min(warm_up, micro_batches)
    order = [Action("F", m, 0) for m in range(warm_up)]
    for m in range(micro_batches):
        if m + warm_up < micro_batches:
            order.append(Action("F", m + warm_up, 0))
        order.append(Action("I", m, 0))
        if m >= deferred:
            order.append(Action("W", m - deferred, 0))
    return single(order + [Action("W", m, 0) for m in range(max(0, micro_batches - deferred), micro_batches)])


class _Rank:
    """Appends the next action of a kind and chunk; those of micro-batches that do not exist are left out."""

    def __init__(self, micro_batches: int) -> None:
        self.micro_batches = micro_batches
        self.count: Counter[tuple[Kind, int]] = Counter()
        self.actions: list[Action] = []

    def do(self, *steps: tuple[Kind, int], times: int = 1) -> None:
        for kind, chunk in steps * times:
            micro_batch = self.count[kind, chunk]
            self.count[kind, chunk] += 1
            if micro_batch < self.micro_batches:
                self.actions.append(Action(kind, micro_batch, chunk))


def zb_v(stage: int, stages: int, micro_batches: int, chunks: int) -> Order:
    """ZB-V: chunk 0 goes down the ranks and chunk 1 comes back, so that the first rank has the loss."""
    rank = _Rank(micro_batches)
    behind = stages - stage
    total = max(micro_batches, 2 * stages - 1)  # as many as fill the pipeline
    rank.do(("F", 0), times=2 * behind - 1)
    rank.do(("F", 1), ("F", 0), times=stage)
    rank.do(("F", 1), ("I", 1), ("W", 1), times=behind)
    while rank.count["F", 1] < rank.count["F", 0] or rank.count["F", 0] < total:
        if rank.count["F", 0] < total:
            rank.do(("F", 0))
        rank.do(("I", 0), ("W", 0), ("F", 1), ("I", 1), ("W", 1))
    rank.do(("I", 0), ("I", 1), times=stage)
    rank.do(("I", 0), ("W", 0), times=behind)
    rank.do(("W", 1), times=rank.count["I", 1] - rank.count["W", 1])
    rank.do(("W", 0), times=rank.count["I", 0] - rank.count["W", 0])
    return single(rank.actions)


ZB_H1 = Schedule(
    order=zb_h1,
    in_flight=lambda stage, p, m, v: float(min(m, p)),
    bubble=lambda p, m, v, f, i, w: (p - 1) * (f + i - w),
)
ZB_H2 = Schedule(
    order=zb_h2,
    in_flight=lambda stage, p, m, v: float(min(m, 2 * p - 1)),
    bubble=lambda p, m, v, f, i, w: (p - 1) * (f + i - 2 * w),
)
ZB_V = Schedule(
    order=zb_v,
    in_flight=lambda stage, p, m, v: float(min(m, p)),
    bubble=lambda p, m, v, f, i, w: 0.0,
    placement="vee",
)

SCHEDULES: dict[str, Schedule] = {
    "zb_h1": ZB_H1,
    "zb_h2": ZB_H2,
    "zb_v": ZB_V,
}
