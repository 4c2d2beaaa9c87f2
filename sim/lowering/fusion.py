"""Which gradients travel together, and in which pieces (taxonomy D8: fusion and partition)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sim.graph.execution import ExecutionGraph
from sim.lowering.buckets import Bucket


class ReadyTensor(NamedTuple):
    """A gradient tensor: its layer, numbers and bytes, and when the backward has it, in seconds.

    ``position`` is its place among the layer's tensors.
    """

    layer: int
    elements: float
    size: float
    ready: float
    position: int = 0


@dataclass(frozen=True)
class FusionOptions:
    """What fusions ask for.

    Parameters
    ----------
    capacity : float
        Bytes of a full buffer.
    cycle : float
        Seconds between two looks at what is ready.
    startup, per_byte : float
        Seconds of an exchange without bytes, and of each byte.
    """

    capacity: float
    cycle: float = 0.0
    startup: float = 0.0
    per_byte: float = 0.0


Group = tuple[list[ReadyTensor], float]
"""Tensors that travel together, and the seconds that they wait once the last is ready."""
Fusion = Callable[[Sequence[ReadyTensor], FusionOptions], list[Group]]


def alone(tensors: Sequence[ReadyTensor], options: FusionOptions) -> list[Group]:
    """Every tensor by itself."""
    return [([tensor], 0.0) for tensor in tensors]


def by_cycle(tensors: Sequence[ReadyTensor], options: FusionOptions) -> list[Group]:
    """Horovod's buffer: every cycle, what has become ready, in parts of at most a buffer.

    Sergeev and Del Balso 2018, arXiv:1802.05799, and HOROVOD_CYCLE_TIME in Horovod's documentation. Cycles
    are counted from the beginning of the backward.
    """
    groups: list[Group] = []
    filled, current = math.inf, -1
    for tensor in tensors:
        window = math.floor(tensor.ready / options.cycle + 1e-9) + 1
        if window != current or filled + tensor.size > options.capacity:
            groups.append(([], 0.0))
            filled, current = 0.0, window
        filled += tensor.size
        groups[-1][0].append(tensor)
        groups[-1] = groups[-1][0], window * options.cycle - tensor.ready
    return groups


def merge_plan(tensors: Sequence[ReadyTensor], options: FusionOptions) -> list[Group]:
    """MG-WFBP: the merges after which the last exchange ends first (Shi et al., INFOCOM 2019).

    Exchanges run one after another and take ``startup + per_byte x bytes``; an earlier end of those before
    never hurts, so the best end of the first i tensors follows from the best ends of fewer.
    """
    sizes = np.concatenate([[0.0], np.cumsum([tensor.size for tensor in tensors])])
    end, choice = np.zeros(len(tensors) + 1), np.zeros(len(tensors) + 1, np.int64)
    for i, tensor in enumerate(tensors, 1):
        ends = np.maximum(end[:i], tensor.ready) + options.startup + options.per_byte * (sizes[i] - sizes[:i])
        choice[i] = len(ends) - 1 - int(np.argmin(ends[::-1]))  # the smallest merge of those that are equal
        end[i] = ends[choice[i]]
    groups: list[Group] = []
    last = len(tensors)
    while last:
        groups.append((list(tensors[choice[last] : last]), 0.0))
        last = int(choice[last])
    return groups[::-1]


FUSIONS: dict[str, Fusion] = {"none": alone, "time": by_cycle, "merge_plan": merge_plan}
"""Fusions beside ``size``, which is :func:`sim.lowering.buckets.make_buckets`."""


def fuse(
    fusion: str, tensors: Sequence[ReadyTensor], options: FusionOptions, *, expert: bool
) -> list[Bucket]:
    """Buckets of tensors in the order of the backward."""
    return [
        Bucket(
            index, sum(t.elements for t in group), group[-1].layer, expert,
            tuple((t.layer, t.position) for t in group), wait=wait,
        )
        for index, (group, wait) in enumerate(FUSIONS[fusion](tensors, options))
    ]  # fmt: skip


def partitioned(buckets: Sequence[Bucket], piece: float | None, element_bytes: float) -> list[Bucket]:
    """Cut buckets into equal pieces of at most ``piece`` bytes (P3, ByteScheduler)."""
    if piece is None:
        return list(buckets)
    found: list[Bucket] = []
    for bucket in buckets:
        count = max(1, math.ceil(bucket.elements * element_bytes / piece * (1 - 1e-12)))
        part = replace(bucket, elements=bucket.elements / count, share=bucket.share / count)
        found += [replace(part, index=len(found) + number) for number in range(count)]
    return found


def idle_seconds(graph: ExecutionGraph) -> float:
    """Time of a graph of transfers on a network that carries nothing else."""
    capacity = graph.link_table.capacity[graph.links.index] / graph.link_coefficient
    rate = graph.cap.astype(np.float64)
    np.minimum.at(rate, graph.links.rows(), capacity)
    moving = graph.flow_bytes > 0
    seconds = graph.work.astype(np.float64)
    seconds[moving] += graph.flow_bytes[moving] / rate[moving]
    end = np.zeros(graph.num_tasks)
    for task in range(graph.num_tasks):
        before = graph.predecessors.row(task)
        end[task] = seconds[task] + (end[before].max() if len(before) else 0.0)
    return float(end.max(initial=0.0))
