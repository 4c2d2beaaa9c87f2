"""Parameter servers: synchronous, bounded, asynchronous and with backup workers - one lowering.

A worker pushes each bucket of gradients to all servers at once (every server holds an equal slice of every
bucket) and pulls it back updated. What differs between the synchronisation rules is only what a server waits
for before it updates, and what a worker waits for before it starts a step:

======== ============================================= ===================================
rule      the update of a bucket waits for               a worker's step k waits for
======== ============================================= ===================================
bsp       the gradients of all n workers                 its own pulls of step k - 1
backup    the first n - b gradients; late ones dropped   same, or skips to the newest step
ssp       the worker's own gradient                      all workers to have done k - s - 1
asp       the worker's own gradient                      its own pulls of step k - 1
======== ============================================= ===================================
"""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from sim.errors import InputError
from sim.graph.builder import Edge, Ends
from sim.graph.execution import Cause, Discipline
from sim.lowering.buckets import Bucket
from sim.lowering.emitter import Emitter
from sim.lowering.plan import Plan
from sim.lowering.state.base import StateLowering
from sim.models.collectives import Phase
from sim.spec.workload import DTYPE_BYTES, OPTIMIZER_STATES

FP32 = 4.0


class ParameterServerState(StateLowering):
    """Centralised optimiser on ``num_servers`` servers, dedicated hosts or co-located with workers.

    A push or pull occupies the worker's communication stream only; sums and updates run on the server's
    arrival stream at the speed of its memory. With ``overlap`` buckets are pushed as they become ready and
    the next forward waits for each layer's own pull; without, for everything.
    """

    def __init__(self, emitter: Emitter) -> None:
        super().__init__(emitter)
        self.rule = self.strategy.synchronization
        self.parameter_bytes = DTYPE_BYTES[self.plan.workload.dtype]
        self.workers = self.plan.layout.groups("cp", "dp").shape[1]
        self.required = self.workers - (self.strategy.backup_workers if self.rule == "backup" else 0)
        self.server_memory_bandwidth = server_memory_bandwidth(self.plan)
        self.clock = self.builder.counter("clock")
        self.starts: dict[int, int] = {}
        self.pulls: dict[int, list[tuple[Bucket, int]]] = {}
        self.applied: dict[int, list[Edge]] = {}
        self.pushes: list[tuple[int, int, Bucket, int]] = []
        self.updated_counters: dict[int, int] = {}

    @override
    @classmethod
    def request_families(cls, plan: Plan) -> None:
        workers = np.arange(plan.layout.num_ranks)
        servers = len(plan.server_endpoints)
        groups = np.column_stack([workers, np.tile(plan.server_endpoints, (len(workers), 1))])
        worker, server = np.zeros(servers, np.int64), np.arange(1, servers + 1)
        share = np.ones(servers)
        for name, source, target in (("push", worker, server), ("pull", server, worker)):
            phase = Phase(src=source, dst=target, relative=share, fraction=1 / servers, steps=1)
            plan.request(f"ps_{name}", groups, (phase,), asymmetric=True)

    # -- the worker's side ----------------------------------------------------------------------------

    @override
    def input_ready(self, stage: int, step: int, micro_batch: int) -> Ends:
        if micro_batch != 0:
            return {}
        ends: Ends = {}
        for index in self.emitter.stage_classes[stage]:
            start = self.builder.control(
                "step_start", device=self.emitter.device_row[index], skip=self._abandoned(stage)
            )
            self.starts[index] = start
            if self.rule == "ssp":
                self.builder.wait(
                    start, self.clock, self._clock_total(), distance=self.strategy.staleness + 1
                )
            ends[index] = [start]
        return ends

    def _abandoned(self, stage: int) -> tuple[int, float] | None:
        """A step whose update is already made is skipped by workers that come late (backup workers)."""
        if self.rule != "backup":
            return None
        return self._updated_counter(stage), 1.0

    def _updated_counter(self, stage: int) -> int:
        if stage not in self.updated_counters:
            self.updated_counters[stage] = self.builder.counter(f"stage{stage}.updated")
        return self.updated_counters[stage]

    def _clock_total(self) -> float:
        return float(
            sum(self.emitter.multiplicity(c) for classes in self.emitter.stage_classes for c in classes)
        )

    @override
    def after_backward(
        self, stage: int, virtual: int, layer: int, step: int, micro_batch: int, ends: Ends
    ) -> None:
        super().after_backward(stage, virtual, layer, step, micro_batch, ends)
        if self.strategy.overlap and self.is_last_micro_batch(micro_batch):
            self._push_ready(stage, virtual, layer, ends)

    def _push_ready(self, stage: int, virtual: int, layer: int, ends: Ends) -> None:
        for bucket in self.plan.buckets(virtual):
            if bucket.last_layer == layer:
                self._exchange(stage, virtual, bucket, ends)

    @override
    def finish_step(self, step: int) -> None:
        if self.strategy.overlap:
            return
        for stage in range(self.strategy.pp):
            for virtual in range(stage, len(self.plan.chunks), self.strategy.pp):
                for layer in reversed(self.plan.chunks[virtual]):
                    self._push_ready(stage, virtual, layer, self.last_weight[stage])

    @override
    def finish(self) -> None:
        for stage, classes in enumerate(self.emitter.stage_classes):
            done = self.overhead(stage, 0, self.last_weight[stage])
            for index in classes:
                self._close_worker(stage, index, done[index])

    def _close_worker(self, stage: int, index: int, done: list[Edge]) -> None:
        row = self.emitter.device_row[index]
        if self.rule == "backup":
            self.builder.lead(row, self.starts[index])
        centralised_update = self.rule in ("bsp", "backup")
        applied = self.builder.control(
            "applied",
            device=row,
            after=dict.fromkeys(self.applied[index]),
            closes_update=not centralised_update,
        )
        self.builder.add(applied, self.clock, self.emitter.multiplicity(index))
        pulls = [task for _, task in self.pulls[index]]
        end = self.builder.control("step_end", device=row, after=[applied, *pulls, *done], boundary=True)
        start = self.starts.get(index)
        if self.strategy.overlap:
            for bucket, pull in self.pulls[index]:
                self.gate_forward(index, bucket.last_layer, {index: [pull]})
        else:
            self.gate_forward(index, 0, {index: [end]})
        if start is not None:
            self.builder.edge(start, end if not self.strategy.overlap else applied, 1)

    # -- one bucket's round trip ------------------------------------------------------------------------

    def _exchange(self, stage: int, virtual: int, bucket: Bucket, ends: Ends) -> None:
        classes = self.emitter.stage_classes[stage]
        label = (
            f"chunk{virtual}.bucket{bucket.index}" if len(self.plan.chunks) > 1 else f"bucket{bucket.index}"
        )
        updated = self.builder.counter(f"{label}.updated") if self.rule == "backup" else -1
        size = bucket.elements * self.gradient_bytes
        pushed = {
            index: self._transfer("push", index, size, f"{label}.push", ends.get(index, []), updated=updated)
            for index in classes
        }
        if self.rule in ("bsp", "backup"):
            ready = self._collected_update(stage, bucket, label, pushed, updated)
            answers = dict.fromkeys(classes, ready)
        else:
            answers = {index: self._own_update(bucket, label, index, pushed[index]) for index in classes}
        size = bucket.elements * self.parameter_bytes
        last = bucket is self.plan.buckets(virtual)[-1]
        for index in classes:
            self.applied.setdefault(index, []).extend(answers[index])
            pull = self._transfer("pull", index, size, f"{label}.pull", answers[index], snapshot=last)
            self.pulls.setdefault(index, []).append((bucket, pull))

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
    ) -> int:
        cause = Cause.GRADIENT_COMM if direction == "push" else Cause.PARAMETER_COMM
        family = f"ps_{direction}"
        latency = self.compression_latency(size / self.gradient_bytes) if direction == "push" else 0.0
        group = next(g for g in self.emitter.family_classes[family].by_member[index])
        return self.emitter.transfer(
            family, group, size, name, cause, after, participants=(index,), stream=f"ps_{direction}",
            extra_latency=latency, opens_pull=snapshot,
            skip=(updated, 1.0) if updated >= 0 else None,
            skip_leader=self.starts.get(index, -1) if self.rule == "backup" else -1,
        )  # fmt: skip

    # -- the server's side ------------------------------------------------------------------------------

    def _server_task(
        self, server: int, name: str, seconds: float, after: list[Edge], *, cause: Cause = Cause.OPTIMIZER
    ) -> int:
        row = self.emitter.device_row[server]
        stream = self.builder.stream(row, "server", discipline=Discipline.ARRIVAL)
        return self.builder.compute(row, seconds, name, cause, after=after, streams=(stream,))

    def _sum_seconds(self, elements: float) -> float:
        """Add one worker's slice: read gradient and accumulator, write accumulator (fp32)."""
        return 3 * FP32 * elements / len(self.plan.server_endpoints) / self.server_memory_bandwidth

    def _update_seconds(self, elements: float) -> float:
        """Optimiser on the slice: read gradient, read and write parameter and each state (fp32)."""
        states = OPTIMIZER_STATES[self.plan.workload.optimizer]
        traffic = FP32 * (1 + 2 * (1 + states))
        return traffic * elements / len(self.plan.server_endpoints) / self.server_memory_bandwidth

    def _own_update(self, bucket: Bucket, label: str, index: int, push: int) -> list[Edge]:
        seconds = self._update_seconds(bucket.elements) * self.emitter.multiplicity(index)
        return [
            self._server_task(server, f"{label}.update", seconds, [push])
            for server in self.emitter.server_classes
        ]

    def _collected_update(
        self, stage: int, bucket: Bucket, label: str, pushed: dict[int, int], updated: int
    ) -> list[Edge]:
        tensor_shards = self.strategy.tp
        out: list[Edge] = []
        for server in self.emitter.server_classes:
            arrived = self.builder.counter(f"{label}.arrived")
            for index, push in pushed.items():
                count = self.emitter.multiplicity(index)
                summed = self._server_task(
                    server, f"{label}.sum", self._sum_seconds(bucket.elements) * count, [push]
                )
                if updated >= 0:  # a dropped push is not summed
                    self.builder.share_skip(summed, push)
                self.builder.add(summed, arrived, count)
            row = self.emitter.device_row[server]
            stream = self.builder.stream(row, "server", discipline=Discipline.ARRIVAL)
            update = self.builder.compute(
                row, self._update_seconds(bucket.elements * tensor_shards), f"{label}.update",
                Cause.OPTIMIZER, streams=(stream,),
                closes_update=bucket.index == 0 and server == self.emitter.server_classes[0],
            )  # fmt: skip
            self.builder.wait(update, arrived, self.required * tensor_shards)
            self.builder.edge(update, update, 1)
            if updated >= 0:
                self.builder.add(update, updated, 1.0 / len(self.emitter.server_classes))
                if bucket.index == len(self.plan.buckets(stage)) - 1:
                    self.builder.add(
                        update, self._updated_counter(stage), 1.0 / len(self.emitter.server_classes)
                    )
            out.append(update)
        return out


def server_memory_bandwidth(plan: Plan) -> float:
    """Bytes/s at which a server streams its memory: its processors' bandwidth times the achieved share."""
    cluster = plan.cluster
    host = cluster.server_type if plan.strategy.state == "ps_dedicated" else cluster.host_of(0)
    if host.cpu_device is None:
        raise InputError("host.cpu_device", "name the processors of a host that serves parameters", host.name)
    efficiency = plan.calibration.value("device", host.cpu_device, "memory_efficiency")
    return cluster.device(host.cpu_device).memory_bandwidth * efficiency
