"""Replicas that exchange models: local SGD, outer optimisers, and averages beside every step (D3, D4).

Local SGD (Stich, ICLR 2019; Lin et al., ICLR 2020), BMUF (Chen and Huo, ICASSP 2016), DiLoCo (Douillard et
al. 2023) and Streaming DiLoCo (2025), elastic averaging with an all-reduced centre (Zhang et al., NIPS 2015),
synchronous model averaging (Koliousis et al., Crossbow, VLDB 2019).
"""

from __future__ import annotations

from typing_extensions import override

from sim.graph.builder import Edge, Ends
from sim.graph.execution import Cause
from sim.lowering.buckets import Bucket
from sim.lowering.emitter import Emitter
from sim.lowering.plan import Plan
from sim.lowering.state.replicated import ReplicatedState
from sim.taxonomy.updates import UPDATES


def fragment_buckets(plan: Plan, stage: int, fragment: int) -> list[Bucket]:
    """Buckets of a fragment: those of the stage where it is whole, else equal ones, as many as needed."""
    buckets = [bucket for virtual in plan.chunks_of(stage) for bucket in plan.buckets(virtual)]
    count = plan.strategy.fragments
    if count == 1:
        return buckets
    parts = -(-len(buckets) // count)
    size = sum(bucket.elements for bucket in buckets) / count / parts
    return [Bucket(fragment * parts + part, size, buckets[-1].last_layer) for part in range(parts)]


def on_the_wire(plan: Plan, bucket: Bucket) -> Bucket:
    """A bucket of models as one of gradients with as many bytes."""
    bits = plan.strategy.exchange_bits
    factor = 1.0 if bits is None else bits / 8 / plan.gradient_bytes
    tensors = bucket.tensors if factor == 1 else ()
    return Bucket(bucket.index, bucket.elements * factor, bucket.last_layer, bucket.expert, tensors)


class ModelExchange(ReplicatedState):
    """What all exchanges of models by a collective share."""

    @override
    @classmethod
    def exchanged_buckets(cls, plan: Plan) -> list[Bucket]:
        models = [
            on_the_wire(plan, bucket)
            for stage in range(plan.strategy.pp)
            for fragment in range(plan.strategy.fragments)
            for bucket in fragment_buckets(plan, stage, fragment)
        ]
        return [*models, *super().exchanged_buckets(plan)]

    def average(self, stage: int, bucket: Bucket, step: int, after: Ends) -> Ends:
        """Average one bucket of the models, copies into and out of the bucket included."""
        label = f"model{bucket.index}"
        filled = self.copy_bucket(stage, bucket.elements, step, after, f"{label}.fill")
        sent = on_the_wire(self.plan, bucket)
        done = self.exchange_bucket(stage, sent, step, filled, f"{label}.average")
        done = self.decode_bucket(stage, sent, step, done, label)
        return self.copy_bucket(stage, bucket.elements, step, done, f"{label}.empty")

    def merge(self, stage: int, elements: float, step: int, after: Ends) -> Ends:
        """Work what was exchanged into the model; without cost where it simply replaces the model."""
        traffic = UPDATES[self.strategy.update_semantics].mixing
        return self.mix(stage, traffic * elements, step, after) if traffic else after


class LocalSgdState(ModelExchange):
    """``local_steps`` steps of every replica's own, then the models, or what they gained, are averaged.

    The averaging of a fragment starts when the local update before it is done, since a model is final only
    then. It ends before the next step starts, or with ``exchange_overlap`` that many steps later, when it is
    merged into the model behind that step's update. ``fragments`` of the model are exchanged in turn, at even
    distances within a period. ``synchronous_steps`` at the begin of a period all-reduce their gradients.
    """

    def __init__(self, emitter: Emitter) -> None:
        super().__init__(emitter)
        strategy = self.strategy
        self.first_local = strategy.synchronous_steps
        self.steps_per_iteration = strategy.synchronous_steps + strategy.local_steps
        self.sent: dict[tuple[int, int], Ends] = {}  # by (stage, fragment)
        self.merged: dict[tuple[int, int], list[tuple[int, Ends]]] = {}  # waiting for the next iteration

    @override
    def gradients_ready(self, stage: int, virtual: int, layer: int, step: int, ends: Ends) -> None:
        if step < self.first_local:
            super().gradients_ready(stage, virtual, layer, step, ends)

    def sends_at(self, fragment: int) -> int:
        """Step behind which a fragment is exchanged; the last one at the end of the period."""
        return self.first_local + (fragment + 1) * self.strategy.local_steps // self.strategy.fragments - 1

    @override
    def finish_step(self, step: int) -> None:
        super().finish_step(step)
        if step < self.first_local:
            return
        overlap, period = self.strategy.exchange_overlap, self.strategy.local_steps
        for stage in range(self.strategy.pp):
            before = {index: list(tasks) for index, tasks in self.updated[stage].items()}
            for fragment in range(self.strategy.fragments):
                sends, local = self.sends_at(fragment) - self.first_local, step - self.first_local
                if overlap and (sends + overlap) % period == local:
                    self._merge_fragment(stage, fragment, step, earlier=sends + overlap >= period)
                if sends == local:
                    self._send(stage, fragment, step, before)

    def _send(self, stage: int, fragment: int, step: int, before: Ends) -> None:
        averaged: Ends = {index: [] for index in before}
        elements = 0.0
        for bucket in fragment_buckets(self.plan, stage, fragment):
            elements += bucket.elements
            for index, tasks in self.average(stage, bucket, step, before).items():
                averaged[index] = averaged[index] + tasks
        if self.strategy.exchange_overlap:
            self.sent[stage, fragment] = averaged
            return
        held = {index: [*before[index], *tasks] for index, tasks in averaged.items()}
        merged = self.merge(stage, elements, step, held)
        if step == self.steps_per_iteration - 1 or merged is not held:
            self.updated[stage] = merged
        else:  # nothing on the compute stream holds the next step back
            self.updated[stage] = self._blocked(step, merged)

    def _blocked(self, step: int, after: Ends) -> Ends:
        """A compute task of no length that keeps the next step behind an exchange in mid-period."""
        return {
            index: [
                self.builder.compute(
                    self.emitter.device_row[index], 0.0, "averaged", Cause.OTHER, after=tasks, step=step
                )
            ]
            for index, tasks in after.items()
        }

    def _merge_fragment(self, stage: int, fragment: int, step: int, *, earlier: bool) -> None:
        """Behind this step's update: what was sent ``exchange_overlap`` steps ago is merged."""
        elements = sum(bucket.elements for bucket in fragment_buckets(self.plan, stage, fragment))
        wait: Ends = {} if earlier else self.sent[stage, fragment]
        held = {index: [*tasks, *wait.get(index, [])] for index, tasks in self.updated[stage].items()}
        traffic = max(
            UPDATES[self.strategy.update_semantics].mixing, 3.0
        )  # alpha-blended with the local model
        self.updated[stage] = self.mix(stage, traffic * elements, step, held)
        if earlier:
            self.merged.setdefault((stage, fragment), []).append((step, self.updated[stage]))

    @override
    def finish(self) -> None:
        for (stage, fragment), merges in self.merged.items():
            for _, merged in merges:
                for index, tasks in merged.items():
                    for source in self.sent[stage, fragment].get(index, ()):
                        self._late(tasks, source)
        for stage in range(self.strategy.pp):
            ends = self.boundary(stage, self.updated[stage])
            for index, task in ends.items():
                self.gate_forward(index, 0, {index: [task]})

    def _late(self, tasks: list[Edge], source: Edge) -> None:
        for task in tasks:
            if isinstance(task, int) and isinstance(source, int):
                self.builder.edge(task, source, 1)


class ModelAverageState(ModelExchange):
    """Synchronous model averaging: corrections of every step are summed while the step computes.

    A correction is the distance to the central average model, known when a step starts: its all-reduce runs
    beside the step, and the update behind the backward waits for it (Crossbow, VLDB 2019, algorithm 1). With
    ``overlap`` off it follows the update.
    """

    def __init__(self, emitter: Emitter) -> None:
        super().__init__(emitter)
        self.started: dict[int, Ends] = {}

    @override
    def gradients_ready(self, stage: int, virtual: int, layer: int, step: int, ends: Ends) -> None:
        """Nothing is exchanged but corrections."""

    @override
    def update(self, stage: int, step: int, ready: Ends) -> Ends:
        elements = self.stage_elements(stage)
        if not self.strategy.overlap:
            updated = self.optimizer(stage, step, elements, ready)
            return self.merge(stage, elements, step, self._corrections(stage, step, updated))
        started: Ends = {
            index: [self.builder.control("corrected", device=self.emitter.device_row[index], step=step)]
            for index in ready
        }
        self.started[stage] = started
        summed = self._corrections(stage, step, started)
        held = {index: [*ready[index], *summed.get(index, [])] for index in ready}
        return self.optimizer(stage, step, elements, self.merge(stage, elements, step, held))

    def _corrections(self, stage: int, step: int, after: Ends) -> Ends:
        done: Ends = {index: list(tasks) for index, tasks in after.items()}
        for virtual in self.plan.chunks_of(stage):
            for bucket in self.plan.buckets(virtual):
                for index, tasks in self.average(stage, bucket, step, after).items():
                    done[index] = done[index] + tasks
        return done

    @override
    def finish(self) -> None:
        for stage in range(self.strategy.pp):
            for index, task in self.boundary(stage, self.updated[stage]).items():
                for start in self.started.get(stage, {}).get(index, ()):
                    if isinstance(start, int):
                        self.builder.edge(start, task, 1)
                self.gate_forward(index, 0, {index: [task]})
