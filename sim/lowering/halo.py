"""Spatial parallelism: ranks share each image by rows, and convolutions read a few rows of the neighbours'.

A kernel of k rows needs (k - 1) / 2 rows of the input beyond its part on either side in the forward and hands
as many rows of the input's gradient back in the backward (Dryden et al., IPDPS 2019, arXiv:1903.06681,
section III; Kumar et al., 2019, arXiv:1909.09756). Statistics of batch normalisation stay those of a rank.
"""

from __future__ import annotations

import numpy as np

from sim.graph.builder import Ends
from sim.graph.execution import Cause
from sim.lowering.emitter import Emitter
from sim.lowering.plan import Plan
from sim.models.collectives import Phase
from sim.spec.layer import Convolution, Layer


def halo_elements(layer: Layer) -> float:
    """Elements of a sample's input that a rank receives from one neighbour, over all convolutions."""
    return sum(
        (op.kernel[0] - 1) / 2 * op.out_width * op.stride * op.in_channels
        for op in layer.ops
        if isinstance(op, Convolution)
    )


class Halo:
    """Emits the exchanges of rows with the neighbours."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter, self.plan = emitter, emitter.plan
        self.elements = [halo_elements(layer) for layer in self.plan.workload.layers]

    @classmethod
    def request_families(cls, plan: Plan) -> None:
        """Route the exchange: every rank with the one above and the one below, all at once."""
        upper = np.arange(plan.strategy.cp - 1)
        source, target = np.concatenate([upper, upper + 1]), np.concatenate([upper + 1, upper])
        phase = Phase(src=source, dst=target, relative=np.ones(len(source)), fraction=1.0, steps=1)
        plan.request("cp_halo", plan.layout.groups("cp"), (phase,))

    def exchange(self, stage: int, index: int, name: str, ends: Ends, **options: int) -> Ends:
        """Rows of a layer's input, or of its gradient, for one micro-batch; nothing without a kernel."""
        size = self.elements[index] * self.plan.micro_batch_size * self.plan.element_bytes
        if not size:
            return ends
        label = f"{self.plan.workload.layers[index].name}.{name}"
        return self.emitter.collective(
            "cp_halo", self.emitter.stage_classes[stage], size, label,
            Cause.CONTEXT_COMM, ends, stream="cp", **options,
        )  # fmt: skip
