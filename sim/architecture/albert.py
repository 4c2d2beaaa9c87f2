"""ALBERT: an encoder whose blocks have the same weights (Lan et al. 2020, arXiv:1909.11942).

Embeddings are narrow and brought to the model's width by one product. Every block after the first uses the
parameters of the first: they are kept and updated once, their gradients summed over the blocks.
"""

from __future__ import annotations

from math import ceil

from pydantic import Field

from sim.architecture.common import Generator
from sim.architecture.transformer import Parts, TransformerShape, describe
from sim.spec.layer import Embedding, Gemm, Layer, MemoryBound


class AlbertShape(TransformerShape):
    """Sizes of ALBERT."""

    embedding_width: int = Field(128, ge=1, description="width of the tables of embeddings")


def build(shape: AlbertShape) -> tuple[Layer, ...]:
    """Layer chain: embeddings, equal blocks, the masked-language-model head on the narrow table."""
    parts = Parts(shape)
    width, tokens = shape.embedding_width, shape.sequence_length
    rows = shape.vocabulary + (shape.max_positions or tokens) + shape.token_types
    table = float(shape.vocabulary * width)
    tensors: tuple[float, ...] = (table, float(rows * width) - table, 2.0 * width)
    tensors += (float(width * shape.hidden), float(shape.hidden))
    chain = [
        Layer(
            name="embedding", kind="embedding", block=0, parameters=sum(tensors), tensors=tensors,
            tensor_parameters=table,
            ops=(
                Embedding(rows=tokens, width=width), MemoryBound(elements=8.0 * tokens * width),
                Gemm(rows=tokens, n=shape.hidden, k=width),
            ),
            output_elements=parts.activation, stored_elements=2.0 * tokens * width,
        )
    ]  # fmt: skip
    for block in range(shape.num_layers):
        both = (parts.attention_layer(block), parts.mlp_layer(block))
        chain += both if block == 0 else [_again(layer) for layer in both]
    return (*chain, _head(shape, parts, table))


def _again(layer: Layer) -> Layer:
    """A layer with the parameters of an earlier one."""
    return layer.replace(
        parameters=0.0, tensors=(), tensor_parameters=0.0, shared_parameters=layer.parameters
    )


def _head(shape: AlbertShape, parts: Parts, table: float) -> Layer:
    """Transformation of the masked tokens to the narrow width, and the shared table; pooler."""
    masked, width, hidden = (
        ceil(shape.masked_fraction * shape.sequence_length),
        shape.embedding_width,
        shape.hidden,
    )
    logits = float(masked * shape.vocabulary)
    tensors = (float(hidden * width), 3.0 * width, float(shape.vocabulary), float(hidden**2), float(hidden))
    return Layer(
        name="head", kind="head", block=shape.num_layers - 1, parameters=sum(tensors), tensors=tensors,
        shared_parameters=table,
        ops=(
            Gemm(rows=masked, n=width, k=hidden), MemoryBound(elements=4.0 * masked * width),
            Gemm(rows=masked, n=shape.vocabulary, k=width, split="vocabulary"),
            parts.cross_entropy(logits), Gemm(rows=1, n=hidden, k=hidden),
        ),
        input_elements=parts.activation, output_elements=logits, stored_elements=4.0 * masked * width,
    )  # fmt: skip


generate = Generator(AlbertShape, build, describe)
"""ALBERT from :class:`AlbertShape` fields and workload fields."""
