"""Pipeline schedules (taxonomy D12), by name. What rules know is in ``sim.taxonomy.schedules``."""

from __future__ import annotations

from sim.models.schedules import asynchronous, bidirectional, flush, zero_bubble
from sim.models.schedules.base import Action, Kind, Order, Schedule, Slot, peak, staleness

SCHEDULES: dict[str, Schedule] = {
    **flush.SCHEDULES,
    **zero_bubble.SCHEDULES,
    **bidirectional.SCHEDULES,
    **asynchronous.SCHEDULES,
}

__all__ = ["SCHEDULES", "Action", "Kind", "Order", "Schedule", "Slot", "peak", "staleness"]
