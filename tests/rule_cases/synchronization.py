"""Cases of the rules on synchronisation."""

from __future__ import annotations

from tests.rule_cases.case import HOST, Case, gpt, moe

REFUSED: list[Case] = [
    Case(
        "C2-2",
        {"synchronization": "asp"},
        "synchronization",
        "be bsp or local while state is replicated, because a collective is a barrier",
        advice="Try strategy.state=ps_dedicated or bsp.",
    ),
    Case(
        "C2-2",
        {"synchronization": "ssp", "staleness": 3, "state": "zero1"},
        "synchronization",
        "be bsp while state is zero1",
    ),
    Case(
        "C2-3",
        {"synchronization": "backup", "backup_workers": 1},
        "synchronization",
        "every member must contribute",
    ),
    Case(
        "C2-4",
        {"synchronization": "asp", "state": "zero3"},
        "synchronization",
        "each layer gathers parameters",
    ),
    Case(
        "C2-36",
        {"synchronization": "backup", "state": "zero2"},
        "synchronization",
        "every shard owner is needed",
    ),
    Case(
        "local-state",
        {"synchronization": "local", "local_steps": 4, "state": "zero1"},
        "state",
        "be replicated or a parameter server for local SGD",
    ),
    Case(
        "local-replica",
        {"synchronization": "local", "local_steps": 4, "ep": 2},
        "ep",
        "be 1 for local SGD",
        moe(),
    ),
    Case(
        "backup-replica",
        {"synchronization": "backup", "backup_workers": 1, "state": "ps_dedicated", "tp": 2},
        "tp",
        "be 1 for backup workers",
        advice="Try 1 or strategy.synchronization=bsp with strategy.backup_workers=0.",
    ),
    Case(
        "staleness-ssp",
        {"staleness": 2, "synchronization": "asp", "state": "ps_dedicated"},
        "staleness",
        "be 0 while synchronization is asp. Got 2.",
        advice="Try 0 or strategy.synchronization=ssp.",
    ),
    Case(
        "backup-workers", {"backup_workers": 2}, "backup_workers", "be 0 while synchronization is bsp. Got 2."
    ),
    Case(
        "backup-workers",
        {"backup_workers": 8, "synchronization": "backup", "state": "ps_dedicated"},
        "backup_workers",
        "be less than dp (8). Got 8.",
        cluster=HOST,
        advice="Try 7.",
    ),
    Case(
        "local-steps",
        {"local_steps": 4},
        "local_steps",
        "be 1 while synchronization is bsp. Got 4.",
        advice="Try 1 or strategy.synchronization=local.",
    ),
]

WARNED: list[Case] = [
    Case("C2-15", {"synchronization": "local"}, "local_steps", "averages after every step"),
    Case(
        "ssp-zero", {"synchronization": "ssp", "state": "ps_dedicated"}, "staleness", "waits for every worker"
    ),
    Case(
        "backup-zero",
        {"synchronization": "backup", "state": "ps_dedicated"},
        "backup_workers",
        "waits for every gradient",
    ),
    Case(
        "C2-38",
        {"synchronization": "asp", "state": "ps_dedicated"},
        "synchronization",
        "lamb",
        gpt(optimizer="lamb"),
    ),
]
