"""Jasper 10 x 5, dense residual: a speech recogniser of one-dimensional convolutions.

Li et al. 2019, arXiv:1904.03288, table 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from sim.architecture.common import Generator
from sim.architecture.images import Image, TraceShape
from sim.spec.layer import Layer

_BLOCKS = (
    (256, 11),
    (256, 11),
    (384, 13),
    (384, 13),
    (512, 17),
    (512, 17),
    (640, 21),
    (640, 21),
    (768, 25),
    (768, 25),
)
"""(Channels, kernel) of the ten blocks."""


class JasperShape(TraceShape):
    """Fields of Jasper."""

    frames: int = Field(
        1230,
        ge=64,
        description="spectrogram frames of a sample; LibriSpeech's mean is 12.3 s at 10 ms a frame",
    )
    features: int = Field(64, ge=1, description="mel features of a frame")
    symbols: int = Field(29, ge=2, description="characters that the output distinguishes")
    repeats: int = Field(5, ge=1, description="convolutions of a block")
    dense_residual: bool = Field(True, description="a block adds the outputs of all blocks before it")
    channels_last: bool = Field(
        False, description="layout of tensor cores; PyTorch has none for convolutions in one dimension"
    )


def build(shape: JasperShape) -> tuple[Layer, ...]:
    """Prologue, blocks, epilogue and the projection to symbols."""
    net = shape.trace()
    signal = net.convolution(Image(shape.features, 1, shape.frames), 256, (1, 11), (1, 2), (0, 5))
    net.next_block()
    inputs = [signal]
    for channels, kernel in _BLOCKS:
        out = inputs[-1]
        for index in range(shape.repeats):
            last = index == shape.repeats - 1
            out = net.convolution(out, channels, (1, kernel), 1, (0, kernel // 2), relu=not last)
        for source in inputs if shape.dense_residual else inputs[-1:]:
            net.convolution(source, channels, 1, relu=False, residual=True)
        inputs.append(out)
        net.next_block()
    out = net.convolution(inputs[-1], 896, (1, 29), 1, (0, 14))  # dilated by two: the same work
    out = net.convolution(out, 1024, 1)
    net.convolution(out, shape.symbols, 1, bias=True, norm=False, relu=False, head=True)
    return net.layers()


def _describe(shape: JasperShape) -> Mapping[str, Any]:
    return {"family": "cnn"}


generate = Generator(JasperShape, build, _describe)
"""Jasper from :class:`JasperShape` fields and workload fields."""
