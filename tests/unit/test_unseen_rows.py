"""Rows of sources the loader has not seen: names of GPUs, sharding, precision, frameworks; jobs that fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.catalog import Catalog
from sim.cli.main import main
from sim.lowering.plan import memory_by_stage
from sim.validate.boards import board_key, memory_in_name, stated_power
from sim.validate.fits import TOLERANCE
from sim.validate.frameworks import framework_of
from sim.validate.rows import Row
from sim.validate.runs_loader import Run, load_run

LLAMA = {
    "id": "X-1", "model": "Llama-3-8B", "framework": "PyTorch FSDP2", "gpu": "H100", "gpus": "8", "mbs": "1",
    "gbs": "8", "seq_len": "8192", "precision": "bf16",
}  # fmt: skip


def load(catalog: Catalog, **cells: str) -> Run:
    return load_run(Row({**LLAMA, **cells}), catalog)


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"), ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("A100 40GB", "a100-40gb"), ("A100-80G", "a100-80gb"), ("A100 PCIe", "a100-pcie-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"), ("H100 SXM5", "h100-80gb"),
        ("H100 NVL", "h100-nvl-94gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"), ("H100 PCIe", "h100-pcie-80gb"), ("DGX A100", "a100-80gb"),
        ("DGX-GB300", "gb300-279gb"), ("8x HGX H200", "h200-141gb"), ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("V100 16GB (p3.16xlarge)", "v100-16gb"), ("DGX-2", "v100-32gb"), ("p4d.24xlarge", "a100-40gb"),
        ("GeForce RTX 4090", "rtx-4090-24gb"), ("AMD Instinct MI250X", "mi250x-64gb"), ("TPUv4", "tpu-v4"),
        ("AMD MI300X OAM", "mi300x-192gb"), ("Intel Gaudi 2 HL-225H", "gaudi2-96gb"), ("Tesla T4", "t4"),
    ],
)  # fmt: skip
def test_names_of_devices(catalog: Catalog, text: str, device: str) -> None:
    assert load(catalog, gpu=text).cluster.main_device.name == device


@pytest.mark.parametrize("text", ["Cerebras CS-2", "Graphcore IPU", "Inferentia", "H1000", "CPU", ""])
def test_unknown_devices_stay_unknown(text: str) -> None:
    assert board_key(text) is None


@pytest.mark.parametrize(
    ("text", "gigabytes"),
    [("A100-SXM4-40GB", 40), ("V100 32 GB", 32), ("A100-80G", 80), ("A100", None), ("NVLink 600GB/s", None)],
)
def test_memory_in_names(text: str, gigabytes: float | None) -> None:
    assert memory_in_name(text) == gigabytes


@pytest.mark.parametrize(
    ("text", "watts"), [("500 W cap", 500), ("power limit 300W", 300), ("A100 @ 250W", 250), ("WMT", None)]
)
def test_power_in_texts(text: str, watts: float | None) -> None:
    assert stated_power(text) == watts


def test_a_lower_power_limit_slows_the_clock_and_not_the_memory(catalog: Catalog) -> None:
    usual, less = (load(catalog, gpu="A100", notes=notes).cluster.main_device for notes in ("", "300 W cap"))
    assert less.peak("bf16") / usual.peak("bf16") == pytest.approx((300 / 400) ** 0.5)
    assert less.memory_bandwidth == usual.memory_bandwidth
    assert less.peak_power == 300
    for notes in ("400 W", "1500 W host", "20 W"):  # its own limit, something else
        assert load(catalog, gpu="A100", notes=notes).cluster.main_device == usual


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("ZeRO stage 3", "zero3"), ("zero-3", "zero3"), ("stage2", "zero2"), ("ZeRO-1", "zero1"),
        ("FULL_SHARD", "zero3"), ("SHARD_GRAD_OP", "zero2"), ("NO_SHARD", "replicated"),
        ("none", "replicated"),
        ("fully sharded", "zero3"), ("distributed optimizer", "zero1"), ("ZeRO++", "zero3"),
        ("DDP", "replicated"),
        ("fsdp_grad_op(zero2)", "zero2"), ("HYBRID_SHARD", "zero3"),
    ],
)  # fmt: skip
def test_words_for_sharding(catalog: Catalog, text: str, state: str) -> None:
    run = load(catalog, shard=text, gpus="64", gbs="64", recompute="full")
    assert run.strategy.state == state
    assert "shard" not in run.assumed


def test_a_framework_may_name_the_sharding(catalog: Catalog) -> None:
    run = load(catalog, framework="DeepSpeed ZeRO-3", gpus="64", gbs="64")
    assert (run.strategy.state, run.framework) == ("zero3", "deepspeed")


@pytest.mark.parametrize(
    ("text", "ranks"), [("zero1 within 8 GPUs", 8), ("zero1 over all DP", None), ("HYBRID_SHARD", 8)]
)
def test_groups_that_share_state(catalog: Catalog, text: str, ranks: int | None) -> None:
    run = load(catalog, shard=text, gpus="64", gbs="64", framework="InternEvo")
    assert run.strategy.shard_ranks == ranks
    expected = "all_reduce" if "zero1" in text else "reduce_scatter"
    assert run.strategy.shard_reduction == expected


def test_quantised_sharding(catalog: Catalog) -> None:
    row = {"gpu": "V100-32GB", "gpus": "64", "gbs": "64", "gpus_per_node": "16", "framework": "DeepSpeed"}
    strategy = load(catalog, shard="ZeRO++", **row).strategy
    assert (strategy.gather_bits, strategy.backward_shard_ranks, strategy.compression) == (8, 16, "qsgd")
    strategy = load(catalog, shard="ZeRO-3 + hpZ", **row).strategy
    assert (strategy.gather_bits, strategy.backward_shard_ranks, strategy.compression) == (None, 16, "none")


@pytest.mark.parametrize(
    ("text", "gpu", "dtype"),
    [
        ("BF16 mixed", "A100", "bf16"), ("FP8-hybrid", "H100", "fp8"), ("half", "V100", "fp16"),
        ("single", "P100", "fp32"), ("int8", "TPU v5e", "int8"), ("", "A100", "bf16"), ("", "V100", "fp16"),
    ],
)  # fmt: skip
def test_words_for_precision(catalog: Catalog, text: str, gpu: str, dtype: str) -> None:
    assert load(catalog, precision=text, gpu=gpu).params["dtype"] == dtype


def test_what_a_row_leaves_open_is_chosen_so_that_it_fits(catalog: Catalog) -> None:
    """13 billion parameters replicated on 8 x 40 GB would take 208 GB each."""
    cells = {"model": "Llama 2 13B", "framework": "PyTorch", "gpu": "A100 40GB", "seq_len": "4096"}
    run = load(catalog, **cells)
    assert (run.strategy.state, run.strategy.recompute) == ("zero3", "full")
    needed = max(sum(stage.values()) for stage in memory_by_stage(run.scenario(catalog.calibration())))
    assert needed <= TOLERANCE * run.cluster.main_device.capacity
    assert {"shard", "recompute"} <= set(run.assumed)
    stated = load(catalog, **cells, shard="none", recompute="none")
    assert (stated.strategy.state, stated.strategy.recompute) == ("replicated", "none")


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        (
            {"framework": "Megatron-LM", "model": "GPT 39.1B", "gpu": "A100", "gpus": "512", "gbs": "1536"},
            (4, 1, 1),
        ),
        ({"framework": "Megatron-Core", "model": "GPT-3 175B", "gpus": "512", "gbs": "2048"}, (8, 2, 1)),
        ({"framework": "Megatron-Core", "model": "gpt-oss-120b", "gpus": "64", "gbs": "1280"}, (1, 1, 8)),
        ({"framework": "PyTorch FSDP", "model": "Llama 2 70B", "gpus": "128", "gbs": "128"}, (1, 1, 1)),
    ],
)
def test_degrees_that_nobody_stated_are_chosen_so_that_it_fits(
    catalog: Catalog, cells: dict[str, str], found: tuple[int, int, int]
) -> None:
    """A row without any degree; Megatron cuts the model, FSDP shards its weights."""
    run = load(catalog, **{**cells, "mbs": "", "seq_len": "2048"})
    strategy = run.strategy
    assert (strategy.tp, strategy.pp, strategy.ep) == found
    assert strategy.tp * strategy.pp * (strategy.dp or 1) == int(cells["gpus"])
    assert run.micro_batches * (strategy.micro_batch_size or 1) * (strategy.dp or 1) == int(cells["gbs"])
    needed = max(sum(stage.values()) for stage in memory_by_stage(run.scenario(catalog.calibration())))
    assert needed <= TOLERANCE * run.cluster.main_device.capacity


def test_activations_spill_where_the_processor_is_near(catalog: Catalog) -> None:
    """Megatron-Bridge trains Llama-3-70B with FSDP on 64 GB200 with its default recomputation."""
    cells = {"model": "Llama-3-70B", "gpu": "GB200", "gpus": "64", "gbs": "128", "mbs": "2", "shard": "fsdp"}
    run = load(catalog, **cells, framework="Megatron-Bridge (Megatron-Core)", precision="FP8")
    assert run.strategy.recompute == "selective"


def test_a_micro_batch_nobody_stated_shrinks_before_nothing_fits(catalog: Catalog) -> None:
    cells = {"model": "Gemma 2 9B", "framework": "PyTorch", "gpu": "V100 32GB", "seq_len": "1024", "mbs": ""}
    run = load(catalog, **cells, gbs="64")
    assert run.strategy.micro_batch_size == 1
    assert run.micro_batches == 8
    assert run.params["global_batch_size"] == 64


def test_more_accumulation_than_samples_is_one_sample_at_a_time(catalog: Catalog) -> None:
    run = load(catalog, mbs="", gbs="8", gpus="8", grad_accum="4", recompute="full")
    assert (run.strategy.micro_batch_size, run.micro_batches) == (1, 1)


def test_torchtitan_as_its_rows_say(catalog: Catalog) -> None:
    row = {
        "framework": "torchtitan (FSDP2/DTensor)",
        "shard": "fsdp2_full(zero3)",
        "recompute": "selective (op)",
    }
    eager, compiled = (load(catalog, **row, source_detail=text) for text in ("FSDP eager", "FSDP+compile"))
    assert eager.params["fused_kernels"] is False
    assert eager.params["fused_loss"] is False
    assert compiled.params["fused_kernels"] is True
    assert eager.strategy.recompute == "alternate"
    assert eager.params["fp32_gradients"] is True
    wide = {**row, "gpus": "64", "gbs": "64", "tp": "8", "seq_parallel": "yes"}
    plain, cut = (load(catalog, **wide, overlap=text) for text in ("FSDP2 prefetch", "AsyncTP"))
    assert (plain.strategy.overlap_tensor, cut.strategy.overlap_tensor) == (False, True)
    staged = load(catalog, **wide, pp="4", model="Llama-3-70B")
    assert staged.strategy.state == "zero1"  # gathered once, reduced in the last backward
    open_batch = load(
        catalog,
        **{**wide, "gpus": "512", "gbs": "256", "recompute": "full"},
        pp="8",
        mbs="",
        model="Llama-3.1-405B",
    )
    assert (open_batch.micro_batches, open_batch.strategy.micro_batch_size) == (8, 4)  # as many as stages
    looped = load(catalog, **{**wide, "pp": "4", "gbs": "64", "vpp": "interleaved (degree not stated)"})
    assert (looped.strategy.schedule, looped.strategy.virtual_stages) == ("interleaved", 2)


@pytest.mark.parametrize(
    ("framework", "precision", "wide"),
    [
        ("NeMo Megatron launcher", "bf16", True), ("Megatron-LM", "fp16", False),
        ("Megatron-LM", "bf16", True),
        ("NGC PyTorch (APEX DDP)", "fp16 amp", True), ("NGC MXNet (Horovod)", "fp16 amp", False),
        ("PaddlePaddle", "fp16 amp", True), ("PaddlePaddle", "fp16", False), ("InternEvo", "bf16", False),
        ("llm-foundry", "bf16", True), ("Megatron-Bridge (Megatron-Core)", "fp8", False),
        ("PyTorch", "fp32", False),
    ],
)  # fmt: skip
def test_width_of_gradients(catalog: Catalog, framework: str, precision: str, wide: bool) -> None:
    run = load(catalog, framework=framework, precision=precision, gpu="A100", shard="zero1", recompute="full")
    assert run.params["fp32_gradients"] is wide


def test_notes_tell_the_width_of_gradients(catalog: Catalog) -> None:
    cells = {"framework": "Megatron-Core", "shard": "zero1", "recompute": "full"}
    assert load(catalog, **cells, notes="grad_reduce_in_fp32").params["fp32_gradients"] is True
    pure = load(catalog, framework="llm-foundry", comm="mp_mode=PURE", recompute="full")
    assert pure.params["fp32_gradients"] is False


def test_nemo_of_2022_recomputes_nothing_unless_it_must(catalog: Catalog) -> None:
    """Block method with 0 layers, fused_adam (NeMo-Megatron-Launcher, conf/training)."""
    cells = {"framework": "NeMo Megatron launcher", "date": "2022-05", "gpu": "A100", "tp": "2", "mbs": "2"}
    small = load(catalog, **cells, model="GPT3-5B", gbs="1440", seq_len="2048")
    assert (small.strategy.recompute, small.strategy.state) == ("none", "replicated")
    large = load(catalog, **{**cells, "tp": "8", "mbs": "16"}, model="GPT-3 20B", gbs="16", seq_len="2048")
    assert large.strategy.recompute == "full"


def test_megatron_of_later_years_is_megatron_core() -> None:
    row = {**LLAMA, "framework": "Megatron-LM", "gpu": "A100"}
    assert framework_of(Row(row)).key == "megatron-lm"
    later = framework_of(Row({**row, "date": "2024-02"}))
    assert (later.key, later.flash) == ("megatron-core", True)


def test_a_file_without_a_row_to_simulate_is_refused_and_its_reasons_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "runs.csv", tmp_path / "pred.csv"
    file.write_text("id,model,gpu,gpus\na,Foo,A100,8\nb,Foo,Cerebras,1\n")
    assert main(["validate", "runs", "--fresh", "--measurements", str(file), "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert "must have a row that can be simulated" in said
    assert "no generator for Foo" in said
    assert [line.split(",")[6] for line in out.read_text().splitlines()] == ["status", "skipped", "skipped"]


def test_grace_boards_offload_what_does_not_fit(catalog: Catalog) -> None:
    """Megatron-Bridge's recipe for Llama 3 70B on 64 GB200 (FP8, micro-batches of 2) offloads 40 of 80."""
    cells = {
        "model": "Llama 3 70B", "framework": "Megatron-Bridge", "gpus": "64", "gbs": "256", "mbs": "2",
        "precision": "FP8-CS", "shard": "megatron_fsdp",
    }  # fmt: skip
    run = load(catalog, gpu="GB200", **cells)
    assert run.strategy.offload_activations
    assert run.strategy.offload_blocks == pytest.approx(40, abs=4)
    assert "offload_activations" in run.assumed
    needed = max(sum(stage.values()) for stage in memory_by_stage(run.scenario(catalog.calibration())))
    assert needed <= run.cluster.main_device.capacity
    assert not load(catalog, gpu="GB200", **{**cells, "shard": "none"}).strategy.offload_activations
    stated = load(catalog, gpu="GB200", recompute="full", **cells)
    assert not stated.strategy.offload_activations
