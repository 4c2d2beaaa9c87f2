"""Links that serve whole transfers in the order in which their bytes started (``fifo`` and ``tcp``).

Strict and work-conserving: each transfer takes what those before it left on all of its links. A transfer that
joins is last and disturbs nobody; one that leaves lets the next ones on its links take over, and the change
travels down a link's queue only as far as it alters what is used before a position.

Under ``tcp``, transfers on different routes that start at the same instant share their links fairly, as
connections do that open up their windows together; one that starts later hardly gets a share before those
ahead of it have finished. Under ``fifo`` each of them has a place of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from heapq import heapify, heappop, heappush

import numpy as np
from simpy.core import Environment
from simpy.events import Event

from sim.engine.events import Completion
from sim.engine.network import NEGLIGIBLE, TransferTable
from sim.engine.plan import Plan
from sim.fabric.sharing import max_min

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
    """The transfers that share one place in the order, usually one."""

    __slots__ = ("after", "before", "flows")

    def __init__(self) -> None:
        self.flows: list[Flow] = []
        self.before: dict[int, float] = {}  # capacity of a link used by earlier places
        self.after: dict[int, float] = {}  # the same, with this one

    def rates(self, capacity: list[float]) -> list[float]:
        """Rate of every transfer: what the places before left, divided fairly."""
        free = {link: capacity[link] - used for link, used in self.before.items()}
        for link, left in free.items():
            if left <= _ROUNDING * capacity[link]:
                free[link] = 0.0
        if len(self.flows) == 1:
            flow = self.flows[0]
            return [min([flow.cap, *(free[link] / amount for link, amount in flow.loads)])]
        number = {link: i for i, link in enumerate(free)}
        sizes = [len(flow.loads) for flow in self.flows]
        pairs = [(number[link], amount) for flow in self.flows for link, amount in flow.loads]
        rates = max_min(
            np.array(list(free.values())),
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            np.array([link for link, _ in pairs], np.int64),
            np.array([amount for _, amount in pairs]),
            np.array([flow.cap for flow in self.flows]),
        )
        return [float(rate) for rate in rates]


class FifoNetwork:
    """Network with first-come-first-served links; parameters as for ``FluidNetwork``."""

    def __init__(self, env: Environment, plan: Plan, drained: list[int], signals: list[bool]) -> None:
        self._env, self._drained, self._signals = env, drained, signals
        self.table = TransferTable(plan)
        self._ties_share = plan.graph.link_service == "tcp"
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
        behind: dict[tuple[tuple[int, float], ...], int] = {}  # by route: places taken at this instant
        first = self._next
        for instance in self._new:
            task = instance % table.stride
            flow = Flow(instance, table.bytes[task], table.cap[task], table.loads(task), now)
            flow.factor = self._factor.get(instance, 1.0)
            self._flows[instance] = flow
            if self._ties_share:
                route = tuple(flow.loads)
                flow.ticket = first + behind.get(route, 0)
                behind[route] = behind.get(route, 0) + 1
            else:
                flow.ticket = self._next
            self._next = max(self._next, flow.ticket + 1)
            self._enter(flow)
        self._new.clear()
        self._settle(now)
        self.dirty = False

    def _enter(self, flow: Flow) -> None:
        """Take the flow's place on all of its links."""
        place = self._places.setdefault(flow.ticket, Place())
        place.flows.append(flow)
        for link, _ in flow.loads:
            queue = self._queue[link]
            at = bisect_left(queue, flow.ticket)
            if at == len(queue) or queue[at] != flow.ticket:
                queue.insert(at, flow.ticket)
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
        """Set the rates of a place; returns the links on which the next one sees a change."""
        capacity = self.table.capacity
        links = dict.fromkeys(link for flow in place.flows for link, _ in flow.loads)
        for link in links:
            queue = self._queue[link]
            at = bisect_left(queue, ticket)
            place.before[link] = self._places[queue[at - 1]].after[link] if at else 0.0
        place.before = {link: place.before[link] for link in links}
        used = dict(place.before)
        for flow, rate in zip(place.flows, place.rates(capacity), strict=True):
            if rate != flow.rate or flow.completion is None:
                self._advance(flow, now)
                flow.rate = rate
                self._schedule(flow)
            for link, amount in flow.loads:
                used[link] += amount * rate
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
        """Give up the flow's place; what shares it, or comes behind it, is served anew."""
        place = self._places[flow.ticket]
        place.flows.remove(flow)
        still = {link for other in place.flows for link, _ in other.loads}
        if still:
            self._disturbed.add(flow.ticket)
        else:
            del self._places[flow.ticket]
        for link, _ in flow.loads:
            if link in still:
                continue
            queue = self._queue[link]
            at = bisect_left(queue, flow.ticket)
            queue.pop(at)
            if at < len(queue):
                self._disturbed.add(queue[at])
