"""Transformers: BERT (encoder, masked-language-model head), GPT-2/3 and Llama (decoder) from a few sizes.

A block is two layers, attention and feed-forward, each with its norm in front (or behind, which costs the
same) and its residual addition; a pipeline cut falls only between blocks. The embedding belongs to the first
block and the head to the last, as Megatron-LM places them.

Stored activations follow Korthikanti et al. 2022 (arXiv:2205.05198), section 4.1: 34 sbh + 5 as^2 b bytes per
block in 16-bit, of which tensor parallelism divides 24 sbh + 5 as^2 b. With grouped queries, gated units or
without dropout the same list of tensors is counted with its real sizes. Dropout masks are one byte, half an
element. Element-wise kernels are fused as in Megatron-LM (bias + GELU, bias + dropout + addition, scale +
mask + softmax) or, with ``fused_kernels: false``, separate as in eager PyTorch: then norms also cast to fp32
and back (an RMS norm is a chain of kernels in fp32), heads are transposed by copies, rotary embedding is a
chain, too, and scaling and masking pass over the scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any, Literal

from pydantic import Field, model_validator

from sim.architecture.common import Generator
from sim.spec.base import Spec, refuse
from sim.spec.layer import Attention, Embedding, Gemm, Layer, MemoryBound, Op

MASK = 0.5
"""Elements of a dropout mask entry: one byte in units of two."""

CROSS_ENTROPY_FORWARD, CROSS_ENTROPY_BACKWARD = 7.0, 11.0
"""16-bit units moved per logit by cast to fp32 (1 + 2), log-softmax (2 + 2) and, backward, the zero-filled
loss gradient (2 + 2), log-softmax (2 + 2 + 2) and cast (reads shared, 1): PyTorch's separate kernels."""
FUSED_LOSS_FORWARD, FUSED_LOSS_BACKWARD = 2.0, 2.0
"""The same with one kernel each way, on 16-bit logits: maximum and sum in two readings; gradient in place."""
LOGIT_CAST = 3.0
"""Cast of a logit to fp32, or of its gradient back: read and write, in 16-bit units."""
CHAIN_NORM_FORWARD, CHAIN_NORM_BACKWARD = 18.0, 34.0
"""16-bit units an RMS norm of separate PyTorch kernels moves per element. Forward: cast to fp32 (1 + 2),
square (2 + 2), mean (2), scaling (2 + 2), cast back (2 + 1), weight (1 + 1); backward: weight (2), its
gradient (4), cast (3), scaling (4 + 8), square (4 + 6), cast back (3)."""
CAST_NORM_FORWARD, CAST_NORM_BACKWARD = 6.0, 8.0
"""The same with one kernel on a copy in fp32: cast (1 + 2), norm (2 + 1); norm (1 + 2 + 2), cast (2 + 1)."""
CHAIN_ROTARY, FUSED_ROTARY = 10.0, 2.0
"""Elements moved per rotated element: halves negated (1) and joined (2), two products (2 + 2), their sum (3);
one kernel in place."""


