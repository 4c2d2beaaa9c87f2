"""Our own Perfetto exports, simulated or measured: one process per device, causes as categories."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import numpy as np

from sim.graph.execution import Cause
from sim.trace.model import (
    COMMUNICATION,
    COMPUTE,
    KINDS,
    MEMORY,
    OTHER,
    Collective,
    IntArray,
    RankTrace,
    Step,
    collective_kind,
    rank_from_name,
    timeline,
)
from sim.trace.perfetto import STEP
from sim.trace.readers.chrome import ChromeEvents

MICROSECOND = 1e-6
PRODUCER = "clusterloom"
_KIND_OF: dict[str, int] = {
    **{cause.name.lower(): COMPUTE for cause in Cause},
    **{cause.name.lower(): COMMUNICATION for cause in Cause if cause.name.endswith("_COMM")},
    Cause.CONTROL.name.lower(): OTHER,
    Cause.DATA.name.lower(): MEMORY,
    **dict(zip(KINDS, (COMPUTE, COMMUNICATION, MEMORY, OTHER), strict=True)),
}
_RANK = re.compile(r"rank ?(\d+)$")


def is_own(events: ChromeEvents, header: dict[str, Any]) -> bool:
    """Whether our writer made the file: it says so, or (older ones) only knows our categories."""
    other = header.get("otherData")
    if isinstance(other, dict) and other.get("producer") == PRODUCER:
        return True
    categories = set(events.categories.index)
    return bool(categories) and categories <= set(_KIND_OF) and bool((events.span.integer("ranks") > 0).all())


def build(events: ChromeEvents, header: dict[str, Any], label: str) -> list[RankTrace]:
    """One rank per process; a folded process stands for several, counted in ``ranks``."""
    other = header.get("otherData")
    sources = _sources(events) if isinstance(other, dict) and other.get("dependencies") is True else None
    span = events.span
    process = np.array([pid for pid, _ in events.threads.index] or [""])
    mine = process[span.integer("thread")] if len(span) else process[:0]
    names = {pid: events.thread_names.get((pid, ""), pid) for pid in dict.fromkeys(mine.tolist())}
    counts = {pid: int(span.integer("ranks")[mine == pid].max()) for pid in names}
    world = sum(count for pid, count in counts.items() if not names[pid].startswith("server"))
    found = []
    for pid, name in names.items():
        rank = _rank(events, np.flatnonzero(mine == pid), label, sources)
        match = _RANK.match(name)
        rank.rank = int(match[1]) if match else (rank_from_name(label) if len(names) == 1 else None)
        rank.world_size, rank.device = max(world, 1), name
        rank.issues.add("folded_rank", counts[pid] - 1)
        rank.issues.add("rank_unknown", int(rank.rank is None))
        found.append(rank)
    if found:
        found[0].issues.merge(events.issues)
        found[0].num_events += events.num_events - sum(rank.num_events for rank in found)
    return found


def _sources(events: ChromeEvents) -> dict[int, list[int]]:
    """Numbers of the spans that each numbered span waited for."""
    found: dict[int, list[int]] = defaultdict(list)
    pairs = (events.flow.integer(name).tolist() for name in ("target", "source"))
    for target, source in zip(*pairs, strict=True):
        found[target].append(source)
    return found


def _producers(number: IntArray, sources: dict[int, list[int]]) -> dict[int, tuple[int, ...]]:
    """Rows that each row of a rank waited for; what no flow names waited for its stream alone."""
    row_of = {n: row for row, n in enumerate(number.tolist()) if n >= 0}
    return {
        row: tuple(row_of[s] for s in sources.get(n, ()) if s in row_of) if n >= 0 else ()
        for row, n in enumerate(number.tolist())
    }


def _rank(
    events: ChromeEvents, rows: IntArray, label: str, sources: dict[int, list[int]] | None
) -> RankTrace:
    span = events.span
    words = np.array([str(word) for word in events.categories.index] or [""])
    is_mark = words[span.integer("category")[rows]] == STEP
    marks, rows = rows[is_mark], rows[~is_mark]
    start = span.real("start")[rows] * MICROSECOND
    length = span.real("duration")[rows] * MICROSECOND
    order = np.lexsort((length, start))
    rows, start, end = rows[order], start[order], (start + length)[order]
    kinds = np.array([_KIND_OF.get(str(word), OTHER) for word in events.categories.index], np.int64)
    kind = kinds[span.integer("category")[rows]]
    numbers = {cause.name.lower(): int(cause) for cause in Cause}
    causes = np.array([numbers.get(str(word), -1) for word in events.categories.index], np.int64)
    step = _steps_of(span.integer("iteration")[rows], span.integer("step")[rows])
    threads = tuple(events.thread_names.get(place, "") or place[1] for place in events.threads.index)
    size = np.maximum(span.real("bytes")[rows], 0.0)
    spans = timeline(
        start=start,
        end=end,
        posted=start - np.maximum(span.real("waited")[rows], 0.0) * MICROSECOND,
        name=span.integer("name")[rows],
        kind=kind,
        names=events.names.texts(),
        stream=span.integer("thread")[rows],
        streams=threads,
        step=step,
        micro_batch=span.integer("micro_batch")[rows],
        size=size,
        cause=causes[span.integer("category")[rows]],
    )
    rank = RankTrace(
        label=label,
        format="clusterloom",
        timeline=spans,
        num_events=len(rows),
        steps=_marked(events, marks) or _steps(step, start, end),
        categories=dict(sorted(events.counts.items())),
        clock_origin_ns=(events.clock.origin or 0) * 1000,
    )
    rank.collectives = _collectives(rank)
    if sources is not None:
        rank.tensor_producers = _producers(span.integer("number")[rows], sources)
    return rank


def _steps_of(iteration: IntArray, step: IntArray) -> IntArray:
    """Steps counted over iterations."""
    return np.maximum(iteration, 0) * (int(step.max(initial=0)) + 1) + np.maximum(step, 0)


def _marked(events: ChromeEvents, rows: IntArray) -> tuple[Step, ...]:
    """Steps that the file marks, in order."""
    start = events.span.real("start")[rows] * MICROSECOND
    end = start + events.span.real("duration")[rows] * MICROSECOND
    names = events.names.texts()
    number = events.span.integer("name")[rows]
    return tuple(
        Step(names[number[row]], float(start[row]), float(end[row]))
        for row in np.argsort(start, kind="stable").tolist()
    )


def _steps(step: IntArray, start: Any, end: Any) -> tuple[Step, ...]:
    """A step lasts from the end of the one before it to its own last span's end."""
    found: list[Step] = []
    for number in np.unique(step).tolist():
        mine = step == number
        first = found[-1].end if found else float(start[mine].min())
        last = float(end[mine].max())
        if last > first:
            found.append(Step(f"step {number}", first, last))
    return tuple(found)


def _collectives(rank: RankTrace) -> tuple[Collective, ...]:
    """Transfers; ``bytes`` is what one participant sends over the wire. The task's name joins the ranks."""
    spans, names = rank.timeline, rank.timeline.integer("name")
    return tuple(
        Collective(
            collective_kind(spans.names[names[row]].rpartition(".")[2]),
            float(spans["bytes"][row]) or None,
            "",
            spans.names[names[row]],
            None,
            float(spans["start"][row]),
            float(spans["end"][row]),
            row,
        )
        for row in np.flatnonzero(spans.integer("kind") == COMMUNICATION).tolist()
    )
