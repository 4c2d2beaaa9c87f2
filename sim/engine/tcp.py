"""Links that connections of different age share unevenly (``tcp``).

Transfers on one route are one connection: its bytes arrive in order. Connections that meet on a link share
it by their windows. One that starts later finds the link's queue filled and has the smaller window: it gets
a part of what the connection that started before it gets, which falls with the time between the two starts
towards ``LATER_SHARE``; and so on. That keeps workers of an asynchronous server apart without making those
that collide wait in line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from math import exp

import numpy as np
from simpy.core import Environment

from sim.engine.flows import Flow, FlowNetwork
from sim.engine.network import EFFORT_PER_VISIT, NEGLIGIBLE
from sim.engine.plan import Plan
from sim.fabric.sharing import max_min

LATER_SHARE = 0.7
"""Share of a later connection over that of the one before it; own measurement: asynchronous and bounded
parameter servers of three and four workers, some with a slow one, over cubic and deep queues."""
NEXT_SHARE, HEAD_START = 0.89, 10e-3
"""Share of a connection that starts hardly later than another one, and seconds over which it falls to
``LATER_SHARE``; own measurement: 13 MB from one host to three, four and five, 500 and 1000 Mbit/s, posted 1,
3, 10, 30 and 60 ms apart: 0.77 to 0.97 (mean of launches 0.89), 0.89, 0.78 to 0.85, 0.68 and about 0.6."""

Route = tuple[tuple[int, float], ...]


class TcpNetwork(FlowNetwork):
    """Network of connections; parameters as for ``FluidNetwork``."""

    def __init__(self, env: Environment, plan: Plan, drained: list[int], signals: list[bool]) -> None:
        super().__init__(env, plan, drained, signals)
        self._routes: dict[Route, deque[Flow]] = {}  # in the order of arrival; the first one is active
        self._active: list[dict[int, Flow]] = [{} for _ in self.table.capacity]  # of each link, by instance
        self._disturbed: set[int] = set()  # links

    def flush(self, now: float) -> None:
        """Start new transfers and share the links on which something changed."""
        for flow in self._joined(now):
            queue = self._routes.setdefault(tuple(flow.loads), deque())
            queue.append(flow)
            if len(queue) == 1:
                self._open(flow)
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
            self._set_rate(flow, rate, now)

    def _weights(self, flows: list[Flow]) -> list[float]:
        """Product of the shares over those before it on a link, the least of all its links."""
        weights = dict.fromkeys((flow.instance for flow in flows), 1.0)
        for link in {link for flow in flows for link, _ in flow.loads}:
            users = self._active[link]
            if len(users) < 2:
                continue
            starts = sorted({flow.begun for flow in users.values()})
            share, shares = 1.0, {starts[0]: 1.0}
            for before, start in pairwise(starts):
                near = exp((before - start) / HEAD_START)
                share *= LATER_SHARE + (NEXT_SHARE - LATER_SHARE) * near
                shares[start] = share
            for instance, flow in users.items():
                weights[instance] = min(weights[instance], shares[flow.begun])
        return [max(weights[flow.instance], NEGLIGIBLE) for flow in flows]

    def _leave(self, flow: Flow) -> None:
        """Give up the flow's links; the next transfer of its connection begins."""
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
