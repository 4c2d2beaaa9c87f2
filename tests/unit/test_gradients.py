"""Gradients in fp32, what adding them up costs, and recomputation that looks at single products."""

from __future__ import annotations

import numpy as np
import pytest

from sim.architecture import generate
from sim.catalog import Catalog
from sim.graph.execution import Cause
from sim.lowering import lower
from sim.models.checkpointing import alternate_elements, alternate_shares
from sim.models.compute import accumulation_bytes, chain_cost, optimizer_time
from sim.models.kernels import operation_flops
from sim.models.memory import stage_memory
from sim.spec import Strategy, Workload
from sim.spec.layer import Gemm
from tests.random_jobs import resolved
from tests.scenarios import fast_host, scenario, serving_host, timed_layer, workload

LLAMA3_8B = {
    "num_layers": 2, "hidden": 4096, "num_heads": 32, "num_kv_heads": 8, "ffn_hidden": 14336,
    "vocabulary": 128256, "sequence_length": 8192, "activation": "swiglu", "norm": "rmsnorm", "bias": False,
    "tied_embeddings": False, "dropout": False, "flash": True, "dtype": "bf16", "batch_per_device": 1,
}  # fmt: skip


def llama(**changes: object) -> Workload:
    return generate("transformer", {**LLAMA3_8B, **changes})


@pytest.mark.parametrize(
    ("fields", "micro_batches", "sharded", "expected"),
    [
        ({}, 1, False, 0.0),  # autograd hands the only gradient over
        ({}, 4, False, 3 * 6 / 4),  # three of four are added: two read, one written
        ({"fp32_gradients": True}, 1, False, 6.0),  # cast
        ({"fp32_gradients": True}, 4, False, (6 + 3 * 10) / 4),
        ({"fp32_gradients": True, "fused_accumulation": True}, 4, False, 6.0),  # 4 + 4 instead of 2
        ({"fused_accumulation": True}, 4, False, 2.0),
        ({"fp32_gradients": True}, 4, True, 6.0),  # cast before each reduce-scatter
        ({}, 4, True, 0.0),
        ({"dtype": "fp32"}, 2, False, 12 / 2),
    ],
)
def test_bytes_of_adding_up(
    fields: dict[str, object], micro_batches: int, sharded: bool, expected: float
) -> None:
    found = accumulation_bytes(llama(**fields), micro_batches=micro_batches, sharded=sharded)
    assert found == pytest.approx(expected)


def test_fp32_gradients_are_twice_as_long_on_the_wire_and_in_memory() -> None:
    layers = [timed_layer(i, 1e-3, 2e-3, parameters=1e6) for i in range(4)]
    sent, kept = [], []
    for wide in (False, True):
        model = workload(layers, batch=1).model_copy(update={"dtype": "bf16", "fp32_gradients": wide})
        graph = lower(scenario(model, resolved([(serving_host(1e10), 4)])))
        sent.append(graph.total_bytes[graph.cause == Cause.GRADIENT_COMM].sum())
        kept.append(stage_memory(model.layers, strategy=Strategy(), workload=model, micro_batch=1, dp=4))
    assert sent[1] == pytest.approx(2 * sent[0])
    assert kept[1]["gradients"] == 2 * kept[0]["gradients"] == 16e6
    assert kept[1]["weights"] == kept[0]["weights"]


def test_update_reads_wide_gradients(catalog: Catalog) -> None:
    options = {
        "optimizer": "adam", "device": catalog.device("a100-80gb"), "dtype": "bf16",
        "calibration": fast_host(catalog),
    }  # fmt: skip
    narrow, wide = (optimizer_time(1e9, gradient_bytes=size, **options) for size in (2.0, 4.0))
    assert wide / narrow == pytest.approx((24 + 8 + 2) / (24 + 4 + 2), rel=1e-3)


