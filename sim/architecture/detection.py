"""Detectors: SSD300, Faster and Mask R-CNN, with the shapes of NVIDIA's DeepLearningExamples and MLPerf.

SSD (Liu et al. 2016, arXiv:1512.02325) keeps ResNet-50 up to its third stage, whose stride is 1 there, and
adds five blocks; six feature maps carry heads for boxes and classes. Mask R-CNN (He et al. 2017,
arXiv:1703.06870) has a feature pyramid, a region proposal network on five levels, a box head and a mask head
on sampled regions.
Anchors, matching, suppression and sampling are taken as passes over their tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from sim.architecture.cnn import RESNET_STAGES, basic, bottleneck
from sim.architecture.common import Generator
from sim.architecture.images import Image, Trace, TraceShape
from sim.architecture.one_stage import pyramid
from sim.spec.base import Spec
from sim.spec.layer import Layer


class SsdShape(TraceShape):
    """Fields of SSD300."""

    image_size: int = Field(300, ge=96, description="height and width of the input, pixels")
    num_classes: int = Field(81, ge=2, description="classes, background included")
    backbone: Literal["resnet34", "resnet50"] = Field("resnet50", description="backbone; MLPerf has resnet34")


class MaskRcnnShape(TraceShape):
    """Fields of Mask R-CNN with a feature pyramid."""

    image_height: int = Field(800, ge=128, description="rows of an image")
    image_width: int = Field(1344, ge=128, description="columns of an image")
    num_classes: int = Field(81, ge=2, description="classes, background included")
    box_regions: int = Field(512, ge=1, description="sampled regions per image that the box head sees")
    mask_regions: int = Field(128, ge=1, description="of them positive, which the mask head sees")
    masks: bool = Field(True, description="whether there is a mask head; Faster R-CNN has none")
    fused_norm: bool = Field(True, description="frozen batch norm, residual addition and ReLU in one kernel")


_SSD_BLOCKS = ((256, 512, 2, 1), (256, 512, 2, 1), (128, 256, 2, 1), (128, 256, 1, 0), (128, 256, 1, 0))
"""(Inner, outer channels, stride, padding) of the added blocks."""

_SSD_BOXES = (4, 6, 6, 6, 4, 4)
"""Default boxes per position of each feature map."""


def ssd300(shape: SsdShape) -> tuple[Layer, ...]:
    """SSD300 on a ResNet."""
    net = shape.trace()
    image = _stem(net, Image(3, shape.image_size, shape.image_size))
    small = shape.backbone == "resnet34"  # its added blocks have no norms
    for stage in range(3):
        image = _stage(net, image, stage, stride=2 if stage == 1 else 1, basics=small)
    maps = [image]
    for inner, outer, stride, padding in _SSD_BLOCKS:
        hidden = net.convolution(maps[-1], inner, 1, bias=small, norm=not small)
        maps.append(net.convolution(hidden, outer, 3, stride, padding, bias=small, norm=not small))
        net.next_block()
    for feature, boxes in zip(maps, _SSD_BOXES, strict=True):
        net.convolution(feature, 4 * boxes, 3, padding=1, bias=True, norm=False, relu=False)
        net.convolution(feature, shape.num_classes * boxes, 3, padding=1, bias=True, norm=False, relu=False)
    boxes = sum(f.height * f.width * n for f, n in zip(maps, _SSD_BOXES, strict=True))
    net.passes("head", 10.0 * boxes * (shape.num_classes + 4))  # log-softmax, hard negatives, smooth L1
    return net.layers()


def mask_rcnn(shape: MaskRcnnShape) -> tuple[Layer, ...]:
    """Mask or Faster R-CNN, ResNet-50 with a feature pyramid."""
    net = shape.trace()
    image = _stem(net, Image(3, shape.image_height, shape.image_width))
    stages: list[Image] = []
    for stage in range(4):
        image = _stage(net, image, stage, stride=2 if stage else 1)
        stages.append(image)
    levels = pyramid(net, stages)
    levels.append(net.pool(levels[-1], 1, 2))
    net.next_block()
    for index, level in enumerate(levels):  # one network for all levels: weights counted once
        hidden = net.convolution(level, 256, 3, padding=1, bias=True, norm=False, shared=index > 0)
        net.convolution(hidden, 3, 1, bias=True, norm=False, relu=False, shared=index > 0)
        net.convolution(hidden, 12, 1, bias=True, norm=False, relu=False, shared=index > 0)
    net.next_block()
    net.passes("pool", 2.0 * shape.box_regions * 256 * 7 * 7)
    features = net.linear(256 * 7 * 7, 1024, relu=True, rows=shape.box_regions)
    features = net.linear(features, 1024, relu=True, rows=shape.box_regions)
    net.linear(features, shape.num_classes, rows=shape.box_regions)
    net.linear(features, 4 * shape.num_classes, rows=shape.box_regions)
    if shape.masks:
        net.next_block()
        _mask_head(net, shape)
    return net.layers()


def _mask_head(net: Trace, shape: MaskRcnnShape) -> None:
    """Four convolutions, a transposed one and the classifier, on the positive regions."""
    net.passes("pool", 2.0 * shape.mask_regions * 256 * 14 * 14)
    region = Image(256, 14 * shape.mask_regions, 14)  # regions below each other
    for _ in range(4):
        region = net.convolution(region, 256, 3, padding=1, bias=True, norm=False)
    # The transposed convolution (2 x 2, stride 2) is a product per input pixel: four outputs each.
    net.convolution(region, 4 * 256, 1, bias=False, norm=False)
    large = Image(256, 2 * region.height, 2 * region.width)
    net.convolution(large, shape.num_classes, 1, bias=True, norm=False, relu=False, head=True)


def _stem(net: Trace, image: Image) -> Image:
    image = net.convolution(image, 64, 7, 2, 3)
    image = net.pool(image, 3, 2, 1)
    net.next_block()
    return image


def _stage(net: Trace, image: Image, stage: int, *, stride: int, basics: bool = False) -> Image:
    for index in range(RESNET_STAGES[50][stage]):
        if basics:
            image = basic(net, image, 64 * 2**stage, stride if index == 0 else 1)
            continue
        image = bottleneck(net, image, 64 * 2**stage, stride if index == 0 else 1, downsample=index == 0)
        net.next_block()
    return image


def _describe(shape: Spec) -> Mapping[str, Any]:
    return {"family": "cnn"}


generate_ssd300 = Generator(SsdShape, ssd300, _describe)
"""SSD300 from :class:`SsdShape` fields and workload fields."""


generate_mask_rcnn = Generator(MaskRcnnShape, mask_rcnn, _describe)
"""Mask R-CNN from :class:`MaskRcnnShape` fields and workload fields."""
