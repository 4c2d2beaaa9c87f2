"""Networks of depthwise convolutions: MobileNet v1 to v3, MnasNet, EfficientNet v1 and v2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

from pydantic import Field

from sim.architecture.cnn import ImageShape, generator
from sim.architecture.common import Generator
from sim.architecture.images import Image, Trace
from sim.spec.layer import Layer


class EfficientNetShape(ImageShape):
    """Fields of EfficientNet."""

    wide_squeeze: bool = Field(False, description="squeeze to a quarter of the expanded channels")


@dataclass(frozen=True)
class Stage:
    """Inverted residual blocks of one width (Sandler et al. 2018, arXiv:1801.04381).

    Attributes
    ----------
    expansion : float
        Channels in the middle over those of the input.
    channels, repeats, stride, kernel : int
        Channels of the output, blocks, stride of the first of them, size of the depthwise kernel.
    squeeze : float
        Channels of squeeze and excitation over those in the middle; 0: none.
    fused : bool
        One full convolution in place of expansion and depthwise convolution.
    """

    expansion: float
    channels: int
    repeats: int = 1
    stride: int = 1
    kernel: int = 3
    squeeze: float = 0.0
    fused: bool = False


def _rounded(channels: float) -> int:
    """A multiple of eight near a number of channels, not less than 0.9 of it."""
    whole = max(8, int(channels + 4) // 8 * 8)
    return whole + 8 if whole < 0.9 * channels else whole


def _inverted(net: Trace, image: Image, stage: Stage, *, rounded: bool) -> Image:
    """The blocks of a stage; squeezed channels are rounded to a multiple of eight or taken as they are."""
    for index in range(stage.repeats):
        stride = stage.stride if index == 0 else 1
        direct = stride == 1 and image.channels == stage.channels
        expanded = round(image.channels * stage.expansion)
        inner = image
        if stage.fused:
            single = expanded == image.channels
            wide = stage.channels if single else expanded
            inner = net.convolution(
                image, wide, stage.kernel, stride, stage.kernel // 2, residual=direct and single
            )
        else:
            if expanded != image.channels:
                inner = net.convolution(image, expanded, 1)
            inner = net.convolution(inner, expanded, stage.kernel, stride, stage.kernel // 2, groups=expanded)
        if stage.squeeze:
            reduced = stage.squeeze * expanded
            inner = net.squeeze_excite(inner, _rounded(reduced) if rounded else max(1, int(reduced)))
        if not (stage.fused and expanded == image.channels):
            inner = net.convolution(inner, stage.channels, 1, relu=False, residual=direct)
        image = inner
        net.next_block()
    return image


def _classify(net: Trace, image: Image, shape: ImageShape, *hidden: int) -> tuple[Layer, ...]:
    """Average pool, fully connected layers."""
    features = net.adaptive_pool(image, 1).elements
    for width in hidden:
        features = net.linear(features, width, relu=True)
    net.linear(features, shape.num_classes, dropout=True, head=True)
    return net.layers()


_SEPARABLE = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *((512, 1),) * 5,
    (1024, 2),
    (1024, 1),
)
"""(Channels, stride) of MobileNet's depthwise separable convolutions."""


def mobilenet_v1(shape: ImageShape) -> tuple[Layer, ...]:
    """MobileNet (Howard et al. 2017, arXiv:1704.04861)."""
    net = shape.trace()
    image = net.convolution(Image(3, shape.image_size, shape.image_size), 32, 3, 2, 1)
    for channels, stride in _SEPARABLE:
        image = net.convolution(image, image.channels, 3, stride, 1, groups=image.channels)
        image = net.convolution(image, channels, 1)
        net.next_block()
    return _classify(net, image, shape)


def _exact(*plan: tuple[int, int, int, int, float, int]) -> list[Stage]:
    """Stages of one block from (kernel, channels inside, of the output, stride, squeeze, of the input)."""
    return [
        Stage(middle / source, channels, 1, stride, kernel, squeeze)
        for kernel, middle, channels, stride, squeeze, source in plan
    ]


@dataclass(frozen=True)
class Inverted:
    """A network of inverted residual blocks.

    Attributes
    ----------
    stem : int
        Channels of the first convolution.
    stages : sequence of Stage
    last : int
        Channels of the last convolution.
    hidden : tuple of int
        Widths of fully connected layers before the classifier.
    rounded : bool
        Squeezed channels are a multiple of eight.
    """

    stem: int
    stages: Sequence[Stage]
    last: int
    hidden: tuple[int, ...] = ()
    rounded: bool = False


