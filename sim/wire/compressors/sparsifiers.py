"""Some elements only. Ranks keep different ones, so the sum of n messages has up to n times as many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from sim.wire.compressor import FP32, Compressor, Message, Options, Parameter, Work
from sim.wire.tensors import Content

SECTOR = 32.0
"""Bytes a GPU moves for one access to a random element (NVIDIA, CUDA C++ Best Practices Guide, 9.2.1)."""
RADIX_PASSES = 4
"""Passes of a radix select over 32-bit keys, 8 bits at a time (Alabi et al., JEA 17, 2012)."""


@dataclass(frozen=True, kw_only=True)
class Sparsifier(Compressor):
    """A fraction ``ratio`` of the elements, ``index_bytes`` and ``value_bytes`` each.

    Attributes
    ----------
    value_bytes : float, optional
        Bytes of a value; as in the gradient if absent.
    passes : int
        Times the selection reads the gradients.
    matrices_only : bool
        Whether biases and norms are sent as they are, in a reducible message of their own.
    states : int
        Arrays of the gradients' size that selection reads and writes: the residual, local momentum.
    """

    parameter: ClassVar[Parameter] = "ratio"
    index_bytes: float = 4.0
    value_bytes: float | None = None
    passes: int = 1
    matrices_only: bool = False
    states: int = 1
    error_feedback: bool = True

    @property
    @override
    def reducible(self) -> bool:
        return False

    def _sparse(self, content: Content) -> float:
        """Elements that selection works on."""
        if not self.matrices_only or not content.tensors:
            return content.elements
        return sum(tensor.elements for tensor in content.tensors if tensor.is_matrix)

    def _code(self, element_bytes: float) -> float:
        return self.index_bytes + (element_bytes if self.value_bytes is None else self.value_bytes)

    @override
    def messages(self, content: Content, element_bytes: float, options: Options) -> tuple[Message, ...]:
        sparse = self._sparse(content)
        dense = max(content.elements - sparse, 0.0) * element_bytes
        size = min(self.chosen(options) * self._code(element_bytes), element_bytes) * sparse
        kept = (Message(size, reducible=False),) if sparse else ()
        return (Message(dense), *kept) if dense > 1e-9 * content.elements else kept

    @override
    def touched(self, content: Content, options: Options) -> float:
        sparse = self._sparse(content)
        return content.elements - sparse * (1 - self.chosen(options))

    @override
    def aggregate_size(self, content: Content, element_bytes: float, options: Options, ranks: int) -> float:
        """The union of independent choices: 1 - (1 - ratio)^ranks of the elements."""
        union = Options(ratio=1 - (1 - self.chosen(options)) ** ranks)
        return self.size(content, element_bytes, union)

    @override
    def encode(self, content: Content, element_bytes: float, options: Options) -> Work:
        """Read gradients, add and keep the states, select, gather what is kept."""
        kept = self.chosen(options) * content.elements
        swept = content.elements * element_bytes * (1 + 2 * self.states + self.passes)
        return Work(swept + kept * (SECTOR + self._code(element_bytes)))

    @override
    def decode(self, content: Content, element_bytes: float, options: Options, pieces: int = 1) -> Work:
        """Clear the gradients, then add every element of every piece at its place."""
        kept = self.chosen(options) * content.elements * pieces
        return Work(content.elements * element_bytes + kept * (2 * SECTOR + self._code(element_bytes)))


@dataclass(frozen=True, kw_only=True)
class SharedChoice(Sparsifier):
    """All ranks keep the same elements: no indices on the wire, and sums stay sums.

    ``chunk`` elements are chosen at a time by the sum of all ranks' norms, which is all-reduced first; 0: by
    a shared seed.
    """

    chunk: int = 0
    recodes: bool = False

    @property
    @override
    def reducible(self) -> bool:
        return True

    @override
    def messages(self, content: Content, element_bytes: float, options: Options) -> tuple[Message, ...]:
        values = Message(self.chosen(options) * content.elements * element_bytes)
        if not self.chunk:
            return (values,)
        return Message(FP32 * max(1.0, content.elements / self.chunk), shared=True), values

    @override
    def aggregate_size(self, content: Content, element_bytes: float, options: Options, ranks: int) -> float:
        return self.size(content, element_bytes, options)


COMPRESSORS = (
    Sparsifier(
        name="threshold",
        description="elements above a threshold, sign and index in 32 bits, error feedback",
        source="Strom, Interspeech 2015; the fraction follows from the threshold, 0.1 to 1 % there",
        default=0.005,
        value_bytes=0.0,
    ),
    Sparsifier(
        name="topk",
        description="the largest elements with their indices, error feedback",
        source="Aji and Heafield, EMNLP 2017: 1 %",
        default=0.01,
        passes=RADIX_PASSES,
    ),
    Sparsifier(
        name="dgc",
        description="the largest 0.1 % of each matrix, 16-bit run lengths between them; vectors as they are",
        source=(
            "Lin et al., Deep Gradient Compression, ICLR 2018: 32-bit values, 16-bit run lengths of zeros; "
            "its code compresses parameters of more than one dimension only"
        ),
        default=0.001,
        index_bytes=2.0,
        passes=2,
        states=2,
        matrices_only=True,
    ),
    SharedChoice(
        name="randomk",
        description="random elements, the same on every rank by a shared seed, error feedback",
        source="Stich et al., NeurIPS 2018",
        default=0.01,
        passes=0,
    ),
    SharedChoice(
        name="coarse_chunk",
        description="the chunks of 32 K elements whose norms, summed over all ranks, are largest",
        source="Sun et al., GradientFlow, 2019 (arXiv:1902.06855): 85 % sparse",
        default=0.15,
        chunk=32768,
        scatters=False,
        served=False,
    ),
    Sparsifier(
        name="significance",
        description="changes above 1 % of their parameter, with their indices; the others add up",
        source="Hsieh et al., Gaia, NSDI 2017: over 95 % of the changes are smaller",
        default=0.05,
        passes=2,
    ),
    Sparsifier(
        name="adacomp",
        description="elements near the largest of their bin of 500, sign and place in 16 bits",
        source="Chen et al., AdaComp, AAAI 2018: about 200 times smaller for fully connected layers",
        default=0.01,
        index_bytes=2.0,
        value_bytes=0.0,
        passes=2,
    ),
)
