"""The model of a row -> a generator and its parameters."""

from __future__ import annotations

import re
from typing import Any

from sim.validate.frameworks import Framework
from sim.validate.hardware import Unsupported
from sim.validate.rows import Row

Params = dict[str, Any]

PADDED_VOCABULARY = 128
"""Megatron pads the vocabulary to a multiple of 128 times the tensor-parallel degree."""

CNN_NAMES: tuple[tuple[str, str, Params], ...] = (
    (r"^resnet-?50", "cnn:resnet50", {}),
    (r"^resnet-?101", "cnn:resnet101", {}),
    (r"^resnet-?152", "cnn:resnet152", {}),
    (r"^inception-?v?3", "cnn:inception-v3", {}),
    (r"^alexnet", "cnn:alexnet", {}),
    (r"^vgg-?16", "cnn:vgg16", {}),
    (r"^vgg-?19", "cnn:vgg19", {}),
    (r"^resnext-?101", "cnn:resnext101-32x4d", {}),
    (r"^se-?resnext-?101", "cnn:se-resnext101-32x4d", {}),
    (r"^efficientnet-?b0", "cnn:efficientnet-b0", {}),
    (r"^efficientnet-?b4", "cnn:efficientnet-b4", {"image_size": 380}),
    (r"^efficientnet-widese-b0", "cnn:efficientnet-b0", {"wide_squeeze": True}),
    (r"^efficientnet-widese-b4", "cnn:efficientnet-b4", {"image_size": 380, "wide_squeeze": True}),
)

_BART: Params = {
    "encoder_layers": 12, "decoder_layers": 12, "hidden": 1024, "num_heads": 16, "vocabulary": 50265,
    "max_positions": 1026,
}  # fmt: skip
_T5_3B: Params = {
    "encoder_layers": 24, "decoder_layers": 24, "hidden": 2048, "num_heads": 32, "head_dim": 64,
    "ffn_hidden": 5120, "sequence_length": 512, "target_length": 128, "activation": "swiglu",
    "norm": "rmsnorm", "bias": False,
}  # fmt: skip
_TRANSLATION: Params = {
    "encoder_layers": 6, "decoder_layers": 6, "hidden": 1024, "num_heads": 16, "vocabulary": 33708,
    "sequence_length": 32, "target_length": 32,
}  # fmt: skip
_XL_BASE: Params = {
    "num_layers": 16, "hidden": 512, "num_heads": 8, "ffn_hidden": 2048, "sequence_length": 192,
    "memory_length": 192,
}  # fmt: skip
_XL_LARGE: Params = {
    "num_layers": 18, "hidden": 1024, "num_heads": 16, "ffn_hidden": 4096, "sequence_length": 384,
    "memory_length": 384, "embedding_division": 4,
}  # fmt: skip

NAMED: tuple[tuple[str, str, Params], ...] = (
    (r"^m?t5-?3b", "encoder-decoder", _T5_3B),
    (r"^bart-?large", "encoder-decoder", _BART),
    (r"^transformer-?big", "encoder-decoder", _TRANSLATION),
    (r"^transformer-?xl base", "transformer-xl", _XL_BASE),
    (r"^transformer-?xl large", "transformer-xl", _XL_LARGE),
)
"""Models known by name: sizes of their papers (T5: Raffel et al. 2020, v1.1; BART: Lewis et al. 2020;
Transformer-big: Vaswani et al. 2017; Transformer-XL: Dai et al. 2019 with the segment lengths of
NVIDIA/DeepLearningExamples). A translation sample is taken as 32 tokens each way."""

WORDS_PER_SAMPLE = 32
XL_VOCABULARY = 267_735

DEFAULT_BATCH = (("efficientnet-?(widese-)?b0", 128), ("efficientnet", 64), ("resnet-?50", 256))
"""Samples of a device where a row has no batch at all; throughput hardly depends on it."""


def model_of(row: Row, framework: Framework) -> tuple[str, Params, list[str]]:
    """Generator, its parameters, and what had to be assumed.

    Raises
    ------
    Unsupported
        There is no generator for the model, or its sizes are not known.
    """
    name = row.text("model").lower()
    for pattern, generator, params in CNN_NAMES:
        if re.search(pattern, name):
            return generator, {**params, "fused_norm": framework.fused_norm}, []
    for pattern, generator, params in NAMED:
        if re.search(pattern, name):
            return _named(row, framework, generator, params)
    if name.startswith("electra"):
        return _electra(row, framework)
    family = row.text("family")
    if family in ("dense_lm", "moe_lm", "encoder_lm") or (row.whole("layers") and row.whole("hidden")):
        if family in ("encdec_lm", "seq2seq", "hybrid_lm", "diffusion"):
            raise Unsupported(f"no generator for {row.text('model')}")
        return _transformer(row, framework)
    raise Unsupported(f"no generator for {row.text('model')}")


