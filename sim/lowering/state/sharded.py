"""Sharded data parallelism: ZeRO stages 1 to 3 (Rajbhandari et al., SC 2020) and FSDP."""

from __future__ import annotations

from typing_extensions import override

from sim.graph.builder import Ends
from sim.graph.execution import Cause
from sim.lowering.buckets import Bucket
from sim.lowering.emitter import Emitter
from sim.lowering.plan import Plan
from sim.lowering.state.base import StateLowering
from sim.lowering.state.replicated import ReplicatedState
from sim.spec.workload import DTYPE_BYTES


class ShardedOptimizerState(ReplicatedState):
    """ZeRO-1 and ZeRO-2: gradients are reduce-scattered, shards updated, parameters gathered.

    ZeRO-2 keeps only its shard of the gradients and therefore reduces after every micro-batch, ZeRO-1 after
    the last. With ``overlap`` the gathers run beside the next step's forward, each before its first use
    (Megatron's overlap-param-gather); without, they end the step.
    """

    exchange = "reduce_scatter"

    @override
    @classmethod
    def request_families(cls, plan: Plan) -> None:
        groups = plan.layout.groups("cp", "dp")
        algorithm = cls._algorithm(plan)
        for operation in ("reduce_scatter", "all_gather"):
            plan.request_collective(f"dp_{operation}_{algorithm}", groups, operation, algorithm)

    @classmethod
    def _algorithm(cls, plan: Plan, size: float = 0.0) -> str:
        return "ring" if plan.strategy.collective == "auto" else plan.strategy.collective

    @override
    def repeats(self, kind: str, micro_batch: int) -> bool:
        return super().repeats(kind, micro_batch) and (kind == "F" or self.strategy.state != "zero2")

    @override
    def is_last_micro_batch(self, micro_batch: int) -> bool:
        return self.strategy.state == "zero2" or super().is_last_micro_batch(micro_batch)

    @override
    def update(self, stage: int, step: int, ready: Ends) -> Ends:
        shards = self.plan.layout.groups("cp", "dp").shape[1]
        return self.optimizer(stage, step, self.stage_elements(stage) / shards, ready)

    def gather(self, stage: int, bucket: Bucket, step: int, after: Ends) -> Ends:
        """All-gather one bucket's updated parameters."""
        size = bucket.elements * DTYPE_BYTES[self.plan.workload.dtype]
        family = f"dp_all_gather_{self._algorithm(self.plan)}"
        return self.emitter.collective(
            family, self.emitter.stage_classes[stage], size, f"bucket{bucket.index}.all_gather",
            Cause.PARAMETER_COMM, after, stream="dp", chunks=self.strategy.chunks, step=step,
        )  # fmt: skip

    @override
    def finish(self) -> None:
        for stage in range(self.strategy.pp):
            gathered: Ends = {index: list(tasks) for index, tasks in self.updated[stage].items()}
            for virtual in range(stage, len(self.plan.chunks), self.strategy.pp):
                for bucket in reversed(self.plan.buckets(virtual)):
                    done = self.gather(stage, bucket, 0, self.updated[stage])
                    for index, tasks in done.items():
                        gathered[index] = gathered[index] + tasks
                        if self.strategy.overlap:
                            self.gate_forward(index, bucket.last_layer, done)
            ends = self.boundary(stage, gathered)
            if not self.strategy.overlap:
                for index, task in ends.items():
                    self.gate_forward(index, 0, {index: [task]})


