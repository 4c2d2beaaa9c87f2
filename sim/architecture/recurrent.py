"""GNMT v2: recurrent translation with attention (Wu et al. 2016, arXiv:1609.08144).

Sizes are those of NVIDIA's DeepLearningExamples. An LSTM multiplies its inputs of all steps at once (one
product) and its state step by step (a product of a few rows each, whose weights are read again every time),
as cuDNN does (Appleyard et al. 2016, arXiv:1604.01946).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from sim.architecture.common import Generator
from sim.architecture.transformer import CROSS_ENTROPY_BACKWARD, CROSS_ENTROPY_FORWARD
from sim.spec.base import Spec
from sim.spec.layer import Attention, Embedding, Gemm, Layer, MemoryBound, Op

LIBRARY_LAUNCHES = 0.1
"""A launch from inside a library takes the host some 5 us, an operator of a framework tens."""
STEPWISE_LAUNCHES = 8
"""Kernels of a loop's step beside its product: TensorArray read and write, joining input and state, bias,
gates, dropout (2), residual addition."""


class GnmtShape(Spec):
    """Sizes of GNMT."""

    hidden: int = Field(1024, ge=1, description="elements of a state")
    encoder_layers: int = Field(4, ge=2, le=10_000, description="the first is bidirectional")
    decoder_layers: int = Field(4, ge=1, le=10_000, description="layers of the decoder")
    vocabulary: int = Field(32_320, ge=2, description="shared by both languages")
    sequence_length: int = Field(
        29, ge=1, description="source tokens of a sample; WMT16 English-German's mean"
    )
    target_length: int = Field(31, ge=1, description="target tokens of a sample")
    fused_cells: bool = Field(True, description="one element-wise kernel a step instead of one per gate")
    stepwise: bool = Field(
        False, description="every step is an iteration of a loop: products of inputs and attention, too"
    )


def build(shape: GnmtShape) -> tuple[Layer, ...]:
    """Embeddings, encoder, decoder with attention, classifier."""
    hidden, source, target = shape.hidden, shape.sequence_length, shape.target_length
    how = {"fused": shape.fused_cells, "stepwise": shape.stepwise}
    chain = [_embedding("embedding", 0, shape, source)]
    for index in range(shape.encoder_layers):
        # The second layer reads both directions of the first.
        width = 2 * hidden if index == 1 else hidden
        both = 2 if index == 0 else 1
        chain.append(lstm(f"encoder{index}", index, source, width, hidden, directions=both, **how))
    block = shape.encoder_layers
    chain.append(_embedding("target_embedding", block, shape, target))
    for index in range(shape.decoder_layers):
        width = hidden if index == 0 else 2 * hidden
        chain.append(lstm(f"decoder{index}", block + index, target, width, hidden, **how))
        if index == 0:
            chain.append(_attention(shape, block))
    chain.append(_classifier(shape, block + shape.decoder_layers - 1))
    return tuple(chain)


def _embedding(name: str, block: int, shape: GnmtShape, tokens: int) -> Layer:
    table = float(shape.vocabulary * shape.hidden) if name == "embedding" else 0.0  # one table for both
    elements = float(tokens * shape.hidden)
    return Layer(
        name=name,
        kind="embedding",
        block=block,
        ops=(Embedding(rows=tokens, width=shape.hidden), MemoryBound(elements=2.5 * elements)),
        parameters=table,
        tensors=(table,) if table else (),
        input_elements=0.0 if table else elements,
        output_elements=elements,
        stored_elements=0.5 * elements,
    )


def lstm(
    name: str, block: int, tokens: int, width: int, hidden: int, *, directions: int = 1, fused: bool = True,
    stepwise: bool = False,
) -> Layer:  # fmt: skip
    """A layer of ``hidden`` cells that reads ``tokens`` vectors of ``width``; see :class:`GnmtShape`."""
    gates = 4 * hidden
    joined = width + hidden if stepwise else hidden
    before = [] if stepwise else [Gemm(rows=tokens, n=gates, k=width)]
    step = Gemm(rows=1, n=gates, k=joined, launches=1.0 if stepwise else LIBRARY_LAUNCHES)
    # Gates read, state read and written, hidden state written; backward the same and the gates' gradients.
    passes = (1 if fused else 4) * (gates + 3 * hidden)
    cell = MemoryBound(
        elements=float(passes),
        backward_elements=float(passes + gates),
        launches=STEPWISE_LAUNCHES if stepwise else LIBRARY_LAUNCHES,
    )
    ops: list[Op] = []
    for _ in range(directions):
        ops += [*before, *((step, cell) * tokens)]
    out = float(tokens * hidden)
    ops.append(MemoryBound(elements=(2.5 + 3) * out))  # dropout and the residual addition of layers above
    tensors = (float(gates * width), float(gates * hidden), float(gates), float(gates)) * directions
    return Layer(
        name=name,
        kind="lstm",
        block=block,
        ops=tuple(ops),
        parameters=sum(tensors),
        tensors=tensors,
        input_elements=float(tokens * width),
        output_elements=out * directions,
        stored_elements=directions * tokens * (gates + 2.0 * hidden) + 1.5 * out,
    )


def _attention(shape: GnmtShape, block: int) -> Layer:
    """Normalised additive attention of all decoder steps to the encoder's output (Bahdanau et al. 2015)."""
    hidden, source, target = shape.hidden, shape.sequence_length, shape.target_length
    scores = float(source * target * hidden)
    matrix = float(hidden * hidden)
    return Layer(
        name="attention",
        kind="attention",
        block=block,
        ops=_attention_ops(shape),
        parameters=2 * matrix + 2 * hidden + 1,
        tensors=(matrix, matrix, float(hidden), float(hidden), 1.0),
        input_elements=float(target * hidden),
        output_elements=float(target * hidden),
        stored_elements=2 * scores + float((source + 2 * target) * hidden),
    )