def test_alternate_policy_runs_the_products_again_that_torchtitan_does() -> None:
    """wq, wk*, wv, wo*, w1, w3*, w2: every second one, none behind the last."""
    workload = llama()
    shares = dict(
        zip((layer.name for layer in workload.layers), alternate_shares(workload.layers), strict=True)
    )
    products = {
        name: [s for s, op in zip(shares[name], layer.ops, strict=True) if isinstance(op, Gemm)]
        for name, layer in ((layer.name, layer) for layer in workload.layers)
    }
    assert products["block0.attention"] == pytest.approx([1024 / (4096 + 2048), 1.0])
    assert products["block1.mlp"] == pytest.approx([0.5, 0.0])
    assert not any(shares["embedding"] + shares["head"])
    block = [layer for layer in workload.layers if layer.kind in ("attention", "mlp")][:2]
    again = sum(
        s * operation_flops(op)
        for layer in block
        for s, op in zip(shares[layer.name], layer.ops, strict=True)
    )
    whole = sum(operation_flops(op) for layer in block for op in layer.ops if isinstance(op, Gemm))
    widths = {"wq": 4096, "wk": 1024, "wv": 1024, "wo": 4096, "w1": 14336, "w3": 14336, "w2": 14336}
    assert again / whole == pytest.approx((1024 + 4096 + 14336) / sum(widths.values()))


def test_alternate_recomputation_lies_between_none_and_full(catalog: Catalog) -> None:
    workload, device = llama(), catalog.device("h100-80gb")
    costs = chain_cost(
        workload.layers, device=device, dtype="bf16", micro_batch=1, calibration=fast_host(catalog)
    )
    inner = np.array([layer.kind in ("attention", "mlp") for layer in workload.layers])
    assert (costs.recompute_alternate_s[~inner] == 0).all()
    assert (costs.recompute_alternate_s[inner] > 0).all()
    assert costs.recompute_alternate_s.sum() < 0.5 * costs.forward_s[inner].sum()

    def activations(recompute: str) -> float:
        strategy = Strategy(recompute=recompute)
        found = stage_memory(workload.layers, strategy=strategy, workload=workload, micro_batch=1, dp=1)
        return found["activations"]

    deep = llama(num_layers=32)
    workload = deep
    assert activations("full") < activations("alternate") < activations("none")


def test_alternate_policy_keeps_named_outputs() -> None:
    workload = llama()
    shares = alternate_shares(workload.layers)
    attention, mlp = (
        next(i for i, layer in enumerate(workload.layers) if layer.kind == kind)
        for kind in ("attention", "mlp")
    )
    divided, whole = alternate_elements(workload.layers[attention], shares[attention])
    assert divided == pytest.approx(8192 * (4096 + 1024 + 4096))  # query, value, attention's output
    assert whole == 0  # the output projection runs again
    divided, whole = alternate_elements(workload.layers[mlp], shares[mlp])
    assert (divided, whole) == pytest.approx((8192 * 14336, 8192 * 4096))  # w1, w2


def test_eager_kernels_move_more(catalog: Catalog) -> None:
    """An eager Llama layer is slower than a fused one by its norms, rotary embedding and gate alone."""
    options = {
        "device": catalog.device("h100-80gb"), "dtype": "bf16", "micro_batch": 1.0,
        "calibration": fast_host(catalog),
    }  # fmt: skip
    fused, casts, eager = (
        chain_cost(llama(**fields).layers, **options)[1].forward_s
        for fields in ({}, {"fp32_norm": True}, {"fused_kernels": False})
    )
    assert fused < casts < eager


def test_fused_loss_on_fp32_logits_costs_casts(catalog: Catalog) -> None:
    options = {
        "device": catalog.device("a100-80gb"), "dtype": "bf16", "micro_batch": 1.0,
        "calibration": fast_host(catalog),
    }  # fmt: skip
    narrow, wide, separate = (
        chain_cost(llama(**fields).layers, **options)[-1].backward_input_s
        for fields in ({"fused_loss": True}, {"fused_loss": True, "fp32_logits": True}, {})
    )
    assert narrow < wide < separate
