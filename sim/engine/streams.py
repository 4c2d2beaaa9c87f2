"""Streams that need arbitration: by arrival, by priority, or program streams wider than one."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from sim.engine.edges import program_entries
from sim.engine.plan import Plan
from sim.graph.execution import Discipline

Key = tuple[float, float, int, int]


class StreamPool:
    """Free slots and waiting tasks of the shared streams.

    A task takes all its shared streams at once or waits holding none. On one stream the order is that of its
    discipline: (ready, priority, id) on arrival streams, (priority, ready, id) on priority streams, program
    order, blocking at the head, on wide program streams. A task that cannot start because another of its
    streams is busy does not block those behind it, except on program streams. Heads of different streams are
    tried in the order (ready, priority, id).
    """

    def __init__(self, plan: Plan) -> None:
        graph, table = plan.graph, plan.graph.stream_table
        self._stride, self._rank = plan.stride, plan.rank
        self._priority: list[int] = graph.priority.tolist()
        self._discipline: list[int] = table.discipline.tolist()
        shared = (table.discipline != Discipline.PROGRAM) | (table.width != 1)
        self._streams: list[list[int]] = [[] for _ in range(plan.num_tasks)]
        mine = shared[graph.streams.index] if len(graph.streams.index) else np.zeros(0, np.bool_)
        for task, stream in zip(
            graph.streams.rows()[mine].tolist(), graph.streams.index[mine].tolist(), strict=True
        ):
            self._streams[task].append(stream)
        self.free: list[int] = table.width.tolist()
        self.queue: list[list[tuple[Key, int]]] = [[] for _ in self.free]
        self.waiting: dict[int, float] = {}  # instance -> ready time
        self.touched: set[int] = set()
        self._position: dict[
            tuple[int, int], int
        ] = {}  # (stream, task) -> place in the program of a wide stream
        self._length: dict[int, int] = {}
        for stream, task in zip(
            *(column.tolist() for column in program_entries(graph, chained=False)), strict=True
        ):
            self._position[stream, task] = self._length.setdefault(stream, 0)
            self._length[stream] += 1
        self.turn: dict[int, int] = dict.fromkeys(self._length, 0)
        # Roots on wide program streams have no edge that would open their next iteration.
        self.opened: int = 0

    def enqueue(self, instance: int, ready: float) -> None:
        """A task has all it needs but its shared streams."""
        iteration, task = divmod(instance, self._stride)
        rank, priority = self._rank[task], self._priority[task]
        self.waiting[instance] = ready
        for stream in self._streams[task]:
            if stream in self._length:
                key: Key = (self._turn_of(stream, task, iteration), 0.0, 0, 0)
            elif self._discipline[stream] == Discipline.PRIORITY:
                key = (priority, ready, rank, iteration)
            else:
                key = (ready, rank, iteration, 0)
            heappush(self.queue[stream], (key, instance))
            self.touched.add(stream)

    def release(self, task: int) -> None:
        """A task has finished: its slots are free again."""
        for stream in self._streams[task]:
            self.free[stream] += 1
            self.touched.add(stream)

    def arbitrate(self) -> list[int]:
        """Instances that start now, in order; their slots are taken."""
        started: list[int] = []
        aside: dict[int, list[tuple[Key, int]]] = {}
        heads: list[tuple[float, int, int, int, int]] = []
        for stream in sorted(self.touched):
            self._push_head(stream, heads)
        self.touched.clear()
        while heads:
            _, _, _, instance, stream = heappop(heads)
            queue = self.queue[stream]
            if instance not in self.waiting or not queue or queue[0][1] != instance:
                self._push_head(stream, heads)
                continue
            iteration, task = divmod(instance, self._stride)
            mine = self._streams[task]
            if all(self.free[other] > 0 and self._may_start(other, task, iteration) for other in mine):
                started.append(instance)
                del self.waiting[instance]
                for other in mine:
                    self._take(other, iteration)
                    self._push_head(other, heads)
            elif stream not in self._length:
                aside.setdefault(stream, []).append(heappop(queue))
                self._push_head(stream, heads)
        for stream, entries in aside.items():
            for entry in entries:
                heappush(self.queue[stream], entry)
        return started

    def turns_relative(self, iteration: int) -> tuple[int, ...]:
        """Whose turn it is on wide program streams, relative to ``iteration``."""
        return tuple(turn - iteration * self._length[stream] for stream, turn in self.turn.items())

    def _push_head(self, stream: int, heads: list[tuple[float, int, int, int, int]]) -> None:
        if self.free[stream] <= 0:
            return
        queue = self.queue[stream]
        while queue and queue[0][1] not in self.waiting:
            heappop(queue)
        if queue:
            instance = queue[0][1]
            iteration, task = divmod(instance, self._stride)
            heappush(heads, (self.waiting[instance], self._rank[task], iteration, instance, stream))

    def _turn_of(self, stream: int, task: int, iteration: int) -> int:
        return iteration * self._length[stream] + self._position[stream, task]

    def _may_start(self, stream: int, task: int, iteration: int) -> bool:
        return stream not in self._length or self.turn[stream] == self._turn_of(stream, task, iteration)

    def _take(self, stream: int, iteration: int) -> None:
        self.free[stream] -= 1
        if stream in self._length:
            self.turn[stream] += 1
            if self.turn[stream] == (iteration + 1) * self._length[stream]:
                self.opened = max(self.opened, iteration + 1)
