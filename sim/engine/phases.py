"""What happens on a device during an activity of a coupled run: computing, latencies and flows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sim.engine.perturbation import jitter_factors
from sim.graph.contract import Contraction
from sim.graph.execution import ExecutionGraph, FloatArray, TaskKind
from sim.lowering.arrays import dense

# Kinds of phases; a mixed one both computes and communicates, at speeds that nothing else can change.
COMPUTE, LATENCY, FLOW, MIXED = range(4)
KEPT_FACTORS = 4_000_000  # random factors of past and coming iterations kept at hand


def idle_rates(graph: ExecutionGraph) -> FloatArray:
    """Rate of an elementary flow of each task when it is alone on its links, bytes/s (inf: no limit)."""
    rate = graph.cap.astype(np.float64)
    if len(graph.links.index):
        level = graph.link_table.capacity[graph.links.index] / graph.link_coefficient
        np.minimum.at(rate, graph.links.rows(), level)
    return rate


def idle_durations(graph: ExecutionGraph) -> FloatArray:
    """Seconds each task takes alone on its device and links, without jitter."""
    duration = np.where(graph.kind == TaskKind.COUNTER, 0.0, graph.work).astype(np.float64)
    moving = (graph.kind == TaskKind.TRANSFER) & (graph.flow_bytes > 0)
    duration[moving] += graph.flow_bytes[moving] / idle_rates(graph)[moving]
    return duration


@dataclass(frozen=True)
class Phases:
    """What happens on a device during an activity, one after the other."""

    kinds: list[int]
    ends: list[float]  # seconds at full speed from the start to the end of each phase


class PhaseTable:
    """The phases of every node, worked out when first asked for."""

    def __init__(self, graph: ExecutionGraph, contraction: Contraction | None) -> None:
        self._graph, self._contraction = graph, contraction
        self._of: dict[int, Phases] = {}
        self._like: dict[bytes, Phases] = {}
        self._factors: dict[int, list[float]] = {}  # of the iterations drawn last

    def at(self, node: int, iteration: int) -> Phases:
        """What an activity does, with the jitter of an iteration."""
        if self._graph.has_random_compute:
            return self._build(node, self._factors_of(iteration))
        known = self._of.get(node)
        if known is None:
            alike, bounds = self._alike
            key = alike[bounds[node] : bounds[node + 1]]
            known = self._like.get(key)
            if known is None:
                known = self._like[key] = self._build(node, None)
            self._of[node] = known
        return known

    def _factors_of(self, iteration: int) -> list[float]:
        """Factors of all tasks; more than one is kept, as without a barrier many iterations go on at once."""
        known = self._factors
        if iteration not in known:
            while len(known) > max(4, KEPT_FACTORS // self._graph.num_tasks):
                del known[next(iter(known))]
            known[iteration] = jitter_factors(self._graph, iteration).tolist()
        return known[iteration]

    @cached_property
    def _alike(self) -> tuple[bytes, list[int]]:
        """Members in order, as the bytes of a number that equals another's if their times do, and bounds.

        Programs are regular: a few sequences of members are all there are.
        """
        graph = self._graph
        columns = [graph.kind, graph.work, idle_durations(graph)]
        if self._contraction is not None:
            columns += [self._contraction.advance, self._contraction.span]
        alike = np.zeros(graph.num_tasks, np.int64)
        for column in columns:
            values = dense(column)
            alike = dense(alike * (int(values.max(initial=0)) + 1) + values)
        *_, bounds, index = self._columns
        return alike[index].tobytes(), [alike.itemsize * bound for bound in bounds]

    @cached_property
    def _columns(self) -> tuple[list[int], list[float], list[float], list[int], list[int]]:
        """Kind, latency or work, seconds of flow and members (bounds and index), as lists."""
        graph = self._graph
        flow = np.where(graph.kind == TaskKind.TRANSFER, idle_durations(graph) - graph.work, 0.0)
        if self._contraction is None:
            bounds, index = np.arange(graph.num_tasks + 1), np.arange(graph.num_tasks)
        else:
            bounds, index = self._contraction.members.offsets, self._contraction.members.index
        return graph.kind.tolist(), graph.work.tolist(), flow.tolist(), bounds.tolist(), index.tolist()

    def _build(self, node: int, factors: list[float] | None) -> Phases:
        kind, work, flow, bounds, index = self._columns
        kinds: list[int] = []
        ends: list[float] = []
        total = 0.0
        parts: tuple[tuple[int, float], ...]
        for task in index[bounds[node] : bounds[node + 1]]:
            if task in self._pairs:
                parts = self._pairs[task]
            elif kind[task] == TaskKind.COMPUTE:
                parts = ((COMPUTE, work[task] if factors is None else work[task] * factors[task]),)
            else:
                parts = ((LATENCY, work[task]), (FLOW, flow[task]))
            for phase, seconds in parts:
                if phase == COMPUTE and kinds and kinds[-1] == COMPUTE:  # successive ones are one phase
                    total += seconds
                    ends[-1] = total
                elif seconds > 0.0 or phase == COMPUTE:
                    total += seconds
                    kinds.append(phase)
                    ends.append(total)
        return Phases(kinds, ends)

    @cached_property
    def _pairs(self) -> dict[int, tuple[tuple[int, float], ...]]:
        """Phases of tasks that run side by side, by the second of each pair; the first has none of its own.

        While both run they slow each other down, and nothing else can; then the second is left.
        """
        found: dict[int, tuple[tuple[int, float], ...]] = {}
        if self._contraction is None:
            return found
        kind, _, flow, _, index = self._columns
        span = self._contraction.span.tolist()
        for place in np.flatnonzero(self._contraction.beside[self._contraction.members.index]).tolist():
            first, second = index[place - 1], index[place]
            left = span[second] - span[first]
            moving = min(left, flow[second])
            computes = kind[second] == TaskKind.COMPUTE
            alone = ((COMPUTE, left),) if computes else ((LATENCY, left - moving), (FLOW, moving))
            found[first] = ()
            found[second] = ((MIXED, span[first]), *(part for part in alone if part[1] > 0.0))
        return found
