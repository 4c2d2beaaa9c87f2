"""Parameter servers: synchronous, bounded, asynchronous, batched, delayed, with backups - one lowering.

A step of a worker pulls the buckets of parameters, computes, and pushes each bucket of gradients to all
servers at once (every server holds an equal slice of every bucket). What differs between the synchronisation
rules is only what a server waits for before it updates, and what a worker waits for before it pulls:

========= ============================================= =========================================
rule      the update of a bucket waits for               the pulls of a worker's step k wait for
========= ============================================= =========================================
bsp       the gradients of all n workers                 the updates of step k - 1
delayed   the same                                       the updates of step k - 1 - d
backup    the first n - b gradients; late ones dropped   the same, or the worker skips to the newest step
soft_sync the next c gradients, whoever's                the update that its own gradient went into
ssp       the worker's own gradient                      its own updates, and all workers' of step k - s - 1
asp       the worker's own gradient                      its own updates of step k - 1
local     the models of all n workers, every tau steps   the updates of the period before
========= ============================================= =========================================

What is pushed follows from the update semantics: gradients (those of ``local_steps`` steps summed up), or
models, which are final only behind the worker's own update.
"""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from sim.errors import InputError
from sim.graph.builder import Edge, Ends
from sim.graph.execution import Cause, Discipline, TaskKind
from sim.lowering.buckets import Bucket
from sim.lowering.emitter import Emitter
from sim.lowering.exchange import decoding_seconds, encoding_seconds
from sim.lowering.plan import IntArray, Plan
from sim.lowering.scheduling import priority
from sim.lowering.state.base import StateLowering
from sim.lowering.state.server_rules import SERVER_RULES
from sim.models.collectives import Phase
from sim.spec.workload import OPTIMIZER_STATES
from sim.taxonomy.updates import UPDATES

FP32 = 4.0
SOCKET_BYTES, SOCKET_TRAFFIC = 2.0**22, 4.0
"""What a connection takes at once from who sends (Linux, net.ipv4.tcp_wmem), and bytes of memory read or
written for one of them; own measurement: gloo's send returns after 1.1 ms."""
WAKE_UP_TIME = 20e-6
"""Seconds until a thread that waits for a condition runs (median on a machine with real-time priorities)."""


