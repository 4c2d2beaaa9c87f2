"""Links that serve whole transfers in the order in which their bytes started (``fifo``).

Strict and work-conserving: each transfer takes what those before it left on all of its links. A transfer that
joins is last and disturbs nobody; one that leaves lets the next ones on its links take over, and the change
travels down a link's queue only as far as it alters what is used before a position.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from simpy.core import Environment
from simpy.events import Event

from sim.engine.events import Completion
from sim.engine.network import NEGLIGIBLE, TransferTable
from sim.engine.plan import Plan

_ROUNDING = 1e-12


class Flow:
    """An active transfer."""

    __slots__ = ("cap", "completion", "factor", "instance", "left", "loads", "rate", "ticket", "time")

    def __init__(
        self, instance: int, left: float, cap: float, loads: list[tuple[int, float]], now: float
    ) -> None:
        self.instance, self.left, self.cap, self.loads, self.time = instance, left, cap, loads, now
        self.ticket = -1
        self.rate, self.factor = 0.0, 1.0
        self.completion: Completion | None = None


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


class FifoNetwork:
    """Network with first-come-first-served links; parameters as for ``FluidNetwork``."""

    def __init__(self, env: Environment, plan: Plan, drained: list[int], signals: list[bool]) -> None:
        self._env, self._drained, self._signals = env, drained, signals
        self.table = TransferTable(plan)
        self._queue: list[list[int]] = [[] for _ in self.table.capacity]  # tickets in order
        self._places: dict[int, Place] = {}  # by ticket
        self._flows: dict[int, Flow] = {}  # by instance, in order of service
        self._factor: dict[int, float] = {}
        self._next = 0
        self._new: list[int] = []
        self._disturbed: set[int] = set()
        self._callbacks: list[Callable[[Event], None]] = [self._on_completion]
        self.dirty = False
        self.effort = 0.0

    def join(self, instance: int) -> None:
        """Queue a transfer at the next flush."""
        self._new.append(instance)
        self._touch()

    def _touch(self) -> None:
        self.dirty = True
        self._signals.append(True)

    def set_factor(self, instance: int, factor: float, now: float) -> None:
        """Make an active transfer progress at ``factor`` times its rate from now on."""
        self._factor[instance] = factor
        flow = self._flows.get(instance)
        if flow is not None:
            self._advance(flow, now)
            flow.factor = factor
            self._schedule(flow)

    def state(self, now: float) -> list[tuple[int, float]]:
        """(instance, fraction of bytes left) of all active transfers, in order of service."""
        table = self.table
        for flow in self._flows.values():
            self._advance(flow, now)
        return [(f.instance, f.left / table.bytes[f.instance % table.stride]) for f in self._flows.values()]

    def flush(self, now: float) -> None:
        """Serve new transfers and those that earlier ones made room for."""
        table = self.table
        self._new.sort(key=lambda i: (table.rank[i % table.stride], i))
        for instance in self._new:
            task = instance % table.stride
            flow = Flow(instance, table.bytes[task], table.cap[task], table.loads(task), now)
            flow.factor = self._factor.get(instance, 1.0)
            self._flows[instance] = flow
            flow.ticket = self._next
            self._next += 1
            self._enter(flow)
        self._new.clear()
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
        if rate != flow.rate or flow.completion is None:
            self._advance(flow, now)
            flow.rate = rate
            self._schedule(flow)
        used = {link: place.before[link] + amount * rate for link, amount in flow.loads}
        changed = [
            link
            for link in links
            if abs(used[link] - place.after.get(link, -1.0)) > _ROUNDING * capacity[link]
        ]
        place.after = used
        return changed

    def _advance(self, flow: Flow, now: float) -> None:
        flow.left -= flow.rate * flow.factor * (now - flow.time)
        flow.time = now

    def _schedule(self, flow: Flow) -> None:
        if flow.completion is not None:
            flow.completion.cancel()
            flow.completion = None
        speed = flow.rate * flow.factor
        if speed > 0.0:
            flow.completion = Completion(self._env, self._callbacks, flow, max(flow.left, 0.0) / speed)

    def _on_completion(self, event: Event) -> None:
        flow: Flow = event._value
        now = self._env.now
        self._advance(flow, now)
        speed, size = flow.rate * flow.factor, self.table.bytes[flow.instance % self.table.stride]
        if flow.left > max(max(1e-12, 1e-12 * now) * speed, NEGLIGIBLE * size):
            self._schedule(flow)  # rounding: not quite there yet
            return
        del self._flows[flow.instance]
        self._factor.pop(flow.instance, None)
        self._leave(flow)
        self._drained.append(flow.instance)
        self._touch()

    def _leave(self, flow: Flow) -> None:
        """Give up the flow's place; what comes behind it is served anew."""
        del self._places[flow.ticket]
        for link, _ in flow.loads:
            queue = self._queue[link]
            at = bisect_left(queue, flow.ticket)
            queue.pop(at)
            if at < len(queue):
                self._disturbed.add(queue[at])
