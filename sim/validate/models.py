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
)


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
    family = row.text("family")
    if family in ("dense_lm", "moe_lm", "encoder_lm") or (row.whole("layers") and row.whole("hidden")):
        if family in ("encdec_lm", "seq2seq", "hybrid_lm", "diffusion"):
            raise Unsupported(f"no generator for {row.text('model')}")
        return _transformer(row, framework)
    raise Unsupported(f"no generator for {row.text('model')}")


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
