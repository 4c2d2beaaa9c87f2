"""Pipeline schedules: what a rank does in which order, and where its chunks lie in the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["F", "B", "I", "W", "U"]
Placement = Literal["loop", "vee", "bidirectional"]


class Action(NamedTuple):
    """One piece of work on a micro-batch through a model chunk.

    Attributes
    ----------
    kind : str
        ``F`` forward; ``B`` the whole backward; or its halves, ``I`` for the gradient of the input and ``W``
        for that of the weights; ``U`` the update of a schedule that does not flush.
    micro_batch, chunk : int
        Chunk: of this rank, 0 first.
    ahead : int
        Steps by which the micro-batch is ahead of the period in which this is done (schedules without flush).
    """

    kind: Kind
    micro_batch: int
    chunk: int
    ahead: int = 0


Slot = tuple[Action, ...]
"""Done at one time: a single action, or a forward and a backward whose layers alternate."""

Order = list[Slot]


@dataclass(frozen=True)
class Schedule:
    """One pipeline schedule.

    Parameters
    ----------
    order : callable
        ``(stage, stages, micro_batches, chunks) -> Order`` of one rank for one step.
    in_flight : callable
        ``(stage, stages, micro_batches, chunks) -> float``: bound of the micro-batches whose activations a
        rank holds, in units of all its different layers.
    bubble : callable
        ``(stages, micro_batches, chunks, forward, input, weight) -> float``: published idle seconds of a step
        when F, I and W of one rank take so long per micro-batch and messages nothing. Zero-bubble
        schedules: between a rank's first and last action.
    placement : {"loop", "vee", "bidirectional"}
        Chunk c of rank s is stage ``c p + s``; the same with odd chunks in reverse; or, with two replicas of
        the model, stage s in chunk 0 and stage ``p - 1 - s`` in chunk 1.
    """

    order: Callable[[int, int, int, int], Order]
    in_flight: Callable[[int, int, int, int], float]
    bubble: Callable[[int, int, int, float, float, float], float]
    placement: Placement = "loop"

    def virtual_stage(self, stage: int, chunk: int, stages: int) -> int:
        """Place in the model of a rank's chunk."""
        if self.placement == "bidirectional":
            return stages - 1 - stage if chunk else stage
        reverse = self.placement == "vee" and chunk % 2
        return chunk * stages + (stages - 1 - stage if reverse else stage)

    def holders(self, virtual: int, stages: int) -> list[tuple[int, int]]:
        """(rank, its chunk) of every replica of a place in the model."""
        if self.placement == "bidirectional":
            return [(virtual, 0), (stages - 1 - virtual, 1)]
        chunk, place = divmod(virtual, stages)
        reverse = self.placement == "vee" and chunk % 2
        return [(stages - 1 - place if reverse else place, chunk)]

    def num_chunks(self, virtual_stages: int) -> int:
        """Chunks that a rank holds, replicas included."""
        return 2 if self.placement == "bidirectional" else virtual_stages

    def first_micro_batch(self, chunk: int, micro_batches: int) -> int:
        """The first micro-batch that passes a chunk."""
        return micro_batches // 2 if self.placement == "bidirectional" and chunk else 0


def single(actions: Sequence[Action]) -> Order:
    """Actions that are done one after the other."""
    return [(action,) for action in actions]


def in_flight_at_start(order: Order) -> dict[int, int]:
    """Forwards of each chunk that earlier periods have done ahead; empty where a step flushes."""
    held: dict[int, int] = {}
    for slot in order:
        for action in slot:
            if action.kind == "F" and action.ahead:
                held[action.chunk] = held.get(action.chunk, 0) + action.ahead
    return held


def peak(order: Order, kept: Sequence[float], deferred: Sequence[float]) -> float:
    """Most that a rank holds at a time.

    Parameters
    ----------
    order : Order
    kept : sequence of float
        Of each chunk, what one micro-batch keeps from its forward to its (input) backward.
    deferred : sequence of float
        What it keeps from the gradient of its input to that of its weights.
    """
    level = sum(count * kept[chunk] for chunk, count in in_flight_at_start(order).items())
    highest = level
    for slot in order:
        for kind, _, chunk, _ in slot:
            if kind == "F":
                level += kept[chunk]
            elif kind == "I":
                level += deferred[chunk] - kept[chunk]
            elif kind == "B":
                level -= kept[chunk]
            elif kind == "W":
                level -= deferred[chunk]
            highest = max(highest, level)
    return highest


def staleness(order: Order, update_delay: int) -> list[int]:
    """Updates between a forward and the one that applies its gradient, for every forward of a period."""
    updated, found = 0, []
    for slot in order:
        for action in slot:
            if action.kind == "U":
                updated = 1
            elif action.kind == "F":
                found.append(action.ahead + update_delay - updated)
    return found
