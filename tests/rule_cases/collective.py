"""Cases of the rules on collectives."""

from __future__ import annotations

from tests.rule_cases.case import HOST, PAIR, Case, cluster, cnn, moe

REFUSED: list[Case] = [
    Case(
        "C2-20",
        {"collective": "hierarchical"},
        "collective",
        "group has 8 on each of 1 hosts",
        cluster=HOST,
        workload=cnn(),
        advice="Try ring or auto.",
    ),
    Case(
        "C2-20",
        {"collective": "torus2d"},
        "collective",
        "different numbers of ranks on its hosts",
        cluster=cluster(4, 8),
        workload=cnn(),
    ),
    Case(
        "C2-20",
        {"collective": "hierarchical", "pp": 2, "placement": ("dp", "tp", "cp", "pp")},
        "collective",
        "group has 8 on each of 1 hosts",
        cluster=PAIR,
    ),
    Case(
        "nvls-switches",
        {"collective": "nvls"},
        "collective",
        "be another one on hosts without NVSwitches that add up",
        cluster=PAIR,
        advice="Try ring or auto.",
    ),
    Case(
        "gloo-algorithm",
        {"collective": "halving_doubling"},
        "collective",
        "be auto or ring with gloo, because gloo all-reduces",
        cluster=PAIR.model_copy(update={"library": "gloo"}),
        advice="Try auto or ring.",
    ),
    Case(
        "grid-experts",
        {"collective": "hierarchical", "ep": 2},
        "collective",
        "be a flat algorithm while ep is above 1",
        moe(),
    ),
    Case(
        "chunks-collective",
        {"chunks": 4},
        "chunks",
        "be 1 while collective is auto. Got 4.",
        advice="Try 1 or strategy.collective=hierarchical.",
    ),
    Case(
        "sharding-algorithm",
        {"collective": "tree", "state": "zero1"},
        "collective",
        "have a reduce-scatter form",
        advice="Try ring or strategy.state=replicated.",
    ),
    Case(
        "sharding-algorithm",
        {"collective": "halving_doubling", "state": "zero3", "dp": 6},
        "collective",
        "for 6 ranks, no power of two",
    ),
    Case(
        "direct-ranks",
        {"collective": "direct"},
        "collective",
        "of more than 4096 ranks on this fabric. Got direct (8192 ranks).",
        cnn(),
        cluster(*[8] * 1024, routing="hashed"),
        advice="Try ring or auto.",
    ),
    Case(
        "grid-shape",
        {"collective": "torus2d", "collective_dims": (4, 7)},
        "collective_dims",
        "multiply to the 32 ranks of a gradient group. Got [4, 7].",
        cnn(),
        advice="Try [4, 8] or [2, 16].",
    ),
    Case(
        "grid-shape",
        {"collective": "torus2d", "collective_dims": (2, 4, 4)},
        "collective_dims",
        "be two extents of at least 2",
        cnn(),
    ),
    Case(
        "grid-shape",
        {"collective": "ring", "collective_dims": (4, 8)},
        "collective_dims",
        "be given for bcube, blueconnect, hierarchical, leaders, torus2d only",
        cnn(),
    ),
    Case(
        "radix-collective",
        {"collective": "tree", "collective_radix": 4},
        "collective_radix",
        "be given for bcube and kary_tree",
        cnn(),
    ),
    Case(
        "radix-collective",
        {"collective": "bcube", "collective_radix": 4},
        "collective_radix",
        "be a base of which the 32 ranks",
        cnn(),
    ),
    Case(
        "grid-experts",
        {"collective": "bcube", "collective_radix": 2, "ep": 2},
        "collective",
        "be a flat algorithm while ep is above 1",
        moe(),
    ),
]

WARNED: list[Case] = [
    Case("C2-19", {"collective": "halving_doubling", "dp": 24}, "collective", "on 24 ranks, no power of two"),
    Case("no-peers", {"collective": "ring", "dp": 1}, "collective", "no gradient is exchanged"),
]
