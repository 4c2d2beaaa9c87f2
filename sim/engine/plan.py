"""Plan: an ExecutionGraph turned, once and with NumPy, into the plain lists the event loop runs on.

Two observations keep the loop short. A program stream of width 1 *is* a chain of edges (each task waits for
the one before it, the first one for the last of the previous iteration), so most streams need no run-time
state. And a transfer that can never share a link while it runs takes a time that is known beforehand.
"""

from __future__ import annotations

from enum import IntFlag
from functools import cached_property

import numpy as np

from sim.engine.edges import (
    Edges,
    data_edges,
    program_entries,
    stream_edges,
    without_duplicates,
    without_implied,
)
from sim.engine.exclusive import exclusive_transfers
from sim.engine.perturbation import jitter_factors
from sim.engine.phases import PhaseTable, idle_durations, idle_rates
from sim.errors import InputError
from sim.graph.contract import Contraction, contract
from sim.graph.execution import BoolArray, Discipline, ExecutionGraph, FloatArray, IntArray, TaskKind

# Values of `Plan.duration` for tasks that cannot simply be scheduled.
INSTANT = -1.0  # takes no time, but has to pass its gate (counters, skip) first
HELD = -2.0  # takes time and has to pass a gate: counters, skip, shared streams, network, coupled speeds
FROZEN = 1 << 40  # pending count of instances beyond the last iteration: never reached


class Closing(IntFlag):
    """What the end of a task does beyond releasing its successors."""

    ADDS = 1
    SHARED = 2  # frees slots of arbitrated streams
    BOUNDARY = 4
    ACTIVITY = 8  # of coupled speeds
    COMMUNICATING = 16
    WATCHED = 32  # the loop waits for it


# Plain integers: the loop tests them for every task.
ADDS, SHARED, BOUNDARY, ACTIVITY, COMMUNICATING, WATCHED = (int(flag) for flag in Closing)


def _homes(graph: ExecutionGraph) -> IntArray:
    """The one device on which a task runs: that of all its streams, or its owner's; -1 for several."""
    home = graph.device.copy()
    if len(graph.streams.index):
        device, rows = graph.stream_table.device[graph.streams.index], graph.streams.rows()
        known = device >= 0
        lowest, highest = np.full(len(home), np.iinfo(np.int64).max), np.full(len(home), -1)
        np.minimum.at(lowest, rows[known], device[known])
        np.maximum.at(highest, rows[known], device[known])
        transfer = (graph.kind == TaskKind.TRANSFER) & (highest >= 0)
        home[transfer] = np.where(lowest == highest, lowest, -1)[transfer]
    return home


