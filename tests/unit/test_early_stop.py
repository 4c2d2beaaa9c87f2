"""Recomputation that stops at what a block's backward needs (PyTorch's checkpoint without reentrance)."""

from __future__ import annotations

import numpy as np
import pytest

from sim.api import simulate
from sim.architecture import generate
from sim.catalog import Catalog, default_catalog
from sim.models.checkpointing import unneeded_shares
from sim.models.compute import chain_cost
from sim.spec import Workload
from sim.spec.layer import Gemm
from sim.validate.frameworks import framework_of
from sim.validate.rows import Row
from sim.validate.runs_loader import load_run
from tests.scenarios import fast_host, scenario


def model(generator: str = "transformer", **changes: object) -> Workload:
    fields = {
        "num_layers": 4, "hidden": 2048, "num_heads": 16, "vocabulary": 32_000, "sequence_length": 2048,
        "flash": True, "dtype": "bf16", "global_batch_size": 16,
    }  # fmt: skip
    return generate(generator, {**fields, **changes})


def step_time(catalog: Catalog, **strategy: object) -> float:
    where = catalog.resolve(catalog.cluster("single-gpu"))
    job = scenario(model(), where, calibration=fast_host(catalog), micro_batch_size=2, **strategy)
    found = simulate(job).step_time_s
    assert found is not None
    return found


def test_the_last_product_of_a_block_is_not_needed() -> None:
    workload = model()
    for layer, shares in zip(workload.layers, unneeded_shares(workload.layers), strict=True):
        products = [i for i, op in enumerate(layer.ops) if isinstance(op, Gemm)]
        first = products[-1] if layer.kind == "mlp" else len(layer.ops)
        assert shares == tuple(float(i >= first) for i in range(len(layer.ops)))


def test_outputs_of_experts_are_needed() -> None:
    workload = model("moe", num_experts=8, top_k=2)
    assert not any(any(shares) for shares in unneeded_shares(workload.layers))


def test_stopping_early_saves_what_is_not_needed(catalog: Catalog) -> None:
    costs = chain_cost(
        model().layers,
        device=catalog.device("a100-80gb"),
        dtype="bf16",
        micro_batch=2,
        calibration=fast_host(catalog),
    )
    none, early, full = (
        step_time(catalog, **fields)
        for fields in (
            {},
            {"recompute": "full", "recompute_early_stop": True},
            {"recompute": "full"},
        )
    )
    micro_batches = 8
    assert none < early < full
    assert full - early == pytest.approx(micro_batches * float(np.sum(costs.unneeded_s)), rel=1e-6)
    # The second product of the feed-forward layer is a third of a block's products: 4 of 12 h^2.
    assert 0.6 < (early - none) / (full - none) < 0.75


def test_rows_of_llm_foundry_stop_early_and_those_of_megatron_do_not() -> None:
    catalog = default_catalog()
    cells = {
        "id": "1", "model": "llama-7b", "gpu": "H100", "gpus": "8", "mbs": "1", "gbs": "64",
        "recompute": "full",
    }  # fmt: skip
    foundry = load_run(Row({**cells, "framework": "llm-foundry"}), catalog)
    megatron = load_run(Row({**cells, "framework": "Megatron-LM"}), catalog)
    assert foundry.strategy.recompute_early_stop
    assert not megatron.strategy.recompute_early_stop


@pytest.mark.parametrize(
    ("date", "version"), [("2022-09", 1), ("2023-06..2024-01", 1), ("2023-11", 2), ("2025", 2), ("", 2)]
)
def test_flash_attention_by_date(date: str, version: int) -> None:
    row = Row({"framework": "llm-foundry", "gpu": "A100", "date": date})
    assert framework_of(row).flash_version == version


def test_older_devices_run_no_second_flash_attention() -> None:
    row = Row({"framework": "llm-foundry", "gpu": "V100 32GB", "date": "2024-05"})
    assert framework_of(row).flash_version == 1


def test_fsdp_scatters_gradients_block_by_block() -> None:
    cells = {
        "id": "1", "model": "llama-7b", "gpu": "H100", "gpus": "8", "mbs": "1", "gbs": "64",
        "framework": "llm-foundry", "shard": "fsdp_grad_op(zero2)",
    }  # fmt: skip
    run = load_run(Row(cells), default_catalog())
    block = [layer for layer in run.architecture if layer.block == 1]
    size = sum(layer.parameters for layer in block) * run.workload().gradient_bytes
    assert run.strategy.state == "zero2"
    assert run.strategy.bucket_size == pytest.approx(size)
