"""Inception networks: GoogLeNet, Inception-v3 and -v4. A module is a block; a copy joins its branches."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from sim.architecture.cnn import ImageShape, generator
from sim.architecture.common import Generator
from sim.architecture.images import Image, Trace
from sim.spec.layer import Layer

ACROSS, DOWN = (1, 7), (7, 1)


class InceptionShape(ImageShape):
    """Fields of Inception-v3 and -v4."""

    image_size: int = Field(299, ge=75, description="height and width of the input, pixels")
    auxiliary: bool = Field(True, description="auxiliary classifier of v3, used in training")


_GOOGLENET = (
    (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), (),
    (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128), (),
    (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
)  # fmt: skip
"""Channels: direct, before and of the 3 x 3, before and of the 5 x 5, after the pool; empty: a pool."""


def googlenet(shape: ImageShape) -> tuple[Layer, ...]:
    """GoogLeNet (Szegedy et al. 2015, arXiv:1409.4842) as in torchvision: batch norm, 3 x 3 for the 5 x 5."""
    net = shape.trace()
    image = net.convolution(Image(3, shape.image_size, shape.image_size), 64, 7, 2, 3)
    image = net.convolution(net.pool(image, 3, 2, 1), 64, 1)
    image = net.pool(net.convolution(image, 192, 3, 1, 1), 3, 2, 1)
    net.next_block()
    for plan in _GOOGLENET:
        if not plan:
            image = net.pool(image, 3, 2, 1)
            continue
        direct, before_three, three, before_five, five, pooled = plan
        image = net.concatenate(
            net.convolution(image, direct, 1),
            net.convolution(net.convolution(image, before_three, 1), three, 3, 1, 1),
            net.convolution(net.convolution(image, before_five, 1), five, 3, 1, 1),
            net.convolution(net.pool(image, 3, 1, 1), pooled, 1),
        )
    image = net.adaptive_pool(image, 1)
    net.linear(image.elements, shape.num_classes, dropout=True, head=True)
    return net.layers()


def inception_v3(shape: InceptionShape) -> tuple[Layer, ...]:
    """Inception-v3 (Szegedy et al. 2016) as in torchvision, with the auxiliary classifier of training."""
    net = shape.trace()
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


def _chain(net: Trace, image: Image, *plan: tuple[int, int | tuple[int, int]], stride: int = 1) -> Image:
    """Convolutions after each other that keep the size; the last may have a stride, and is then unpadded."""
    for index, (channels, kernel) in enumerate(plan):
        last = index == len(plan) - 1 and stride > 1
        sizes = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        padding = (0, 0) if last else (sizes[0] // 2, sizes[1] // 2)
        image = net.convolution(image, channels, kernel, stride if last else 1, padding)
    return image


def inception_v4(shape: InceptionShape) -> tuple[Layer, ...]:
    """Inception-v4 (Szegedy et al. 2017, arXiv:1602.07261)."""
    net = shape.trace()
    image = net.convolution(Image(3, shape.image_size, shape.image_size), 32, 3, 2)
    image = net.convolution(net.convolution(image, 32, 3), 64, 3, 1, 1)
    image = net.concatenate(net.pool(image, 3, 2), net.convolution(image, 96, 3, 2))
    short = net.convolution(net.convolution(image, 64, 1), 96, 3)
    long = net.convolution(_chain(net, image, (64, 1), (64, ACROSS), (64, DOWN)), 96, 3)
    image = net.concatenate(short, long)
    image = net.concatenate(net.convolution(image, 192, 3, 2), net.pool(image, 3, 2))
    for _ in range(4):
        image = net.concatenate(
            net.convolution(image, 96, 1), _chain(net, image, (64, 1), (96, 3)),
            _chain(net, image, (64, 1), (96, 3), (96, 3)), _pooled(net, image, 96),
        )  # fmt: skip
    image = net.concatenate(
        net.convolution(image, 384, 3, 2),
        _chain(net, image, (192, 1), (224, 3), (256, 3), stride=2),
        net.pool(image, 3, 2),
    )
    for _ in range(7):
        image = net.concatenate(
            net.convolution(image, 384, 1), _chain(net, image, (192, 1), (224, ACROSS), (256, DOWN)),
            _chain(net, image, (192, 1), (192, DOWN), (224, ACROSS), (224, DOWN), (256, ACROSS)),
            _pooled(net, image, 128),
        )  # fmt: skip
    image = net.concatenate(
        _chain(net, image, (192, 1), (192, 3), stride=2),
        _chain(net, image, (256, 1), (256, ACROSS), (320, DOWN), (320, 3), stride=2),
        net.pool(image, 3, 2),
    )
    for _ in range(3):
        single, double = (
            _chain(net, image, (384, 1)),
            _chain(net, image, (384, 1), (448, (3, 1)), (512, (1, 3))),
        )
        split = [_chain(net, each, (256, kernel)) for each in (single, double) for kernel in ((1, 3), (3, 1))]
        image = net.concatenate(net.convolution(image, 256, 1), *split, _pooled(net, image, 256))
    image = net.adaptive_pool(image, 1)
    net.linear(image.elements, shape.num_classes, dropout=True, head=True)
    return net.layers()


def _pooled(net: Trace, image: Image, channels: int) -> Image:
    """The branch of an average pool."""
    return net.convolution(net.pool(image, 3, 1, 1, average=True), channels, 1)


GENERATORS: dict[str, Generator[Any]] = {
    "googlenet": generator(ImageShape, googlenet),
    "inception-v3": generator(InceptionShape, inception_v3),
    "inception-v4": generator(InceptionShape, inception_v4),
}
