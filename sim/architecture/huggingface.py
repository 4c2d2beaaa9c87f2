"""A Hugging Face ``config.json`` as a generator and its parameters.

Names of sizes differ between model types; what a type implies without saying so (gated units, biases, learned
positions, tied embeddings) is in the tables below, from the modelling code of ``transformers``. Small things
that cost no time that could be seen (biases of queries and keys alone, norms of heads) are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sim.errors import InputError

Config = Mapping[str, Any]
Params = dict[str, Any]

_LLAMA: Params = {
    "activation": "swiglu",
    "norm": "rmsnorm",
    "bias": False,
    "tied_embeddings": False,
    "dropout": False,
}
_GPT: Params = {
    "activation": "gelu",
    "norm": "layernorm",
    "bias": True,
    "tied_embeddings": True,
    "dropout": False,
}
_BERT: Params = {
    "causal": False, "embedding_norm": True, "head": "mlm", "tied_embeddings": True, "dropout": True,
    "pooler": True,
}  # fmt: skip


@dataclass(frozen=True)
class _Type:
    """What a model type implies: its generator, parameters, and whether positions are learned."""

    generator: str = "transformer"
    implied: Params = field(default_factory=dict)
    learned_positions: bool = False


_DENSE = {
    name: _Type(implied=_LLAMA)
    for name in (
        "llama", "mistral", "qwen2", "qwen3", "phi3", "olmo", "olmo2", "granite", "internlm2", "smollm3",
        "ministral", "exaone4", "seed_oss", "glm4", "cohere", "nemotron", "helium",
    )
}  # fmt: skip
_TYPES: dict[str, _Type] = {
    **_DENSE,
    **{
        n: _Type(implied={**_LLAMA, "tied_embeddings": True})
        for n in ("gemma", "gemma2", "gemma3_text", "cohere2")
    },
    "nemotron": _Type(implied={**_LLAMA, "activation": "gelu", "norm": "layernorm"}),
    "starcoder2": _Type(implied={**_GPT, "tied_embeddings": True}),
    "stablelm": _Type(implied={**_LLAMA, "norm": "layernorm"}),
    "gpt2": _Type(implied=_GPT, learned_positions=True),
    "gpt_bigcode": _Type(implied=_GPT, learned_positions=True),
    "opt": _Type(implied=_GPT, learned_positions=True),
    "gpt_neo": _Type(implied=_GPT, learned_positions=True),
    "bloom": _Type(implied={**_GPT, "embedding_norm": True}),
    "gpt_neox": _Type(implied={**_GPT, "tied_embeddings": False}),
    "gptj": _Type(implied={**_GPT, "tied_embeddings": False}),
    "phi": _Type(implied={**_GPT, "tied_embeddings": False}),
    "falcon": _Type(implied={**_GPT, "bias": False}),
    "mpt": _Type(implied={**_GPT, "bias": False}),
    **{
        n: _Type(implied=_BERT, learned_positions=True)
        for n in ("bert", "roberta", "xlm-roberta", "camembert")
    },
    "distilbert": _Type(implied={**_BERT, "pooler": False}, learned_positions=True),
    "modernbert": _Type(implied={**_LLAMA, "causal": False, "head": "mlm", "tied_embeddings": True}),
    **{
        n: _Type("moe", _LLAMA)
        for n in (
            "mixtral",
            "qwen2_moe",
            "qwen3_moe",
            "olmoe",
            "granitemoe",
            "phimoe",
            "gpt_oss",
            "minimax",
            "glm4_moe",
        )
    },
    "deepseek_v2": _Type("latent", _LLAMA),
    "deepseek_v3": _Type("latent", {**_LLAMA, "router_bias": True}),
    "kimi_k2": _Type("latent", {**_LLAMA, "router_bias": True}),
    **{n: _Type("encoder-decoder", {"norm": "rmsnorm", "bias": False}) for n in ("t5", "mt5", "umt5")},
    **{
        n: _Type("encoder-decoder", {"bias": True}, learned_positions=True)
        for n in ("bart", "mbart", "pegasus", "marian", "m2m_100", "blenderbot")
    },
    "mamba2": _Type("hybrid", {**_LLAMA, "activation": "gelu", "tied_embeddings": True, "pattern": "M"}),
    "nemotron_h": _Type("hybrid", {**_LLAMA, "activation": "gelu"}),
    "bamba": _Type("hybrid", _LLAMA),
    "jamba": _Type("hybrid", _LLAMA),
}
_NAMES: dict[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "num_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_dim": ("head_dim", "d_kv"),
    "ffn_hidden": ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size", "encoder_ffn_dim"),
    "vocabulary": ("vocab_size",),
    "token_types": ("type_vocab_size",),
}  # fmt: skip
_POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
)
_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8"}
_DEFAULT_LENGTH, _LONGEST = 2048, 8192
"""Tokens of a training sequence where a configuration states no length, and at most: what it can do at
inference (131072 and more) says little of how it is trained."""


def read_config(path: str | Path) -> tuple[Params, dict[str, str]]:
    """A workload file's content from a ``config.json``, and what was assumed; the batch is left to the user.

    Parameters
    ----------
    path : path
        The model's ``config.json``.

    Returns
    -------
    (dict, dict)
        Fields; for fields that the configuration leaves open, what was taken and why.

    Raises
    ------
    InputError
        The file is no such configuration, its ``model_type`` is not known, or a size is missing.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError("workload", "be a readable JSON file", f"{path} ({error})") from None
    if not isinstance(data, dict) or "model_type" not in data:
        raise InputError("workload", "be a Hugging Face config.json (with model_type)", str(path))
    called = data.get("_name_or_path")
    if isinstance(data.get("text_config"), dict) and data["model_type"] not in _TYPES:
        data = data["text_config"]  # a vision-language model: its language model
    params = workload_of(data, where=str(path))
    head = {
        "schema": 1,
        "name": _name(called, Path(path), str(data["model_type"]), params),
        "description": f"{data['model_type']} from {Path(path).name}",
        "source": str(path),
        "optimizer": "adamw",
    }
    return {**head, **params}, {**_assumed(data, params), "optimizer": "optimizer adamw"}


