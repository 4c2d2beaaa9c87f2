"""Which gradients of a plan travel together: a rank's tensors, fused and cut into buckets (taxonomy D8)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sim.lowering.buckets import Bucket, make_buckets
from sim.lowering.collective import lower_collective
from sim.lowering.fusion import FusionOptions, ReadyTensor, fuse, idle_seconds, partitioned
from sim.lowering.tables import INDEX_BYTES, other_tensors, touched_elements, touched_rows
from sim.models.collectives import GRID_ALGORITHMS

if TYPE_CHECKING:
    from sim.lowering.plan import Plan


class Bucketing:
    """Buckets of the gradients of a plan, by model chunk."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.strategy = plan.strategy
        self._buckets: dict[int, list[Bucket]] = {}

    def of(self, virtual: int) -> list[Bucket]:
        """Gradient buckets of a model chunk."""
        if virtual not in self._buckets:
            chunk, held = self.plan.chunks[virtual], self.plan.held
            factored = {layer: self.factors(layer) for layer in chunk}
            rows = {layer: self.rows(layer) for layer in chunk}
            dense = [layer for layer in chunk if not factored[layer] and layer not in held]
            fused = [
                bucket
                for expert in self.plan.parameter_kinds
                for bucket in self._fused(virtual, dense, expert=expert)
            ]
            found = partitioned(fused, self.strategy.partition_size, self.plan.encoding.element_bytes)
            for layer in reversed(chunk):
                if factored[layer]:
                    elements = self.plan.local_elements(layer)
                    found.append(Bucket(len(found), elements, layer, factors=factored[layer]))
                if rows[layer]:
                    found.append(Bucket(len(found), rows[layer], layer, factors=rows[layer]))
            # Dense and expert buckets are fused apart; what waits for one tells them all by number.
            self._buckets[virtual] = [replace(bucket, index=i) for i, bucket in enumerate(found)]
        return self._buckets[virtual]

    def factors(self, layer: int) -> float:
        """Numbers a rank sends of a layer whose gradient travels as sufficient factors; else 0.

        Every rank receives the others' samples x (rows + columns), against twice the matrix for an all-reduce
        (Xie et al., SFB, UAI 2016; Poseidon's choice per layer: Zhang et al., ATC 2017, section 3.2).
        """
        choice, spec = self.strategy.sufficient_factors, self.plan.workload.layers[layer]
        op = spec.fully_connected
        if choice == "never" or op is None or layer in self.plan.held:
            return 0.0
        ranks = self.plan.gradient_span()[0]
        if ranks < 2:
            return 0.0
        numbers = self.plan.step_samples * op.rows * (op.n + op.k)
        return numbers if choice == "always" or numbers < 2 * spec.parameters / ranks else 0.0

    def rows(self, layer: int) -> float:
        """Numbers a rank sends of a layer whose rows with gradients everybody gathers; else 0."""
        plan = self.plan
        if layer not in plan.tables or plan.strategy.serves_tables or plan.gradient_span()[0] < 2:
            return 0.0
        spec, samples = plan.workload.layers[layer], plan.step_samples
        numbers = touched_rows(spec, samples) * INDEX_BYTES / plan.gradient_bytes
        return touched_elements(spec, samples) + numbers

    def _fused(self, virtual: int, chunk: list[int], *, expert: bool) -> list[Bucket]:
        """Buckets of some layers of a chunk before they are cut, as the strategy's fusion makes them."""
        first = self.strategy.first_bucket_size
        tensors = [self.local_tensors(layer, expert) for layer in chunk]
        capacity = self.strategy.bucket_size
        if self.strategy.synchronization == "soft_sync":
            # A gradient counts as a whole (Rudra): batches that differ from bucket to bucket could wait for
            # each other in a circle.
            capacity = first = float("inf")
        if self.strategy.fusion == "size":
            return make_buckets(
                chunk,
                tensors,
                bucket_bytes=capacity,
                first_bucket_bytes=capacity if first is None else first,
                element_bytes=self.plan.encoding.element_bytes,
                expert=expert,
            )
        ready, startup, per_byte = self._ready_in_backward(virtual), 0.0, 0.0
        if self.strategy.fusion == "merge_plan":
            startup, per_byte = self.exchange_line(expert=expert)
        in_order = [
            ReadyTensor(layer, sizes[at], sizes[at] * self.plan.encoding.element_bytes, ready[layer], at)
            for layer, sizes in zip(reversed(chunk), reversed(tensors), strict=True)
            for at in reversed(range(len(sizes)))
        ]
        options = FusionOptions(capacity, self.strategy.cycle_time, startup, per_byte)
        return fuse(self.strategy.fusion, in_order, options, expert=expert)

    def _ready_in_backward(self, virtual: int) -> dict[int, float]:
        """Seconds from the beginning of a chunk's backward until each of its layers has its gradients."""
        stage = self.plan.holders(virtual)[0]
        rank = int(np.flatnonzero(self.plan.layout.coordinates["pp"] == stage)[0])
        costs = self.plan.layer_costs(self.plan.device_of_rank(rank))
        seconds = costs.backward_input_s + costs.backward_weight_s
        if self.strategy.recompute == "full":
            seconds = seconds + costs.forward_s - costs.unneeded_s * self.strategy.recompute_early_stop
        layers = self.plan.chunks[virtual][::-1]
        return dict(zip(layers, np.cumsum(seconds[layers]).tolist(), strict=True))

    def exchange_line(self, *, expert: bool) -> tuple[float, float]:
        """Seconds of an all-reduce among a gradient group alone on the network: start-up, and per byte."""
        groups, sizes = self.plan.gradient_groups(expert=expert), (1.0, 64e6)
        if groups.shape[1] < 2:
            return 0.0, 0.0
        algorithm, dims = self.strategy.collective, self.strategy.collective_dims
        if algorithm in GRID_ALGORITHMS:
            dims = self.plan.grid(groups, algorithm, dims)
            if dims is None or min(dims) < 2:
                algorithm, dims = "ring", None
        short, long = (
            idle_seconds(
                lower_collective(
                    self.plan.cluster, "all_reduce", algorithm, size, calibration=self.plan.calibration,
                    ranks=groups[0], dims=dims, radix=self.strategy.collective_radix,
                )
            )
            for size in sizes
        )  # fmt: skip
        per_byte = (long - short) / (sizes[1] - sizes[0])
        return short - per_byte * sizes[0], per_byte

    def local_tensors(self, layer: int, expert: bool) -> tuple[float, ...]:
        """Tensors of a layer on one rank; those of experts follow the others (see ``Layer.tensors``)."""
        spec, local = self.plan.workload.layers[layer], self.plan.local_elements(layer, expert=expert)
        if not local:
            return ()
        if layer in self.plan.tables:
            return other_tensors(spec) if spec.tables else spec.tensors
        tensors = [size for size in spec.tensors if size]
        tensors = tensors[self.own_tensors(layer, expert)]
        whole = sum(tensors)
        return tuple(size * (local / whole) for size in tensors) if whole else (local,)

    def own_tensors(self, layer: int, expert: bool) -> slice:
        """Which of a layer's non-empty tensors a rank has of one of the ``parameter_kinds``."""
        spec = self.plan.workload.layers[layer]
        if len(self.plan.parameter_kinds) < 2 or not spec.expert_parameters:
            return slice(None)
        tensors = [size for size in spec.tensors if size]
        shared = int(np.searchsorted(np.cumsum(tensors), spec.parameters * (1 + 1e-12), side="right"))
        own = len(tensors[shared:]) // self.strategy.ep
        return slice(shared, shared + own) if expert else slice(shared)
