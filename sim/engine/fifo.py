"""Links that serve whole transfers in the order in which their bytes started (``fifo``).

Strict and work-conserving: each transfer takes what those before it left on all of its links. A transfer that
joins is last and disturbs nobody; one that leaves lets the next ones on its links take over, and the change
travels down a link's queue only as far as it alters what is used before a position.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import heapify, heappop, heappush

from simpy.core import Environment

from sim.engine.flows import Flow, FlowNetwork
from sim.engine.plan import Plan

_ROUNDING = 1e-12


class Place:
    """A transfer's place in the order."""

    __slots__ = ("after", "before", "flow")

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.before: dict[int, float] = {}  # capacity of a link used by earlier places
        self.after: dict[int, float] = {}  # the same, with this one

    def rate(self, capacity: list[float]) -> float:
        """What the places before left."""
        free = {link: capacity[link] - used for link, used in self.before.items()}
        for link, left in free.items():
            if left <= _ROUNDING * capacity[link]:
                free[link] = 0.0
        return min([self.flow.cap, *(free[link] / amount for link, amount in self.flow.loads)])


class FifoNetwork(FlowNetwork):
    """Network with first-come-first-served links; parameters as for ``FluidNetwork``."""

    def __init__(self, env: Environment, plan: Plan, drained: list[int], signals: list[bool]) -> None:
        super().__init__(env, plan, drained, signals)
        self._queue: list[list[int]] = [[] for _ in self.table.capacity]  # tickets in order
        self._places: dict[int, Place] = {}  # by ticket
        self._next = 0
        self._disturbed: set[int] = set()

    def flush(self, now: float) -> None:
        """Serve new transfers and those that earlier ones made room for."""
        for flow in self._joined(now):
            flow.ticket = self._next
            self._next += 1
            self._enter(flow)
        self._settle(now)
        self.dirty = False

    def _enter(self, flow: Flow) -> None:
        """Take the flow's place on all of its links."""
        self._places[flow.ticket] = Place(flow)
        for link, _ in flow.loads:
            self._queue[link].append(flow.ticket)
        self._disturbed.add(flow.ticket)

    def _settle(self, now: float) -> None:
        pending, waiting = list(self._disturbed), self._disturbed
        heapify(pending)
        while pending:
            ticket = heappop(pending)
            waiting.discard(ticket)
            place = self._places.get(ticket)
            if place is None:
                continue
            self.effort += 0.25
            for link in self._serve(ticket, place, now):
                queue = self._queue[link]
                at = bisect_left(queue, ticket) + 1
                if at < len(queue) and queue[at] not in waiting:
                    waiting.add(queue[at])
                    heappush(pending, queue[at])

    def _serve(self, ticket: int, place: Place, now: float) -> list[int]:
        """Set the rate of a place; returns the links on which the next one sees a change."""
        capacity, flow = self.table.capacity, place.flow
        links = [link for link, _ in flow.loads]
        place.before = {}
        for link in links:
            queue = self._queue[link]
            at = bisect_left(queue, ticket)
            place.before[link] = self._places[queue[at - 1]].after[link] if at else 0.0
        rate = place.rate(capacity)
        self._set_rate(flow, rate, now)
        used = {link: place.before[link] + amount * rate for link, amount in flow.loads}
        changed = [
            link
            for link in links
            if abs(used[link] - place.after.get(link, -1.0)) > _ROUNDING * capacity[link]
        ]
        place.after = used
        return changed

    def _leave(self, flow: Flow) -> None:
        """Give up the flow's place; what comes behind it is served anew."""
        del self._places[flow.ticket]
        for link, _ in flow.loads:
            queue = self._queue[link]
            at = bisect_left(queue, flow.ticket)
            queue.pop(at)
            if at < len(queue):
                self._disturbed.add(queue[at])
