"""Models that rows name without sizes: parameters against those their authors publish.

Figures are of the models' cards and configurations on Hugging Face (parameters of safetensors files) or of
their papers; vision and multi-token heads are not counted.
"""

from __future__ import annotations

import pytest

from sim.catalog import Catalog
from sim.models.compute import model_flops
from sim.validate.rows import Row
from sim.validate.runs_loader import Run, load_run

BILLIONS = {
    "Llama-3.2-1B": 1.236, "Llama-3.2-3B": 3.213, "Meta-Llama-3-8B": 8.030, "Llama-3.1-70B-Instruct": 70.554,
    "Llama 3.1 405B": 405.85, "meta-llama/Llama-2-7b-hf": 6.738, "Llama 2 13B": 13.016, "LLaMA2-70B": 68.977,
    "CodeLlama-34b": 33.744, "LLaMA-33B": 32.529, "LLaMA-65B": 65.286, "TinyLlama-1.1B": 1.100,
    "Mixtral-8x7B": 46.703, "Mixtral 8x22B": 140.621, "Mistral-7B-v0.1": 7.242, "Mistral-Nemo-12B": 12.248,
    "Mistral-Small-24B": 23.572, "Mistral-Large-Instruct-2407": 122.61, "Qwen3-30B-A3B": 30.532,
    "Qwen3-235B-A22B": 235.094, "Qwen3-0.6B": 0.596, "Qwen3-1.7B": 1.721, "Qwen3-4B": 4.022,
    "Qwen3-8B": 8.191, "Qwen3-14B": 14.768, "Qwen3-32B": 32.762, "Qwen2.5-0.5B": 0.494, "Qwen2.5-1.5B": 1.544,
    "Qwen2.5-3B": 3.086, "Qwen2.5-7B": 7.616, "Qwen2.5-14B": 14.770, "Qwen2.5-32B": 32.764,
    "Qwen2.5-72B": 72.706, "gemma-3-1b": 1.000, "gemma-3-4b": 3.880, "gemma-3-12b": 11.766,
    "gemma-3-27b": 27.009, "gemma-2-2b": 2.614, "gemma-2-9b": 9.242, "gemma-2-27b": 27.227,
    "gemma-2b": 2.506, "gemma-7b": 8.538, "gpt-oss-20b": 20.91, "gpt-oss-120b": 116.83, "DBRX": 131.6,
    "Grok-1 314B": 314, "OLMoE-1B-7B": 6.92, "OLMo-1B": 1.177, "OLMo-7B": 6.888, "OLMo-2-13B": 13.72,
    "OLMo-2-32B": 32.23, "Phi-3-mini-4k-instruct": 3.821, "phi-4": 14.66, "phi-1": 1.418, "phi-2": 2.78,
    "Yi-6B": 6.061, "Yi-9B": 8.829, "Yi-34B": 34.389, "Baichuan2-7B": 7.506, "Baichuan2-13B": 13.897,
    "InternLM-7B": 7.321, "InternLM-20B": 20.09, "InternLM2-7B": 7.738, "InternLM2-20B": 19.861,
    "chatglm2-6b": 6.244, "Nemotron-4 15B": 15.6, "Nemotron-4-340B": 341, "GPT-NeoX-20B": 20.55,
    "gpt-neo-1.3B": 1.316, "gpt-neo-2.7B": 2.651, "GPT-J-6B": 6.051, "pythia-160m": 0.162,
    "pythia-410m": 0.405, "pythia-1b": 1.012, "pythia-1.4b": 1.415, "pythia-2.8b": 2.775,
    "pythia-6.9b": 6.857, "pythia-12b": 11.846, "falcon-7b": 6.92, "falcon-40b": 41.30, "falcon-180B": 178.7,
    "bloom-560m": 0.559, "bloom-1b1": 1.065, "bloom-1b7": 1.722, "bloom-3b": 3.003, "bloom-7b1": 7.069,
    "BLOOM": 176.25, "opt-125m": 0.125, "opt-1.3b": 1.316, "opt-2.7b": 2.652, "opt-6.7b": 6.658,
    "opt-13b": 12.853, "opt-30b": 29.975, "opt-66b": 65.72, "MPT-7B": 6.65, "MPT-30B": 29.96,
    "starcoder2-3b": 3.03, "starcoder2-7b": 7.174, "starcoder2-15b": 15.958, "starcoder": 15.52,
    "MT-NLG 530B": 530, "PaLM 8B": 8.63, "PaLM 62B": 62.5, "PaLM 540B": 540.35, "gpt2": 0.1244,
    "gpt2-medium": 0.3548, "gpt2-large": 0.774, "gpt2-xl": 1.5576, "GPT-2 8.3B": 8.3, "gpt3_175b": 174.6,
    "GPT-3 13B": 12.85, "GPT-3 6.7B": 6.66, "GPT-3 2.7B": 2.65, "GPT-3 XL": 1.316, "GPT 7.5B": 7.5,
    "GPT 18.4B": 18.4, "GPT 39.1B": 39.1, "GPT 76.1B": 76.1, "GPT 145.6B": 145.6, "GPT 310.1B": 310.1,
    "GPT 1008B": 1008.0, "GPT-530B": 530, "BERT-base": 0.110, "BERT-large": 0.3355, "RoBERTa-base": 0.125,
    "RoBERTa-large": 0.355, "Megatron-BERT 3.9B": 3.9, "DeepSeek-V3": 671.0, "DeepSeek-V2": 235.7,
    "DeepSeek-V2-Lite": 15.7, "Kimi-K2": 1026, "Moonlight-16B-A3B": 15.96, "Nemotron-H-8B": 8.1,
    "Nemotron-H-56B": 56.1, "Llama-4-Scout-17B-16E": 107.8, "mamba2-2.7b": 2.70, "bart-base": 0.139,
    "bart-large": 0.406, "Transformer-big": 0.21, "Whisper large": 1.543, "ViT-Ti/16": 0.00572,
    "ViT-S/16": 0.02205, "ViT-B/16": 0.08657, "vit_base_patch16_224": 0.08657, "ViT-L/16": 0.3043,
    "ViT-H/14": 0.6320, "ViT-g/14": 1.011, "ResNet-18": 0.01169, "ResNet-34": 0.021798,
    "ResNet-50": 0.025557, "ResNet-101": 0.044549, "ResNet-152": 0.060193, "Inception v3": 0.027161,
    "AlexNet": 0.0611, "VGG16": 0.13836, "VGG19": 0.14367, "ResNeXt101-32x4d": 0.04418,
    "SE-ResNeXt101-32x4d": 0.04896, "EfficientNet-B0": 0.005289, "EfficientNet-B4": 0.019342,
    "GNMT": 0.160, "Jasper": 0.333, "Mask R-CNN": 0.0444, "NCF": 0.0318, "ELECTRA-base": 0.110,
    "Transformer-XL base": 0.192, "SSD-ResNet34": 0.0199, "RetinaNet-R50": 0.0341, "YOLOv3": 0.06195,
    "3D U-Net": 0.03119, "nnU-Net": 0.03119, "U-Net Medical": 0.03103, "Stable Diffusion v2": 0.8659,
    "SD 1.5": 0.8595, "SDXL": 2.5675, "DiT-XL/2": 0.675, "Faster R-CNN": 0.0417, "Transformer": 0.21,
    "BART": 0.406,
    "ALBERT-xxlarge-v2": 0.2226, "albert-base-v2": 0.0117, "ALBERT-large": 0.0177,
    "CLIP ViT-B/32": 0.15128, "CLIP-ViT-L/14": 0.42762,
    "Swin-T": 0.02829, "swin_base_patch4_window7_224": 0.08777, "ConvNeXt-B": 0.08859,
    "MobileNet v2": 0.003505, "DenseNet-161": 0.02868, "Inception-v4": 0.04268, "Wide ResNet-50-2": 0.06888,
    "Granite-3.1-8B": 8.171, "SmolLM-360M": 0.362, "SmolLM2-1.7B": 1.711, "c4ai-command-r-v01 35B": 34.98,
    "Command R+": 103.81, "glm-4-9b": 9.40, "ESM2-650M": 0.651, "ESM-2 3B": 2.839,
    "Megatron-LM 8.3B": 8.3,  "Qwen1.5-MoE-A2.7B": 14.316,
    "Qwen2-57B-A14B": 57.409, "Phi-3.5-MoE-instruct": 41.873, "DeBERTa-v3-base": 0.184,
}  # fmt: skip
LOOSE = {
    "GLM-130B": (130, 0.02), "Nemotron-3-Nano-30B-A3B": (31.6, 0.02), "DistilBERT": (0.0664, 0.02),
    "Turing-NLG 17B": (17, 0.02), "GPT 3.6B": (3.6, 0.02), "GPT 1.7B": (1.7, 0.03), "GPT-22B": (22, 0.02),
    "BERT-1.3B": (1.3, 0.02), "GPT-2 2.5B": (2.5, 0.02), "OPT-175B": (175, 0.01),
    "whisper-small": (0.2417, 0.02), "whisper-medium": (0.7639, 0.01), "DeBERTa-v2-xxlarge": (1.567, 0.02),
    "DeBERTa-v3-large": (0.435, 0.02),
    "deepseek-moe-16b-base": (16.376, 0.04),  # its first block is dense
    "deberta-base": (0.139, 0.11), "XLNet-base": (0.117, 0.08),  # relative positions have own weights
    "UNet Industrial": (0.00182, 0.09),  # its blocks are not quite those of a U-Net
    "T5-3B": (2.85, 0.025), "T5-11B": (11.135, 0.025),  # NeMo's share the table of the head
    "Gopher 280B": (280, 0.08), "Chinchilla 70B": (70, 0.08),  # relative positions have weights of their own
}  # fmt: skip
FORWARD_GFLOPS = {
    # torchvision's figures (multiply-adds), doubled
    "ResNet-18": 2 * 1.81, "ResNet-34": 2 * 3.66, "ResNet-50": 2 * 4.09, "ResNet-101": 2 * 7.80,
    "ResNet-152": 2 * 11.51, "VGG16": 2 * 15.47, "VGG19": 2 * 19.63, "AlexNet": 2 * 0.71,
    "EfficientNet-B0": 2 * 0.386, "CLIP ViT-B/32": 14.78, "CLIP ViT-L/14": 175.33,  # open_clip's table
    "ViT-B/16": 2 * 17.56, "ViT-L/16": 2 * 61.55, "ViT-H/14": 2 * 167.3,
}  # fmt: skip


