"""Cases of the rules on the batch."""

from __future__ import annotations

from tests.rule_cases.case import Case, cnn, gpt

REFUSED: list[Case] = [
    Case(
        "batch-given",
        {},
        "workload.global_batch_size",
        "be given, or batch_per_device. Got neither.",
        gpt(global_batch_size=None),
        advice="Try workload.batch_per_device=32 or 1024.",
    ),
    Case(
        "batch-given",
        {},
        "workload.global_batch_size",
        "not be given together with batch_per_device. Got 96 and 4.",
        gpt(batch_per_device=4),
    ),
    Case(
        "C2-28",
        {},
        "workload.global_batch_size",
        "be a multiple of dp (32). Got 100.",
        gpt(global_batch_size=100),
        advice="Try 96 or 128.",
    ),
    Case(
        "C2-28",
        {"micro_batch_size": 2},
        "micro_batch_size",
        "divide the batch of a replica (3). Got 2.",
        advice="Try 1 or 3.",
    ),
]

WARNED: list[Case] = [
    Case("dtype-device", {}, "workload.dtype", "gpu has no bf16 units, only fp32, fp16", cnn(dtype="bf16")),
]
