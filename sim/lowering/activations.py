"""Activations, and their gradients, between the ranks of a replica: bytes on the wire, work of both ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sim.graph.builder import Ends
from sim.graph.execution import Cause
from sim.lowering.emitter import Emitter
from sim.models.compression import work_seconds
from sim.wire.compressor import Compressor, Options, Work
from sim.wire.compressors import COMPRESSORS
from sim.wire.tensors import Content, Tensor


class ActivationCode:
    """Wire format of what tensor parallel ranks and pipeline stages exchange (taxonomy D7, C2-8).

    Parameters
    ----------
    emitter : Emitter
    """

    def __init__(self, emitter: Emitter) -> None:
        self.emitter, self.plan = emitter, emitter.plan
        self.compressor: Compressor = COMPRESSORS[self.plan.strategy.activation_compression]
        self._bytes: dict[float, float] = {}

    def size(self, elements: float) -> float:
        """Bytes of so many elements on the wire."""
        if elements not in self._bytes:
            content = _content(elements)
            self._bytes[elements] = self.compressor.size(content, self.plan.element_bytes, Options())
        return self._bytes[elements]

    @property
    def plain(self) -> bool:
        """Whether activations travel as they were computed."""
        return self.compressor.name == "none"

    @property
    def sharers(self) -> int:
        """Ranks that each hand a part on to another stage: those of a tensor parallel group whose sequence is
        divided, or that scatter before they send; else one hands on everything."""
        strategy = self.plan.strategy
        return strategy.tp if strategy.sequence_parallel or strategy.scatter_gather else 1

    def hop(self, elements: float, **options: int) -> CodedExchange:
        """What one rank hands on to another stage."""
        part = elements * self.plan.local_samples / self.sharers
        return CodedExchange(self, "send", part, 2, Cause.PIPELINE_COMM, options)

    def seconds(self, work: Work, classes: Iterable[int]) -> dict[int, float]:
        """Time of some work on the device of each class."""
        plan = self.plan
        ranks = {index: int(plan.classes.representatives[index]) for index in classes}
        return {
            index: work_seconds(work, plan.device_of_rank(rank), plan.calibration)
            for index, rank in ranks.items()
        }


@dataclass(frozen=True)
class CodedExchange:
    """Both ends of one exchange of activations.

    Attributes
    ----------
    code : ActivationCode
    operation : str
        The collective, or ``send``.
    elements : float
        As ``size_bytes`` of the collective counts them.
    ranks : int
        Ranks that take part.
    cause : Cause
    options : dict
        Step and micro-batch.
    """

    code: ActivationCode
    operation: str
    elements: float
    ranks: int
    cause: Cause
    options: dict[str, int] = field(default_factory=dict)

    def encode(self, classes: Iterable[int], after: Ends) -> Ends:
        """Encode what each rank sends: of an all-gather its part only."""
        share = 1 / self.ranks if self.operation == "all_gather" else 1.0
        return self._compute("encode", classes, share, after)

    def decode(self, classes: Iterable[int], after: Ends) -> Ends:
        """Decode what each rank gets: of a reduce-scatter its part only. Sums are added as codes."""
        share = 1 / self.ranks if self.operation == "reduce_scatter" else 1.0
        return self._compute("decode", classes, share, after)

    def _compute(self, side: str, classes: Iterable[int], share: float, after: Ends) -> Ends:
        compressor, element_bytes = self.code.compressor, self.code.plan.element_bytes
        if self.code.plain:
            return after
        coder = compressor.encode if side == "encode" else compressor.decode
        seconds = self.code.seconds(coder(_content(self.elements * share), element_bytes, Options()), classes)
        name = f"{self.operation}.{side}"
        done = self.code.emitter.compute(seconds, seconds, name, self.cause, after, **self.options)
        return {**after, **done}


def _content(elements: float) -> Content:
    """One tensor; its shape does not matter to what suits activations."""
    return Content(elements, (Tensor(elements),))
