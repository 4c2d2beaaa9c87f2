"""Layers and their operations, per sample, before any parallelism is applied."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from sim.spec.base import Seconds, Spec, refuse

TensorSplit = Literal["none", "column", "row", "heads", "vocabulary"]

# Fields of a layer that count a part of what another one counts.
_PARTS = (
    ("tensor_parameters", "parameters"),
    ("frozen_tensor_parameters", "frozen_parameters"),
    ("stored_tensor_elements", "stored_elements"),
    ("stored_selective_elements", "stored_tensor_elements"),
)
ROUNDING = 1e-6  # relative; counts taken from shards and measured bytes are sums of rounded numbers


class Gemm(Spec):
    """Matrix product of (rows x k) by (k x n), ``batch`` times; rows scale with the micro-batch."""

    op: Literal["gemm"] = Field("gemm", description="kind of operation")
    rows: float = Field(gt=0, description="rows per sample (tokens per sample, or 1 for a classifier)")
    n: float = Field(
        gt=0, description="output columns; divided by tp when `split` is column, heads or vocabulary"
    )
    k: float = Field(gt=0, description="inner dimension; divided by tp when `split` is row")
    batch: float = Field(1, gt=0, description="independent products per sample, each with its own weights")
    split: TensorSplit = Field("none", description="dimension that tensor parallelism divides")
    expert: bool = Field(False, description="weights belong to one expert; rows are spread over experts")
    frozen: bool = Field(False, description="weights are not trained: no gradient of them")
    launches: float = Field(
        1, ge=0, description="operators that the host issues for it; less than 1 inside a library's call"
    )
    dynamic_scaling: bool = Field(
        False, description="8-bit operands are scaled and cast again for each product that reads them"
    )


class Convolution(Spec):
    """Convolution in two dimensions; ``out_height * out_width`` output pixels per sample.

    One in three is written as one in two: depth is folded into the rows of outputs and of the kernel.
    """

    op: Literal["conv"] = Field("conv", description="kind of operation")
    in_channels: int = Field(ge=1, description="channels of the input")
    out_channels: int = Field(ge=1, description="channels of the output")
    kernel: tuple[int, int] = Field(description="rows and columns of the kernel")
    out_height: int = Field(ge=1, description="rows of the output")
    out_width: int = Field(ge=1, description="columns of the output")
    stride: int = Field(1, ge=1, description="rows and columns between two kernels")
    dimensions: int = Field(2, ge=2, le=3, description="3: depth is folded into rows, and strides cut it too")
    groups: int = Field(1, ge=1, description="groups of channels that do not mix")
    channels_last: bool = Field(
        True, description="layout of tensor cores (NHWC); else tensors are transposed around each product"
    )
    frozen: bool = Field(False, description="weights are not trained: no gradient of them")

    @property
    def thinning(self) -> int:
        """Pixels of the input for one of the output."""
        return int(self.stride**self.dimensions)


class Attention(Spec):
    """Scaled dot-product attention core: scores, softmax, weighted values; no projections."""

    op: Literal["attention"] = Field("attention", description="kind of operation")
    query_length: int = Field(ge=1, description="tokens that attend")
    key_length: int = Field(ge=1, description="tokens attended to")
    heads: int = Field(ge=1, description="query heads")
    kv_heads: int = Field(ge=1, description="key and value heads")
    head_dim: int = Field(ge=1, description="elements of a head")
    causal: bool = Field(False, description="whether tokens attend to earlier ones only")
    flash: bool = Field(False, description="fused kernel: the score matrix is never written to memory")
    flash_version: Literal[1, 2, 3] = Field(
        2, description="FlashAttention, FlashAttention-2, FlashAttention-3 (cuDNN), or kernels as fast"
    )
    dropout: bool = Field(
        False, description="dropout on the attention probabilities: one more pass over them"
    )


class MemoryBound(Spec):
    """Element-wise, normalisation, pooling, softmax...: time is bytes over memory bandwidth."""

    op: Literal["memory"] = Field("memory", description="kind of operation")
    elements: float = Field(ge=0, description="elements read plus written per sample in the forward pass")
    backward_elements: float | None = Field(
        None, ge=0, description="the same in the backward pass; 1.5 times `elements` if absent"
    )
    split: Literal["none", "tensor", "sequence"] = Field(
        "none", description="tensor: divided by tp; sequence: divided by tp only under sequence parallelism"
    )
    launches: float = Field(
        1,
        ge=0,
        description="kernels it is run as, which the host launches one by one; less than 1 inside a "
        "library's call",
    )


class Embedding(Spec):
    """Table look-up: ``rows`` rows of ``width`` elements read per sample."""

    op: Literal["embedding"] = Field("embedding", description="kind of operation")
    rows: float = Field(gt=0, description="rows that a sample looks up, in all tables together")
    width: float = Field(gt=0, description="elements of a row")
    tables: int = Field(
        1, ge=1, description="tables that share the rows equally; 1: each table is looked up so often"
    )


class Measured(Spec):
    """Times somebody measured for ``batch`` samples on one device; they stand for all that the layer does.

    Another micro-batch scales them in proportion, tensor parallelism divides them. They are used on whatever
    device the scenario has.
    """

    op: Literal["measured"] = Field("measured", description="kind of operation")
    forward_s: Seconds = Field(ge=0, description="forward pass of `batch` samples")
    backward_s: Seconds = Field(ge=0, description="whole backward pass of `batch` samples")
    batch: float = Field(1, gt=0, description="samples the times were measured for")


Op = Annotated[Gemm | Convolution | Attention | MemoryBound | Embedding | Measured, Field(discriminator="op")]


class LayerTime(Spec):
    """What a layer took for ``batch`` samples on one unsharded device, as a trace shows it.

    The layer's ops then only say how the times change with device, precision, batch and sharding: by the
    ratio of modelled times. A phase without ops changes in proportion to the batch.
    """

    forward_s: Seconds = Field(ge=0, description="device time of the forward pass")
    backward_s: Seconds = Field(ge=0, description="device time of the whole backward pass")
    forward_host_s: Seconds = Field(
        0, ge=0, description="time the host needs to issue the forward pass, whatever the device"
    )
    backward_host_s: Seconds = Field(0, ge=0, description="the same for the backward pass")
    batch: float = Field(1, gt=0, description="samples the times were measured for")


class Layer(Spec):
    """One step of the layer chain. All element counts are per sample and unsharded."""

    name: str = Field(description="name in traces and reports")
    kind: str = Field(description="conv, linear, norm, pool, embedding, attention, mlp, moe, head")
    block: int = Field(
        ge=0, description="pipeline stages are cut only between blocks; non-decreasing along the chain"
    )
    ops: tuple[Op, ...] = Field((), description="what it computes")
    measured: LayerTime | None = Field(None, description="measured times, which override those of the ops")
    parameters: float = Field(0, ge=0, description="trainable parameters shared by all experts; unsharded")
    tensor_parameters: float = Field(
        0, ge=0, description="part of `parameters` that tensor parallelism divides"
    )
    expert_parameters: float = Field(
        0, ge=0, description="parameters of all experts together; divided by ep (and tp)"
    )
    shared_parameters: float = Field(
        0,
        ge=0,
        description=(
            "parameters owned by an earlier layer that this one also uses (tied embedding), no more than "
            "those have; copied if a pipeline cut separates them"
        ),
    )
    frozen_parameters: float = Field(
        0, ge=0, description="parameters that are kept, and gathered where sharded, but not trained"
    )
    frozen_tensor_parameters: float = Field(
        0, ge=0, description="part of `frozen_parameters` that tensor parallelism divides"
    )
    frozen_expert_parameters: float = Field(
        0, ge=0, description="the same of all experts together; divided by ep (and tp)"
    )
    frozen_bits: float | None = Field(
        None, gt=0, description="bits of a frozen parameter; those of the compute type if absent"
    )
    tensors: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        (),
        description=(
            "sizes of the parameter tensors in forward order, experts' last; sums to parameters + "
            "expert_parameters; one tensor of each if absent"
        ),
    )
    input_elements: float = Field(0, ge=0, description="activation received from the layer before")
    output_elements: float = Field(0, ge=0, description="activation handed to the next layer")
    stored_elements: float = Field(
        0, ge=0, description="activation elements kept for backward, in units of the compute dtype"
    )
    stored_tensor_elements: float = Field(
        0, ge=0, description="part of stored_elements that tensor parallelism divides"
    )
    stored_selective_elements: float = Field(
        0,
        ge=0,
        description="part of stored_tensor_elements that selective recomputation drops (attention core)",
    )
    tensor_all_reduce: bool = Field(
        False,
        description=(
            "row-parallel output: one all-reduce of output_elements forward, one of input_elements "
            "backward (Megatron f and g)"
        ),
    )
    expert_elements: float = Field(
        0,
        ge=0,
        description=(
            "elements one expert all-to-all moves per sample (top_k * tokens * hidden); two forward, two "
            "backward"
        ),
    )
    num_experts: int = Field(0, ge=0, description="experts; 0 for a dense layer")

    @model_validator(mode="after")
    def _consistent(self) -> Layer:
        for part, whole in _PARTS:
            most = getattr(self, whole)
            if getattr(self, part) > most * (1 + ROUNDING):
                refuse(f"be at most {whole} ({most:.12g})", f"{getattr(self, part):.12g}", field=part)
        total = self.parameters + self.expert_parameters
        if self.tensors and not math.isclose(sum(self.tensors), total, rel_tol=ROUNDING):
            must = f"sum to parameters + expert_parameters ({total:.12g})"
            refuse(must, f"{sum(self.tensors):.12g}", field="tensors")
        return self

    @property
    def trains(self) -> bool:
        """Whether any parameter of it is trained."""
        return self.parameters + self.expert_parameters + self.shared_parameters > 0

    @property
    def tables(self) -> tuple[tuple[float, float, float], ...]:
        """(rows, elements of a row, rows that a sample looks up) of every table of the layer's look-ups.

        A parameter tensor is one if it has several rows of the looked-up width.
        """
        looked_up = [op for op in self.ops if isinstance(op, Embedding)]
        if len(looked_up) != 1 or self.shared_parameters:
            return ()
        (op,) = looked_up
        return tuple(
            (size / op.width, op.width, op.rows / op.tables)
            for size in self.tensors or (self.parameters,)
            if size > op.width and size % op.width == 0
        )

    @property
    def fully_connected(self) -> Gemm | None:
        """The layer's one matrix product, if its parameters are that matrix (and a bias) and nothing else.

        Its gradient is a sum of outer products, one per row: those vectors are its sufficient factors.
        """
        products = [op for op in self.ops if isinstance(op, Gemm)]
        if len(products) != 1 or len(products) + sum(isinstance(op, MemoryBound) for op in self.ops) < len(
            self.ops
        ):
            return None
        (op,) = products
        whole = not (op.expert or self.shared_parameters or self.expert_parameters) and op.batch == 1
        return op if whole and op.n * op.k <= self.parameters <= op.n * op.k + op.n else None
