"""Replicated parameters that are updated layer by layer, where the order of exchanges matters."""

from __future__ import annotations

from typing_extensions import override

from sim.graph.builder import Ends, source
from sim.lowering.emitter import Emitter
from sim.lowering.state.replicated import ReplicatedState


class LayerwiseState(ReplicatedState):
    """A layer's next forward waits for its own gradients only, not for all of them.

    ByteScheduler and P3 cross the barrier between two iterations in this way, so that an exchange of a late
    layer may give way to one of an early layer. An update runs in front of the first forward that needs it.
    """

    def __init__(self, emitter: Emitter) -> None:
        super().__init__(emitter)
        self.begins: dict[tuple[int, int, int], int] = {}  # by (class, chunk, bucket)

    @override
    def repeats(self, kind: str, stage: int, virtual: int, micro_batch: int) -> bool:
        updates = kind == "F" and micro_batch == self.plan.first_micro_batch(stage, virtual)
        return super().repeats(kind, stage, virtual, micro_batch) and not updates

    @override
    def before_layer(
        self, stage: int, virtual: int, layer: int, step: int, micro_batch: int, ends: Ends, *, backward: bool
    ) -> Ends:
        if backward or micro_batch != self.plan.first_micro_batch(stage, virtual):
            return ends
        for bucket in self.plan.buckets(virtual):
            if bucket.last_layer == layer:
                held: Ends = {}
                for index in self.emitter.stage_classes[stage]:
                    begin = self.builder.control("update", device=self.emitter.device_row[index], step=step)
                    self.begins[index, virtual, bucket.index] = begin
                    held[index] = [*ends.get(index, []), begin]
                if not bucket.factors:
                    held = self.copy_bucket(stage, bucket.elements, step, held, f"bucket{bucket.index}.empty")
                ends = self.apply(stage, step, bucket.elements, held)
        return ends

    @override
    def finish_step(self, step: int) -> None:
        for stage in range(self.strategy.pp):
            if not self.strategy.overlap:
                self.exchange_all(stage, step)
            virtual = self.plan.chunks_of(stage)[0]
            for bucket, done in (*self.finished.pop((stage, step), ()), *self.multiplied[stage, step]):
                for index, tasks in done.items():
                    for task in tasks:
                        begin = self.begins[index, virtual, bucket.index]
                        self.builder.edge(begin, source(task), 1 + self.strategy.delay)
            self.updated[stage] = self.overhead(stage, step, self.last_weight[stage])
