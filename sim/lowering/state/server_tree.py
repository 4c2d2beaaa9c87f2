"""Parameter servers behind aggregators: groups reduce first, one rank of each talks to the servers (D2, D5).

MXNet's ``dist_device_sync``, Rudra-adv's aggregators, rack-scale servers behind workers of a host; with
workers of a group in step and groups at their own pace, the compute groups of Omnivore (Hadjis et al. 2016).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from typing_extensions import override

from sim.graph.builder import Ends
from sim.graph.execution import Cause
from sim.lowering.buckets import Bucket
from sim.lowering.plan import IntArray, Plan
from sim.lowering.state.parameter_server import ParameterServerState
from sim.models.collectives import plan as collective_plan


def replica_groups(plan: Plan) -> IntArray:
    """Ranks of every group of ``group_size`` neighbouring replicas that hold the same part of the model."""
    return plan.layout.groups("cp", "dp").reshape(-1, group_ranks(plan))


def tree_of_groups(plan: Plan) -> list[IntArray]:
    """Groups of every level of aggregators, lowest first: above the first, leaders of groups form groups."""
    levels = [replica_groups(plan)]
    for _ in range(plan.strategy.tree_levels - 1):
        leaders = levels[-1][:, 0]
        levels.append(leaders.reshape(-1, plan.strategy.group_size or 1))
    return levels


def _suffix(level: int) -> str:
    return str(level) if level else ""


def group_ranks(plan: Plan) -> int:
    """Ranks of a group that hold the same part of the model."""
    return (plan.strategy.group_size or 1) * plan.strategy.cp


class ServerTreeState(ParameterServerState):
    """A tree: a binomial reduction and broadcast in each group, level by level, then the servers.

    The first rank of a group is its aggregator, and a member of a group of the next level. The servers see
    one gradient per group of the highest level, to which the synchronisation rule applies.
    """

    @override
    @classmethod
    def request_families(cls, plan: Plan) -> None:
        super().request_families(plan)
        for level, groups in enumerate(tree_of_groups(plan)):
            for operation in ("reduce", "broadcast") if groups.shape[1] > 1 else ():
                phases = collective_plan(operation, "tree", groups.shape[1])
                plan.request(f"group_{operation}{_suffix(level)}", groups, phases)

    @override
    @classmethod
    def senders(cls, plan: Plan) -> IntArray:
        return np.sort(tree_of_groups(plan)[-1][:, 0])

    @override
    def senders_per_shard(self) -> int:
        above = int((self.strategy.group_size or 1) ** (self.strategy.tree_levels - 1))
        return super().senders_per_shard() // (group_ranks(self.plan) * above)

    @cached_property
    def _sender_of(self) -> dict[int, int]:
        classes = self.plan.classes
        leader = np.arange(self.plan.layout.num_ranks)
        for groups in tree_of_groups(self.plan):
            above = np.arange(len(leader))
            above[groups.ravel()] = np.repeat(groups[:, 0], groups.shape[1])
            leader = above[leader]
        return {
            index: int(classes.endpoint_class[leader[int(classes.representatives[index])]])
            for stage in self.emitter.stage_classes
            for index in stage
        }

    @override
    def sender(self, index: int) -> int:
        return self._sender_of[index]

    @override
    def pushes(
        self, stage: int, size: float, name: str, ends: Ends, updated: int, latency: float
    ) -> dict[int, int]:
        classes = self.emitter.stage_classes[stage]
        reduced = ends
        for level in range(self.strategy.tree_levels):
            reduced = self.emitter.collective(
                f"group_reduce{_suffix(level)}", classes, size, f"{name}.reduce{_suffix(level)}",
                Cause.GRADIENT_COMM, reduced, stream=f"group{_suffix(level)}",
                extra_latency=0.0 if level else latency,
            )  # fmt: skip
        return {
            index: self._transfer("push", index, size, name, reduced[index], updated=updated)
            for index in classes
            if self.sender(index) == index
        }

    @override
    def pull(self, stage: int, virtual: int, bucket: Bucket, after: Ends, *, snapshot: bool) -> None:
        classes, name = self.emitter.stage_classes[stage], f"{self._label(virtual, bucket)}.pull"
        size = bucket.elements * self.parameter_bytes
        pulled: Ends = {index: list(after.get(index, [])) for index in classes}
        for index in classes:
            if self.sender(index) == index:
                task = self._transfer("pull", index, size, name, after.get(index, []), snapshot=snapshot)
                self.requests[index, virtual, bucket.index] = task
                pulled[index] = [task]
        spread = pulled
        for level in reversed(range(self.strategy.tree_levels)):
            spread = self.emitter.collective(
                f"group_broadcast{_suffix(level)}", classes, size, f"{name}.broadcast{_suffix(level)}",
                Cause.PARAMETER_COMM, spread, stream=f"pull{_suffix(level)}",
            )  # fmt: skip
        for index in classes:
            self.pulls[index, virtual, bucket.index] = spread[index][-1]
