"""The model of a row -> a generator and its parameters."""

from __future__ import annotations

import re

from sim.architecture import GENERATORS
from sim.validate.frameworks import Framework
from sim.validate.hardware import Unsupported
from sim.validate.known_models import known_model, normalised
from sim.validate.named_models import NAMED, Params
from sim.validate.rows import Row

PADDED_VOCABULARY = 128
"""Megatron pads the vocabulary to a multiple of 128 times the tensor-parallel degree."""

_NO_TRANSFORMERS = ("encdec_lm", "seq2seq", "hybrid_lm", "diffusion")
"""Families that blocks of attention and feed-forward network alone do not describe."""

WORDS_PER_SAMPLE = 32

DEFAULT_BATCH: tuple[tuple[str, str, tuple[int, int, int, int]], ...] = (
    ("efficientnet-?(widese-)?b0", "tensorflow", (1024, 512, 512, 256)),
    ("efficientnet", "tensorflow", (160, 80, 64, 32)),
    ("efficientnet-?(widese-)?b0", "", (128, 128, 128, 128)),
    ("efficientnet", "", (64, 64, 64, 64)),
    ("resnet-?50", "", (256, 256, 256, 256)),
)
"""Samples of a device where a row has no batch at all, by model and framework, on devices since 2020 and
before, each in 16 bits and wider. Those of TensorFlow are its training benchmarks' in
NVIDIA/DeepLearningExamples."""


def model_of(row: Row, framework: Framework) -> tuple[str, Params, list[str]]:
    """Generator, its parameters, and what had to be assumed.

    Raises
    ------
    Unsupported
        There is no generator for the model, or its sizes are not known.
    """
    generator, params, assumed = _architecture(row, framework)
    return generator, {**params, **_adapters(row, params.get("hidden"), assumed)}, assumed


_ADAPTED = r"(?<!no )(?<!without )\b(q-?)?lora\b|(?<!no )\bpeft\b(?!\s*[=:]?\s*none)"
_RANK = r"(?:rank|\br)[ =:]*((?<=[ =:])-\d+(?:\.\d+)?|\d+(?:\.\d+)?)|(\d+)[ -]*rank"
ADAPTER_RANK, QLORA_BITS = 16, 4.127
"""Rank where a row states none (MLPerf's and NeMo's Llama 2 70B: 16 and 32; PEFT's default: 8); bits of a
weight of QLoRA with double quantisation (Dettmers et al. 2023, arXiv:2305.14314, section 3)."""


def _adapters(row: Row, width: int | None, assumed: list[str]) -> Params:
    """Fields of :class:`~sim.architecture.adapters.Adapters` where a row trains low-rank adapters."""
    columns = ("model", "framework", "family", "source_detail", "notes")
    text = re.sub("_", "-", " ".join(row.text(column) for column in columns).lower())
    if not re.search(_ADAPTED, text):
        return {}
    stated = re.search(_RANK, text)
    if not stated:
        assumed.append("adapter_rank")
    rank = _whole_rank(stated[1] or stated[2], width) if stated else ADAPTER_RANK
    found: Params = {"adapter_rank": rank}
    if re.search(r"mlperf|mlcommons|attention[- ]only|attention-qkv|q-proj(?!.*(gate|up|fc1))", text):
        found["adapter_targets"] = "attention"
    return {**found, "frozen_bits": QLORA_BITS} if re.search(r"\bq-?lora\b|nf4|4-?bit", text) else found


def _whole_rank(text: str, width: int | None) -> int:
    if not text.isdigit() or int(text) < 1:
        raise Unsupported(f"adapter rank: must be a whole number of at least 1. Got {text}.")
    if width is not None and int(text) > width:
        raise Unsupported(f"adapter rank: must be at most the model's width, {width:,}. Got {text}.")
    return int(text)


def _architecture(row: Row, framework: Framework) -> tuple[str, Params, list[str]]:
    """Generator, its parameters, and what had to be assumed, all weights trained."""
    if not row.whole("seq_len") and (length := _length_in_words(row)):
        row = Row({**row.cells, "seq_len": str(length)}, row.line)
    name = normalised(row.text("model"))
    for pattern, generator, params in NAMED:
        if re.search(pattern, name):
            return _named(row, framework, generator, params)
    if name.startswith("electra"):
        return _electra(row, framework)
    return _language_model(row, framework)


_LENGTH = re.compile(
    r"(?:seq(?:uence)?s?|context|ctx)[ _-]*(?:len(?:gth)?)?[ =:of]*(\d+)(k?)\b|(?<![\d.])(\d+)(k?)[ -]?"
    r"(?:tokens? )?(?:seq(?:uence)?|context)[ _-]*(?:len(?:gth)?)?"
)
_PHASES = {"1": 128, "2": 512}
"""Tokens of the two phases of BERT's pre-training."""


def _length_in_words(row: Row) -> int | None:
    """Tokens of a sample that a text states ("sequence length 2048", "8k context", "BERT phase 2")."""
    for column in ("model", "notes", "source_detail"):
        text = row.text(column).lower()
        found = _LENGTH.search(text)
        if found:
            number, kilo = found[1] or found[3], found[2] or found[4]
            length = int(number) * (1024 if kilo else 1)
            return length if length >= 16 else None
        phase = re.search(r"\bph(?:ase)?[ _-]?([12])\b|\bp([12])\b", text)
        if phase and "bert" in row.text("model").lower():
            return _PHASES[phase[1] or phase[2]]
    return None


