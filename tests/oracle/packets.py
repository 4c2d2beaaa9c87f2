"""A packet-level network, written apart from the simulator: store and forward, round robin, credits.

Every link serves the flows that have a packet waiting in turn, one packet at a time. A packet moves on only
if few packets of its flow wait at the next link (credits, as InfiniBand's virtual lanes), so nothing is lost
and nothing needs TCP. What bulk transfers get is then near max-min fair, without anybody having computed it.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

WINDOW = 4


@dataclass
class _Link:
    """Waiting packets per flow, the order in which flows are served, whether a packet is under way."""

    seconds_per_packet: float
    latency: float
    waiting: dict[int, int] = field(default_factory=dict)
    turn: deque[int] = field(default_factory=deque)
    busy: bool = False


class Packets:
    """Bulk transfers over paths of links.

    Parameters
    ----------
    capacity, latency : dict of link name to bytes/s, to seconds
    packet_bytes : float
    """

    def __init__(self, capacity: dict[str, float], latency: dict[str, float], packet_bytes: float) -> None:
        self._links = {name: _Link(packet_bytes / capacity[name], latency[name]) for name in capacity}
        self._packet = packet_bytes
        self._paths: list[list[str]] = []
        self._left: list[int] = []
        self._to_come: list[int] = []
        self._start: list[float] = []
        self._underway: dict[tuple[int, int], int] = {}

    def send(self, path: list[str], size: float, start: float = 0.0) -> None:
        """A transfer that starts at a time."""
        self._paths.append(path)
        count = max(1, round(size / self._packet))
        self._left.append(count)
        self._to_come.append(count)
        self._start.append(start)

    def run(self) -> list[float]:
        """When the last packet of each transfer arrives."""
        self._now, self._events = 0.0, [(t, i, -1, i) for i, t in enumerate(self._start)]
        self._number = len(self._events)
        heapq.heapify(self._events)
        finish = [0.0] * len(self._paths)
        while self._events:
            self._now, _, hop, flow = heapq.heappop(self._events)
            if hop < 0:
                self._feed(flow)
            elif hop % 2 == 0:  # the link is free again
                self._sent(flow, hop // 2)
            elif hop // 2 + 1 < len(self._paths[flow]):
                self._underway[flow, hop // 2 + 1] -= 1
                self._queue(flow, hop // 2 + 1)
            else:
                self._to_come[flow] -= 1
                finish[flow] = self._now
        assert not any(self._to_come)
        return finish

    def _at(self, delay: float, hop: int, flow: int) -> None:
        self._number += 1
        heapq.heappush(self._events, (self._now + delay, self._number, hop, flow))

    def _feed(self, flow: int) -> None:
        """The source keeps the window of its first link full."""
        first = self._links[self._paths[flow][0]]
        while self._left[flow] and first.waiting.get(flow, 0) < WINDOW:
            self._left[flow] -= 1
            self._queue(flow, 0)

    def _queue(self, flow: int, hop: int) -> None:
        link = self._links[self._paths[flow][hop]]
        if not link.waiting.get(flow):
            link.turn.append(flow)
        link.waiting[flow] = link.waiting.get(flow, 0) + 1
        self._serve(link)

    def _serve(self, link: _Link) -> None:
        """Start the next packet whose flow has credits at the next link."""
        if link.busy:
            return
        for _ in range(len(link.turn)):
            flow = link.turn.popleft()
            hop = next(i for i, name in enumerate(self._paths[flow]) if self._links[name] is link)
            if not self._room(flow, hop + 1):
                link.turn.append(flow)
                continue
            link.busy = True
            self._underway[flow, hop + 1] = self._underway.get((flow, hop + 1), 0) + 1
            self._at(link.seconds_per_packet, 2 * hop, flow)
            return

    def _room(self, flow: int, hop: int) -> bool:
        if hop >= len(self._paths[flow]):
            return True
        waiting = self._links[self._paths[flow][hop]].waiting.get(flow, 0)
        return waiting + self._underway.get((flow, hop), 0) < 2 * WINDOW

    def _sent(self, flow: int, hop: int) -> None:
        link = self._links[self._paths[flow][hop]]
        link.busy = False
        link.waiting[flow] -= 1
        if link.waiting[flow]:
            link.turn.append(flow)
        self._at(link.latency, 2 * hop + 1, flow)
        if hop == 0:
            self._feed(flow)
        else:
            self._serve(self._links[self._paths[flow][hop - 1]])
        self._serve(link)
