"""Models known by name whose architecture the columns of a row cannot say: generator and parameters of each.

Patterns are held against the name in lower case with hyphens for blanks; the first that is found decides.
"""

from __future__ import annotations

from typing import Any

from sim.architecture.hierarchical import CONVNEXTS, SWINS
from sim.architecture.mobile import EFFICIENTNETS
from sim.architecture.recommender import CRITEO_TERABYTE_ROWS

Params = dict[str, Any]
Named = tuple[str, str, Params]

GNMT_TOKENS = 60
"""Tokens of both languages that a GNMT sample counts for, padding aside."""

CNN_NAMES: tuple[Named, ...] = (
    *((rf"^(resnet|rn)-?{depth}(?!\d)", f"cnn:resnet{depth}", {}) for depth in (18, 34, 50, 101, 152, 200)),
    (r"^wide-?resnet-?50", "cnn:wide-resnet50-2", {}),
    (r"^wide-?resnet-?101", "cnn:wide-resnet101-2", {}),
    (r"^se-?resnext-?50", "cnn:se-resnext50-32x4d", {}),
    (r"^se-?resnext-?101", "cnn:se-resnext101-32x4d", {}),
    (r"^se-?resnet-?50", "cnn:se-resnet50", {}),
    (r"^resnext-?101.*64x4", "cnn:resnext101-64x4d", {}),
    (r"^resnext-?101.*32x8", "cnn:resnext101-32x8d", {}),
    (r"^resnext-?101", "cnn:resnext101-32x4d", {}),
    (r"^resnext-?50", "cnn:resnext50-32x4d", {}),
    (r"^googl-?e-?net|^inception-?(v1|1)(?!\d)", "cnn:googlenet", {}),
    (r"^inception-?v?3", "cnn:inception-v3", {}),
    (r"^inception-?v?4", "cnn:inception-v4", {}),
    (r"^alexnet", "cnn:alexnet", {}),
    *((rf"^vgg-?{depth}(?!\d)", f"cnn:vgg{depth}", {}) for depth in (11, 13, 16, 19)),
    *((rf"^densenet-?{depth}(?!\d)", f"cnn:densenet{depth}", {}) for depth in (121, 161, 169, 201)),
    (r"^squeezenet", "cnn:squeezenet", {}),
    (r"^mobilenet-?v?2", "cnn:mobilenet-v2", {}),
    (r"^mobilenet-?v?3-?small", "cnn:mobilenet-v3-small", {}),
    (r"^mobilenet-?v?3", "cnn:mobilenet-v3-large", {}),
    (r"^mobilenet", "cnn:mobilenet-v1", {}),
    (r"^mnasnet", "cnn:mnasnet", {}),
    (r"^efficientnet-?v2-?s", "cnn:efficientnet-v2-s", {"image_size": 300}),
    (r"^efficientnet-?v2-?m", "cnn:efficientnet-v2-m", {"image_size": 384}),
    *((rf"^efficientnet-?widese-?{name}(?!\d)", f"cnn:efficientnet-{name}",
       {"image_size": size, "wide_squeeze": True}) for name, (_, _, size) in EFFICIENTNETS.items()),
    *((rf"^efficientnet-?{name}(?!\d)", f"cnn:efficientnet-{name}", {"image_size": size})
      for name, (_, _, size) in EFFICIENTNETS.items()),
    (r"^ssd.*(resnet-?34|r34)|^single-?stage", "ssd300", {"backbone": "resnet34"}),
    (r"^ssd(300)?($|-)", "ssd300", {}),
    (r"^retina-?net.*(?<!next-)(?<!next)(resnet-?50|r50)", "retinanet",
     {"backbone": "resnet50", "num_classes": 91}),
    (r"^retina-?net", "retinanet", {}),
    (r"^yolo-?v?3", "yolov3", {}),
    (r"^(3d-?u-?net|u-?net-?3d|nn-?u-?net(?!.*2d))", "unet", {}),
    (r"^u-?net-?(industrial|tiny)|^tiny-?u-?net", "unet",
     {"image_size": 512, "depth": 1, "filters": (32, 32, 64, 128, 256), "pooled": True, "norm": False,
      "num_classes": 1}),
    (r"^u-?net(?!.*3d)", "unet",
     {"image_size": 572, "depth": 1, "filters": (64, 128, 256, 512, 1024), "pooled": True, "padded": False,
      "norm": False, "num_classes": 2}),
    (r"^deeplab-?v?3?(\+|-?plus|p)", "deeplab", {}),
    (r"^deeplab", "deeplab", {"plus": False}),
)  # fmt: skip
"""Image networks, with the paper's resolution; whether norms are fused is the framework's."""

