"""Cases of the rules on the size of a simulation."""

from __future__ import annotations

from tests.rule_cases.case import Case, cnn, gpt

REFUSED: list[Case] = [
    Case(
        "size-period",
        {"synchronization": "local", "local_steps": 10**9},
        "local_steps",
        "layers of resnet50, because every step of a period is simulated. Got 1000000000.",
        cnn(),
    ),
    Case(
        "size-micro-batches",
        {"micro_batch_size": 1},
        "micro_batch_size",
        "micro-batches for the",
        gpt(global_batch_size=32 * 10**8),
    ),
    Case(
        "size-pieces",
        {"partition_size": 1.0},
        "partition_size",
        "be at least 102 bytes, so that gradients are at most 1000000 pieces. Got 1.",
        cnn(),
        advice="Try 128.0 or leaving it out.",
    ),
    Case(
        "size-servers",
        {"state": "ps_dedicated", "num_servers": 10**9},
        "num_servers",
        "be at most 10000 for 32 ranks",
        cnn(),
        advice="Try 10000.",
    ),
]
WARNED: list[Case] = []
