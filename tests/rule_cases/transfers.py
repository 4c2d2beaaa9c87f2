"""Cases of the rules on transfers, their order and compression."""

from __future__ import annotations

from tests.rule_cases.case import RACK, Case

REFUSED: list[Case] = [
    Case(
        "order-barrier",
        {"order": "priority_layer", "pp": 4, "micro_batch_size": 1},
        "order",
        "be fifo while pp is more than 1, because urgency matters only where",
    ),
    Case(
        "order-barrier",
        {"order": "priority_layer", "state": "zero1"},
        "order",
        "be fifo while state is zero1 and synchronization bsp",
        advice="Try fifo.",
    ),
    Case(
        "order-library",
        {"order": "priority_layer"},
        "order",
        "be fifo with gloo, because gloo runs collectives in the order in which they were issued",
        cluster=RACK.model_copy(update={"library": "gloo"}),
    ),
    Case(
        "credit-pieces",
        {"credit": 4e6},
        "credit",
        "go with a partition_size. Got 4000000",
    ),
    Case(
        "credit-pieces",
        {"credit": 4e6, "partition_size": 8e6},
        "credit",
        "be at least partition_size (8e+06)",
    ),
    Case("cycle-time", {"fusion": "time"}, "cycle_time", "be greater than 0 for fusion time. Got 0.0"),
    Case("cycle-time", {"cycle_time": 1e-3}, "cycle_time", "be 0 without fusion time or a negotiation"),
    Case(
        "negotiation-collective",
        {"negotiation": "coordinator", "state": "ps_dedicated"},
        "negotiation",
        "be none while state is ps_dedicated",
        advice="Try none.",
    ),
    Case(
        "fusion-collective",
        {"fusion": "merge_plan", "state": "zero3"},
        "fusion",
        "be size or none while state is zero3",
        advice="Try size or none.",
    ),
]

WARNED: list[Case] = [
    Case(
        "C2-33", {"order": "priority_layer", "bucket_size": 1e12}, "order", "one bucket holds all gradients"
    ),
    Case(
        "order-overlap",
        {"order": "priority_layer", "overlap": False},
        "order",
        "without overlap helps the next forward only",
    ),
    Case("buckets-unused", {"partition_size": 1e6, "state": "zero3"}, "partition_size", "has no effect"),
]