_DLRM: Params = {
    "table_rows": CRITEO_TERABYTE_ROWS, "embedding_dim": 128, "bottom_mlp": (512, 256, 128),
    "top_mlp": (1024, 1024, 512, 256, 1),
}  # fmt: skip
OTHERS: tuple[Named, ...] = (
    (r"^(gnmt|nmt($|-))", "gnmt", {"sequence_length": 36, "target_length": 36}),
    (r"^jasper", "jasper", {"frames": 1620}),
    (r"^mask-?r-?cnn", "mask-rcnn", {"fused_norm": True}),
    (r"^faster-?r-?cnn", "mask-rcnn", {"fused_norm": True, "masks": False}),
    (r"^(ncf|neumf|neural-collaborative)", "ncf", {}),
    (r"^dlrm.*(dcn|v2)", "dlrm", {**_DLRM, "cross_layers": 3, "lookups": 8}),
    (r"^dlrm(?!.*kaggle)", "dlrm", _DLRM),
    (r"^dlrm", "dlrm", {}),
    (r"^tacotron", "tacotron2", {}),
    (r"^wave-?glow", "waveglow", {}),
    (r"^rnn-?t", "rnn-t", {}),
    (r"^wav2vec-?2?[.]?0?.*large", "wav2vec2", {"num_layers": 24, "hidden": 1024, "num_heads": 16}),
    (r"^(wav2vec|hubert)", "wav2vec2", {}),
    (r"^conformer.*(-s|small)(?![a-z])", "conformer", {"num_layers": 16, "hidden": 176, "num_heads": 4}),
    (r"^conformer.*(-m|medium)(?![a-z])", "conformer", {"num_layers": 18, "hidden": 256, "num_heads": 4}),
    (r"^conformer", "conformer", {}),
)
"""Other fields. Sentences of WMT16 English-German have 29 and 31 tokens; a batch of GNMT is drawn from
buckets 10 wide by the longer of both (``BucketingSampler`` of NVIDIA/DeepLearningExamples), and both are
padded to the batch's longest, near the bucket's top: the mean of the longer, 32, and half a bucket. A
batch of recordings is padded to its longest: of 32 utterances of LibriSpeech, none above 16.7 s, that is
16.2 s of 10 ms frames."""

