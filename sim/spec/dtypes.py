"""Compute types and their widths."""

from __future__ import annotations

from typing import Literal

DType = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8"]

DTYPE_BYTES: dict[str, float] = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "fp4": 0.5, "int8": 1}


def kept_bytes(dtype: str) -> float:
    """Bytes of an activation, a weight or a gradient in memory: 8-bit training keeps these in 16 bits."""
    return max(2.0, DTYPE_BYTES[dtype])
