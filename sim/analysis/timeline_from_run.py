"""A played run as a Timeline: one row per participant, with the instant each participant posted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sim.engine.record import RunRecord
from sim.graph.execution import Cause, Discipline, ExecutionGraph, TaskKind
from sim.timeline import Timeline

#: Largest (task, device) table that is kept as one array of flags.
_DENSE_LIMIT = 50_000_000

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def expand(offsets: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Entries of the given rows of a ragged table.

    Returns
    -------
    tuple of ndarray of int
        For every entry, in order: its position in ``rows``, and its position in the ragged index.
    """
    first, count = offsets[rows], offsets[rows + 1] - offsets[rows]
    owner = np.repeat(np.arange(len(rows)), count)
    entry = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count) + first[owner]
    return owner, entry


@dataclass(frozen=True)
class Instances:
    """Played instances of a graph, found by (task, iteration)."""

    graph: ExecutionGraph
    run: RunRecord

    @cached_property
    def _sorted_keys(self) -> tuple[IntArray, IntArray]:
        keys = self.run.iteration * self.graph.num_tasks + self.run.task
        order = np.argsort(keys, kind="stable").astype(np.int64)
        return keys[order], order

    @cached_property
    def _dense(self) -> IntArray | None:
        """Row of each (iteration, task), or None where the table would be mostly holes."""
        played = len(self.run.task)
        iterations = int(self.run.iteration.max()) + 1 if played else 0
        size = iterations * self.graph.num_tasks
        if size > 4 * played + 1_000_000:
            return None
        table = np.full(size, -1, np.int64)
        table[self.run.iteration * self.graph.num_tasks + self.run.task] = np.arange(played)
        return table

    def lookup(self, task: IntArray, iteration: IntArray) -> IntArray:
        """Rows of the run record; -1 where an instance was not played (or lies before the first)."""
        keys = iteration * self.graph.num_tasks + task
        dense = self._dense
        if dense is not None:
            inside = (iteration >= 0) & (keys < len(dense))
            return np.where(inside, dense[np.where(inside, keys, 0)] if len(dense) else -1, -1)
        known, order = self._sorted_keys
        if not len(known):
            return np.full(len(keys), -1, np.int64)
        position = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        return np.where((iteration >= 0) & (known[position] == keys), order[position], -1)

    def row(self, task: int, iteration: int) -> int:
        """Row of one instance; -1 where it was not played."""
        key = iteration * self.graph.num_tasks + task
        if iteration < 0:
            return -1
        if self._dense is not None:
            return int(self._dense[key]) if key < len(self._dense) else -1
        known, order = self._sorted_keys
        place = int(np.searchsorted(known, key))
        return int(order[place]) if place < len(known) and known[place] == key else -1

    def ends(self, task: IntArray, iteration: IntArray, missing: float) -> FloatArray:
        """End times (s) of instances; ``missing`` where one was not played."""
        rows = self.lookup(task, iteration)
        if not len(self.run.end):
            return np.full(len(rows), missing)
        return np.where(rows >= 0, self.run.end[np.maximum(rows, 0)], missing)


@dataclass(frozen=True)
class Participants:
    """Who takes part in each task of a template: one entry per stream, or one without a stream.

    ``local`` lists, per entry, the predecessor edges that decide when this participant posts the task.
    """

    offsets: IntArray
    task: IntArray
    stream: IntArray
    device: IntArray
    previous_task: IntArray
    previous_distance: IntArray
    local_offsets: IntArray
    local_edge: IntArray

    @classmethod
    def of(cls, graph: ExecutionGraph) -> Participants:
        """Participants of every task of the graph."""
        count = np.maximum(np.diff(graph.streams.offsets), 1)
        offsets = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
        task = np.repeat(np.arange(graph.num_tasks), count)
        stream = np.full(len(task), -1, np.int64)
        owner, entry = expand(graph.streams.offsets, np.arange(graph.num_tasks))
        slot = offsets[owner] + entry - graph.streams.offsets[owner]
        stream[slot] = graph.streams.index[entry]
        on_stream = np.maximum(stream, 0)
        home = graph.stream_table.device[on_stream] if len(graph.stream_table.name) else stream
        device = np.where((stream >= 0) & (home >= 0), home, graph.device[task])
        previous_task, previous_distance = _previous_on_stream(graph, task, stream)
        local_offsets, local_edge = _posting_edges(graph, offsets, task, stream, device)
        return cls(offsets, task, stream, device, previous_task, previous_distance, local_offsets, local_edge)


