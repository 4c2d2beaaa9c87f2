"""Context parallelism: how attention on a part of the sequence reaches the keys and values of the others.

Everything else of a layer works on the tokens that a rank holds. One class per way, in :data:`CONTEXTS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
from typing_extensions import override

from sim.graph.builder import Ends
from sim.graph.execution import Cause
from sim.lowering.emitter import Emitter
from sim.lowering.plan import Plan
from sim.models.collectives import Phase
from sim.spec.layer import Attention, Layer
from sim.spec.strategy import Strategy

MERGE_PASSES = 3.0
"""Passes over a rank's output to merge a block's: both read, the sum written (online softmax)."""

Seconds = Mapping[int, float]


def is_split(layer: Layer) -> bool:
    """Whether a layer has attention over the sequence."""
    return any(isinstance(op, Attention) for op in layer.ops)


class ContextLowering(ABC):
    """Emits the attention cores of a stage, each with its exchange among the context parallel ranks."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter, self.plan = emitter, emitter.plan
        self.strategy = self.plan.strategy
        self.degree = self.strategy.cp

    @classmethod
    @abstractmethod
    def request_families(cls, plan: Plan) -> None:
        """Route the exchanges among the context parallel ranks."""

    @abstractmethod
    def forward(
        self, stage: int, layer: Layer, core: Seconds, ends: Ends, cause: Cause, **options: int
    ) -> Ends:
        """The core's forward pass; ``core`` is its time on a class without any exchange."""

    @abstractmethod
    def backward(self, stage: int, layer: Layer, core: Seconds, ends: Ends, **options: int) -> Ends:
        """The core's backward pass."""

    # -- sizes ----------------------------------------------------------------------------------------

    def query_bytes(self, layer: Layer) -> float:
        """Bytes of a rank's queries (and of its output): tokens / cp x heads / tp."""
        elements = sum(op.query_length * op.heads * op.head_dim for op in _cores(layer))
        return elements / self.strategy.tp * self.plan.local_samples * self.plan.element_bytes

    def key_bytes(self, layer: Layer, ranks: int = 1) -> float:
        """Bytes of a rank's keys (and of its values); heads fewer than ``tp x ranks`` are copied."""
        elements = sum(
            op.key_length * max(op.kv_heads / self.strategy.tp, float(ranks)) * op.head_dim
            for op in _cores(layer)
        )
        return elements * self.plan.local_samples * self.plan.element_bytes

    # -- emission -------------------------------------------------------------------------------------

    def exchange(
        self, family: str, stage: int, layer: Layer, size: float, name: str, ends: Ends, **options: int
    ) -> Ends:
        """One exchange among the context parallel ranks."""
        return self.emitter.collective(
            f"cp_{family}", self.emitter.stage_classes[stage], size, f"{layer.name}.{name}",
            Cause.CONTEXT_COMM, ends, stream="cp", **options,
        )  # fmt: skip

    def compute(
        self, stage: int, layer: Layer, seconds: Seconds, cause: Cause, ends: Ends, **options: int
    ) -> Ends:
        """A part of the core."""
        return self.emitter.compute(
            self.emitter.stage_classes[stage], seconds, f"{layer.name}.attention.{cause.name.lower()}", cause,
            ends, **options,
        )  # fmt: skip

    def uneven(self, layer: Layer) -> bool:
        """Whether the ranks' shares of a fused causal kernel, which skips what is masked, differ."""
        return not self.strategy.context_balance and any(op.causal and op.flash for op in _cores(layer))


class UlyssesLowering(ContextLowering):
    """DeepSpeed-Ulysses: all-to-alls turn parts of the sequence into parts of the heads, and back.

    Four of b s h / N bytes in each direction of a layer (Jacobs et al. 2023, arXiv:2309.14509): queries, keys
    and values before the core, the output behind it.
    """

    @override
    @classmethod
    def request_families(cls, plan: Plan) -> None:
        plan.request_collective("cp_all_to_all", plan.layout.groups("cp"), "all_to_all", "direct")

    def _scatter(self, stage: int, layer: Layer, names: str, ends: Ends, **options: int) -> Ends:
        for name in names:
            size = self.key_bytes(layer, self.degree) if name in "kv" else self.query_bytes(layer)
            ends = self.exchange("all_to_all", stage, layer, size, f"{name}.all_to_all", ends, **options)
        return ends

    @override
    def forward(
        self, stage: int, layer: Layer, core: Seconds, ends: Ends, cause: Cause, **options: int
    ) -> Ends:
        ends = self._scatter(stage, layer, "qkv", ends, **options)
        ends = self.compute(stage, layer, core, cause, ends, **options)
        return self._scatter(stage, layer, "o", ends, **options)

    @override
    def backward(self, stage: int, layer: Layer, core: Seconds, ends: Ends, **options: int) -> Ends:
        ends = self._scatter(stage, layer, "o", ends, **options)
        ends = self.compute(stage, layer, core, Cause.BACKWARD, ends, **options)
        return self._scatter(stage, layer, "qkv", ends, **options)


