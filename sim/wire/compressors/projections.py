"""Linear projections to fewer numbers: the projection of a sum is the sum of projections."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from sim.wire.compressor import FP32, Compressor, Message, Options, Parameter, Work
from sim.wire.compressors.sparsifiers import RADIX_PASSES
from sim.wire.tensors import Content, Tensor


@dataclass(frozen=True, kw_only=True)
class PowerSgd(Compressor):
    """Two factors per matrix, all-reduced one after the other behind everything that is no matrix.

    A matrix whose factors would not be smaller goes as it is; a matrix of unknown shape brings along a vector
    of its height.
    """

    parameter: ClassVar[Parameter] = "rank"
    recodes: bool = False

    def _is_factored(self, tensor: Tensor, rank: float) -> bool:
        return tensor.is_matrix and (tensor.rows + tensor.cols) * rank < tensor.elements

    @override
    def messages(self, content: Content, element_bytes: float, options: Options) -> tuple[Message, ...]:
        rank = self.chosen(options)
        tensors = content.tensors or Content.of((_unknown(content),)).tensors
        factored = [tensor for tensor in tensors if self._is_factored(tensor, rank)]
        plain = sum(tensor.elements for tensor in tensors if not self._is_factored(tensor, rank))
        plain += sum(tensor.rows for tensor in factored if not tensor.known)
        left, right = sum(tensor.rows for tensor in factored), sum(tensor.cols for tensor in factored)
        sizes = (plain * element_bytes, left * element_bytes * rank, right * element_bytes * rank)
        return tuple(Message(size) for size in sizes if size)

    @override
    def encode(self, content: Content, element_bytes: float, options: Options) -> Work:
        """Both ends' work: thin products read the gradients twice, the error is added and taken off again."""
        return Work(8 * content.elements * element_bytes, 6 * content.elements * self.chosen(options))

    @override
    def decode(self, content: Content, element_bytes: float, options: Options, pieces: int = 1) -> Work:
        return Work()


def _unknown(content: Content) -> Tensor:
    return Tensor(math.sqrt(content.elements), math.sqrt(content.elements), known=False)


@dataclass(frozen=True, kw_only=True)
class _Ratio(Compressor):
    """Sends ``ratio`` as many numbers as there are elements, whatever the tensors' shapes."""

    parameter: ClassVar[Parameter] = "ratio"

    @override
    def messages(self, content: Content, element_bytes: float, options: Options) -> tuple[Message, ...]:
        return (Message(self.chosen(options) * content.elements * element_bytes),)


@dataclass(frozen=True, kw_only=True)
class Projection(_Ratio):
    """A fixed linear map of slices of ``width`` elements to ``ratio`` as many."""

    width: int = 512
    recodes: bool = False

    @override
    def encode(self, content: Content, element_bytes: float, options: Options) -> Work:
        ratio = self.chosen(options)
        return Work(content.elements * element_bytes * (1 + ratio), 2 * content.elements * ratio * self.width)

    @override
    def decode(self, content: Content, element_bytes: float, options: Options, pieces: int = 1) -> Work:
        return self.encode(content, element_bytes, options)


@dataclass(frozen=True, kw_only=True)
class CountSketch(_Ratio):
    """A count sketch: every element is added to one place of each of ``rows`` rows."""

    rows: int = 5
    recodes: bool = False

    @override
    def encode(self, content: Content, element_bytes: float, options: Options) -> Work:
        """Read the gradients and add each element to every row; the residual lives in a sketch, too."""
        return Work(content.elements * (element_bytes + self.rows * 2 * FP32))

    @override
    def decode(self, content: Content, element_bytes: float, options: Options, pieces: int = 1) -> Work:
        """Estimate every element from all rows and select the largest."""
        return Work(content.elements * (self.rows * FP32 + (1 + RADIX_PASSES) * element_bytes))


COMPRESSORS = (
    PowerSgd(
        name="powersgd",
        description="two thin factors of each matrix, error feedback",
        source="Vogels et al., PowerSGD, NeurIPS 2019",
        default=1,
        error_feedback=True,
        scatters=False,
        served=False,
        fitted="powersgd_rank_time",
    ),
    Projection(
        name="vector_quant",
        description="slices of 512 elements projected on their principal components",
        source="Yu et al., GradiVeQ, NeurIPS 2018: 8 times smaller",
        default=0.125,
    ),
    CountSketch(
        name="sketch",
        description="a count sketch of the gradients, the largest elements recovered from the sum",
        source="Rothchild et al., FetchSGD, ICML 2020; Ivkin et al., Sketched-SGD, NeurIPS 2019",
        default=0.05,
        scatters=False,
        error_feedback=True,
    ),
)