def _previous_on_stream(graph: ExecutionGraph, task: IntArray, stream: IntArray) -> tuple[IntArray, IntArray]:
    """Previous task on the program stream of each participant entry (-1: none), and iterations back."""
    previous = np.full(len(task), -1, np.int64)
    distance = np.zeros(len(task), np.int64)
    if not len(graph.stream_table.name):
        return previous, distance
    ordered = (stream >= 0) & (graph.stream_table.discipline[stream] == Discipline.PROGRAM)
    entries = np.flatnonzero(ordered)
    entries = entries[np.lexsort((_issue_position(graph, task, stream)[entries], stream[entries]))]
    if not len(entries):
        return previous, distance
    first = np.concatenate([[True], stream[entries][1:] != stream[entries][:-1]])
    starts = np.flatnonzero(first)
    last_of = np.concatenate([starts[1:], [len(entries)]]) - 1
    before = np.arange(len(entries)) - 1
    before[starts] = last_of
    previous[entries] = task[entries[before]]
    distance[entries] = first.astype(np.int64)
    return previous, distance


def _issue_position(graph: ExecutionGraph, task: IntArray, stream: IntArray) -> IntArray:
    """Place of each participant entry in its stream's issue order: task order, or the program's."""
    program = graph.stream_table.program
    if program is None:
        return task
    listed = program.rows() * graph.num_tasks + program.index
    order = np.argsort(listed, kind="stable")
    wanted = np.maximum(stream, 0) * graph.num_tasks + task
    found = np.minimum(np.searchsorted(listed[order], wanted), max(len(listed) - 1, 0))
    return order[found].astype(np.int64) if len(listed) else task


def _posting_edges(
    graph: ExecutionGraph, offsets: IntArray, task: IntArray, stream: IntArray, device: IntArray
) -> tuple[IntArray, IntArray]:
    """Edges that hold a participant back before it posts, ragged over participant entries.

    Those from predecessors on the same device. Without any, a pipeline transfer (its idle time is the
    bubble) or a task off program streams posts when all its predecessors are done; any other task as soon
    as it is at the head of its stream: a worker that waits for its server waits, it is not idle.
    """
    entry, edge = expand(graph.predecessors.offsets, task)
    num_devices = len(graph.devices.name) + 1
    present = task * num_devices + device + 1
    wanted = graph.predecessors.index[edge] * num_devices + device[entry] + 1
    if graph.num_tasks * num_devices <= _DENSE_LIMIT:
        table = np.zeros(graph.num_tasks * num_devices, bool)
        table[present] = True
        local = table[wanted]
    else:
        local = np.isin(wanted, present)
    has_local = np.zeros(len(task), bool)
    has_local[entry[local]] = True
    patient = (graph.kind[task] != TaskKind.TRANSFER) | (graph.cause[task] == Cause.PIPELINE_COMM)
    if len(graph.stream_table.name):
        patient |= (stream < 0) | (graph.stream_table.discipline[stream] != Discipline.PROGRAM)
    use = local | (patient & ~has_local)[entry]
    count = np.bincount(entry[use], minlength=len(task))
    return np.concatenate([[0], np.cumsum(count)]).astype(np.int64), edge[use]


