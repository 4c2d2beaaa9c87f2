"""What every placement of parameters and optimiser state must do for a training step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable

from sim.graph.builder import Edge, Ends
from sim.graph.execution import Cause, TaskKind
from sim.lowering import offload
from sim.lowering.buckets import Bucket
from sim.lowering.emitter import Emitter
from sim.lowering.exchange import Exchange, decoding_seconds, encoding_seconds
from sim.lowering.plan import Plan
from sim.lowering.scheduling import negotiation_seconds
from sim.lowering.switches import SWITCHES, request_switches
from sim.models.compute import optimizer_time, step_overhead
from sim.spec import Device


def exchange_family(operation: str, algorithm: str, expert: bool) -> str:
    """Family of a collective among the ranks that hold the same (expert) parameters."""
    return f"{'expert_' if expert else ''}dp_{operation}_{algorithm}"


def back(ends: Ends, iterations: int) -> Ends:
    """The same end points of an iteration before."""
    if not iterations:
        return ends
    return {
        index: [
            (edge, iterations) if isinstance(edge, int) else (edge[0], edge[1] + iterations) for edge in tasks
        ]
        for index, tasks in ends.items()
    }


class StateLowering(ABC):
    """Lowers gradient exchange and parameter update; one subclass per family of placements.

    The step lowering calls, in this order: ``input_ready`` and ``before_layer`` on the way,
    ``after_backward`` after each layer's weight gradients, ``finish_step`` once per step, ``finish`` once per
    iteration.
    """

    steps_per_iteration = 1

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self.plan = emitter.plan
        self.strategy = self.plan.strategy
        self.builder = emitter.builder
        self.layers = self.plan.workload.layers
        self.gradient_bytes = self.plan.gradient_bytes
        self.first_forward: dict[tuple[int, int], int] = {}
        self.last_weight: dict[int, Ends] = defaultdict(dict)
        self.blocking: dict[int, Ends] = {}
        self.partial: dict[tuple[int, int, int], Ends] = {}
        self.loaded: dict[int, list[int]] = defaultdict(list)
        self.first_of_step: dict[tuple[int, int], int] = {}

    @classmethod
    @abstractmethod
    def request_families(cls, plan: Plan) -> None:
        """Route the process groups this placement communicates in."""

    @classmethod
    def request_parts(cls, plan: Plan, exchange: Exchange, buckets: Iterable[Bucket]) -> None:
        """Route every collective that the exchange of these buckets takes."""
        strategy = plan.strategy
        found = {(b.expert, part.operation, part.algorithm) for b in buckets for part in exchange.parts(b)}
        for expert, operation, algorithm in sorted(found):
            family = exchange_family(operation, algorithm, expert)
            if algorithm == SWITCHES:
                request_switches(plan, family, exchange.groups(expert=expert))
                continue
            plan.request_collective(
                family,
                exchange.groups(expert=expert),
                operation,
                algorithm,
                dims=strategy.collective_dims if exchange.operation == "all_reduce" else None,
                radix=strategy.collective_radix,
            )

    def exchange_parts(
        self,
        stage: int,
        bucket: Bucket,
        exchange: Exchange,
        name: str,
        after: Ends,
        *,
        stream: str,
        **options: int,
    ) -> Ends:
        """Encode one bucket and run the collectives that sum it among the ranks that hold its parameters."""
        classes = self.sharers(stage)
        latency = self.inline_codec(bucket)
        after = self.encode(stage, bucket, options["step"], after, name)
        for part in exchange.parts(bucket):
            after = self.emitter.collective(
                exchange_family(part.operation, part.algorithm, bucket.expert), classes, part.size, name,
                Cause.GRADIENT_COMM, after, stream=stream, chunks=self.strategy.chunks,
                extra_latency=latency + part.latency, **options,
            )  # fmt: skip
            latency = 0.0
        return after

    @abstractmethod
    def finish_step(self, step: int) -> None:
        """Emit what follows the last backward: remaining exchange and the update."""

    @abstractmethod
    def finish(self) -> None:
        """Emit the end of the iteration: one boundary task per class."""

    def input_ready(self, stage: int, step: int, micro_batch: int) -> Ends:
        """What the first layer of a micro-batch waits for."""
        return {}

    def samples_ready(self, stage: int, step: int, micro_batch: int, ends: Ends) -> Ends:
        """Add what a forward waits for: samples loaded ``prefetch_batches`` steps before, and decoded."""
        first = self.plan.first_micro_batch(stage, 0)
        batch = step - self.strategy.prefetch_batches
        if micro_batch == first and batch >= 0:
            ends = {
                index: [*ends.get(index, []), *self.loaded[index][batch : batch + 1]]
                for index in self.emitter.stage_classes[stage]
            }
        seconds = self.plan.data_path.device_s / self.plan.micro_batches
        if not seconds:
            return ends
        classes = self.emitter.stage_classes[stage]
        decoded = self.emitter.compute(
            classes,
            dict.fromkeys(classes, seconds),
            "decode",
            Cause.DATA,
            ends,
            micro_batch=micro_batch,
            step=step,
        )
        if micro_batch == first:
            for index in classes:
                self._remember_first(index, step, decoded.get(index, []))
        return decoded

    def _remember_first(self, index: int, step: int, tasks: list[Edge]) -> None:
        if len(tasks) == 1 and isinstance(tasks[0], int):
            self.first_of_step.setdefault((index, step), tasks[0])

    def load_samples(self, step: int) -> None:
        """Prepare the samples of a later step beside this one (taxonomy D15).

        The loader is ahead by ``prefetch_batches``; it stretches steps only when it takes longer than they.
        """
        seconds = self.plan.data_path.seconds
        if seconds <= 0:
            return
        for index in self.sharers(0):
            row = self.emitter.device_row[index]
            stream = self.builder.stream(row, "loader")
            task = self.builder.compute(
                row, seconds, "load_samples", Cause.DATA, streams=(stream,), step=step
            )
            self.loaded[index].append(task)

    def end_iteration(self, index: int, after: Iterable[Edge]) -> int:
        """The last task of a class in an iteration; its loader begins the next batch behind it."""
        loaded, row = self.loaded[index], self.emitter.device_row[index]
        end = self.builder.control(
            "step_end",
            device=row,
            after=[*self._saved(index, list(after)), *loaded[-1:]],
            boundary=True,
            step=self.steps_per_iteration - 1,
        )
        if loaded:
            self.builder.edge(loaded[0], end, 1)
            self._gate_by_samples(index)
        return end

    def _saved(self, index: int, after: list[Edge]) -> list[Edge]:
        """A checkpoint's stall, spread over the steps between two of them (taxonomy D19)."""
        found = self.plan.checkpoint
        if found is None or found.stall_s <= 0:
            return after
        stall = found.stall_s * self.steps_per_iteration / found.every_steps
        row = self.emitter.device_row[index]
        return [self.builder.compute(row, stall, "checkpoint", Cause.DATA, after=after)]

    def _gate_by_samples(self, index: int) -> None:
        """First tasks of steps whose samples an earlier iteration loaded wait for that."""
        steps, ahead = self.steps_per_iteration, self.strategy.prefetch_batches
        for (owner, step), first in self.first_of_step.items():
            if owner == index and step < ahead:
                self.builder.edge(
                    first, self.loaded[index][(step - ahead) % steps], -((step - ahead) // steps)
                )

    def repeats(self, kind: str, stage: int, virtual: int, micro_batch: int) -> bool:
        """Whether an action (see :class:`Action`) is like that of later micro-batches, the ends aside."""
        return kind in "FI" or micro_batch != self.plan.last_micro_batch[stage, virtual]

    def before_layer(
        self, stage: int, virtual: int, layer: int, step: int, micro_batch: int, ends: Ends, *, backward: bool
    ) -> Ends:
        """Add what a layer waits for besides its input."""
        return ends

    def block(self, stage: int, done: Ends) -> None:
        """Without ``overlap``: the stage computes no further before this communication has ended."""
        if not self.strategy.overlap:
            self.blocking[stage] = done

    def unblocked(self, stage: int, ends: Ends) -> Ends:
        """Add the communication that the stage is blocked by, if any."""
        held = self.blocking.pop(stage, None)
        if held is None:
            return ends
        return {c: [*ends.get(c, []), *held.get(c, [])] for c in self.emitter.stage_classes[stage]}

    def after_forward(
        self, stage: int, virtual: int, layer: int, step: int, micro_batch: int, ends: Ends
    ) -> None:
        """A layer's forward is emitted; the first of the iteration is remembered for ``gate_forward``."""
        if virtual == 0 and micro_batch == self.plan.first_micro_batch(stage, virtual):
            for index, tasks in ends.items():
                self._remember_first(index, step, tasks)
        if step == 0 and micro_batch == self.plan.first_micro_batch(stage, virtual):
            for index, tasks in ends.items():
                if len(tasks) == 1 and isinstance(tasks[0], int):
                    self.first_forward.setdefault((index, layer), tasks[0])

    def gate_forward(self, index: int, first_layer: int, tasks: Ends) -> None:
        """The next iteration's first forward from ``first_layer`` on waits for these tasks of a class."""
        gated = [
            task for (c, layer), task in self.first_forward.items() if c == index and layer >= first_layer
        ]
        for source in tasks.get(index, ()):
            if gated and isinstance(source, int):
                self.builder.edge(gated[0], source, 1)

    def after_backward(
        self, stage: int, virtual: int, layer: int, step: int, micro_batch: int, ends: Ends
    ) -> None:
        """A layer's weight gradients of one micro-batch are done."""
        self.last_weight[stage] = ends
        if self.strategy.overlap and self.completes(stage, virtual, micro_batch):
            self.layer_complete(stage, virtual, layer, step, ends)

    def layer_complete(self, stage: int, virtual: int, layer: int, step: int, ends: Ends) -> None:
        """A stage has a layer's gradients; when every stage that holds the layer has, they are exchanged."""
        holders = self.plan.holders(virtual)
        if len(holders) > 1:
            earlier = self.partial.pop((virtual, layer, step), None)
            if earlier is None:
                self.partial[virtual, layer, step] = ends
                return
            ends = {**earlier, **ends}
        self.gradients_ready(holders[0], virtual, layer, step, ends)

    @abstractmethod
    def gradients_ready(self, stage: int, virtual: int, layer: int, step: int, ends: Ends) -> None:
        """Exchange what a layer's gradients complete, buckets that end with it, among all ``sharers``."""

    def exchange_all(self, stage: int, step: int) -> None:
        """Without ``overlap``: exchange all gradients of a stage after its last backward."""
        for virtual in self.plan.chunks_of(stage):
            self.exchange_chunk(stage, virtual, step, self.last_weight[stage])

    def exchange_chunk(self, stage: int, virtual: int, step: int, ends: Ends) -> None:
        """Exchange all gradients of a model chunk, in the order of its backward."""
        for layer in reversed(self.plan.chunks[virtual]):
            self.layer_complete(stage, virtual, layer, step, ends)

    def place_update(self, stage: int, step: int) -> None:
        """Update here, within the order of work, with gradients of an earlier step (no flush, delayed)."""
        raise NotImplementedError

    # -- helpers ------------------------------------------------------------------------------------

    def sharers(self, stage: int) -> list[int]:
        """Classes of a stage and of the other that holds replicas of its chunks, if there is one."""
        return [index for each in self.plan.partners(stage) for index in self.emitter.stage_classes[each]]

    def last_weights(self, stage: int) -> Ends:
        """The latest weight gradients of all sharers of a stage's chunks."""
        return {
            index: tasks
            for each in self.plan.partners(stage)
            for index, tasks in self.last_weight[each].items()
        }

    def stage_layers(self, stage: int) -> list[int]:
        """Layers of all model chunks of a pipeline rank."""
        return [layer for chunk in self.plan.chunks_of(stage) for layer in self.plan.chunks[chunk]]

    def stage_elements(self, stage: int) -> float:
        """Parameters one rank of a stage holds and a step has gradients of."""
        plan = self.plan
        return sum(plan.local_elements(i) - plan.idle_elements(i) for i in self.stage_layers(stage))

    def shard_elements(self, stage: int) -> float:
        """Parameters of a stage whose optimiser state one rank holds when their holders share it."""
        return sum(
            self.plan.local_elements(layer, expert=expert) / self.plan.shard_size(expert=expert)
            for expert in self.plan.parameter_kinds
            for layer in self.stage_layers(stage)
        )

    def completes(self, stage: int, virtual: int, micro_batch: int) -> bool:
        """Whether a stage's gradients of a chunk are complete after this micro-batch."""
        return micro_batch == self.plan.last_micro_batch[stage, virtual]

    def agreed(self, stage: int, bucket: Bucket, step: int, after: Ends, name: str) -> Ends:
        """A complete bucket may be sent: its cycle has ended, and all ranks know of each other's."""
        seconds = bucket.wait + negotiation_seconds(self.plan)
        if not seconds or self.plan.gradient_span()[0] < 2:
            return after
        return {
            index: [
                self.builder.task(
                    TaskKind.TRANSFER, name, Cause.GRADIENT_COMM, device=self.emitter.device_row[index],
                    after=after.get(index, ()), work=seconds, step=step,
                )
            ]
            for index in self.sharers(stage)
        }  # fmt: skip

    def inline_codec(self, bucket: Bucket) -> float:
        """Seconds that casts of a bucket to and from its wire format add to its first message."""
        if not self.plan.encoding.compressor.inline:
            return 0.0
        device = self.plan.device_of_rank(0)
        return encoding_seconds(self.plan, bucket, device) + decoding_seconds(self.plan, bucket, device)

    def encode(self, stage: int, bucket: Bucket, step: int, after: Ends, name: str) -> Ends:
        """Encode a bucket on the compute stream, unless that happens inline or nobody waits for it."""
        alone = self.plan.gradient_span(expert=bucket.expert)[0] < 2
        if self.plan.encoding.compressor.inline or alone:
            return after
        seconds = {i: encoding_seconds(self.plan, bucket, d) for i, d in self.devices(stage).items()}
        return self.codec(seconds, f"{name}.encode", step, after)

    def decode(
        self, stage: int, bucket: Bucket, step: int, after: Ends, name: str, exchange: Exchange
    ) -> Ends:
        """Decode on the compute stream what the exchange of a bucket brought, unless that happens inline."""
        if self.plan.encoding.compressor.inline or self.plan.gradient_span(expert=bucket.expert)[0] < 2:
            return after
        pieces, share = exchange.pieces(bucket), exchange.share(bucket)
        seconds = {
            index: decoding_seconds(self.plan, bucket, device, pieces) * share
            for index, device in self.devices(stage).items()
        }
        return self.codec(seconds, f"{name}.decode", step, after)

    def codec(self, seconds: dict[int, float], name: str, step: int, after: Ends) -> Ends:
        """One task of an encoder or decoder on the compute stream of each class."""
        if not any(seconds.values()):
            return after
        return self.emitter.compute(seconds, seconds, name, Cause.OTHER, after, step=step)

    def devices(self, stage: int) -> dict[int, Device]:
        """Device of each class that shares a stage's gradients."""
        representatives = self.plan.classes.representatives
        return {i: self.plan.device_of_rank(int(representatives[i])) for i in self.sharers(stage)}

    def copy_bucket(
        self, stage: int, elements: float, step: int, after: Ends, name: str, copied: str = "bucket"
    ) -> Ends:
        """Copy what is sent or received, if the framework does: ``bucket_copy_traffic`` and its like."""
        calibration = self.plan.calibration
        parameter = f"{copied}_copy_traffic"
        if self.plan.gradient_span()[0] < 2 or not calibration.has("framework", "default", parameter):
            return after
        traffic = calibration.value("framework", "default", parameter)
        classes = self.sharers(stage)
        seconds = {}
        for index in classes:
            device = self.plan.device_of_rank(int(self.plan.classes.representatives[index]))
            efficiency = calibration.value("device", device.name, "memory_efficiency")
            element = self.plan.element_bytes if copied == "gather" else self.plan.workload.gradient_bytes
            size = elements * element * traffic
            seconds[index] = size / (device.memory_bandwidth * efficiency)
        return self.emitter.compute(classes, seconds, name, Cause.OTHER, after, step=step)

    def mix(self, stage: int, traffic: float, step: int, after: Ends, name: str = "mix") -> Ends:
        """Work received models into the own ones: ``traffic`` elements read or written of each."""
        traffic *= self.strategy.replicas_per_device
        classes, seconds = self.emitter.stage_classes[stage], {}
        for index in classes:
            device = self.plan.device_of_rank(int(self.plan.classes.representatives[index]))
            efficiency = self.plan.calibration.value("device", device.name, "memory_efficiency")
            seconds[index] = traffic * self.plan.element_bytes / (device.memory_bandwidth * efficiency)
        return self.emitter.compute(classes, seconds, name, Cause.OPTIMIZER, after, step=step)

    def optimizer(self, stage: int, step: int, elements: float, after: Ends) -> Ends:
        """The update of ``elements`` parameters on every class of a stage, and what goes with a step."""
        return self.overhead(stage, step, self.apply(stage, step, elements, after))

    def apply(self, stage: int, step: int, elements: float, after: Ends) -> Ends:
        """The optimiser's own work on ``elements`` parameters of every replica on the device."""
        elements *= self.strategy.replicas_per_device
        if self.strategy.offload_optimizer:
            return offload.update(self.emitter, stage, step, elements, after)
        classes = self.emitter.stage_classes[stage]
        workload, seconds = self.plan.workload, {}
        for index in classes:
            if workload.optimizer_time is not None:
                share = elements / max(self.plan.scenario.workload.num_parameters, 1.0)
                seconds[index] = workload.optimizer_time * share * self._update_speed(index)
                continue
            device = self.plan.device_of_rank(int(self.plan.classes.representatives[index]))
            seconds[index] = optimizer_time(
                elements,
                optimizer=workload.optimizer,
                device=device,
                dtype=workload.dtype,
                calibration=self.plan.calibration,
                gradient_bytes=workload.gradient_bytes,
            )
        return self.emitter.compute(classes, seconds, "optimizer", Cause.OPTIMIZER, after, step=step)

    def _update_speed(self, index: int) -> float:
        """Time of an update on a class's device over that on the device it was measured on."""
        measured_on = self.plan.workload.measured_on
        if not isinstance(measured_on, Device):
            return 1.0
        device = self.plan.device_of_rank(int(self.plan.classes.representatives[index]))
        return measured_on.memory_bandwidth / device.memory_bandwidth

    def overhead(self, stage: int, step: int, after: Ends) -> Ends:
        """What the framework does between two steps: loss scaling, loss transfer, host-side work."""
        classes = self.emitter.stage_classes[stage]
        measured = self.plan.workload.step_overhead
        seconds = dict.fromkeys(
            classes, step_overhead(self.plan.calibration) if measured is None else measured
        )
        return self.emitter.compute(classes, seconds, "step_overhead", Cause.OPTIMIZER, after, step=step)

    def all_gradients_ready(self, step: int, ends: dict[int, Ends]) -> dict[int, Ends]:
        """Gradient-norm reduction across pipeline stages: no stage updates before all have their gradients.

        Megatron-LM's clip_grad_norm; the message is a scalar, so only the wait is modelled. Schedules that
        validate the norm after the update, or have no common step, do not wait.
        """
        if self.strategy.pp == 1:
            return ends
        ends = self._tied_gradients(step, ends)
        if not self.plan.schedule_facts.global_norm:
            return ends
        tasks = list(dict.fromkeys(t for stage in ends.values() for after in stage.values() for t in after))
        barrier = self.builder.control("gradient_norm", after=tasks, step=step)
        return {stage: {index: [barrier] for index in self.emitter.stage_classes[stage]} for stage in ends}

    def _tied_gradients(self, step: int, ends: dict[int, Ends]) -> dict[int, Ends]:
        """All-reduce of the tied embedding's gradient between first and last stage (Megatron-LM)."""
        if "embedding" not in self.plan.families:
            return ends
        size = self.plan.tied_elements / self.strategy.tp * self.gradient_bytes
        last = self.strategy.pp - 1
        classes = [*self.emitter.stage_classes[0], *self.emitter.stage_classes[last]]
        done = self.emitter.collective(
            "embedding", classes, size, "embedding.all_reduce", Cause.GRADIENT_COMM,
            {**ends[0], **ends[last]}, stream="embedding", step=step,
        )  # fmt: skip
        shared = {stage: {i: done[i] for i in self.emitter.stage_classes[stage]} for stage in (0, last)}
        return {**ends, **shared}

    def boundary(self, stage: int, after: Ends) -> dict[int, int]:
        """The iteration's last task of every class of a stage."""
        return {
            index: self.end_iteration(index, after.get(index, ()))
            for index in self.emitter.stage_classes[stage]
        }
