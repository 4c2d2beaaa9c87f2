"""Replicas that exchange with peers of a graph: gossip, push-sum, and gradients to everybody (D3 to D5).

======== ================================================== ===============================================
rule      models: the update behind a step waits for          gradients: the update waits for
======== ================================================== ===============================================
bsp       what all its peers sent of their model before it    this step's gradients of all peers
ssp       the same, of s exchanges ago                        those of s exchanges ago
asp       its own exchange (averaging with one peer), or      its own sends of the exchange before
          its own sends of the exchange before (pushes)
======== ================================================== ===============================================

A model is sent as it was when the step began, beside the computation (D-PSGD, Lian et al., NIPS 2017), or
without ``overlap`` behind the update. Averaging with one drawn peer (AD-PSGD, Lian et al., ICML 2018) moves
both models and holds the communication threads of both, never their computation.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

import numpy as np
from typing_extensions import override

from sim.graph.builder import Edge, Ends
from sim.graph.execution import Cause, Discipline
from sim.lowering.buckets import Bucket
from sim.lowering.emitter import Emitter
from sim.lowering.ends import extend
from sim.lowering.exchange import decoding_seconds
from sim.lowering.plan import IntArray, Plan
from sim.lowering.state.base import StateLowering
from sim.lowering.state.peer_graph import Targets, exchanges
from sim.models.collectives import plan as collective_plan
from sim.models.phase import Phase
from sim.spec.strategy import Strategy
from sim.taxonomy.synchronizations import BARRIER_FREE
from sim.taxonomy.topologies import GRAPHS, TOPOLOGIES
from sim.wire.compressors.casts import Cast


def node_groups(plan: Plan) -> IntArray:
    """Ranks by (shard of the model, node, place in the node): a node is a replica, or a group in step."""
    shards = plan.layout.groups("cp", "dp")
    size = (plan.strategy.group_size or 1) if plan.strategy.synchronization == "group_hybrid" else 1
    return shards.reshape(len(shards), -1, size)


def peer_exchanges(plan: Plan) -> list[Targets]:
    """The exchanges of a period among the nodes."""
    return exchanges(plan.strategy, node_groups(plan).shape[1], plan.scenario.seed)


def averages_in_pairs(strategy: Strategy) -> bool:
    """Whether a replica averages atomically with one peer of its choice, which takes no step for it."""
    drawn = TOPOLOGIES[strategy.topology].chosen_peers and GRAPHS[strategy.graph].drawn
    alone = strategy.synchronization in ("asp", "group_hybrid")
    return drawn and alone and strategy.update_semantics == "gossip_average"


class PeerState(StateLowering):
    """Exchanges with peers; see the module.

    With ``group_hybrid`` a node is a group of replicas that all-reduce their gradients in every step; its
    first rank exchanges for it and spreads what it got (H-ADPSGD, Zhang et al. 2019).
    """

    def __init__(self, emitter: Emitter) -> None:
        super().__init__(emitter)
        strategy = self.strategy
        self.rule = "asp" if strategy.synchronization == "group_hybrid" else strategy.synchronization
        self.models = strategy.exchanges_models
        self.pairwise = averages_in_pairs(strategy)
        self.targets = peer_exchanges(self.plan)
        self.steps_per_iteration = len(self.targets) * strategy.local_steps
        self.sends: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(dict)  # (stage, exchange)
        self.updates: dict[tuple[int, int], Ends] = {}
        self.waiting: list[tuple[int, int, int, int]] = []  # stage, class, update task, exchange
        self.starting: list[tuple[int, int, int]] = []  # stage, class, first task of iteration
        self.reduced: dict[tuple[int, int], Ends] = defaultdict(dict)
        self.received: dict[tuple[int, int], int] = {}  # peers that send to a class in an exchange
        self.casts = isinstance(self.plan.encoding.compressor, Cast)
        self.coded: dict[tuple[int, int], list[Bucket]] = defaultdict(list)
        self.nodes = node_groups(self.plan)
        self.grouped = self.nodes.shape[2] > 1

    # -- families -------------------------------------------------------------------------------------

    @override
    @classmethod
    def request_families(cls, plan: Plan) -> None:
        nodes = node_groups(plan)
        both = averages_in_pairs(plan.strategy)
        for number, targets in enumerate(peer_exchanges(plan)):
            speaking = np.flatnonzero(targets[:, 0] >= 0)
            if not len(speaking):
                continue
            first = nodes[:, :, 0]
            groups = np.concatenate(
                [first[:, speaking][:, :, None], first[:, targets[speaking]]], axis=2
            ).reshape(-1, 1 + targets.shape[1])
            peers = np.arange(1, 1 + targets.shape[1])
            here = np.zeros(len(peers), np.int64)
            source, target = (np.append(here, peers), np.append(peers, here)) if both else (here, peers)
            phase = Phase(source, target, np.ones(len(source)), 1.0, 1)
            plan.request(f"peers{number}", groups, (phase,), asymmetric=True)
        if nodes.shape[2] > 1:
            groups = nodes.reshape(-1, nodes.shape[2])
            plan.request_collective("group_all_reduce", groups, "all_reduce", cls._inside(plan, groups))
            plan.request("group_broadcast", groups, collective_plan("broadcast", "tree", groups.shape[1]))

    @staticmethod
    def _inside(plan: Plan, groups: IntArray) -> str:
        if plan.strategy.collective != "auto":
            return plan.strategy.collective
        return plan.choose("all_reduce", plan.strategy.bucket_size, groups[0])

    @cached_property
    def _senders_to(self) -> dict[tuple[int, int], list[int]]:
        """(exchange, class of ranks) -> classes of the family's groups that send to it."""
        found: dict[tuple[int, int], list[int]] = {}
        classes = self.plan.classes
        for number in range(len(self.targets)):
            family = self.plan.families.get(f"peers{number}")
            if family is None:
                continue
            position = list(self.plan.families).index(family.name)
            group_class = classes.group_class[position]
            for index in (index for stage in self.emitter.stage_classes for index in stage):
                rank = int(classes.representatives[index])
                rows = np.flatnonzero((family.groups[:, 1:] == rank).any(axis=1))
                found[number, index] = list(dict.fromkeys(group_class[rows].tolist()))
                self.received[number, index] = len(rows)
        return found

    # -- gradients ------------------------------------------------------------------------------------

    def _exchange_of(self, step: int) -> int:
        """The exchange that belongs to a step, or -1."""
        number, rest = divmod(step + 1, self.strategy.local_steps)
        return number - 1 if rest == 0 else -1

    @override
    def gradients_ready(self, stage: int, virtual: int, layer: int, step: int, ends: Ends) -> None:
        for bucket in self.plan.buckets(virtual):
            if bucket.last_layer != layer:
                continue
            if self.grouped:
                ends = self._reduce_inside(stage, bucket, step, ends)
            if not self.models and self._exchange_of(step) >= 0:
                self._send_gradients(stage, bucket, self._exchange_of(step), ends, step)

    def _send_gradients(self, stage: int, bucket: Bucket, exchange: int, ends: Ends, step: int) -> None:
        """Encode a bucket, unless that is a cast, and send it to all peers."""
        size = bucket.elements * self.gradient_bytes
        if not self.casts:
            ends = self.encode(stage, bucket, step, ends, f"bucket{bucket.index}")
            size = sum(message.size for message in self.plan.encoding.messages(bucket))
            self.coded[stage, exchange].append(bucket)
        self._send(stage, exchange, size, ends, step)

    def _decoded(self, stage: int, exchange: int, step: int, ends: Ends) -> Ends:
        """Decode what all peers have sent of each bucket, and add it up."""
        for bucket in self.coded.pop((stage, exchange), ()):
            pieces = max((self.received.get((exchange, index), 0) for index in ends), default=0)
            share = pieces / self.strategy.fragments
            seconds = {
                index: decoding_seconds(self.plan, bucket, device) * share
                for index, device in self.devices(stage).items()
            }
            ends = self.codec(seconds, f"bucket{bucket.index}.decode", step, ends)
        return ends

    def _reduce_inside(self, stage: int, bucket: Bucket, step: int, ends: Ends) -> Ends:
        done = self.emitter.collective(
            "group_all_reduce", self.emitter.stage_classes[stage], bucket.elements * self.gradient_bytes,
            f"bucket{bucket.index}.all_reduce", Cause.GRADIENT_COMM, ends, stream="group", step=step,
        )  # fmt: skip
        extend(self.reduced[stage, step], done)
        return done

    # -- one step ---------------------------------------------------------------------------------------

    @override
    def finish_step(self, step: int) -> None:
        for stage in range(self.strategy.pp):
            if not self.strategy.overlap and (self.grouped or not self.models):
                self.exchange_all(stage, step)
            self._finish_stage(stage, step, self._exchange_of(step))

    def _finish_stage(self, stage: int, step: int, exchange: int) -> None:
        classes = self.emitter.stage_classes[stage]
        beside = self.models and self.strategy.overlap
        snapshots = self._snapshots(stage, step)
        if exchange >= 0 and beside:
            self._send(stage, exchange, self._model_bytes(stage), snapshots, step)
        ready: Ends = {
            index: [
                *self.last_weight[stage].get(index, []), *self.reduced[stage, step].get(index, []),
                *snapshots[index],
            ]
            for index in classes
        }  # fmt: skip
        arrived = (
            self._gate(stage, step, exchange, ready)
            if exchange >= 0 and (beside or not self.models)
            else ready
        )
        arrived = self._decoded(stage, exchange, step, arrived)
        updated = self.optimizer(stage, step, self.stage_elements(stage), arrived)
        if exchange >= 0 and self.models and not beside:
            self._send(stage, exchange, self._model_bytes(stage), updated, step)
            updated = self._gate(stage, step, exchange, updated)
        self.updates[stage, step] = updated

    def _snapshots(self, stage: int, step: int) -> Ends:
        """The instant from which a step's model is known: behind the update before it."""
        held: Ends = {}
        for index in self.emitter.stage_classes[stage]:
            before = self.updates[stage, step - 1][index] if step else []
            start = self.builder.control(
                "step_start", device=self.emitter.device_row[index], after=before, step=step,
                opens_pull=self.rule in BARRIER_FREE,
            )  # fmt: skip
            if not step:
                self.starting.append((stage, index, start))
            held[index] = [start]
        return held

    def _model_bytes(self, stage: int) -> float:
        bits = self.strategy.exchange_bits
        size = self.plan.element_bytes if bits is None else bits / 8
        return self.stage_elements(stage) * size / self.strategy.fragments

    def _send(self, stage: int, exchange: int, size: float, after: Ends, step: int) -> None:
        """Every class sends to its peers of this exchange."""
        family = f"peers{exchange}"
        if family not in self.emitter.family_classes:
            return
        if not self.models:
            size /= self.strategy.fragments
        table, pairs = self.emitter.family_classes[family], self.pairwise
        cause = Cause.PARAMETER_COMM if self.models else Cause.GRADIENT_COMM
        for index in self.emitter.stage_classes[stage]:
            for group in table.by_member.get(index, ()):
                members = table.members[group] if pairs else (index,)
                for member in members if pairs else ():
                    row = self.emitter.device_row[member]
                    self.builder.stream(row, "peers", discipline=Discipline.ARRIVAL)
                task = self.emitter.transfer(
                    family, group, size, "peers.average" if pairs else "peers.send", cause,
                    list(after[index]), participants=members, stream="peers", step=step,
                )  # fmt: skip
                self.sends[stage, exchange].setdefault(group, []).append(task)

    def _gate(self, stage: int, step: int, exchange: int, ready: Ends) -> Ends:
        """What the update (or, without overlap, the next step) waits for, mixed into the model."""
        held: Ends = {}
        for index in self.emitter.stage_classes[stage]:
            arrived = self.builder.control(
                "peers.arrived", device=self.emitter.device_row[index], after=ready[index], step=step
            )
            self.waiting.append((stage, index, arrived, exchange))
            held[index] = [arrived]
        if self.grouped:
            held = self.emitter.collective(
                "group_broadcast", self.emitter.stage_classes[stage], self._model_bytes(stage),
                "peers.spread", Cause.PARAMETER_COMM, held, stream="group", step=step,
            )  # fmt: skip
        assert self._senders_to is not None  # counts what everybody receives
        received = max((self.received.get((exchange, index), 0) for index in held), default=0)
        if not received and not self.pairwise:
            return held
        passes = (2 + max(received, 1)) / self.strategy.fragments  # read all, write the mean
        return self.mix(stage, passes * self.stage_elements(stage), step, held)

    # -- closing ------------------------------------------------------------------------------------------

    @override
    def finish(self) -> None:
        for stage, index, arrived, exchange in self.waiting:
            self._wait(stage, index, arrived, exchange)
        last = self.steps_per_iteration - 1
        for stage in range(self.strategy.pp):
            updates = self.updates[stage, last]
            for index, end in self.boundary(stage, updates).items():
                if not self.strategy.overlap:
                    self.gate_forward(index, 0, {index: [end]})
        for stage, index, start in self.starting:
            for edge in self.updates[stage, last][index]:
                task, distance = edge if isinstance(edge, tuple) else (edge, 0)
                self.builder.edge(start, task, 1 + distance)

    def _wait(self, stage: int, index: int, arrived: int, exchange: int) -> None:
        """Edges from the sends that this class needs, of this exchange or an earlier one."""
        count = len(self.targets)
        own = self._own_groups(index)
        if self.rule != "asp":
            earlier, which = divmod(exchange - self.strategy.staleness, count)
            for group in self._senders_to.get((which, index), ()):
                self._edges(arrived, self.sends[stage, which].get(group, ()), -earlier)
        lag = 0 if self.rule != "asp" or self.pairwise else 1
        earlier, which = divmod(exchange - lag, count)
        for group in own.get(which, ()):
            self._edges(arrived, self.sends[stage, which].get(group, ()), -earlier)

    def _own_groups(self, index: int) -> dict[int, list[int]]:
        tables = self.emitter.family_classes
        return {
            number: tables[f"peers{number}"].by_member.get(index, [])
            for number in range(len(self.targets))
            if f"peers{number}" in tables
        }

    def _edges(self, task: int, sources: list[int] | tuple[()], distance: int) -> None:
        for source in sources:
            self.builder.edge(task, source, distance)

    @override
    def optimizer(self, stage: int, step: int, elements: float, after: Ends) -> Ends:
        updated = super().optimizer(stage, step, elements, after)
        if self.rule not in BARRIER_FREE:
            return updated
        closed: Ends = {}
        for index, tasks in updated.items():
            done: Edge = self.builder.control(
                "updated", device=self.emitter.device_row[index], after=tasks, step=step, closes_update=True
            )
            closed[index] = [done]
        return closed
