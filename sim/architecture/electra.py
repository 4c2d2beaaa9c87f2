"""ELECTRA: a discriminator of BERT's shape behind a smaller generator that replaces masked tokens.

Both run in every pre-training step; the generator predicts the masked tokens, the discriminator judges every
token (Clark et al. 2020, arXiv:2003.10555, section 2). They share the embedding.
"""

from __future__ import annotations

from pydantic import Field

from sim.architecture.common import Generator
from sim.architecture.transformer import Parts, TransformerShape, describe
from sim.spec.layer import Gemm, Layer


class ElectraShape(TransformerShape):
    """Sizes of the discriminator, and how much smaller the generator is."""

    generator_division: int = Field(3, ge=1, description="width of the generator is that much smaller")


def build(shape: ElectraShape) -> tuple[Layer, ...]:
    """Layer chain: generator, then discriminator."""
    width = shape.hidden // shape.generator_division
    heads = max(1, shape.num_heads // shape.generator_division)
    plain = {name: getattr(shape, name) for name in TransformerShape.model_fields}
    small = Parts(
        TransformerShape(
            **plain | {"hidden": width, "num_heads": heads, "num_kv_heads": None, "ffn_hidden": 4 * width,
                       "head_dim": None, "head": "mlm", "pooler": False}
        )
    )  # fmt: skip
    large = Parts(TransformerShape(**plain))
    chain = [large.embedding_layer()]
    for block in range(shape.num_layers):
        chain += [small.attention_layer(block), small.mlp_layer(block)]
    prediction = small.head_layer().replace(name="generator_head", block=shape.num_layers - 1)
    chain.append(prediction)
    for index in range(shape.num_layers):
        block = shape.num_layers + index
        chain += [large.attention_layer(block), large.mlp_layer(block)]
    return (*chain, _judge(shape))


def _judge(shape: ElectraShape) -> Layer:
    """Original or replaced: a dense layer and one output per token."""
    tokens, width = shape.sequence_length, shape.hidden
    tensors = (float(width * width), float(width), float(width), 1.0)
    return Layer(
        name="head",
        kind="head",
        block=2 * shape.num_layers - 1,
        ops=(Gemm(rows=tokens, n=width, k=width), Gemm(rows=tokens, n=1, k=width)),
        parameters=sum(tensors),
        tensors=tensors,
        input_elements=float(tokens * width),
        output_elements=float(tokens),
        stored_elements=2.0 * tokens * width,
    )


generate = Generator(ElectraShape, build, describe)
"""ELECTRA from :class:`ElectraShape` fields and workload fields."""
