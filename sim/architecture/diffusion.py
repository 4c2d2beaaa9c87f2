"""Diffusion models on latent images: the U-Net of Stable Diffusion and diffusion transformers.

Stable Diffusion: Rombach et al. 2022, arXiv:2112.10752; SDXL: Podell et al. 2023, arXiv:2307.01952. Frozen
encoders of text and, where latents are not stored, of images run in front of what is trained.
DiT: Peebles & Xie 2023, arXiv:2212.09748.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from sim.architecture.adapters import frozen
from sim.architecture.common import Generator
from sim.architecture.images import Image, Trace, TraceShape
from sim.architecture.transformer import Parts, TransformerShape
from sim.spec.base import Spec
from sim.spec.layer import Attention, Gemm, Layer, MemoryBound, Op

PROMPT = 77
"""Tokens of a prompt (CLIP)."""
TEXT_ENCODERS = {
    "clip-l": (12, 768, 12, 49_408),
    "openclip-h": (23, 1024, 16, 49_408),
    "openclip-bigg": (32, 1280, 20, 49_408),
}
"""Layers, width, heads, vocabulary; of OpenCLIP ViT-H Stable Diffusion 2 runs all but the last layer."""


class DiffusionUnetShape(TraceShape):
    """Fields of the U-Net of Stable Diffusion; the defaults are version 1's."""

    latent_size: int = Field(64, ge=8, description="height and width of the latent image: an eighth")
    latent_channels: int = Field(4, ge=1, description="channels of a latent image")
    channels: tuple[int, ...] = Field((320, 640, 1280, 1280), description="channels of each resolution")
    depths: tuple[int, ...] = Field(
        (1, 1, 1, 0), description="transformer blocks after each residual block of a resolution"
    )
    middle_depth: int = Field(1, ge=0, description="transformer blocks at the lowest resolution")
    context: int = Field(768, ge=1, description="width of the text encoder's output")
    head_dim: int | None = Field(None, ge=1, description="width of a head; if absent there are eight heads")
    added_width: int = Field(0, ge=0, description="width of what is embedded beside the time (SDXL: 2816)")
    text_encoders: tuple[str, ...] = Field(("clip-l",), description="frozen encoders that run in a step")
    image_encoder: bool = Field(False, description="the frozen encoder of images runs in a step, too")
    flash: bool = Field(True, description="fused attention that never writes the score matrix")


class DitShape(Spec):
    """Fields of a diffusion transformer."""

    num_layers: int = Field(ge=1, le=10_000, description="transformer blocks")
    hidden: int = Field(ge=1, description="model width")
    num_heads: int = Field(ge=1, description="attention heads of every block")
    latent_size: int = Field(32, ge=2, description="height and width of the latent image: an eighth")
    latent_channels: int = Field(4, ge=1, description="channels of a latent image")
    patch_size: int = Field(2, ge=1, description="height and width of a patch, latent pixels")
    num_classes: int = Field(1000, ge=1, description="classes of images")
    flash: bool = Field(True, description="fused attention that never writes the score matrix")
    fused_kernels: bool = Field(True, description="element-wise kernels fused; else separate")