_LLAMA: Params = {
    "activation": "swiglu", "norm": "rmsnorm", "bias": False, "tied_embeddings": False, "dropout": False,
}  # fmt: skip
_DEEPSEEK: Params = {
    **_LLAMA, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
_V3: Params = {
    **_DEEPSEEK, "num_layers": 61, "hidden": 7168, "num_heads": 128, "q_lora_rank": 1536, "num_experts": 256,
    "top_k": 8, "shared_experts": 1, "ffn_hidden": 2048, "router_bias": True, "dense_layers": 3,
    "dense_ffn_hidden": 18432, "vocabulary": 129_280, "sequence_length": 4096,
}  # fmt: skip
_V2: Params = {
    **_DEEPSEEK, "num_layers": 60, "hidden": 5120, "num_heads": 128, "q_lora_rank": 1536, "num_experts": 160,
    "top_k": 6, "shared_experts": 2, "ffn_hidden": 1536, "dense_layers": 1, "dense_ffn_hidden": 12288,
    "vocabulary": 102_400, "sequence_length": 4096,
}  # fmt: skip
_V2_LITE: Params = {
    **_DEEPSEEK, "num_layers": 27, "hidden": 2048, "num_heads": 16, "num_experts": 64, "top_k": 6,
    "shared_experts": 2, "ffn_hidden": 1408, "dense_layers": 1, "dense_ffn_hidden": 10944,
    "vocabulary": 102_400, "sequence_length": 4096,
}  # fmt: skip
_KIMI: Params = {
    **_V3, "num_heads": 64, "num_experts": 384, "dense_layers": 1, "vocabulary": 163_840,
}  # fmt: skip
_NEMOTRON_H: Params = {
    "norm": "rmsnorm", "bias": False, "tied_embeddings": False, "dropout": False, "num_kv_heads": 8,
    "head_dim": 128, "vocabulary": 131_072, "sequence_length": 8192,
}  # fmt: skip
_NEMOTRON_H_8B: Params = {
    **_NEMOTRON_H, "num_layers": 52, "hidden": 4096, "num_heads": 32, "ffn_hidden": 21504,
    "pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
}  # fmt: skip
_NEMOTRON_H_56B: Params = {
    **_NEMOTRON_H, "num_layers": 118, "hidden": 8192, "num_heads": 64, "ffn_hidden": 32768, "state": 256,
    "pattern": "M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-",
}  # fmt: skip
_NANO_30B: Params = {
    **_NEMOTRON_H, "num_layers": 52, "hidden": 2688, "num_heads": 32, "num_kv_heads": 2, "ffn_hidden": 1856,
    "num_experts": 128, "top_k": 6, "expand": 64 * 64 / 2688,
    "pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
}  # fmt: skip
_MAMBA2: Params = {
    "norm": "rmsnorm", "bias": False, "dropout": False, "pattern": "M", "groups": 1, "num_heads": 1,
    "vocabulary": 50_288, "sequence_length": 2048, "num_layers": 64, "hidden": 2560,
}  # fmt: skip

_SCOUT: Params = {
    **_LLAMA, "num_layers": 48, "hidden": 5120, "num_heads": 40, "num_kv_heads": 8, "head_dim": 128,
    "num_experts": 16, "top_k": 1, "shared_experts": 1, "ffn_hidden": 8192, "vocabulary": 202_048,
    "sequence_length": 8192,
}  # fmt: skip

TRANSFORMERS: tuple[Named, ...] = (
    (r"llama-?4-?scout", "moe", _SCOUT),
    (
        r"deepseek-?moe-?16b",
        "moe",
        {
            **_LLAMA,
            "num_layers": 28,
            "hidden": 2048,
            "num_heads": 16,
            "num_experts": 64,
            "top_k": 6,
            "shared_experts": 2,
            "ffn_hidden": 1408,
            "vocabulary": 102_400,
            "sequence_length": 4096,
        },
    ),
    (
        r"qwen-?1[.]5-?moe",
        "moe",
        {
            **_LLAMA,
            "num_layers": 24,
            "hidden": 2048,
            "num_heads": 16,
            "num_experts": 60,
            "top_k": 4,
            "shared_experts": 4,
            "ffn_hidden": 1408,
            "vocabulary": 151_936,
            "sequence_length": 4096,
        },
    ),
    (
        r"qwen-?2-?57b",
        "moe",
        {
            **_LLAMA,
            "num_layers": 28,
            "hidden": 3584,
            "num_heads": 28,
            "num_kv_heads": 4,
            "num_experts": 64,
            "top_k": 8,
            "shared_experts": 8,
            "ffn_hidden": 2560,
            "vocabulary": 151_936,
            "sequence_length": 4096,
        },
    ),
    (
        r"phi-?3[.]5-?moe",
        "moe",
        {
            **_LLAMA,
            "num_layers": 32,
            "hidden": 4096,
            "num_heads": 32,
            "num_kv_heads": 8,
            "num_experts": 16,
            "top_k": 2,
            "ffn_hidden": 6400,
            "vocabulary": 32_064,
            "sequence_length": 4096,
        },
    ),
    (r"deepseek-?(v3|r1)|^dsv3", "latent", _V3),
    (r"deepseek-?v2-?lite|deepseek-?coder-?v2-?lite", "latent", _V2_LITE),
    (r"deepseek-?(coder-?)?v2", "latent", _V2),
    (r"moonlight", "latent", {**_V2_LITE, "vocabulary": 163_840}),
    (r"kimi-?k2", "latent", _KIMI),
    (r"nemotron-?h-?8b", "hybrid", _NEMOTRON_H_8B),
    (r"nemotron-?h-?(47|56)b", "hybrid", _NEMOTRON_H_56B),
    (r"nemotron-?(3-?)?nano-?(30b|3)", "hybrid", _NANO_30B),
    (r"mamba-?2", "hybrid", _MAMBA2),
)
"""Latent attention (DeepSeek-AI 2024, arXiv:2405.04434, 2412.19437; Kimi K2: arXiv:2507.20534) and hybrids of
Mamba layers (NVIDIA 2025, arXiv:2504.03624; Nemotron 3 Nano: its released configuration; Dao & Gu 2024)."""

_BART: Params = {
    "encoder_layers": 12, "decoder_layers": 12, "hidden": 1024, "num_heads": 16, "vocabulary": 50265,
    "max_positions": 1026,
}  # fmt: skip
_BART_BASE: Params = {**_BART, "encoder_layers": 6, "decoder_layers": 6, "hidden": 768, "num_heads": 12}
_TRANSLATION: Params = {
    "encoder_layers": 6, "decoder_layers": 6, "hidden": 1024, "num_heads": 16, "vocabulary": 33708,
    "sequence_length": 32, "target_length": 32,
}  # fmt: skip
_TRANSLATION_BASE: Params = {**_TRANSLATION, "hidden": 512, "num_heads": 8}
WHISPERS = (
    ("tiny", 4, 384), ("base", 6, 512), ("small", 12, 768), ("medium", 24, 1024), ("large", 32, 1280),
)  # fmt: skip
"""Name, blocks of the encoder and of the decoder, width."""


def _whisper(layers: int, hidden: int) -> Params:
    return {
        "encoder_layers": layers, "decoder_layers": layers, "hidden": hidden, "num_heads": hidden // 64,
        "vocabulary": 51_866, "sequence_length": 1500, "target_length": 448,
    }  # fmt: skip


_XL_BASE: Params = {
    "num_layers": 16, "hidden": 512, "num_heads": 8, "ffn_hidden": 2048, "sequence_length": 192,
    "memory_length": 192, "vocabulary": 267_735, "max_positions": 192,
}  # fmt: skip
_XL_LARGE: Params = {
    "num_layers": 18, "hidden": 1024, "num_heads": 16, "ffn_hidden": 4096, "sequence_length": 384,
    "memory_length": 384, "embedding_division": 4, "vocabulary": 267_735, "max_positions": 384,
}  # fmt: skip


def _t5(layers: int, hidden: int, heads: int, width: int) -> Params:
    return {
        "encoder_layers": layers, "decoder_layers": layers, "hidden": hidden, "num_heads": heads,
        "head_dim": 64, "ffn_hidden": width, "sequence_length": 512, "target_length": 128,
        "activation": "swiglu", "norm": "rmsnorm", "bias": False,
    }  # fmt: skip


_T5 = r"^(flan-?|google-)?(m|um)?t5-?(v1[._]1-?)?"
SEQUENCES: tuple[Named, ...] = (
    (rf"{_T5}(3b|xl)(?![a-z])", "encoder-decoder", _t5(24, 2048, 32, 5120)),
    (rf"{_T5}(11b|xxl)", "encoder-decoder", _t5(24, 4096, 64, 10240)),
    (rf"{_T5}(large|0\.7|7[0-9]0m)", "encoder-decoder", _t5(24, 1024, 16, 2816)),
    (rf"{_T5}(base|2[0-9]0m)", "encoder-decoder", _t5(12, 768, 12, 2048)),
    (rf"{_T5}small", "encoder-decoder", _t5(8, 512, 6, 1024)),
    (r"^m?bart-?large", "encoder-decoder", _BART),
    (r"^m?bart-?base", "encoder-decoder", _BART_BASE),
    (r"^m?bart$", "encoder-decoder", _BART),
    *(
        (rf"^whisper-?{name}", "encoder-decoder", _whisper(layers, hidden))
        for name, layers, hidden in WHISPERS
    ),
    (r"^transformer-?(\w+[-_])*big", "encoder-decoder", _TRANSLATION),
    (r"^transformer-?base", "encoder-decoder", _TRANSLATION_BASE),
    (r"^transformer($|-\(?(wmt|mlperf|translation|nmt|en))", "encoder-decoder", _TRANSLATION),
    (r"^transformer-?xl-?base", "transformer-xl", _XL_BASE),
    (r"^transformer-?xl-?large", "transformer-xl", _XL_LARGE),
)
"""Sizes of the papers (T5 v1.1: Raffel et al. 2020, with one table for input and output as NeMo shares it;
BART: Lewis et al. 2020; Whisper: Radford et al. 2022, 30 s of speech, its two convolutions left out;
Transformer: Vaswani et al. 2017; Transformer-XL: Dai et al. 2019 with the segment lengths of
NVIDIA/DeepLearningExamples). A translation sample is taken as 32 tokens each way."""

_SDXL: Params = {
    "channels": (320, 640, 1280), "depths": (0, 2, 10), "middle_depth": 10, "context": 2048, "head_dim": 64,
    "added_width": 2816, "latent_size": 128, "text_encoders": ("clip-l", "openclip-bigg"),
}  # fmt: skip
_SD2: Params = {"context": 1024, "head_dim": 64, "text_encoders": ("openclip-h",)}


def _dit(layers: int, hidden: int, heads: int) -> Params:
    return {"num_layers": layers, "hidden": hidden, "num_heads": heads}


DITS = {"xl": (28, 1152, 16), "l": (24, 1024, 16), "b": (12, 768, 12), "s": (12, 384, 6)}
"""Blocks, width, heads."""
DIFFUSION: tuple[Named, ...] = (
    (r"sdxl|stable-?diffusion-?xl|^sd-?xl", "diffusion-unet", _SDXL),
    (r"^(stable-?diffusion|sd)-?v?2[.]?1?.*768", "diffusion-unet", {**_SD2, "latent_size": 96}),
    (r"^(stable-?diffusion|sd)-?v?2", "diffusion-unet", _SD2),
    (r"^stable-?diffusion(?!-?v?3)|^sd-?v?1|^latent-?diffusion", "diffusion-unet", {}),
    *(
        (rf"^dit-?{size}/?{patch}", "dit", {**_dit(*known), "patch_size": patch})
        for size, known in DITS.items()
        for patch in (4, 8)
    ),
    *((rf"^dit-?{size}(?![a-z])", "dit", _dit(*known)) for size, known in DITS.items()),
)
"""Diffusion models; MLPerf's Stable Diffusion is version 2 at 512 x 512 with stored latents."""


def _albert(layers: int, hidden: int, heads: int, width: int) -> Params:
    return {
        "num_layers": layers, "hidden": hidden, "num_heads": heads, "ffn_hidden": width, "vocabulary": 30_000,
        "sequence_length": 512, "max_positions": 512, "token_types": 2, "causal": False, "head": "mlm",
    }  # fmt: skip


ENCODERS: tuple[Named, ...] = (
    (r"albert-?xx-?large", "albert", _albert(12, 4096, 64, 16_384)),
    (r"albert-?x-?large", "albert", _albert(24, 2048, 16, 8192)),
    (r"albert-?large", "albert", _albert(24, 1024, 16, 4096)),
    (r"^albert", "albert", _albert(12, 768, 12, 3072)),
    (r"clip.*(vit-?)?l-?/?14", "clip", {
        "num_layers": 24, "hidden": 1024, "num_heads": 16, "patch_size": 14, "text_hidden": 768,
        "projection": 768}),
    (r"clip.*(vit-?)?h-?/?14", "clip", {
        "num_layers": 32, "hidden": 1280, "num_heads": 16, "patch_size": 14, "text_layers": 24,
        "text_hidden": 1024, "projection": 1024}),
    (r"clip.*(vit-?)?b-?/?16", "clip", {"num_layers": 12, "hidden": 768, "num_heads": 12}),
    (r"clip.*(vit-?)?b-?/?32|^clip$", "clip",
     {"num_layers": 12, "hidden": 768, "num_heads": 12, "patch_size": 32}),
)  # fmt: skip
"""ALBERT (version 2's sizes) and CLIP."""

VISION: tuple[Named, ...] = (
    (r"^(vit|deit)-?(ti|tiny)", "vit", {"num_layers": 12, "hidden": 192, "num_heads": 3}),
    (r"^(vit|deit)-?(s|small)(?![a-z])", "vit", {"num_layers": 12, "hidden": 384, "num_heads": 6}),
    (r"^(vit|deit)-?(b|base)(?![a-z])", "vit", {"num_layers": 12, "hidden": 768, "num_heads": 12}),
    (r"^vit-?(l|large)(?![a-z])", "vit", {"num_layers": 24, "hidden": 1024, "num_heads": 16}),
    (r"^vit-?(h|huge)(?![a-z])", "vit",
     {"num_layers": 32, "hidden": 1280, "num_heads": 16, "patch_size": 14}),
    (r"^vit-?(g|giant)(?![a-z])", "vit",
     {"num_layers": 40, "hidden": 1408, "num_heads": 16, "ffn_hidden": 6144, "patch_size": 14}),
    *((rf"^convnext-?({size[0]}|{size})(?![a-z])", f"convnext-{size}", {}) for size in CONVNEXTS),
    *((rf"^swin-?({size[0]}|{size})(?![a-z])", f"swin-{size}", {}) for size in SWINS),
)  # fmt: skip
"""Vision transformers (Dosovitskiy et al. 2021, arXiv:2010.11929, table 1; Zhai 2022) and staged networks."""

NAMED: tuple[Named, ...] = (*CNN_NAMES, *OTHERS, *SEQUENCES, *TRANSFORMERS, *DIFFUSION, *ENCODERS, *VISION)
"""All of them."""
