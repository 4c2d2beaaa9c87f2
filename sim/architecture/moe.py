"""Mixture of experts: a transformer whose feed-forward layers are ``num_experts`` gated or plain networks.

A router (one small product per token) sends every token to ``top_k`` experts; rows are assumed to spread
evenly over the experts. Every block is such a block (Mixtral; Jiang et al. 2024, arXiv:2401.04088).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pydantic import Field, model_validator

from sim.architecture.common import Generator
from sim.architecture.transformer import MASK, Parts, TransformerShape, describe
from sim.spec.base import refuse
from sim.spec.layer import Gemm, Layer, MemoryBound, Op


class MoeShape(TransformerShape):
    """Sizes of a mixture-of-experts transformer; ``ffn_hidden`` is one expert's width."""

    num_experts: int = Field(ge=2, description="experts of a layer")
    top_k: int = Field(2, ge=1, description="experts a token visits")
    shared_experts: int = Field(0, ge=0, description="experts that every token visits, on every rank")
    shared_ffn_hidden: int | None = Field(
        None, ge=1, description="width of one shared expert; that of a routed one if absent"
    )
    router_bias: bool = Field(False, description="a bias per expert that balances the load (DeepSeek-V3)")

    @model_validator(mode="after")
    def _check_experts(self) -> MoeShape:
        if self.top_k > self.num_experts:
            refuse(f"be at most num_experts ({self.num_experts})", self.top_k, field="top_k")
        return self

    @property
    def shared_width(self) -> int:
        """Width of all shared experts together, which are one product."""
        return self.shared_experts * (self.shared_ffn_hidden or self.ffn)


class MoeParts(Parts):
    """Layers of a mixture-of-experts transformer."""

    shape: MoeShape

    @cached_property
    def expert_ops(self) -> tuple[Op, ...]:
        """Norm, router, permutation, expert products, activation, combination."""
        shape, tokens = self.shape, self.shape.sequence_length
        routed = tokens * shape.top_k
        moved = float(routed * shape.hidden)
        return (
            self.norm_op,
            Gemm(rows=tokens, n=shape.num_experts, k=shape.hidden),
            MemoryBound(elements=2 * moved, backward_elements=2 * moved),
            Gemm(rows=routed, n=shape.ffn * self.up_factor, k=shape.hidden, split="column", expert=True),
            self.between(float(routed * shape.ffn)),
            Gemm(rows=routed, n=shape.hidden, k=shape.ffn, split="row", expert=True),
            MemoryBound(elements=moved + self.activation, backward_elements=2 * moved + self.activation),
            *self._shared_ops(),
            self.residual_op,
        )

    def _shared_ops(self) -> tuple[Op, ...]:
        """The shared experts' products, their activation, and the addition of what they give."""
        shape, tokens = self.shape, self.shape.sequence_length
        if not shape.shared_experts:
            return ()
        return (
            Gemm(rows=tokens, n=shape.shared_width * self.up_factor, k=shape.hidden, split="column"),
            self.between(float(tokens * shape.shared_width)),
            Gemm(rows=tokens, n=shape.hidden, k=shape.shared_width, split="row"),
            MemoryBound(elements=3 * self.activation, backward_elements=self.activation),
        )

    def expert_layer(self, block: int) -> Layer:
        """Feed-forward half of block ``block``."""
        shape, tokens = self.shape, self.shape.sequence_length
        up, shared_up = float(shape.ffn * self.up_factor), float(shape.shared_width * self.up_factor)
        router = (float(shape.hidden * shape.num_experts), *((float(shape.num_experts),) * shape.router_bias))
        shared = (shape.hidden * shared_up, float(shape.shared_width * shape.hidden)) if shared_up else ()
        expert = (shape.hidden * up, float(shape.ffn * shape.hidden))
        tensors = (*shape.norm_tensors, *router, *shared, *(expert * shape.num_experts))
        whole = (2 + (MASK if shape.dropout else 0) + 2 * shape.top_k) * self.activation
        split = tokens * (shape.top_k * (up + shape.ffn) + shared_up + shape.shared_width)
        return Layer(
            name=f"block{block}.moe",
            kind="moe",
            block=block,
            ops=self.expert_ops,
            parameters=sum((*shape.norm_tensors, *router, *shared)),
            tensor_parameters=sum(shared),
            expert_parameters=sum(expert) * shape.num_experts,
            tensors=tensors,
            input_elements=self.activation,
            output_elements=self.activation,
            stored_elements=whole + split,
            stored_tensor_elements=split,
            tensor_all_reduce=True,
            expert_elements=tokens * shape.top_k * float(shape.hidden),
            num_experts=shape.num_experts,
        )


def build(shape: MoeShape) -> tuple[Layer, ...]:
    """Layer chain of a mixture-of-experts transformer."""
    parts = MoeParts(shape)
    chain = [parts.embedding_layer()]
    for block in range(shape.num_layers):
        chain += [parts.attention_layer(block), parts.expert_layer(block)]
    return (*chain, parts.head_layer())


def _describe(shape: MoeShape) -> Mapping[str, Any]:
    return {**describe(shape), "family": "moe", "num_experts": shape.num_experts}


generate = Generator(MoeShape, build, _describe)
"""Mixture-of-experts transformer from :class:`MoeShape` fields and workload fields."""
