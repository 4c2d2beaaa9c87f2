"""A measured trace: per rank a Timeline of device spans, steps, collectives, process groups, findings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from sim.timeline import Timeline
from sim.trace.issues import Issues
from sim.trace.operators import Operator

if TYPE_CHECKING:
    from sim.trace.readers.chakra import Node
    from sim.trace.readers.nsys_host import HostEvents
    from sim.trace.readers.workload_text import GoalTask
    from sim.trace.simai import SimaiTable

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: Values of the column ``kind`` of a measured timeline.
COMPUTE, COMMUNICATION, MEMORY, OTHER = 0, 1, 2, 3
KINDS = ("compute", "communication", "memory", "other")

#: A kernel whose name matches is communication (rule of the trace collection this is tested with).
COMMUNICATION_NAME = re.compile(
    "nccl|rccl|msccl|cross_device_reduce|allreduce|all_reduce|allgather|reduce_scatter|all2all|alltoall|deep_ep",
    re.IGNORECASE,
)


OptimizerName = Literal["sgd", "momentum", "adam", "adamw", "adagrad"]
#: Optimisers by the class name in PyTorch's annotations; SGD almost always runs with momentum.
OPTIMIZERS: dict[str, OptimizerName] = {
    "SGD": "momentum",
    "Adam": "adam",
    "AdamW": "adamw",
    "Adagrad": "adagrad",
}


def optimizer_of(annotation: str) -> OptimizerName | None:
    """Optimiser of an annotation such as ``Optimizer.step#SGD.step``."""
    return OPTIMIZERS.get(annotation.rsplit("#", 1)[-1].removesuffix(".step"))


@dataclass(frozen=True)
class Step:
    """One iteration of a rank. Times in seconds on the rank's clock; NaN where not measured."""

    name: str
    start: float
    end: float

    @property
    def duration(self) -> float:
        """Length in seconds."""
        return self.end - self.start


