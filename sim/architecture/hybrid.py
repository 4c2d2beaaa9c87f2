"""Hybrids of Mamba-2 layers, attention and feed-forward networks (Jamba, Nemotron-H, Zamba ...).

A Mamba-2 layer (Dao and Gu 2024, arXiv:2405.21060) projects its input to gate, values, the state's input and
output maps (B, C) and step sizes, convolves along the sequence, runs the selective state space and projects
back. The scan works in chunks: within a chunk it is a masked product like attention's, across chunks it
passes states on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import Field, model_validator

from sim.architecture.common import Generator
from sim.architecture.moe import MoeParts, MoeShape
from sim.architecture.transformer import Parts, TransformerShape, describe
from sim.spec.base import refuse
from sim.spec.layer import Gemm, Layer, MemoryBound, Op


class HybridShape(TransformerShape):
    """Sizes of a hybrid. Letters of ``pattern``: M Mamba, * attention, - feed-forward, E experts."""

    pattern: str = Field(
        min_length=1, pattern="^[-M*E]+$", description="layers in order, repeated to num_layers"
    )
    state: int = Field(128, ge=1, description="state size of a head's channel (N)")
    mamba_head_dim: int = Field(64, ge=1, description="channels of a Mamba head (P)")
    expand: float = Field(2.0, gt=0, description="inner width over hidden")
    groups: int = Field(8, ge=1, description="groups that share B and C")
    convolution: int = Field(4, ge=1, description="kernel along the sequence")
    chunk: int = Field(256, ge=1, description="tokens of a chunk of the scan")
    num_experts: int = Field(0, ge=0, description="experts of an E layer")
    top_k: int = Field(2, ge=1, description="experts that a token is sent to")
    expert_ffn_hidden: int | None = Field(None, ge=1, description="width of an expert; ffn_hidden if absent")

    @model_validator(mode="after")
    def _check_pattern(self) -> HybridShape:
        if "E" in self.pattern and self.num_experts < 2:
            refuse("be at least 2 where the pattern has E", self.num_experts, field="num_experts")
        if self.inner % self.mamba_head_dim:
            refuse(f"divide the inner width ({self.inner})", self.mamba_head_dim, field="mamba_head_dim")
        return self

    @property
    def inner(self) -> int:
        """Width inside a Mamba layer."""
        return round(self.expand * self.hidden)

    @property
    def kinds(self) -> str:
        """The letter of every layer."""
        return (self.pattern * self.num_layers)[: self.num_layers]


@dataclass(frozen=True)
class HybridParts(Parts):
    """Layers of a hybrid; every letter is a block of its own."""

    shape: HybridShape

    @cached_property
    def experts(self) -> MoeParts:
        """The same sizes as a mixture of experts."""
        shared = {n: getattr(self.shape, n) for n in TransformerShape.model_fields}
        width = self.shape.expert_ffn_hidden or self.shape.ffn
        sizes = {"ffn_hidden": width, "num_experts": self.shape.num_experts, "top_k": self.shape.top_k}
        return MoeParts(MoeShape(**{**shared, **sizes}))

    @cached_property
    def mamba_ops(self) -> tuple[Op, ...]:
        """Norm, input projection, convolution, chunked scan, gated norm, output projection, residual."""
        shape, tokens = self.shape, self.shape.sequence_length
        inner, heads = shape.inner, shape.inner // shape.mamba_head_dim
        mixed = inner + 2 * shape.groups * shape.state
        chunk = min(shape.chunk, tokens)
        moved = float(tokens * mixed)
        return (
            self.norm_op,
            Gemm(rows=tokens, n=inner + mixed + heads, k=shape.hidden, split="column"),
            MemoryBound(elements=2 * moved, backward_elements=3 * moved, split="tensor"),
            # Within a chunk: C B^T per group, then the masked product with the values per head.
            Gemm(rows=tokens, n=chunk, k=shape.state, batch=shape.groups, split="none"),
            Gemm(rows=tokens, n=shape.mamba_head_dim, k=chunk, batch=heads, split="none"),
            # Across chunks: the states that a chunk adds, and what earlier states give.
            Gemm(rows=tokens, n=shape.state, k=shape.mamba_head_dim, batch=heads, split="none"),
            Gemm(rows=tokens, n=shape.mamba_head_dim, k=shape.state, batch=heads, split="none"),
            MemoryBound(
                elements=4.0 * tokens * inner, backward_elements=8.0 * tokens * inner, split="tensor"
            ),
            MemoryBound(
                elements=3.0 * tokens * inner, backward_elements=5.0 * tokens * inner, split="tensor"
            ),
            Gemm(rows=tokens, n=shape.hidden, k=inner, split="row"),
            self.residual_op,
        )

    def mamba_layer(self, block: int) -> Layer:
        """A Mamba-2 layer."""
        shape, tokens = self.shape, self.shape.sequence_length
        inner, heads = shape.inner, shape.inner // shape.mamba_head_dim
        mixed = inner + 2 * shape.groups * shape.state
        entry, out = float(shape.hidden * (inner + mixed + heads)), float(inner * shape.hidden)
        small = (float(mixed * shape.convolution), float(mixed), *((float(heads),) * 3), float(inner))
        tensors = (*shape.norm_tensors, entry, *small, out)
        states = tokens / min(shape.chunk, tokens) * heads * shape.mamba_head_dim * shape.state
        kept = tokens * float(2 * inner + 2 * mixed + heads) + states
        return Layer(
            name=f"block{block}.mamba",
            kind="mamba",
            block=block,
            ops=self.mamba_ops,
            parameters=sum(tensors),
            tensor_parameters=entry + out + sum(small),
            tensors=tensors,
            input_elements=self.activation,
            output_elements=self.activation,
            stored_elements=2 * self.activation + kept,
            stored_tensor_elements=kept,
            tensor_all_reduce=True,
        )


def build(shape: HybridShape) -> tuple[Layer, ...]:
    """Layer chain of a hybrid."""
    parts = HybridParts(shape)
    chain = [parts.embedding_layer()]
    for block, kind in enumerate(shape.kinds):
        if kind == "M":
            chain.append(parts.mamba_layer(block))
        elif kind == "*":
            chain.append(parts.attention_layer(block))
        elif kind == "-":
            chain.append(parts.mlp_layer(block))
        else:
            chain.append(parts.experts.expert_layer(block))
    return (*chain, parts.head_layer())


def _describe(shape: HybridShape) -> Mapping[str, Any]:
    fields = {**describe(shape), "family": "hybrid"}
    return {**fields, "num_experts": shape.num_experts} if "E" in shape.kinds else fields


generate = Generator(HybridShape, build, _describe)
"""Hybrid from :class:`HybridShape` fields and workload fields."""
