"""Sharded data parallelism: ZeRO stages 1 to 3 (Rajbhandari et al., SC 2020) and FSDP."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from typing_extensions import override

from sim.graph.builder import Ends
from sim.graph.execution import Cause
from sim.lowering import offload
from sim.lowering.buckets import Bucket
from sim.lowering.emitter import Emitter
from sim.lowering.ends import extend
from sim.lowering.exchange import Exchange
from sim.lowering.plan import Plan
from sim.lowering.state.base import StateLowering, exchange_family
from sim.lowering.state.replicated import ReplicatedState


def shard_algorithm(plan: Plan) -> str:
    """Algorithm of gathers and scatters of shards."""
    return "ring" if plan.strategy.collective == "auto" else plan.strategy.collective


def scatter_exchange(plan: Plan) -> Exchange:
    """How gradients reach the owners of their shards."""
    return Exchange(plan, "reduce_scatter", lambda size, expert: shard_algorithm(plan))


def request_gathers(plan: Plan) -> None:
    """Route the all-gathers of parameters.

    Where several groups hold a copy of the state each (hybrid sharding), also the all-reduces among them.
    """
    algorithm = shard_algorithm(plan)
    for expert in plan.parameter_kinds:
        family = exchange_family("all_gather", algorithm, expert)
        plan.request_collective(family, plan.shard_groups(expert=expert), "all_gather", algorithm)
        plan.request_by_size(_replica_family(expert), plan.replica_groups(expert=expert), "all_reduce")


def _replica_family(expert: bool) -> str:
    return f"{'expert_' if expert else ''}replica_all_reduce"


def sum_replicas(
    state: StateLowering, stage: int, elements: float, expert: bool, step: int, done: Ends
) -> Ends:
    """All-reduce a shard of ``elements`` gradients among the groups that hold copies (HSDP, MiCS)."""
    size = elements / state.plan.shard_size(expert=expert) * state.gradient_bytes
    family = state.plan.family_of(_replica_family(expert), "all_reduce", size)
    return state.emitter.collective(
        family, state.sharers(stage), size, "replicas.all_reduce", Cause.GRADIENT_COMM, done,
        stream="dp_replicas", step=step,
    )  # fmt: skip


def layer_unit(plan: Plan, chunk: Sequence[int], layer: int) -> list[int]:
    """Layers of a chunk that are gathered and scattered together with one of them: its block."""
    layers = plan.workload.layers
    return [index for index in chunk if layers[index].block == layers[layer].block]


def unit_bucket(plan: Plan, unit: Sequence[int], expert: bool) -> Bucket:
    """The parameters of some layers, one of the ``parameter_kinds``, as one bucket."""
    elements = sum(plan.local_elements(index, expert=expert) for index in unit)
    tensors = (
        (index, at) for index in unit for at in range(len(plan.bucketing.local_tensors(index, expert)))
    )
    frozen = sum(plan.frozen_elements(index, expert=expert) for index in unit)
    return Bucket(unit[0], elements, unit[0], expert, tuple(tensors), frozen=frozen)


class ShardedOptimizerState(ReplicatedState):
    """ZeRO-1 and ZeRO-2: gradients are reduce-scattered, shards updated, parameters gathered.

    ZeRO-2 keeps only its shard of the gradients and therefore reduces after every micro-batch, ZeRO-1 after
    the last. With ``overlap`` the gathers run beside the next step's forward, each before its first use
    (Megatron's overlap-param-gather); without, they end the step, and ZeRO-2's reductions hold up the next
    micro-batch. With ``shard_ranks`` the shards are summed over their copies after the last micro-batch.
    ZeRO-1 may also all-reduce all gradients (``shard_reduction``); every copy of a shard is complete then.
    """

    exchange = "reduce_scatter"
    complete = False

    @override
    @classmethod
    def request_families(cls, plan: Plan) -> None:
        super().request_families(plan)
        request_gathers(plan)

    @override
    @classmethod
    def exchange_of(cls, plan: Plan) -> Exchange:
        if plan.strategy.shard_reduction == "all_reduce":
            return ReplicatedState.exchange_of(plan)
        return scatter_exchange(plan)

    @override
    def repeats(self, kind: str, stage: int, virtual: int, micro_batch: int) -> bool:
        if self._reduces_at_once or (self.strategy.sharding == 2 and kind in "BW"):
            return False
        return super().repeats(kind, stage, virtual, micro_batch)

    @override
    def before_layer(
        self, stage: int, virtual: int, layer: int, step: int, micro_batch: int, ends: Ends, *, backward: bool
    ) -> Ends:
        return self.unblocked(stage, ends)

    @override
    def exchange_bucket(self, stage: int, bucket: Bucket, step: int, after: Ends, name: str) -> Ends:
        done = super().exchange_bucket(stage, bucket, step, after, name)
        if not self.complete or self.strategy.shard_reduction == "all_reduce":
            return done
        return sum_replicas(self, stage, bucket.elements, bucket.expert, step, done)

    @override
    def after_backward(
        self, stage: int, virtual: int, layer: int, step: int, micro_batch: int, ends: Ends
    ) -> None:
        self.complete = super().completes(stage, virtual, micro_batch)
        super().after_backward(stage, virtual, layer, step, micro_batch, ends)
        if self._reduces_at_once and layer == self.plan.chunks[virtual][0]:
            exchanged, classes = self.exchanged[step], self.emitter.stage_classes[stage]
            before = {index: len(exchanged.get(index, ())) for index in classes}
            self.exchange_chunk(stage, virtual, step, ends)
            self.block(stage, {index: exchanged.get(index, [])[before[index] :] for index in classes})

    @property
    def _reduces_at_once(self) -> bool:
        return self.strategy.sharding == 2 and not self.strategy.overlap

    @override
    def exchange_all(self, stage: int, step: int) -> None:
        if not self._reduces_at_once:
            super().exchange_all(stage, step)

    @override
    def completes(self, stage: int, virtual: int, micro_batch: int) -> bool:
        return self.strategy.sharding == 2 or super().completes(stage, virtual, micro_batch)

    @override
    def update(self, stage: int, step: int, ready: Ends) -> Ends:
        return self.optimizer(stage, step, self.shard_elements(stage), ready)

    def gather(self, stage: int, bucket: Bucket, step: int, after: Ends) -> Ends:
        """All-gather one bucket's updated parameters."""
        size = bucket.elements * self.plan.element_bytes
        family = exchange_family("all_gather", shard_algorithm(self.plan), bucket.expert)
        return self.emitter.collective(
            family, self.sharers(stage), size, f"bucket{bucket.index}.all_gather",
            Cause.PARAMETER_COMM, after, stream="dp", chunks=self.strategy.chunks, step=step,
        )  # fmt: skip

    @override
    def finish(self) -> None:
        updated: Ends = {index: tasks for ends in self.updated.values() for index, tasks in ends.items()}
        gathered: Ends = {index: list(tasks) for index, tasks in updated.items()}
        for stage in range(self.strategy.pp):
            for virtual in self.plan.chunks_of(stage):
                if stage != self.plan.holders(virtual)[0]:
                    continue  # gathered together with its other holder
                for bucket in reversed(self.plan.buckets(virtual)):
                    done = self.gather(stage, bucket, 0, updated)
                    for index, tasks in done.items():
                        gathered[index] = gathered[index] + tasks
                        if self.strategy.overlap:
                            self.gate_forward(index, bucket.last_layer, done)
        for stage in range(self.strategy.pp):
            ends = self.boundary(stage, gathered)
            if not self.strategy.overlap:
                for index, task in ends.items():
                    self.gate_forward(index, 0, {index: [task]})


class FullyShardedState(StateLowering):
    """ZeRO-3 / FSDP: each block's parameters are gathered before its forward and again before its backward.

    A gather may start when the block ``prefetch + 1`` before it has been computed (FSDP's limit on gathers in
    flight); gradients are reduce-scattered as soon as a block's backward is done, after every micro-batch.
    Without ``reshard_after_forward`` parameters stay gathered for the backward. Of ``shard_ranks`` ranks each
    shares one copy; shards are summed over the copies after the last micro-batch (HSDP, MiCS).
    Without ``overlap`` nothing is gathered ahead and computation waits for every gather and scatter.
    """

    def __init__(self, emitter: Emitter) -> None:
        super().__init__(emitter)
        self.visits: dict[int, list[Ends]] = {stage: [] for stage in range(self.strategy.pp)}
        self.current: dict[int, tuple[int, int, bool]] = {}
        self.gates: dict[int, dict[int, int]] = {stage: {} for stage in range(self.strategy.pp)}
        self.reduced: dict[int, Ends] = {stage: {} for stage in range(self.strategy.pp)}
        self.units: dict[int, list[Bucket]] = {}  # by first layer
        self.scattered: dict[int, list[tuple[Bucket, Ends]]] = defaultdict(list)

    @override
    @classmethod
    def request_families(cls, plan: Plan) -> None:
        buckets = [
            unit_bucket(plan, unit, expert)
            for chunk in plan.chunks
            for unit in {tuple(layer_unit(plan, chunk, layer)) for layer in chunk}
            for expert in plan.parameter_kinds
        ]
        cls.request_parts(plan, scatter_exchange(plan), [bucket for bucket in buckets if bucket.elements])
        request_gathers(plan)
        size = plan.strategy.backward_shard_ranks
        if size is not None:
            groups = plan.shard_groups().reshape(-1, size)
            plan.request_collective("second_all_gather", groups, "all_gather", shard_algorithm(plan))

    @override
    def repeats(self, kind: str, stage: int, virtual: int, micro_batch: int) -> bool:
        return False  # a gather waits for computations further back than the block's entry

    def _unit(self, virtual: int, layer: int) -> list[int]:
        return layer_unit(self.plan, self.plan.chunks[virtual], layer)

    @override
    def before_layer(
        self, stage: int, virtual: int, layer: int, step: int, micro_batch: int, ends: Ends, *, backward: bool
    ) -> Ends:
        unit = self._unit(virtual, layer)
        key = (unit[0], micro_batch, backward)
        if self.current.get(stage) == key:
            return ends
        self.current[stage] = key
        ends = self.unblocked(stage, ends)
        if backward and not self.strategy.reshard_after_forward:
            return ends
        history = self.visits[stage]
        history.append(ends)
        wanted = len(history) - 1 - (self.strategy.prefetch if self.strategy.overlap else 0)
        after = history[wanted] if wanted >= 0 else {}
        if wanted <= 0:  # nothing else keeps it from running before the last iteration's update
            after = {c: [*after.get(c, []), self._gate(stage, c)] for c in self.emitter.stage_classes[stage]}
        second = backward and self.strategy.backward_shard_ranks is not None
        gathered = self._gather(stage, unit, after, micro_batch, step, second=second)
        return {c: [*ends.get(c, []), *gathered.get(c, [])] for c in self.emitter.stage_classes[stage]}

    def _gate(self, stage: int, index: int) -> int:
        """What the first gathers of a class wait for: the end of the iteration before."""
        found = self.gates[stage].get(index)
        if found is None:
            found = self.builder.control("step_start", device=self.emitter.device_row[index])
            self.gates[stage][index] = found
        return found

    def _gather(
        self, stage: int, unit: list[int], after: Ends, micro_batch: int, step: int, *, second: bool
    ) -> Ends:
        """Gather a unit's parameters: experts among their holders, those of the ``second`` copy nearby.

        With ``gather_bits`` they travel quantised: a shard is encoded, the whole unit decoded (ZeRO++, Wang
        et al. 2023, section 3).
        """
        done: Ends = {}
        bits = self.strategy.gather_bits
        width = self.plan.element_bytes if bits is None or second else bits / 8
        held = after
        for bucket in self._buckets(unit):
            elements = bucket.elements + bucket.frozen
            family = exchange_family("all_gather", shard_algorithm(self.plan), bucket.expert)
            if self.strategy.offload_parameters and not second:
                own = elements / self.plan.shard_size(expert=bucket.expert)
                held = offload.fetch(
                    self.emitter, stage, own, self.layers[unit[0]].name, after, micro_batch=micro_batch,
                    step=step,
                )  # fmt: skip
            ends = self.emitter.collective(
                "second_all_gather" if second else family,
                self.emitter.stage_classes[stage], elements * width,
                f"{self.layers[unit[0]].name}.all_gather", Cause.PARAMETER_COMM, held, stream="dp_gather",
                chunks=self.strategy.chunks, micro_batch=micro_batch, step=step,
            )  # fmt: skip
            name = f"{self.layers[unit[0]].name}.unpack"
            ends = self.copy_bucket(stage, elements, step, ends, name, "gather")
            if width < self.plan.element_bytes:
                passes = (1 + 1 / self.plan.shard_size()) * (1 + width / self.plan.element_bytes)
                ends = self.mix(stage, passes * elements, step, ends, f"{name}.decode")
            extend(done, ends)
        return done

    def _scatter(
        self, stage: int, unit: list[int], after: Ends, micro_batch: int, step: int, last: bool
    ) -> Ends:
        """Sum a unit's gradients, each rank its shard; experts among their own holders."""
        done: Ends = {}
        name = f"{self.layers[unit[0]].name}.reduce_scatter"
        for bucket in self._buckets(unit):
            if not bucket.elements:
                continue
            packed = self.copy_bucket(stage, bucket.elements, step, after, f"{name}.pack", "scatter")
            ends = self.exchange_parts(
                stage, bucket, scatter_exchange(self.plan), name, packed, stream="dp_reduce",
                micro_batch=micro_batch, step=step,
            )  # fmt: skip
            if last:
                ends = sum_replicas(self, stage, bucket.elements, bucket.expert, step, ends)
            self.scattered[stage].append((bucket, ends))
            extend(done, ends)
        return done

    def _buckets(self, unit: list[int]) -> list[Bucket]:
        """What a unit holds, by kind of parameters."""
        if unit[0] not in self.units:
            buckets = [unit_bucket(self.plan, unit, expert) for expert in self.plan.parameter_kinds]
            self.units[unit[0]] = [bucket for bucket in buckets if bucket.elements + bucket.frozen]
        return self.units[unit[0]]

    @override
    def gradients_ready(self, stage: int, virtual: int, layer: int, step: int, ends: Ends) -> None:
        """Nothing is left to do: blocks are reduced after every micro-batch."""

    @override
    def after_backward(
        self, stage: int, virtual: int, layer: int, step: int, micro_batch: int, ends: Ends
    ) -> None:
        super().after_backward(stage, virtual, layer, step, micro_batch, ends)
        unit = self._unit(virtual, layer)
        if layer != unit[0]:
            return
        last = self.completes(stage, virtual, micro_batch)
        done = self._scatter(stage, unit, ends, micro_batch, step, last)
        self.block(stage, done)
        extend(self.reduced[stage], done)

    @override
    def finish_step(self, step: int) -> None:
        ready = {
            stage: {
                index: self.reduced[stage].get(index, []) + self.last_weight[stage].get(index, [])
                for index in self.emitter.stage_classes[stage]
            }
            for stage in range(self.strategy.pp)
        }
        for stage in ready:
            for index, tasks in self._decoded(stage, step).items():
                ready[stage][index] = ready[stage][index] + tasks
        ready = self.all_gradients_ready(step, ready)
        self.updated = {
            stage: self.optimizer(stage, step, self.shard_elements(stage), ready[stage])
            for stage in range(self.strategy.pp)
        }

    def _decoded(self, stage: int, step: int) -> Ends:
        """After the last backward, the shards' encoded gradients are decoded one by one."""
        decoded: Ends = {}
        for bucket, done in self.scattered.pop(stage, ()):
            held = {c: [*done.get(c, []), *self.last_weight[stage].get(c, [])] for c in done}
            ends = self.decode(stage, bucket, step, held, f"layer{bucket.index}", scatter_exchange(self.plan))
            if ends is not held:
                extend(decoded, ends)
        return decoded

    @override
    def finish(self) -> None:
        for stage in range(self.strategy.pp):
            for index, task in self.boundary(stage, self.updated[stage]).items():
                if index in self.gates[stage]:
                    self.builder.edge(self.gates[stage][index], task, 1)