class FullyShardedState(StateLowering):
    """ZeRO-3 / FSDP: each block's parameters are gathered before its forward and again before its backward.

    A gather may start when the block ``prefetch + 1`` before it has been computed (FSDP's limit on gathers in
    flight); gradients are reduce-scattered as soon as a block's backward is done, after every micro-batch.
    """

    def __init__(self, emitter: Emitter) -> None:
        super().__init__(emitter)
        self.visits: dict[int, list[Ends]] = {stage: [] for stage in range(self.strategy.pp)}
        self.current: dict[int, tuple[int, int, bool]] = {}
        self.first_gathers: dict[int, dict[int, list[int]]] = {stage: {} for stage in range(self.strategy.pp)}
        self.reduced: dict[int, Ends] = {stage: {} for stage in range(self.strategy.pp)}
        self.native = DTYPE_BYTES[self.plan.workload.dtype]

    @override
    @classmethod
    def request_families(cls, plan: Plan) -> None:
        groups = plan.layout.groups("cp", "dp")
        for operation in ("reduce_scatter", "all_gather"):
            plan.request_collective(f"dp_{operation}", groups, operation, cls.algorithm(plan))

    @staticmethod
    def algorithm(plan: Plan) -> str:
        """Algorithm of gathers and scatters."""
        return "ring" if plan.strategy.collective == "auto" else plan.strategy.collective

    @override
    def repeats(self, kind: str, micro_batch: int) -> bool:
        return False  # a gather waits for computations further back than the block's entry

    def _unit(self, virtual: int, layer: int) -> list[int]:
        block = self.layers[layer].block
        return [index for index in self.plan.chunks[virtual] if self.layers[index].block == block]

    @override
    def before_layer(
        self, stage: int, virtual: int, layer: int, step: int, micro_batch: int, ends: Ends, *, backward: bool
    ) -> Ends:
        unit = self._unit(virtual, layer)
        key = (unit[0], micro_batch, backward)
        if self.current.get(stage) == key:
            return ends
        self.current[stage] = key
        history = self.visits[stage]
        history.append(ends)
        wanted = len(history) - 1 - self.strategy.prefetch
        after = history[wanted] if wanted >= 0 else {}
        elements = sum(self.plan.local_elements(index) for index in unit)
        if not elements:
            return ends
        classes = self.emitter.stage_classes[stage]
        gathered = self.emitter.collective(
            "dp_all_gather", classes, elements * self.native, f"{self.layers[unit[0]].name}.all_gather",
            Cause.PARAMETER_COMM, after, stream="dp_gather", chunks=self.strategy.chunks,
            micro_batch=micro_batch, step=step,
        )  # fmt: skip
        if wanted <= 0:
            for index, tasks in gathered.items():
                self.first_gathers[stage].setdefault(index, []).extend(t for t in tasks if isinstance(t, int))
        return {index: [*ends.get(index, []), *gathered[index]] for index in classes}

    @override
    def after_backward(
        self, stage: int, virtual: int, layer: int, step: int, micro_batch: int, ends: Ends
    ) -> None:
        super().after_backward(stage, virtual, layer, step, micro_batch, ends)
        unit = self._unit(virtual, layer)
        elements = sum(self.plan.local_elements(index) for index in unit)
        if layer != unit[0] or not elements:
            return
        done = self.emitter.collective(
            "dp_reduce_scatter", self.emitter.stage_classes[stage], elements * self.gradient_bytes,
            f"{self.layers[layer].name}.reduce_scatter", Cause.GRADIENT_COMM, ends, stream="dp_reduce",
            chunks=self.strategy.chunks, extra_latency=self.compression_latency(elements),
            micro_batch=micro_batch, step=step,
        )  # fmt: skip
        for index, tasks in done.items():
            self.reduced[stage].setdefault(index, []).extend(tasks)

    @override
    def finish_step(self, step: int) -> None:
        ready = {
            stage: {
                index: self.reduced[stage].get(index, []) + self.last_weight[stage].get(index, [])
                for index in self.emitter.stage_classes[stage]
            }
            for stage in range(self.strategy.pp)
        }
        ready = self.all_gradients_ready(step, ready)
        shards = self.plan.layout.groups("cp", "dp").shape[1]
        self.updated = {
            stage: self.optimizer(stage, step, self.stage_elements(stage) / shards, ready[stage])
            for stage in range(self.strategy.pp)
        }

    @override
    def finish(self) -> None:
        for stage in range(self.strategy.pp):
            for index, task in self.boundary(stage, self.updated[stage]).items():
                for gather in self.first_gathers[stage].get(index, ()):
                    self.builder.edge(gather, task, 1)
