"""Words for a run that cannot go on: who waits for whom, up to the cycle or the missing event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.engine.plan import Plan
from sim.graph.execution import Discipline

if TYPE_CHECKING:
    from sim.engine.counters import Counters
    from sim.engine.streams import StreamPool

_MAX_LINKS = 50


@dataclass(frozen=True)
class Stuck:
    """State of a stopped run."""

    plan: Plan
    pending: list[int]
    start: list[float]
    end: list[float]
    counters: Counters
    streams: StreamPool | None
    unset: float

    def finished(self, instance: int) -> bool:
        """Whether an instance has ended."""
        return instance < len(self.end) and self.end[instance] is not self.unset

    def label(self, instance: int) -> str:
        """Name, place and iteration of an instance."""
        iteration, task = divmod(instance, self.plan.stride)
        graph = self.plan.graph
        device = int(graph.device[task])
        place = f" on {graph.devices.name[device]}" if device >= 0 else ""
        number = int(self.plan.origin[task])
        return f"'{graph.names[graph.name[task]]}'{place} (task {number}, iteration {iteration})"


def explain(stuck: Stuck) -> str:
    """The wait-for chain of the first unfinished task, in words."""
    instance = _first_unfinished(stuck)
    if instance is None:
        return "The run stopped, yet every task of the opened iterations has finished."
    seen: dict[int, int] = {}
    parts: list[str] = []
    while len(parts) < _MAX_LINKS:
        seen[instance] = len(parts)
        reason, cause = _reason(stuck, instance)
        parts.append(f"{stuck.label(instance)} {reason}")
        if cause is None:
            return "Deadlock: " + "; ".join(parts) + "."
        if cause in seen:
            cycle = len(parts) - seen[cause]
            closing = f"which closes a cycle of {cycle} task{'s' if cycle > 1 else ''}"
            return "Deadlock: " + "; ".join(parts) + f", {closing}."
        instance = cause
    return "Deadlock: " + "; ".join(parts) + "; ..."


def _first_unfinished(stuck: Stuck) -> int | None:
    stride, n = stuck.plan.stride, stuck.plan.num_tasks
    for instance, end in enumerate(stuck.end):
        if end is stuck.unset and instance % stride < n:
            return instance
    return None


def _reason(stuck: Stuck, instance: int) -> tuple[str, int | None]:
    """Why an instance has not finished, and the instance to blame."""
    plan, stride = stuck.plan, stuck.plan.stride
    iteration, task = divmod(instance, stride)
    if instance >= len(stuck.end):
        return "has not been reached", None
    if stuck.start[instance] is not stuck.unset:
        return "has started and not finished", None
    edges = plan.edges
    blocking = []
    for edge in np.flatnonzero(edges.target == task).tolist():
        back = int(edges.distance[edge])
        source = instance - task - back * stride + int(edges.source[edge])
        if back <= iteration and not stuck.finished(source):
            blocking.append(source)
    if blocking:
        # One that could be started itself tells more than one that waits behind it.
        source = min(blocking)
        via = _shared_stream(stuck, task, source % stride)
        where = f" ahead of it on stream {via}" if via else ""
        return f"waits for {stuck.label(source)}{where}", source
    held = stuck.counters.threshold(task, iteration)
    if held is not None:
        return _counter_reason(stuck, held)
    return "waits for its streams " + ", ".join(_stream_names(stuck, task)), _holder(stuck, task)


def _shared_stream(stuck: Stuck, task: int, source: int) -> str:
    """Name of a program stream on which ``source`` precedes ``task`` without being its data predecessor."""
    graph = stuck.plan.graph
    if source in graph.predecessors.row(task):
        return ""
    common = set(graph.streams.row(task).tolist()) & set(graph.streams.row(source).tolist())
    names = [graph.stream_table.name[s] for s in sorted(common) if _is_program(stuck, s)]
    return f"'{names[0]}'" if names else ""


def _is_program(stuck: Stuck, stream: int) -> bool:
    return bool(stuck.plan.graph.stream_table.discipline[stream] == Discipline.PROGRAM)


def _counter_reason(stuck: Stuck, held: tuple[tuple[int, int], float]) -> tuple[str, int | None]:
    (counter, at), value = held
    graph, stride = stuck.plan.graph, stuck.plan.stride
    now = stuck.counters.value.get((counter, at), 0.0)
    text = f"waits for counter '{graph.counters.name[counter]}' >= {value:g} (it is {now:g})"
    adders = graph.adds.rows()[graph.adds.index == counter].tolist()
    iterations = [at] if at >= 0 else range(len(stuck.end) // stride)
    for iteration in iterations:
        for task in adders:
            if not stuck.finished(iteration * stride + task):
                return text, iteration * stride + task
    return text + " and no unfinished task adds to it", None


def _stream_names(stuck: Stuck, task: int) -> list[str]:
    table = stuck.plan.graph.stream_table
    return [f"'{table.name[s]}'" for s in stuck.plan.graph.streams.row(task).tolist()]


def _holder(stuck: Stuck, task: int) -> int | None:
    """An instance whose turn comes first on a wide program stream of the task."""
    graph, streams = stuck.plan.graph, stuck.streams
    if streams is None:
        return None
    for stream in graph.streams.row(task).tolist():
        if stream in streams.turn:
            members = np.flatnonzero([stream in graph.streams.row(t) for t in range(graph.num_tasks)])
            iteration, place = divmod(streams.turn[stream], len(members))
            ahead = iteration * stuck.plan.stride + int(members[place])
            if ahead % stuck.plan.stride != task:
                return ahead
    return None
