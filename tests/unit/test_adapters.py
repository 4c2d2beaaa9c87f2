"""Low-rank adapters: parameters, two thirds of the products, no gradients and states of frozen weights."""

from __future__ import annotations

import pytest

import sim
from sim.architecture import generate
from sim.catalog import Catalog
from sim.lowering.plan import make_plan, memory_by_stage
from sim.models.compute import chain_cost, model_flops
from sim.models.kernels import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, MATRIX, compile_chain
from sim.spec import Scenario, Workload
from sim.validate.rows import Row
from sim.validate.runs_loader import load_run

LLAMA = {
    "num_layers": 32, "hidden": 4096, "num_heads": 32, "ffn_hidden": 11008, "vocabulary": 32000,
    "sequence_length": 2048, "activation": "swiglu", "norm": "rmsnorm", "bias": False, "dropout": False,
    "tied_embeddings": False, "flash": True, "dtype": "bf16", "optimizer": "adamw", "global_batch_size": 8,
}  # fmt: skip


def llama(**fields: object) -> Workload:
    return generate("transformer", {**LLAMA, **fields})


def test_parameters_of_adapters() -> None:
    """Llama 7B with r = 8 on queries, keys, values and outputs, and the rest with targets "all"."""
    h, ffn, rank = 4096, 11008, 8
    attention = 32 * rank * ((h + 3 * h) + (h + h))
    assert llama(adapter_rank=rank, adapter_targets="attention").num_parameters == attention
    mlp = 32 * rank * ((h + 2 * ffn) + (ffn + h))
    adapted = llama(adapter_rank=rank)
    assert adapted.num_parameters == attention + mlp
    assert adapted.frozen_parameters == llama().num_parameters == 6_738_415_616


def _matrix_flops(workload: Workload, phase: int) -> float:
    kernels = compile_chain(workload.layers, True)
    chosen = (kernels.kind == MATRIX) & (kernels.phase == phase)
    per_operation = 2.0 * kernels.dims[chosen].prod(axis=1)
    counts = [int((kernels.entry_op == owner).sum()) for owner in kernels.owner[chosen]]
    return float((per_operation * counts).sum())


def test_frozen_weights_have_no_gradient() -> None:
    """Forward and the gradients of activations are left: two thirds of full training's products."""
    full, adapted = llama(), llama(adapter_rank=16)
    whole = sum(_matrix_flops(full, phase) for phase in (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT))
    left = sum(_matrix_flops(adapted, phase) for phase in (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT))
    assert left / whole == pytest.approx(2 / 3, rel=0.02)
    assert _matrix_flops(adapted, BACKWARD_WEIGHT) < 0.01 * _matrix_flops(full, BACKWARD_WEIGHT)
    assert model_flops(adapted) == pytest.approx(model_flops(full), rel=0.01)


def test_nothing_flows_back_before_the_first_adapter(catalog: Catalog) -> None:
    costs = chain_cost(
        llama(adapter_rank=16).layers, device=catalog.device("a100-80gb"), dtype="bf16", micro_batch=1,
        calibration=catalog.calibration(),
    )  # fmt: skip
    assert costs[0].backward_s == 0
    assert costs[1].backward_s > 0


def _scenario(workload: Workload, **strategy: object) -> Scenario:
    fields = {"micro_batch_size": 1, **strategy}
    return Scenario(
        workload=workload, cluster=sim.cluster("dgx-a100", num_hosts=1), strategy=sim.strategy(**fields),
        calibration=Catalog().calibration(),
    )  # fmt: skip


def _memory(workload: Workload, **strategy: object) -> dict[str, float]:
    return memory_by_stage(_scenario(workload, **strategy))[0]


def test_memory_of_adapters() -> None:
    full, adapted = llama(), llama(adapter_rank=16)
    own, base = adapted.num_parameters, full.num_parameters
    states = _memory(adapted)
    assert states["weights"] == pytest.approx(2 * (own + base))
    assert states["gradients"] == pytest.approx(2 * own)
    assert states["optimizer"] == pytest.approx(12 * own)
    quantised = _memory(llama(adapter_rank=16, frozen_bits=4.127))
    assert quantised["weights"] == pytest.approx(2 * own + base * 4.127 / 8)
    sharded = _memory(adapted, state="zero3")
    assert sharded["weights"] == pytest.approx(2 * (own + base) / 8)


def test_inputs_of_frozen_products_are_not_kept() -> None:
    full, attention = llama(), llama(adapter_rank=16, adapter_targets="attention")
    tokens, hidden, ffn = 2048, 4096, 11008
    dropped = full.layers[2].stored_elements - attention.layers[2].stored_elements
    assert dropped == tokens * (hidden + ffn)  # of the gate and up product, of the down product
    assert attention.layers[1].stored_elements > full.layers[1].stored_elements


def test_sharded_frozen_weights_are_gathered() -> None:
    """FSDP gathers all weights, sums the gradients of the adapters only."""
    plan = make_plan(_scenario(llama(adapter_rank=16), state="zero3"))
    assert plan.frozen_elements(2) == 3 * 4096 * 11008 + 4096
    assert plan.local_elements(2) == 16 * (4096 + 2 * 11008 + 11008 + 4096)


ROW = {
    "id": "X-1", "model": "Llama2-70B LoRA", "framework": "NeMo 2.0", "gpu": "H100", "gpus": "8", "tp": "4",
    "gbs": "8", "mbs": "1", "precision": "bf16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("cells", "rank", "bits"),
    [
        ({}, 16, None), ({"model": "Llama 2 70B", "notes": "PEFT, rank=32"}, 32, None),
        ({"model": "llama2_70b_lora", "framework": "MLPerf v4.1 NeMo"}, 16, None),
        ({"model": "QLoRA Llama 2 70B"}, 16, 4.127), ({"model": "Llama 2 70B", "notes": "r=8 LoRA"}, 8, None),
    ],
)  # fmt: skip
def test_rows_with_adapters(catalog: Catalog, cells: dict[str, str], rank: int, bits: float | None) -> None:
    run = load_run(Row({**ROW, **cells}), catalog)
    assert run.params["adapter_rank"] == rank
    assert run.params.get("frozen_bits") == bits
    assert run.workload().frozen_parameters == pytest.approx(68.98e9, rel=1e-3)  # padded vocabulary


@pytest.mark.parametrize("notes", ["full fine-tuning, no LoRA", "SFT", "peft=none"])
def test_rows_without_adapters(catalog: Catalog, notes: str) -> None:
    run = load_run(Row({**ROW, "model": "Llama 2 70B", "notes": notes}), catalog)
    assert "adapter_rank" not in run.params
