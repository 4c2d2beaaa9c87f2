"""Compute types and their widths."""

from __future__ import annotations

from typing import Literal

DType = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8"]

DTYPE_BYTES: dict[str, float] = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "fp4": 0.5, "int8": 1}
