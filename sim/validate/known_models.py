"""Sizes of released language models by name, for rows whose architecture columns are empty.

A name is read as a family and a size ("Meta-Llama-3.1-70B-Instruct": Llama 3, 70 billion). Sizes are those of
the released ``config.json`` files and papers. A name without a table entry but with a size, or a row with
``params_b``, gets a plain shape of that many parameters, which counts as an assumption.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sim.validate.rows import Row

Cells = dict[str, str]

DENSE = ("layers", "hidden", "heads", "kv_heads", "ffn", "head_dim")
EXPERTS = (*DENSE, "n_experts", "top_k", "moe_ffn")
NEAR = 0.15
"""Largest difference of a stated size from a table's, relative, for the two to be the same model."""


@dataclass(frozen=True)
class Family:
    """Models that differ in size only.

    Attributes
    ----------
    pattern : str
        Regular expression found in the name, lower case, blanks as hyphens.
    sizes : dict of float to tuple of int
        Billions of parameters -> columns of :data:`DENSE` or :data:`EXPERTS`, those at the end may be absent;
        0 says "not such a column".
    vocabulary, sequence : int
        Entries of the vocabulary; tokens of a training sample.
    gated : bool
        Feed-forward network with a gate.
    kind : str
        ``dense_lm``, ``moe_lm`` or ``encoder_lm``.
    tied : float or None
        Largest size, in billions, whose output projection is its table of embeddings. Absent: none of the
        gated families, all others.
    learned_positions : bool
        Positions are a table of embeddings; gated families rotate queries and keys instead.
    """

    pattern: str
    sizes: Mapping[float, tuple[int, ...]]
    vocabulary: int
    sequence: int
    gated: bool = True
    kind: str = "dense_lm"
    tied: float | None = None
    learned_positions: bool = True

    def ties(self, size: float) -> bool:
        """Whether the model of a size has one table for input and output."""
        return size <= self.tied if self.tied is not None else not self.gated


_GPT3 = {
    0.125: (12, 768, 12), 0.35: (24, 1024, 16), 0.76: (24, 1536, 16), 1.3: (24, 2048, 16),
    2.7: (32, 2560, 32), 5.0: (24, 4096, 32), 6.7: (32, 4096, 32), 13.0: (40, 5120, 40),
    20.0: (44, 6144, 48), 40.0: (48, 8192, 64), 175.0: (96, 12288, 96),
}  # fmt: skip
_LLAMA3 = {
    1.0: (16, 2048, 32, 8, 8192), 3.0: (28, 3072, 24, 8, 8192), 8.0: (32, 4096, 32, 8, 14336),
    70.0: (80, 8192, 64, 8, 28672), 405.0: (126, 16384, 128, 8, 53248),
}  # fmt: skip
_BERT = {0.11: (12, 768, 12), 0.34: (24, 1024, 16)}

ALL, NONE = math.inf, 0.0

