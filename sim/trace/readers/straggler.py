"""Op tables of pipeline-parallel training jobs: one row per op, step and rank (Parquet), or as a timeline.

Times in the Parquet are seconds that restart at 0 each step; the steps are laid one after the other. Compute
is the forward and backward of a micro-batch, communication every send, receive and collective; the
optimizer, gradient clipping and garbage collection are neither.
"""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np

from sim.errors import InputError
from sim.trace.issues import Issues
from sim.trace.model import (
    COMMUNICATION,
    COMPUTE,
    OTHER,
    Collective,
    FloatArray,
    IntArray,
    JobTable,
    ProcessGroup,
    RankTrace,
    Step,
    collective_kind,
    timeline,
)
from sim.trace.readers.container import Member

OPERATIONS: dict[str, int] = {
    "forward-compute": COMPUTE,
    "backward-compute": COMPUTE,
    "forward-send": COMMUNICATION,
    "forward-recv": COMMUNICATION,
    "backward-send": COMMUNICATION,
    "backward-recv": COMMUNICATION,
    "grads-reduce-scatter": COMMUNICATION,
    "grads-all-reduce": COMMUNICATION,
    "params-all-gather": COMMUNICATION,
    "embedding-grads-all-reduce": COMMUNICATION,
    "layernorm-grads-all-reduce": COMMUNICATION,
    "optimizer": OTHER,
    "optimizer-clip-main-grad": OTHER,
    "gc": OTHER,
    "first-op": OTHER,
}
_REQUIRED = ("rank", "step", "optype", "start_ts", "duration")


def read_parquet(member: Member, issues: Issues) -> list[RankTrace]:
    """Read the op table of a job."""
    table = job_table(member, issues)
    return build(table, member.label, "straggler-parquet", issues)


def job_table(member: Member, issues: Issues) -> JobTable:
    """The op table as columns; unusable rows are counted and left out."""
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(io.BytesIO(member.stream.read()))
    except (pyarrow.ArrowException, OSError) as error:
        text = str(error).split("\n")[0][:120]
        raise InputError("file", "be a readable Parquet file", text, where=member.label) from None
    missing = [name for name in _REQUIRED if name not in table.column_names]
    if missing:
        raise InputError(
            "columns", f"hold {', '.join(_REQUIRED)}", ", ".join(table.column_names), where=member.label
        )
    try:
        raw = {n: table.column(n).to_numpy() for n in table.column_names if n != "optype"}
        words = [str(word) for word in table.column("optype").to_pylist()]
        columns = {
            n: _column(raw, n, len(words))
            for n in ("rank", "stage", "dp_rank", "step", "seq_id", "mc", "mb_id")
        }
        start, duration = (raw[n].astype(np.float64) for n in ("start_ts", "duration"))
    except (ValueError, TypeError, pyarrow.ArrowException) as error:
        raise InputError("columns", "hold numbers", str(error)[:100], where=member.label) from None
    usable = np.isfinite(start) & np.isfinite(duration)
    issues.add("not_finite_time", int((~usable).sum()))
    issues.add("negative_duration", int((duration[usable] < 0).sum()))
    optypes = tuple(dict.fromkeys(words))
    number = {word: i for i, word in enumerate(optypes)}
    kinds = np.array([number[word] for word in words], np.int64)
    return JobTable(
        rank=columns["rank"][usable],
        stage=columns["stage"][usable],
        dp_rank=columns["dp_rank"][usable],
        step=columns["step"][usable],
        start=start[usable],
        duration=np.maximum(duration[usable], 0.0),
        optype=kinds[usable],
        sequence=columns["seq_id"][usable],
        chunk=columns["mc"][usable],
        micro_batch=columns["mb_id"][usable],
        optypes=optypes,
    )


def _column(raw: dict[str, Any], name: str, rows: int) -> IntArray:
    if name not in raw:
        return np.full(rows, -1, np.int64)
    return np.nan_to_num(np.asarray(raw[name], np.float64), nan=-1).astype(np.int64)


