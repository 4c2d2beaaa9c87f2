"""Encoder-decoder transformers: T5, BART and the translation Transformer.

Every decoder block has self-attention, attention to the encoder's output and a feed-forward network. The
encoder and the decoder share one table of embeddings, which is also the output projection (Raffel et al.
2020, arXiv:1910.10683; Lewis et al. 2020, arXiv:1910.13461; Vaswani et al. 2017, arXiv:1706.03762).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from sim.architecture.common import Generator
from sim.architecture.transformer import MASK, Parts, TransformerShape
from sim.spec.base import Spec
from sim.spec.layer import Attention, Embedding, Gemm, Layer, MemoryBound


class EncoderDecoderShape(Spec):
    """Sizes of an encoder-decoder transformer."""

    encoder_layers: int = Field(ge=1, le=10_000, description="blocks of the encoder")
    decoder_layers: int = Field(ge=1, le=10_000, description="blocks of the decoder")
    hidden: int = Field(ge=1, description="model width")
    num_heads: int = Field(ge=1, description="attention heads of every block")
    head_dim: int | None = Field(None, ge=1, description="width of a head; hidden / num_heads if absent")
    ffn_hidden: int | None = Field(None, ge=1, description="feed-forward width; 4 * hidden if absent")
    vocabulary: int = Field(ge=2, description="rows of the shared embedding")
    sequence_length: int = Field(ge=1, description="tokens of a sample that the encoder reads")
    target_length: int = Field(ge=1, description="tokens of a sample that the decoder writes")
    max_positions: int | None = Field(None, ge=1, description="learned position embeddings; none if absent")
    activation: Literal["gelu", "swiglu"] = Field("gelu", description="swiglu stands for any gated unit")
    norm: Literal["layernorm", "rmsnorm"] = Field("layernorm", description="kind of normalisation")
    bias: bool = Field(True, description="whether projections add a bias")
    dropout: bool = Field(True, description="whether blocks drop activations")
    flash: bool = Field(False, description="fused attention that never writes the score matrix")
    fused_kernels: bool = Field(True, description="element-wise kernels fused as in Megatron-LM")

    def side(self, *, decoder: bool) -> TransformerShape:
        """The encoder or the decoder as a plain transformer."""
        length = self.target_length if decoder else self.sequence_length
        shared = set(TransformerShape.model_fields) & set(type(self).model_fields)
        fields = {name: getattr(self, name) for name in shared}
        # Without learned positions a plain transformer rotates; T5's bias is added inside the softmax.
        positions = self.max_positions or max(self.sequence_length, self.target_length)
        fields |= {"sequence_length": length, "max_positions": positions, "causal": decoder}
        return TransformerShape(**fields, num_layers=self.decoder_layers if decoder else self.encoder_layers)


def build(shape: EncoderDecoderShape) -> tuple[Layer, ...]:
    """Layer chain: encoder blocks, then decoder blocks."""
    encoder, decoder = Parts(shape.side(decoder=False)), Parts(shape.side(decoder=True))
    first = encoder.embedding_layer()
    if shape.max_positions is None:  # the table of positions above only stands in for no rotation
        table = float(shape.vocabulary * shape.hidden)
        first = first.replace(parameters=table, tensors=(table,))
    chain = [first]
    for block in range(shape.encoder_layers):
        chain += [encoder.attention_layer(block), encoder.mlp_layer(block)]
    for index in range(shape.decoder_layers):
        block = shape.encoder_layers + index
        if index == 0:
            chain.append(_target_embedding(shape, block))
        chain += [decoder.attention_layer(block), _cross_attention(shape, decoder, block)]
        chain.append(decoder.mlp_layer(block))
    head = decoder.head_layer()
    return (*chain, head.replace(block=shape.encoder_layers + shape.decoder_layers - 1))


def _target_embedding(shape: EncoderDecoderShape, block: int) -> Layer:
    """Look-up of the decoder's input in the shared table."""
    elements = float(shape.target_length * shape.hidden)
    return Layer(
        name="target_embedding",
        kind="embedding",
        block=block,
        ops=(Embedding(rows=shape.target_length, width=shape.hidden),),
        input_elements=elements,
        output_elements=elements,
    )


def _cross_attention(shape: EncoderDecoderShape, decoder: Parts, block: int) -> Layer:
    """Attention of the decoder to the encoder's output: keys and values are projected from the latter."""
    target, source = shape.target_length, shape.sequence_length
    width = shape.num_heads * (shape.head_dim or shape.hidden // shape.num_heads)
    flag = float(shape.bias)
    tensors = decoder.shape.norm_tensors + (float(shape.hidden * width),) * 4
    tensors += (float(width),) * (3 * int(shape.bias)) + (float(shape.hidden),) * int(shape.bias)
    scores = 0.0 if shape.flash else (2 + MASK if shape.dropout else 1.0) * shape.num_heads * target * source
    split = float(width * (2 * target + 2 * source)) + scores
    mask = MASK if shape.dropout else 0.0
    ops: list[Any] = [
        decoder.norm_op,
        Gemm(rows=target, n=width, k=shape.hidden, split="column"),
        Gemm(rows=source, n=2 * width, k=shape.hidden, split="column"),
        Attention(
            query_length=target,
            key_length=source,
            heads=shape.num_heads,
            kv_heads=shape.num_heads,
            head_dim=width // shape.num_heads,
            flash=shape.flash,
            dropout=shape.dropout,
        ),
        Gemm(rows=target, n=shape.hidden, k=width, split="row"),
        decoder.residual_op,
    ]
    if not (shape.fused_kernels or shape.flash):
        copies = 4.0 * width * (target + source)
        ops.insert(3, MemoryBound(elements=copies, backward_elements=copies, split="tensor"))
    return Layer(
        name=f"block{block}.cross_attention",
        kind="cross_attention",
        block=block,
        ops=tuple(ops),
        parameters=sum(tensors),
        tensor_parameters=4.0 * shape.hidden * width + 3 * flag * width,
        tensors=tensors,
        input_elements=decoder.activation,
        output_elements=decoder.activation,
        stored_elements=(2 + mask) * decoder.activation + split,
        stored_tensor_elements=split,
        stored_selective_elements=scores,
        tensor_all_reduce=True,
    )


def _describe(shape: EncoderDecoderShape) -> Mapping[str, Any]:
    return {
        "family": "transformer",
        "sequence_length": shape.sequence_length,
        "num_heads": shape.num_heads,
        "num_kv_heads": shape.num_heads,
        "hidden": shape.hidden,
        "vocabulary": shape.vocabulary,
    }


generate = Generator(EncoderDecoderShape, build, _describe)
"""Encoder-decoder transformer from :class:`EncoderDecoderShape` fields and workload fields."""
