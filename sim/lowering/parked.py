"""Activations in the memory of the host between forward and backward (taxonomy D13)."""

from __future__ import annotations

from collections import defaultdict

from sim.graph.builder import Edge, Ends
from sim.graph.execution import Cause
from sim.lowering.emitter import Emitter
from sim.models.memory import activation_elements, leaves, narrow_elements, stored_elements


class ParkedActivations:
    """Activations in host memory between forward and backward (ZeRO-Infinity: Rajbhandari et al., SC 2021).

    What a layer keeps goes down beside the computation that follows. It comes back while the block behind its
    own in the model is in its backward, so that two blocks' activations are on the device at a time
    (Transformer Engine's double buffer). With full recomputation the inputs of blocks go, and come back
    before they run again.
    """

    def __init__(self, emitter: Emitter) -> None:
        self.emitter, self.plan = emitter, emitter.plan
        self.down: dict[tuple[int, int, int], Ends] = {}
        # Of each stage: the block whose backward is under way, what it and the one before waited for.
        self.current: dict[int, int] = {}
        self.begun: dict[int, Ends] = defaultdict(dict)
        self.before: dict[int, Ends] = defaultdict(dict)

    def _size(self, layer: int) -> float:
        plan, layers = self.plan, self.plan.workload.layers
        if not leaves(layers[layer], plan.strategy):
            return 0.0
        if plan.strategy.recompute != "full":
            elements = stored_elements(layers[layer], plan.strategy)
            elements -= narrow_elements(layers[layer], plan.strategy, plan.workload)
        elif layer and layers[layer - 1].block == layers[layer].block:
            elements = 0.0  # of a block, only its input is kept
        else:
            block = [spec for spec in layers[layer:] if spec.block == layers[layer].block]
            elements, _ = activation_elements(block, plan.strategy)
        return elements * plan.local_samples * plan.element_bytes

    def _move(self, way: str, stage: int, layer: int, m: int, step: int, after: Ends) -> Ends:
        moved: Ends = {}
        for index in self.emitter.stage_classes[stage]:
            group = self.emitter.family_classes[way].by_member[index][0]
            moved[index] = [
                self.emitter.transfer(
                    way, group, self._size(layer), f"{self.plan.workload.layers[layer].name}.{way}",
                    Cause.PIPELINE_COMM, list(after.get(index, ())), participants=(index,), stream=way,
                    micro_batch=m, step=step,
                )
            ]  # fmt: skip
        return moved

    def leave(self, stage: int, layer: int, m: int, step: int, ends: Ends) -> None:
        """A layer's forward is done: what it keeps goes to the host."""
        if self._size(layer) > 0:
            self.down[stage, layer, m] = self._move("offload", stage, layer, m, step, ends)

    def come_back(self, stage: int, layer: int, m: int, step: int, ends: Ends) -> Ends:
        """What the backward of a layer waits for: its activations, fetched since the one before it began."""
        block = self.plan.workload.layers[layer].block
        if self.current.get(stage) != block:
            self.current[stage] = block
            self.before[stage], self.begun[stage] = self.begun[stage] or ends, ends
        before = self.before[stage]
        parked = self.down.pop((stage, layer, m), None)
        if parked is None:
            return ends
        after: Ends = {index: [*tasks, *before.get(index, [])] for index, tasks in parked.items()}
        back = self._move("reload", stage, layer, m, step, after)
        merged: dict[int, list[Edge]] = {i: [*tasks, *back.get(i, [])] for i, tasks in ends.items()}
        return merged
