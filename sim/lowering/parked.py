"""Activations in the memory of the host between forward and backward (taxonomy D13)."""

from __future__ import annotations

from collections import defaultdict

from sim.graph.builder import Edge, Ends
from sim.graph.execution import Cause
from sim.lowering.emitter import Emitter
from sim.models.memory import activation_elements, stored_elements


class ParkedActivations:
    """Activations in host memory between forward and backward (ZeRO-Infinity: Rajbhandari et al., SC 2021).

    What a layer keeps goes down beside the computation that follows. It comes back while the layer behind it
    in the model is in its backward, so that two layers' activations are on the device at a time. With full
    recomputation blocks take the place of layers: their inputs go, and come back before they run again.
    """

    def __init__(self, emitter: Emitter) -> None:
        self.emitter, self.plan = emitter, emitter.plan
        self.down: dict[tuple[int, int, int], Ends] = {}
        self.begun: dict[int, Ends] = defaultdict(dict)  # what the latest backward of a stage waited for

    def _size(self, layer: int) -> float:
        plan, layers = self.plan, self.plan.workload.layers
        if plan.strategy.recompute != "full":
            elements = stored_elements(layers[layer], plan.strategy)
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
        before, self.begun[stage] = self.begun[stage] or ends, ends
        parked = self.down.pop((stage, layer, m), None)
        if parked is None:
            return ends
        after: Ends = {index: [*tasks, *before.get(index, [])] for index, tasks in parked.items()}
        back = self._move("reload", stage, layer, m, step, after)
        merged: dict[int, list[Edge]] = {i: [*tasks, *back.get(i, [])] for i, tasks in ends.items()}
        return merged
