"""What a trace says, per rank: steps, kernels, compute, communication, exposed communication, idle time."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.trace.model import (
    COMMUNICATION,
    COMPUTE,
    MEMORY,
    Collective,
    FloatArray,
    ProcessGroup,
    RankTrace,
    Trace,
)

SCHEMA = 1


def trace_info(trace: Trace) -> dict[str, Any]:
    """The document behind ``clusterloom trace info --json``.

    Times are seconds, sizes bytes. ``compute_sum_s`` and ``comm_sum_s`` add up durations (a collective's
    includes its waiting for other ranks); ``compute_s`` and ``comm_s`` are lengths of unions;
    ``exposed_comm_s`` is the union of compute and communication minus that of compute; ``idle_s`` is the
    rest of ``span_s``, from the first device span to the last.
    """
    return {
        "schema": SCHEMA,
        "files": [{"name": f.name, "format": f.format, "ranks": f.ranks} for f in trace.files],
        "ranks": [rank_info(rank) for rank in trace.ranks],
        "process_groups": _groups(trace),
        "steps": job_steps(trace),
        "warnings": trace.issues.to_json(),
    }


def rank_info(rank: RankTrace) -> dict[str, Any]:
    """One entry of ``ranks``."""
    spans = rank.timeline
    kind, start, end = spans.integer("kind"), spans["start"], spans["end"]
    length = end - start
    compute_s = union_length(start, end, kind == COMPUTE)
    moved = (kind == COMPUTE) | (kind == COMMUNICATION)
    worked = kind != MEMORY  # copies run beside kernels; a device that only copies is idle
    span = float(end.max() - start.min()) if len(start) else 0.0
    return {
        "file": rank.label,
        "format": rank.format,
        "rank": rank.rank,
        "world_size": rank.world_size,
        "device": rank.device,
        "backend": rank.backend,
        "num_events": rank.num_events,
        "num_compute": int((kind == COMPUTE).sum()),
        "num_comm": int((kind == COMMUNICATION).sum()),
        "num_memory": int((kind == MEMORY).sum()),
        "num_streams": len(np.unique(spans.integer("stream"))),
        "compute_sum_s": _sum(length, kind == COMPUTE),
        "comm_sum_s": _sum(length, kind == COMMUNICATION),
        "memory_sum_s": _sum(length, kind == MEMORY),
        "compute_s": compute_s,
        "comm_s": union_length(start, end, kind == COMMUNICATION),
        "exposed_comm_s": max(union_length(start, end, moved) - compute_s, 0.0),
        "idle_s": max(span - union_length(start, end, worked), 0.0),
        "span_s": span,
        "steps": [{"name": s.name, "duration_s": _finite(s.duration)} for s in rank.steps],
        "collectives": _collectives(rank.collectives),
        "streams": _streams(rank),
        "categories": rank.categories,
        "warnings": rank.issues.to_json(),
    }


def union_length(start: FloatArray, end: FloatArray, rows: npt.NDArray[np.bool_]) -> float:
    """Seconds covered by at least one of the picked spans."""
    order = np.argsort(start[rows], kind="stable")
    begin, finish = start[rows][order], end[rows][order]
    if not len(begin):
        return 0.0
    reached = np.maximum.accumulate(finish)
    uncovered = np.maximum(begin[1:] - reached[:-1], 0.0).sum()
    return float(reached[-1] - begin[0] - uncovered)


def _sum(length: FloatArray, rows: Any) -> float:
    return float(length[rows].sum())


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _collectives(found: tuple[Collective, ...]) -> list[dict[str, Any]]:
    """Collectives grouped by kind, group, size and dtype, in order of first appearance."""
    rows: dict[tuple[Any, ...], list[Collective]] = defaultdict(list)
    for one in found:
        rows[(one.kind, one.group, one.group_size, one.size_bytes, one.dtype)].append(one)
    result = []
    for (kind, group, members, size, dtype), same in rows.items():
        times = [one.end - one.start for one in same if np.isfinite(one.end - one.start)]
        result.append(
            {
                "kind": kind,
                "group": group or None,
                "group_size": members,
                "size_bytes": size,
                "dtype": dtype or None,
                "count": len(same),
                "num_kernels": sum(one.row >= 0 for one in same),
                "sum_s": float(sum(times)) if times else None,
                "min_s": float(min(times)) if times else None,
                "max_s": float(max(times)) if times else None,
            }
        )
    return result


def _streams(rank: RankTrace) -> list[dict[str, Any]]:
    spans = rank.timeline
    stream, length = spans.integer("stream"), spans["end"] - spans["start"]
    result = []
    for number in np.unique(stream).tolist():
        mine = stream == number
        name = spans.streams[number] if 0 <= number < len(spans.streams) else ""
        result.append({"name": name, "num_spans": int(mine.sum()), "busy_sum_s": float(length[mine].sum())})
    return result[:200]


def _groups(trace: Trace) -> list[dict[str, Any]]:
    """Process groups of all ranks; two ranks' groups of one name with different members stay apart."""
    found: dict[tuple[str, tuple[int, ...]], ProcessGroup] = {}
    for rank in trace.ranks:
        for group in rank.groups:
            found.setdefault((group.name, group.ranks), group)
    return [
        {
            "name": group.name,
            "description": group.description or None,
            "backend": group.backend or None,
            "size": group.size,
            "ranks": list(group.ranks),
        }
        for group in found.values()
    ]


def job_steps(trace: Trace) -> list[dict[str, Any]]:
    """Steps that several ranks of one file share on one clock: from the first start to the last end."""
    shared: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for rank in trace.ranks:
        if rank.format.startswith("straggler"):
            for step in rank.steps:
                shared[(rank.label, step.name)].append(step)
    return [
        {
            "name": name,
            "duration_s": max(s.end for s in steps) - min(s.start for s in steps),
            "ranks": len(steps),
        }
        for (_, name), steps in shared.items()
    ]
