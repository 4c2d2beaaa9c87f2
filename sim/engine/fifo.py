"""Links that serve whole transfers in the order in which their bytes started (``link_service = fifo``).

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

    __slots__ = ("after", "before", "completion", "factor", "instance", "left", "loads", "rate", "time")

    def __init__(self, instance: int, left: float, loads: list[tuple[int, float]], now: float) -> None:
        self.instance, self.left, self.loads, self.time = instance, left, loads, now
        self.rate, self.factor = 0.0, 1.0
        self.before: dict[int, float] = {}  # capacity of a link used by earlier transfers
        self.after: dict[int, float] = {}  # the same, with this one
        self.completion: Completion | None = None


class FifoNetwork:
    """Network with first-come-first-served links; parameters as for ``FluidNetwork``."""

    def __init__(self, env: Environment, plan: Plan, drained: list[int], signals: list[bool]) -> None:
        self._env, self._drained, self._signals = env, drained, signals
        self.table = TransferTable(plan)
        self._queue: list[list[int]] = [[] for _ in self.table.capacity]  # tickets in order
        self._flows: dict[int, Flow] = {}  # by ticket
        self._ticket: dict[int, int] = {}  # by instance
        self._factor: dict[int, float] = {}
        self._next = 0
        self._new: list[int] = []
        self._disturbed: set[int] = set()
        self._callbacks: list[Callable[[Event], None]] = [self._on_completion]
        self.dirty = False

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
        ticket = self._ticket.get(instance)
        if ticket is not None:
            flow = self._flows[ticket]
            self._advance(flow, now)
            flow.factor = factor
            self._schedule(flow)

    def state(self, now: float) -> list[tuple[int, float]]:
        """(instance, fraction of bytes left) of active transfers, in order of service."""
        table = self.table
        for flow in self._flows.values():
            self._advance(flow, now)
        return [(f.instance, f.left / table.bytes[f.instance % table.stride]) for f in self._flows.values()]

    def flush(self, now: float) -> None:
        """Serve new transfers and those that earlier ones made room for."""
        stride, rank = self.table.stride, self.table.rank
        self._new.sort(key=lambda i: (rank[i % stride], i))
        for instance in self._new:
            task = instance % stride
            flow = Flow(instance, self.table.bytes[task], self.table.loads(task), now)
            flow.factor = self._factor.get(instance, 1.0)
            ticket = self._ticket[instance] = self._next
            self._next += 1
            self._flows[ticket] = flow
            for link, _ in flow.loads:
                self._queue[link].append(ticket)
            self._disturbed.add(ticket)
        self._new.clear()
        self._settle(now)
        self.dirty = False

    def _settle(self, now: float) -> None:
        pending, waiting = list(self._disturbed), self._disturbed
        heapify(pending)
        while pending:
            ticket = heappop(pending)
            waiting.discard(ticket)
            flow = self._flows.get(ticket)
            if flow is None:
                continue
            for link in self._serve(ticket, flow, now):
                queue = self._queue[link]
                place = bisect_left(queue, ticket) + 1
                if place < len(queue) and queue[place] not in waiting:
                    waiting.add(queue[place])
                    heappush(pending, queue[place])

    def _serve(self, ticket: int, flow: Flow, now: float) -> list[int]:
        """Set a flow's rate; returns the links on which the next transfer sees a change."""
        capacity = self.table.capacity
        rate = self.table.cap[flow.instance % self.table.stride]
        for link, amount in flow.loads:
            queue = self._queue[link]
            place = bisect_left(queue, ticket)
            used = self._flows[queue[place - 1]].after[link] if place else 0.0
            flow.before[link] = used
            free = capacity[link] - used
            rate = min(rate, free / amount if free > _ROUNDING * capacity[link] else 0.0)
        if rate != flow.rate or flow.completion is None:
            self._advance(flow, now)
            flow.rate = rate
            self._schedule(flow)
        changed = []
        for link, amount in flow.loads:
            used = flow.before[link] + amount * rate
            if abs(used - flow.after.get(link, -1.0)) > _ROUNDING * capacity[link]:
                changed.append(link)
            flow.after[link] = used
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
        ticket = self._ticket.pop(flow.instance)
        self._factor.pop(flow.instance, None)
        del self._flows[ticket]
        for link, _ in flow.loads:
            queue = self._queue[link]
            place = bisect_left(queue, ticket)
            queue.pop(place)
            if place < len(queue):
                self._disturbed.add(queue[place])
        self._drained.append(flow.instance)
        self._touch()
