"""GraphBuilder: tasks are appended one by one and frozen into the columns of an ExecutionGraph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


class GraphBuilder:
    """Collects devices, streams, link rows, counters and tasks; ``build()`` makes the graph.

    Program streams issue their tasks in the order in which they were added.
    """

    def __init__(self) -> None:
        self._devices: list[tuple[str, int, int, int, str]] = []
        self._streams: list[tuple[str, int, int, int]] = []
        self._stream_of: dict[tuple[int, str], int] = {}
        self._counters: list[tuple[str, bool]] = []
        self._names: dict[str, int] = {}
        self._load_rows: list[tuple[IntArray, FloatArray]] = [(np.zeros(0, np.int64), np.zeros(0))]
        self._columns: dict[str, list[Any]] = {key: [] for key in _TASK_COLUMNS}
        self._edges: list[tuple[int, int, int]] = []
        self._task_streams: list[Sequence[int]] = []
        self._adds: list[tuple[int, int, float]] = []
        self._waits: list[tuple[int, int, float, float, int]] = []

    # -- tables -----------------------------------------------------------------------------------

    def device(self, name: str, rank: int, *, multiplicity: int = 1, stage: int = 0, kind: str = "worker") -> int:
        """Add a rank class; returns its row."""
        self._devices.append((name, rank, multiplicity, stage, kind))
        return len(self._devices) - 1

    def stream(
        self, device: int, name: str, *, width: int = 1, discipline: Discipline = Discipline.PROGRAM
    ) -> int:
        """The stream ``name`` of a device, made on first use."""
        key = (device, name)
        if key not in self._stream_of:
            self._stream_of[key] = len(self._streams)
            self._streams.append((name, device, width, int(discipline)))
        return self._stream_of[key]

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
        return len(self._task_streams)

    def task(
        self,
        kind: TaskKind,
        name: str,
        cause: Cause,
        *,
        device: int = -1,
        streams: Sequence[int] = (),
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
        index = len(self._task_streams)
        for edge in after:
            source, distance = edge if isinstance(edge, tuple) else (edge, 0)
            self._edges.append((index, source, distance))
        self._task_streams.append(streams)
        skip_counter, skip_value = skip if skip is not None else (-1, 0.0)
        row = (
            int(kind), work, flow_bytes, cap, total_bytes, priority, int(cause),
            self._names.setdefault(name, len(self._names)), micro_batch, step, device, loads,
            boundary, closes_update, opens_pull, spins, skip_counter, skip_value, skip_leader,
        )  # fmt: skip
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)
        return index

    def compute(self, device: int, seconds: float, name: str, cause: Cause, **options: Any) -> int:
        """A compute task on the device's ``compute`` stream."""
        options.setdefault("streams", (self.stream(device, "compute"),))
        return self.task(TaskKind.COMPUTE, name, cause, device=device, work=seconds, **options)

    def control(self, name: str, *, device: int = -1, cause: Cause = Cause.CONTROL, **options: Any) -> int:
        """A counter operation: occupies nothing and takes no time."""
        return self.task(TaskKind.COUNTER, name, cause, device=device, **options)

    def edge(self, task: int, source: int, distance: int) -> None:
        """``task`` also waits for ``source`` of ``distance`` iterations back."""
        self._edges.append((task, source, distance))

    def share_skip(self, task: int, leader: int) -> None:
        """``task`` is skipped if ``leader`` was skipped in the same iteration."""
        self._columns["skip_leader"][task] = leader

    def lead(self, device: int, leader: int) -> None:
        """All tasks of a device that decide nothing themselves are skipped together with ``leader``."""
        leaders = self._columns["skip_leader"]
        for task, owner in enumerate(self._columns["device"]):
            if owner == device and task != leader and leaders[task] < 0:
                leaders[task] = leader

    def add(self, task: int, counter: int, amount: float = 1.0) -> None:
        """``task`` adds to ``counter`` when it finishes."""
        self._adds.append((task, counter, amount))

    def wait(self, task: int, counter: int, value: float, *, slope: float = 0.0, distance: int = 0) -> None:
        """``task`` waits until ``counter`` reaches ``value`` (plus ``slope`` per iteration if cumulative)."""
        self._waits.append((task, counter, value, slope, distance))

    # -- freezing ---------------------------------------------------------------------------------

    def build(self, link_table: LinkTable, **fields: Any) -> ExecutionGraph:
        """Freeze into an ExecutionGraph; ``fields`` are its scalar fields."""
        count = self.num_tasks
        column = {key: np.array(values, _TASK_COLUMNS[key]) for key, values in self._columns.items()}
        edges = np.array(self._edges, np.int64).reshape(-1, 3)
        order = np.argsort(edges[:, 0], kind="stable")
        edges = edges[order]
        adds = sorted(self._adds)
        waits = sorted(self._waits)
        load_index = column.pop("loads")
        links, coefficient = self._expand_loads(load_index)
        return ExecutionGraph(
            **column,
            predecessors=_ragged(count, edges[:, 0], edges[:, 1]),
            predecessor_distance=edges[:, 2],
            streams=_ragged_lists(self._task_streams),
            links=links,
            link_coefficient=coefficient,
            adds=_ragged(count, _ints(adds, 0), _ints(adds, 1)),
            add_amount=np.array([a[2] for a in adds], float),
            waits=_ragged(count, _ints(waits, 0), _ints(waits, 1)),
            wait_value=np.array([w[2] for w in waits], float),
            wait_slope=np.array([w[3] for w in waits], float),
            wait_distance=_ints(waits, 4),
            stream_table=StreamTable(
                tuple(s[0] for s in self._streams),
                _ints(self._streams, 1),
                _ints(self._streams, 2),
                _ints(self._streams, 3),
            ),
            link_table=link_table,
            devices=DeviceTable(
                tuple(d[0] for d in self._devices),
                _ints(self._devices, 1),
                _ints(self._devices, 2),
                _ints(self._devices, 3),
                tuple(d[4] for d in self._devices),
            ),
            counters=CounterTable(
                tuple(c[0] for c in self._counters), np.array([c[1] for c in self._counters], bool)
            ),
            names=tuple(self._names),
            **fields,
        )

    def _expand_loads(self, load_index: IntArray) -> tuple[Ragged, FloatArray]:
        lengths = np.array([len(links) for links, _ in self._load_rows], np.int64)
        starts = np.concatenate([[0], np.cumsum(lengths)])[:-1]
        all_links = np.concatenate([links for links, _ in self._load_rows])
        all_coefficients = np.concatenate([c for _, c in self._load_rows])
        size = lengths[load_index]
        offsets = np.concatenate([[0], np.cumsum(size)]).astype(np.int64)
        position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], size) + np.repeat(starts[load_index], size)
        return Ragged(offsets, all_links[position]), all_coefficients[position]


_TASK_COLUMNS: dict[str, Any] = {
    "kind": np.int64, "work": np.float64, "flow_bytes": np.float64, "cap": np.float64,
    "total_bytes": np.float64, "priority": np.int64, "cause": np.int64, "name": np.int64,
    "micro_batch": np.int64, "step": np.int64, "device": np.int64, "loads": np.int64,
    "boundary": np.bool_, "closes_update": np.bool_, "opens_pull": np.bool_, "spins": np.bool_,
    "skip_counter": np.int64, "skip_value": np.float64, "skip_leader": np.int64,
}  # fmt: skip


def _ints(rows: Sequence[Sequence[Any]], column: int) -> IntArray:
    return np.array([row[column] for row in rows], np.int64)


def _ragged(rows: int, row: IntArray, value: IntArray) -> Ragged:
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=rows), out=offsets[1:])
    return Ragged(offsets, np.ascontiguousarray(value, np.int64))


def _ragged_lists(lists: Sequence[Sequence[int]]) -> Ragged:
    lengths: npt.NDArray[np.int64] = np.fromiter((len(x) for x in lists), np.int64, len(lists))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Ragged(offsets, np.fromiter((x for row in lists for x in row), np.int64, int(offsets[-1])))
