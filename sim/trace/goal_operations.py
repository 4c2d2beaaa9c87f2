"""Operations of GOAL schedules (LogGOPSim, ATLAHS): computation, messages and what they require.

A message leaves when its send may run and its sender's network port is free; a receive is done when it is
posted and the message has arrived. Messages are matched by sender, receiver and tag, in order. GOAL holds
bytes but no times of messages: they take none until an edit gives ``latency`` and ``bandwidth``.
"""

from __future__ import annotations

import heapq
from collections import defaultdict

from sim.errors import InputError
from sim.graph.execution import Cause
from sim.trace.issues import Issues
from sim.trace.model import RankTrace
from sim.trace.operations import DEVICE, HOST, TRANSFER, Operations, rank_numbers
from sim.trace.readers.workload_text import NANOSECOND, GoalTask

_Place = tuple[int, int]


def goal_operations(ranks: list[RankTrace], issues: Issues) -> Operations:
    """Operations of all ranks of a schedule.

    Parameters
    ----------
    ranks : list of RankTrace
        With ``goal``.
    issues : Issues
        Where findings are counted.

    Raises
    ------
    InputError
        If tasks wait for each other.
    """
    numbers = rank_numbers([rank.rank for rank in ranks])
    ops = Operations(numbers, issues)
    needs = _needs([rank.goal for rank in ranks], numbers, issues)
    number: dict[_Place, int] = {}
    order = _in_order(needs, [rank.goal for rank in ranks])
    if len(order) < len(needs):
        raise InputError(
            "schedule", "have no circle of requirements", f"{len(needs) - len(order)} tasks in one"
        )
    for place in order:
        row, at = place
        number[place] = _add(ops, row, ranks[row].goal[at])
        ops.after(number[place], *(number[source] for source in needs[place]))
    sends = sum(task.op == "send" for rank in ranks for task in rank.goal)
    issues.add("message_without_time", sends)
    issues.add("bad_row", sum(rank.issues.counts["bad_row"] for rank in ranks))
    return ops


def _needs(
    schedules: list[tuple[GoalTask, ...]], numbers: tuple[int, ...], issues: Issues
) -> dict[_Place, list[_Place]]:
    """Tasks that each task waits for: what it requires, and for a receive the send of its message."""
    needs: dict[_Place, list[_Place]] = {}
    sent: dict[tuple[int, int, int], list[_Place]] = defaultdict(list)
    received: dict[tuple[int, int, int], list[_Place]] = defaultdict(list)
    for row, tasks in enumerate(schedules):
        place_of = {task.label: (row, at) for at, task in enumerate(tasks)}
        for at, task in enumerate(tasks):
            needs[(row, at)] = [place_of[label] for label in task.requires]
            if task.op == "send":
                sent[(numbers[row], task.peer, task.tag)].append((row, at))
            elif task.op == "recv":
                received[(task.peer, numbers[row], task.tag)].append((row, at))
        for at, task in enumerate(tasks):  # to start after another has started: when that one may
            for label in task.starts_after:
                needs[(row, at)] += needs[place_of[label]]
    for key in {**sent, **received}:
        for source, target in zip(sent[key], received[key], strict=False):
            needs[target].append(source)
            sizes = {schedules[row][at].amount for row, at in (source, target)}
            issues.add("message_size_differs", len(sizes) - 1)
        issues.add("peer_missing", abs(len(sent[key]) - len(received[key])))
    return needs


def _in_order(needs: dict[_Place, list[_Place]], schedules: list[tuple[GoalTask, ...]]) -> list[_Place]:
    """Tasks by the earliest time they may start, which is the order in which a processor takes them.

    Those in a circle, and what waits for them, are left out.
    """
    missing = {place: len(sources) for place, sources in needs.items()}
    followers: dict[_Place, list[_Place]] = defaultdict(list)
    for place, sources in needs.items():
        for source in sources:
            followers[source].append(place)
    ready = dict.fromkeys(needs, 0)
    heap = [(0, place) for place, count in missing.items() if not count]
    heapq.heapify(heap)
    order: list[_Place] = []
    while heap:
        time, place = heapq.heappop(heap)
        order.append(place)
        task = schedules[place[0]][place[1]]
        end = time + (task.amount if task.op == "calc" else 0)
        for other in followers[place]:
            ready[other] = max(ready[other], end)
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(heap, (ready[other], other))
    return order


def _add(ops: Operations, row: int, task: GoalTask) -> int:
    """One task; a receive occupies nothing, it only waits."""
    if task.op == "calc":
        work = task.amount * NANOSECOND
        return ops.add(row, f"cpu {task.stream}", DEVICE, "calc", 0.0, 0.0, work=work)
    if task.op == "send":
        sent = ops.add(
            row, "network", TRANSFER, "send", 0.0, 0.0, cause=Cause.PIPELINE_COMM, size=float(task.amount)
        )
        if task.peer != ops.ranks[row]:
            ops.groups[sent] = ((ops.ranks[row], task.peer),)
        return sent
    return ops.add(row, "", HOST, "recv", 0.0, 0.0)