@dataclass(frozen=True)
class Update:
    """One call of the optimiser (``Optimizer.step`` or ``.zero_grad``), seconds on the rank's clock."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Collective:
    """One communication operation of a rank.

    Attributes
    ----------
    kind : str
        ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``broadcast``, ``reduce``,
        ``gather``, ``scatter``, ``send``, ``recv``, ``send_recv``, ``push_pull``, ``push``, ``pull``,
        ``barrier`` or ``unknown``.
    size_bytes : float or None
        In the meaning of nccl-tests: all-gather the gathered result, reduce-scatter the full input,
        otherwise the buffer of one rank.
    group : str
        Name of the process group, "" if not stated.
    group_size : int or None
        Its number of ranks.
    start, end : float
        Seconds on the rank's clock; NaN where not measured. Includes waiting for the other ranks.
    row : int
        Row of the rank's timeline, -1 if no device span belongs to it.
    """

    kind: str
    size_bytes: float | None
    dtype: str
    group: str
    group_size: int | None
    start: float
    end: float
    row: int = -1
    sequence: int | None = None
    peer: int | None = None


@dataclass(frozen=True)
class ProcessGroup:
    """Ranks that communicate. ``ranks`` is empty where only the size is known."""

    name: str
    description: str
    backend: str
    ranks: tuple[int, ...]
    size: int | None


@dataclass(frozen=True)
class HostTable:
    """Spans of host threads as columns: times in seconds on the rank's clock.

    ``kind``: 0 operator or annotation, 1 runtime call; ``correlation`` joins a runtime call with the device
    span it launched, ``record_function`` an operator with the node of the execution trace (-1: none).
    """

    name: npt.NDArray[np.int32]
    thread: npt.NDArray[np.int32]
    start: FloatArray
    end: FloatArray
    kind: npt.NDArray[np.int8]
    correlation: IntArray
    sequence: IntArray
    record_function: IntArray
    names: tuple[str, ...]
    threads: tuple[str, ...]


@dataclass(frozen=True)
class TensorNode:
    """An operator of an execution trace: storages on devices that it reads and writes.

    ``record_function`` is its id in a Kineto trace of the same run, -1 if it has none.
    """

    name: str
    thread: int
    record_function: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass
class JobTable:
    """Ops of all ranks of a pipeline-parallel job as columns; times in seconds.

    Attributes
    ----------
    restarts : bool
        Times restart at 0 each step.
    """

    rank: IntArray
    stage: IntArray
    dp_rank: IntArray
    step: IntArray
    start: FloatArray
    duration: FloatArray
    optype: IntArray
    sequence: IntArray
    chunk: IntArray
    micro_batch: IntArray
    optypes: tuple[str, ...]
    restarts: bool = True


@dataclass
class RankTrace:
    """What one rank did.

    Attributes
    ----------
    label : str
        File (or archive member) it came from, base name only.
    clock_origin_ns : int
        Absolute time of 0 on the rank's clock, nanoseconds since 1970 (0 if unknown).
    device_memory : float or None
        Bytes of the device's memory where the file says it.
    operators : tuple of Operator
        Forward operators of a typical step; ``operator_steps`` holds those of every step.
    num_events : int
        Entries of the file.
    tensor_nodes : tuple of TensorNode
        Operators of an execution trace as they started.
    reported : HostEvents or None
        Of a report that holds nothing but what the host did, to be joined with its GPU trace.
    tensor_producers : dict
        Device spans that wrote what a device span reads, for those of which that is known.
    """

    label: str
    format: str
    timeline: Timeline
    num_events: int = 0
    rank: int | None = None
    world_size: int | None = None
    device: str | None = None
    device_memory: float | None = None
    backend: str | None = None
    steps: tuple[Step, ...] = ()
    collectives: tuple[Collective, ...] = ()
    groups: tuple[ProcessGroup, ...] = ()
    issues: Issues = field(default_factory=Issues)
    clock_origin_ns: int = 0
    host: HostTable | None = None
    categories: dict[str, int] = field(default_factory=dict)
    correlation: IntArray | None = None
    job: JobTable | None = None
    simai: SimaiTable | None = None
    nodes: tuple[Node, ...] = ()
    goal: tuple[GoalTask, ...] = ()
    tensor_nodes: tuple[TensorNode, ...] = ()
    tensor_producers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    operators: tuple[Operator, ...] = ()
    operator_steps: tuple[tuple[Operator, ...], ...] = ()
    updates: tuple[Update, ...] = ()
    optimizer: OptimizerName | None = None
    reported: HostEvents | None = None


@dataclass(frozen=True)
class FileSummary:
    """One file given by the user, or one member of an archive."""

    name: str
    format: str
    ranks: int


@dataclass
class Trace:
    """All ranks that were read, and what was found on the way."""

    files: list[FileSummary]
    ranks: list[RankTrace]
    issues: Issues

    @property
    def simai(self) -> SimaiTable | None:
        """SimAI's workload text, if the trace is one."""
        return next((rank.simai for rank in self.ranks if rank.simai is not None), None)


def timeline(
    *,
    start: Sequence[float] | FloatArray,
    end: Sequence[float] | FloatArray,
    name: Sequence[int] | IntArray,
    kind: Sequence[int] | IntArray,
    names: Iterable[str],
    stream: Sequence[int] | IntArray | None = None,
    streams: Iterable[str] = (),
    posted: FloatArray | None = None,
    step: IntArray | None = None,
    micro_batch: IntArray | None = None,
    device: str = "",
    size: FloatArray | None = None,
    cause: IntArray | None = None,
) -> Timeline:
    """A measured timeline of one rank; ``posted`` is the local launch, ``step`` -1 where unknown."""
    count = len(start)
    begin = np.asarray(start, np.float64)
    columns: dict[str, Any] = {
        "start": begin,
        "end": np.asarray(end, np.float64),
        "posted": begin if posted is None else posted,
        "ready": begin if posted is None else posted,
        "name": np.asarray(name, np.int64),
        "kind": np.asarray(kind, np.int64),
        "device": np.zeros(count, np.int64),
        "stream": np.full(count, -1) if stream is None else np.asarray(stream, np.int64),
        "step": np.full(count, -1) if step is None else step,
        "micro_batch": np.full(count, -1) if micro_batch is None else micro_batch,
        "bytes": np.zeros(count) if size is None else size,
        "cause": np.full(count, -1) if cause is None else cause,
    }
    built = Timeline.build(names=tuple(names), devices=(device,), streams=tuple(streams), **columns)
    return Timeline(
        built.columns,
        built.names,
        built.devices,
        built.streams,
        built.causes,
        KINDS,
        built.window,
        built.metadata,
    )