def _name(called: Any, path: Path, kind: str, params: Params) -> str:
    """The name on the hub, that of a file with a name of its own, or type and size (``llama-32x4096``).

    Checkpoints in a folder state that folder as ``_name_or_path``, which says nothing.
    """
    if isinstance(called, str) and re.fullmatch(r"(?:\w[\w.-]*/)?\w[\w.-]*", called):
        return called.split("/")[-1]
    if path.stem != "config":
        return path.stem
    size = [str(params[name]) for name in ("num_layers", "hidden") if name in params]
    return "-".join([kind, "x".join(size)]) if size else kind


def _assumed(config: Config, params: Params) -> dict[str, str]:
    """What a configuration does not say of a training run, and what is taken instead."""
    longest, taken = _first(config, _POSITIONS), params["sequence_length"]
    reason = f"the configuration allows up to {longest}" if longest else "the configuration states none"
    found = {"sequence_length": f"sequence_length {taken} ({reason})"}
    if not (config.get("dtype") or config.get("torch_dtype")):
        found["dtype"] = f"dtype {params['dtype']}"
    return found


def workload_of(config: Config, *, where: str = "") -> Params:
    """Generator, its parameters and the precision of a configuration."""
    kind = str(config.get("model_type"))
    if kind not in _TYPES:
        known = ", ".join(sorted(_TYPES))
        raise InputError("workload.model_type", f"be one of {known}", kind, where=where)
    found = _TYPES[kind]
    params: Params = {**found.implied, "generator": found.generator, "flash": True}
    for name, aliases in _NAMES.items():
        value = _first(config, aliases)
        if value is not None:
            params[name] = value
    if "tie_word_embeddings" in config and found.generator != "encoder-decoder":
        params["tied_embeddings"] = bool(config["tie_word_embeddings"])
    _positions(params, config, learned=found.learned_positions)
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    params["dtype"] = _DTYPES.get(dtype, "bf16")
    _special(kind, found.generator, params, config)
    for name in ("num_layers", "hidden", "num_heads", "vocabulary"):
        if name not in params and found.generator != "encoder-decoder":
            raise InputError("workload", f"state {_NAMES[name][0]}", where=where)
    return params


def _first(config: Config, names: Iterable[str]) -> Any:
    """What the first of these names that is given says; None without any."""
    return next((config[name] for name in names if config.get(name) is not None), None)


def _positions(params: Params, config: Config, *, learned: bool) -> None:
    longest = _first(config, _POSITIONS)
    params["sequence_length"] = min(int(longest), _LONGEST) if longest else _DEFAULT_LENGTH
    if learned and longest:
        params["max_positions"] = int(longest) + (
            2 if config.get("model_type") in ("opt", "bart", "mbart") else 0
        )