def timeline_from_run(
    graph: ExecutionGraph,
    run: RunRecord,
    *,
    window: tuple[float, float] | None = None,
    without: Cause | None = None,
) -> Timeline:
    """Expand a run record to a timeline.

    Parameters
    ----------
    graph : ExecutionGraph
        The template that was played.
    run : RunRecord
        Its played instances, in order of completion.
    window : (float, float), optional
        Keep only rows that overlap this span (s); all rows by default. The timeline's own ``window`` is
        always the run's averaging window.
    without : Cause, optional
        Leave out the rows of this cause.

    Returns
    -------
    Timeline
        One row per (instance, stream), in the order of the record; counter operations have none. A task
        without streams has one row on its owner. ``posted`` is per participant. Where the state recurred,
        what was still running when the simulation stopped is continued by its counterpart one cycle earlier.
    """
    rows = np.flatnonzero(graph.kind[run.task] != TaskKind.COUNTER)
    if without is not None:
        rows = rows[graph.cause[run.task[rows]] != without]
    if window is not None:
        rows = rows[run.end[rows] > window[0]]
    participants = Participants.of(graph)
    owner, entry = expand(participants.offsets, run.task[rows])
    instance = rows[owner]
    posted = _posted(graph, run, participants, instance, entry)
    if window is not None:
        inside = posted < window[1]
        instance, entry, posted = instance[inside], entry[inside], posted[inside]
    again = _unfinished(graph, run, instance, posted)
    shift = np.concatenate([np.zeros(len(instance), np.int64), np.ones(len(again), np.int64)])
    instance, entry = np.concatenate([instance, instance[again]]), np.concatenate([entry, entry[again]])
    later = shift * (run.window[1] - run.window[0])
    posted = np.concatenate([posted, posted[again]]) + later
    iteration = run.iteration[instance] + shift * (run.window_iterations[1] - run.window_iterations[0])
    task = run.task[instance]
    device = participants.device[entry]
    per_device = len(graph.devices.name) > 0
    return Timeline.build(
        names=graph.names,
        devices=graph.devices.name,
        streams=graph.stream_table.name,
        causes=tuple(cause.name.lower() for cause in Cause),
        window=(float(run.window[0]), float(run.window[1])),
        task=task,
        iteration=iteration,
        device=device,
        stream=participants.stream[entry],
        ready=run.ready[instance] + later,
        posted=posted,
        start=run.start[instance] + later,
        end=run.end[instance] + later,
        bytes=np.where(run.dropped[instance], 0.0, graph.total_bytes[task]),
        kind=graph.kind[task],
        cause=graph.cause[task],
        step=iteration * graph.steps_per_iteration + graph.step[task],
        micro_batch=graph.micro_batch[task],
        rank_class=device,
        multiplicity=np.where(device >= 0, graph.devices.multiplicity[device], 1)
        if per_device
        else 1 + 0 * device,
        dropped=run.dropped[instance],
        name=graph.name[task],
    )


def _unfinished(graph: ExecutionGraph, run: RunRecord, instance: IntArray, posted: FloatArray) -> IntArray:
    """Rows posted before a recurring window and finished inside it, whose next copies were not recorded."""
    if run.stop != "recurrence" or run.window[0] <= 0:
        return np.zeros(0, np.int64)
    rows = np.flatnonzero((posted < run.window[0]) & (run.end[instance] > run.window[0]))
    cycle = run.window_iterations[1] - run.window_iterations[0]
    copies = Instances(graph, run).lookup(run.task[instance[rows]], run.iteration[instance[rows]] + cycle)
    return rows[copies < 0]


def _posted(
    graph: ExecutionGraph, run: RunRecord, participants: Participants, instance: IntArray, entry: IntArray
) -> FloatArray:
    """When each participant was at the head of its stream with its posting edges satisfied (s)."""
    instances = Instances(graph, run)
    begin = float(run.start.min()) if len(run.start) else 0.0
    previous = participants.previous_task[entry]
    posted = instances.ends(
        np.maximum(previous, 0), run.iteration[instance] - participants.previous_distance[entry], begin
    )
    wide = np.ones(len(entry), bool)
    stream = participants.stream[entry]
    if len(graph.stream_table.name):
        # A wide stream lets the next task post while the previous one runs; its start is the best we know.
        wide = (stream >= 0) & (graph.stream_table.width[np.maximum(stream, 0)] > 1)
    posted = np.where((previous < 0) | wide, begin, posted)
    owner, position = expand(participants.local_offsets, entry)
    edge = participants.local_edge[position]
    ends = instances.ends(
        graph.predecessors.index[edge],
        run.iteration[instance[owner]] - graph.predecessor_distance[edge],
        begin,
    )
    if len(owner):
        starts = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]]))
        rows = owner[starts]
        posted[rows] = np.maximum(posted[rows], np.maximum.reduceat(ends, starts))
    return np.minimum(posted, run.start[instance])