class _Unet:
    """Blocks of the U-Net."""

    def __init__(self, shape: DiffusionUnetShape) -> None:
        self.shape = shape
        self.net = shape.trace()
        self.embedded = 4 * shape.channels[0]

    def embed(self) -> None:
        """Two products of the time, and two of sizes and the pooled prompt."""
        for source in (self.shape.channels[0], self.shape.added_width):
            if source:
                self.net.linear(self.net.linear(source, self.embedded, relu=True), self.embedded)

    def residual(self, image: Image, channels: int) -> Image:
        """Norm, convolution, the time added, norm, convolution; a 1 x 1 convolution if the width changes."""
        net = self.net
        net.norm(image)
        inner = net.convolution(image, channels, 3, 1, 1, bias=True, norm=False, relu=False)
        net.linear(self.embedded, channels, side_branch_of=inner)
        net.norm(inner)
        changes = channels != image.channels
        out = net.convolution(
            inner, channels, 3, 1, 1, bias=True, norm=False, relu=False, residual=not changes
        )
        if changes:
            net.convolution(image, channels, 1, bias=True, norm=False, relu=False, residual=True)
        return out

    def transformer(self, image: Image, depth: int) -> None:
        """Projection, blocks of attention to itself and to the prompt and a gated network, projection."""
        if not depth:
            return
        net, width = self.net, image.channels
        net.norm(image, relu=False)
        for index in range(2):
            if index:
                for _ in range(depth):
                    self._block(image)
            net.convolution(image, width, 1, bias=True, norm=False, relu=False, residual=bool(index))

    def _block(self, image: Image) -> None:
        width, tokens = image.channels, image.pixels
        head = self.shape.head_dim or width // 8
        activation = float(tokens * width)
        passes = MemoryBound(elements=2 * activation, backward_elements=3 * activation)
        added = MemoryBound(elements=3 * activation, backward_elements=3 * activation)
        for keys, source in ((tokens, width), (PROMPT, self.shape.context)):
            core = Attention(
                query_length=tokens, key_length=keys, heads=width // head, kv_heads=width // head,
                head_dim=head, flash=self.shape.flash,
            )  # fmt: skip
            ops: tuple[Op, ...] = (
                passes, Gemm(rows=tokens, n=width, k=width), Gemm(rows=keys, n=2 * width, k=source), core,
                Gemm(rows=tokens, n=width, k=width), added,
            )  # fmt: skip
            matrices = (float(width**2), 2.0 * source * width, float(width**2))
            tensors = (*matrices, *(float(width),) * 3)  # the norm's two and the last product's bias
            scores = 0.0 if self.shape.flash else float(width // head * tokens * keys)
            stored = 4 * activation + 2.0 * keys * width + scores
            self.net.record("attention", ops, tensors, image, image, stored)
        wide = 4 * width
        gated: tuple[Op, ...] = (
            passes, Gemm(rows=tokens, n=2 * wide, k=width),
            MemoryBound(elements=3.0 * tokens * wide, backward_elements=5.0 * tokens * wide),
            Gemm(rows=tokens, n=width, k=wide), added,
        )  # fmt: skip
        tensors = (2.0 * width * wide, 2.0 * wide, float(wide * width), *(float(width),) * 3)
        self.net.record("mlp", gated, tensors, image, image, 2 * activation + 3.0 * tokens * wide)


def unet(shape: DiffusionUnetShape) -> tuple[Layer, ...]:
    """Frozen encoders and the U-Net."""
    parts = _Unet(shape)
    net, widths = parts.net, shape.channels
    parts.embed()
    image = Image(shape.latent_channels, shape.latent_size, shape.latent_size)
    image = net.convolution(image, widths[0], 3, 1, 1, bias=True, norm=False, relu=False)
    skipped = [image]
    for level, width in enumerate(widths):
        for _ in range(2):
            image = parts.residual(image, width)
            parts.transformer(image, shape.depths[level])
            skipped.append(image)
            net.next_block()
        if level < len(widths) - 1:
            image = net.convolution(image, width, 3, 2, 1, bias=True, norm=False, relu=False)
            skipped.append(image)
    image = parts.residual(image, widths[-1])
    parts.transformer(image, shape.middle_depth)
    image = parts.residual(image, widths[-1])
    net.next_block()
    for level, width in reversed(tuple(enumerate(widths))):
        for _ in range(3):
            image = parts.residual(net.concatenate(image, skipped.pop(), ends=False), width)
            parts.transformer(image, shape.depths[level])
            net.next_block()
        if level:
            image = net.upsample(image, 2)
            image = net.convolution(image, width, 3, 1, 1, bias=True, norm=False, relu=False)
    net.norm(image)
    net.convolution(image, shape.latent_channels, 3, 1, 1, bias=True, norm=False, relu=False, head=True)
    before = [layer for name in shape.text_encoders for layer in _text_encoder(name)]
    before += _image_encoder(8 * shape.latent_size) if shape.image_encoder else []
    return (*(layer.replace(block=0) for layer in frozen(before)), *net.layers())


def _text_encoder(name: str) -> list[Layer]:
    """The blocks of a text encoder and its table."""
    layers, hidden, heads, vocabulary = TEXT_ENCODERS[name]
    parts = Parts(
        TransformerShape(
            num_layers=layers, hidden=hidden, num_heads=heads, vocabulary=vocabulary, sequence_length=PROMPT,
            max_positions=PROMPT, dropout=False, flash=True,
        )
    )  # fmt: skip
    blocks = [
        each for index in range(layers) for each in (parts.attention_layer(index), parts.mlp_layer(index))
    ]
    return [parts.embedding_layer(), *blocks]


def _image_encoder(size: int) -> list[Layer]:
    """The autoencoder's encoder: two residual blocks at each of four resolutions, attention at the last."""
    net = Trace()

    def residual(image: Image, channels: int) -> Image:
        net.norm(image)
        inner = net.convolution(image, channels, 3, 1, 1, bias=True, norm=False, relu=False)
        net.norm(inner)
        out = net.convolution(inner, channels, 3, 1, 1, bias=True, norm=False, relu=False, residual=True)
        if channels != image.channels:
            net.convolution(image, channels, 1, bias=True, norm=False, relu=False)
        return out

    widths = (128, 256, 512, 512)
    image = net.convolution(Image(3, size, size), widths[0], 3, 1, 1, bias=True, norm=False, relu=False)
    for level, width in enumerate(widths):
        image = residual(residual(image, width), width)
        if level < len(widths) - 1:
            image = net.convolution(image, width, 3, 2, 1, bias=True, norm=False, relu=False)
    image = residual(image, widths[-1])
    width, tokens = image.channels, image.pixels
    net.norm(image, relu=False)
    ops: tuple[Op, ...] = (
        Gemm(rows=tokens, n=3 * width, k=width),
        Attention(
            query_length=tokens, key_length=tokens, heads=1, kv_heads=1, head_dim=width, flash=True
        ),
        Gemm(rows=tokens, n=width, k=width),
    )  # fmt: skip
    net.record("attention", ops, (4.0 * width**2, 4.0 * width), image, image, 0.0)
    image = residual(image, widths[-1])
    net.norm(image)
    net.convolution(image, 8, 3, 1, 1, bias=True, norm=False, relu=False)
    return list(net.layers())


def dit(shape: DitShape) -> tuple[Layer, ...]:
    """Diffusion transformer: blocks whose norms and additions are scaled by products of time and class."""
    tokens, hidden = (shape.latent_size // shape.patch_size) ** 2, shape.hidden
    pixels = shape.latent_channels * shape.patch_size**2
    parts = Parts(
        TransformerShape(
            num_layers=shape.num_layers, hidden=hidden, num_heads=shape.num_heads,
            vocabulary=shape.num_classes + 1, sequence_length=tokens, max_positions=tokens, causal=False,
            dropout=False, flash=shape.flash, fused_kernels=shape.fused_kernels,
        )
    )  # fmt: skip
    activation = parts.activation
    first: tuple[float, ...] = (
        float(pixels * hidden),
        float(hidden),
        float((shape.num_classes + 1) * hidden),
    )
    first += (256.0 * hidden, float(hidden), float(hidden**2), float(hidden))
    chain = [
        Layer(
            name="embedding", kind="embedding", block=0, parameters=sum(first), tensors=first,
            ops=(
                Gemm(rows=tokens, n=hidden, k=pixels), MemoryBound(elements=2 * activation),
                Gemm(rows=1, n=hidden, k=256), Gemm(rows=1, n=hidden, k=hidden),
            ),
            output_elements=activation, stored_elements=float(tokens * pixels),
        )
    ]  # fmt: skip
    for block in range(shape.num_layers):
        chain += [_modulated(layer, hidden, activation) for layer in
                  (parts.attention_layer(block), parts.mlp_layer(block))]  # fmt: skip
    out = 2 * pixels  # of the noise and its variance
    tensors = (2.0 * hidden**2, 2.0 * hidden, float(hidden * out), float(out))
    chain.append(
        Layer(
            name="head", kind="head", block=shape.num_layers - 1, parameters=sum(tensors), tensors=tensors,
            ops=(parts.norm_op, Gemm(rows=1, n=2 * hidden, k=hidden), Gemm(rows=tokens, n=out, k=hidden)),
            input_elements=activation, output_elements=float(tokens * out), stored_elements=2 * activation,
        )
    )  # fmt: skip
    return tuple(chain)


def _modulated(layer: Layer, hidden: int, activation: float) -> Layer:
    """A half block whose norm has no weights, but a shift, scale and gate from the condition (adaLN)."""
    tensors = (*layer.tensors[2:], 3.0 * hidden**2, 3.0 * hidden)
    scaled = MemoryBound(elements=4 * activation, backward_elements=6 * activation, split="sequence")
    return layer.replace(
        ops=(Gemm(rows=1, n=3 * hidden, k=hidden), *layer.ops, scaled), tensors=tensors,
        parameters=sum(tensors), stored_elements=layer.stored_elements + activation,
    )  # fmt: skip


def _describe_unet(shape: DiffusionUnetShape) -> Mapping[str, Any]:
    return {"family": "cnn"}


def _describe_dit(shape: DitShape) -> Mapping[str, Any]:
    return {"family": "transformer", "num_heads": shape.num_heads, "hidden": shape.hidden}


GENERATORS: dict[str, Generator[Any]] = {
    "diffusion-unet": Generator(DiffusionUnetShape, unet, _describe_unet),
    "dit": Generator(DitShape, dit, _describe_dit),
}