FAMILIES: tuple[Family, ...] = (
    Family(r"tiny-?llama", {1.1: (22, 2048, 32, 4, 5632)}, 32_000, 2048),
    Family(r"llama-?2-?70b-?lora", {70.0: (80, 8192, 64, 8, 28672)}, 32_000, 8192),  # MLPerf packs 8,192
    Family(r"llama-?3(?!\d)", _LLAMA3, 128_256, 8192, tied=4),
    Family(r"code-?llama|llama-?2(?!\d)|llama(?!-?[0-9]\b)|vicuna|alpaca", {
        7.0: (32, 4096, 32, 32, 11008), 13.0: (40, 5120, 40, 40, 13824), 33.0: (60, 6656, 52, 52, 17920),
        34.0: (48, 8192, 64, 8, 22016), 65.0: (80, 8192, 64, 64, 22016), 70.0: (80, 8192, 64, 8, 28672),
    }, 32_000, 4096),
    Family(r"llama-?1(?!\d)", {
        7.0: (32, 4096, 32, 32, 11008), 13.0: (40, 5120, 40, 40, 13824), 33.0: (60, 6656, 52, 52, 17920),
        65.0: (80, 8192, 64, 64, 22016),
    }, 32_000, 2048),
    Family(r"mixtral", {
        46.7: (32, 4096, 32, 8, 0, 128, 8, 2, 14336), 141.0: (56, 6144, 48, 8, 0, 128, 8, 2, 16384),
    }, 32_000, 4096, kind="moe_lm"),
    Family(r"mistral-?(nemo|small)|mistral.*(12|24)b", {
        12.0: (40, 5120, 32, 8, 14336, 128), 24.0: (40, 5120, 32, 8, 32768, 128),
    }, 131_072, 4096),
    Family(r"mistral", {7.0: (32, 4096, 32, 8, 14336), 123.0: (88, 12288, 96, 8, 28672)}, 32_768, 4096),
    Family(r"qwen-?3-.*-a\d|qwen-?3-moe", {
        30.0: (48, 2048, 32, 4, 0, 128, 128, 8, 768), 235.0: (94, 4096, 64, 4, 0, 128, 128, 8, 1536),
    }, 151_936, 4096, kind="moe_lm"),
    Family(r"qwen-?3", {
        0.6: (28, 1024, 16, 8, 3072, 128), 1.7: (28, 2048, 16, 8, 6144, 128),
        4.0: (36, 2560, 32, 8, 9728, 128),
        8.0: (36, 4096, 32, 8, 12288, 128), 14.0: (40, 5120, 40, 8, 17408, 128),
        32.0: (64, 5120, 64, 8, 25600, 128),
    }, 151_936, 4096, tied=5),
    Family(r"qwen-?2|qwq|qwen-?1|qwen", {
        0.5: (24, 896, 14, 2, 4864), 1.5: (28, 1536, 12, 2, 8960), 3.0: (36, 2048, 16, 2, 11008),
        7.0: (28, 3584, 28, 4, 18944), 14.0: (48, 5120, 40, 8, 13824), 32.0: (64, 5120, 40, 8, 27648),
        72.0: (80, 8192, 64, 8, 29568),
    }, 152_064, 4096, tied=4),
    Family(r"gemma-?3(?!\d*b)", {
        1.0: (26, 1152, 4, 1, 6912, 256), 4.0: (34, 2560, 8, 4, 10240, 256),
        12.0: (48, 3840, 16, 8, 15360, 256), 27.0: (62, 5376, 32, 16, 21504, 128),
    }, 262_208, 4096, tied=ALL),
    Family(r"gemma-?2(?!\d*b)", {
        2.0: (26, 2304, 8, 4, 9216, 256), 9.0: (42, 3584, 16, 8, 14336, 256),
        27.0: (46, 4608, 32, 16, 36864, 128),
    }, 256_000, 4096, tied=ALL),
    Family(r"gemma", {2.0: (18, 2048, 8, 1, 16384, 256), 7.0: (28, 3072, 16, 16, 24576, 256)}, 256_000,
           4096, tied=ALL),
    Family(r"gpt-?oss", {
        21.0: (24, 2880, 64, 8, 0, 64, 32, 4, 2880), 117.0: (36, 2880, 64, 8, 0, 64, 128, 4, 2880),
    }, 201_088, 4096, kind="moe_lm"),
    Family(r"dbrx", {132.0: (40, 6144, 48, 8, 0, 128, 16, 4, 10752)}, 100_352, 4096, kind="moe_lm"),
    Family(r"grok-?1", {314.0: (64, 6144, 48, 8, 0, 128, 8, 2, 32768)}, 131_072, 8192, kind="moe_lm"),
    Family(r"olmoe", {7.0: (16, 2048, 16, 16, 0, 128, 64, 8, 1024)}, 50_304, 4096, kind="moe_lm"),
    Family(r"olmo-?2", {
        1.0: (16, 2048, 16, 16, 8192), 7.0: (32, 4096, 32, 32, 11008), 13.0: (40, 5120, 40, 40, 13824),
        32.0: (64, 5120, 40, 8, 27648),
    }, 100_352, 4096),
    Family(r"olmo", {1.0: (16, 2048, 16, 16, 8192), 7.0: (32, 4096, 32, 32, 11008)}, 50_304, 2048, tied=2),
    Family(r"phi-?4(?!-?mini)", {14.7: (40, 5120, 40, 10, 17920)}, 100_352, 4096),
    Family(r"phi-?3", {
        3.8: (32, 3072, 32, 32, 8192), 7.0: (32, 4096, 32, 8, 14336), 14.0: (40, 5120, 40, 10, 17920),
    }, 32_064, 4096),
    Family(r"phi-?[12]", {1.4: (24, 2048, 32), 2.7: (32, 2560, 32)}, 51_200, 2048, gated=False, tied=NONE,
           learned_positions=False),
    Family(r"yi-?\d", {
        6.0: (32, 4096, 32, 4, 11008), 9.0: (48, 4096, 32, 4, 11008), 34.0: (60, 7168, 56, 8, 20480),
    }, 64_000, 4096),
    Family(r"baichuan", {7.0: (32, 4096, 32, 32, 11008), 13.0: (40, 5120, 40, 40, 13696)}, 125_696, 4096),
    Family(r"internlm-?[23](?!\d)", {
        1.8: (24, 2048, 16, 8, 8192), 7.7: (32, 4096, 32, 8, 14336), 20.0: (48, 6144, 48, 8, 16384),
    }, 92_544, 4096),
    Family(r"internlm", {
        7.0: (32, 4096, 32, 32, 11008), 20.0: (60, 5120, 40, 40, 13824), 104.0: (82, 10240, 80, 80, 27392),
    }, 103_168, 2048),
    Family(r"chatglm|glm-?\d*-?(6|130)b", {
        6.0: (28, 4096, 32, 2, 13696), 130.0: (70, 12288, 96, 96, 32768),
    }, 65_024, 2048),
    Family(r"nemotron", {
        8.0: (32, 4096, 32, 32, 16384), 15.0: (32, 6144, 48, 8, 24576), 22.0: (40, 6144, 48, 48, 24576),
        340.0: (96, 18432, 96, 8, 73728),
    }, 256_000, 4096, gated=False, tied=NONE, learned_positions=False),
    Family(r"gpt-?neox", {20.0: (44, 6144, 64)}, 50_432, 2048, gated=False, tied=NONE,
           learned_positions=False),
    Family(r"gpt-?neo", {0.125: (12, 768, 12), 1.3: (24, 2048, 16), 2.7: (32, 2560, 20)}, 50_257, 2048,
           gated=False),
    Family(r"gpt-?j", {6.0: (28, 4096, 16)}, 50_400, 2048, gated=False, tied=NONE,
           learned_positions=False),
    Family(r"pythia", {
        0.16: (12, 768, 12), 0.41: (24, 1024, 16), 1.0: (16, 2048, 8), 1.4: (24, 2048, 16),
        2.8: (32, 2560, 32), 6.9: (32, 4096, 32), 12.0: (36, 5120, 40),
    }, 50_432, 2048, gated=False, tied=NONE, learned_positions=False),
    Family(r"falcon", {
        7.0: (32, 4544, 71, 1), 40.0: (60, 8192, 128, 8), 180.0: (80, 14848, 232, 8),
    }, 65_024, 2048, gated=False, learned_positions=False),
    Family(r"bloom", {
        0.56: (24, 1024, 16), 1.1: (24, 1536, 16), 1.7: (24, 2048, 16), 3.0: (30, 2560, 32),
        7.1: (30, 4096, 32), 176.0: (70, 14336, 112),
    }, 250_880, 2048, gated=False, learned_positions=False),
    Family(r"(^|[^a-z])opt-?\d", {**_GPT3, 30.0: (48, 7168, 56), 66.0: (64, 9216, 72)}, 50_272, 2048,
           gated=False),
    Family(r"mpt", {7.0: (32, 4096, 32), 30.0: (48, 7168, 64)}, 50_368, 2048, gated=False,
           learned_positions=False),
    Family(r"starcoder-?2", {
        3.0: (30, 3072, 24, 2, 12288), 7.0: (32, 4608, 36, 4, 18432), 15.0: (40, 6144, 48, 4, 24576),
    }, 49_152, 4096, gated=False, tied=10, learned_positions=False),
    Family(r"starcoder", {15.5: (40, 6144, 48, 1)}, 49_152, 8192, gated=False),
    Family(r"megatron-?turing|mt-?nlg", {530.0: (105, 20480, 128)}, 51_200, 2048, gated=False),
    Family(r"turing-?nlg|t-nlg", {17.0: (78, 4256, 28)}, 51_200, 1024, gated=False),
    Family(r"chinchilla|gopher", {70.0: (80, 8192, 64), 280.0: (80, 16384, 128)}, 32_000, 2048, gated=False),
    Family(r"palm", {8.0: (32, 4096, 16, 1), 62.0: (64, 8192, 32, 1), 540.0: (118, 18432, 48, 1, 73728, 256)},
           256_000, 2048, tied=ALL),
    Family(r"gpt-?2(?!\d)", {
        0.124: (12, 768, 12), 0.355: (24, 1024, 16), 0.774: (36, 1280, 20), 1.5: (48, 1600, 25),
        2.5: (54, 1920, 20), 8.3: (72, 3072, 32),
    }, 50_257, 1024, gated=False),
    Family(r"gpt-?3|gpt", {
        **_GPT3, 1.7: (24, 2304, 24), 3.6: (30, 3072, 32), 7.5: (36, 4096, 32), 18.0: (40, 6144, 48),
        22.0: (48, 6144, 64), 39.0: (48, 8192, 64), 76.0: (60, 10240, 80), 145.6: (80, 12288, 96),
        310.0: (96, 16384, 128), 530.0: (105, 20480, 128), 1008.0: (128, 25600, 160),
    }, 50_257, 2048, gated=False),
    Family(r"granite", {
        2.5: (40, 2048, 32, 8, 8192), 8.2: (40, 4096, 32, 8, 12800), 34.0: (88, 6144, 48, 1, 24576),
    }, 49_155, 4096, tied=ALL),
    Family(r"smol-?lm", {
        0.135: (30, 576, 9, 3, 1536), 0.36: (32, 960, 15, 5, 2560), 1.7: (24, 2048, 32, 32, 8192),
    }, 49_152, 2048, tied=ALL),
    Family(r"command-?r", {35.0: (40, 8192, 64, 64, 22528), 104.0: (64, 12288, 96, 8, 33792)}, 256_000, 4096,
           tied=ALL),
    Family(r"aya", {8.0: (32, 4096, 32, 8, 14336), 35.0: (40, 8192, 64, 64, 22528)}, 256_000, 4096, tied=ALL),
    Family(r"glm-?4", {9.4: (40, 4096, 32, 2, 13696)}, 151_552, 4096),
    Family(r"codegen", {
        0.35: (20, 1024, 16), 2.7: (32, 2560, 32), 6.0: (33, 4096, 16), 16.1: (34, 6144, 24),
    }, 51_200, 2048, gated=False, tied=NONE, learned_positions=False),
    Family(r"esm-?2", {
        0.035: (12, 480, 20), 0.15: (30, 640, 20), 0.65: (33, 1280, 20), 3.0: (36, 2560, 40),
        15.0: (48, 5120, 40),
    }, 33, 1024, gated=False, kind="encoder_lm"),
    Family(r"de-?berta-?v?2?-?xx-?large", {1.5: (48, 1536, 24)}, 128_100, 512, gated=False,
           kind="encoder_lm"),
    Family(r"de-?berta-?v?[23]", {0.184: (12, 768, 12), 0.435: (24, 1024, 16)}, 128_100, 512, gated=False,
           kind="encoder_lm"),
    Family(r"de-?berta", {0.139: (12, 768, 12), 0.405: (24, 1024, 16)}, 50_265, 512, gated=False,
           kind="encoder_lm"),
    Family(r"xlnet", {0.11: (12, 768, 12), 0.34: (24, 1024, 16)}, 32_000, 512, gated=False,
           kind="encoder_lm"),
    Family(r"megatron-?(lm|gpt)", {8.3: (72, 3072, 32), 2.5: (54, 1920, 20), 1.2: (40, 1536, 16)}, 51_200,
           1024, gated=False),
    Family(r"roberta", {0.125: (12, 768, 12), 0.355: (24, 1024, 16)}, 50_265, 512, gated=False,
           kind="encoder_lm"),
    Family(r"distil-?bert", {0.066: (6, 768, 12)}, 30_522, 512, gated=False, kind="encoder_lm"),
    Family(r"(^|[^a-z])bert", {
        **_BERT, 1.3: (24, 2048, 32), 3.9: (48, 2560, 40), 4.0: (48, 2560, 32), 20.0: (48, 6144, 96),
    }, 30_522, 512, gated=False, kind="encoder_lm"),
)  # fmt: skip
"""Families; the first whose pattern is found decides. Sources: the models' papers, released configurations;
GPT sizes also those of Narayanan et al. 2021 (arXiv:2104.04473, table 1) and Korthikanti et al. 2022."""

