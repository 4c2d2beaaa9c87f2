"""Cases of the rules on pipeline schedules."""

from __future__ import annotations

from tests.rule_cases.case import Case

REFUSED: list[Case] = [
    Case(
        "schedule-even",
        {"schedule": "chimera", "pp": 3, "dp": 8, "micro_batch_size": 1},
        "pp",
        "be even for the chimera schedule, because stages s and p - 1 - s share a rank",
        advice="Try 2 or 4.",
    ),
    Case(
        "schedule-replicas",
        {"schedule": "chimera", "pp": 4, "micro_batch_size": 1, "state": "zero3"},
        "state",
        "be replicated or zero1 for the chimera schedule",
        advice="Try replicated or zero1.",
    ),
    Case(
        "schedule-replicas",
        {"schedule": "chimera", "pp": 4, "micro_batch_size": 1, "synchronization": "local"},
        "synchronization",
        "be bsp or delayed for the chimera schedule",
    ),
    Case(
        "schedule-flush",
        {"schedule": "2bw", "pp": 4, "micro_batch_size": 1, "state": "zero1"},
        "state",
        "be replicated for the 2bw schedule",
        advice="Try replicated or strategy.schedule=1f1b.",
    ),
    Case(
        "schedule-flush",
        {"schedule": "pipedream_async", "pp": 4, "synchronization": "local"},
        "synchronization",
        "be bsp for the pipedream_async schedule",
    ),
]

WARNED: list[Case] = [
    Case("C2-22", {"pp": 4, "schedule": "pipedream_async"}, "schedule", "classified as delayed"),
    Case("C2-37", {"weight_stash": True}, "weight_stash", "changes nothing with schedule 1f1b"),
    Case(
        "C2-24",
        {"pp": 4, "schedule": "zb_h1", "micro_batch_size": 1, "recompute": "full"},
        "recompute",
        "the repeated forward precedes the gradient of the input",
    ),
]
