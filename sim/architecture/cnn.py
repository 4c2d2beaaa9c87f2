"""Convolutional networks: AlexNet, VGG, ResNet (v1.5) and its relatives, DenseNet, with torchvision's shapes.

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
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pydantic import Field

from sim.architecture.common import Generator
from sim.architecture.images import Image, Trace, TraceShape
from sim.spec.base import Spec
from sim.spec.layer import Layer

Fields = TypeVar("Fields", bound=Spec)


class ImageShape(TraceShape):
    """Fields of every image classifier."""

    image_size: int = Field(224, ge=32, description="height and width of the input, pixels")
    num_classes: int = Field(1000, ge=1, description="outputs of the last layer")


def alexnet(shape: ImageShape) -> tuple[Layer, ...]:
    """AlexNet as in torchvision (one tower, "One weird trick", Krizhevsky 2014)."""
    net = shape.trace()
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


_VGG = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def vgg(shape: ImageShape, depth: int) -> tuple[Layer, ...]:
    """VGG without batch norm (Simonyan & Zisserman 2015, configurations A, B, D and E)."""
    net = shape.trace()
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
    200: (3, 24, 36, 3),
}


def resnet(shape: ImageShape, depth: int) -> tuple[Layer, ...]:
    """ResNet of basic blocks (18, 34) or bottlenecks, v1.5: their 3x3 has the stride (He et al. 2016)."""
    net = shape.trace()
    image = net.convolution(Image(3, shape.image_size, shape.image_size), 64, 7, 2, 3)
    image = net.pool(image, 3, 2, 1)
    net.next_block()
    for stage, repeats in enumerate(RESNET_STAGES[depth]):
        for index in range(repeats):
            stride = 2 if stage > 0 and index == 0 else 1
            width = 64 * 2**stage
            if depth < 50:
                image = basic(net, image, width, stride)
            else:
                image = bottleneck(net, image, width, stride, downsample=index == 0)
            net.next_block()
    image = net.adaptive_pool(image, 1)
    net.linear(image.elements, shape.num_classes, head=True)
    return net.layers()


def basic(net: Trace, image: Image, width: int, stride: int) -> Image:
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


@dataclass(frozen=True)
class Grouped:
    """A ResNet whose 3 x 3 convolutions are wider or in groups.

    Attributes
    ----------
    depth : int
    groups, width : int
        Groups, and channels of each in the first stage.
    squeeze : bool
        Blocks end with squeeze and excitation to a sixteenth of the channels.
    """

    depth: int
    groups: int
    width: int
    squeeze: bool = False


GROUPED = {
    "resnext50-32x4d": Grouped(50, 32, 4),
    "resnext101-32x4d": Grouped(101, 32, 4),
    "resnext101-64x4d": Grouped(101, 64, 4),
    "resnext101-32x8d": Grouped(101, 32, 8),
    "wide-resnet50-2": Grouped(50, 1, 128),
    "wide-resnet101-2": Grouped(101, 1, 128),
    "se-resnet50": Grouped(50, 1, 64, squeeze=True),
    "se-resnext50-32x4d": Grouped(50, 32, 4, squeeze=True),
    "se-resnext101-32x4d": Grouped(101, 32, 4, squeeze=True),
}
"""ResNeXt (Xie et al. 2017, arXiv:1611.05431), Wide ResNet (Zagoruyko & Komodakis 2016), SE-Nets (Hu et al.
2018)."""


def grouped_features(
    net: Trace, image: Image, kind: Grouped, strides: tuple[int, ...] = (1, 2, 2, 2)
) -> list[Image]:
    """Outputs of the four stages of a ResNet of bottlenecks."""
    image = net.pool(net.convolution(image, 64, 7, 2, 3), 3, 2, 1)
    net.next_block()
    stages = []
    for stage, repeats in enumerate(RESNET_STAGES[kind.depth]):
        width, channels = kind.groups * kind.width * 2**stage, 256 * 2**stage
        for index in range(repeats):
            stride = strides[stage] if index == 0 else 1
            inner = net.convolution(image, width, 1)
            inner = net.convolution(inner, width, 3, stride, 1, groups=kind.groups)
            direct = index > 0
            out = net.convolution(inner, channels, 1, relu=False, residual=direct and not kind.squeeze)
            if kind.squeeze:
                out = net.squeeze_excite(out, channels // 16)
            image = out if direct else net.convolution(image, channels, 1, stride, residual=True)
            net.next_block()
        stages.append(image)
    return stages


def grouped_resnet(shape: ImageShape, kind: Grouped) -> tuple[Layer, ...]:
    """A network of :data:`GROUPED`."""
    net = shape.trace()
    image = grouped_features(net, Image(3, shape.image_size, shape.image_size), kind)[-1]
    image = net.adaptive_pool(image, 1)
    net.linear(image.elements, shape.num_classes, head=True)
    return net.layers()


DENSENETS = {
    121: (32, 64, (6, 12, 24, 16)),
    161: (48, 96, (6, 12, 36, 24)),
    169: (32, 64, (6, 12, 32, 32)),
    201: (32, 64, (6, 12, 48, 32)),
}
"""Growth, channels of the first convolution, layers of each block."""


def densenet(shape: ImageShape, depth: int) -> tuple[Layer, ...]:
    """DenseNet (Huang et al. 2017, arXiv:1608.06993): each layer reads all outputs before it, joined."""
    growth, first, blocks = DENSENETS[depth]
    net = shape.trace()
    image = net.convolution(Image(3, shape.image_size, shape.image_size), first, 7, 2, 3)
    image = net.pool(image, 3, 2, 1)
    net.next_block()
    for index, layers in enumerate(blocks):
        for _ in range(layers):
            inner = net.convolution(net.norm(image), 4 * growth, 1)
            inner = net.convolution(inner, growth, 3, padding=1, norm=False, relu=False)
            image = net.concatenate(image, inner)
        if index < len(blocks) - 1:
            image = net.convolution(net.norm(image), image.channels // 2, 1, norm=False, relu=False)
            image = net.pool(image, 2, 2, average=True)
    image = net.adaptive_pool(net.norm(image), 1)
    net.linear(image.elements, shape.num_classes, head=True)
    return net.layers()


_FIRES = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
"""(Squeezed, expanded channels) of SqueezeNet's modules."""