ALIASES: tuple[tuple[str, float], ...] = (
    (r"8x7b", 46.7), (r"8x22b", 141.0),
    (r"oss-?20b", 21.0), (r"oss-?120b", 117.0), (r"nemo", 12.0), (r"mistral-?large", 123.0),
    (r"phi-?3-?mini", 3.8), (r"phi-?4", 14.7), (r"phi-?1", 1.4), (r"phi-?2", 2.7), (r"olmoe", 7.0),
    (r"dbrx", 132.0), (r"grok-?1", 314.0),
    (r"gpt-?2-?xl", 1.5), (r"gpt-?2-?large", 0.774), (r"gpt-?2-?medium", 0.355),
    (r"gpt-?2(-?small)?$", 0.124),
    (r"gpt-?3-?(xl)", 1.3), (r"gpt-?3-?large", 0.76), (r"gpt-?3-?medium", 0.35), (r"gpt-?3-?small", 0.125),
    (r"gpt-?3$", 175.0), (r"gpt-?j$", 6.0), (r"bloom$", 176.0), (r"gpt-?neox$", 20.0), (r"mt-?nlg$", 530.0),
    (r"de-?berta-?v?2?-?xx-?large", 1.5), (r"de-?berta-?v?[23]-?base", 0.184),
    (r"de-?berta-?v?[23]", 0.435), (r"de-?berta-?base", 0.139), (r"de-?berta", 0.405),
    (r"xlnet-?base", 0.11), (r"xlnet", 0.34), (r"command-?r-?(\+|plus)", 104.0), (r"command-?r", 35.0),
    (r"roberta-?base", 0.125), (r"roberta", 0.355), (r"distil", 0.066),
    (r"bert-?(huge)", 1.3), (r"bert-?(base|b$)", 0.11), (r"bert", 0.34), (r"starcoder$", 15.5),
)  # fmt: skip
"""Names whose size is not written as a number of parameters, in billions; tried after that."""