def _kernels(generator: str, framework: Framework) -> Params:
    """Fields of a generator that say how the framework computes."""
    given = {
        "fused_norm": framework.fused_norm, "flash": framework.flash, "fused_kernels": framework.fused,
        "fused_loss": framework.fused_loss, "stepwise": framework.key == "tensorflow",
    }  # fmt: skip
    return {name: given[name] for name in given if name in GENERATORS[generator].shape.model_fields}


def _named(row: Row, framework: Framework, generator: str, known: Params) -> tuple[str, Params, list[str]]:
    """A model whose parameters are its own but for the length or the size of its samples."""
    params, assumed = {**_kernels(generator, framework), **known}, list[str]()
    fields = GENERATORS[generator].shape.model_fields
    length = row.whole("seq_len")
    if generator in WITH_LENGTH:
        params["sequence_length"] = length or params["sequence_length"]
        assumed += [] if length else ["seq_len"]
    elif generator == "encoder-decoder":
        return generator, _translated(row, params, length, assumed), assumed
    elif "image_size" in fields and (size := _image_size(row)):
        params["image_size"] = size
    return generator, params, assumed


WITH_LENGTH = ("moe", "latent", "hybrid", "albert")
"""Generators of language models, whose samples are as long as a row says."""


_IMAGE_SIZE = re.compile(
    r"(?<![\d.])(\d{2,4}) ?[x\u00d7] ?\1(?!\d)"
    r"|(?:image|input|resolution|crop)[ _-]?(?:size)?[ =:]*(\d{2,4})\b|(?<![\d.])(\d{3,4}) ?px\b"
)


def _image_size(row: Row) -> int | None:
    """Pixels of a side of an image that a row states ("ViT-B/16 384x384", "image size 512")."""
    found = (_IMAGE_SIZE.search(row.text(column).lower()) for column in ("model", "notes", "source_detail"))
    sizes = (next(group for group in match.groups() if group) for match in found if match)
    return next(map(int, sizes), None)


def _translated(row: Row, params: Params, length: int | None, assumed: list[str]) -> Params:
    """Vocabulary and lengths of an encoder and decoder where the name does not settle them."""
    if "vocabulary" not in params:
        params["vocabulary"] = 250_112 if row.text("model").lower().startswith("m") else 32_128
    if "sequence_length" not in params:
        if length is None:  # fine-tuning for summaries: long articles, short summaries
            length = 1024
            assumed.append("seq_len")
        params |= {"sequence_length": length, "target_length": 64 if assumed else length}
    return params


def _language_model(row: Row, framework: Framework) -> tuple[str, Params, list[str]]:
    """A transformer from the columns; what they leave open from the name or the number of parameters."""
    sizes = ("layers", "hidden", "heads")
    if all(row.whole(name) for name in sizes) and row.text("family") not in _NO_TRANSFORMERS:
        return _transformer(row, framework)
    known = known_model(row)
    if known is None:
        stated = [name for name in sizes if row.whole(name)]
        if stated or row.text("family") in ("dense_lm", "moe_lm", "encoder_lm"):
            raise Unsupported("layers, hidden or heads unknown")
        raise Unsupported(f"no generator for {row.text('model') or 'a model without a name'}")
    own = {name: text for name, text in row.cells.items() if text}
    generator, params, assumed = _transformer(Row({**known.cells, **own}), framework)
    if not row.whole("seq_len"):
        assumed.append("seq_len")
    return generator, params, [*known.assumed, *assumed]


def default_batch(row: Row) -> int | None:
    """Samples of a device to assume where a row gives no batch; half on a small device in fp32."""
    name, framework = normalised(row.text("model")), row.text("framework").lower()
    found = (sizes for model, by, sizes in DEFAULT_BATCH if re.search(model, name) and by in framework)
    sizes = next(found, None)
    wide = not re.search("16|amp|mixed|half|8|fp4", row.text("precision").lower())
    old = bool(re.match(r"[KPV]\d|T4|M\d", row.text("gpu").upper()))
    small = (row.number("gpu_mem_gb") or 80) <= 16 and "fp32" in row.text("precision").lower()
    return sizes[2 * old + wide] // (1 + small) if sizes else None


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
        "flash_version": framework.flash_version,
        "fused_kernels": framework.fused,
        "fused_loss": framework.fused_loss,
        "dynamic_scaling": framework.dynamic_scaling,
        "fp32_norm": framework.fp32_norm,
        "fp32_logits": framework.fp32_logits,
    }
    if row.text("family") == "encoder_lm":
        params |= _encoder(row, sequence)
    elif gated:
        params |= {
            "activation": "swiglu",
            "norm": "rmsnorm",
            "bias": False,
            "tied_embeddings": row.text("tied_embeddings") == "yes",
            "dropout": False,
        }
    else:
        params |= {
            "max_positions": None if row.text("positions") == "rotary" else sequence,
            "tied_embeddings": row.text("tied_embeddings") != "no",
            "dropout": not framework.flash,
        }
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
