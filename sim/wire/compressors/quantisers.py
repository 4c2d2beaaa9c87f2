"""Few bits per element. Codes cannot be added: a sum has more levels than a code can name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from typing_extensions import override

from sim.wire.compressor import FP32, Compressor, Message, Options, Parameter, Work
from sim.wire.tensors import Content, Tensor


@dataclass(frozen=True, kw_only=True)
class Quantiser(Compressor):
    """``bits`` per element and ``scales`` fp32 numbers per tensor, column or block of elements.

    A tensor that would not get smaller is sent as it is.
    """

    bits: float
    scales: int = 1
    per: Literal["tensor", "column", "block"] = "tensor"
    block: int = 512

    @property
    @override
    def reducible(self) -> bool:
        return False

    def code_bits(self, options: Options) -> float:
        """Bits of one element."""
        return self.bits

    def _tensor_bytes(self, tensor: Tensor, element_bytes: float, options: Options) -> float:
        groups = {"tensor": 1.0, "column": tensor.cols, "block": math.ceil(tensor.elements / self.block)}
        coded = tensor.elements * self.code_bits(options) / 8 + FP32 * self.scales * groups[self.per]
        return min(coded, tensor.elements * element_bytes)

    @override
    def messages(self, content: Content, element_bytes: float, options: Options) -> tuple[Message, ...]:
        tensors = content.tensors or (Tensor(content.elements),)
        size = sum(self._tensor_bytes(tensor, element_bytes, options) for tensor in tensors)
        return (Message(size, reducible=False),)

    @override
    def encode(self, content: Content, element_bytes: float, options: Options) -> Work:
        """One pass for the scale, one for the codes; error feedback also reads and writes the residual."""
        passes = 2 + 2 * self.error_feedback
        return Work(content.elements * element_bytes * passes + self.size(content, element_bytes, options))

    @override
    def decode(self, content: Content, element_bytes: float, options: Options, pieces: int = 1) -> Work:
        """Pieces are decoded one after another and added to an fp32 sum."""
        added = (pieces - 1) * 2 * FP32 + element_bytes
        return Work(content.elements * added + pieces * self.size(content, element_bytes, options))


@dataclass(frozen=True, kw_only=True)
class Qsgd(Quantiser):
    """A sign and one of ``levels`` magnitudes, in whole bits; one norm per block."""

    parameter: ClassVar[Parameter] = "levels"
    bits: float = 0.0

    @override
    def code_bits(self, options: Options) -> float:
        return 1.0 + math.ceil(math.log2(self.chosen(options)))


@dataclass(frozen=True, kw_only=True)
class ThreeLc(Quantiser):
    """Ternary values, five to a byte, runs of up to 14 zero bytes written as one byte.

    With a fraction p of non-zero values a byte is zero with probability z = (1 - p)^5; runs of zero bytes are
    geometric, so a byte costs (1 - z) + z (1 - z) / (1 - z^14) bytes.
    """

    parameter: ClassVar[Parameter] = "ratio"
    bits: float = 0.0
    longest_run: int = 14

    @override
    def code_bits(self, options: Options) -> float:
        zero = (1.0 - self.chosen(options)) ** 5
        runs = zero * (1 - zero) / (1 - zero**self.longest_run)
        return 8 / 5 * ((1 - zero) + runs)


COMPRESSORS = (
    Quantiser(
        name="onebit",
        description="one bit per element and two values per column, error feedback",
        source="Seide et al., Interspeech 2014",
        bits=1,
        scales=2,
        per="column",
        error_feedback=True,
    ),
    Quantiser(
        name="signsgd_majority",
        description="the sign; servers or switches send back the majority",
        source="Bernstein et al., ICLR 2019 (signSGD with majority vote)",
        bits=1,
        scales=0,
        votes=True,
    ),
    Quantiser(
        name="terngrad",
        description="-1, 0 or 1 in two bits and one scale per tensor",
        source="Wen et al., NIPS 2017",
        bits=2,
    ),
    Qsgd(
        name="qsgd",
        description="a sign and one of a few magnitudes, one norm per 512 elements",
        source="Alistarh et al., NIPS 2017: 4 bits, buckets of 512",
        per="block",
        default=8,
        activations=True,
    ),
    ThreeLc(
        name="3lc",
        description="ternary values, quartic and zero-run encoding, error feedback",
        source="Lim et al., MLSys 2019: 39 times smaller at s = 1, at most 280 times",
        default=0.07,
        error_feedback=True,
    ),
)