def _attention_ops(shape: GnmtShape) -> tuple[Op, ...]:
    """Projections, sum with tanh and product with a vector, weighted sum; at once or step by step."""
    hidden, source, target = shape.hidden, shape.sequence_length, shape.target_length
    steps = target if shape.stepwise else 1
    rows = target // steps
    scores = float(source * rows * hidden)
    step: tuple[Op, ...] = (
        Gemm(rows=rows, n=hidden, k=hidden),
        MemoryBound(
            elements=4 * scores,
            backward_elements=6 * scores,
            launches=STEPWISE_LAUNCHES if shape.stepwise else 1,
        ),
        Attention(query_length=rows, key_length=source, heads=1, kv_heads=1, head_dim=hidden),
    )
    return (Gemm(rows=source, n=hidden, k=hidden), *(step * steps))


def _classifier(shape: GnmtShape, block: int) -> Layer:
    tokens, hidden, vocabulary = shape.target_length, shape.hidden, shape.vocabulary
    logits = float(tokens * vocabulary)
    return Layer(
        name="head",
        kind="head",
        block=block,
        ops=(
            Gemm(rows=tokens, n=vocabulary, k=hidden),
            MemoryBound(
                elements=CROSS_ENTROPY_FORWARD * logits, backward_elements=CROSS_ENTROPY_BACKWARD * logits
            ),
        ),
        parameters=float(vocabulary * hidden + vocabulary),
        tensors=(float(vocabulary * hidden), float(vocabulary)),
        input_elements=float(tokens * hidden),
        output_elements=logits,
        stored_elements=float(tokens * hidden) + logits,
    )


def _describe(shape: GnmtShape) -> Mapping[str, Any]:
    return {
        "family": "recurrent",
        "sequence_length": shape.sequence_length,
        "hidden": shape.hidden,
        "vocabulary": shape.vocabulary,
    }


generate = Generator(GnmtShape, build, _describe)
"""GNMT from :class:`GnmtShape` fields and workload fields."""