def squeezenet(shape: ImageShape) -> tuple[Layer, ...]:
    """SqueezeNet 1.1 (Iandola et al. 2016, arXiv:1602.07360) as in torchvision."""
    net = shape.trace()
    image = Image(3, shape.image_size, shape.image_size)
    image = net.pool(net.convolution(image, 64, 3, 2, bias=True, norm=False), 3, 2)
    net.next_block()
    for index, (squeezed, expanded) in enumerate(_FIRES):
        small = net.convolution(image, squeezed, 1, bias=True, norm=False)
        branches = (net.convolution(small, expanded, k, 1, k // 2, bias=True, norm=False) for k in (1, 3))
        image = net.concatenate(*branches)
        if index in (1, 3):
            image = net.pool(image, 3, 2, 1 if image.height % 2 == 0 else 0)
    net.convolution(image, shape.num_classes, 1, bias=True, norm=False, head=True)
    return net.layers()


def describe(shape: Spec) -> Mapping[str, Any]:
    """Workload fields of a network of images."""
    return {"family": "cnn"}


def generator(shape: type[Fields], build: Callable[[Fields], tuple[Layer, ...]]) -> Generator[Fields]:
    """Generator of a network of images."""
    return Generator(shape, build, describe)


GENERATORS: dict[str, Generator[Any]] = {
    "alexnet": generator(ImageShape, alexnet),
    **{f"vgg{depth}": generator(ImageShape, partial(vgg, depth=depth)) for depth in _VGG},
    **{f"resnet{depth}": generator(ImageShape, partial(resnet, depth=depth)) for depth in RESNET_STAGES},
    **{name: generator(ImageShape, partial(grouped_resnet, kind=kind)) for name, kind in GROUPED.items()},
    **{f"densenet{depth}": generator(ImageShape, partial(densenet, depth=depth)) for depth in DENSENETS},
    "squeezenet": generator(ImageShape, squeezenet),
}
