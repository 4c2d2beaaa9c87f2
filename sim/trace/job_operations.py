"""Operations of a pipeline-parallel job's op table: the dependencies follow from what the ops are."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from sim.graph.execution import Cause
from sim.trace.issues import Issues
from sim.trace.model import COMMUNICATION, COMPUTE, IntArray, JobTable
from sim.trace.operations import DELAY, DEVICE, HOST, LAUNCH_DELAY, TRANSFER, Operations
from sim.trace.readers.straggler import operation_kind

_CAUSES = (
    ("forward-compute", Cause.FORWARD),
    ("backward-compute", Cause.BACKWARD),
    ("forward-", Cause.PIPELINE_COMM),
    ("backward-", Cause.PIPELINE_COMM),
    ("params-", Cause.PARAMETER_COMM),
    ("optimizer", Cause.OPTIMIZER),
    ("gc", Cause.OTHER),
)
SLACK = 1e-4  # seconds; times are float32
#: Ends with a norm over all ranks, so it lasts until the last rank has arrived.
_GLOBAL = "optimizer-clip-main-grad"


def job_operations(job: JobTable, issues: Issues) -> Operations:
    """Operations of all ranks and steps; steps follow each other.

    What a rank does between two operations of its own is a *launch delay*, kept as measured.

    Compute waits for what it receives; sends, receives and collectives are posted after the compute before
    them; the compute behind a collective waits for it, unless they overlapped. A send and its receive, and a
    collective of all replicas of a stage, are one transfer.
    """
    numbers = np.unique(job.rank)
    ops = Operations(tuple(numbers.tolist()), issues)
    stage_of = {int(r): int(s) for r, s in zip(job.rank, job.stage, strict=True)}
    ops.stages = tuple(stage_of[int(r)] for r in numbers)
    joins = _Joins(ops, job)
    before: list[int] = []
    begin = {int(s): float(job.start[job.step == s].min()) for s in np.unique(job.step)}
    for index, step in enumerate(_step_order(job)):
        last: list[int] = []
        for row, rank in enumerate(numbers.tolist()):
            rows = np.flatnonzero((job.step == step) & (job.rank == rank))
            rows = rows[np.lexsort((job.duration[rows], job.start[rows]))]
            if len(rows):
                last.extend(_one_step(ops, job, joins, rows, row, index, (before, begin[step])))
        before = [_barrier(ops, index, last)]
    joins.match()
    ops.resolve_joins()
    return ops


def _step_order(job: JobTable) -> list[int]:
    """Step numbers in order of time (of number where times restart each step)."""
    steps = np.unique(job.step)
    if job.restarts:
        return [int(s) for s in steps]
    first = [float(job.start[job.step == s].min()) for s in steps]
    return [int(steps[i]) for i in np.argsort(first, kind="stable")]


def _barrier(ops: Operations, step: int, last: list[int]) -> int:
    """A step begins when all ranks have ended the one before: times restart there."""
    end = max((ops.end[o] for o in last), default=0.0)
    barrier = ops.add(0, "", HOST, "step end", end, end, step=step)
    ops.after(barrier, *last)
    return barrier


def _one_step(
    ops: Operations,
    job: JobTable,
    joins: _Joins,
    rows: IntArray,
    rank: int,
    step: int,
    entry: tuple[list[int], float],
) -> list[int]:
    """One rank's operations of one step; returns the last one of each stream.

    ``entry`` holds what the step waits for and when it began.
    """
    before, clock = entry
    latest: dict[str, int] = {}
    for row in rows.tolist():
        word = job.optypes[job.optype[row]]
        stream = stream_of(word)
        operation = ops.add(
            rank,
            stream,
            TRANSFER if word == _GLOBAL or operation_kind(word) == COMMUNICATION else DEVICE,
            word,
            float(job.start[row]),
            float(job.start[row] + job.duration[row]),
            cause=_cause(word),
            step=step,
            micro_batch=int(job.micro_batch[row]),
        )
        # What had not ended when this one began cannot have been waited for: the rank overlapped them.
        begun = ops.start[operation] + SLACK
        sources = [s for s in _waits(word, latest) if s >= 0 and ops.end[s] <= begun]
        sources += [latest[stream]] if stream in latest else []
        _after_delay(ops, operation, sources, before, clock)
        joins.note(operation, word, row, rank, step)
        latest[stream] = operation
    return list(latest.values())


def _after_delay(
    ops: Operations, operation: int, sources: list[int], before: list[int], clock: float
) -> None:
    """``operation`` waits for the sources (or for the step to begin) and then for its launch delay."""
    ready = max((ops.end[s] for s in sources), default=clock)
    sources = sources or before
    ops.after(operation, *sources)
    if ops.start[operation] > ready:
        delay = ops.add(
            ops.rank[operation],
            "",
            DELAY,
            LAUNCH_DELAY,
            ready,
            ops.start[operation],
            step=ops.step[operation],
        )
        ops.after(delay, *sources)
        ops.after(operation, delay)


def stream_of(word: str) -> str:
    """Stream an op type runs on: compute, one per direction and side, or that of everything else."""
    if word.endswith(("-send", "-recv")):
        return word
    return "compute" if operation_kind(word) == COMPUTE else "rest"


def _waits(word: str, latest: dict[str, int]) -> list[int]:
    """What an op of a rank waits for on the rank's other streams."""
    if word.endswith("-compute"):
        return [latest.get(f"{word.split('-')[0]}-recv", -1), latest.get("rest", -1)]
    return [latest.get("compute", -1)]