class AllGatherLowering(ContextLowering):
    """Keys and values are gathered before the core, their gradients reduce-scattered behind it.

    Llama 3 (Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2); they are gathered again for backward,
    as Transformer Engine does. Nothing overlaps.
    """

    @override
    @classmethod
    def request_families(cls, plan: Plan) -> None:
        for operation in ("all_gather", "reduce_scatter"):
            plan.request_collective(f"cp_{operation}", plan.layout.groups("cp"), operation, "ring")

    def _slowest(self, layer: Layer, core: Seconds) -> Seconds:
        """The last of contiguous causal parts has 2 - 1 / cp times the mean work."""
        factor = 2 - 1 / self.degree if self.uneven(layer) else 1.0
        return {index: seconds * factor for index, seconds in core.items()}

    def _keys(self, operation: str, stage: int, layer: Layer, ends: Ends, **options: int) -> Ends:
        size = 2 * self.key_bytes(layer) * self.degree
        return self.exchange(operation, stage, layer, size, f"kv.{operation}", ends, **options)

    @override
    def forward(
        self, stage: int, layer: Layer, core: Seconds, ends: Ends, cause: Cause, **options: int
    ) -> Ends:
        ends = self._keys("all_gather", stage, layer, ends, **options)
        return self.compute(stage, layer, self._slowest(layer, core), cause, ends, **options)

    @override
    def backward(self, stage: int, layer: Layer, core: Seconds, ends: Ends, **options: int) -> Ends:
        ends = self._keys("all_gather", stage, layer, ends, **options)
        ends = self.compute(stage, layer, self._slowest(layer, core), Cause.BACKWARD, ends, **options)
        return self._keys("reduce_scatter", stage, layer, ends, **options)


class RingLowering(ContextLowering):
    """Ring attention: blocks of keys and values go round while the block at hand is worked on.

    cp blocks and cp - 1 hops forward; backward the gradients of keys and values follow their block all the
    way home, cp hops (Liu et al. 2023, arXiv:2310.01889; Transformer Engine's ``p2p``). A hop waits for the
    one before, not for the computation. With ``context_balance`` blocks of causal attention are equal work;
    without, the last ranks compute every block in full, and the ring goes at their pace.
    """

    @override
    @classmethod
    def request_families(cls, plan: Plan) -> None:
        ranks = np.arange(plan.strategy.cp)
        step = Phase(ranks, (ranks + 1) % len(ranks), np.ones(len(ranks)), fraction=1.0, steps=1)
        plan.request("cp_shift", plan.layout.groups("cp"), (step,), collective=("send", "direct"))

    def _blocks(self, layer: Layer, core: Seconds) -> list[Seconds]:
        """Time of each block: an equal share, a launch of its own, and the merge with those before."""
        parts = 2.0 * np.ones(self.degree) if self.uneven(layer) else np.ones(self.degree)
        parts[0] = 1.0
        output = MERGE_PASSES * self.query_bytes(layer)
        blocks: list[Seconds] = []
        for number, part in enumerate(parts):
            seconds: dict[int, float] = {}
            for index, whole in core.items():
                device = self.plan.device_of_rank(int(self.plan.classes.representatives[index]))
                launch = self.plan.calibration.value("device", device.name, "kernel_latency")
                efficiency = self.plan.calibration.value("device", device.name, "memory_efficiency")
                merge = output / (device.memory_bandwidth * efficiency) + launch if number else 0.0
                seconds[index] = max(whole - launch, 0.0) * part / self.degree + launch + merge
            blocks.append(seconds)
        return blocks

    def _shift(self, stage: int, layer: Layer, name: str, ends: Ends, **options: int) -> Ends:
        return self.exchange("shift", stage, layer, 2 * self.key_bytes(layer), name, ends, **options)

    @override
    def forward(
        self, stage: int, layer: Layer, core: Seconds, ends: Ends, cause: Cause, **options: int
    ) -> Ends:
        arrived = done = ends
        for number, seconds in enumerate(self._blocks(layer, core)):
            here = arrived
            if number < self.degree - 1:
                arrived = self._shift(stage, layer, "kv.send", arrived, **options)
            done = self.compute(stage, layer, seconds, cause, _both(done, here), **options)
        return done

    @override
    def backward(self, stage: int, layer: Layer, core: Seconds, ends: Ends, **options: int) -> Ends:
        arrived = done = ends
        gradients: Ends = {}
        for number, seconds in enumerate(self._blocks(layer, core)):
            here = arrived
            if number < self.degree - 1:
                arrived = self._shift(stage, layer, "kv.send", arrived, **options)
            done = self.compute(stage, layer, seconds, Cause.BACKWARD, _both(done, here), **options)
            gradients = self._shift(stage, layer, "dkv.send", _both(done, gradients), **options)
        return _both(done, gradients)


def _cores(layer: Layer) -> list[Attention]:
    return [op for op in layer.ops if isinstance(op, Attention)]


def _both(first: Ends, second: Ends) -> Ends:
    """What waits for both, each task once."""
    return {index: list(dict.fromkeys([*first[index], *second.get(index, [])])) for index in first}


CONTEXTS: dict[str, type[ContextLowering]] = {
    "ring": RingLowering,
    "ulysses": UlyssesLowering,
    "all_gather": AllGatherLowering,
}


def context_lowering(strategy: Strategy) -> type[ContextLowering] | None:
    """How a strategy exchanges keys and values; ``None`` if every rank has all of its sequence, or none."""
    return CONTEXTS.get(strategy.context_parallelism) if strategy.cp > 1 else None
