"""What one pipeline stage hands to another."""

from __future__ import annotations

from typing import NamedTuple

from sim.graph.builder import Ends
from sim.graph.execution import Cause
from sim.lowering.emitter import Emitter
from sim.models.schedules import Action, Slot


class Hop(NamedTuple):
    """Activations or gradients on their way to a stage that has not posted its receive yet."""

    action: Action  # the forward or backward that needs them
    source: int
    target: int
    elements: float
    ends: Ends

    @property
    def direction(self) -> str:
        """``forward``: activations; ``backward``: gradients."""
        return "forward" if self.action.kind == "F" else "backward"

    def crosses(self, other: Hop) -> bool:
        """Whether gradients meet activations that go the other way between the same stages."""
        opposite = (other.source, other.target) == (self.target, self.source)
        return opposite and self.direction == "backward" and other.direction == "forward"

    def is_for(self, slot: Slot | None) -> bool:
        """Whether a slot needs it."""
        mine = self.action
        return any(
            (mine.kind == "F") == (other.kind == "F")
            and mine.micro_batch == other.micro_batch
            and mine.chunk == other.chunk
            and other.kind in "FBI"
            for other in slot or ()
        )


def noted(emitter: Emitter, family: str, hop: Hop, step: int, ends: Ends, posted: Ends) -> Ends:
    """What a message waits for: that it is there, and the note of a receiver that has ``posted``."""
    after: Ends = {}
    for index in emitter.stage_classes[hop.source]:
        waiting = [r for r in posted if emitter.sender_of[family].get((r, hop.source)) == index]
        tasks = [task for receiver in waiting for task in posted[receiver]]
        after[index] = list(ends.get(index, []))
        if tasks:  # else it has waited since the step began
            note = emitter.note(
                family, index, f"note.{hop.direction}", Cause.PIPELINE_COMM, tasks,
                micro_batch=hop.action.micro_batch, step=step,
            )  # fmt: skip
            after[index].append(note)
    return after
