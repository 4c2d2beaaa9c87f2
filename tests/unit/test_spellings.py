"""Cells as published tables write them: models, precision, sharding, recomputation, lengths, units."""

from __future__ import annotations

import pytest

from sim.catalog import Catalog
from sim.models.compute import model_flops
from sim.validate.rows import Row
from sim.validate.runs_loader import Run, load_run

CELLS = {
    "id": "X-1", "model": "Llama 3 8B", "framework": "PyTorch FSDP", "gpu": "A100", "gpus": "64", "mbs": "1",
    "gbs": "128", "seq_len": "4096", "precision": "bf16", "shard": "full", "recompute": "full",
}  # fmt: skip


def load(catalog: Catalog, **cells: str) -> Run:
    return load_run(Row({**CELLS, **cells}), catalog, fit=False)


MODELS = {
    "Llama 3.1 405B": ("transformer", 405.9), "Llama-3.3-70B-Instruct": ("transformer", 70.6),
    "LLaMA-2 7B": ("transformer", 6.74), "LLaMA 65B": ("transformer", 65.3),
    "GPT-3 175B": ("transformer", 174.6), "GPT3 (175B)": ("transformer", 174.6),
    "GPT-2 XL": ("transformer", 1.56), "GPT2-1.5B": ("transformer", 1.56),
    "BERT-Large phase 2": ("transformer", 0.336), "BERT Large Pretraining P1": ("transformer", 0.336),
    "bert-large-uncased": ("transformer", 0.336), "BERT": ("transformer", 0.336),
    "roberta_base": ("transformer", 0.125), "DistilBERT-base-uncased": ("transformer", 0.068),
    "ResNet50 v1.5": ("cnn:resnet50", 0.0256), "resnet50_v1.5": ("cnn:resnet50", 0.0256),
    "RN50": ("cnn:resnet50", 0.0256), "ResNet 152": ("cnn:resnet152", 0.0602),
    "VGG-16": ("cnn:vgg16", 0.138), "Inception V3": ("cnn:inception-v3", 0.0272),
    "MobileNet V1": ("cnn:mobilenet-v1", 0.0042), "EfficientNetV2-S": ("cnn:efficientnet-v2-s", 0.0215),
    "Mask-RCNN R50 FPN": ("mask-rcnn", 0.0444), "SSD-ResNet34": ("ssd300", 0.0199),
    "UNet3D": ("unet", 0.0312), "Stable Diffusion v2": ("diffusion-unet", 0.866),
    "stable-diffusion-xl-base-1.0": ("diffusion-unet", 2.567), "GNMT v2": ("gnmt", 0.161),
    "Transformer (WMT)": ("encoder-decoder", 0.211), "T5-11B": ("encoder-decoder", 11.0),
    "Mixtral 8x7B": ("moe", 46.7), "mixtral_8x22b": ("moe", 140.6), "DeepSeek V3 671B": ("latent", 671.0),
    "Qwen3 30B A3B": ("moe", 30.5), "GPT-OSS 120B": ("moe", 116.8), "vit_large_patch16_224": ("vit", 0.304),
    "Swin-L": ("swin-large", 0.197), "meta-llama/Meta-Llama-3-8B": ("transformer", 8.03),
}  # fmt: skip


@pytest.mark.parametrize(("text", "known"), MODELS.items())
def test_models(catalog: Catalog, text: str, known: tuple[str, float]) -> None:
    run = load(catalog, model=text, seq_len="")
    assert run.generator == known[0]
    assert run.workload().num_parameters / 1e9 == pytest.approx(known[1], rel=0.01)


PRECISIONS = {
    "bf16 mixed": "bf16", "BF16-Mixed": "bf16", "bf16-true": "bf16", "bfloat16": "bf16", "AMP": "fp16",
    "FP16": "fp16", "float16": "fp16", "mixed precision": "fp16", "Mixed (FP16)": "fp16", "16-mixed": "fp16",
    "apex O1": "fp16", "O2": "fp16", "half": "fp16", "FP32": "fp32", "float32": "fp32", "32-true": "fp32",
    "single": "fp32", "full precision": "fp32", "no AMP": "fp32", "O0": "fp32",
    "FP32 (TF32 disabled)": "fp32",
    "TF32": "tf32", "fp8": "fp8", "FP8 hybrid": "fp8", "FP8-CS": "fp8", "MXFP8": "fp8", "float8 row": "fp8",
    "NVFP4": "fp4", "MXFP4": "fp4", "INT8": "int8",
}  # fmt: skip


@pytest.mark.parametrize(("text", "dtype"), PRECISIONS.items())
def test_precisions(catalog: Catalog, text: str, dtype: str) -> None:
    assert load(catalog, gpu="H100", precision=text).params["dtype"] == dtype


@pytest.mark.parametrize(("gpu", "dtype"), [("A100", "tf32"), ("V100", "fp32"), ("MI100", "fp32")])
def test_unstated_precision_of_images(catalog: Catalog, gpu: str, dtype: str) -> None:
    run = load(catalog, gpu=gpu, model="ResNet-50", precision="")
    assert run.params["dtype"] == dtype
    assert "precision" in run.assumed


RECOMPUTATIONS = {
    "full": "full", "full (uniform, 1 layer)": "full", "uniform": "full", "block": "full", "yes": "full",
    "True": "full", "on": "full", "AC": "full", "activation checkpointing": "full",
    "gradient checkpointing": "full", "full activation recomputation": "full", "selective": "selective",
    "selective recompute": "selective", "selective (op)": "alternate", "SAC": "alternate", "none": "none",
    "no": "none", "off": "none", "False": "none", "0": "none", "no activation checkpointing": "none",
    "without recomputation": "none",
}  # fmt: skip


