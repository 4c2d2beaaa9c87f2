"""Cases of the rules on parallel degrees and placement."""

from __future__ import annotations

from tests.rule_cases.case import Case, cluster, cnn, gpt, moe

REFUSED: list[Case] = [
    Case(
        "spatial-images",
        {"cp": 2, "context_parallelism": "spatial"},
        "context_parallelism",
        "not be spatial, as",
        moe(),
    ),
    Case(
        "placement-axes",
        {"placement": ("tp", "dp", "pp", "pp")},
        "placement",
        "name each of tp, cp, dp, pp once",
    ),
    Case("tp-splits", {"tp": 2}, "tp", "no layer of resnet50 divides", cnn(), advice="Try 1."),
    Case("tp-heads", {"tp": 8, "dp": 1}, "tp", "divide num_heads (12). Got 8.", advice="Try 6 or 12."),
    Case(
        "tp-kv-heads",
        {"tp": 2, "dp": 4},
        "tp",
        "divide num_kv_heads (3) or be a multiple of it. Got 2.",
        gpt(num_kv_heads=3),
        advice="Try 1 or 3.",
    ),
    Case(
        "tp-hidden",
        {"tp": 4, "dp": 2},
        "tp",
        "divide the layer width 3070. Got 4.",
        gpt(ffn_hidden=3070),
        advice="Try 2 or 1.",
    ),
    Case(
        "sequence-parallel-tp",
        {"sequence_parallel": True},
        "sequence_parallel",
        "be false while tp is 1. Got true.",
    ),
    Case(
        "sequence-parallel-length",
        {"sequence_parallel": True, "tp": 4},
        "tp",
        "divide sequence_length (1022)",
        gpt(sequence_length=1022),
        advice="Try 2 or strategy.sequence_parallel=false.",
    ),
    Case(
        "cp-sequence",
        {"cp": 3, "dp": 4},
        "cp",
        "divide half of sequence_length (2048). Got 3.",
        advice="Try 2 or 4.",
    ),
    Case(
        "C2-26",
        {"cp": 8, "tp": 4, "context_parallelism": "ulysses"},
        "cp",
        "divide the heads of a tensor parallel rank (3) for ulysses. Got 8.",
        advice="Try 1 or strategy.context_parallelism=ring.",
    ),
    Case(
        "C2-5",
        {"cp": 2, "state": "ps_dedicated", "synchronization": "asp"},
        "cp",
        "be 1 while synchronization is asp",
        advice="Try 1 or strategy.synchronization=bsp.",
    ),
    Case("C2-27", {"ep": 4}, "ep", "divide num_experts (6). Got 4.", moe(), advice="Try 2 or 1."),
    Case("C2-27", {"ep": 4}, "ep", "be 1, as gpt has no experts", advice="Try 1."),
    Case("ep-dp", {"ep": 3}, "ep", "divide dp (32). Got 3.", moe(), advice="Try 2 or 1."),
    Case(
        "ep-dp",
        {"ep": 3, "tp": 2, "expert_tp": 1, "sequence_parallel": True},
        "ep",
        "divide tp x dp / expert_tp (32). Got 3.",
        moe(),
        advice="Try 2 or 1.",
    ),
    Case("expert-tp", {"expert_tp": 1}, "expert_tp", "be absent, as gpt has no experts. Got 1."),
    Case("expert-tp", {"expert_tp": 3, "tp": 4}, "expert_tp", "divide tp (4). Got 3.", moe()),
    Case("expert-tp", {"expert_tp": 1, "tp": 2}, "expert_tp", "be tp (2) without sequence_parallel", moe()),
    Case(
        "ranks-devices", {"dp": 64}, "dp", "no more ranks than devices (32). Got 64", advice="Try 32 or 16."
    ),
    Case(
        "ranks-devices",
        {"tp": 12, "pp": 4},
        "tp",
        "no more ranks than devices (32). Got 12",
        advice="Try 4 or 2.",
    ),
    Case(
        "ranks-fill-devices",
        {"pp": 5},
        "pp",
        "make tp x cp x pp divide the number of devices (32). Got 5",
        advice="Try 4 or 8.",
    ),
]

WARNED: list[Case] = [
    Case("C2-25", {"tp": 12, "dp": 1}, "tp", "an NVLink domain has 8 devices"),
    Case("C2-25", {"tp": 2}, "tp", "there is no NVLink between devices", cluster=cluster(8, nvlink=False)),
    Case("idle-devices", {"dp": 24}, "dp", "8 of 32 devices carry no rank"),
    Case("expert-load", {"expert_imbalance": 1.5}, "expert_imbalance", "no effect, as gpt has no experts"),
    Case("context-cp", {"context_parallelism": "ulysses"}, "context_parallelism", "no effect while cp is 1"),
]
