"""Compute time: splits, rooflines, phases, recomputation, optimiser."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sim.architecture import generate
from sim.catalog import Catalog
from sim.errors import InputError
from sim.models.compute import LayerCosts, chain_cost, layer_cost, model_flops, optimizer_time, step_overhead
from sim.models.kernels import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, operation_kernels
from sim.models.roofline import roof
from sim.spec.layer import Attention, Convolution, Embedding, Gemm, Layer, MemoryBound, Op
from tests.scenarios import fast_host

GPT = {"num_layers": 2, "hidden": 1024, "num_heads": 16, "vocabulary": 4096, "sequence_length": 512}


def _cost(catalog: Catalog, *ops: Op, **options: object) -> LayerCosts:
    layer = Layer(name="layer", kind="linear", block=0, ops=ops, num_experts=options.pop("num_experts", 0))
    settings = {"device": "a100-80gb", "dtype": "bf16", "micro_batch": 8.0, "first": False} | options
    settings["device"] = catalog.device(settings["device"])
    return chain_cost((layer,), calibration=fast_host(catalog), **settings)


def _volume(kernel: object) -> float:
    return float(np.prod(kernel.dims))


def test_large_product_runs_at_the_attainable_rate(catalog: Catalog) -> None:
    cost = _cost(catalog, Gemm(rows=8192, n=27648, k=16384), micro_batch=4)[0]
    rate = 2 * 4 * 8192 * 27648 * 16384 / cost.forward_s
    attainable = roof(catalog.device("a100-80gb"), "bf16", catalog.calibration("default")).matrix_flops
    assert 0.95 * attainable < rate <= attainable


def test_thin_product_is_bound_by_its_weights(catalog: Catalog) -> None:
    cost = _cost(catalog, Gemm(rows=1, n=16384, k=16384), micro_batch=1)[0]
    rates = roof(catalog.device("a100-80gb"), "bf16", catalog.calibration("default"))
    assert cost.forward_s == pytest.approx(2 * 16384**2 / rates.bandwidth, rel=0.05)


def test_one_tile_too_many_costs_a_wave(catalog: Catalog) -> None:
    """108 multiprocessors: 36 x 3 tiles fill one wave, 36 x 4 leave part of a second one idle."""
    sizes = [Gemm(rows=256 * 36, n=128 * tiles, k=65536) for tiles in (3, 4)]
    full, spill = (_cost(catalog, op, micro_batch=1)[0].forward_s for op in sizes)
    assert spill > 1.02 * 4 / 3 * full


def test_backward_of_a_product_is_two_products(catalog: Catalog) -> None:
    forward, by_input, by_weight = operation_kernels(Gemm(rows=100, n=300, k=700), 0, False)
    assert (forward.phase, by_input.phase, by_weight.phase) == (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
    assert _volume(forward) == _volume(by_input) == _volume(by_weight)


def test_first_layer_has_no_input_gradient(catalog: Catalog) -> None:
    op = Convolution(in_channels=3, out_channels=64, kernel=(7, 7), out_height=112, out_width=112, stride=2)
    assert _cost(catalog, op, first=True)[0].backward_input_s == 0
    assert _cost(catalog, op, first=False)[0].backward_input_s > 0
    assert _cost(catalog, op, first=True)[0].backward_weight_s > 0


@pytest.mark.parametrize("stride", [1, 2])
def test_convolution_passes_do_the_same_work(stride: int) -> None:
    op = Convolution(
        in_channels=64, out_channels=128, kernel=(3, 3), out_height=28, out_width=28, stride=stride
    )
    volumes = [_volume(kernel) for kernel in operation_kernels(op, 0, False)]
    assert volumes == [28 * 28 * 128 * 64 * 9] * 3


def test_winograd_helps_only_vector_units(catalog: Catalog) -> None:
    square = Convolution(in_channels=256, out_channels=256, kernel=(3, 3), out_height=56, out_width=56)
    strided = square.replace(stride=2)
    fitted = catalog.calibration("default").value("device", "v100-16gb", "winograd_gain")
    for device, dtype, gain in (("v100-16gb", "fp32", fitted), ("v100-16gb", "fp16", 1.0)):
        plain = _cost(catalog, strided, device=device, dtype=dtype, micro_batch=32)[0].forward_s
        fast = _cost(catalog, square, device=device, dtype=dtype, micro_batch=32)[0].forward_s
        assert plain / fast == pytest.approx(gain, rel=0.02)


def test_tensor_cores_transpose_what_is_not_channels_last(catalog: Catalog) -> None:
    """Each of the three products reads and writes its two activations, and the weights, once more."""
    op = Convolution(in_channels=256, out_channels=512, kernel=(1, 1), out_height=28, out_width=28)
    weights, inputs, outputs = 256 * 512, 28 * 28 * 256 * 8, 28 * 28 * 512 * 8
    for dtype, size in (("tf32", 4), ("bf16", 2)):
        last, first = (_cost(catalog, op.replace(channels_last=e), dtype=dtype)[0] for e in (True, False))
        rates = roof(catalog.device("a100-80gb"), dtype, catalog.calibration("default"))
        more = 3 * 2 * (weights + inputs + outputs) * size / rates.bandwidth
        assert first.forward_s + first.backward_s == pytest.approx(last.forward_s + last.backward_s + more)
    both = [_cost(catalog, op.replace(channels_last=e), dtype="fp32")[0].forward_s for e in (True, False)]
    assert both[0] == both[1]  # vector units take either


@pytest.mark.parametrize("split", ["column", "row", "vocabulary"])
def test_tensor_parallel_products(catalog: Catalog, split: str) -> None:
    op = Gemm(rows=8192, n=16384, k=16384, split=split)
    whole, half = _cost(catalog, op)[0], _cost(catalog, op, tp=2)[0]
    assert half.forward_flops == whole.forward_flops / 2
    assert half.forward_s == pytest.approx(whole.forward_s / 2, rel=0.1)


def test_replicated_product_is_not_split(catalog: Catalog) -> None:
    op = Gemm(rows=512, n=1024, k=1024)
    assert _cost(catalog, op, tp=4)[0] == _cost(catalog, op)[0]


def test_sequence_split_needs_sequence_parallelism(catalog: Catalog) -> None:
    norm = MemoryBound(elements=1e8, split="sequence")
    whole = _cost(catalog, norm)[0].forward_s
    assert _cost(catalog, norm, tp=4)[0].forward_s == whole
    assert _cost(catalog, norm, tp=4, sequence_parallel=True)[0].forward_s == pytest.approx(
        whole / 4, rel=0.01
    )


def test_memory_bound_time_is_bytes_over_bandwidth(catalog: Catalog) -> None:
    rates = roof(catalog.device("a100-80gb"), "bf16", catalog.calibration("default"))
    cost = _cost(catalog, MemoryBound(elements=1e9, backward_elements=3e9), micro_batch=1)[0]
    traffic = rates.element_traffic / rates.bandwidth
    assert cost.forward_s == pytest.approx(2e9 * traffic + rates.latency)
    assert cost.backward_input_s == pytest.approx(6e9 * traffic + rates.latency)
    assert cost.backward_weight_s == 0


def test_a_large_head_does_not_hide_the_launches_of_few_layers(catalog: Catalog) -> None:
    """A layer costs the same in a shallow model as in a deep one, so few layers tell of many."""
    small = Layer(name="block", kind="mlp", block=0, ops=(Gemm(rows=8, n=256, k=256),) * 4)
    head = Layer(name="head", kind="head", block=0, ops=(Gemm(rows=4096, n=50_000, k=4096),))

    def seconds(count: int) -> LayerCosts:
        return chain_cost(
            (small,) * count + (head,), device=catalog.device("a100-80gb"), dtype="bf16", micro_batch=1,
            calibration=catalog.calibration("default"), first=False,
        )  # fmt: skip

    shallow, deep = seconds(2), seconds(64)
    issue = catalog.calibration("default").value("framework", "default", "kernel_issue_time")
    assert shallow[0].forward_s == deep[0].forward_s == pytest.approx(4 * issue)
    assert shallow[2].forward_s == deep[64].forward_s > 100 * issue


def test_small_kernels_are_bound_by_their_launches(catalog: Catalog) -> None:
    issue = fast_host(catalog).value("framework", "default", "kernel_issue_time")
    cost = _cost(catalog, *(MemoryBound(elements=10, backward_elements=10) for _ in range(5)))[0]
    assert cost.forward_s == pytest.approx(5 * issue)
    assert cost.num_kernels == 10


def test_flash_attention_saves_the_score_traffic(catalog: Catalog) -> None:
    core = Attention(query_length=4096, key_length=4096, heads=32, kv_heads=32, head_dim=128, causal=True)
    separate = _cost(catalog, core)[0]
    flash = _cost(catalog, core.replace(flash=True))[0]
    assert flash.forward_s < separate.forward_s / 3
    assert flash.forward_flops == separate.forward_flops == 8 * 4 * 4096**2 * 128 * 32
    # Five products backward, two forward.
    assert flash.backward_s == pytest.approx(2.5 * flash.forward_s, rel=0.05)


def test_causal_flash_skips_the_masked_half(catalog: Catalog) -> None:
    core = Attention(query_length=4096, key_length=4096, heads=32, kv_heads=32, head_dim=128, flash=True)
    causal = _cost(catalog, core.replace(causal=True))[0]
    full = _cost(catalog, core)[0]
    assert full.forward_s == pytest.approx(2 * causal.forward_s, rel=0.02)
    assert full.forward_flops == causal.forward_flops


def test_selective_recomputation_repeats_the_core_only(catalog: Catalog) -> None:
    core = Attention(query_length=512, key_length=512, heads=16, kv_heads=16, head_dim=64, dropout=True)
    alone = _cost(catalog, core)[0]
    costs = _cost(catalog, Gemm(rows=512, n=3072, k=1024), core)[0]
    assert costs.recompute_selective_s == pytest.approx(alone.forward_s)
    assert _cost(catalog, core.replace(flash=True))[0].recompute_selective_s == 0


def test_experts_share_the_rows(catalog: Catalog) -> None:
    """Expert parallelism keeps a device's work and halves the weights it reads."""
    op = Gemm(rows=8192, n=14336, k=4096, expert=True)
    alone, spread = (_cost(catalog, op, num_experts=8, ep=ep, micro_batch=1)[0] for ep in (1, 8))
    assert alone.forward_flops == spread.forward_flops
    assert alone.forward_s == pytest.approx(spread.forward_s, rel=0.2)
    thin = Gemm(rows=8, n=14336, k=4096, expert=True)
    alone, spread = (_cost(catalog, thin, num_experts=8, ep=ep, micro_batch=1)[0] for ep in (1, 8))
    assert spread.forward_s < alone.forward_s / 4


