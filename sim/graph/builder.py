"""GraphBuilder: tasks are appended one by one and frozen into the columns of an ExecutionGraph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.graph.execution import (
    Cause,
    CounterTable,
    DeviceTable,
    Discipline,
    ExecutionGraph,
    FloatArray,
    IntArray,
    LinkTable,
    Ragged,
    StreamTable,
    TaskKind,
)

Edge = int | tuple[int, int]  # task, or (task, iterations back)
Ends = dict[int, list[Edge]]  # rank class -> tasks that must have finished

#: What a task has that states nothing, where it is not 0.
_DEFAULTS = {"cap": float("inf"), "skip_counter": -1}
_COLUMNS: dict[str, Any] = {
    "kind": np.int64, "work": np.float64, "flow_bytes": np.float64, "cap": np.float64,
    "total_bytes": np.float64, "priority": np.int64, "cause": np.int64, "name": np.int64,
    "step": np.int64, "device": np.int64, "boundary": np.bool_, "closes_update": np.bool_,
    "opens_pull": np.bool_, "spins": np.bool_, "skip_counter": np.int64, "skip_value": np.float64,
    "loads": np.int64, "streams": np.int64,
}  # fmt: skip


@dataclass(frozen=True)
class Block:
    """A run of tasks that can be repeated for another micro-batch.

    Attributes
    ----------
    start, end : int
        Its tasks are ``start .. end - 1``.
    edges : int array, shape (3, n)
        Rows task, source, distance of its edges, those from the entry aside.
    entry_edges : list of (task, position)
        Edges from the ``position``-th entry task.
    entry, exit : Ends
        What it waited for and what it handed on.
    """

    start: int
    end: int
    edges: IntArray
    entry_edges: list[tuple[int, int]]
    entry: Ends
    exit: Ends


class GraphBuilder:
    """Collects devices, streams, link rows, counters and tasks; ``build()`` makes the graph.

    Program streams issue their tasks in the order in which they were added. Tasks of equal content share one
    row, so that repeating a block copies row numbers only.
    """

    def __init__(self) -> None:
        self._devices: list[tuple[str, int, int, int, str]] = []
        self._streams: list[tuple[str, int, int, int]] = []
        self._stream_of: dict[tuple[int, str], int] = {}
        self._stream_sets: dict[tuple[int, ...], int] = {}
        self._counters: list[tuple[str, bool]] = []
        self._names: dict[str, int] = {}
        self._load_rows: list[tuple[IntArray, FloatArray]] = [(np.zeros(0, np.int64), np.zeros(0))]
        self._rows: list[tuple[Any, ...]] = []
        self._row_of: list[int] = []
        self._micro_batches: list[int] = []
        self._skip_leaders: dict[int, int] = {}
        self._edges: list[tuple[int, int, int]] = []
        self._edge_arrays: list[IntArray] = []
        self._adds: list[tuple[int, int, float]] = []
        self._waits: list[tuple[int, int, float, float, int, int]] = []
        self._skip_tickets: dict[int, int] = {}
        self._given: dict[str, Any] = {}
        self._num_given = 0

    # -- tables -----------------------------------------------------------------------------------

    def device(
        self, name: str, rank: int, *, multiplicity: int = 1, stage: int = 0, kind: str = "worker"
    ) -> int:
        """Add a rank class; returns its row."""
        self._devices.append((name, rank, multiplicity, stage, kind))
        return len(self._devices) - 1

    def stream(
        self, device: int, name: str, *, width: int = 1, discipline: Discipline = Discipline.PROGRAM
    ) -> int:
        """The stream ``name`` of a device, made on first use."""
        key = (device, name)
        found = self._stream_of.get(key)
        if found is None:
            found = self._stream_of[key] = len(self._streams)
            self._streams.append((name, device, width, int(discipline)))
        return found

    def counter(self, name: str, *, per_iteration: bool = True) -> int:
        """Add a counter; returns its row."""
        self._counters.append((name, per_iteration))
        return len(self._counters) - 1

    def load_row(self, links: IntArray, coefficients: FloatArray) -> int:
        """Register a set of link loads that transfers refer to."""
        self._load_rows.append((links, coefficients))
        return len(self._load_rows) - 1

    # -- tasks ------------------------------------------------------------------------------------

    @property
    def num_tasks(self) -> int:
        """Tasks added so far."""
        return self._num_given + len(self._row_of)

    def task(
        self,
        kind: TaskKind,
        name: str,
        cause: Cause,
        *,
        device: int = -1,
        streams: tuple[int, ...] = (),
        after: Iterable[Edge] = (),
        work: float = 0.0,
        flow_bytes: float = 0.0,
        total_bytes: float = 0.0,
        loads: int = 0,
        cap: float = float("inf"),
        priority: int = 0,
        micro_batch: int = -1,
        step: int = 0,
        boundary: bool = False,
        closes_update: bool = False,
        opens_pull: bool = False,
        spins: bool = False,
        skip: tuple[int, float] | None = None,
        skip_leader: int = -1,
    ) -> int:
        """Append a task; see ExecutionGraph for the meaning of the columns.

        Parameters
        ----------
        after : iterable of int or (int, int)
            Predecessors; a pair is (task, iterations back).
        loads : int
            Row returned by :meth:`load_row`.
        skip : (counter, value), optional
            Skipped when the per-iteration counter has reached the value at its start.
        """
        index = self.num_tasks
        for edge in after:
            self._edges.append((index, *edge) if isinstance(edge, tuple) else (index, edge, 0))
        skip_counter, skip_value = skip if skip is not None else (-1, 0.0)
        row = (
            kind, work, flow_bytes, cap, total_bytes, priority, cause,
            self._names.setdefault(name, len(self._names)), step, device, boundary, closes_update,
            opens_pull, spins, skip_counter, skip_value, loads,
            self._stream_sets.setdefault(streams, len(self._stream_sets)),
        )  # fmt: skip
        self._row_of.append(len(self._rows))
        self._rows.append(row)
        self._micro_batches.append(micro_batch)
        if skip_leader >= 0:
            self._skip_leaders[index] = skip_leader
        return index

    def tasks(
        self, *, streams: Ragged, edges: tuple[IntArray, IntArray], names: Iterable[str], **columns: Any
    ) -> None:
        """The first tasks at once, as columns: millions of them, which need no rows (and cannot be repeated).

        Parameters
        ----------
        streams : Ragged
            Streams of every task.
        edges : (ndarray, ndarray) of int
            Tasks, and tasks of the same iteration that they wait for.
        names : iterable of str
        columns : ndarray
            ``kind``, ``cause``, ``device``, ``work``, ``micro_batch``, ``step``; what else a task has, they
            have not.
        """
        if self.num_tasks:
            raise ValueError("tasks() comes before all others")
        self._num_given = len(streams)
        known = self._names
        name = np.fromiter((known.setdefault(n, len(known)) for n in names), np.int64, len(streams))
        self._given = {**columns, "name": name, "streams": streams}
        self._edge_arrays.append(np.stack([*edges, np.zeros(len(edges[0]), np.int64)]))

    def compute(self, device: int, seconds: float, name: str, cause: Cause, **options: Any) -> int:
        """A compute task, on the device's ``compute`` stream unless ``streams`` says otherwise."""
        if "streams" not in options:
            options["streams"] = (self.stream(device, "compute"),)
        return self.task(TaskKind.COMPUTE, name, cause, device=device, work=seconds, **options)

    def control(self, name: str, *, device: int = -1, cause: Cause = Cause.CONTROL, **options: Any) -> int:
        """A counter operation: occupies nothing and takes no time."""
        return self.task(TaskKind.COUNTER, name, cause, device=device, **options)

    def edge(self, task: int, source: int, distance: int) -> None:
        """``task`` also waits for ``source`` of ``distance`` iterations back."""
        self._edges.append((task, source, distance))

    def share_skip(self, task: int, leader: int) -> None:
        """``task`` is skipped if ``leader`` was skipped in the same iteration."""
        self._skip_leaders[task] = leader

    def lead(self, leaders: Mapping[int, int]) -> None:
        """All tasks of a device that decide nothing themselves are skipped together with its leader.

        Parameters
        ----------
        leaders : mapping of int to int
            Device -> task whose skip decision its other tasks share.
        """
        device, skip = list(_COLUMNS).index("device"), list(_COLUMNS).index("skip_counter")
        for task, row in enumerate(self._row_of):
            leader = leaders.get(self._rows[row][device], task)
            if leader != task and self._rows[row][skip] < 0:
                self._skip_leaders.setdefault(task, leader)

    def add(self, task: int, counter: int, amount: float = 1.0) -> None:
        """``task`` adds to ``counter`` when it finishes."""
        self._adds.append((task, counter, amount))

    def wait(self, task: int, counter: int, value: float, *, slope: float = 0.0, distance: int = 0) -> None:
        """``task`` waits until ``counter`` reaches ``value`` (plus ``slope`` per iteration if cumulative)."""
        self._waits.append((task, counter, value, slope, distance, -1))

    def wait_batch(self, task: int, counter: int, size: float, *, ticket: int, slope: float) -> None:
        """``task`` waits until a cumulative counter has reached the end of the batch that ``ticket`` is in.

        Parameters
        ----------
        task, counter : int
        size : float
            Amounts that make a batch.
        ticket : int
            Task of the same iteration, finished before; the value its add left behind says which batch.
        slope : float
            Amounts per iteration, all tasks together.
        """
        self._waits.append((task, counter, size, slope, 0, ticket))

    def skip_unless_last(self, task: int, size: float, *, ticket: int) -> None:
        """``task`` is skipped unless the ticket of task ``ticket`` ends a batch of ``size``."""
        row = list(self._rows[self._row_of[task]])
        row[list(_COLUMNS).index("skip_value")] = size
        self._row_of[task] = len(self._rows)
        self._rows.append(tuple(row))
        self._skip_tickets[task] = ticket

    # -- repeating --------------------------------------------------------------------------------

    def block(self, start: int, entry: Ends, end_points: Ends) -> Block:
        """The tasks added since ``start`` as a block that :meth:`repeat` can copy.

        They may use streams and link rows freely, but no counters or skips.
        """
        first_edge = len(self._edges)
        while first_edge and self._edges[first_edge - 1][0] >= start:
            first_edge -= 1
        place = {edge: i for i, edge in enumerate(chain.from_iterable(entry.values()))}
        inside, entering = [], []
        for task, source, distance in self._edges[first_edge:]:
            if source < start and source in place and distance == 0:
                entering.append((task, place[source]))
            else:
                inside.append((task, source, distance))
        edges = np.array(inside, np.int64).reshape(-1, 3).T
        return Block(start, self.num_tasks, edges, entering, entry, end_points)

    def repeat(self, block: Block, entry: Ends, micro_batches: Mapping[int, int]) -> Ends:
        """Copy a block behind other entry tasks; returns its end points.

        Parameters
        ----------
        block : Block
        entry : Ends
            Of the same shape as the block's.
        micro_batches : mapping of int to int
            The micro-batches of the block and those of the copy.
        """
        shift = self.num_tasks - block.start
        self._row_of += self._row_of[block.start : block.end]
        if len(micro_batches) == 1:
            self._micro_batches += [*micro_batches.values()] * (block.end - block.start)
        else:
            self._micro_batches += [micro_batches[m] for m in self._micro_batches[block.start : block.end]]
        edges = block.edges.copy()
        edges[0] += shift
        edges[1] += np.where(edges[1] >= block.start, shift, 0)
        self._edge_arrays.append(edges)
        entries = list(chain.from_iterable(entry.values()))
        self._edges += [(task + shift, source(entries[place]), 0) for task, place in block.entry_edges]
        old = {edge: new for a, b in _pairs(block.entry, entry) for edge, new in zip(a, b, strict=True)}
        return {
            index: [
                edge + shift if isinstance(edge, int) and edge >= block.start else old.get(edge, edge)
                for edge in tasks
            ]
            for index, tasks in block.exit.items()
        }

    # -- freezing ---------------------------------------------------------------------------------

    def build(self, link_table: LinkTable, **fields: Any) -> ExecutionGraph:
        """Freeze into an ExecutionGraph; ``fields`` are its scalar fields."""
        count = self.num_tasks
        row_of = np.array(self._row_of, np.int64)
        values = zip(*self._rows, strict=True) if self._rows else ([] for _ in _COLUMNS)
        column: dict[str, Any] = {
            key: self._whole(key, np.array(list(cells), dtype)[row_of])
            for (key, dtype), cells in zip(_COLUMNS.items(), values, strict=True)
        }
        edges = np.concatenate([np.array(self._edges, np.int64).reshape(-1, 3).T, *self._edge_arrays], axis=1)
        edges = edges[:, np.argsort(edges[0], kind="stable")]
        leaders = np.full(count, -1, np.int64)
        leaders[list(self._skip_leaders)] = list(self._skip_leaders.values())
        tickets = None
        if self._skip_tickets:
            tickets = np.full(count, -1, np.int64)
            tickets[list(self._skip_tickets)] = list(self._skip_tickets.values())
        load_rows, stream_sets = column.pop("loads"), column.pop("streams")
        links, positions = _expand([links for links, _ in self._load_rows], load_rows)
        coefficients = np.concatenate([c for _, c in self._load_rows])[positions]
        streams, _ = _expand([np.array(s, np.int64) for s in self._stream_sets], stream_sets)
        if self._num_given:
            streams = _joined(self._given["streams"], streams)
            links = _joined(Ragged.empty(self._num_given), links)
        return ExecutionGraph(
            **column,
            micro_batch=self._whole("micro_batch", np.array(self._micro_batches, np.int64)),
            skip_leader=leaders,
            skip_ticket=tickets,
            predecessors=_ragged(count, edges[0], edges[1]),
            predecessor_distance=edges[2],
            streams=streams,
            links=links,
            link_coefficient=coefficients,
            **self._counter_columns(count),
            **self._tables(),
            link_table=link_table,
            names=tuple(self._names),
            **fields,
        )

    def _whole(self, key: str, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A column of all tasks: those given at once, then those added one by one."""
        if not self._num_given or key in ("loads", "streams"):
            return rows
        given = self._given.get(key)
        fill = _DEFAULTS.get(key, 0)
        if given is None and (rows == fill).all():
            return np.broadcast_to(np.array(fill, rows.dtype), self.num_tasks)
        if given is None:
            given = np.full(self._num_given, fill)
        return np.concatenate([np.asarray(given, rows.dtype), rows])

    def _counter_columns(self, count: int) -> dict[str, Any]:
        adds, waits = sorted(self._adds), sorted(self._waits)
        return {
            "adds": _ragged(count, _ints(adds, 0), _ints(adds, 1)),
            "add_amount": np.array([a[2] for a in adds], float),
            "waits": _ragged(count, _ints(waits, 0), _ints(waits, 1)),
            "wait_value": np.array([w[2] for w in waits], float),
            "wait_slope": np.array([w[3] for w in waits], float),
            "wait_distance": _ints(waits, 4),
            "wait_ticket": _ints(waits, 5) if any(w[5] >= 0 for w in waits) else None,
            "counters": CounterTable(
                tuple(c[0] for c in self._counters), np.array([c[1] for c in self._counters], bool)
            ),
        }

    def _tables(self) -> dict[str, Any]:
        streams, devices = self._streams, self._devices
        return {
            "stream_table": StreamTable(
                tuple(s[0] for s in streams), _ints(streams, 1), _ints(streams, 2), _ints(streams, 3)
            ),
            "devices": DeviceTable(
                tuple(d[0] for d in devices),
                _ints(devices, 1),
                _ints(devices, 2),
                _ints(devices, 3),
                tuple(d[4] for d in devices),
            ),
        }


def _pairs(a: Ends, b: Ends) -> Iterable[tuple[list[Edge], list[Edge]]]:
    return ((a[index], b[index]) for index in a)


def source(edge: Edge) -> int:
    """Task that an edge leads from."""
    return edge[0] if isinstance(edge, tuple) else edge


def _expand(rows: Sequence[IntArray], row_of: IntArray) -> tuple[Ragged, IntArray]:
    """Rows picked by ``row_of`` as one Ragged, and where in the joined rows each entry came from."""
    lengths = np.array([len(row) for row in rows], np.int64)
    starts = np.cumsum(lengths) - lengths
    joined = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    size = lengths[row_of]
    offsets = np.concatenate([[0], np.cumsum(size)]).astype(np.int64)
    position = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - starts[row_of], size)
    return Ragged(offsets, joined[position].astype(np.int64)), position


def _joined(first: Ragged, then: Ragged) -> Ragged:
    """The rows of both."""
    offsets = np.concatenate([first.offsets, first.offsets[-1] + then.offsets[1:]])
    return Ragged(offsets, np.concatenate([first.index, then.index]))


def _ints(rows: Sequence[Sequence[Any]], column: int) -> IntArray:
    return np.array([row[column] for row in rows], np.int64)


def _ragged(rows: int, row: IntArray, value: IntArray) -> Ragged:
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=rows), out=offsets[1:])
    return Ragged(offsets, np.ascontiguousarray(value, np.int64))
