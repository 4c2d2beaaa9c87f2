"""Memory per device: published numbers, policies and pipeline positions."""

from __future__ import annotations

import pytest

import sim
from sim.catalog import Catalog
from sim.models.memory import COMPONENTS, in_flight_micro_batches, stage_memory
from sim.spec import Strategy
from sim.spec.layer import Layer


def _states(catalog: Catalog, state: str, *, gradient_copy: bool = False, dp: int = 64) -> float:
    layers = (Layer(name="all", kind="linear", block=0, parameters=7.5e9),)
    sizes = stage_memory(
        layers,
        strategy=Strategy(state=state),
        workload=catalog.workload("gpt3-6.7b"),
        micro_batch=1,
        dp=dp,
        gradient_copy=gradient_copy,
    )
    return (sizes["weights"] + sizes["gradients"] + sizes["optimizer"]) / 1e9


@pytest.mark.parametrize(
    ("state", "gigabytes"), [("replicated", 120), ("zero1", 31.4), ("zero2", 16.6), ("zero3", 1.88)]
)
def test_zero_paper_figure_1(catalog: Catalog, state: str, gigabytes: float) -> None:
    assert _states(catalog, state) == pytest.approx(gigabytes, rel=0.005)


def test_deepspeed_keeps_a_gradient_copy(catalog: Catalog) -> None:
    # 2 P + 18 P / N: DeepSpeed issue 5099.
    assert _states(catalog, "zero2", gradient_copy=True) == pytest.approx(17.1, rel=0.005)


def test_unsharded_bucket_can_put_zero2_above_zero1(catalog: Catalog) -> None:
    """Megatron-LM issue 6314: with two ranks the unsharded buckets outweigh the gradients saved."""
    layers = (Layer(name="all", kind="linear", block=0, parameters=1e7),)
    workload = catalog.workload("gpt2")

    def total(state: str) -> float:
        strategy = Strategy(state=state, bucket_size=1e8)
        sizes = stage_memory(layers, strategy=strategy, workload=workload, micro_batch=1, dp=2)
        return sizes["gradients"] + sizes["buffers"]

    assert total("zero2") > total("zero1")


def test_parameter_server_worker_holds_no_states(catalog: Catalog) -> None:
    workload = catalog.workload("resnet50")
    sizes = stage_memory(
        workload.layers, strategy=Strategy(state="ps_dedicated"), workload=workload, micro_batch=1, dp=4
    )
    assert sizes["optimizer"] == 0
    assert sizes["weights"] == 4 * workload.num_parameters


@pytest.mark.parametrize(
    ("schedule", "stage", "expected"),
    [("gpipe", 0, 8), ("1f1b", 0, 4), ("1f1b", 3, 1), ("naive", 0, 1), ("gpipe", 3, 8)],
)
def test_in_flight(schedule: str, stage: int, expected: float) -> None:
    strategy = Strategy(pp=4, schedule=schedule)
    assert in_flight_micro_batches(strategy, stage, 8) == expected


def test_interleaved_in_flight() -> None:
    # Korthikanti et al. 2022, section 4.2.3: the first stage holds p (1 + (p - 1) / (p v)) micro-batches.
    strategy = Strategy(pp=8, schedule="interleaved", virtual_stages=3)
    assert in_flight_micro_batches(strategy, 0, 64) == pytest.approx(8 * (1 + 7 / 24))
    assert in_flight_micro_batches(strategy, 0, 8) == 8


def test_few_micro_batches_bound_what_is_in_flight() -> None:
    assert in_flight_micro_batches(Strategy(pp=8), 0, 3) == 3


def _gpt3(catalog: Catalog, **fields: object) -> dict[str, float]:
    workload = catalog.workload("gpt3-175b")
    strategy = Strategy(tp=8, pp=8, schedule="1f1b", **fields)
    return stage_memory(
        workload.layers[:25],
        strategy=strategy,
        workload=workload,
        micro_batch=1,
        dp=1,
        num_micro_batches=64,
        last=False,
    )


def test_sequence_parallel_activations_of_gpt3(catalog: Catalog) -> None:
    """Equation 4 of Korthikanti et al.: s b h L / t (34 + 5 a s / h) bytes on the first of the stages."""
    s, h, layers, t, a = 2048, 12288, 96, 8, 96
    expected = s * h * layers / t * (34 + 5 * a * s / h)
    # The embedding adds its dropout mask, p copies of s h / t bytes.
    embedding = 8 * s * h / t
    assert _gpt3(catalog, sequence_parallel=True)["activations"] == pytest.approx(expected + embedding)


def test_policies_are_ordered(catalog: Catalog) -> None:
    none = _gpt3(catalog)["activations"]
    selective = _gpt3(catalog, recompute="selective")["activations"]
    full = _gpt3(catalog, recompute="full")["activations"]
    assert none > selective > full > 0
    assert _gpt3(catalog, sequence_parallel=True)["activations"] < none