def test_embedding_moves_rows(catalog: Catalog) -> None:
    cost = _cost(catalog, Embedding(rows=1e6, width=1024), micro_batch=1)[0]
    assert cost.backward_weight_s == pytest.approx(1.5 * cost.forward_s, rel=0.01)
    assert cost.backward_input_s == 0


def test_chain_is_its_layers(catalog: Catalog) -> None:
    layers = generate("transformer", GPT).layers
    options = {"device": catalog.device("v100-32gb"), "dtype": "fp16", "micro_batch": 4.0}
    options["calibration"] = fast_host(catalog)
    costs = chain_cost(layers, **options)
    assert len(costs) == len(layers)
    for index, (layer, cost) in enumerate(zip(layers, costs, strict=True)):
        alone = layer_cost(layer, first=index == 0, **options)  # which products run again a block tells
        of_block = {n: getattr(cost, n) for n in ("recompute_alternate_s", "unneeded_s")}
        assert replace(alone, **of_block) == cost


def test_identical_blocks_cost_the_same(catalog: Catalog) -> None:
    workload = catalog.workload("gpt3-175b")
    costs = chain_cost(
        workload.layers,
        device=catalog.device("a100-80gb"),
        dtype="fp16",
        micro_batch=1,
        tp=8,
        calibration=catalog.calibration("default"),
    )
    assert np.ptp(costs.forward_s[1:-1:2]) == 0
    assert np.ptp(costs.backward_s[2:-1:2]) == 0
    assert costs.forward_flops.sum() == pytest.approx(model_flops(workload) / 8)
    with pytest.raises(ValueError, match="read-only"):
        costs.forward_s[0] = 0


