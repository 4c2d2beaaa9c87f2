"""Transformer-XL: a decoder that also attends to the hidden states of the segment before.

Keys and values come from memory and segment together; the relative positions are projected and give a
second product with the queries, whose result is shifted into place (Dai et al. 2019, arXiv:1901.02860,
section 3.3). The adaptive softmax computes the frequent words for every token and the rest for few.
"""

from __future__ import annotations

from pydantic import Field

from sim.architecture.common import Generator
from sim.architecture.transformer import (
    CROSS_ENTROPY_BACKWARD,
    CROSS_ENTROPY_FORWARD,
    Parts,
    TransformerShape,
    describe,
)
from sim.spec.layer import Attention, Gemm, Layer, MemoryBound, Op

RARE_FRACTION = 0.25
"""Share of the tokens whose word is not among the frequent ones: WikiText-103, 20,000 of 267,735."""


class TransformerXlShape(TransformerShape):
    """Sizes of a Transformer-XL; ``sequence_length`` is the target length."""

    memory_length: int = Field(ge=0, description="hidden states kept from the segment before")
    frequent_words: int = Field(20_000, ge=1, description="first cluster of the adaptive softmax")
    embedding_division: int = Field(1, ge=1, description="the table of each further cluster is that narrower")


class XlParts(Parts):
    """Layers of a Transformer-XL."""

    shape: TransformerXlShape

    def recurrent_layer(self, block: int) -> Layer:
        """Attention half of a block, over memory and segment."""
        shape = self.shape
        base = self.attention_layer(block)
        tokens, keys = shape.sequence_length, shape.sequence_length + shape.memory_length
        width = shape.num_heads * shape.head_width
        scores = float(shape.num_heads * tokens * keys)
        copies = 4.0 * width * (tokens + keys)
        ops: tuple[Op, ...] = (
            self.norm_op,
            Gemm(rows=keys, n=3 * width, k=shape.hidden, split="column"),
            MemoryBound(elements=copies, backward_elements=copies, split="tensor", launches=6),
            Gemm(rows=tokens * shape.num_heads, n=keys, k=shape.head_width),
            MemoryBound(elements=8 * scores, backward_elements=6 * scores, split="tensor", launches=8),
            Attention(
                query_length=tokens,
                key_length=keys,
                heads=shape.num_heads,
                kv_heads=shape.num_heads,
                head_dim=shape.head_width,
                dropout=shape.dropout,
            ),
            Gemm(rows=tokens, n=shape.hidden, k=width, split="row"),
            self.residual_op,
        )
        positions = float(shape.hidden * width)
        return base.replace(
            ops=ops, parameters=base.parameters + positions, tensors=(*base.tensors, positions),
            stored_elements=base.stored_elements + scores,
        )  # fmt: skip

    def adaptive_head(self) -> Layer:
        """Adaptive softmax with the embedding's tables."""
        shape, tokens = self.shape, self.shape.sequence_length
        base = self.head_layer()
        common, rare = shape.frequent_words, max(shape.vocabulary - shape.frequent_words, 1)
        few = max(tokens * RARE_FRACTION, 1.0)
        logits = tokens * common + few * rare / 3  # a rare word lies in one of three clusters
        narrow = max(shape.hidden // shape.embedding_division, 1)
        return base.replace(
            ops=(
                Gemm(rows=tokens, n=common, k=shape.hidden),
                Gemm(rows=few, n=rare / 3, k=narrow),
                MemoryBound(
                    elements=CROSS_ENTROPY_FORWARD * logits, backward_elements=CROSS_ENTROPY_BACKWARD * logits
                ),
            ),
            output_elements=logits,
        )

    def divided_embedding(self) -> Layer:
        """Embedding whose clusters of rare words are narrower."""
        shape, base = self.shape, self.embedding_layer()
        if shape.embedding_division == 1:
            return base
        width = shape.hidden
        sizes, last, common = [], 0, shape.frequent_words
        for cut in (common, 2 * common, 10 * common, shape.vocabulary):
            words = max(min(cut, shape.vocabulary) - last, 0)
            sizes += [float(words * width), float(width * shape.hidden)]
            last, width = min(cut, shape.vocabulary), max(width // shape.embedding_division, 1)
        return base.replace(parameters=sum(sizes), tensor_parameters=0.0, tensors=tuple(sizes))


def build(shape: TransformerXlShape) -> tuple[Layer, ...]:
    """Layer chain of a Transformer-XL."""
    parts = XlParts(shape)
    chain = [parts.divided_embedding()]
    for block in range(shape.num_layers):
        chain += [parts.recurrent_layer(block), parts.mlp_layer(block)]
    return (*chain, parts.adaptive_head())


generate = Generator(TransformerXlShape, build, describe)
"""Transformer-XL from :class:`TransformerXlShape` fields and workload fields."""