@pytest.mark.parametrize(("text", "policy"), RECOMPUTATIONS.items())
def test_recomputation(catalog: Catalog, text: str, policy: str) -> None:
    run = load(catalog, recompute=text)
    assert run.strategy.recompute == policy
    assert "recompute" not in run.assumed


@pytest.mark.parametrize(
    ("notes", "policy"),
    [
        ("with activation checkpointing", "full"), ("gradient checkpointing on", "full"),
        ("no activation recomputation, flash attention", "none"), ("selective checkpointing", "selective"),
    ],
)  # fmt: skip
def test_recomputation_in_notes(catalog: Catalog, notes: str, policy: str) -> None:
    assert load(catalog, recompute="", notes=notes).strategy.recompute == policy


SHARDINGS = {
    "FSDP2": "zero3", "HSDP": "zero3", "fully sharded": "zero3", "SHARD_GRAD_OP": "zero2",
    "DDP": "replicated",
    "ZeRO-Infinity stage 3": "zero3", "DeepSpeed ZeRO stage 2": "zero2", "zero_stage=1": "zero1",
    "distributed optimizer": "zero1", "megatron_fsdp": "zero3", "ZeRO-2 offload": "zero2", "DP": "replicated",
}  # fmt: skip


@pytest.mark.parametrize(("text", "state"), SHARDINGS.items())
def test_sharding(catalog: Catalog, text: str, state: str) -> None:
    run = load(catalog, shard=text)
    assert run.strategy.state == state
    assert run.strategy.offload_optimizer == ("offload" in text or "Infinity" in text)


LENGTHS = {
    "BERT-Large phase 1": 128, "BERT-Large phase 2": 512, "BERT-Large P2": 512,
    "BERT-large, seq 384": 384, "Llama 3 8B, sequence length 2048": 2048, "Llama 3 8B 8k context": 8192,
    "Llama 3 8B seq_len=4096": 4096, "Llama 3 8B (seqlen: 32k)": 32768,
}  # fmt: skip


@pytest.mark.parametrize(("text", "length"), LENGTHS.items())
def test_lengths_in_names(catalog: Catalog, text: str, length: int) -> None:
    run = load(catalog, model=text, seq_len="")
    assert run.params["sequence_length"] == length
    assert "seq_len" not in run.assumed


TOKENS = 128 * 4096
UNITS = {
    "s": 2.0, "sec": 2.0, "s/iteration": 2.0, "seconds per step": 2.0, "s/it": 2.0, "ms": 2e-3,
    "ms/step": 2e-3, "milliseconds": 2e-3, "it/s": 0.5, "iterations/sec": 0.5, "steps/s": 0.5,
    "samples/s": 64, "samples/sec": 64, "sequences/s": 64, "seq/s": 64, "samples per second": 64,
    "sequences/sec/GPU": 1.0, "samples/s/GPU": 1.0, "samples/s per device": 1.0, "tokens/s": TOKENS / 2,
    "tokens/sec": TOKENS / 2, "tokens per second": TOKENS / 2, "tok/s": TOKENS / 2,
    "tokens/s/GPU": TOKENS / 2 / 64, "tokens/s/chip": TOKENS / 2 / 64, "tokens/sec/device": TOKENS / 2 / 64,
    "tokens per second per GPU": TOKENS / 2 / 64, "ktokens/s": TOKENS / 2e3, "Mtokens/s": TOKENS / 2e6,
    "tokens/s (cluster)": TOKENS / 2,
}  # fmt: skip


@pytest.mark.parametrize(("unit", "value"), UNITS.items())
def test_units(catalog: Catalog, unit: str, value: float) -> None:
    """All say that a step of 128 samples of 4,096 tokens on 64 GPUs takes two seconds (or 2 us)."""
    seconds = load(catalog, value_native=str(value), unit_native=unit).measured_s
    assert seconds == pytest.approx(2e-6 if unit.startswith(("ms", "milli")) else 2.0)


@pytest.mark.parametrize(
    ("unit", "metric", "scale"),
    [
        ("TFLOP/s/GPU", "achieved", 64 * 1e12), ("TFLOPS per GPU", "", 64 * 1e12), ("PFLOP/s", "", 1e15),
        ("TFLOPs/device", "", 64 * 1e12), ("%", "MFU", 64 * 312e12 / 100), ("MFU %", "", 64 * 312e12 / 100),
    ],
)  # fmt: skip
def test_rates_of_computation(catalog: Catalog, unit: str, metric: str, scale: float) -> None:
    run = load(catalog, value_native="40", unit_native=unit, metric_native=metric)
    assert run.measured_s == pytest.approx(3 * 128 * model_flops(run.workload()) / (40 * scale))


@pytest.mark.parametrize(
    ("cells", "batch", "micro_batches"),
    [
        ({"gbs": "512", "mbs": "4"}, 512, 2), ({"gbs": "", "mbs": "4"}, 256, 1),
        ({"gbs": "", "mbs": "4", "grad_accum": "3"}, 768, 3),
        ({"gbs": "512", "mbs": "", "grad_accum": "2"}, 512, 2),
        ({"gbs": "1,024", "mbs": "2"}, 1024, 8),
    ],
)  # fmt: skip
def test_batches(catalog: Catalog, cells: dict[str, str], batch: int, micro_batches: int) -> None:
    run = load(catalog, **cells)
    assert (run.params["global_batch_size"], run.micro_batches) == (batch, micro_batches)
