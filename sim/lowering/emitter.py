"""The emitter: writes a plan's compute tasks and collectives into a GraphBuilder, class by class.

Everything is written once per *rank class*; a collective once per *class of groups*. An unfolded lowering is
the same code with every rank in a class of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np

from sim.graph.builder import Ends
from sim.graph.execution import Cause
from sim.lowering.plan import Plan
from sim.lowering.scheduling import stream_rules
from sim.lowering.transfers import TransferEmitter
from sim.models.compute import LayerCosts
from sim.taxonomy.synchronizations import BARRIER_FREE


class Emitter(TransferEmitter):
    """Tasks of a plan.

    Parameters
    ----------
    plan : Plan
        With families routed and folded.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.plan = plan
        self.stream_rules = stream_rules(plan)
        parts = plan.classes
        self.stage_classes: list[list[int]] = [[] for _ in range(plan.strategy.pp)]
        self.server_classes: list[int] = []
        servers = set(plan.server_endpoints.tolist())
        for index, (endpoint, count) in enumerate(
            zip(parts.representatives, parts.multiplicity, strict=True)
        ):
            endpoint, count = int(endpoint), int(count)
            if endpoint in servers:
                self.server_classes.append(index)
                name, stage, kind = f"server{endpoint - plan.network.num_devices}", -1, "server"
            else:
                stage = int(plan.layout.coordinates["pp"][endpoint])
                self.stage_classes[stage].append(index)
                name, kind = f"rank{endpoint}", "worker"
            self.device_row[index] = self.builder.device(
                name, endpoint, multiplicity=count, stage=stage, kind=kind
            )

    @cached_property
    def sender_of(self) -> dict[str, dict[tuple[int, int], int]]:
        """Per asymmetric family: sender by (receiver, sender's stage)."""
        return {
            name: {(members[-1], self._stage(members[0])): members[0] for members in table.members}
            for name, table in self.family_classes.items()
            if self.plan.families[name].asymmetric
        }

    def _stage(self, endpoint_class: int) -> int:
        endpoint = int(self.plan.classes.representatives[endpoint_class])
        ranks = self.plan.layout.num_ranks
        return int(self.plan.layout.coordinates["pp"][endpoint]) if endpoint < ranks else -1

    def tensor_shards(self) -> list[tuple[int, int]]:
        """By device row: tensor parallel rank of the representative, and different ones in its class.

        Empty where no part of the model is updated at a pace of its own.
        """
        if self.plan.strategy.tp == 1 or self.plan.strategy.synchronization not in BARRIER_FREE:
            return []
        parts, ranks = self.plan.classes, self.plan.layout.num_ranks
        shard = self.plan.layout.coordinates["tp"]
        pairs = np.unique(np.column_stack([parts.endpoint_class[:ranks], shard]), axis=0)
        different = np.bincount(pairs[:, 0], minlength=len(parts.representatives))
        found = [(0, 1)] * len(self.device_row)
        for index, row in self.device_row.items():
            endpoint = int(parts.representatives[index])
            if endpoint < ranks:
                found[row] = int(shard[endpoint]), int(different[index])
        return found

    def multiplicity(self, endpoint_class: int) -> int:
        """Ranks (or servers) that a class stands for."""
        return int(self.plan.classes.multiplicity[endpoint_class])

    @cached_property
    def _costs(self) -> dict[int, LayerCosts]:
        costs = {}
        for classes in self.stage_classes:
            for index in classes:
                rank = int(self.plan.classes.representatives[index])
                costs[index] = self.plan.layer_costs(self.plan.device_of_rank(rank))
        return costs

    def cost(self, endpoint_class: int) -> LayerCosts:
        """Layer times of a class, before its slow factor."""
        return self._costs[endpoint_class]

    @cached_property
    def slow(self) -> dict[int, float]:
        """Slow factor of each worker class."""
        representatives = self.plan.classes.representatives
        return {
            index: self.plan.slow_factor(int(representatives[index]))
            for classes in self.stage_classes
            for index in classes
        }

    def compute(
        self,
        classes: Iterable[int],
        seconds: Mapping[int, float],
        name: str,
        cause: Cause,
        after: Ends,
        **options: int,
    ) -> Ends:
        """One compute task per class; classes without work pass their predecessors on."""
        out: Ends = {}
        for index in classes:
            if seconds[index] <= 0.0:
                out[index] = after.get(index, [])
                continue
            task = self.builder.compute(
                self.device_row[index],
                seconds[index] * self.slow[index],
                name,
                cause,
                after=after.get(index, ()),
                **options,
            )
            out[index] = [task]
        return out
