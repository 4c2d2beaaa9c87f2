"""Two replicas of the model that run through the same ranks in opposite directions."""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from heapq import heappop, heappush

from sim.models.schedules.base import Action, Kind, Order, Schedule, single

# -- Chimera -----------------------------------------------------------------------------------------------


def chimera(stage: int, stages: int, micro_batches: int, chunks: int) -> Order:
    """Two merged 1F1B pipelines (Li and Hoefler, SC 2021): micro-batches alternate without conflicts.

    Every rank takes the earliest backward it can, else the earliest forward, with at most p micro-batches in
    flight, when both take one slot of time. For m = p this is the paper's basic unit, p - 2 slots idle; for
    more the units are concatenated as in its section 3.5.
    """
    return _merged(stages, micro_batches)[stage]


class _Merge:
    """Plays both pipelines slot by slot; a rank's choices are its order."""

    def __init__(self, stages: int, micro_batches: int) -> None:
        self.stages, self.half = stages, micro_batches // 2
        self.ready: list[list[tuple[bool, int, int, int]]] = [[] for _ in range(stages)]
        self.held = [0] * stages
        self.orders: list[list[Action]] = [[] for _ in range(stages)]
        for micro_batch in range(2 * self.half):
            self._arrive("F", micro_batch, 0)

    def _arrive(self, kind: Kind, micro_batch: int, virtual: int) -> None:
        chunk = int(micro_batch >= self.half)
        stage = self.stages - 1 - virtual if chunk else virtual
        near = chunk if stage < self.stages // 2 else 1 - chunk  # the direction that has just begun first
        heappush(self.ready[stage], (kind == "F", micro_batch % self.half, near, micro_batch))

    def slot(self) -> bool:
        """Let every rank do one thing; whether any could."""
        done: list[tuple[Action, int]] = []
        for stage, ready in enumerate(self.ready):
            if not ready or (ready[0][0] and self.held[stage] >= self.stages):
                continue
            is_forward, _, _, micro_batch = heappop(ready)
            chunk = int(micro_batch >= self.half)
            action = Action("F" if is_forward else "B", micro_batch, chunk)
            self.held[stage] += 1 if is_forward else -1
            self.orders[stage].append(action)
            done.append((action, self.stages - 1 - stage if chunk else stage))
        for action, virtual in done:
            if action.kind == "F" and virtual < self.stages - 1:
                self._arrive("F", action.micro_batch, virtual + 1)
            elif action.kind == "F":
                self._arrive("B", action.micro_batch, virtual)
            elif virtual:
                self._arrive("B", action.micro_batch, virtual - 1)
        return bool(done)


@lru_cache(maxsize=8)
def _merged(stages: int, micro_batches: int) -> list[Order]:
    merge = _Merge(stages, micro_batches)
    while merge.slot():
        pass
    return [single(order) for order in merge.orders]


# -- DualPipe ----------------------------------------------------------------------------------------------


class _Dual:
    """Appends what a rank does next. Direction 0 is the one whose end is further away from this rank."""

    def __init__(self, stage: int, stages: int, micro_batches: int) -> None:
        self.first_half = stage < stages // 2
        self.half = micro_batches // 2
        self.count: dict[tuple[bool, int], int] = {}
        self.deferred: deque[Action] = deque()
        self.order: Order = []

    def _next(self, kind: Kind, direction: int) -> Action:
        chunk = direction if self.first_half else 1 - direction
        key = (kind == "F", direction)
        number = self.count.get(key, 0)
        self.count[key] = number + 1
        return Action(kind, number + self.half * chunk, chunk)

    def forward(self, direction: int) -> None:
        self.order.append((self._next("F", direction),))

    def backward(self, direction: int, *, split: bool = False) -> None:
        action = self._next("I" if split else "B", direction)
        self.order.append((action,))
        if split:
            self.deferred.append(action._replace(kind="W"))

    def both(self, forward: int, backward: int) -> None:
        """A forward and a backward at the same time."""
        self.order.append((self._next("F", forward), self._next("B", backward)))

    def weights(self) -> None:
        self.order.append((self.deferred.popleft(),))


def dualpipe(stage: int, stages: int, micro_batches: int, chunks: int) -> Order:
    """DualPipe (DeepSeek-V3 report, section 3.2.1, figure 5), in the eight phases of its published code."""
    rank = _Dual(stage, stages, micro_batches)
    inward = min(stage, stages - 1 - stage)
    outward = stages // 2 - 1 - inward
    for _ in range(2 * outward):
        rank.forward(0)
    for _ in range(inward + 1):
        rank.forward(0)
        rank.forward(1)
    for _ in range(outward):
        rank.backward(1, split=True)
        rank.weights()
        rank.forward(1)
    for number in range(micro_batches // 2 - stages + inward + 1):
        if number == 0 and outward == 0:  # the two middle ranks do not overlap their first pair
            rank.forward(0)
            rank.backward(1)
        else:
            rank.both(0, 1)
        rank.both(1, 0)
    for _ in range(outward):
        rank.backward(1)
        rank.both(1, 0)
    _last_backwards(rank, inward)
    for _ in range(outward):
        rank.weights()
        rank.backward(0, split=True)
    for _ in range(inward + 1):
        rank.weights()
    return rank.order


def _last_backwards(rank: _Dual, inward: int) -> None:
    """Backwards of both directions in turn; from the middle on they defer their weight gradients."""
    middle = (inward + 1) // 2
    for number in range(inward + 1):
        rank.backward(1, split=number > middle or (number == middle and inward % 2 == 1))
        rank.backward(0, split=number >= middle)


CHIMERA = Schedule(
    order=chimera,
    in_flight=lambda stage, p, m, v: min(m, p) / 2,
    bubble=lambda p, m, v, f, i, w: (p / 2 - 1) * (f + i + w),
    placement="bidirectional",
)
DUALPIPE = Schedule(
    order=dualpipe,
    in_flight=lambda stage, p, m, v: (p + 1) / 2,
    bubble=lambda p, m, v, f, i, w: (p / 2 - 1) * ((f + i + w) + (i + w) - 3 * w),
    placement="bidirectional",
)

SCHEDULES: dict[str, Schedule] = {
    "chimera": CHIMERA,
    "dualpipe": DUALPIPE,
}
