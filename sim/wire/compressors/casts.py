"""Narrower floating-point types: every element is converted, sums stay sums."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from sim.wire.compressor import FP32, Compressor, Message, Options, Work
from sim.wire.tensors import Content


@dataclass(frozen=True, kw_only=True)
class Cast(Compressor):
    """Elements of ``value_bytes`` each (as they are if ``None``).

    ``scaled``: one fp32 scale per tensor, agreed on beforehand by a maximum over all ranks, so that their
    codes can be added.
    """

    value_bytes: float | None = None
    scaled: bool = False
    inline: bool = True
    activations: bool = True

    def width(self, element_bytes: float) -> float:
        """Bytes of an element on the wire."""
        return element_bytes if self.value_bytes is None else self.value_bytes

    @override
    def messages(self, content: Content, element_bytes: float, options: Options) -> tuple[Message, ...]:
        values = Message(content.elements * self.width(element_bytes))
        return (
            (Message(FP32 * max(1, len(content.tensors)), shared=True), values) if self.scaled else (values,)
        )

    @override
    def encode(self, content: Content, element_bytes: float, options: Options) -> Work:
        if self.value_bytes is None:
            return Work()
        passes = element_bytes + self.width(element_bytes) + (element_bytes if self.scaled else 0.0)
        return Work(content.elements * passes)

    @override
    def decode(self, content: Content, element_bytes: float, options: Options, pieces: int = 1) -> Work:
        if self.value_bytes is None:
            return Work()
        return Work(content.elements * (element_bytes + self.width(element_bytes)) * pieces)


COMPRESSORS = (
    Cast(name="none", description="as they were computed", source="", recodes=False),
    Cast(
        name="fp16",
        description="half precision: half of the fp32 bytes",
        source="PyTorch, fp16_compress_hook",
        value_bytes=2.0,
    ),
    Cast(
        name="bf16",
        description="bfloat16: half of the fp32 bytes",
        source="PyTorch, bf16_compress_hook",
        value_bytes=2.0,
    ),
    Cast(
        name="fp8",
        description="8-bit floating point with one scale per tensor that all ranks agree on first",
        source="Peng et al., FP8-LM, 2023 (arXiv:2310.18313), section 2.1: all-reduce of FP8 gradients",
        value_bytes=1.0,
        scaled=True,
    ),
)