_SIZE = re.compile(r"(?<![\d.a-z])(\d+(?:\.\d+)?)-?(t|b|m)(?![a-z0-9])")
_UNITS = {"t": 1e3, "b": 1.0, "m": 1e-3}


def normalised(name: str) -> str:
    """A model's name in lower case, without its publisher, blanks and underscores as hyphens."""
    return re.sub(r"[\s_]+", "-", re.sub(r"^.*/(?=\D)", "", name.strip().lower()))


def stated_size(row: Row) -> float | None:
    """Billions of parameters, from the name or the column ``params_b``."""
    name = normalised(row.text("model"))
    glued = re.search(r"[a-z](\d+(?:\.\d+)?)(b)(?![a-z0-9])", name)  # "gpt175b"
    split = re.search(r"(?<!\d)(\d)b(\d)(?![0-9])", name)  # "1b7"
    if split:
        return float(f"{split[1]}.{split[2]}")
    found = _SIZE.search(name) or (None if re.search(r"\dx\d", name) else glued)
    if found:
        return float(found[1]) * _UNITS[found[2]]
    return row.number("params_b")


@dataclass
class Known:
    """What a name says.

    Attributes
    ----------
    cells : dict
        Columns to fill where they are empty.
    assumed : list of str
        Columns of which the name does not tell, but a rule of thumb.
    """

    cells: Cells = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)


