"""Partial all-reduce: the next ``group_size`` replicas that are ready form a group, whoever they are (D3).

Prague (Luo et al., ASPLOS 2020) averages models in such groups, eager-SGD (Li et al., PPoPP 2020) gradients.
"""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from sim.graph.builder import Edge, Ends
from sim.graph.execution import Cause
from sim.lowering.buckets import Bucket
from sim.lowering.emitter import Emitter
from sim.lowering.plan import Plan
from sim.lowering.state.base import StateLowering
from sim.models.phase import Phase
from sim.wire.aggregators import AGGREGATORS


class PartialAllReduceState(StateLowering):
    """A replica is ready when its backward is done (its update, where models are averaged).

    The ring among the k members of a group costs each of them 2(k - 1)/k of the message in each direction and
    2(k - 1) latencies; switches that sum whoever comes first (iSwitch) cost the message each way. Who the
    members are is only known while the graph is played, so a member's bytes go to all other replicas in equal
    parts, which is what they do on average.
    """

    def __init__(self, emitter: Emitter) -> None:
        super().__init__(emitter)
        self.models = self.strategy.exchanges_models
        self.ready = self.builder.counter("ready", per_iteration=False)
        self.ended: Ends = {}
        self.starts: dict[int, int] = {}

    @override
    @classmethod
    def request_families(cls, plan: Plan) -> None:
        ranks = plan.layout.groups("cp", "dp")[0]
        count, size = len(ranks), plan.strategy.group_size or 1
        groups = np.array([np.roll(ranks, -i) for i in range(count)])
        if count > 1 and size > 1:
            others = np.arange(1, count)
            fraction, steps = 2 * (size - 1) / size, 2 * (size - 1)
            aggregator = AGGREGATORS.get(plan.strategy.in_network)
            if aggregator is not None:  # up to the switch, and the sum down
                fraction, steps = 1 / aggregator.payload, aggregator.steps
            phase = Phase(
                np.zeros(count - 1, np.int64), others, np.full(count - 1, 1 / (count - 1)), fraction, steps
            )
            plan.request("partial", groups, (phase,), asymmetric=True)

    @override
    def gradients_ready(self, stage: int, virtual: int, layer: int, step: int, ends: Ends) -> None:
        """The exchange begins when all gradients are there."""

    @override
    def finish_step(self, step: int) -> None:
        classes, elements = self.emitter.stage_classes[0], self.stage_elements(0)
        held: Ends = {}
        for index in classes:
            start = self.builder.control("step_start", device=self.emitter.device_row[index], opens_pull=True)
            self.starts[index] = start
            held[index] = [*self.last_weight[0].get(index, []), start]
        if self.models:
            held = self.optimizer(0, step, elements, held)
        held = {index: [self._exchange(index, tasks, elements)] for index, tasks in held.items()}
        if not self.models:
            held = self.optimizer(0, step, elements, held)
        self.ended = {
            index: [
                self.builder.control(
                    "updated", device=self.emitter.device_row[index], after=tasks, closes_update=True
                )
            ]
            for index, tasks in held.items()
        }

    def _exchange(self, index: int, after: list[Edge], elements: float) -> int:
        row, size = self.emitter.device_row[index], float(self.strategy.group_size or 1)
        ready = self.builder.control("ready", device=row, after=after)
        self.builder.add(ready, self.ready)
        bits = self.strategy.exchange_bits
        element = self.gradient_bytes if not self.models else self.plan.element_bytes
        message = elements * (bits / 8 if self.models and bits else element)
        if "partial" in self.emitter.family_classes:
            task = self.emitter.transfer(
                "partial", self.emitter.family_classes["partial"].by_member[index][0], message,
                "partial.all_reduce", Cause.PARAMETER_COMM if self.models else Cause.GRADIENT_COMM, [ready],
                participants=(index,), stream="partial",
                extra_latency=self.inline_codec(Bucket(0, elements, 0)),
            )  # fmt: skip
        else:
            task = self.builder.control("partial.alone", device=row, after=[ready])
        workers = len(self.emitter.stage_classes[0])
        self.builder.wait_batch(task, self.ready, size, ticket=ready, slope=float(workers))
        return task

    @override
    def finish(self) -> None:
        for index, end in self.boundary(0, self.ended).items():
            self.builder.edge(self.starts[index], end, 1)
            self.gate_forward(index, 0, {index: [end]})
