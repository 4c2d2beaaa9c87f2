"""When a complete gradient is sent (taxonomy D8: order, credit, negotiation)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sim.graph.execution import Discipline
from sim.lowering.buckets import Bucket

if TYPE_CHECKING:
    from sim.lowering.plan import Plan

TREE_RADIX = 4
"""Children of a rank in the tree of a hierarchical coordinator (Kurth et al., SC 2018, section V.A.3)."""

ORDERED_STREAMS = {
    "fifo": (),
    "priority_layer": ("dp", "ps_push", "ps_pull"),
    "critical_path": ("dp", "ps_pull"),  # TicTac orders what workers receive
}
"""Streams whose next transfer is the most urgent one, not the first, by order."""


def stream_rules(plan: Plan) -> dict[str, tuple[int, Discipline]]:
    """Width and discipline of the communication streams that are not served one by one in program order.

    A credit is what may be under way at a time, in pieces (ByteScheduler, Peng et al., SOSP 2019).
    """
    strategy = plan.strategy
    width = 1
    if strategy.credit is not None and strategy.partition_size is not None:
        width = max(1, int(strategy.credit / strategy.partition_size * (1 + 1e-12)))
    ordered = ORDERED_STREAMS[strategy.order]
    return {
        name: (width, Discipline.PRIORITY if name in ordered else Discipline.PROGRAM)
        for name in ("dp", "ps_push", "ps_pull")
        if width > 1 or name in ordered
    }


def priority(plan: Plan, bucket: Bucket) -> int:
    """Lower is more urgent: the layer of the next forward that needs a bucket first."""
    return bucket.last_layer if plan.strategy.order != "fifo" else 0


def negotiation_seconds(plan: Plan) -> float:
    """Seconds until all ranks know that a bucket is complete everywhere.

    Half a cycle until the next look (unless fusion waits for the cycle's end itself), a message from every
    rank to the coordinator and back one after another, or the same at every level of a tree (Kurth et al.).
    """
    strategy, ranks = plan.strategy, plan.layout.num_ranks
    if strategy.negotiation == "none" or ranks < 2:
        return 0.0
    message = plan.step_latency.network
    messages = 2 * (ranks - 1)
    if strategy.negotiation == "hier_coordinator":
        messages = 2 * min(TREE_RADIX, ranks - 1) * math.ceil(math.log(ranks, TREE_RADIX) - 1e-12)
    waiting = 0.0 if strategy.fusion == "time" else strategy.cycle_time / 2
    return waiting + messages * message