def empty_timeline() -> Timeline:
    """A timeline without rows."""
    return timeline(start=[], end=[], name=[], kind=[], names=())


_KIND_WORDS: tuple[tuple[str, str], ...] = (
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("crossdevicereduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("all2all", "all_to_all"),
    ("sendrecv", "send_recv"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("pushpull", "push_pull"),
    ("pull", "pull"),
    ("push", "push"),
    ("scatter", "scatter"),
    ("gather", "gather"),
    ("reduce", "reduce"),
    ("send", "send"),
    ("recv", "recv"),
)


def collective_kind(name: str) -> str:
    """Our word for a collective, from any spelling (``_reduce_scatter_base``, ``ncclKernel_AllReduce``)."""
    text = re.sub(r"[^a-z0-9]", "", name.lower())
    for word, kind in _KIND_WORDS:
        if word in text:
            return kind
    return "unknown"


_ELEMENT_BYTES = {
    "float": 4, "float32": 4, "int": 4, "int32": 4, "uint32": 4, "c10complexhalf": 4,
    "double": 8, "float64": 8, "long": 8, "longint": 8, "int64": 8, "uint64": 8, "c10complexfloat": 8,
    "half": 2, "float16": 2, "c10half": 2, "bfloat16": 2, "c10bfloat16": 2, "short": 2, "shortint": 2,
    "int16": 2, "uint16": 2,
    "byte": 1, "char": 1, "signedchar": 1, "unsignedchar": 1, "uint8": 1, "int8": 1, "bool": 1,
    "float8e4m3fn": 1, "float8e5m2": 1, "float8e4m3fnuz": 1, "float8e5m2fnuz": 1, "float8e8m0fnu": 1,
    "c10float8e4m3fn": 1, "c10float8e5m2": 1, "complexfloat": 8, "complexdouble": 16, "c10complexdouble": 16,
}  # fmt: skip


def element_bytes(dtype: str) -> int | None:
    """Bytes of one element of a dtype in PyTorch's, C++'s or NumPy's spelling; None if unknown."""
    return _ELEMENT_BYTES.get(re.sub(r"[^a-z0-9]", "", dtype.lower()))


def nccl_size(
    kind: str, input_bytes: float | None, output_bytes: float | None, group_size: int | None
) -> float | None:
    """Size in the meaning of nccl-tests from the bytes a rank puts in and gets out.

    All-gather: the gathered result; everything else: the input (scatter: the output times the ranks).
    """
    if kind in ("all_gather", "gather"):
        if output_bytes and (input_bytes is None or output_bytes >= input_bytes):
            return output_bytes
        return None if input_bytes is None or group_size is None else input_bytes * group_size
    if kind == "scatter" and not input_bytes and output_bytes and group_size:
        return output_bytes * group_size
    if kind == "recv" and not input_bytes:
        return output_bytes
    return input_bytes if input_bytes is not None else output_bytes


_RANK_IN_NAME = re.compile(
    r"(?:^|[^a-z])(?:rank|worker)[-_. ]?(\d+)(?!\d)"
    r"|(?:chakra|_eg|eg|allreduce|allgather|alltoall|reducescatter)[._](\d+)\.",
    re.IGNORECASE,
)
_RANK_BEFORE_SUFFIX = re.compile(r"[._](\d{1,5})\.(?:et|json|chakra)(?:\.gz)?$", re.IGNORECASE)


def rank_from_name(label: str) -> int | None:
    """Rank in a file name such as ``rank-34.pt.trace.json``, ``worker2_step_12`` or ``chakra.0.et``."""
    name = label.split(" > ")[-1]
    match = _RANK_IN_NAME.search(name)
    if match:
        return int(match.group(1) or match.group(2))
    match = _RANK_BEFORE_SUFFIX.search(name)
    return int(match.group(1)) if match else None