def named(catalog: Catalog, model: str) -> Run:
    cells = {"id": "X-1", "model": model, "gpu": "H100", "gpus": "8", "mbs": "1", "precision": "bf16"}
    return load_run(Row({**cells, "shard": "fsdp", "recompute": "full"}), catalog)


@pytest.mark.parametrize(
    ("model", "billions", "tolerance"),
    [(m, b, 0.01) for m, b in BILLIONS.items()] + [(m, *known) for m, known in LOOSE.items()],
)
def test_parameters(catalog: Catalog, model: str, billions: float, tolerance: float) -> None:
    found = named(catalog, model).workload().num_parameters / 1e9
    assert found == pytest.approx(billions, rel=tolerance)


@pytest.mark.parametrize(("model", "gflops"), FORWARD_GFLOPS.items())
def test_flops(catalog: Catalog, model: str, gflops: float) -> None:
    assert model_flops(named(catalog, model).workload()) / 1e9 == pytest.approx(gflops, rel=0.02)


@pytest.mark.parametrize(
    ("model", "active"), [("Mixtral-8x7B", 12.88), ("DeepSeek-V3", 37.6), ("Qwen3-30B-A3B", 3.35)]
)
def test_experts_compute_what_is_active(catalog: Catalog, model: str, active: float) -> None:
    """A token costs twice the active parameters, and attention; tables are only looked up."""
    workload = named(catalog, model).workload()
    length, table = workload.sequence_length or 1, workload.vocabulary * workload.hidden / 1e9
    attention = sum(
        4.0 * op.query_length * op.key_length * op.head_dim * op.heads
        for layer in workload.layers
        for op in layer.ops
        if op.op == "attention"
    )
    found = (model_flops(workload) - attention) / length / 2e9
    assert found == pytest.approx(active - table, rel=0.03)
