"""Counters: token places that tasks add to when they finish and wait for before they start."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import pairwise
from math import ceil

import numpy as np

from sim.engine.plan import Plan
from sim.graph.execution import ExecutionGraph

# Counters hold sums of amounts; a threshold is reached up to rounding.
_ROUNDING = 1e-9


class Counters:
    """Values of all counters and who waits for them. Counters only grow, so a wait that holds stays true."""

    def __init__(self, plan: Plan) -> None:
        graph = plan.graph
        self._stride, self._rank = plan.stride, plan.rank
        self._per_iteration: list[bool] = graph.counters.per_iteration.tolist()
        adds = list(zip(graph.adds.index.tolist(), graph.add_amount.tolist(), strict=True))
        self._adds: dict[int, list[tuple[int, float]]] = {
            task: adds[a:b] for task, a, b in _rows(graph.adds.offsets.tolist())
        }
        ticket = graph.wait_ticket if graph.wait_ticket is not None else np.full(len(graph.wait_value), -1)
        columns = (graph.waits.index, graph.wait_value, graph.wait_slope, graph.wait_distance, ticket)
        waits = list(zip(*(column.tolist() for column in columns), strict=True))
        self._waits: dict[int, list[tuple[int, float, float, int, int]]] = {
            task: waits[a:b] for task, a, b in _rows(graph.waits.offsets.tolist())
        }
        self._reach = int(graph.wait_distance.max()) if len(graph.wait_distance) else 0
        self._slopes = _slopes(graph)
        # Key: (counter, iteration) of a per-iteration counter, (counter, -1) of a cumulative one.
        self.value: dict[tuple[int, int], float] = {}
        self.waiting: dict[tuple[int, int], list[tuple[float, int, int]]] = {}
        # The value that the add of an instance left behind, for tasks whose place in a batch others ask for,
        # and the growth per iteration of the counter they add to.
        self.tickets: dict[int, float] = {}
        self._ticket_slope = _ticket_slopes(graph)

    def threshold(self, task: int, iteration: int) -> tuple[tuple[int, int], float] | None:
        """First (counter key, value) that holds the task back, or None."""
        for counter, value, slope, distance, ticket in self._waits.get(task, ()):
            if self._per_iteration[counter]:
                if iteration < distance:
                    continue
                key = (counter, iteration - distance)
            elif ticket >= 0:
                place = self.tickets[iteration * self._stride + ticket]
                key, value = (counter, -1), batch_end(place, value)
            else:
                key, value = (counter, -1), value + slope * iteration
            if self.value.get(key, 0.0) < value - _ROUNDING * max(1.0, abs(value)):
                return key, value
        return None

    def admits(self, instance: int) -> bool:
        """Whether all waits of an instance hold; otherwise it is remembered and woken by :meth:`add`."""
        iteration, task = divmod(instance, self._stride)
        blocked = self.threshold(task, iteration)
        if blocked is None:
            return True
        key, value = blocked
        heappush(self.waiting.setdefault(key, []), (value, self._rank[task], instance))
        return False

    def add(self, instance: int) -> list[int]:
        """Do the adds of a finished instance; returns instances whose awaited value is reached."""
        iteration, task = divmod(instance, self._stride)
        woken: list[int] = []
        for counter, amount in self._adds.get(task, ()):
            key = (counter, iteration if self._per_iteration[counter] else -1)
            value = self.value[key] = self.value.get(key, 0.0) + amount
            if task in self._ticket_slope:
                self.tickets[instance] = value
            queue = self.waiting.get(key)
            while queue and queue[0][0] <= value + _ROUNDING * max(1.0, abs(value)):
                woken.append(heappop(queue)[2])
        return woken

    def waiting_relative(self, iteration: int, shift: int) -> object:
        """Who waits on which counter, with iterations and instances relative to ``iteration``."""
        found = []
        for (counter, at), queue in self.waiting.items():
            if queue:
                key = (counter, at - iteration if at >= 0 else None)
                found.append((str(key), tuple(sorted(instance - shift for _, _, instance in queue))))
        return tuple(sorted(found))

    def relative(self, iteration: int, oldest: int) -> list[tuple[tuple[int, int], float]]:
        """Counter values that can still matter, relative to ``iteration``.

        A cumulative counter appears once per slope with which it is awaited, minus that slope times the
        iteration; a per-iteration counter once per iteration that unfinished tasks may look at.
        """
        found: list[tuple[tuple[int, int], float]] = []
        for (counter, at), value in self.value.items():
            if at >= 0:
                if at >= oldest - self._reach:
                    found.append(((counter, at - iteration), value))
            else:
                for index, slope in enumerate(self._slopes.get(counter, ())):
                    found.append(((counter, -(10**9) - index), value - slope * iteration))
        return sorted(found)

    def tickets_relative(self, iteration: int, oldest: int, shift: int) -> list[tuple[int, float]]:
        """Tickets that unfinished iterations may still ask for, relative to ``iteration``."""
        first = oldest * self._stride
        self.tickets = {i: place for i, place in self.tickets.items() if i >= first}
        return sorted(
            (i - shift, place - self._ticket_slope[i % self._stride] * iteration)
            for i, place in self.tickets.items()
        )

    def reading(self, counter: int, iteration: int) -> float:
        """Value of a counter as seen from ``iteration``."""
        return self.value.get((counter, iteration if self._per_iteration[counter] else -1), 0.0)


def batch_end(place: float, size: float) -> float:
    """Counter value at which the batch that holds ``place`` is full."""
    return ceil(place / size - _ROUNDING) * size


def _ticket_slopes(graph: ExecutionGraph) -> dict[int, float]:
    """Tasks that draw a ticket -> growth per iteration of the counter it comes from."""
    if graph.wait_ticket is None:
        return {}
    drawn = graph.wait_ticket >= 0
    pairs = zip(graph.wait_ticket[drawn].tolist(), graph.wait_slope[drawn].tolist(), strict=True)
    return dict(pairs)


def _slopes(graph: ExecutionGraph) -> dict[int, list[float]]:
    """Slopes with which each counter is looked at; a skip looks with slope 0."""
    pairs = set(zip(graph.waits.index.tolist(), graph.wait_slope.tolist(), strict=True))
    pairs |= {(counter, 0.0) for counter in graph.skip_counter.tolist() if counter >= 0}
    found: dict[int, list[float]] = {}
    for counter, slope in sorted(pairs):
        found.setdefault(counter, []).append(slope)
    return found


def _rows(offsets: list[int]) -> list[tuple[int, int, int]]:
    """(task, first entry, last entry + 1) of the tasks that have entries."""
    if not offsets[-1]:
        return []
    return [(task, a, b) for task, (a, b) in enumerate(pairwise(offsets)) if b > a]