def _cause(word: str) -> Cause:
    return next((cause for prefix, cause in _CAUSES if word.startswith(prefix)), Cause.GRADIENT_COMM)


class _Joins:
    """Which operations are one transfer: matched by step, group and order."""

    def __init__(self, ops: Operations, job: JobTable) -> None:
        self._ops, self._job = ops, job
        self._stages = int(job.stage.max()) + 1
        self._groups: dict[tuple[object, ...], list[list[int]]] = defaultdict(list)
        self._messages: dict[tuple[object, ...], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))

    def note(self, operation: int, word: str, row: int, rank: int, step: int) -> None:
        """Remember an operation that other ranks take part in."""
        job, stages = self._job, self._stages
        stage, replica = int(job.stage[row]), int(job.dp_rank[row])
        if word.endswith(("-send", "-recv")):
            direction = word.split("-")[0]
            forth = 1 if direction == "forward" else -1
            sender = stage if word.endswith("-send") else (stage - forth) % stages
            self._messages[(step, direction, replica, sender)][word.endswith("-recv")].append(operation)
        elif word == _GLOBAL:
            self._join((step, word), operation, rank)
        elif operation_kind(word) == COMMUNICATION:
            group = ("replica", replica) if word.startswith("embedding") else ("stage", stage)
            self._join((step, word, *group), operation, rank)

    def _join(self, key: tuple[object, ...], operation: int, rank: int) -> None:
        """The n-th operation of each rank in a group belongs to the group's n-th collective."""
        collectives = self._groups[key]
        for members in collectives:
            if rank not in (self._ops.rank[o] for o in members):
                members.append(operation)
                return
        collectives.append([operation])

    def match(self) -> None:
        """Number the transfers."""
        ops, number = self._ops, 0
        for collectives in self._groups.values():
            for members in collectives:
                if len(members) > 1:
                    for operation in members:
                        ops.join[operation] = number
                    number += 1
        for sends, receives in self._messages.values():
            ops.issues.add("peer_missing", abs(len(sends) - len(receives)))
            for send, receive in zip(sends, receives, strict=False):
                ops.join[send] = ops.join[receive] = number
                # Sent and received are one transfer, edited and reported under one name.
                for operation in (send, receive):
                    ops.type[operation] = f"{ops.name[operation].split('-')[0]}-transfer"
                number += 1
