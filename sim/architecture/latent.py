"""DeepSeek's transformers: multi-head latent attention, shared experts, first blocks dense.

DeepSeek-AI 2024, arXiv:2405.04434 (V2) and arXiv:2412.19437 (V3), section 2.1. Queries and keys/values pass
through low-rank bottlenecks; a head's key has a part without position and a rotary part that all heads share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import Field, model_validator

from sim.architecture.common import Generator
from sim.architecture.moe import MoeParts, MoeShape
from sim.architecture.transformer import MASK, describe
from sim.spec.base import refuse
from sim.spec.layer import Attention, Gemm, Layer, MemoryBound, Op


class LatentShape(MoeShape):
    """Sizes of a transformer with latent attention; ``ffn_hidden`` is one routed expert's width."""

    q_lora_rank: int | None = Field(
        None, ge=1, description="bottleneck of queries; projected directly if absent"
    )
    kv_lora_rank: int = Field(512, ge=1, description="bottleneck of keys and values")
    qk_nope_head_dim: int = Field(128, ge=1, description="part of a query/key head without position")
    qk_rope_head_dim: int = Field(64, ge=1, description="rotary part of a query/key head")
    v_head_dim: int = Field(128, ge=1, description="width of a value head")
    dense_layers: int = Field(0, ge=0, description="first blocks with a dense feed-forward network")
    dense_ffn_hidden: int | None = Field(None, ge=1, description="its width")

    @model_validator(mode="after")
    def _check_dense(self) -> LatentShape:
        if self.dense_layers and self.dense_ffn_hidden is None:
            refuse("be given with dense_layers", field="dense_ffn_hidden")
        if self.dense_layers > self.num_layers:
            refuse(f"be at most num_layers ({self.num_layers})", self.dense_layers, field="dense_layers")
        return self

    @property
    def query_width(self) -> int:
        """All query heads together."""
        return self.num_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)


@dataclass(frozen=True)
class LatentParts(MoeParts):
    """Layers of a transformer with latent attention."""

    shape: LatentShape

    @cached_property
    def attention_ops(self) -> tuple[Op, ...]:
        """Norm, down- and up-projections with their norms, rotary embedding, core, output."""
        shape, tokens = self.shape, self.shape.sequence_length
        up = shape.num_heads * (shape.qk_nope_head_dim + shape.v_head_dim)
        latent = shape.kv_lora_rank + shape.qk_rope_head_dim
        ops: list[Op] = [self.norm_op]
        source = shape.hidden
        if shape.q_lora_rank is not None:
            ops += [Gemm(rows=tokens, n=shape.q_lora_rank, k=shape.hidden), self._norm_of(shape.q_lora_rank)]
            source = shape.q_lora_rank
        rotated = 2.0 * tokens * (shape.num_heads + 1) * shape.qk_rope_head_dim
        joined = 2.0 * tokens * 2 * shape.query_width  # rotary and other parts become one head, twice
        return (
            *ops,
            Gemm(rows=tokens, n=shape.query_width, k=source, split="column"),
            Gemm(rows=tokens, n=latent, k=shape.hidden),
            self._norm_of(shape.kv_lora_rank),
            Gemm(rows=tokens, n=up, k=shape.kv_lora_rank, split="column"),
            MemoryBound(elements=rotated + joined, backward_elements=rotated + joined, split="tensor"),
            # Scores over keys of 192, values of 128: a core of the mean width does as much work.
            Attention(
                query_length=tokens,
                key_length=tokens,
                heads=shape.num_heads,
                kv_heads=shape.num_heads,
                head_dim=(shape.qk_nope_head_dim + shape.qk_rope_head_dim + shape.v_head_dim) // 2,
                causal=shape.causal,
                flash=shape.flash,
                dropout=shape.dropout,
            ),
            Gemm(rows=tokens, n=shape.hidden, k=shape.num_heads * shape.v_head_dim, split="row"),
            self.residual_op,
        )

    def _norm_of(self, width: int) -> MemoryBound:
        elements = float(self.shape.sequence_length * width)
        return MemoryBound(elements=2 * elements, backward_elements=3 * elements)

    def attention_layer(self, block: int) -> Layer:
        """Attention half of block ``block``."""
        shape, tokens = self.shape, self.shape.sequence_length
        rank, values = shape.kv_lora_rank, shape.num_heads * shape.v_head_dim
        latent = rank + shape.qk_rope_head_dim
        up = shape.num_heads * (shape.qk_nope_head_dim + shape.v_head_dim)
        source = shape.q_lora_rank or shape.hidden
        whole = [*shape.norm_tensors, float(shape.hidden * latent), float(rank)]
        if shape.q_lora_rank is not None:
            whole += [float(shape.hidden * shape.q_lora_rank), float(shape.q_lora_rank)]
        split = (float(source * shape.query_width), float(rank * up), float(values * shape.hidden))
        tensors = (*whole, *split)
        core = 0.0 if shape.flash else (2 + MASK if shape.dropout else 1.0) * shape.num_heads * tokens**2
        kept = tokens * float(2 * shape.query_width + 2 * values) + core
        small = tokens * float(2 * latent + 2 * (shape.q_lora_rank or 0))
        return Layer(
            name=f"block{block}.attention",
            kind="attention",
            block=block,
            ops=self.attention_ops,
            parameters=sum(tensors),
            tensor_parameters=sum(split),
            tensors=tensors,
            input_elements=self.activation,
            output_elements=self.activation,
            stored_elements=(2 + (MASK if shape.dropout else 0)) * self.activation + small + kept,
            stored_tensor_elements=kept,
            stored_selective_elements=core,
            tensor_all_reduce=True,
        )

    def dense_layer(self, block: int) -> Layer:
        """Feed-forward half of one of the first blocks."""
        plain = self.shape.model_copy(update={"ffn_hidden": self.shape.dense_ffn_hidden})
        return LatentParts(plain).mlp_layer(block)


def build(shape: LatentShape) -> tuple[Layer, ...]:
    """Layer chain of a transformer with latent attention."""
    parts = LatentParts(shape)
    chain = [parts.embedding_layer()]
    for block in range(shape.num_layers):
        feed = parts.dense_layer if block < shape.dense_layers else parts.expert_layer
        chain += [parts.attention_layer(block), feed(block)]
    return (*chain, parts.head_layer())


def _describe(shape: LatentShape) -> Mapping[str, Any]:
    return {**describe(shape), "family": "moe", "num_experts": shape.num_experts}


generate = Generator(LatentShape, build, _describe)
"""Transformer with latent attention from :class:`LatentShape` fields and workload fields."""
