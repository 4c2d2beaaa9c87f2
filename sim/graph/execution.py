"""The ExecutionGraph: one period of a training job as columns. Every strategy and trace becomes one.

The graph describes *one iteration* (a period of ``steps_per_iteration`` training steps). The engine plays
iterations 0, 1, 2, ... of the same template; edges, counters and skips may reach back to earlier
iterations by a *distance*. References to iterations before the first are satisfied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


class TaskKind(IntEnum):
    """What a task occupies and how long it runs."""

    COMPUTE = 0
    TRANSFER = 1
    COUNTER = 2


class Cause(IntEnum):
    """Why a task exists; the breakdown and traces are grouped by it."""

    FORWARD = 0
    BACKWARD = 1
    RECOMPUTE = 2
    OPTIMIZER = 3
    DATA = 4
    TENSOR_COMM = 5
    PIPELINE_COMM = 6
    GRADIENT_COMM = 7
    PARAMETER_COMM = 8
    EXPERT_COMM = 9
    CONTROL = 10
    OTHER = 11
    CONTEXT_COMM = 12


class Discipline(IntEnum):
    """How a stream picks its next task."""

    PROGRAM = 0
    ARRIVAL = 1
    PRIORITY = 2


@dataclass(frozen=True)
class Ragged:
    """Rows of varying length: row ``i`` is ``index[offsets[i]:offsets[i + 1]]``."""

    offsets: IntArray
    index: IntArray

    @classmethod
    def empty(cls, rows: int) -> Ragged:
        """All rows empty."""
        return cls(np.zeros(rows + 1, np.int64), np.zeros(0, np.int64))

    @classmethod
    def from_pairs(cls, rows: int, row: IntArray, value: IntArray) -> Ragged:
        """Group ``value`` by ``row`` (stable within a row)."""
        order = np.argsort(row, kind="stable")
        offsets = np.zeros(rows + 1, np.int64)
        np.cumsum(np.bincount(row, minlength=rows), out=offsets[1:])
        return cls(offsets, value[order])

    def row(self, i: int) -> IntArray:
        """Values of row ``i``."""
        return self.index[self.offsets[i] : self.offsets[i + 1]]

    def rows(self) -> IntArray:
        """Row number of each entry of ``index``."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True)
class StreamTable:
    """Streams: ``width`` tasks at a time, ordered by ``discipline``, belonging to ``device``.

    ``program`` gives the issue order of each stream's tasks; without it tasks are issued in task order.
    """

    name: tuple[str, ...]
    device: IntArray
    width: IntArray
    discipline: IntArray
    program: Ragged | None = None


@dataclass(frozen=True)
class LinkTable:
    """Links: one direction each. ``capacity`` in bytes/s; ``members`` = real links this row stands for."""

    name: tuple[str, ...]
    capacity: FloatArray
    members: IntArray
    kind: tuple[str, ...]


@dataclass(frozen=True)
class DeviceTable:
    """Rank classes: a representative and how many ranks behave like it.

    ``kind`` is ``worker`` or ``server``; ``stage`` the pipeline stage (-1 for servers).
    """

    name: tuple[str, ...]
    rank: IntArray
    multiplicity: IntArray
    stage: IntArray
    kind: tuple[str, ...]


@dataclass(frozen=True)
class CounterTable:
    """Counters. A ``per_iteration`` counter has one value per iteration, starting at 0; a cumulative one
    a single value for the whole run."""

    name: tuple[str, ...]
    per_iteration: BoolArray


@dataclass(frozen=True)
class ExecutionGraph:
    """One iteration of a job, as columns; ``n`` tasks. See ``docs/reference/execution_graph.md``.

    All per-task arrays have length ``n``; entry arrays (``*_value`` ...) are aligned with the ``index`` of
    their Ragged.
    """

    kind: IntArray
    work: FloatArray  # compute: seconds at speed 1; transfer: latency in seconds before bytes flow
    flow_bytes: FloatArray  # bytes of one elementary flow (transfer only)
    cap: FloatArray  # upper bound of the rate of one elementary flow, bytes/s (inf = none)
    total_bytes: FloatArray  # bytes on the wire per participant, for the timeline
    priority: IntArray  # lower runs first on priority streams and breaks ties
    cause: IntArray
    name: IntArray  # index into `names`
    micro_batch: IntArray  # -1 where it has no meaning
    step: IntArray  # training step within the iteration, 0 <= step < steps_per_iteration
    device: IntArray  # owner: row of `devices` (-1: none)
    boundary: BoolArray  # the last task of its device's iteration
    closes_update: BoolArray  # applies a global model update (parameter server / staleness accounting)
    opens_pull: BoolArray  # snapshot of the model a worker's next gradient is based on
    predecessors: Ragged
    predecessor_distance: IntArray  # iterations back; 0 = same iteration
    streams: Ragged  # rows of `stream_table`; program streams play tasks in task order
    links: Ragged  # rows of `link_table`
    link_coefficient: FloatArray  # elementary flows on the link times their relative bytes
    adds: Ragged  # counters a task adds to when it finishes
    add_amount: FloatArray
    waits: Ragged  # counters a task waits for
    wait_value: FloatArray  # cumulative: value + slope * iteration; per_iteration: value
    wait_slope: FloatArray
    wait_distance: IntArray  # per_iteration counters: iterations back
    skip_counter: IntArray  # -1: never skipped
    skip_value: FloatArray  # skipped if the counter is >= value when the task would start
    skip_leader: IntArray  # -1, or a task whose skip decision of the same iteration this task shares
    spins: BoolArray  # a posted transfer occupies its devices' SMs while it waits for peers
    stream_table: StreamTable
    link_table: LinkTable
    devices: DeviceTable
    counters: CounterTable
    names: tuple[str, ...]
    steps_per_iteration: int = 1
    max_iterations: int | None = None  # None: until steady state
    jitter: float = 0.0  # coefficient of variation of compute work, lognormal, mean 1
    seed: int = 0
    link_service: str = "fair"  # fair | weighted | fifo | tcp
    compute_speed_under_communication: float = 1.0
    communication_speed_under_compute: float = 1.0
    metadata: dict[str, object] = field(default_factory=dict)
    slow_state: tuple[float, float, float] | None = None  # chance per step to turn slow, to recover; factor
    # Batches of whoever comes first: the ticket of a task is the value its add left in a cumulative counter.
    wait_ticket: IntArray | None = None  # per wait: task whose ticket's batch of `wait_value` must be full
    skip_ticket: IntArray | None = None  # per task: skipped unless that task's ticket ends a batch of
    # `skip_value` (-1: none)

    @property
    def has_random_compute(self) -> bool:
        """Whether compute times are drawn anew in every iteration."""
        return self.jitter > 0 or self.slow_state is not None

    @property
    def num_tasks(self) -> int:
        """Number of tasks in one iteration."""
        return len(self.kind)
