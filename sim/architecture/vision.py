"""Vision transformers: an image in square patches, one token each, and one for the class.

Dosovitskiy et al. 2021, arXiv:2010.11929. The blocks are those of an encoder; the patches pass through one
product, whose weights take the place of a table of embeddings, and a linear classifier reads the first token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from sim.architecture.common import Generator
from sim.architecture.transformer import Parts, TransformerShape
from sim.spec.base import Spec, refuse
from sim.spec.layer import Gemm, Layer, MemoryBound


class VitShape(Spec):
    """Sizes of a vision transformer."""

    num_layers: int = Field(ge=1, le=10_000, description="transformer blocks")
    hidden: int = Field(ge=1, description="model width")
    num_heads: int = Field(ge=1, description="attention heads of every block")
    ffn_hidden: int | None = Field(None, ge=1, description="feed-forward width; 4 * hidden if absent")
    image_size: int = Field(224, ge=8, description="height and width of the input, pixels")
    patch_size: int = Field(16, ge=1, description="height and width of a patch, pixels")
    num_classes: int = Field(1000, ge=2, description="outputs of the last layer")
    flash: bool = Field(False, description="fused attention that never writes the score matrix")
    fused_kernels: bool = Field(
        True, description="element-wise kernels fused; else separate, as eager PyTorch"
    )

    @model_validator(mode="after")
    def _check(self) -> VitShape:
        if self.image_size % self.patch_size:
            refuse(f"divide image_size ({self.image_size})", self.patch_size, field="patch_size")
        return self

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def encoder(self) -> TransformerShape:
        """Its blocks as those of a plain encoder."""
        tokens = self.patches + 1
        return TransformerShape(
            num_layers=self.num_layers, hidden=self.hidden, num_heads=self.num_heads,
            ffn_hidden=self.ffn_hidden, vocabulary=self.num_classes, sequence_length=tokens,
            max_positions=tokens, causal=False, dropout=False, flash=self.flash,
            fused_kernels=self.fused_kernels,
        )  # fmt: skip


def build(shape: VitShape) -> tuple[Layer, ...]:
    """Layer chain: patches, blocks, classifier."""
    parts = Parts(shape.encoder)
    chain = [_patches(shape, parts)]
    for block in range(shape.num_layers):
        chain += [parts.attention_layer(block), parts.mlp_layer(block)]
    return (*chain, _classifier(shape, parts))


def _patches(shape: VitShape, parts: Parts) -> Layer:
    pixels = 3 * shape.patch_size**2
    positions = float((shape.patches + 1) * shape.hidden)
    tensors = (float(pixels * shape.hidden), float(shape.hidden), float(shape.hidden), positions)
    return Layer(
        name="embedding",
        kind="embedding",
        block=0,
        ops=(
            Gemm(rows=shape.patches, n=shape.hidden, k=pixels),
            MemoryBound(elements=3 * parts.activation, split="sequence"),  # positions are added
        ),
        parameters=sum(tensors),
        tensors=tensors,
        output_elements=parts.activation,
        stored_elements=float(shape.patches * pixels),
    )


def _classifier(shape: VitShape, parts: Parts) -> Layer:
    classes, hidden = shape.num_classes, shape.hidden
    tensors = (*shape.encoder.norm_tensors, float(hidden * classes), float(classes))
    return Layer(
        name="head",
        kind="head",
        block=shape.num_layers - 1,
        ops=(parts.norm_op, Gemm(rows=1, n=classes, k=hidden), parts.cross_entropy(float(classes))),
        parameters=sum(tensors),
        tensors=tensors,
        input_elements=parts.activation,
        output_elements=float(classes),
        stored_elements=parts.activation + hidden,
    )


def _describe(shape: VitShape) -> Mapping[str, Any]:
    return {"family": "transformer", "num_heads": shape.num_heads, "hidden": shape.hidden}


generate = Generator(VitShape, build, _describe)
"""Vision transformer from :class:`VitShape` fields and workload fields."""