class ParameterServerState(StateLowering):
    """Centralised optimiser on ``num_servers`` servers, dedicated hosts or co-located with workers.

    A push or pull occupies the worker's communication stream only; sums and updates run on the server's
    arrival stream at the speed of its memory. With ``overlap`` buckets are pushed as they become ready,
    pulled as soon as the rule allows, and each layer waits for its own pull; without, the pushes follow the
    last backward, the pulls the worker's last update, and the first layer waits for all of them.
    """

    def __init__(self, emitter: Emitter) -> None:
        super().__init__(emitter)
        self.rule = SERVER_RULES[self.strategy.synchronization]
        self.steps_per_iteration = self.strategy.local_steps
        self.workers = self.senders_per_shard()
        self.required = self.rule.required(self.workers, self.strategy)
        self.updated_locally: dict[int, Ends] = {}
        self.server_memory_bandwidth = server_memory_bandwidth(self.plan)
        self.clock = self.builder.counter("clock")
        self.updated = self.builder.counter("updated") if self.rule.drops else -1
        self.starts: dict[int, int] = {}
        self.pulls: dict[tuple[int, int, int], Edge] = {}  # what layers wait for, by (class, chunk, bucket)
        self.requests: dict[tuple[int, int, int], int] = {}  # what waits for the servers
        self.batches: dict[tuple[str, int, int], tuple[int, int]] = {}
        self.applied: dict[int, list[Edge]] = {}
        self.urgency = 0  # of the bucket that is pushed
        share = dict(zip(self.plan.server_endpoints.tolist(), self.plan.server_shares, strict=True))
        representatives, servers = self.plan.classes.representatives, len(share)
        # What each server holds over the mean of all.
        self.share = {c: share[int(representatives[c])] * servers for c in emitter.server_classes}

    @override
    @classmethod
    def request_families(cls, plan: Plan) -> None:
        workers = cls.senders(plan)
        servers = len(plan.server_endpoints)
        groups = np.column_stack([workers, np.tile(plan.server_endpoints, (len(workers), 1))])
        worker, server = np.zeros(servers, np.int64), np.arange(1, servers + 1)
        share = plan.server_shares * servers
        for name, source, target in (("push", worker, server), ("pull", server, worker)):
            phase = Phase(src=source, dst=target, relative=share, fraction=1 / servers, steps=1)
            plan.request(f"ps_{name}", groups, (phase,), asymmetric=True)

    @classmethod
    def senders(cls, plan: Plan) -> IntArray:
        """Ranks that talk to the servers."""
        return np.arange(plan.layout.num_ranks)

    def senders_per_shard(self) -> int:
        """Ranks that push the same part of the model."""
        return int(self.plan.layout.groups("cp", "dp").shape[1])

    def sender(self, index: int) -> int:
        """The class of ranks that pushes and pulls for a class."""
        return index

    # -- the worker's side ----------------------------------------------------------------------------

    @override
    def repeats(self, kind: str, stage: int, virtual: int, micro_batch: int) -> bool:
        first_pulls = kind == "F" and micro_batch == 0
        return super().repeats(kind, stage, virtual, micro_batch) and not first_pulls

    @override
    def before_layer(
        self, stage: int, virtual: int, layer: int, step: int, micro_batch: int, ends: Ends, *, backward: bool
    ) -> Ends:
        if backward or micro_batch:
            return ends
        if step:  # behind the worker's own update, which its program says too
            own = self.updated_locally[stage] if layer == self.plan.chunks[stage][0] else {}
            return {
                index: [*ends.get(index, []), *own.get(index, [])]
                for index in self.emitter.stage_classes[stage]
            }
        if layer == self.plan.chunks[stage][0]:
            return self._start(stage, ends)
        if not self._pulls_layer_by_layer:
            return ends
        needed = [bucket.index for bucket in self.buckets(virtual) if bucket.last_layer == layer]
        return self._behind_pulls(stage, ends, [(virtual, bucket) for bucket in needed])

    def _start(self, stage: int, ends: Ends) -> Ends:
        """Start a step of every class of a stage: its pulls, in the order in which the updates come."""
        held: Ends = {}
        for index in self.emitter.stage_classes[stage]:
            skip = (self.updated, 1.0) if self.rule.drops else None
            start = self.builder.control("step_start", device=self.emitter.device_row[index], skip=skip)
            self.starts[index] = start
            if self.rule.bounded:
                distance = self.strategy.staleness + 1
                self.builder.wait(start, self.clock, self._clock_total(), distance=distance)
            held[index] = [start]
        # A pull need not wait for the step.
        free = self.strategy.overlap and (not (self.rule.bounded or self.rule.drops) or self._reads_eagerly)
        held = self._copied(stage, held)
        needed = []
        for virtual in reversed(self.plan.chunks_of(stage)):
            last = self.buckets(virtual)[-1:]
            for bucket in self.buckets(virtual):
                self.pull(stage, virtual, bucket, {} if free else held, snapshot=bucket in last)
                if not self._pulls_layer_by_layer or bucket.last_layer == self.plan.chunks[stage][0]:
                    needed.append((virtual, bucket.index))
        merged = {index: [*ends.get(index, []), *tasks] for index, tasks in held.items()}
        behind = self._behind_pulls(stage, merged, needed)
        if self.strategy.update_semantics == "elastic_average":  # towards the centre: read both, write one
            behind = self.mix(stage, 3 * self.stage_elements(stage), 0, behind)
        return behind

    @property
    def _reads_eagerly(self) -> bool:
        return self.strategy.reads == "eager"

    @property
    def _pulls_layer_by_layer(self) -> bool:
        return self.strategy.overlap and self.strategy.update_semantics != "elastic_average"

    def pull(self, stage: int, virtual: int, bucket: Bucket, after: Ends, *, snapshot: bool) -> None:
        """Pull a bucket of parameters into every rank of a stage."""
        name = f"{self._label(virtual, bucket)}.pull"
        size, latency = self.answer(bucket)
        handed = 0.0
        if self.plan.messages and self.rule.updates == "collected":  # answered one after another
            handed = SOCKET_TRAFFIC * min(size, SOCKET_BYTES) / self.server_memory_bandwidth
        for place, index in enumerate(self.emitter.stage_classes[stage]):
            task = self._transfer(
                "pull", index, size, name, after.get(index, []), snapshot=snapshot,
                latency=latency + place * handed, priority=priority(self.plan, bucket),
            )  # fmt: skip
            self.pulls[index, virtual, bucket.index] = self.requests[index, virtual, bucket.index] = task

    @property
    def parameter_bytes(self) -> float:
        """Bytes of a parameter on the wire."""
        bits = self.strategy.exchange_bits
        return self.plan.element_bytes if bits is None else bits / 8

    def _copied(self, stage: int, starts: Ends) -> Ends:
        """Where the server copies the parameters for each answer (``answer_copy_traffic``), one at a time."""
        calibration = self.plan.calibration
        per_worker = self.rule.updates == "own" and not self.strategy.overlap
        if not per_worker or not calibration.has("framework", "default", "answer_copy_traffic"):
            return starts
        traffic = calibration.value("framework", "default", "answer_copy_traffic")
        size = traffic * FP32 * self.stage_elements(stage) / len(self.plan.server_endpoints)
        return {
            index: [
                self._server_task(
                    server, "answer.copy", size / self.server_memory_bandwidth, tasks,
                    cause=Cause.PARAMETER_COMM,
                )
                for server in self.emitter.server_classes
            ]
            for index, tasks in starts.items()
        }  # fmt: skip

    def _behind_pulls(self, stage: int, ends: Ends, needed: list[tuple[int, int]]) -> Ends:
        pulled = {
            index: [*ends.get(index, []), *(self.pulls[index, virtual, bucket] for virtual, bucket in needed)]
            for index in self.emitter.stage_classes[stage]
        }
        if not (self.strategy.servers_only_sum and needed):
            return pulled
        elements = sum(self.buckets(virtual)[bucket].elements for virtual, bucket in needed)
        return self.apply(stage, 0, elements, pulled)

    def buckets(self, virtual: int) -> list[Bucket]:
        """Buckets of a model chunk; a tied embedding that the pipeline cut off is one of the last chunk's."""
        found = self.plan.buckets(virtual)
        if virtual == len(self.plan.chunks) - 1 and self.strategy.pp > 1 and self.plan.tied_elements:
            tied = self.plan.tied_elements / self.strategy.tp
            return [*found, Bucket(len(found), tied, self.plan.chunks[virtual][-1])]
        return found

    def _label(self, virtual: int, bucket: Bucket) -> str:
        return (
            f"chunk{virtual}.bucket{bucket.index}" if len(self.plan.chunks) > 1 else f"bucket{bucket.index}"
        )

    def _clock_total(self) -> float:
        return float(
            sum(
                self.emitter.multiplicity(c)
                for classes in self.emitter.stage_classes
                for c in classes
                if self.sender(c) == c
            )
        )

    @override
    def gradients_ready(self, stage: int, virtual: int, layer: int, step: int, ends: Ends) -> None:
        if step < self.steps_per_iteration - 1 or self._sends_models:
            return
        for bucket in self.buckets(virtual):
            if bucket.last_layer == layer:
                self._exchange(stage, virtual, bucket, ends)

    @property
    def _sends_models(self) -> bool:
        return self.strategy.exchanges_models

    @override
    def finish_step(self, step: int) -> None:
        stages, last = range(self.strategy.pp), step == self.steps_per_iteration - 1
        if not self.strategy.overlap and last:
            for stage in stages:
                self.exchange_all(stage, step)
        if not self.strategy.updates_locally:
            return
        for stage in stages:
            elements, ready = self.stage_elements(stage), self.last_weight[stage]
            self.updated_locally[stage] = self.optimizer(stage, step, elements, ready)
            if last and self._sends_models:
                for virtual in self.plan.chunks_of(stage):
                    for bucket in self.buckets(virtual):
                        self._exchange(stage, virtual, bucket, self.updated_locally[stage])

    @override
    def finish(self) -> None:
        done = self.updated_locally or {
            stage: self.overhead(stage, 0, self.last_weight[stage]) for stage in range(self.strategy.pp)
        }
        if self.rule.drops:
            self.builder.lead({self.emitter.device_row[index]: start for index, start in self.starts.items()})
        for stage, classes in enumerate(self.emitter.stage_classes):
            for index in classes:
                self._close_worker(index, done[stage][index])

    def _close_worker(self, index: int, done: list[Edge]) -> None:
        row = self.emitter.device_row[index]
        applied = self.builder.control(
            "applied",
            device=row,
            after=dict.fromkeys(self.applied.get(index, ())),
            closes_update=self.rule.updates != "collected" and self.sender(index) == index,
        )
        clock, delay = applied, self.strategy.delay
        if self.rule.bounded and self.plan.messages:  # its own answer leaves before others are woken
            clock = self.builder.task(
                TaskKind.TRANSFER, "wake", Cause.CONTROL, device=row, after=[applied], work=WAKE_UP_TIME
            )
        if self.sender(index) == index:
            self.builder.add(clock, self.clock, self.emitter.multiplicity(index))
        end = self.end_iteration(index, [(applied, delay), *done])
        # A backup worker decides about its next step when it has computed this one.
        early = self.strategy.overlap and not self.rule.drops
        if early and delay:
            self.builder.edge(self.starts[index], applied, 1 + delay)
        self.builder.edge(self.starts[index], applied if early and not delay else end, 1)

    # -- one bucket's way to the servers ----------------------------------------------------------------

    def _exchange(self, stage: int, virtual: int, bucket: Bucket, ends: Ends) -> None:
        label = self._label(virtual, bucket)
        updated = self.builder.counter(f"{label}.updated") if self.rule.drops else -1
        size, latency = bucket.elements * self.parameter_bytes, 0.0
        if not self._sends_models:
            size = self.push_size(bucket)
            ends, latency = self._encoded(stage, bucket, label, ends), self.inline_codec(bucket)
        self.urgency = priority(self.plan, bucket)
        pushed = self.pushes(stage, size, f"{label}.push", ends, updated, latency)
        if self.rule.updates == "batched":
            answers = {index: self._batched_update(bucket, label, index, pushed[index]) for index in pushed}
        elif self.rule.updates == "own":
            answers = {index: self._own_update(bucket, label, index, pushed[index]) for index in pushed}
        else:
            answers = dict.fromkeys(pushed, self._collected_update(virtual, bucket, label, pushed, updated))
        for index in self.emitter.stage_classes[stage]:
            sender = self.sender(index)
            self.applied.setdefault(index, []).extend(answers[sender])
            for update in answers[sender] if sender == index else ():
                request = self.requests[index, virtual, bucket.index]
                self.builder.edge(request, update, 1 + self.strategy.delay)

    def push_size(self, bucket: Bucket) -> float:
        """Bytes of a worker's gradients of a bucket."""
        return sum(message.size for message in self.plan.encoding.messages(bucket))

    def pushes(
        self, stage: int, size: float, name: str, ends: Ends, updated: int, latency: float
    ) -> dict[int, int]:
        """Push a bucket to the servers: the transfer of every class that talks to them."""
        # Where a message is a rendezvous, who answers all at once receives when all have their answers.
        answered: list[Edge] = []
        if self.plan.messages and self.rule.updates == "collected":
            answered = [pull for (index, *_), pull in self.pulls.items() if self.sender(index) == index]
        return {
            index: self._transfer(
                "push", index, size, name, [*ends.get(index, []), *answered],
                updated=updated, latency=latency, priority=self.urgency,
            )
            for index in self.emitter.stage_classes[stage]
        }  # fmt: skip

    def _encoded(self, stage: int, bucket: Bucket, label: str, ends: Ends) -> Ends:
        """Encode on the compute stream, unless that rides on the push."""
        if self.plan.encoding.compressor.inline:
            return ends
        seconds = {i: encoding_seconds(self.plan, bucket, d) for i, d in self.devices(stage).items()}
        return self.codec(seconds, f"{label}.encode", 0, ends)

    def answer(self, bucket: Bucket) -> tuple[float, float]:
        """Bytes of an answer and seconds to decode it: parameters, or the encoded sum of gradients."""
        if not self.strategy.compress_pull:
            return bucket.elements * self.parameter_bytes, 0.0
        size = self.plan.encoding.compressor.aggregate_size(
            self.plan.encoding.content(bucket),
            self.plan.element_bytes,
            self.plan.encoding.options,
            self.workers,
        )
        return size, decoding_seconds(self.plan, bucket, self.plan.device_of_rank(0))

    def _transfer(
        self,
        direction: str,
        index: int,
        size: float,
        name: str,
        after: list[Edge],
        *,
        updated: int = -1,
        snapshot: bool = False,
        priority: int = 0,
        latency: float = 0.0,
    ) -> int:
        cause = Cause.GRADIENT_COMM if direction == "push" else Cause.PARAMETER_COMM
        family = f"ps_{direction}"
        return self.emitter.transfer(
            family, self.emitter.family_classes[family].by_member[index][0], size, name, cause, after,
            participants=(index,), stream=f"ps_{direction}", extra_latency=latency, opens_pull=snapshot,
            skip=(updated, 1.0) if updated >= 0 else None, priority=priority,
        )  # fmt: skip

    # -- the server's side ------------------------------------------------------------------------------

    def _server_task(
        self, server: int, name: str, seconds: float, after: list[Edge], *, cause: Cause = Cause.OPTIMIZER
    ) -> int:
        row = self.emitter.device_row[server]
        stream = self.builder.stream(row, "server", discipline=Discipline.ARRIVAL)
        return self.builder.compute(row, seconds, name, cause, after=after, streams=(stream,))

    def _sum_seconds(self, bucket: Bucket) -> float:
        """Add one worker's slice where its message has values: read gradient and sum, write sum (fp32)."""
        touched = self.plan.encoding.compressor.touched(
            self.plan.encoding.content(bucket), self.plan.encoding.options
        )
        return 3 * FP32 * touched / len(self.plan.server_endpoints) / self.server_memory_bandwidth

    def _update_seconds(self, bucket: Bucket, shards: int = 1) -> float:
        """Optimiser on the slice: read gradient, read and write parameter and each state (fp32).

        Averages of models read the sum and the parameter and write it; an outer optimiser has a momentum too.
        Compensation of the delay (Zheng et al., ICML 2017) reads the model that the worker pulled, and keeps
        the one it pulls next. A server that answers with encoded sums encodes one; one that only sums has
        nothing else to do.
        """
        if self.strategy.servers_only_sum:
            return 0.0
        states = OPTIMIZER_STATES[self.plan.workload.optimizer]
        serving = UPDATES[self.strategy.update_semantics].serving
        passes = 1.0 + 2 * (1 + states) if serving is None else serving
        traffic = FP32 * (passes + 2 * self.strategy.delay_compensation)
        elements = bucket.elements * shards
        if self.strategy.compress_pull:
            work = self.plan.encoding.compressor.encode(
                self.plan.encoding.content(bucket), FP32, self.plan.encoding.options
            )
            traffic += work.traffic / bucket.elements
        return traffic * elements / len(self.plan.server_endpoints) / self.server_memory_bandwidth

    def _own_update(self, bucket: Bucket, label: str, index: int, push: int) -> list[int]:
        seconds = self._update_seconds(bucket) * self.emitter.multiplicity(index)
        return [
            self._server_task(server, f"{label}.update", seconds * self.share[server], [push])
            for server in self.emitter.server_classes
        ]

    def _batched_update(self, bucket: Bucket, label: str, index: int, push: int) -> list[int]:
        """The gradient joins the batch of c that is being filled; the last one of a batch updates."""
        size = float(self.strategy.gradients_per_update)
        rank = int(self.plan.classes.representatives[index])
        shard = int(self.plan.layout.coordinates["tp"][rank])
        answers = []
        for server in self.emitter.server_classes:
            if (label, server, shard) not in self.batches:
                self.batches[label, server, shard] = (
                    self.builder.counter(f"{label}.arrived", per_iteration=False),
                    self.builder.counter(f"{label}.applied", per_iteration=False),
                )
            arrived, applied = self.batches[label, server, shard]
            adding, updating = self._sum_seconds(bucket), self._update_seconds(bucket)
            summed = self._server_task(server, f"{label}.sum", adding * self.share[server], [push])
            self.builder.add(summed, arrived)
            update = self._server_task(server, f"{label}.update", updating * self.share[server], [summed])
            self.builder.skip_unless_last(update, size, ticket=summed)
            self.builder.add(update, applied)
            answer = self.builder.control(
                f"{label}.answer", device=self.emitter.device_row[index], after=[update]
            )
            self.builder.wait_batch(answer, applied, size, ticket=summed, slope=float(self.workers))
            answers.append(answer)
        return answers

    def _collected_update(
        self, virtual: int, bucket: Bucket, label: str, pushed: dict[int, int], updated: int
    ) -> list[int]:
        tensor_shards, servers = self.strategy.tp, len(self.emitter.server_classes)
        out: list[int] = []
        for server in self.emitter.server_classes:
            arrived = self.builder.counter(f"{label}.arrived")
            for index, push in pushed.items():
                count = self.emitter.multiplicity(index)
                adding = self._sum_seconds(bucket) * count * self.share[server]
                summed = self._server_task(server, f"{label}.sum", adding, [push])
                if updated >= 0:  # a dropped push is not summed
                    self.builder.share_skip(summed, push)
                self.builder.add(summed, arrived, count)
            row = self.emitter.device_row[server]
            stream = self.builder.stream(row, "server", discipline=Discipline.ARRIVAL)
            update = self.builder.compute(
                row, self._update_seconds(bucket, tensor_shards) * self.share[server], f"{label}.update",
                Cause.OPTIMIZER, streams=(stream,),
                closes_update=bucket.index == 0 and server == self.emitter.server_classes[0],
            )  # fmt: skip
            self.builder.wait(update, arrived, self.required * tensor_shards)
            self.builder.edge(update, update, 1)
            if updated >= 0:
                self.builder.add(update, updated, 1.0 / servers)
                self.builder.add(update, self.updated, 1.0 / servers / len(self.buckets(virtual)))
            out.append(update)
        return out


def server_memory_bandwidth(plan: Plan) -> float:
    """Bytes/s at which a server streams its memory: its processors' bandwidth times the achieved share."""
    cluster = plan.cluster
    host = cluster.server_type if plan.strategy.has_server_hosts else cluster.host_of(0)
    if host.cpu_device is None:
        raise InputError("host.cpu_device", "name the processors of a host that serves parameters", host.name)
    efficiency = plan.calibration.value("device", host.cpu_device, "memory_efficiency")
    return cluster.device(host.cpu_device).memory_bandwidth * efficiency