def test_full_recomputation_keeps_block_inputs(catalog: Catalog) -> None:
    # 2 s b h per block and micro-batch in flight (8 on stage 0), and one block while it is recomputed.
    s, h, a = 2048, 12288, 96
    inputs = 8 * 12 * 2 * s * h
    block = s * h * (10 + 24 / 8 + 5 * a * s / (h * 8)) + s * h  # the first block holds the embedding's mask
    assert _gpt3(catalog, recompute="full")["activations"] == pytest.approx(inputs + block)


def test_tied_table_is_copied_on_the_last_stage(catalog: Catalog) -> None:
    workload = catalog.workload("gpt2")
    table = 50257 * 768

    def weights(first: bool) -> float:
        return stage_memory(
            workload.layers[-1:],
            strategy=Strategy(pp=2),
            workload=workload,
            micro_batch=1,
            dp=1,
            stage=1,
            first=first,
        )["weights"]

    assert weights(False) - weights(True) == 2 * table


@pytest.mark.parametrize(
    ("name", "dtype", "batch", "fits"),
    [
        ("resnet50", "fp32", 128, True),
        ("resnet50", "fp32", 256, False),
        ("resnet50", "fp16", 256, True),
        ("vgg16", "fp32", 64, True),
        ("vgg16", "fp32", 128, True),
        ("bert-base", "fp32", 96, True),
        ("bert-base", "fp16", 160, True),
        ("bert-large", "fp32", 64, False),
    ],
)
def test_what_fits_a_16_gb_card(catalog: Catalog, name: str, dtype: str, batch: int, fits: bool) -> None:
    """Batches that others ran (DLPerf, DeepLearningExamples on V100 16 GB) fit, twice the largest do not."""
    workload = catalog.workload(name, dtype=dtype)
    sizes = stage_memory(
        workload.layers,
        strategy=Strategy(),
        workload=workload,
        micro_batch=batch,
        dp=8,
        calibration=catalog.calibration("default"),
    )
    assert tuple(sizes) == COMPONENTS
    assert (sum(sizes.values()) <= catalog.device("v100-16gb").memory_bytes) == fits


def test_sharded_optimisers_reduce_gradients_where_they_lie() -> None:
    """DDP copies gradients into buckets of the same size; a contiguous buffer needs two buckets at most."""
    workload = sim.workload("gpt2")
    held = {
        state: stage_memory(
            workload.layers,
            strategy=Strategy(state=state, bucket_size=1e6),
            workload=workload,
            micro_batch=1,
            dp=4,
        )["buffers"]
        for state in ("replicated", "zero1")
    }
    element = 4.0 if workload.dtype in ("fp32", "tf32") else 2.0
    assert held["replicated"] - held["zero1"] == pytest.approx(workload.num_parameters * element - 2e6)


def test_training_in_eight_bits_keeps_inputs_of_products_in_eight_bits() -> None:
    """Of a block (swiglu): norm output twice, and the input of the second product of the feed-forward."""
    shape = {"num_layers": 2, "hidden": 64, "num_heads": 4, "ffn_hidden": 192, "sequence_length": 32}
    stored = {}
    for dtype in ("bf16", "fp8"):
        workload = sim.workload("llama2-7b", **shape, num_kv_heads=4, dtype=dtype)
        stored[dtype] = stage_memory(
            workload.layers, strategy=Strategy(), workload=workload, micro_batch=1, dp=1
        )["activations"]
    assert stored["bf16"] - stored["fp8"] == pytest.approx(2 * 32 * (2 * 64 + 192))


def test_fsdp_shards_are_the_master_copy(catalog: Catalog) -> None:
    """16 bytes a parameter over the ranks with Adam (Zhao et al. 2023, arXiv:2304.11277, section 4.4.1)."""
    layers = (Layer(name="all", kind="linear", block=0, parameters=7.5e9),)
    workload = catalog.workload("gpt3-6.7b").model_copy(update={"fp32_parameters": True})

    def states(state: str) -> float:
        sizes = stage_memory(layers, strategy=Strategy(state=state), workload=workload, micro_batch=1, dp=64)
        return sizes["weights"] + sizes["gradients"] + sizes["optimizer"]

    assert states("zero3") == pytest.approx(16 * 7.5e9 / 64)
    assert states("replicated") == pytest.approx(16 * 7.5e9)  # 16-bit weights and gradients, fp32 states


def test_blocks_that_stay_on_the_device(catalog: Catalog) -> None:
    """Of 24 blocks 8 leave: 16 stay, and two of those that leave are there at a time."""
    workload = catalog.workload("gpt2-medium")

    def activations(**fields: object) -> float:
        sizes = stage_memory(
            workload.layers[1:-1], strategy=Strategy(**fields), workload=workload, micro_batch=4, dp=1
        )
        return sizes["activations"]

    block = activations() / 24
    assert activations(offload_activations=True, offload_blocks=8) == pytest.approx(18 * block)
    assert activations(offload_activations=True) == pytest.approx(2 * block)
