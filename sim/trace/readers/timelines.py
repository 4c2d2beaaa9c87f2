"""Timelines that no profiler of PyTorch wrote: straggler jobs, MXNet and Horovod tensors, anything else."""

from __future__ import annotations

import re

import numpy as np

from sim.trace.model import (
    COMMUNICATION,
    COMMUNICATION_NAME,
    OTHER,
    Collective,
    JobTable,
    RankTrace,
    collective_kind,
    rank_from_name,
    timeline,
)
from sim.trace.readers.chrome import ChromeEvents
from sim.trace.readers.straggler import OPERATIONS
from sim.trace.readers.straggler import build as build_job

MICROSECOND = 1e-6
_THREAD = re.compile(r"PP rank (\d+), TP rank (\d+)")
_WAITING = re.compile(r"QUEUE|NEGOTIATE|WAIT|INIT|MEMCPY", re.IGNORECASE)
_MOVING = re.compile(r"COMMUNICATION|PUSH|PULL|BROADCAST|ALLREDUCE|ALLGATHER|ALLTOALL", re.IGNORECASE)
_HOROVOD = re.compile(r"NEGOTIATE_|MEMCPY_(IN|OUT)_FUSION_BUFFER|PUSH|PULL|COMMUNICATION$")


def build(events: ChromeEvents, label: str) -> list[RankTrace]:
    """The ranks of a timeline: all ranks of a job, or one worker."""
    categories = set(events.categories.index)
    if categories & set(OPERATIONS):
        return build_job(_job(events), label, "straggler-timeline", events.issues)
    tensors = any(_HOROVOD.search(str(name)) for name in events.names.index)
    return [_worker(events, label, "tensor-timeline" if tensors else "chrome-timeline")]


def _job(events: ChromeEvents) -> JobTable:
    """Ops of a job: the process is the replica, the thread names the pipeline stage."""
    span = events.span
    place = []
    for pid, tid in events.threads.index:
        match = _THREAD.search(events.thread_names.get((pid, tid), ""))
        stage, tensor = (int(match.group(1)), int(match.group(2))) if match else (0, 0)
        place.append((stage, int(pid) if pid.lstrip("-").isdigit() and len(pid) < 10 else 0, tensor))
    table = np.array(place, np.int64).reshape(-1, 3)
    degrees = table.max(axis=0) + 1 if len(table) else np.ones(3, np.int64)
    where = table[span.integer("thread")]
    stages, replicas, tensors = where[:, 0], where[:, 1], where[:, 2]
    categories = events.categories.texts()
    return JobTable(
        rank=(stages * degrees[1] + replicas) * degrees[2] + tensors,
        stage=stages,
        dp_rank=replicas,
        step=span.integer("step"),
        start=span.real("start") * MICROSECOND,
        duration=span.real("duration") * MICROSECOND,
        optype=span.integer("category"),
        sequence=span.integer("sequence"),
        chunk=span.integer("chunk"),
        micro_batch=span.integer("micro_batch"),
        optypes=categories,
        restarts=False,
    )


def _worker(events: ChromeEvents, label: str, form: str) -> RankTrace:
    """One worker: a stream per thread (a tensor of MXNet and Horovod is a process)."""
    span, issues = events.span, events.issues
    start = span.real("start") * MICROSECOND
    duration = span.real("duration") * MICROSECOND
    order = np.lexsort((duration, start))
    name, thread = span.integer("name")[order], span.integer("thread")[order]
    start, end = start[order], (start + duration)[order]
    issues.add("unordered_events", int((np.diff(order) < 0).sum()))
    names = events.names.texts()
    moving = np.array([_communicates(text, form) for text in names], bool)
    kind = np.where(moving[name], COMMUNICATION, OTHER) if len(name) else np.zeros(0, np.int64)
    threads = tuple(_thread_name(events, pid, tid) for pid, tid in events.threads.index)
    rank = RankTrace(
        label=label,
        format=form,
        timeline=timeline(
            start=start, end=end, name=name, kind=kind, names=names, stream=thread, streams=threads
        ),
        num_events=events.num_events,
        rank=rank_from_name(label),
        steps=tuple(sorted(events.steps, key=lambda step: step.start)),
        issues=issues,
        clock_origin_ns=events.clock.origin_ns,
        categories=dict(sorted(events.counts.items())),
    )
    rank.collectives = tuple(
        Collective(
            collective_kind(names[name[row]]), None, "", "", None, float(start[row]), float(end[row]), row
        )
        for row in np.flatnonzero(kind == COMMUNICATION).tolist()
    )
    for finding, found in (
        ("rank_unknown" if rank.rank is None else "rank_from_file_name", 1),
        ("world_size_unknown", 1),
        ("device_unknown", 1),
        ("no_steps", int(not rank.steps)),
        ("collective_without_size", len(rank.collectives)),
        ("collective_without_group", len(rank.collectives)),
    ):
        issues.add(finding, found)
    return rank


def _thread_name(events: ChromeEvents, pid: str, tid: str) -> str:
    """Tensor or thread name; process names of profilers are not used, they may hold user names."""
    return events.thread_names.get((pid, tid)) or events.thread_names.get((pid, "")) or f"{pid}:{tid}"


def _communicates(name: str, form: str) -> bool:
    if form == "tensor-timeline":
        return bool(_MOVING.search(name)) and not _WAITING.search(name)
    return bool(COMMUNICATION_NAME.search(name))
