"""Networks that label every pixel or voxel: U-Net in two and three dimensions (nnU-Net), DeepLab v3 and v3+.

U-Net: Ronneberger et al. 2015, arXiv:1505.04597; nnU-Net: Isensee et al. 2021; DeepLab: Chen et al. 2017 and
2018, arXiv:1706.05587 and 1802.02611, on a ResNet whose last stages keep their resolution (output stride 8;
dilation leaves the work as it is).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from sim.architecture.cnn import Grouped, generator, grouped_features
from sim.architecture.common import Generator
from sim.architecture.images import Image, TraceShape
from sim.spec.base import refuse
from sim.spec.layer import Layer


class UnetShape(TraceShape):
    """Fields of a U-Net; the defaults are nnU-Net's and MLPerf's for volumes of 128 x 128 x 128."""

    image_size: int = Field(128, ge=16, description="height and width of the input, pixels")
    depth: int = Field(128, ge=1, description="slices of the input; 1: an image")
    in_channels: int = Field(1, ge=1, description="channels of the input")
    num_classes: int = Field(3, ge=1, description="classes that are told apart")
    filters: tuple[int, ...] = Field(
        (32, 64, 128, 256, 320, 320), min_length=2, description="channels of each resolution"
    )
    pooled: bool = Field(False, description="resolutions are halved by pools; else by strides")
    padded: bool = Field(True, description="convolutions keep the size")
    norm: bool = Field(True, description="whether convolutions are followed by a norm")

    @model_validator(mode="after")
    def _check(self) -> UnetShape:
        if self.padded and self.image_size % 2 ** (len(self.filters) - 1):
            refuse(f"be divisible by {2 ** (len(self.filters) - 1)}", self.image_size, field="image_size")
        return self


class DeepLabShape(TraceShape):
    """Fields of DeepLab."""

    image_size: int = Field(513, ge=64, description="height and width of the input, pixels")
    num_classes: int = Field(21, ge=1, description="classes that are told apart")
    backbone_depth: Literal[50, 101] = Field(101, description="layers of the ResNet")
    plus: bool = Field(True, description="decoder of v3+")


def unet(shape: UnetShape) -> tuple[Layer, ...]:
    """U-Net: two convolutions at each resolution, down and up again with what was there before."""
    net = shape.trace()
    pad = int(shape.padded)

    def convolution(image: Image, channels: int, stride: int = 1) -> Image:
        return net.convolution(image, channels, 3, stride, pad, bias=not shape.norm, norm=shape.norm)

    image = Image(shape.in_channels, shape.image_size, shape.image_size, shape.depth)
    skipped: list[Image] = []
    for index, channels in enumerate(shape.filters):
        stride = 1 if index == 0 or shape.pooled else 2
        if index and shape.pooled:
            image = net.pool(image, 2, 2)
        image = convolution(convolution(image, channels, stride), channels)
        skipped.append(image)
        net.next_block()
    for channels, kept in zip(reversed(shape.filters[:-1]), reversed(skipped[:-1]), strict=True):
        image = net.transposed(image, channels, bias=True)
        image = net.concatenate(image, image.like(kept.channels), ends=False)
        image = convolution(convolution(image, channels), channels)
        net.next_block()
    net.convolution(image, shape.num_classes, 1, bias=True, norm=False, relu=False, head=True)
    return net.layers()


def deeplab(shape: DeepLabShape) -> tuple[Layer, ...]:
    """DeepLab v3 or v3+: pyramid of dilated convolutions, then a decoder with features of the first stage."""
    net = shape.trace()
    kind = Grouped(shape.backbone_depth, 1, 64)
    image = Image(3, shape.image_size, shape.image_size)
    stages = grouped_features(net, image, kind, (1, 2, 1, 1))
    top = stages[-1]
    branches = [net.convolution(top, 256, 1)]
    branches += [net.convolution(top, 256, 3, 1, 1) for _ in range(3)]
    net.convolution(net.adaptive_pool(top, 1), 256, 1)
    image = net.concatenate(*branches, top.like(256))
    image = net.convolution(image, 256, 1)
    if shape.plus:
        low = net.convolution(stages[0], 48, 1)
        net.upsample(image, 2)
        image = net.convolution(net.concatenate(low, low.like(256)), 256, 3, 1, 1)
    image = net.convolution(image, 256, 3, 1, 1)
    image = net.convolution(image, shape.num_classes, 1, bias=True, norm=False, relu=False, head=True)
    net.passes("upsample", float(image.elements + shape.num_classes * shape.image_size**2))
    return net.layers()


GENERATORS: dict[str, Generator[Any]] = {
    "unet": generator(UnetShape, unet),
    "deeplab": generator(DeepLabShape, deeplab),
}