class Plan:
    """Lists for the loop; see the module docstring.

    Parameters
    ----------
    graph : ExecutionGraph
        One iteration.
    analytic : bool
        Play every transfer at its idle rate.
    max_iterations : int, optional
        Iterations to play; None for an open-ended run.
    contracted : bool
        Play chains of compute tasks as one node each.
    """

    def __init__(
        self, graph: ExecutionGraph, *, analytic: bool, max_iterations: int | None, contracted: bool = False
    ) -> None:
        self.max_iterations, self.analytic = max_iterations, analytic
        self.coupled = (
            graph.compute_speed_under_communication != 1.0 or graph.communication_speed_under_compute != 1.0
        )
        # The graph as given, for checks and the record; `graph` below is what is played.
        self.original = graph
        self.chained = chained = stream_edges(graph)
        self.edges = without_duplicates(data_edges(graph), chained, graph.num_tasks).joined(chained)
        self.contraction: Contraction | None = None
        self.private = self._private_transfers()
        if contracted:
            self.contraction = self._contract()
        if self.contraction is not None:
            graph, node = self.contraction.graph, self.contraction.node
            self.edges, chained = self.edges.among(node), chained.among(node)
        self.graph = graph
        self.num_tasks = graph.num_tasks
        # A graph that names no boundary ends its iteration with its last task.
        self.boundary = graph.boundary if graph.boundary.any() else np.ones(graph.num_tasks, np.bool_)
        self.idle = idle_durations(graph)
        self._check_rates()
        self._devices: dict[int, list[int]] = {}
        self.phases = PhaseTable(self.original, self.contraction)
        self.num_markers = 0
        self.markers: list[tuple[int, int]] = []
        if self.coupled and graph.spins.any():
            self._add_markers(chained)
        self.timed = self._timed()
        self._classify()
        self._link_successors()

    @cached_property
    def origin(self) -> IntArray:
        """First original task of every node."""
        if self.contraction is None:
            return np.arange(self.num_tasks)
        members = self.contraction.members
        return members.index[members.offsets[:-1]]

    def _private_transfers(self) -> BoolArray:
        """Original transfers that no other transfer can disturb; in coupled runs those of one device only."""
        graph = self.original
        moving = (graph.kind == TaskKind.TRANSFER) & (graph.flow_bytes > 0)
        if self.analytic:
            private = moving
        else:
            private = exclusive_transfers(graph, self.edges) | (moving & (np.diff(graph.links.offsets) == 0))
        private = private | ((graph.kind == TaskKind.TRANSFER) & ~moving)
        result: BoolArray = private & (_homes(graph) >= 0) if self.coupled else private
        return result

    def _contract(self) -> Contraction | None:
        graph = self.original
        edges = without_implied(self.edges, graph.num_tasks)
        contraction = contract(
            graph,
            (edges.source, edges.target, edges.distance),
            duration=idle_durations(graph),
            fusible=(graph.kind == TaskKind.COMPUTE) | self.private,
            home=_homes(graph) if self.coupled else np.zeros(graph.num_tasks, np.int64),
        )
        if contraction is not None:
            self.edges = edges
        return contraction

    def _check_rates(self) -> None:
        moving = (self.graph.kind == TaskKind.TRANSFER) & (self.graph.flow_bytes > 0)
        free = moving & ~np.isfinite(idle_rates(self.graph))
        endless = np.flatnonzero(~np.isfinite(self.idle) | (self.idle < 0) | free)
        if len(endless):
            name = self.graph.names[int(self.graph.name[endless[0]])]
            raise InputError(
                f"graph.tasks[{endless[0]}] ({name})",
                "take a finite time and move bytes at a finite rate",
                float(self.idle[endless[0]]),
            )
        if len(self.graph.add_amount) and self.graph.add_amount.min() < 0:
            raise InputError(
                "graph.add_amount", "be >= 0 (counters only grow)", float(self.graph.add_amount.min())
            )

    def _timed(self) -> BoolArray:
        """Nodes that are simply scheduled: their duration is known when they start and nothing changes it."""
        graph = self.graph
        timed: BoolArray = (graph.kind != TaskKind.TRANSFER) | self.private[self.origin]
        if self.coupled:
            timed &= ~self.is_activity & ~((graph.kind == TaskKind.TRANSFER) & (graph.flow_bytes > 0))
        return timed

    @cached_property
    def is_activity(self) -> BoolArray:
        """Nodes that run on one device only, whose speed depends on what else runs there (coupled runs)."""
        graph = self.graph
        if not self.coupled:
            return np.zeros(self.num_tasks, np.bool_)
        alone: BoolArray = (graph.kind == TaskKind.COMPUTE) | self.private[self.origin]
        alone &= (graph.kind != TaskKind.COUNTER) & (self.homes >= 0)
        alone &= self.idle > 0
        return alone

    @cached_property
    def homes(self) -> IntArray:
        """The one device on which each node runs, or -1."""
        return _homes(self.original)[self.origin]

    @cached_property
    def home(self) -> list[int]:
        """The same as a list."""
        values: list[int] = self.homes.tolist()
        return values

    def devices_of(self, node: int) -> list[int]:
        """Devices of the participants of a transfer."""
        found = self._devices.get(node)
        if found is None:
            graph, owner = self.graph, int(self.graph.device[node])
            devices = {
                int(graph.stream_table.device[stream]) for stream in graph.streams.row(node).tolist()
            } - {-1}
            found = self._devices[node] = sorted(devices) or ([owner] if owner >= 0 else [])
        return found

    def _classify(self) -> None:
        graph = self.graph
        gated = np.diff(graph.waits.offsets) > 0
        gated |= graph.skip_counter >= 0
        gated |= graph.skip_leader >= 0
        if graph.skip_ticket is not None:
            gated |= graph.skip_ticket >= 0
        shared = self._on_shared_streams()
        tracked = self.coupled & (graph.kind == TaskKind.TRANSFER) & ~self.is_activity
        code = np.where(self.timed & ~self.is_activity, self.idle, HELD)
        code[shared | tracked] = HELD
        code[gated & (code > 0)] = HELD
        code[gated & (code == 0)] = INSTANT
        self.duration: list[float] = code.tolist() + [INSTANT] * self.num_markers
        self.is_gated, self.is_shared = gated, shared
        closing = np.where(np.diff(graph.adds.offsets) > 0, Closing.ADDS, 0)
        closing[shared] |= Closing.SHARED
        closing[self.boundary] |= Closing.BOUNDARY
        closing[tracked] |= Closing.COMMUNICATING
        closing[self.is_activity] |= Closing.ACTIVITY
        self.closing: list[int] = closing.tolist() + [0] * self.num_markers

    # Columns that only tasks with a gate look at, as lists, made when the first one does.

    @cached_property
    def gated(self) -> list[bool]:
        """Tasks with counters to wait for or a skip rule."""
        values: list[bool] = self.is_gated.tolist()
        return values

    @cached_property
    def shared(self) -> list[bool]:
        """Tasks on streams that are arbitrated."""
        values: list[bool] = self.is_shared.tolist()
        return values

    @cached_property
    def seconds(self) -> list[float]:
        """Idle duration of each task."""
        values: list[float] = self.idle.tolist()
        return values

    @cached_property
    def latency(self) -> list[float]:
        """Seconds before the bytes of a transfer flow."""
        values: list[float] = self.graph.work.tolist()
        return values

    @cached_property
    def kind(self) -> list[int]:
        """Kind of each task."""
        values: list[int] = self.graph.kind.tolist()
        return values

    @cached_property
    def is_timed(self) -> list[bool]:
        """Tasks whose duration is known when they start."""
        values: list[bool] = self.timed.tolist()
        return values

    @cached_property
    def rank(self) -> list[int]:
        """Place of each node in the order of (priority, task id)."""
        rank = np.empty(self.num_tasks, np.int64)
        rank[np.lexsort((np.arange(self.num_tasks), self.graph.priority))] = np.arange(self.num_tasks)
        return rank.tolist() + list(range(self.num_tasks, self.num_tasks + self.num_markers))

    def _on_shared_streams(self) -> BoolArray:
        """Tasks on a stream that is not a width-1 program stream."""
        table = self.graph.stream_table
        arbitrated = (table.discipline != Discipline.PROGRAM) | (table.width != 1)
        shared = np.zeros(self.num_tasks, np.bool_)
        if arbitrated.any():
            shared[self.graph.streams.rows()[arbitrated[self.graph.streams.index]]] = True
        return shared

    def _add_markers(self, chained: Edges) -> None:
        """Nodes that fire when a participant of a spinning transfer has posted it (coupled runs only)."""
        graph, n = self.graph, self.num_tasks
        table = graph.stream_table
        extra: tuple[list[int], list[int], list[int]] = ([], [], [])
        for task in np.flatnonzero(graph.spins & (graph.kind == TaskKind.TRANSFER)).tolist():
            row = slice(graph.predecessors.offsets[task], graph.predecessors.offsets[task + 1])
            sources, distances = graph.predecessors.index[row], graph.predecessor_distance[row]
            for stream in graph.streams.row(task).tolist():
                device = int(table.device[stream])
                if table.discipline[stream] != Discipline.PROGRAM or table.width[stream] != 1 or device < 0:
                    continue
                local = graph.device[sources] == device
                use = local if local.any() else np.ones(len(sources), np.bool_)
                marker = n + len(self.markers)
                self.markers.append((task, device))
                on = np.flatnonzero(chained.target == task)
                on = on[np.isin(chained.source[on], graph.streams.rows()[graph.streams.index == stream])]
                for source, distance in [
                    *zip(sources[use].tolist(), distances[use].tolist(), strict=True),
                    *zip(chained.source[on].tolist(), chained.distance[on].tolist(), strict=True),
                ]:
                    extra[0].append(source)
                    extra[1].append(marker)
                    extra[2].append(distance)
        self.num_markers = len(self.markers)
        self.edges = self.edges.joined(Edges(*(np.array(column, np.int64) for column in extra)))

    def _link_successors(self) -> None:
        edges, stride = self.edges, self.stride
        if self.max_iterations is not None:
            edges = edges.where(edges.distance < self.max_iterations)
        order = np.argsort(edges.source, kind="stable")
        hop = (edges.target + edges.distance * stride - edges.source)[order]
        bounds = np.zeros(stride + 1, np.int64)
        np.cumsum(np.bincount(edges.source, minlength=stride), out=bounds[1:])
        self.successors = _interned_rows(hop, bounds)
        self.reach = int(self.edges.distance.max()) if len(self.edges.distance) else 0
        self.base = np.bincount(self.edges.target, minlength=stride)
        if self.max_iterations != 1:
            self._refuse_endless_roots()

    def _refuse_endless_roots(self) -> None:
        free = np.flatnonzero(self.base[: self.num_tasks] == 0)
        _, wide = program_entries(self.graph, chained=False)
        free = free[~np.isin(free, wide)]
        if len(free):
            name = self.graph.names[int(self.graph.name[free[0]])]
            raise InputError(
                f"graph.tasks[{free[0]}] ({name})",
                "have a predecessor (of an earlier iteration, say) or a program stream",
                hint="Nothing would keep it from running in all iterations at once.",
            )

    @cached_property
    def stride(self) -> int:
        """Nodes per iteration: tasks, then markers. Instance = iteration * stride + node."""
        return self.num_tasks + self.num_markers

    def pending_at(self, iteration: int) -> list[int]:
        """Unfinished incoming edges of every node when ``iteration`` is opened."""
        if self.max_iterations is not None and iteration >= self.max_iterations:
            return [FROZEN] * self.stride
        if iteration >= self.reach:
            return self._base_list
        real = self.edges.target[self.edges.distance <= iteration]
        counts: list[int] = np.bincount(real, minlength=self.stride).tolist()
        return counts

    @cached_property
    def _base_list(self) -> list[int]:
        values: list[int] = self.base.tolist()
        return values

    def jitter_factors(self, iteration: int) -> FloatArray:
        """Factor on the duration of every node: the mean over its members weighted by their durations."""
        drawn = jitter_factors(self.original, iteration)
        if self.contraction is None:
            return drawn
        total = np.bincount(self.contraction.node, idle_durations(self.original) * drawn, self.num_tasks)
        return np.divide(total, self.idle, out=np.ones(self.num_tasks), where=self.idle > 0)