class TransformerShape(Spec):
    """Sizes of a transformer."""

    num_layers: int = Field(ge=1, le=10_000, description="transformer blocks")
    hidden: int = Field(ge=1, description="model width")
    num_heads: int = Field(ge=1, description="attention (query) heads")
    num_kv_heads: int | None = Field(None, ge=1, description="key/value heads; equal to num_heads if absent")
    head_dim: int | None = Field(None, ge=1, description="width of a head; hidden / num_heads if absent")
    ffn_hidden: int | None = Field(None, ge=1, description="feed-forward width; 4 * hidden if absent")
    vocabulary: int = Field(ge=2, description="rows of the token embedding")
    sequence_length: int = Field(ge=1, description="tokens per sample")
    max_positions: int | None = Field(None, ge=1, description="learned position embeddings; rotary if absent")
    token_types: int = Field(0, ge=0, description="segment embeddings (BERT: 2)")
    activation: Literal["gelu", "swiglu"] = Field("gelu", description="function inside a block")
    norm: Literal["layernorm", "rmsnorm"] = Field("layernorm", description="kind of normalisation")
    bias: bool = Field(True, description="whether projections add a bias")
    causal: bool = Field(True, description="whether tokens attend to earlier ones only")
    tied_embeddings: bool = Field(True, description="whether the output layer is the token embedding")
    dropout: bool = Field(True, description="whether blocks drop activations")
    flash: bool = Field(False, description="fused attention that never writes the score matrix")
    flash_version: Literal[1, 2, 3] = Field(
        2, description="FlashAttention, FlashAttention-2, FlashAttention-3 (cuDNN), or kernels as fast"
    )
    fused_kernels: bool = Field(
        True, description="element-wise kernels fused as in Megatron-LM; else separate, as in eager PyTorch"
    )
    fused_loss: bool = Field(False, description="cross-entropy in one kernel each way, on 16-bit logits")
    fp32_logits: bool = Field(False, description="a fused loss reads logits that were cast to fp32 before it")
    fp32_norm: bool = Field(
        False, description="fused norms read a copy of their input that was cast to fp32 before them"
    )
    embedding_norm: bool = Field(False, description="norm after the embedding (BERT)")
    head: Literal["lm", "mlm"] = Field(
        "lm", description="language model on every token, or masked tokens only"
    )
    masked_fraction: float = Field(0.15, gt=0, le=1, description="tokens predicted by an mlm head")
    pooler: bool = Field(False, description="dense layer and classifier on the first token (BERT)")

    @model_validator(mode="after")
    def _check(self) -> TransformerShape:
        kv_heads = self.num_kv_heads or self.num_heads
        if self.head_dim is None and self.hidden % self.num_heads:
            hint = "Or give head_dim."
            refuse(f"divide hidden ({self.hidden})", self.num_heads, hint=hint, field="num_heads")
        if self.num_heads % kv_heads:
            refuse(f"divide num_heads ({self.num_heads})", kv_heads, field="num_kv_heads")
        if self.max_positions is not None and self.sequence_length > self.max_positions:
            limit = f"be at most max_positions ({self.max_positions})"
            refuse(limit, self.sequence_length, field="sequence_length")
        return self

    @property
    def kv_heads(self) -> int:
        """Key/value heads."""
        return self.num_kv_heads or self.num_heads

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.head_dim or self.hidden // self.num_heads

    @property
    def ffn(self) -> int:
        """Feed-forward width."""
        return self.ffn_hidden or 4 * self.hidden

    @property
    def norm_tensors(self) -> tuple[float, ...]:
        """Parameter tensors of one norm: weight, and bias unless RMS."""
        return (float(self.hidden),) * (2 if self.norm == "layernorm" else 1)