INVERTED = {
    "mobilenet-v2": Inverted(32, (
        Stage(1, 16), Stage(6, 24, 2, 2), Stage(6, 32, 3, 2), Stage(6, 64, 4, 2), Stage(6, 96, 3),
        Stage(6, 160, 3, 2), Stage(6, 320),
    ), 1280),
    "mobilenet-v3-large": Inverted(16, _exact(
        (3, 16, 16, 1, 0, 16), (3, 64, 24, 2, 0, 16), (3, 72, 24, 1, 0, 24), (5, 72, 40, 2, 0.25, 24),
        *((5, 120, 40, 1, 0.25, 40),) * 2, (3, 240, 80, 2, 0, 40), (3, 200, 80, 1, 0, 80),
        *((3, 184, 80, 1, 0, 80),) * 2, (3, 480, 112, 1, 0.25, 80), (3, 672, 112, 1, 0.25, 112),
        (5, 672, 160, 2, 0.25, 112), *((5, 960, 160, 1, 0.25, 160),) * 2,
    ), 960, (1280,), rounded=True),
    "mobilenet-v3-small": Inverted(16, _exact(
        (3, 16, 16, 2, 0.25, 16), (3, 72, 24, 2, 0, 16), (3, 88, 24, 1, 0, 24), (5, 96, 40, 2, 0.25, 24),
        *((5, 240, 40, 1, 0.25, 40),) * 2, (5, 120, 48, 1, 0.25, 40), (5, 144, 48, 1, 0.25, 48),
        (5, 288, 96, 2, 0.25, 48), *((5, 576, 96, 1, 0.25, 96),) * 2,
    ), 576, (1024,), rounded=True),
    "mnasnet": Inverted(32, (
        Stage(1, 16), Stage(3, 24, 3, 2), Stage(3, 40, 3, 2, 5), Stage(6, 80, 3, 2, 5), Stage(6, 96, 2),
        Stage(6, 192, 4, 2, 5), Stage(6, 320),
    ), 1280),
    "efficientnet-v2-s": Inverted(24, (
        Stage(1, 24, 2, fused=True), Stage(4, 48, 4, 2, fused=True), Stage(4, 64, 4, 2, fused=True),
        Stage(4, 128, 6, 2, squeeze=1 / 16), Stage(6, 160, 9, squeeze=1 / 24),
        Stage(6, 256, 15, 2, squeeze=1 / 24),
    ), 1280),
    "efficientnet-v2-m": Inverted(24, (
        Stage(1, 24, 3, fused=True), Stage(4, 48, 5, 2, fused=True), Stage(4, 80, 5, 2, fused=True),
        Stage(4, 160, 7, 2, squeeze=1 / 16), Stage(6, 176, 14, squeeze=1 / 24),
        Stage(6, 304, 18, 2, squeeze=1 / 24), Stage(6, 512, 5, squeeze=1 / 24),
    ), 1280),
}  # fmt: skip
"""MobileNet v2 and v3 (Howard et al. 2019, arXiv:1905.02244), MnasNet-B1 (Tan et al. 2019, arXiv:1807.11626),
EfficientNetV2 (Tan & Le 2021, arXiv:2104.00298): squeezed to a quarter of a block's input."""


def inverted(shape: ImageShape, kind: Inverted) -> tuple[Layer, ...]:
    """A network of :data:`INVERTED`."""
    net = shape.trace()
    image = net.convolution(Image(3, shape.image_size, shape.image_size), kind.stem, 3, 2, 1)
    net.next_block()
    for stage in kind.stages:
        image = _inverted(net, image, stage, rounded=kind.rounded)
    image = net.convolution(image, kind.last, 1)
    return _classify(net, image, shape, *kind.hidden)


_EFFICIENT = (
    Stage(1, 16), Stage(6, 24, 2, 2), Stage(6, 40, 2, 2, 5), Stage(6, 80, 3, 2), Stage(6, 112, 3, 1, 5),
    Stage(6, 192, 4, 2, 5), Stage(6, 320),
)  # fmt: skip
"""EfficientNet-B0."""

EFFICIENTNETS = {
    "b0": (1.0, 1.0, 224), "b1": (1.0, 1.1, 240), "b2": (1.1, 1.2, 260), "b3": (1.2, 1.4, 300),
    "b4": (1.4, 1.8, 380), "b5": (1.6, 2.2, 456), "b6": (1.8, 2.6, 528), "b7": (2.0, 3.1, 600),
}  # fmt: skip
"""Multipliers of width and depth (Tan & Le 2019, arXiv:1905.11946), and the resolution of the paper."""


def efficient_features(
    net: Trace, image: Image, width: float, depth: float, *, wide_squeeze: bool = False
) -> list[Image]:
    """Outputs of EfficientNet's stages."""
    image = net.convolution(image, _rounded(32 * width), 3, 2, 1)
    net.next_block()
    outputs = []
    for stage in _EFFICIENT:
        channels, repeats = _rounded(stage.channels * width), ceil(stage.repeats * depth)
        for index in range(repeats):
            stride = stage.stride if index == 0 else 1
            squeeze = 0.25 if wide_squeeze else 0.25 / stage.expansion
            block = Stage(stage.expansion, channels, 1, stride, stage.kernel, squeeze)
            image = _inverted(net, image, block, rounded=False)
        outputs.append(image)
    return outputs


def efficientnet(shape: EfficientNetShape, width: float, depth: float) -> tuple[Layer, ...]:
    """EfficientNet with its width and depth multipliers."""
    net = shape.trace()
    image = Image(3, shape.image_size, shape.image_size)
    image = efficient_features(net, image, width, depth, wide_squeeze=shape.wide_squeeze)[-1]
    image = net.convolution(image, _rounded(1280 * width), 1)
    return _classify(net, image, shape)


def _efficient(name: str) -> Callable[[Any], tuple[Layer, ...]]:
    width, depth, _ = EFFICIENTNETS[name]
    return partial(efficientnet, width=width, depth=depth)


GENERATORS: dict[str, Generator[Any]] = {
    "mobilenet-v1": generator(ImageShape, mobilenet_v1),
    **{name: generator(ImageShape, partial(inverted, kind=kind)) for name, kind in INVERTED.items()},
    **{f"efficientnet-{name}": generator(EfficientNetShape, _efficient(name)) for name in EFFICIENTNETS},
}
