"""Detectors that predict on every position: RetinaNet and YOLOv3.

RetinaNet (Lin et al. 2017, arXiv:1708.02002) has MLPerf's backbone and classes by default: ResNeXt-50
32x4d, 264 of OpenImages, 800 x 800. YOLOv3 (Redmon & Farhadi 2018, arXiv:1804.02767) is built on Darknet-53.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from sim.architecture.cnn import Grouped, generator, grouped_features
from sim.architecture.common import Generator
from sim.architecture.images import Image, Trace, TraceShape
from sim.spec.layer import Layer

BACKBONES = {"resnet50": Grouped(50, 1, 64), "resnext50-32x4d": Grouped(50, 32, 4)}
ANCHORS = 9


class RetinaNetShape(TraceShape):
    """Fields of RetinaNet."""

    image_height: int = Field(800, ge=128, description="rows of an image")
    image_width: int = Field(800, ge=128, description="columns of an image")
    num_classes: int = Field(264, ge=1, description="classes that are told apart")
    backbone: Literal["resnet50", "resnext50-32x4d"] = Field("resnext50-32x4d", description="backbone")
    fused_norm: bool = Field(True, description="frozen batch norm, residual addition and ReLU in one kernel")


class YoloShape(TraceShape):
    """Fields of YOLOv3."""

    image_size: int = Field(416, ge=96, description="height and width of the input, pixels")
    num_classes: int = Field(80, ge=1, description="classes that are told apart")


def pyramid(net: Trace, stages: list[Image]) -> list[Image]:
    """Feature pyramid over some stages: their channels brought to 256, added from above, smoothed."""
    levels = [net.convolution(each, 256, 1, bias=True, norm=False, relu=False) for each in stages]
    return [net.convolution(each, 256, 3, padding=1, bias=True, norm=False, relu=False) for each in levels]


def retinanet(shape: RetinaNetShape) -> tuple[Layer, ...]:
    """RetinaNet: five levels, two networks of four convolutions, shared by the levels."""
    net = shape.trace()
    image = Image(3, shape.image_height, shape.image_width)
    levels = pyramid(net, grouped_features(net, image, BACKBONES[shape.backbone])[1:])
    for _ in range(2):
        levels.append(net.convolution(levels[-1], 256, 3, 2, 1, bias=True, norm=False, relu=False))
    net.next_block()
    for outputs in (shape.num_classes, 4):
        for index, level in enumerate(levels):
            hidden = level
            for _ in range(4):
                hidden = net.convolution(hidden, 256, 3, 1, 1, bias=True, norm=False, shared=index > 0)
            net.convolution(
                hidden, ANCHORS * outputs, 3, 1, 1, bias=True, norm=False, relu=False, shared=index > 0
            )
        net.next_block()
    boxes = ANCHORS * sum(level.pixels for level in levels)
    net.passes("head", 10.0 * boxes * (shape.num_classes + 4))  # sigmoid focal loss, smooth L1
    return net.layers()


_DARKNET = ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4))
"""Channels and residual blocks of Darknet-53's stages."""


def yolov3(shape: YoloShape) -> tuple[Layer, ...]:
    """YOLOv3: predictions at three resolutions, the coarse ones brought up to the finer."""
    net = shape.trace()
    image = net.convolution(Image(3, shape.image_size, shape.image_size), 32, 3, 1, 1)
    stages = []
    for channels, blocks in _DARKNET:
        image = net.convolution(image, channels, 3, 2, 1)
        for _ in range(blocks):
            inner = net.convolution(image, channels // 2, 1)
            image = net.convolution(inner, channels, 3, 1, 1, residual=True)
            net.next_block()
        stages.append(image)
    outputs = 3 * (5 + shape.num_classes)
    joined = stages[-1]
    for index, width in enumerate((512, 256, 128)):
        if index:
            joined = net.upsample(net.convolution(joined, width, 1), 2)
            joined = net.concatenate(joined, stages[-1 - index])
        for kernel in (1, 3, 1, 3, 1):
            joined = net.convolution(joined, width * (1 + kernel // 3), kernel, 1, kernel // 2)
        out = net.convolution(joined, 2 * width, 3, 1, 1)
        net.convolution(out, outputs, 1, bias=True, norm=False, relu=False, head=index == 2)
        net.next_block()
    return net.layers()


GENERATORS: dict[str, Generator[Any]] = {
    "retinanet": generator(RetinaNetShape, retinanet),
    "yolov3": generator(YoloShape, yolov3),
}
