"""Sets of ends: the last tasks of each class of ranks."""

from __future__ import annotations

from sim.graph.builder import Ends


def extend(into: Ends, more: Ends) -> None:
    """Add the tasks of ``more`` to those of ``into``, class by class."""
    for index, tasks in more.items():
        into.setdefault(index, []).extend(tasks)


def joined(first: Ends, second: Ends) -> Ends:
    """Both sets of ends, each task once; the classes are those of ``first``."""
    if not second:
        return first
    return {c: [*tasks, *(t for t in second.get(c, ()) if t not in tasks)] for c, tasks in first.items()}


def same_shape(a: Ends, b: Ends) -> bool:
    """Whether two sets of ends have the same shape."""
    return a.keys() == b.keys() and all(len(a[index]) == len(b[index]) for index in a)


def pack(parts: list[Ends]) -> Ends:
    """Several sets of ends as one, by (class, part)."""
    return {2 * index + part: tasks for part, ends in enumerate(parts) for index, tasks in ends.items()}


def unpack(packed: Ends) -> list[Ends]:
    """What :func:`pack` has packed; parts without any class are left out at the end."""
    parts: list[Ends] = [{} for _ in range(1 + max((key % 2 for key in packed), default=0))]
    for key, tasks in packed.items():
        parts[key % 2][key // 2] = tasks
    return parts