def known_model(row: Row) -> Known | None:
    """Architecture columns of a language model by its name or size; None if neither says anything."""
    name = normalised(row.text("model"))
    size = stated_size(row)
    family = next((f for f in FAMILIES if re.search(f.pattern, name)), None)
    if family is not None:
        chosen = _entry(family, name, size)
        if chosen is not None:
            return Known(_cells(family, chosen))
    if re.search(_SPARSE, name):
        return None
    if size is None or not 0.001 <= size <= 100_000:
        return None
    billions = re.search(r"\d-?[bt](?![a-z0-9])", name) is not None
    language = row.text("family").endswith("lm") or family is not None or "lm" in name.split("-") or billions
    return _plain(size, family) if language else None


_SPARSE = r"moe|glam|switch|expert|maverick|-a\d+(\.\d+)?b"
"""Names of mixtures of experts: their number of parameters does not tell what a token computes."""


def _entry(family: Family, name: str, size: float | None) -> float | None:
    """The family's size that a name means: as written, else by its alias."""
    alias = next((value for pattern, value in ALIASES if re.search(pattern, name)), None)
    for wanted in (size, alias):
        if wanted is None:
            continue
        nearest = min(family.sizes, key=lambda known: abs(math.log(known / wanted)))
        if abs(nearest / wanted - 1) <= NEAR:
            return nearest
    return next(iter(family.sizes)) if size is None and len(family.sizes) == 1 else None


def _cells(family: Family, size: float) -> Cells:
    cells = {name: str(value) for name, value in zip(EXPERTS, family.sizes[size], strict=False) if value}
    cells |= {"vocab": str(family.vocabulary), "seq_len": str(family.sequence), "family": family.kind}
    cells["ffn_type"] = "swiglu" if family.gated else "mlp"
    cells["tied_embeddings"] = "yes" if family.ties(size) else "no"
    return cells | ({} if family.learned_positions else {"positions": "rotary"})


def _plain(size: float, family: Family | None) -> Known:
    """A dense transformer of as many parameters: 12 L h^2 with h = 96 L, in heads of 128."""
    hidden = max(128, 128 * round((size * 1e9 * 96 / 12) ** (1 / 3) / 128))
    layers = max(1, round(size * 1e9 / (12 * hidden**2)))
    cells: dict[str, Any] = {"layers": layers, "hidden": hidden, "heads": hidden // 128, "ffn": 4 * hidden}
    kind = "encoder_lm" if family and family.kind == "encoder_lm" else "dense_lm"
    texts = {name: str(value) for name, value in cells.items()}
    return Known({**texts, "ffn_type": "mlp", "family": kind}, ["layers", "hidden", "heads"])