@dataclass(frozen=True)
class Parts:
    """Layers of one transformer; identical blocks share their op objects, so their cost is computed once."""

    shape: TransformerShape

    @cached_property
    def activation(self) -> float:
        """Elements of the residual stream of one sample, s * h."""
        return float(self.shape.sequence_length * self.shape.hidden)

    @cached_property
    def norm_op(self) -> MemoryBound:
        """Norm: read, write; backward reads gradient and input, writes one; more if it is not one kernel."""
        shape = self.shape
        forward, backward, launches = 2.0, 3.0, 1
        if not shape.fused_kernels:
            forward, backward, launches = 4.0, 6.0, 3
            if shape.norm == "rmsnorm":
                forward, backward, launches = CHAIN_NORM_FORWARD, CHAIN_NORM_BACKWARD, 8
        elif shape.fp32_norm:
            forward, backward, launches = CAST_NORM_FORWARD, CAST_NORM_BACKWARD, 2
        return MemoryBound(
            elements=forward * self.activation,
            backward_elements=backward * self.activation,
            split="sequence",
            launches=launches,
        )

    @cached_property
    def residual_op(self) -> MemoryBound:
        """Bias + dropout + addition; backward the mask's product and the sum of two gradients at the fork."""
        mask = MASK if self.shape.dropout else 0.0
        backward = 3 + (2 + mask if self.shape.dropout else 0)
        separate = 2 if self.shape.dropout and not self.shape.fused_kernels else 0
        return MemoryBound(
            elements=(3 + mask + separate) * self.activation,
            backward_elements=backward * self.activation,
            split="sequence",
            launches=1 if self.shape.fused_kernels else 3,
        )

    @cached_property
    def attention_ops(self) -> tuple[Op, ...]:
        """Norm, projections, rotary embedding, core and residual addition of one block."""
        shape, tokens = self.shape, self.shape.sequence_length
        query, key = shape.num_heads * shape.head_width, shape.kv_heads * shape.head_width
        ops: list[Op] = [
            self.norm_op,
            Gemm(rows=tokens, n=query + 2 * key, k=shape.hidden, split="column"),
            Attention(
                query_length=tokens,
                key_length=tokens,
                heads=shape.num_heads,
                kv_heads=shape.kv_heads,
                head_dim=shape.head_width,
                causal=shape.causal,
                flash=shape.flash,
                flash_version=shape.flash_version,
                dropout=shape.dropout,
            ),
            Gemm(rows=tokens, n=shape.hidden, k=query, split="row"),
            self.residual_op,
        ]
        if not (shape.fused_kernels or shape.flash):
            copies = 4.0 * tokens * (query + key)
            ops.insert(2, MemoryBound(elements=copies, backward_elements=copies, split="tensor", launches=4))
            scores = float(shape.num_heads * tokens * tokens)
            ops.insert(
                3, MemoryBound(elements=4 * scores, backward_elements=2 * scores, split="tensor", launches=2)
            )
        if shape.max_positions is None:
            rotated = (FUSED_ROTARY if shape.fused_kernels else CHAIN_ROTARY) * tokens * (query + key)
            launches = 1 if shape.fused_kernels else 10
            rotation = MemoryBound(
                elements=rotated, backward_elements=rotated, split="tensor", launches=launches
            )
            ops.insert(2, rotation)
        return tuple(ops)

    def attention_layer(self, block: int) -> Layer:
        """Attention half of block ``block``."""
        shape, tokens, flag = self.shape, self.shape.sequence_length, int(self.shape.bias)
        query, key = shape.num_heads * shape.head_width, shape.kv_heads * shape.head_width
        projected = float(query + 2 * key)
        weights = shape.hidden * (projected + query)
        tensors = shape.norm_tensors + (shape.hidden * projected,) + (projected,) * flag
        tensors += (float(query * shape.hidden),) + (float(shape.hidden),) * flag
        # Norm input, projections' input, residual dropout mask: half of the paper's "10 sbh".
        whole = (2 + (MASK if shape.dropout else 0)) * self.activation
        per_score = 0.0 if shape.flash else (2 + MASK if shape.dropout else 1.0)
        core = per_score * shape.num_heads * tokens * tokens
        split = tokens * (projected + query) + core
        return Layer(
            name=f"block{block}.attention",
            kind="attention",
            block=block,
            ops=self.attention_ops,
            parameters=sum(tensors),
            tensor_parameters=weights + flag * projected,
            tensors=tensors,
            input_elements=self.activation,
            output_elements=self.activation,
            stored_elements=whole + split,
            stored_tensor_elements=split,
            stored_selective_elements=core,
            tensor_all_reduce=True,
        )

    def between(self, inner: float, *, separate: int = 0) -> MemoryBound:
        """The activation of ``inner`` elements between two projections; a gated one multiplies two halves.

        ``separate`` elements more per element move where its bias is a kernel of its own.
        """
        gated = self.shape.activation == "swiglu"
        return MemoryBound(
            elements=((3 if gated else 2) + separate) * inner,
            backward_elements=((5 if gated else 3) + separate) * inner,
            split="tensor",
            launches=2 if separate else 1,
        )

    @property
    def up_factor(self) -> int:
        """Columns of the first projection over the width: two where the unit is gated."""
        return 2 if self.shape.activation == "swiglu" else 1

    @cached_property
    def mlp_ops(self) -> tuple[Op, ...]:
        """Norm, two (or, gated, three) projections, activation and residual addition of one block."""
        shape, tokens = self.shape, self.shape.sequence_length
        return (
            self.norm_op,
            Gemm(rows=tokens, n=shape.ffn * self.up_factor, k=shape.hidden, split="column"),
            self.between(float(tokens * shape.ffn), separate=0 if shape.fused_kernels else 2),
            Gemm(rows=tokens, n=shape.hidden, k=shape.ffn, split="row"),
            self.residual_op,
        )

    def mlp_layer(self, block: int) -> Layer:
        """Feed-forward half of block ``block``."""
        shape, tokens, flag = self.shape, self.shape.sequence_length, int(self.shape.bias)
        up = float(shape.ffn * self.up_factor)
        tensors = shape.norm_tensors + (shape.hidden * up,) + (up,) * flag
        tensors += (float(shape.ffn * shape.hidden),) + (float(shape.hidden),) * flag
        whole = (2 + (MASK if shape.dropout else 0)) * self.activation
        split = tokens * (up + shape.ffn)
        return Layer(
            name=f"block{block}.mlp",
            kind="mlp",
            block=block,
            ops=self.mlp_ops,
            parameters=sum(tensors),
            tensor_parameters=shape.hidden * (up + shape.ffn) + flag * up,
            tensors=tensors,
            input_elements=self.activation,
            output_elements=self.activation,
            stored_elements=whole + split,
            stored_tensor_elements=split,
            tensor_all_reduce=True,
        )

    def embedding_layer(self) -> Layer:
        """Token, position and segment embeddings, part of the first block."""
        shape = self.shape
        table = float(shape.vocabulary * shape.hidden)
        tensors: tuple[float, ...] = (table,)
        if shape.max_positions is not None:
            tensors += (float(shape.max_positions * shape.hidden),)
        if shape.token_types:
            tensors += (float(shape.token_types * shape.hidden),)
        ops: list[Op] = [Embedding(rows=shape.sequence_length, width=shape.hidden)]
        additions = len(tensors) - 1
        if additions:
            ops.append(MemoryBound(elements=3 * additions * self.activation, split="sequence"))
        stored = 0.0
        if shape.embedding_norm:
            tensors += shape.norm_tensors
            ops.append(self.norm_op)
            stored += self.activation
        if shape.dropout:
            ops.append(MemoryBound(elements=(2 + MASK) * self.activation, split="sequence"))
            stored += MASK * self.activation
        return Layer(
            name="embedding",
            kind="embedding",
            block=0,
            ops=tuple(ops),
            parameters=sum(tensors),
            tensor_parameters=table,
            tensors=tensors,
            output_elements=self.activation,
            stored_elements=stored,
            # Vocabulary-parallel look-up: partial rows are summed forward; there is no gradient of the input.
            tensor_all_reduce=True,
        )

    def head_layer(self) -> Layer:
        """Final norm and output projection, part of the last block."""
        return self._mlm_head() if self.shape.head == "mlm" else self._lm_head()

    def cross_entropy(self, logits: float) -> MemoryBound:
        """Loss over ``logits`` elements."""
        fused, width = self.shape.fused_loss, 2 if self.shape.fp32_logits else 1
        casts = LOGIT_CAST if self.shape.fp32_logits else 0.0
        forward = width * FUSED_LOSS_FORWARD + casts if fused else CROSS_ENTROPY_FORWARD
        backward = width * FUSED_LOSS_BACKWARD + casts if fused else CROSS_ENTROPY_BACKWARD
        return MemoryBound(elements=forward * logits, backward_elements=backward * logits, split="tensor")

    def _lm_head(self) -> Layer:
        shape, tokens = self.shape, self.shape.sequence_length
        logits = float(tokens * shape.vocabulary)
        table = float(shape.vocabulary * shape.hidden)
        own = () if shape.tied_embeddings else (table,)
        return Layer(
            name="head",
            kind="head",
            block=shape.num_layers - 1,
            ops=(
                self.norm_op,
                Gemm(rows=tokens, n=shape.vocabulary, k=shape.hidden, split="vocabulary"),
                self.cross_entropy(logits),
            ),
            parameters=sum(shape.norm_tensors + own),
            tensor_parameters=sum(own),
            shared_parameters=table if shape.tied_embeddings else 0.0,
            tensors=shape.norm_tensors + own,
            input_elements=self.activation,
            output_elements=logits,
            stored_elements=2 * self.activation,
        )

    def _mlm_head(self) -> Layer:
        shape = self.shape
        masked = ceil(shape.masked_fraction * shape.sequence_length)
        width, vocabulary = shape.hidden, shape.vocabulary
        table = float(vocabulary * width)
        tensors = (float(width * width), float(width), *shape.norm_tensors)
        tensors += (float(vocabulary),) + (() if shape.tied_embeddings else (table,))
        ops: list[Op] = [
            Gemm(rows=masked, n=width, k=width),
            MemoryBound(elements=4.0 * masked * width, backward_elements=6.0 * masked * width),
            Gemm(rows=masked, n=vocabulary, k=width, split="vocabulary"),
            self.cross_entropy(float(masked * vocabulary)),
        ]
        if shape.pooler:
            tensors += (float(width * width), float(width), 2.0 * width, 2.0)
            ops += [Gemm(rows=1, n=width, k=width), Gemm(rows=1, n=2, k=width)]
        return Layer(
            name="head",
            kind="head",
            block=shape.num_layers - 1,
            ops=tuple(ops),
            parameters=sum(tensors),
            tensor_parameters=vocabulary + (0.0 if shape.tied_embeddings else table),
            shared_parameters=table if shape.tied_embeddings else 0.0,
            tensors=tensors,
            input_elements=self.activation,
            output_elements=float(masked * vocabulary),
            stored_elements=4.0 * masked * width,
        )


def build(shape: TransformerShape) -> tuple[Layer, ...]:
    """Layer chain of a dense transformer."""
    parts = Parts(shape)
    chain = [parts.embedding_layer()]
    for block in range(shape.num_layers):
        chain += [parts.attention_layer(block), parts.mlp_layer(block)]
    return (*chain, parts.head_layer())


def describe(shape: TransformerShape) -> Mapping[str, Any]:
    """Workload fields that follow from the shape."""
    return {
        "family": "transformer",
        "sequence_length": shape.sequence_length,
        "num_heads": shape.num_heads,
        "num_kv_heads": shape.kv_heads,
        "hidden": shape.hidden,
        "vocabulary": shape.vocabulary,
    }


generate = Generator(TransformerShape, build, describe)
"""Dense transformer from :class:`TransformerShape` fields and workload fields."""
