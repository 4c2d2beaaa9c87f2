"""Two encoders that are trained against each other: CLIP (Radford et al. 2021, arXiv:2103.00020).

A sample is an image and its caption. The image's encoder is a vision transformer with one norm more, in
front; the text's is a causal transformer. Both end in a projection, and the loss compares all pairs of a
batch, which costs nothing beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from sim.architecture.common import Generator
from sim.architecture.transformer import Parts, TransformerShape
from sim.architecture.vision import VitShape
from sim.architecture.vision import build as build_vision
from sim.spec.layer import Gemm, Layer


class ClipShape(VitShape):
    """Sizes of both encoders; those of the text's have names of their own."""

    text_layers: int = Field(12, ge=1, le=10_000, description="blocks of the text's encoder")
    text_hidden: int = Field(512, ge=1, description="width of the text's encoder")
    text_length: int = Field(77, ge=1, description="tokens of a caption")
    vocabulary: int = Field(49_408, ge=2, description="tokens that are told apart")
    projection: int = Field(512, ge=1, description="width in which image and text are compared")


def build(shape: ClipShape) -> tuple[Layer, ...]:
    """The image's encoder, then the text's."""
    vision = build_vision(shape)
    first, last = vision[0], shape.num_layers - 1
    image = shape.encoder.norm_tensors
    patches = tuple(size for at, size in enumerate(first.tensors) if at != 1)  # no bias
    parts = Parts(shape.encoder)
    entry = first.replace(
        ops=(*first.ops, parts.norm_op), tensors=(*patches, *image), parameters=sum((*patches, *image))
    )
    text = Parts(
        TransformerShape(
            num_layers=shape.text_layers, hidden=shape.text_hidden, num_heads=shape.text_hidden // 64,
            vocabulary=shape.vocabulary, sequence_length=shape.text_length,
            max_positions=shape.text_length, dropout=False, flash=shape.flash,
            fused_kernels=shape.fused_kernels,
        )
    )  # fmt: skip
    chain = [entry, *vision[1:-1], _projection("image_head", last, shape, parts, shape.hidden)]
    chain.append(text.embedding_layer().replace(name="text_embedding", block=shape.num_layers))
    for index in range(shape.text_layers):
        block = shape.num_layers + index
        chain += [text.attention_layer(block), text.mlp_layer(block)]
    end = shape.num_layers + shape.text_layers - 1
    return (*chain, _projection("head", end, shape, text, shape.text_hidden))


def _projection(name: str, block: int, shape: ClipShape, parts: Parts, width: int) -> Layer:
    """Norm and projection of the token that stands for all; the text's holds the temperature."""
    tensors = (*parts.shape.norm_tensors, float(width * shape.projection)) + (1.0,) * (name == "head")
    return Layer(
        name=name, kind="linear", block=block, parameters=sum(tensors), tensors=tensors,
        ops=(parts.norm_op, Gemm(rows=1, n=shape.projection, k=width)), input_elements=parts.activation,
        output_elements=float(shape.projection), stored_elements=parts.activation,
    )  # fmt: skip


def _describe(shape: ClipShape) -> Mapping[str, Any]:
    return {"family": "transformer", "num_heads": shape.num_heads, "hidden": shape.hidden}


generate = Generator(ClipShape, build, _describe)
"""CLIP from :class:`ClipShape` fields and workload fields."""
