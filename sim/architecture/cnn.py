"""Convolutional networks: AlexNet, VGG, ResNet (v1.5) and Inception-v3, with torchvision's shapes.

Every convolution is a layer of its own (with its batch norm, ReLU and residual addition), in the order in
which PyTorch registers the parameters, because that order decides the gradient buckets. A block is what a
pipeline cut may not separate: one convolution (AlexNet, VGG), one residual block, one Inception module.

Memory traffic is that of separate kernels, as PyTorch runs them, in elements per output element:
batch norm reads its input twice and writes once (backward: reads input and gradient twice, writes once);
ReLU 2 (backward 3); residual addition 3 (backward 3: two gradients summed at the fork);
max pooling also writes and reads back 8-byte indices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import ceil
from typing import Any

from pydantic import Field

from sim.architecture.common import assemble
from sim.architecture.images import Image, Trace
from sim.spec.base import Spec
from sim.spec.layer import Layer
from sim.spec.workload import Workload


class ImageShape(Spec):
    """Fields of every image classifier."""

    image_size: int = Field(224, ge=32, description="height and width of the input, pixels")
    num_classes: int = Field(1000, ge=1, description="outputs of the last layer")
    fused_norm: bool = Field(False, description="batch norm, residual addition and ReLU in one kernel")
    channels_last: bool = Field(True, description="layout of the tensors is that of tensor cores (NHWC)")


class EfficientNetShape(ImageShape):
    """Fields of EfficientNet."""

    wide_squeeze: bool = Field(False, description="squeeze to a quarter of the expanded channels")


class InceptionShape(ImageShape):
    """Fields of Inception-v3."""

    image_size: int = Field(299, ge=75, description="height and width of the input, pixels")
    auxiliary: bool = Field(True, description="auxiliary classifier, used in training")


def alexnet(shape: ImageShape) -> tuple[Layer, ...]:
    """AlexNet as in torchvision (one tower, "One weird trick", Krizhevsky 2014)."""
    net = Trace(shape.fused_norm, shape.channels_last)
    image = Image(3, shape.image_size, shape.image_size)
    plan = [
        (64, 11, 4, 2, True),
        (192, 5, 1, 2, True),
        (384, 3, 1, 1, False),
        (256, 3, 1, 1, False),
        (256, 3, 1, 1, True),
    ]
    for channels, kernel, stride, padding, pooled in plan:
        image = net.convolution(image, channels, kernel, stride, padding, bias=True, norm=False)
        if pooled:
            image = net.pool(image, 3, 2)
        net.next_block()
    image = net.adaptive_pool(image, 6)
    features = net.linear(image.elements, 4096, relu=True, dropout=True)
    features = net.linear(features, 4096, relu=True, dropout=True)
    net.linear(features, shape.num_classes, head=True)
    return net.layers()


_VGG = {
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}


def vgg(shape: ImageShape, depth: int) -> tuple[Layer, ...]:
    """VGG-16 or -19 without batch norm (Simonyan & Zisserman 2015, configurations D and E)."""
    net = Trace(shape.fused_norm, shape.channels_last)
    image = Image(3, shape.image_size, shape.image_size)
    for channels, repeats in zip((64, 128, 256, 512, 512), _VGG[depth], strict=True):
        for index in range(repeats):
            image = net.convolution(image, channels, 3, 1, 1, bias=True, norm=False)
            if index == repeats - 1:
                image = net.pool(image, 2, 2)
            net.next_block()
    image = net.adaptive_pool(image, 7)
    features = net.linear(image.elements, 4096, relu=True, dropout=True)
    features = net.linear(features, 4096, relu=True, dropout=True)
    net.linear(features, shape.num_classes, head=True)
    return net.layers()


RESNET_STAGES = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}


def resnet(shape: ImageShape, depth: int) -> tuple[Layer, ...]:
    """ResNet of basic blocks (18, 34) or bottlenecks, v1.5: their 3x3 has the stride (He et al. 2016)."""
    net = Trace(shape.fused_norm, shape.channels_last)
    image = net.convolution(Image(3, shape.image_size, shape.image_size), 64, 7, 2, 3)
    image = net.pool(image, 3, 2, 1)
    net.next_block()
    for stage, repeats in enumerate(RESNET_STAGES[depth]):
        for index in range(repeats):
            stride = 2 if stage > 0 and index == 0 else 1
            width = 64 * 2**stage
            if depth < 50:
                image = _basic(net, image, width, stride)
            else:
                image = bottleneck(net, image, width, stride, downsample=index == 0)
            net.next_block()
    image = net.adaptive_pool(image, 1)
    net.linear(image.elements, shape.num_classes, head=True)
    return net.layers()


def _basic(net: Trace, image: Image, width: int, stride: int) -> Image:
    """A residual block of two 3 x 3 convolutions; with a stride the identity is projected."""
    inner = net.convolution(image, width, 3, stride, 1)
    if stride == 1:
        return net.convolution(inner, width, 3, 1, 1, residual=True)
    net.convolution(inner, width, 3, 1, 1, relu=False)
    return net.convolution(image, width, 1, stride, residual=True)


def bottleneck(net: Trace, image: Image, width: int, stride: int, *, downsample: bool) -> Image:
    """A residual block of ResNet: 1 x 1, 3 x 3 (which has the stride), 1 x 1; the first has a projection."""
    inner = net.convolution(image, width, 1)
    inner = net.convolution(inner, width, 3, stride, 1)
    if not downsample:
        return net.convolution(inner, 4 * width, 1, residual=True)
    net.convolution(inner, 4 * width, 1, relu=False)
    return net.convolution(image, 4 * width, 1, stride, residual=True)


def resnext101(shape: ImageShape, squeeze: bool) -> tuple[Layer, ...]:
    """ResNeXt-101 32x4d (Xie et al. 2017, arXiv:1611.05431), also with squeeze and excitation."""
    net = Trace(shape.fused_norm, shape.channels_last)
    image = net.convolution(Image(3, shape.image_size, shape.image_size), 64, 7, 2, 3)
    image = net.pool(image, 3, 2, 1)
    net.next_block()
    for stage, repeats in enumerate(RESNET_STAGES[101]):
        width = 128 * 2**stage
        for index in range(repeats):
            stride = 2 if stage > 0 and index == 0 else 1
            inner = net.convolution(image, width, 1)
            inner = net.convolution(inner, width, 3, stride, 1, groups=32)
            direct = index > 0
            out = net.convolution(inner, 2 * width, 1, relu=False, residual=direct and not squeeze)
            if squeeze:
                out = net.squeeze_excite(out, 2 * width // 16)
            image = out if direct else net.convolution(image, 2 * width, 1, stride, residual=True)
            net.next_block()
    image = net.adaptive_pool(image, 1)
    net.linear(image.elements, shape.num_classes, head=True)
    return net.layers()


_EFFICIENT = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
              (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))  # fmt: skip
"""(Expansion, channels, repeats, stride, kernel) of every stage of EfficientNet-B0."""


def efficientnet(shape: EfficientNetShape, width: float, depth: float) -> tuple[Layer, ...]:
    """EfficientNet (Tan & Le 2019, arXiv:1905.11946) with its width and depth multipliers."""

    def channels(base: int) -> int:
        scaled = max(8, int(base * width + 4) // 8 * 8)
        return scaled + 8 if scaled < 0.9 * base * width else scaled

    net = Trace(shape.fused_norm, shape.channels_last)
    image = net.convolution(Image(3, shape.image_size, shape.image_size), channels(32), 3, 2, 1)
    net.next_block()
    for expansion, base, repeats, first_stride, kernel in _EFFICIENT:
        for index in range(ceil(repeats * depth)):
            stride = first_stride if index == 0 else 1
            expanded = image.channels * expansion
            inner = net.convolution(image, expanded, 1) if expansion > 1 else image
            inner = net.convolution(inner, expanded, kernel, stride, kernel // 2, groups=expanded)
            inner = net.squeeze_excite(
                inner, max(1, (expanded if shape.wide_squeeze else image.channels) // 4)
            )
            image = net.convolution(inner, channels(base), 1, relu=False, residual=index > 0)
            net.next_block()
    image = net.convolution(image, channels(1280), 1)
    image = net.adaptive_pool(image, 1)
    net.linear(image.elements, shape.num_classes, dropout=True, head=True)
    return net.layers()


def inception_v3(shape: InceptionShape) -> tuple[Layer, ...]:
    """Inception-v3 (Szegedy et al. 2016) as in torchvision, with the auxiliary classifier of training."""
    net = Trace(shape.fused_norm, shape.channels_last)
    image = Image(3, shape.image_size, shape.image_size)
    image = net.convolution(image, 32, 3, 2)
    image = net.convolution(image, 32, 3)
    image = net.convolution(image, 64, 3, 1, 1)
    image = net.pool(image, 3, 2)
    net.next_block()
    image = net.convolution(image, 80, 1)
    image = net.convolution(image, 192, 3)
    image = net.pool(image, 3, 2)
    net.next_block()
    for pool_channels in (32, 64, 64):
        image = _inception_a(net, image, pool_channels)
    image = _inception_b(net, image)
    for width in (128, 160, 160, 192):
        image = _inception_c(net, image, width)
    if shape.auxiliary:
        _auxiliary(net, image, shape.num_classes)
    image = _inception_d(net, image)
    for _ in range(2):
        image = _inception_e(net, image)
    image = net.adaptive_pool(image, 1)
    net.linear(image.elements, shape.num_classes, head=True)
    return net.layers()


def _inception_a(net: Trace, image: Image, pool_channels: int) -> Image:
    direct = net.convolution(image, 64, 1)
    five = net.convolution(net.convolution(image, 48, 1), 64, 5, 1, 2)
    double = net.convolution(image, 64, 1)
    double = net.convolution(net.convolution(double, 96, 3, 1, 1), 96, 3, 1, 1)
    pooled = net.convolution(net.pool(image, 3, 1, 1, average=True), pool_channels, 1)
    return net.concatenate(direct, five, double, pooled)


def _inception_b(net: Trace, image: Image) -> Image:
    three = net.convolution(image, 384, 3, 2)
    double = net.convolution(net.convolution(image, 64, 1), 96, 3, 1, 1)
    double = net.convolution(double, 96, 3, 2)
    return net.concatenate(three, double, net.pool(image, 3, 2))


def _inception_c(net: Trace, image: Image, width: int) -> Image:
    across, down = (1, 7), (7, 1)
    direct = net.convolution(image, 192, 1)
    seven = net.convolution(net.convolution(image, width, 1), width, across, padding=(0, 3))
    seven = net.convolution(seven, 192, down, padding=(3, 0))
    double = net.convolution(net.convolution(image, width, 1), width, down, padding=(3, 0))
    double = net.convolution(double, width, across, padding=(0, 3))
    double = net.convolution(double, width, down, padding=(3, 0))
    double = net.convolution(double, 192, across, padding=(0, 3))
    pooled = net.convolution(net.pool(image, 3, 1, 1, average=True), 192, 1)
    return net.concatenate(direct, seven, double, pooled)


def _inception_d(net: Trace, image: Image) -> Image:
    three = net.convolution(net.convolution(image, 192, 1), 320, 3, 2)
    seven = net.convolution(net.convolution(image, 192, 1), 192, (1, 7), padding=(0, 3))
    seven = net.convolution(net.convolution(seven, 192, (7, 1), padding=(3, 0)), 192, 3, 2)
    return net.concatenate(three, seven, net.pool(image, 3, 2))


def _inception_e(net: Trace, image: Image) -> Image:
    direct = net.convolution(image, 320, 1)
    three = net.convolution(image, 384, 1)
    left = net.convolution(three, 384, (1, 3), padding=(0, 1))
    right = net.convolution(three, 384, (3, 1), padding=(1, 0))
    double = net.convolution(net.convolution(image, 448, 1), 384, 3, 1, 1)
    double_left = net.convolution(double, 384, (1, 3), padding=(0, 1))
    double_right = net.convolution(double, 384, (3, 1), padding=(1, 0))
    pooled = net.convolution(net.pool(image, 3, 1, 1, average=True), 192, 1)
    return net.concatenate(direct, left, right, double_left, double_right, pooled)


def _auxiliary(net: Trace, image: Image, num_classes: int) -> None:
    side = net.convolution(net.pool(image, 5, 3, average=True), 128, 1)
    side = net.convolution(side, 768, 5)
    net.linear(net.adaptive_pool(side, 1).elements, num_classes, head=True, side_branch_of=image)


def _describe(shape: ImageShape) -> Mapping[str, Any]:
    return {"family": "cnn"}


def _generator(
    shape_type: type[ImageShape], build: Callable[[Any], tuple[Layer, ...]]
) -> Callable[..., Workload]:
    def generate(**params: Any) -> Workload:
        return assemble(shape_type, build, _describe, params)

    return generate


GENERATORS: dict[str, Callable[..., Workload]] = {
    "alexnet": _generator(ImageShape, alexnet),
    **{f"vgg{depth}": _generator(ImageShape, partial(vgg, depth=depth)) for depth in _VGG},
    **{f"resnet{depth}": _generator(ImageShape, partial(resnet, depth=depth)) for depth in RESNET_STAGES},
    "resnext101-32x4d": _generator(ImageShape, partial(resnext101, squeeze=False)),
    "se-resnext101-32x4d": _generator(ImageShape, partial(resnext101, squeeze=True)),
    "efficientnet-b0": _generator(EfficientNetShape, partial(efficientnet, width=1.0, depth=1.0)),
    "efficientnet-b4": _generator(EfficientNetShape, partial(efficientnet, width=1.4, depth=1.8)),
    "inception-v3": _generator(InceptionShape, inception_v3),
}