def build(job: JobTable, label: str, form: str, issues: Issues) -> list[RankTrace]:
    """One trace per rank; the findings of the file stay with its first rank."""
    if not len(job.start):
        return []
    unknown = [word for word in job.optypes if word not in OPERATIONS]
    kinds = np.array([operation_kind(word) for word in job.optypes], np.int64)
    issues.add("unknown_operation", int(np.isin(job.optype, [job.optypes.index(w) for w in unknown]).sum()))
    offset = _step_offsets(job)
    numbers = np.unique(job.rank)
    world = int(numbers.max()) + 1
    ranks = []
    for number in numbers.tolist():
        rows = np.flatnonzero(job.rank == number)
        begin = job.start[rows] + offset[rows]
        rows = rows[np.lexsort((job.duration[rows], begin))]
        ranks.append(_rank(job, rows, offset, kinds, int(number), world, label, form))
    ranks[0].issues = issues
    for rank in ranks:
        rank.issues.add("device_unknown")
        rank.issues.add("collective_without_size", sum(c.size_bytes is None for c in rank.collectives))
    return ranks


def operation_kind(word: str) -> int:
    """Whether an op type is compute, communication or neither."""
    if word in OPERATIONS:
        return OPERATIONS[word]
    if re.search(r"(send|recv|reduce|gather|scatter|broadcast|all-?to-?all)", word):
        return COMMUNICATION
    return COMPUTE if word.endswith("compute") else OTHER


def _step_offsets(job: JobTable) -> FloatArray:
    """What to add to each row's start so that the steps follow each other."""
    if not job.restarts:
        return np.zeros(len(job.start))
    steps, row_step = np.unique(job.step, return_inverse=True)
    first, last = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    np.minimum.at(first, row_step, job.start)
    np.maximum.at(last, row_step, job.start + job.duration)
    begin = np.concatenate([[0.0], np.cumsum(last - first)[:-1]])
    return np.asarray((begin - first)[row_step], np.float64)


def _rank(
    job: JobTable,
    rows: IntArray,
    offset: FloatArray,
    kinds: IntArray,
    number: int,
    world: int,
    label: str,
    form: str,
) -> RankTrace:
    start = job.start[rows] + offset[rows]
    end = start + job.duration[rows]
    kind = kinds[job.optype[rows]]
    streams = ("compute", "pp-send", "pp-recv", "dp-comm", "misc")
    stream = np.array([_stream(word) for word in job.optypes], np.int64)[job.optype[rows]]
    spans = timeline(
        start=start,
        end=end,
        name=job.optype[rows],
        kind=kind,
        names=job.optypes,
        stream=stream,
        streams=streams,
        step=job.step[rows],
        micro_batch=job.micro_batch[rows],
    )
    collectives = []
    for at in np.flatnonzero(kind == COMMUNICATION).tolist():
        word = job.optypes[job.optype[rows[at]]]
        name, size = _group(word, job, int(rows[at]))
        sequence = int(job.sequence[rows[at]])
        collectives.append(
            Collective(
                collective_kind(word), None, "", name, size, float(start[at]), float(end[at]), at, sequence
            )
        )
    return RankTrace(
        label=label,
        format=form,
        timeline=spans,
        num_events=len(rows),
        rank=number,
        world_size=world,
        steps=_steps(job.step[rows], start, end),
        collectives=tuple(collectives),
        groups=_groups(job, number),
        job=job,
        issues=Issues(),
    )


def _steps(step: IntArray, start: FloatArray, end: FloatArray) -> tuple[Step, ...]:
    result = []
    for number in np.unique(step).tolist():
        mine = step == number
        result.append(Step(f"step {number}", float(start[mine].min()), float(end[mine].max())))
    return tuple(sorted(result, key=lambda s: s.start))


def _stream(word: str) -> int:
    if word.endswith("-send"):
        return 1
    if word.endswith("-recv"):
        return 2
    kind = operation_kind(word)
    return 3 if kind == COMMUNICATION else (0 if kind == COMPUTE else 4)


def _group(word: str, job: JobTable, row: int) -> tuple[str, int | None]:
    """Group an op runs in: the pipeline of its replica, its stage's replicas, or first and last stage."""
    if word.endswith(("-send", "-recv")):
        return f"pp {job.dp_rank[row]}", 2
    if word.startswith("embedding"):
        return f"embedding {job.dp_rank[row]}", 2
    return f"dp {job.stage[row]}", len(np.unique(job.dp_rank))


def _groups(job: JobTable, number: int) -> tuple[ProcessGroup, ...]:
    first = int(np.flatnonzero(job.rank == number)[0])
    stage, replica = job.stage[first], job.dp_rank[first]
    peers = tuple(np.unique(job.rank[job.stage == stage]).tolist())
    pipeline = tuple(np.unique(job.rank[job.dp_rank == replica]).tolist())
    return (
        ProcessGroup(f"dp {stage}", "replicas of the stage", "", peers, len(peers)),
        ProcessGroup(f"pp {replica}", "pipeline of the replica", "", pipeline, len(pipeline)),
    )
