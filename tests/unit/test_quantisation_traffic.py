"""What casting the operands of narrow products moves, and what the first FlashAttention costs."""

from __future__ import annotations

import numpy as np
import pytest

from sim.architecture import generate
from sim.catalog import default_catalog
from sim.models.compute import layer_cost
from sim.models.kernels import CASTS, FLASH, FLASH_FACTORS, MATRIX, SCALED_CAST, compile_chain
from sim.spec.layer import Attention, Gemm, Layer

CATALOG = default_catalog()
SHAPE = {"num_layers": 2, "hidden": 1024, "num_heads": 16, "vocabulary": 32_000, "sequence_length": 1024}


def _layer(op: Gemm | Attention) -> Layer:
    return Layer(name="one", kind="mlp", block=0, ops=(op,), parameters=1.0, output_elements=1.0)


def _cost(op: Gemm | Attention, dtype: str) -> float:
    cost = layer_cost(
        _layer(op),
        device=CATALOG.device("h100-80gb"),
        dtype=dtype,
        micro_batch=1.0,
        calibration=CATALOG.calibration("default"),
    )
    return cost.forward_s + cost.backward_s


def test_operands_are_cast_once() -> None:
    kernels = compile_chain((_layer(Gemm(rows=4096, n=4096, k=4096)),), False)
    assert kernels.casts.sum() == pytest.approx(sum(sum(each) for each in CASTS.values()))
    assert kernels.casts[:, 1].max() == 0.0  # weights: once a step


def test_dynamic_scaling_casts_for_each_product() -> None:
    op = Gemm(rows=4096, n=4096, k=4096)
    scaled = op.model_copy(update={"dynamic_scaling": True})
    assert (compile_chain((_layer(scaled),), False).casts == SCALED_CAST).all()
    device, calibration = CATALOG.device("h100-80gb"), CATALOG.calibration("default")
    efficiency = calibration.value("device", device.name, "memory_efficiency")
    moved = 4096**2 * (6 * SCALED_CAST - sum(sum(each) for each in CASTS.values()))
    expected = moved / (device.memory_bandwidth * efficiency)
    assert _cost(scaled, "fp8") - _cost(op, "fp8") == pytest.approx(expected, rel=1e-6)
    assert _cost(scaled, "bf16") == _cost(op, "bf16")


def test_a_workload_with_dynamic_scaling_scales_every_product() -> None:
    plain = generate("transformer", {**SHAPE, "batch_per_device": 1, "dtype": "fp8"})
    scaled = generate(
        "transformer", {**SHAPE, "batch_per_device": 1, "dtype": "fp8", "dynamic_scaling": True}
    )
    products = [op for layer in scaled.layers for op in layer.ops if isinstance(op, Gemm)]
    assert products
    assert all(op.dynamic_scaling for op in products)
    counts = [compile_chain(each.layers, True).num_operations for each in (plain, scaled)]
    assert counts[0] == counts[1]


def test_unfused_attention_stays_in_sixteen_bits() -> None:
    op = Attention(query_length=512, key_length=512, heads=16, kv_heads=16, head_dim=64)
    kernels = compile_chain((_layer(op),), False)
    assert kernels.wide[kernels.kind == MATRIX].all()


@pytest.mark.parametrize("version", [1, 3])
def test_versions_of_flash_attention(version: int) -> None:
    op = Attention(
        query_length=8192, key_length=8192, heads=32, kv_heads=32, head_dim=128, causal=True, flash=True
    )
    other, factor = op.model_copy(update={"flash_version": version}), FLASH_FACTORS[version]
    dims = [compile_chain((_layer(each),), False).dims for each in (op, other)]
    assert np.allclose(dims[1][:, 1], factor * dims[0][:, 1])
    assert (compile_chain((_layer(op),), False).kind == FLASH).all()
    assert _cost(other, "bf16") / _cost(op, "bf16") == pytest.approx(factor, rel=0.05)
