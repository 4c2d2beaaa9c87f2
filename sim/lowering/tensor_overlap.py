"""Tensor parallel gathers and scatters beside the products they feed or follow.

The exchange is cut into as many pieces as there are ranks. Only one of them shows: a product begins with the
rows a rank has itself while the others arrive, and what it has computed is scattered while it computes on
(torchtitan's asynchronous tensor parallelism, Transformer Engine's userbuffers; Wang et al., ASPLOS 2023,
"Overlap communication with dependent computation via decomposition"). What runs beside a layer is hidden by
all of the layer's computation, not by its product alone.
"""

from __future__ import annotations

from collections.abc import Callable

from sim.graph.builder import Ends
from sim.spec.layer import Layer
from sim.spec.strategy import Strategy

Send = Callable[[str, int, float, Layer, int, Ends], Ends]
"""(operation, stage, elements, layer, micro-batch, after) -> what has arrived."""


class TensorOverlap:
    """Cuts the exchanges of a strategy with ``overlap_tensor``; without it they stay whole."""

    def __init__(self, strategy: Strategy, send: Send) -> None:
        self.send = send
        self.pieces = strategy.tp if strategy.overlap_tensor and strategy.sequence_parallel else 1

    def cuts(self, layer: Layer) -> bool:
        """Whether a layer's exchanges are cut; experts exchange tokens otherwise."""
        return self.pieces > 1 and not layer.num_experts

    def shown(self, elements: float, layer: Layer) -> float:
        """Elements of the piece that nothing hides."""
        return elements / self.pieces if self.cuts(layer) else elements

    def begin(
        self, operation: str, stage: int, elements: float, layer: Layer, m: int, ends: Ends
    ) -> tuple[Ends, Ends]:
        """Exchange the piece that shows, and behind it, beside what follows, the others."""
        first = self.send(operation, stage, self.shown(elements, layer), layer, m, ends)
        return first, self.rest(operation, stage, elements, layer, m, first)

    def rest(self, operation: str, stage: int, elements: float, layer: Layer, m: int, ends: Ends) -> Ends:
        """Exchange the pieces that are hidden, if there are any."""
        if not self.cuts(layer) or not elements:
            return {}
        return self.send(operation, stage, elements - self.shown(elements, layer), layer, m, ends)
