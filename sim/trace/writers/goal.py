"""GOAL schedules (LogGOPSim, ATLAHS): computation in ns and messages; collectives become their messages."""

from __future__ import annotations

import heapq
from collections import defaultdict
from pathlib import Path

from sim.files import write_whole
from sim.models.collectives import plan
from sim.trace.operations import TRANSFER, Operations
from sim.trace.to_graph import merged_order
from sim.trace.writers.chakra import collective_of

_ALGORITHM = {
    "all_to_all": "direct",
    "gather": "direct",
    "scatter": "direct",
    "barrier": "recursive_doubling",
}
#: Bytes of a message whose size the trace does not say: GOAL has no messages of 0 bytes.
UNKNOWN_BYTES = 1


class _Schedule:
    """Lines of one rank."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.requires: list[str] = []
        self.count = 0

    def task(self, text: str, after: list[str]) -> str:
        self.count += 1
        label = f"l{self.count}"
        self.lines.append(f"{label}: {text}")
        self.requires += [f"{label} requires {other}" for other in after]
        return label


def write_operations(path: Path, operations: Operations) -> Path:
    """Write all ranks as one GOAL schedule.

    Ranks are numbered 0, 1, ... in the order of ``operations.ranks``. A collective is written as the messages
    of its algorithm (a ring; direct exchange for all-to-all), step by step; messages of unknown size have
    :data:`UNKNOWN_BYTES`. Streams of a rank are its processors (``cpu N``), as they run side by side; what
    occupies no stream gets one that is free while it lasts.
    """
    schedules = [_Schedule() for _ in operations.ranks]
    sources: dict[int, list[int]] = defaultdict(list)
    for target, source in operations.edges:
        sources[target].append(source)
    ends: dict[int, list[str]] = {}
    lanes, tag = _lanes(operations), 0
    before: dict[tuple[int, str], int] = {}  # a stream runs what it was given in that order
    for group in merged_order(operations):
        after: dict[int, list[str]] = {}
        for o in group:
            place = (operations.rank[o], operations.stream[o])
            known = [s for s in sources[o] if operations.rank[s] == operations.rank[o]]
            known += [before[place]] if place[1] and place in before else []
            after[o] = sorted({end for s in known for end in ends[s]})
            for s in sources[o]:
                if operations.rank[s] != operations.rank[o]:
                    tag += 1
                    after[o].append(_wait(operations, schedules, (s, o), ends[s], tag))
        before.update({(operations.rank[o], operations.stream[o]): o for o in group})
        if operations.category[group[0]] == TRANSFER and len(group) > 1:
            tag += 1
            ends.update(_messages(operations, schedules, group, after, tag))
            continue
        for o in group:
            text = f"calc {round(operations.work[o] * 1e9)}" + (f" cpu {lanes[o]}" if lanes[o] else "")
            ends[o] = [schedules[operations.rank[o]].task(text, after[o])]
    blocks = [f"num_ranks {len(schedules)}"]
    for rank, schedule in enumerate(schedules):
        blocks.append("\n".join([f"rank {rank} {{", *schedule.lines, *schedule.requires, "}"]))
    return write_whole(path, "\n\n".join(blocks) + "\n")


def _wait(
    operations: Operations, schedules: list[_Schedule], edge: tuple[int, int], after: list[str], tag: int
) -> str:
    """Let a rank wait for another by a message; returns the task of its arrival."""
    source, target = (operations.rank[o] for o in edge)
    size = max(round(operations.size[edge[0]]), UNKNOWN_BYTES)
    schedules[source].task(f"send {size}b to {target} tag {tag}", after)
    return schedules[target].task(f"recv {size}b from {source} tag {tag}", [])


def _lanes(operations: Operations) -> list[int]:
    """Processor of each operation on its rank."""
    lanes = [0] * len(operations)
    count: dict[int, int] = defaultdict(int)
    of_stream: dict[tuple[int, str], int] = {}
    loose: list[int] = []
    for o, (rank, stream) in enumerate(zip(operations.rank, operations.stream, strict=True)):
        if not stream:
            loose.append(o)
        elif (rank, stream) not in of_stream:
            of_stream[(rank, stream)] = count[rank]
            count[rank] += 1
        lanes[o] = of_stream.get((rank, stream), 0)
    free: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for o in sorted(loose, key=lambda o: (operations.start[o], operations.end[o])):
        rank = operations.rank[o]
        if free[rank] and free[rank][0][0] <= operations.start[o]:
            lanes[o] = heapq.heappop(free[rank])[1]
        else:
            lanes[o] = count[rank]
            count[rank] += 1
        heapq.heappush(free[rank], (operations.end[o], lanes[o]))
    return lanes


def _messages(
    operations: Operations,
    schedules: list[_Schedule],
    group: list[int],
    after: dict[int, list[str]],
    tag: int,
) -> dict[int, list[str]]:
    """The messages of one transfer; returns the last tasks of each participant."""
    rows = [operations.rank[o] for o in group]
    kind, size = operations.type[group[0]], operations.size[group[0]]
    last = {row: after[o] for row, o in zip(rows, group, strict=True)}
    for sent in _steps(operations, group, kind, size):
        fresh: dict[int, list[str]] = defaultdict(list)
        for source, target, count in sent:
            text = f"{max(count, UNKNOWN_BYTES)}b"
            fresh[source].append(schedules[source].task(f"send {text} to {target} tag {tag}", last[source]))
            fresh[target].append(schedules[target].task(f"recv {text} from {source} tag {tag}", last[target]))
        last.update(fresh)
    return {o: last[operations.rank[o]] for o in group}


def _steps(
    operations: Operations, group: list[int], kind: str, size: float
) -> list[list[tuple[int, int, int]]]:
    """Per step: (source rank, target rank, bytes)."""
    first = operations.name[group[0]]
    if len(group) == 2 and first.endswith(("-send", "-recv")):
        send = next(o for o in group if operations.name[o].endswith("-send"))
        receive = next(o for o in group if o != send)
        return [[(operations.rank[send], operations.rank[receive], round(size))]]
    rows = sorted({operations.rank[o] for o in group})
    word = collective_of(kind)
    steps = []
    for phase in plan(word, _ALGORITHM.get(word, "ring"), len(rows)):
        share = size * phase.fraction / phase.steps
        flows = [
            (rows[int(s)], rows[int(d)], round(share * float(r)))
            for s, d, r in zip(phase.src, phase.dst, phase.relative, strict=True)
        ]
        steps += [flows] * phase.steps
    return steps