def test_empty_layer_is_free(catalog: Catalog) -> None:
    assert _cost(catalog)[0] == layer_cost(
        Layer(name="none", kind="norm", block=0),
        device=catalog.device("k80"),
        dtype="fp32",
        micro_batch=1,
        calibration=catalog.calibration("default"),
    )


def test_zero_micro_batch_is_refused(catalog: Catalog) -> None:
    with pytest.raises(InputError, match=r"micro_batch_size: must be greater than 0"):
        _cost(catalog, MemoryBound(elements=1), micro_batch=0)


@pytest.mark.parametrize(
    ("optimizer", "dtype", "bytes_per_parameter"),
    [
        ("sgd", "fp32", 16),
        ("momentum", "fp32", 24),
        ("adam", "fp32", 32),
        ("adam", "fp16", 30),
        ("lamb", "bf16", 42),
    ],
)
def test_optimizer_traffic(catalog: Catalog, optimizer: str, dtype: str, bytes_per_parameter: float) -> None:
    device, calibration = catalog.device("a100-80gb"), catalog.calibration("default")
    efficiency = calibration.value("framework", "default", "optimizer_bandwidth_efficiency")
    seconds = optimizer_time(1e9, optimizer=optimizer, device=device, dtype=dtype, calibration=calibration)
    expected = 1e9 * bytes_per_parameter / (device.memory_bandwidth * efficiency)
    assert seconds == pytest.approx(expected, rel=1e-3)
    assert 0 < step_overhead(calibration) < 0.1


def test_unknown_optimizer_is_refused(catalog: Catalog) -> None:
    with pytest.raises(InputError, match=r"workload\.optimizer: must be one of sgd"):
        optimizer_time(
            1,
            optimizer="sdg",
            device=catalog.device("t4"),
            dtype="fp32",
            calibration=catalog.calibration("default"),
        )


def test_gpt3_175b_hardware_utilisation(catalog: Catalog) -> None:
    """Full recomputation on A100, tp 8: within reach of the 51 % that Narayanan et al. 2021 report in all."""
    workload, device = catalog.workload("gpt3-175b"), catalog.device("a100-80gb")
    costs = chain_cost(
        workload.layers,
        device=device,
        dtype="fp16",
        micro_batch=1,
        tp=8,
        calibration=catalog.calibration("default"),
    )
    seconds = 2 * costs.forward_s.sum() + costs.backward_s.sum()
    utilisation = 4 * costs.forward_flops.sum() / seconds / device.peak("fp16")
    assert 0.5 < utilisation < 0.7