def _interned_rows(values: IntArray, bounds: IntArray) -> list[tuple[int, ...]]:
    """Rows ``values[bounds[i]:bounds[i + 1]]`` as tuples, equal rows (nearly always) being one object.

    Programs are regular, so most tasks share a few rows; this saves time, memory and cache.
    """
    width = np.diff(bounds)
    place = np.arange(len(values)) - np.repeat(bounds[:-1], width)
    total = np.zeros(len(values) + 1, np.uint64)
    mixed = total[1:]  # worked on in place: graphs have many millions of edges
    mixed[:] = values.astype(np.uint64)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed ^= place.astype(np.uint64)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    np.cumsum(mixed, out=mixed)
    _, first, same = np.unique(total[bounds[1:]] - total[bounds[:-1]], return_index=True, return_inverse=True)
    del total, mixed
    like = first[same]  # the first row with the same hash
    del same
    equal = width == width[like]
    entry = np.repeat(equal, width)
    source = (np.repeat(bounds[like], width) + place)[entry]
    differs = values[entry] != values[source]
    if differs.any() or not equal.all():  # a collision: astronomically rare, still exact
        first, like = np.arange(len(width)), np.arange(len(width))
    rows: dict[int, tuple[int, ...]] = {
        i: tuple(values[a:b].tolist())
        for i, a, b in zip(first.tolist(), bounds[first], bounds[first + 1], strict=True)
    }
    return [rows[i] for i in like.tolist()]
