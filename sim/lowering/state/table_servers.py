"""Embedding tables on servers beside workers, everything else replicated (taxonomy D2, mixed placement).

Parallax (Kim et al., EuroSys 2019): variables with sparse gradients on parameter servers, dense ones by
all-reduce. With ``in_network: libra`` switches sum the rows that are looked up most (Pan et al. 2022).
"""

from __future__ import annotations

from typing_extensions import override

from sim.graph.builder import Edge, Ends
from sim.graph.execution import Cause
from sim.lowering.buckets import Bucket
from sim.lowering.emitter import Emitter
from sim.lowering.ends import extend
from sim.lowering.plan import Plan
from sim.lowering.state.parameter_server import FP32, ParameterServerState
from sim.lowering.state.replicated import ReplicatedState
from sim.lowering.switches import adds_sparse, in_switches, request_switches
from sim.lowering.tables import INDEX_BYTES, row_width, touched_elements, touched_rows
from sim.spec.workload import OPTIMIZER_STATES
from sim.wire.compressor import Message


class TableServers(ParameterServerState):
    """The tables' side: rows are pulled before the forward of their layer and their gradients pushed behind
    its backward; servers update the rows that any worker has looked up. A bucket is what a worker looks up in
    the tables of one layer.
    """

    def __init__(self, emitter: Emitter) -> None:
        super().__init__(emitter)
        self.hot = self.strategy.switch_hot_share if adds_sparse(self.plan) else 0.0
        self.specs = self.plan.scenario.workload.layers

    @override
    @classmethod
    def request_families(cls, plan: Plan) -> None:
        super().request_families(plan)
        if adds_sparse(plan):
            request_switches(plan, "hot_rows", plan.gradient_groups())

    @override
    def buckets(self, virtual: int) -> list[Bucket]:
        layers = [layer for layer in reversed(self.plan.chunks[virtual]) if layer in self.plan.tables]
        samples = self.plan.step_samples
        return [
            Bucket(at, touched_elements(self.specs[layer], samples), layer) for at, layer in enumerate(layers)
        ]

    @override
    def _label(self, virtual: int, bucket: Bucket) -> str:
        return self.layers[bucket.last_layer].name

    def _bytes(self, bucket: Bucket, element: float, samples: float) -> float:
        spec = self.specs[bucket.last_layer]
        return touched_rows(spec, samples) * (row_width(spec) * element + INDEX_BYTES)

    @override
    def push_size(self, bucket: Bucket) -> float:
        whole = self._bytes(bucket, self.plan.element_bytes, self.plan.step_samples)
        return (1 - self.hot) * whole

    @override
    def answer(self, bucket: Bucket) -> tuple[float, float]:
        whole = self._bytes(bucket, self.parameter_bytes, self.plan.step_samples)
        return (1 - self.hot) * whole, 0.0

    @override
    def inline_codec(self, bucket: Bucket) -> float:
        return 0.0

    @override
    def _encoded(self, stage: int, bucket: Bucket, label: str, ends: Ends) -> Ends:
        return ends

    @override
    def _sum_seconds(self, bucket: Bucket) -> float:
        passes = 3 * FP32 * (1 - self.hot) * bucket.elements
        return passes / len(self.plan.server_endpoints) / self.server_memory_bandwidth

    @override
    def _update_seconds(self, bucket: Bucket, shards: int = 1) -> float:
        passes = 1.0 + 2 * (1 + OPTIMIZER_STATES[self.plan.workload.optimizer])
        samples = self.workers * self.plan.step_samples
        rows = touched_elements(self.specs[bucket.last_layer], samples)
        traffic = FP32 * passes * rows
        return traffic / len(self.plan.server_endpoints) / self.server_memory_bandwidth

    @override
    def gradients_ready(self, stage: int, virtual: int, layer: int, step: int, ends: Ends) -> None:
        super().gradients_ready(stage, virtual, layer, step, ends)
        for bucket in self.buckets(virtual) if self.hot else ():
            if bucket.last_layer == layer:
                self._sum_in_switches(stage, bucket, ends)

    def _sum_in_switches(self, stage: int, bucket: Bucket, ends: Ends) -> None:
        whole = self._bytes(bucket, self.plan.element_bytes, self.plan.step_samples)
        for part in in_switches(self.plan, bucket, Message(self.hot * whole)):
            ends = self.emitter.collective(
                "hot_rows", self.emitter.stage_classes[stage], part.size,
                f"{self.layers[bucket.last_layer].name}.hot_rows", Cause.GRADIENT_COMM, ends,
                stream="hot_rows", extra_latency=part.latency,
            )  # fmt: skip
        extend(self.applied, ends)

    @override
    def finish_step(self, step: int) -> None:
        if not self.strategy.overlap:
            self.exchange_all(0, step)

    def applied_rows(self, index: int) -> Edge:
        """The instant at which all tables have this step's updates."""
        return self.builder.control(
            "tables.applied", device=self.emitter.device_row[index], after=dict.fromkeys(self.applied[index])
        )

    def begin_next(self, index: int, applied: Edge, end: int) -> None:
        """The next pulls of a class follow the updates, or without overlap the whole step."""
        gate = applied if self.strategy.overlap and isinstance(applied, int) else end
        self.builder.edge(self.starts[index], gate, 1)


class MixedState(ReplicatedState):
    """Dense parameters as replicated ones, tables as :class:`TableServers` do."""

    def __init__(self, emitter: Emitter) -> None:
        super().__init__(emitter)
        self.tables = TableServers(emitter)

    @override
    @classmethod
    def request_families(cls, plan: Plan) -> None:
        super().request_families(plan)
        TableServers.request_families(plan)

    @override
    def repeats(self, kind: str, stage: int, virtual: int, micro_batch: int) -> bool:
        alike = self.tables.repeats(kind, stage, virtual, micro_batch)
        return alike and super().repeats(kind, stage, virtual, micro_batch)

    @override
    def before_layer(
        self, stage: int, virtual: int, layer: int, step: int, micro_batch: int, ends: Ends, *, backward: bool
    ) -> Ends:
        ends = super().before_layer(stage, virtual, layer, step, micro_batch, ends, backward=backward)
        return self.tables.before_layer(stage, virtual, layer, step, micro_batch, ends, backward=backward)

    @override
    def after_backward(
        self, stage: int, virtual: int, layer: int, step: int, micro_batch: int, ends: Ends
    ) -> None:
        super().after_backward(stage, virtual, layer, step, micro_batch, ends)
        self.tables.after_backward(stage, virtual, layer, step, micro_batch, ends)

    @override
    def finish_step(self, step: int) -> None:
        super().finish_step(step)
        self.tables.finish_step(step)

    @override
    def finish(self) -> None:
        applied = {index: self.tables.applied_rows(index) for index in self.emitter.stage_classes[0]}
        held = {index: [*tasks, applied[index]] for index, tasks in self.updated[0].items()}
        for index, end in self.boundary(0, held).items():
            self.tables.begin_next(index, applied[index], end)
