"""A device: one GPU, TPU chip or CPU socket as a framework sees it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from sim.spec.base import Bytes, BytesPerSecond, CatalogSpec, DollarsPerHour, FlopsPerSecond, Watts, refuse
from sim.spec.dtypes import DTYPE_BYTES


class Device(CatalogSpec):
    """Datasheet values of one device. Peaks are dense (no structured sparsity)."""

    kind: Literal["gpu", "tpu", "cpu"] = Field(description="what it is")
    peak_flops: dict[str, FlopsPerSecond] = Field(
        min_length=1,
        description=(
            "dense peak per compute type: fp32 tf32 fp16 bf16 fp8 fp4 int8; matrix units where present"
        ),
    )
    memory_bytes: Bytes = Field(gt=0, description="memory as the datasheet states it")
    usable_bytes: Bytes | None = Field(
        None,
        gt=0,
        description="memory a framework can allocate from, as the driver reports it; memory_bytes if absent. "
        "A datasheet's GB of HBM are GiB on many devices",
    )
    memory_bandwidth: BytesPerSecond = Field(gt=0, description="bytes per second of its memory, datasheet")
    idle_power: Watts = Field(ge=0, description="power without work")
    peak_power: Watts = Field(gt=0, description="board or chip power limit")
    price_per_hour: DollarsPerHour = Field(
        ge=0, description="on-demand cloud price of one device, its host share included"
    )
    num_multiprocessors: int = Field(ge=1, description="streaming multiprocessors, TPU cores or CPU cores")

    @field_validator("peak_flops")
    @classmethod
    def _known_types(cls, value: dict[str, float]) -> dict[str, float]:
        for dtype, peak in value.items():
            if dtype not in DTYPE_BYTES:
                refuse(f"have keys among {', '.join(DTYPE_BYTES)}", repr(dtype))
            if peak <= 0:
                refuse("be greater than 0", f"{peak:g}", field=dtype)
        return value

    @property
    def capacity(self) -> float:
        """Bytes that a framework can allocate from."""
        return self.usable_bytes or self.memory_bytes

    def peak(self, dtype: str) -> float:
        """Peak FLOP/s for ``dtype``.

        A type without units of its own runs as the narrowest wider type that the device has: tf32 as
        fp32, bf16 as fp32 (Pascal, Volta and Turing convert), fp16 as fp32, fp4 as fp8, fp8 and int8 as fp16.
        """
        for candidate in _FALLBACK[dtype]:
            if candidate in self.peak_flops:
                return self.peak_flops[candidate]
        return next(iter(self.peak_flops.values()))


_FALLBACK: dict[str, tuple[str, ...]] = {
    "fp32": ("fp32", "tf32", "bf16"),
    "tf32": ("tf32", "fp32"),
    "fp16": ("fp16", "bf16", "fp32"),
    "bf16": ("bf16", "fp32"),
    "fp8": ("fp8", "fp16", "bf16", "fp32"),
    "fp4": ("fp4", "fp8", "fp16", "bf16", "fp32"),
    "int8": ("int8", "fp16", "bf16", "fp32"),
}
