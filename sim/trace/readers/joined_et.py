"""What an execution trace holds once Kineto was joined into it upstream: device operations with times.

The linkers of Chakra and PARAM append kernels and copies as nodes below the operator that launched them, with
``cat``, ``ts``, ``dur`` (later ``inclusive_dur``) in microseconds and ``stream``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np

from sim.trace.issues import Issues
from sim.trace.model import (
    COMMUNICATION,
    COMMUNICATION_NAME,
    COMPUTE,
    MEMORY,
    Collective,
    RankTrace,
    collective_kind,
    timeline,
)
from sim.trace.readers.columns import integer

NAN = float("nan")
MICROSECOND = 1e-6
_MEMORY = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")


@dataclass(frozen=True)
class DeviceNode:
    """A device operation: id of its node and of the operator above it, microseconds, stream."""

    number: int
    parent: int
    name: str
    start: float
    end: float
    stream: str
    memory: bool


def times(node: dict[str, Any], issues: Issues) -> tuple[float, float]:
    """Start and end in microseconds where a join with Kineto put them in; NaN otherwise."""
    start = node.get("ts")
    duration = next(
        (node[k] for k in ("dur", "inclusive_dur", "exclusive_dur") if node.get(k) is not None), None
    )
    if not (_is_number(start) and _is_number(duration)):
        return NAN, NAN
    if not (abs(start) < 1e18 and abs(duration) < 1e18):
        return NAN, NAN
    issues.add("negative_duration", int(duration < 0))
    return start, start + max(duration, 0)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return type(value) in (int, float)


def device_node(node: dict[str, Any], name: str, start: float, end: float) -> DeviceNode | None:
    """The device operation that a node describes; None for everything a host did."""
    category = node.get("cat")
    word = category.lower() if isinstance(category, str) else ""
    if word not in ("kernel", *_MEMORY) or start != start:
        return None
    parent = integer(node.get("ctrl_deps", node.get("parent")))
    return DeviceNode(
        integer(node.get("id")), parent, name, start, end, str(node.get("stream", "")), word != "kernel"
    )


def add_device_spans(
    rank: RankTrace, nodes: list[DeviceNode], above: dict[int, int], origin: float, issued: dict[int, int]
) -> None:
    """Give a rank the timeline of its device nodes and its collectives their kernels.

    Parameters
    ----------
    rank : RankTrace
        With the collectives of the host.
    nodes : list of DeviceNode
    above : dict
        Parent of each node.
    origin : float
        Microseconds that become 0.
    issued : dict
        Place in ``rank.collectives`` of each node that records one.
    """
    nodes = sorted(nodes, key=lambda node: (node.start, node.end))
    start = np.array([node.start - origin for node in nodes]) * MICROSECOND
    end = np.array([node.end - origin for node in nodes]) * MICROSECOND
    names = {name: i for i, name in enumerate(dict.fromkeys(node.name for node in nodes))}
    streams = {stream: i for i, stream in enumerate(dict.fromkeys(node.stream for node in nodes))}
    rank.timeline = timeline(
        start=start,
        end=end,
        name=[names[node.name] for node in nodes],
        kind=[_kind(node) for node in nodes],
        names=names,
        stream=[streams[node.stream] for node in nodes],
        streams=streams,
    )
    found = list(rank.collectives)
    for row, node in enumerate(nodes):
        if _kind(node) != COMMUNICATION:
            continue
        at = _issuer(node.parent, above, issued)
        begin, finish = float(start[row]), float(end[row])
        if at is None:
            rank.issues.add("collective_without_metadata")
            found.append(Collective(collective_kind(node.name), None, "", "", None, begin, finish, row))
            continue
        span = replace(found[at], start=begin, end=finish, row=row)
        if found[at].row < 0:
            found[at] = span
        else:  # one call, several kernels
            found.append(span)
    rank.collectives = tuple(found)
    rank.issues.add("zero_length_event", int((end == start).sum()))


def _kind(node: DeviceNode) -> int:
    if node.memory:
        return MEMORY
    return COMMUNICATION if COMMUNICATION_NAME.search(node.name) else COMPUTE


def _issuer(node: int, above: dict[int, int], issued: dict[int, int]) -> int | None:
    """The recorded collective at or above a node."""
    for _ in range(50):
        if node in issued:
            return issued[node]
        parent = above.get(node, -1)
        if parent in (-1, node):
            return None
        node = parent
    return None