def default_batch(row: Row) -> int | None:
    """Samples of a device to assume where a row gives no batch."""
    name = row.text("model").lower()
    return next((batch for pattern, batch in DEFAULT_BATCH if re.search(pattern, name)), None)


def _named(row: Row, framework: Framework, generator: str, known: Params) -> tuple[str, Params, list[str]]:
    assumed: list[str] = []
    params = {**known, "flash": framework.flash, "fused_kernels": framework.fused}
    if generator == "transformer-xl":
        params |= {"vocabulary": XL_VOCABULARY, "max_positions": params["sequence_length"]}
        params.pop("flash")
    elif "vocabulary" not in params:
        params["vocabulary"] = 250_112 if row.text("model").lower().startswith("m") else 32_128
    if "sequence_length" not in params:
        length = row.whole("seq_len")
        if length is None:  # fine-tuning for summaries: long articles, short summaries
            length, assumed = 1024, ["seq_len"]
        params |= {"sequence_length": length, "target_length": 64 if assumed else length}
    return generator, params, assumed


def _electra(row: Row, framework: Framework) -> tuple[str, Params, list[str]]:
    """ELECTRA-base; fine-tuning for SQuAD runs the discriminator alone."""
    sequence = row.whole("seq_len") or 512
    params: Params = {
        "num_layers": 12, "hidden": 768, "num_heads": 12, "vocabulary": 30_522, "sequence_length": sequence,
        "max_positions": 512, "token_types": 2, "causal": False, "embedding_norm": True,
        "fused_kernels": framework.fused,
    }  # fmt: skip
    if (row.whole("gbs") or 0) >= 8192:
        return "electra", params, []
    return "transformer", {**params, "head": "mlm", "masked_fraction": 1.0 / sequence}, []


def _transformer(row: Row, framework: Framework) -> tuple[str, Params, list[str]]:
    layers, hidden, heads = row.whole("layers"), row.whole("hidden"), row.whole("heads")
    if layers is None or hidden is None or heads is None:
        raise Unsupported("layers, hidden or heads unknown")
    assumed: list[str] = []
    sequence, vocabulary = row.whole("seq_len"), row.whole("vocab")
    if sequence is None:
        sequence, assumed = 2048 if row.text("family") != "encoder_lm" else 512, [*assumed, "seq_len"]
    if vocabulary is None:
        vocabulary, assumed = 50304, [*assumed, "vocab"]
    tp = row.whole("tp") or 1
    unit = PADDED_VOCABULARY * tp if tp > 1 or "megatron" in framework.key else 1
    kind = row.text("ffn_type").lower()
    gated = kind in ("swiglu", "geglu", "glu")
    params: Params = {
        "num_layers": layers,
        "hidden": hidden,
        "num_heads": heads,
        "num_kv_heads": row.whole("kv_heads"),
        "head_dim": row.whole("head_dim"),
        "ffn_hidden": row.whole("ffn"),
        "vocabulary": -(-vocabulary // unit) * unit,
        "sequence_length": sequence,
        "flash": framework.flash,
        "fused_kernels": framework.fused,
        "fused_loss": framework.fused_loss,
    }
    if row.text("family") == "encoder_lm":
        params |= _encoder(row, sequence)
    elif gated:
        params |= {
            "activation": "swiglu",
            "norm": "rmsnorm",
            "bias": False,
            "tied_embeddings": False,
            "dropout": False,
        }
    else:
        params |= {"max_positions": sequence, "dropout": not framework.flash}
    experts = row.whole("n_experts")
    if experts:
        width = row.whole("moe_ffn") or row.whole("ffn")
        if width is None:
            raise Unsupported("expert width unknown")
        params |= {"num_experts": experts, "top_k": row.whole("top_k") or 2, "ffn_hidden": width}
        return "moe", params, assumed
    return "transformer", params, assumed


def _encoder(row: Row, sequence: int) -> Params:
    """BERT; pre-training predicts 15 % of the tokens, at most 20 of 128 and 80 of 512."""
    fine_tune = re.search(r"fine|squad", row.text("model").lower()) or sequence == 384
    return {
        "max_positions": max(512, sequence),
        "token_types": 2,
        "causal": False,
        "embedding_norm": True,
        "head": "mlm",
        "masked_fraction": 1.0 / sequence if fine_tune else 20 / 128,
        "pooler": True,
        "dropout": True,
    }
