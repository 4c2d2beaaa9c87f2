"""Replicated parameters: bucketed all-reduce overlapped with backward (DDP)."""

from __future__ import annotations

from collections import defaultdict

from typing_extensions import override

from sim.graph.builder import Ends, source
from sim.graph.execution import Cause
from sim.lowering.buckets import Bucket
from sim.lowering.emitter import Emitter
from sim.lowering.ends import extend
from sim.lowering.exchange import Exchange
from sim.lowering.plan import Plan
from sim.lowering.scheduling import priority
from sim.lowering.state.base import StateLowering, back
from sim.lowering.tables import touched_elements
from sim.models.compute import layer_cost


class ReplicatedState(StateLowering):
    """Every rank holds all of its parameters; gradients are all-reduced bucket by bucket.

    PyTorch DDP (Li et al., VLDB 2020): a bucket's all-reduce starts when its last gradient of the last
    micro-batch is ready; buckets go in order. Without ``overlap`` all buckets follow the backward.
    With a ``delay`` of d steps the update behind a backward applies the gradients of d steps ago, so that
    their exchange may go on beside d further steps (double buffering; gradient lag, Kurth et al., SC 2018).
    """

    exchange = "all_reduce"

    def __init__(self, emitter: Emitter) -> None:
        super().__init__(emitter)
        self.exchanged: dict[int, Ends] = defaultdict(dict)  # by step
        self.finished: dict[tuple[int, int], list[tuple[Bucket, Ends]]] = defaultdict(list)
        self.multiplied: dict[tuple[int, int], list[tuple[Bucket, Ends]]] = defaultdict(list)  # factors
        self.updated: dict[int, Ends] = {}
        self.placed: dict[int, int] = {}  # class -> where a delayed update begins

    @override
    @classmethod
    def request_families(cls, plan: Plan) -> None:
        buckets = cls.exchanged_buckets(plan)
        cls.request_parts(plan, cls.exchange_of(plan), [each for each in buckets if not each.factors])
        if any(bucket.factors for bucket in buckets):
            plan.request_by_size("dp_factors", plan.gradient_groups(), "all_gather")

    @classmethod
    def exchanged_buckets(cls, plan: Plan) -> list[Bucket]:
        """Every bucket that is exchanged."""
        return plan.all_buckets

    @classmethod
    def exchange_of(cls, plan: Plan) -> Exchange:
        """How buckets are exchanged."""
        return Exchange(plan, cls.exchange, lambda size, expert: cls._algorithm(plan, size, expert))

    @classmethod
    def _algorithm(cls, plan: Plan, size: float, expert: bool) -> str:
        if plan.strategy.collective != "auto":
            return plan.strategy.collective
        return plan.choose(cls.exchange, size, plan.gradient_groups(expert=expert)[0])

    def exchange_bucket(self, stage: int, bucket: Bucket, step: int, after: Ends, name: str) -> Ends:
        """Encode one bucket and sum it among the data-parallel ranks of a stage."""
        after = self.sum_on_device(stage, bucket.elements, step, after, name)
        return self.exchange_parts(
            stage, bucket, self.exchange_of(self.plan), name, after, stream="dp", step=step,
            priority=priority(self.plan, bucket),
        )  # fmt: skip

    def sum_on_device(self, stage: int, elements: float, step: int, after: Ends, name: str) -> Ends:
        """Add up what the replicas that share a device have to say: read all, write the sum."""
        replicas = self.strategy.replicas_per_device
        if replicas == 1:
            return after
        share = (replicas + 1) / replicas  # ``mix`` counts every replica
        return self.mix(stage, share * elements, step, after, f"{name}.on_device")

    def decode_bucket(self, stage: int, bucket: Bucket, step: int, after: Ends, name: str) -> Ends:
        """Decode what the exchange of a bucket brought."""
        return self.decode(stage, bucket, step, after, name, self.exchange_of(self.plan))

    def _factors(self, stage: int, bucket: Bucket, step: int, after: Ends) -> Ends:
        """Gather everybody's sufficient factors of a layer and multiply out those of the others."""
        name, ranks = self.layers[bucket.last_layer].name, self.plan.gradient_span()[0]
        size = bucket.factors * ranks * self.gradient_bytes
        family = self.plan.family_of("dp_factors", "all_gather", size)
        done = self.emitter.collective(
            family, self.sharers(stage), size, f"{name}.factors", Cause.GRADIENT_COMM, after, stream="dp",
            step=step, priority=priority(self.plan, bucket),
        )  # fmt: skip
        seconds = {c: self._multiplied_s(c, bucket.last_layer, ranks - 1) for c in done}
        return self.emitter.compute(list(done), seconds, f"{name}.multiply", Cause.BACKWARD, done, step=step)

    def _multiplied_s(self, index: int, layer: int, others: int) -> float:
        """Seconds to multiply out the factors of some other ranks in one product, or to add up their rows."""
        if layer in self.plan.tables:
            device = self.plan.device_of_rank(int(self.plan.classes.representatives[index]))
            efficiency = self.plan.calibration.value("device", device.name, "memory_efficiency")
            elements = others * touched_elements(self.layers[layer], self.plan.step_samples)
            return 3 * elements * self.plan.element_bytes / (device.memory_bandwidth * efficiency)
        return layer_cost(
            self.layers[layer],
            device=self.plan.device_of_rank(int(self.plan.classes.representatives[index])),
            dtype=self.plan.workload.dtype,
            micro_batch=others * self.plan.step_samples,
            calibration=self.plan.calibration,
        ).backward_weight_s

    @override
    def gradients_ready(self, stage: int, virtual: int, layer: int, step: int, ends: Ends) -> None:
        for bucket in self.plan.buckets(virtual):
            if bucket.last_layer == layer and bucket.factors:
                done = self._factors(stage, bucket, step, ends)
                self.multiplied[stage, step].append((bucket, done))
                self._awaited(step, done)
            elif bucket.last_layer == layer:
                label = f"bucket{bucket.index}"
                filled = self.copy_bucket(stage, bucket.elements, step, ends, f"{label}.fill")
                filled = self.agreed(stage, bucket, step, filled, f"{label}.agree")
                done = self.exchange_bucket(stage, bucket, step, filled, f"{label}.{self.exchange}")
                self.finished[stage, step].append((bucket, done))
                self._awaited(step, done)

    def _awaited(self, step: int, done: Ends) -> None:
        """What an update of this step waits for, beside what it waits for already."""
        extend(self.exchanged[step], done)

    @override
    def finish_step(self, step: int) -> None:
        stages = range(self.strategy.pp)
        if not self.strategy.overlap:
            for stage in stages:
                self.exchange_all(stage, step)
        self.exchanged[step] = back(self.exchanged[step], self.strategy.delay)
        for stage in stages:
            self._empty_buckets(stage, step)
        ready = {
            stage: {
                index: self.exchanged[step].get(index, []) + self.last_weight[stage].get(index, [])
                for index in self.emitter.stage_classes[stage]
            }
            for stage in stages
        }
        ready = self.all_gradients_ready(step, ready)
        if self.placed:
            self._feed_updates(ready)
            return
        self.updated = {stage: self.update(stage, step, ready[stage]) for stage in stages}

    @override
    def place_update(self, stage: int, step: int) -> None:
        ends: Ends = {}
        for index in self.emitter.stage_classes[stage]:
            self.placed[index] = self.builder.control(
                "delayed_update", device=self.emitter.device_row[index], step=step
            )
            ends[index] = [self.placed[index]]
        for virtual in self.plan.chunks_of(stage):
            for bucket in self.plan.buckets(virtual):
                ends = self.decode_bucket(stage, bucket, step, ends, f"bucket{bucket.index}")
                ends = self.copy_bucket(stage, bucket.elements, step, ends, f"bucket{bucket.index}.empty")
        self.updated[stage] = self.update(stage, step, ends)

    def _feed_updates(self, ready: dict[int, Ends]) -> None:
        """Updates that have their place already wait for the gradients of an earlier step."""
        delay = self.plan.schedule_facts.update_delay
        for ends in ready.values():
            for index, tasks in ends.items():
                for task in tasks:
                    self.builder.edge(self.placed[index], source(task), delay)

    def _empty_buckets(self, stage: int, step: int) -> None:
        """After the backward, buckets are decoded and copied back into the gradients one by one."""
        for bucket, done in self.finished.pop((stage, step), ()):
            if self.placed:
                continue  # the delayed update begins with it
            done, latest = back(done, self.strategy.delay), self.last_weights(stage)
            held = {c: [*done.get(c, []), *latest.get(c, [])] for c in done}
            emptied = self.decode_bucket(stage, bucket, step, held, f"bucket{bucket.index}")
            emptied = self.copy_bucket(stage, bucket.elements, step, emptied, f"bucket{bucket.index}.empty")
            if emptied is not held:
                self._awaited(step, emptied)

    def update(self, stage: int, step: int, ready: Ends) -> Ends:
        """Update all parameters of a stage on each of its ranks."""
        return self.optimizer(stage, step, self.stage_elements(stage), ready)

    @override
    def finish(self) -> None:
        for stage in range(self.strategy.pp):
            ends = self.updated[stage]
            if self.placed:  # the period goes on behind its update
                latest = self.last_weight[stage]
                ends = {index: [*tasks, *latest.get(index, [])] for index, tasks in ends.items()}
            self.boundary(stage, ends)
