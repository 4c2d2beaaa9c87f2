"""A workload: a chain of layers, its batch, precision and optimiser."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from sim.spec.base import Bytes, CatalogSpec, Seconds, refuse
from sim.spec.device import Device
from sim.spec.dtypes import DTYPE_BYTES as DTYPE_BYTES
from sim.spec.dtypes import DType as DType
from sim.spec.dtypes import kept_bytes as kept_bytes
from sim.spec.layer import ROUNDING, Layer

Optimizer = Literal["sgd", "momentum", "adam", "adamw", "lamb", "adagrad"]

OPTIMIZER_STATES: dict[str, int] = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2, "lamb": 2, "adagrad": 1}


class Workload(CatalogSpec):
    """What is trained. Exactly one of ``global_batch_size`` and ``batch_per_device`` is used.

    ``batch_per_device`` is the batch per data-parallel replica's *device group entry*, i.e. per replica
    (weak scaling); ``global_batch_size`` is fixed whatever the cluster (strong scaling).
    """

    layers: tuple[Layer, ...] = Field(min_length=1, description="the chain of layers")
    family: str = Field(description="cnn, transformer, moe")
    dtype: DType = Field(
        "fp32", description="compute precision; 16- and 8-bit imply mixed precision with fp32 master weights"
    )
    fp32_gradients: bool = Field(
        False, description="16-bit training keeps, sums and exchanges gradients in fp32"
    )
    fp32_parameters: bool = Field(
        False,
        description=(
            "16-bit training keeps parameters in fp32 and casts what it gathers: the master copy is not "
            "another (PyTorch FSDP; where parameters are not sharded the casts stay, and nothing is saved)"
        ),
    )
    fused_accumulation: bool = Field(
        False,
        description=(
            "products that compute weight gradients add them to those of earlier micro-batches as they go"
        ),
    )
    dynamic_scaling: bool = Field(
        False,
        description=(
            "8-bit training looks for the largest magnitude of an operand and casts it for each product that "
            "reads it; else operands are cast once, scaled as in earlier steps, and weights once a step"
        ),
    )
    optimizer: Optimizer = Field("momentum", description="update rule, and the states it keeps")
    global_batch_size: int | None = Field(
        None, ge=1, le=10**12, description="samples of a step, whatever the cluster"
    )
    batch_per_device: int | None = Field(
        None, ge=1, le=10**12, description="samples per model replica and step"
    )
    sequence_length: int | None = Field(None, ge=1, description="tokens per sample; absent for images")
    sample_bytes: Bytes = Field(0, ge=0, description="bytes of one stored training sample")
    optimizer_time: Seconds | None = Field(
        None,
        ge=0,
        description=(
            "measured time of a whole update on one device; a rank that updates part of the parameters "
            "takes that part of it"
        ),
    )
    measured_on: Device | str | None = Field(
        None,
        description=(
            "device (catalogue name) on which the layers' `measured` times and `optimizer_time` were taken; "
            "on another they are scaled by the ratio of modelled times. If absent they hold on every device"
        ),
    )
    measured_dtype: DType | None = Field(
        None, description="precision in which the layers were measured; `dtype` if absent"
    )
    step_overhead: Seconds | None = Field(
        None,
        ge=0,
        description=(
            "measured time of a step outside forward, backward and update; the calibration's if absent"
        ),
    )
    num_samples: int | None = Field(None, ge=1, description="samples of the data set: what an epoch is")
    decode_time_per_sample: Seconds = Field(
        0, ge=0, description="core-seconds to decode and augment one sample, spread over a host's cores"
    )
    device_decode_time_per_sample: Seconds = Field(
        0, ge=0, description="time of a device to decode one sample, for `decode: device`"
    )
    input_time_per_sample: Seconds = Field(
        0, ge=0, description="host time to prepare one sample, hidden unless it exceeds the step"
    )
    num_heads: int | None = Field(None, ge=1, description="attention heads, for the tp rules")
    num_kv_heads: int | None = Field(None, ge=1, description="key and value heads, for the tp rules")
    hidden: int | None = Field(None, ge=1, description="elements of a token")
    vocabulary: int | None = Field(None, ge=1, description="rows of the token embedding")
    num_experts: int | None = Field(
        None, ge=1, description="experts of a layer, for the ep rules; those of the layers if absent"
    )

    @model_validator(mode="after")
    def _chain(self) -> Workload:
        block, owned = 0, 0.0
        for index, layer in enumerate(self.layers):
            if layer.block < block:
                must = f"be at least that of the layer before ({block})"
                refuse(must, layer.block, field=f"layers.{index}.block")
            block, owned = layer.block, owned + layer.parameters
            if layer.shared_parameters > owned * (1 + ROUNDING):
                must = f"be at most the parameters up to this layer ({owned:.12g})"
                refuse(must, f"{layer.shared_parameters:.12g}", field=f"layers.{index}.shared_parameters")
        return self

    @property
    def experts(self) -> int:
        """Experts that ep must divide: those of all layers that have any; 0 if none is stated."""
        return math.gcd(self.num_experts or 0, *(layer.num_experts for layer in self.layers))

    @property
    def gradient_bytes(self) -> float:
        """Bytes of a gradient element between backward and update."""
        return 4.0 if self.fp32_gradients else kept_bytes(self.dtype)

    @property
    def num_parameters(self) -> float:
        """Trainable parameters, all experts included."""
        return sum(layer.parameters + layer.expert_parameters for layer in self.layers)

    @property
    def frozen_parameters(self) -> float:
        """Parameters that are not trained, all experts included."""
        return sum(layer.frozen_parameters + layer.frozen_expert_parameters for layer in self.layers)

    @property
    def sparse_tables(self) -> frozenset[int]:
        """Layers with embedding tables whose gradients are sparse: no output layer shares any."""
        if any(layer.shared_parameters for layer in self.layers):
            return frozenset()
        return frozenset(index for index, layer in enumerate(self.layers) if layer.tables)

    @property
    def num_blocks(self) -> int:
        """Number of pipeline-cuttable blocks."""
        return len({layer.block for layer in self.layers})
