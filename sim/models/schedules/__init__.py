"""Pipeline schedules (taxonomy D12): one entry each. What rules know is in ``sim.taxonomy.schedules``."""

from __future__ import annotations

from sim.models.schedules.asynchronous import PIPEDREAM, TWO_BUFFERED_WEIGHTS
from sim.models.schedules.base import Action, Kind, Order, Schedule, Slot, peak, staleness
from sim.models.schedules.bidirectional import CHIMERA, DUALPIPE
from sim.models.schedules.flush import GPIPE, INTERLEAVED, NAIVE, ONE_FORWARD_ONE_BACKWARD
from sim.models.schedules.zero_bubble import ZB_H1, ZB_H2, ZB_V

SCHEDULES: dict[str, Schedule] = {
    "naive": NAIVE,
    "gpipe": GPIPE,
    "1f1b": ONE_FORWARD_ONE_BACKWARD,
    "interleaved": INTERLEAVED,
    "zb_h1": ZB_H1,
    "zb_h2": ZB_H2,
    "zb_v": ZB_V,
    "chimera": CHIMERA,
    "dualpipe": DUALPIPE,
    "pipedream_async": PIPEDREAM,
    "2bw": TWO_BUFFERED_WEIGHTS,
}

__all__ = ["SCHEDULES", "Action", "Kind", "Order", "Schedule", "Slot", "peak", "staleness"]
