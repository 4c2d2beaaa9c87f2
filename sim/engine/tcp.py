"""Links that connections of different age share unevenly (``tcp``).

Transfers on one route are one connection: its bytes arrive in order. Connections that meet on a link share it
by their windows. One that starts later has the smaller window: it gets ``LATER_SHARE`` of what the connection
that started before it gets, and so on; those that start at one instant open their windows together and share
fairly. That keeps workers of an asynchronous server apart without making those that collide wait in line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import numpy as np
from simpy.core import Environment
from simpy.events import Event

from sim.engine.events import Completion
from sim.engine.fifo import Flow
from sim.engine.network import EFFORT_PER_VISIT, NEGLIGIBLE, TransferTable
from sim.engine.plan import Plan
from sim.fabric.sharing import max_min

LATER_SHARE = 0.7
"""Share of a later connection over that of the one before it; own measurement: asynchronous and bounded
parameter servers of three and four workers, some with a slow one, over cubic and deep queues."""

Route = tuple[tuple[int, float], ...]


class TcpNetwork:
    """Network of connections; parameters as for ``FluidNetwork``."""

    def __init__(self, env: Environment, plan: Plan, drained: list[int], signals: list[bool]) -> None:
        self._env, self._drained, self._signals = env, drained, signals
        self.table = TransferTable(plan)
        self._routes: dict[Route, deque[Flow]] = {}  # in the order of arrival; the first one is active
        self._active: list[dict[int, Flow]] = [{} for _ in self.table.capacity]  # of each link, by instance
        self._flows: dict[int, Flow] = {}
        self._factor: dict[int, float] = {}
        self._instants = 0
        self._new: list[int] = []
        self._disturbed: set[int] = set()  # links
        self._callbacks: list[Callable[[Event], None]] = [self._on_completion]
        self.dirty = False
        self.effort = 0.0

    def join(self, instance: int) -> None:
        """Start a transfer, or put it behind those of its connection, at the next flush."""
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
        """(instance, fraction of bytes left) of all transfers, in order of arrival."""
        table = self.table
        for flow in self._flows.values():
            self._advance(flow, now)
        return [(f.instance, f.left / table.bytes[f.instance % table.stride]) for f in self._flows.values()]

    def flush(self, now: float) -> None:
        """Start new transfers and share the links on which something changed."""
        table = self.table
        self._new.sort(key=lambda i: (table.rank[i % table.stride], i))
        for instance in self._new:
            task = instance % table.stride
            flow = Flow(instance, table.bytes[task], table.cap[task], table.loads(task), now)
            flow.factor = self._factor.get(instance, 1.0)
            flow.ticket = self._instants
            self._flows[instance] = flow
            queue = self._routes.setdefault(tuple(flow.loads), deque())
            queue.append(flow)
            if len(queue) == 1:
                self._open(flow)
        self._instants += bool(self._new)
        self._new.clear()
        for flows in self._components():
            self._share(flows, now)
        self._disturbed.clear()
        self.dirty = False

    def _open(self, flow: Flow) -> None:
        flow.time = self._env.now
        if not flow.loads:  # bound by its cap alone
            self._share([flow], flow.time)
        for link, _ in flow.loads:
            self._active[link][flow.instance] = flow
            self._disturbed.add(link)

    def _components(self) -> Iterable[list[Flow]]:
        """Active transfers that share links with disturbed ones, directly or through others."""
        seen: set[int] = set()
        for start in sorted(self._disturbed):
            found: dict[int, Flow] = {}
            links = [start]
            while links:
                link = links.pop()
                if link in seen:
                    continue
                seen.add(link)
                for instance, flow in self._active[link].items():
                    if instance not in found:
                        found[instance] = flow
                        links += [other for other, _ in flow.loads if other not in seen]
            if found:
                yield list(found.values())

    def _share(self, flows: list[Flow], now: float) -> None:
        """Set the rates of transfers that have links in common."""
        self.effort += len(flows) * EFFORT_PER_VISIT
        links = {link: i for i, link in enumerate({link: 0 for flow in flows for link, _ in flow.loads})}
        sizes = [len(flow.loads) for flow in flows]
        rates = max_min(
            np.array([self.table.capacity[link] for link in links]),
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            np.array([links[link] for flow in flows for link, _ in flow.loads], np.int64),
            np.array([amount for flow in flows for _, amount in flow.loads]),
            np.array([flow.cap for flow in flows]),
            np.array(self._weights(flows)) if len(flows) > 1 else None,
        )
        for flow, rate in zip(flows, rates.tolist(), strict=True):
            if rate != flow.rate or flow.completion is None:
                self._advance(flow, now)
                flow.rate = rate
                self._schedule(flow)

    def _weights(self, flows: list[Flow]) -> list[float]:
        """``LATER_SHARE`` to the power of the instants before it at which others on a link began."""
        ahead = dict.fromkeys((flow.instance for flow in flows), 0)
        for link in {link for flow in flows for link, _ in flow.loads}:
            users = self._active[link]
            if len(users) < 2:
                continue
            order = {t: i for i, t in enumerate(sorted({flow.ticket for flow in users.values()}))}
            for instance, flow in users.items():
                ahead[instance] = max(ahead[instance], order[flow.ticket])
        return [max(LATER_SHARE ** ahead[flow.instance], NEGLIGIBLE) for flow in flows]

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
        for link, _ in flow.loads:
            del self._active[link][flow.instance]
            self._disturbed.add(link)
        route = tuple(flow.loads)
        queue = self._routes[route]
        queue.popleft()
        if queue:
            self._open(queue[0])
        else:
            del self._routes[route]
        self._drained.append(flow.instance)
        self._touch()
