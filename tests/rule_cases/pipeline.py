"""Cases of the rules on pipeline stages."""

from __future__ import annotations

from tests.rule_cases.case import Case, cnn

REFUSED: list[Case] = [
    Case(
        "recompute-layers",
        {"recompute_layers": ("conv",)},
        "recompute_layers",
        "name kinds of layers of gpt: attention, embedding, head, mlp. Got conv.",
    ),
    Case(
        "recompute-layers",
        {"recompute_layers": ("mlp",), "recompute": "full"},
        "recompute_layers",
        "be empty unless recompute is none",
        advice="Try strategy.recompute=none or [].",
    ),
    Case(
        "token-slices",
        {"token_slices": 4},
        "token_slices",
        "be 1 unless pp is above 1, cp is 1 and the schedule gpipe",
        advice="Try 1.",
    ),
    Case(
        "token-slices",
        {"token_slices": 3, "pp": 2, "schedule": "gpipe", "micro_batch_size": 1},
        "token_slices",
        "divide sequence_length (2048). Got 3.",
        advice="Try 2 or 4.",
    ),
    Case(
        "stage-blocks",
        {"stage_blocks": (5, 6), "pp": 2},
        "stage_blocks",
        "add up to the blocks of gpt (12). Got 5, 6 = 11.",
        advice="Try [6, 6] or leaving it out.",
    ),
    Case("stage-blocks", {"stage_blocks": (12,)}, "stage_blocks", "be absent while pp is 1. Got 12."),
    Case("stage-blocks", {"stage_blocks": (4, 4, 4), "pp": 2}, "stage_blocks", "virtual_stages (2) numbers"),
    Case("stage-blocks", {"stage_blocks": (6, 0, 6), "pp": 3}, "stage_blocks", "no chunk without a layer"),
    Case(
        "stage-blocks",
        {"stage_blocks": (6, 6), "pp": 2, "head_in_split": True},
        "stage_blocks",
        "be absent while the embedding or the head counts as a block",
    ),
    Case(
        "C2-21",
        {"schedule": "gpipe"},
        "schedule",
        "be left at 1f1b while pp is 1. Got gpipe.",
        advice="Try 1f1b.",
    ),
    Case(
        "C2-21",
        {"schedule": "interleaved", "pp": 4, "micro_batch_size": 1},
        "virtual_stages",
        "be at least 2",
        advice="Try 2 or strategy.schedule=1f1b.",
    ),
    Case(
        "C2-21",
        {"schedule": "interleaved", "pp": 4, "virtual_stages": 2},
        "micro_batch_size",
        "a multiple of pp (4) micro-batches for the interleaved schedule. Got 12 (1 micro-batches)",
        advice="Try 3 or 1.",
    ),
    Case(
        "C2-21",
        {"schedule": "dualpipe", "pp": 4, "micro_batch_size": 2},
        "micro_batch_size",
        "at least 8 (for pp 4) micro-batches for the dualpipe schedule. Got 2 (6 micro-batches)",
        advice="Try 1 or strategy.schedule=1f1b.",
    ),
    Case(
        "C2-21",
        {"schedule": "chimera", "pp": 4, "micro_batch_size": 4},
        "micro_batch_size",
        "an even number of micro-batches for the chimera schedule. Got 4 (3 micro-batches)",
        advice="Try 6 or 3.",
    ),
    Case(
        "virtual-stages",
        {"schedule": "zb_v", "pp": 4, "micro_batch_size": 1},
        "virtual_stages",
        "be 2 for the zb_v schedule. Got 1.",
        advice="Try 2 or strategy.schedule=1f1b.",
    ),
    Case(
        "virtual-stages",
        {"virtual_stages": 2, "pp": 4},
        "virtual_stages",
        "be 1 for the 1f1b schedule. Got 2.",
    ),
    Case(
        "pp-blocks",
        {"pp": 16},
        "pp",
        "at most the number of blocks of gpt (12). Got 16.",
        advice="Try 8 or 4.",
    ),
    Case(
        "pp-blocks",
        {"pp": 4, "virtual_stages": 4, "schedule": "interleaved", "micro_batch_size": 1},
        "virtual_stages",
        "no more than the 12 blocks of gpt. Got 4 (pp 4).",
        advice="Try 3 or 2.",
    ),
]

WARNED: list[Case] = [
    Case(
        "few-micro-batches",
        {"pp": 4},
        "micro_batch_size",
        "1 micro-batch for 4 stages: at least 75% of a step is bubble",
    ),
    Case("C2-23", {"pp": 4, "state": "zero3"}, "state", "repeats its collectives per micro-batch"),
    Case("selective-recompute", {"recompute": "selective"}, "recompute", "changes nothing: resnet50", cnn()),
    Case(
        "split-ends",
        {"embedding_in_split": True, "pp": 1},
        "embedding_in_split",
        "no effect while pp is 1",
    ),
]