def _special(kind: str, generator: str, params: Params, config: Config) -> None:
    """What single types call or do differently."""
    if kind == "falcon":
        params["num_kv_heads"] = config.get("num_kv_heads") if config.get("new_decoder_architecture") else 1
    if kind == "gpt_bigcode" and config.get("multi_query", True):
        params["num_kv_heads"] = 1
    if kind == "distilbert":
        params |= {"token_types": 0, "ffn_hidden": config.get("hidden_dim")}
    if kind not in ("bert", "roberta", "xlm-roberta", "camembert", "distilbert"):
        params.pop("token_types", None)
    if generator in ("moe", "latent"):
        _experts(params, config)
    if generator == "latent":
        _latent(params, config)
    if generator == "encoder-decoder":
        _encoder_decoder(params, config)
    if generator == "hybrid":
        _hybrid(kind, params, config)


def _experts(params: Params, config: Config) -> None:
    count = config.get("num_local_experts") or config.get("num_experts") or config.get("n_routed_experts")
    params["num_experts"] = count
    params["top_k"] = config.get("num_experts_per_tok") or config.get("moe_top_k") or 2
    if config.get("moe_intermediate_size"):
        params["ffn_hidden"] = config["moe_intermediate_size"]
    if config.get("shared_expert_intermediate_size"):
        params |= {"shared_experts": 1, "shared_ffn_hidden": config["shared_expert_intermediate_size"]}
    elif config.get("n_shared_experts"):
        params["shared_experts"] = config["n_shared_experts"]


def _latent(params: Params, config: Config) -> None:
    for name in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        if config.get(name) is not None:
            params[name] = config[name]
    params.pop("num_kv_heads", None)
    params.pop("head_dim", None)
    params["dense_layers"] = config.get("first_k_dense_replace", 0)
    params["dense_ffn_hidden"] = config.get("intermediate_size")


def _encoder_decoder(params: Params, config: Config) -> None:
    layers = params.pop("num_layers", None)
    params["encoder_layers"] = config.get("encoder_layers") or layers
    params["decoder_layers"] = config.get("decoder_layers") or config.get("num_decoder_layers") or layers
    params["target_length"] = params["sequence_length"]
    params.pop("num_kv_heads", None)
    if "gated" in str(config.get("feed_forward_proj", "")) or config.get("is_gated_act"):
        params["activation"] = "swiglu"


def _hybrid(kind: str, params: Params, config: Config) -> None:
    names = {
        "state": ("mamba_d_state", "ssm_state_size", "state_size"),
        "mamba_head_dim": ("mamba_d_head", "mamba_head_dim", "head_dim" if kind == "mamba2" else ""),
        "groups": ("mamba_n_groups", "n_groups"),
        "expand": ("mamba_expand", "expand"),
        "convolution": ("mamba_d_conv", "conv_kernel"),
        "chunk": ("mamba_chunk_size", "chunk_size"),
    }
    for name, aliases in names.items():
        value = _first(config, aliases)
        if value is not None:
            params[name] = value
    if kind == "mamba2":
        params["num_heads"] = 1
        params.pop("head_dim", None)
        params.pop("num_kv_heads", None)
    elif kind == "nemotron_h":
        params["pattern"] = config["hybrid_override_pattern"]
        if config.get("mamba_num_heads") and config.get("mamba_head_dim"):
            params["expand"] = config["mamba_num_heads"] * config["mamba_head_dim"] / config["hidden_size"]
        if config.get("attention_head_dim"):
            params["head_dim"] = config["attention_head_dim"]
    else:
        _alternating(params, config)


def _alternating(params: Params, config: Config) -> None:
    """Jamba and Bamba: a mixer and a feed-forward network (or experts) in every layer."""
    count = int(params["num_layers"])
    period, offset = int(config.get("attn_layer_period") or 0), config.get("attn_layer_offset", 0)
    listed = config.get("attn_layer_indices")
    experts, every = config.get("num_experts") or 0, config.get("expert_layer_period", 1)
    letters = []
    for index in range(count):
        attends = index in listed if listed is not None else period > 0 and index % period == offset
        routed = experts > 1 and index % every == config.get("expert_layer_offset", 0)
        letters.append(("*" if attends else "M") + ("E" if routed else "-"))
    params |= {"pattern": "".join(letters), "num_layers": 2 * count}
    if experts > 1:
        params |= {"num_experts": experts, "top_k": config.get("num_experts_per_tok", 2)}
