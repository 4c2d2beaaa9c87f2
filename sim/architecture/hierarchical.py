"""Vision networks in stages of falling resolution: ConvNeXt and Swin transformers.

ConvNeXt: Liu et al. 2022, arXiv:2201.03545. Swin: Liu et al. 2021, arXiv:2103.14030; attention in windows,
with a table of relative positions per head. Norms are layer norms over the channels; between stages a
convolution or a product of two by two pixels halves the resolution.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import Field

from sim.architecture.cnn import generator
from sim.architecture.common import Generator
from sim.architecture.images import Image, Trace
from sim.spec.base import Spec
from sim.spec.layer import Attention, Gemm, Layer, MemoryBound, Op


class StagedShape(Spec):
    """Fields of ConvNeXt and Swin."""

    image_size: int = Field(224, ge=32, description="height and width of the input, pixels")
    num_classes: int = Field(1000, ge=1, description="outputs of the last layer")
    flash: bool = Field(False, description="fused attention that never writes the score matrix")
    fused_kernels: bool = Field(
        True, description="element-wise kernels fused; else separate, as eager PyTorch"
    )


CONVNEXTS = {
    "tiny": (96, (3, 3, 9, 3)),
    "small": (96, (3, 3, 27, 3)),
    "base": (128, (3, 3, 27, 3)),
    "large": (192, (3, 3, 27, 3)),
    "xlarge": (256, (3, 3, 27, 3)),
}
"""Channels of the first stage, blocks of each."""

SWINS = {
    "tiny": (96, (2, 2, 6, 2)),
    "small": (96, (2, 2, 18, 2)),
    "base": (128, (2, 2, 18, 2)),
    "large": (192, (2, 2, 18, 2)),
}
"""Width of the first stage, blocks of each; heads of 32."""

WINDOW, HEAD = 7, 32


class _Pixels:
    """Layers over the channels of every pixel, as one block of a chain."""

    def __init__(self, net: Trace, shape: StagedShape) -> None:
        self.net, self.shape = net, shape

    def norm(self, elements: float) -> MemoryBound:
        """Layer norm: read and write; backward reads input and gradient, writes one."""
        launches = 1 if self.shape.fused_kernels else 3
        return MemoryBound(
            elements=(2.0 if launches == 1 else 4.0) * elements,
            backward_elements=(3.0 if launches == 1 else 6.0) * elements,
            launches=launches,
        )

    def mlp(self, image: Image, *, norm: bool, scaled: bool) -> None:
        """Two products with four times the channels between them; ``scaled``: a factor per channel."""
        channels, wide, pixels = image.channels, 4 * image.channels, image.pixels
        ops: tuple[Op, ...] = (
            *((self.norm(image.elements),) * norm),
            Gemm(rows=pixels, n=wide, k=channels),
            MemoryBound(elements=2.0 * pixels * wide, backward_elements=3.0 * pixels * wide),
            Gemm(rows=pixels, n=channels, k=wide),
            MemoryBound(elements=3.0 * image.elements, backward_elements=3.0 * image.elements),
        )
        product = float(channels * wide)
        tensors = (float(channels),) * (2 * norm) + (product, float(wide), product, float(channels))
        tensors += (float(channels),) * scaled
        stored = (2.0 + scaled) * image.elements + 2.0 * pixels * wide
        self.net.record("mlp", ops, tensors, image, image, stored)

    def attention(self, image: Image) -> None:
        """Attention of every window's pixels to each other: windows count as heads of their own."""
        channels, pixels, tokens = image.channels, image.pixels, WINDOW**2
        heads = channels // HEAD
        windows = -(-image.height // WINDOW) * -(-image.width // WINDOW)
        scores = float(windows * heads * tokens**2)
        moved = MemoryBound(elements=2.0 * image.elements, backward_elements=2.0 * image.elements)
        core = Attention(
            query_length=tokens, key_length=tokens, heads=heads * windows, kv_heads=heads * windows,
            head_dim=HEAD, flash=self.shape.flash,
        )  # fmt: skip
        bias = MemoryBound(elements=2.0 * scores, backward_elements=2.0 * scores)
        ops: tuple[Op, ...] = (
            self.norm(image.elements), moved, Gemm(rows=pixels, n=3 * channels, k=channels), bias, core,
            Gemm(rows=pixels, n=channels, k=channels), moved,
            MemoryBound(elements=3.0 * image.elements, backward_elements=3.0 * image.elements),
        )  # fmt: skip
        square = float(channels**2)
        tensors: tuple[float, ...] = (float(channels),) * 2 + (float((2 * WINDOW - 1) ** 2 * heads),)
        tensors += (3 * square, 3.0 * channels, square, float(channels))
        stored = 6.0 * image.elements + (0.0 if self.shape.flash else scores)
        self.net.record("attention", ops, tensors, image, image, stored)

    def halve(self, image: Image) -> Image:
        """Norm and product of two by two pixels (Swin's patch merging)."""
        joined = Image(4 * image.channels, image.height // 2, image.width // 2)
        out = joined.like(2 * image.channels)
        ops: tuple[Op, ...] = (
            MemoryBound(elements=2.0 * joined.elements, backward_elements=2.0 * joined.elements),
            self.norm(joined.elements),
            Gemm(rows=joined.pixels, n=out.channels, k=joined.channels),
        )
        tensors = (float(joined.channels),) * 2 + (float(joined.channels * out.channels),)
        self.net.record("linear", ops, tensors, image, out, 2.0 * joined.elements)
        return out

    def normalised(self, image: Image) -> None:
        """A norm by itself."""
        ops = (self.norm(image.elements),)
        self.net.record("norm", ops, (float(image.channels),) * 2, image, image, image.elements)

    def classify(self, image: Image, *, norm_first: bool) -> tuple[Layer, ...]:
        """Average pool and classifier; the norm comes before or after the pool."""
        if norm_first:
            self.normalised(image)
        pooled = self.net.adaptive_pool(image, 1)
        if not norm_first:
            self.normalised(pooled)
        self.net.linear(image.channels, self.shape.num_classes, head=True)
        return self.net.layers()


def convnext(shape: StagedShape, size: str) -> tuple[Layer, ...]:
    """ConvNeXt: depthwise 7 x 7 convolution, norm, two products, a factor per channel, addition."""
    width, depths = CONVNEXTS[size]
    net = Trace()
    pixels = _Pixels(net, shape)
    image = Image(3, shape.image_size, shape.image_size)
    for stage, depth in enumerate(depths):
        kernel = 2 if stage else 4
        if stage:
            pixels.normalised(image)
        image = net.convolution(image, width * 2**stage, kernel, kernel, bias=True, norm=False, relu=False)
        if not stage:
            pixels.normalised(image)
        net.next_block()
        for _ in range(depth):
            net.convolution(
                image, image.channels, 7, 1, 3, groups=image.channels, bias=True, norm=False, relu=False
            )
            pixels.mlp(image, norm=True, scaled=True)
            net.next_block()
    return pixels.classify(image, norm_first=False)


def swin(shape: StagedShape, size: str) -> tuple[Layer, ...]:
    """Swin transformer with windows of 7 x 7 patches; every other block's windows are shifted."""
    width, depths = SWINS[size]
    net = Trace()
    pixels = _Pixels(net, shape)
    image = Image(3, shape.image_size, shape.image_size)
    image = net.convolution(image, width, 4, 4, bias=True, norm=False, relu=False)
    pixels.normalised(image)
    net.next_block()
    for stage, depth in enumerate(depths):
        if stage:
            image = pixels.halve(image)
        for _ in range(depth):
            pixels.attention(image)
            pixels.mlp(image, norm=True, scaled=False)
            net.next_block()
    return pixels.classify(image, norm_first=True)


GENERATORS: dict[str, Generator[Any]] = {
    **{f"convnext-{size}": generator(StagedShape, partial(convnext, size=size)) for size in CONVNEXTS},
    **{f"swin-{size}": generator(StagedShape, partial(swin, size=size)) for size in SWINS},
}
