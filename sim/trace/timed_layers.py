"""Layers of traces that say how long things took but not their shapes.

Operators of the host give layers with forward and backward times. Where there are none, kernels are the
layers, all of their time forward: enough to play the step elsewhere, not to cut it differently.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.spec.device import Device
from sim.trace import operators as words
from sim.trace.layer_parts import surrogate_parts
from sim.trace.layer_times import SMALL_GAP, LayerTimes, Union
from sim.trace.model import COMMUNICATION, COMPUTE, FloatArray, IntArray, RankTrace
from sim.trace.operators import Operator
from sim.trace.transformer_structure import Group

WEIGHTED = words.CONVOLUTION | words.PRODUCT | words.EMBEDDING
#: More kernels than this are put together, neighbours first.
MOST_LAYERS = 256


def timed_groups(
    operators: Sequence[Operator], times: LayerTimes, device: Device | None, samples: int
) -> list[Group]:
    """Groups of operators without shapes: their times, and the gradients sent during their backward pass.

    A bucket's bytes belong to the operators with weights whose backward ran since the bucket before it; they
    share them by backward time. Operators without weights count with the one before them.
    """
    elements = _gradients(operators, times)
    groups: list[Group] = []
    anyone = any(operator.name in WEIGHTED for operator in operators)
    pending = np.zeros(5)
    columns = (times.forward_s, times.backward_s, times.forward_host_s, times.backward_host_s)
    for index, operator in enumerate(operators):
        mine = np.array([float(column[index]) for column in columns] + [float(elements[index])])
        mine[2:4] = np.maximum(mine[2:4], mine[:2])
        pending = pending + mine
        weighted = operator.name in WEIGHTED
        if anyone and not weighted and groups:
            groups[-1].parts["_sums"] += mine
            groups[-1].members.append(index)
            pending = np.zeros(5)
        elif weighted or not anyone:
            label = f"{operator.name.removeprefix('aten::')} {index}"
            groups.append(Group({"name": label, "_word": operator.name, "_sums": pending}, [index]))
            pending = np.zeros(5)
    for number, group in enumerate(groups):
        group.block = number
        group.parts = surrogate_parts(group.parts, device, samples)
    return groups


def _gradients(operators: Sequence[Operator], times: LayerTimes) -> np.ndarray:
    """fp32 elements of the gradients of each operator with weights."""
    weighted = np.array([o.name in WEIGHTED for o in operators])
    elements = np.zeros(len(operators))
    bucket: list[int] = []
    for index in range(len(operators) - 1, -1, -1):  # backward goes from the last to the first
        if weighted[index]:
            bucket.append(index)
        sent = float(times.gradient_bytes[index])
        if sent and bucket:
            share = times.backward_s[bucket] + 1e-12
            elements[bucket] += sent / 4 * share / share.sum()
            bucket = []
        elif sent:
            elements[index] += sent / 4
    return elements


def kernel_operators(rank: RankTrace) -> tuple[Operator, ...]:
    """Stand-ins for the operators of a rank without any: one per compute kernel, or run of kernels."""
    rows, _ = _kernels(rank)
    names = rank.timeline.names
    first = rows[_begins(len(rows))]
    number = rank.timeline.integer("name")
    return tuple(Operator(names[number[row]][:60], (), None, "") for row in first.tolist())


def kernel_times(rank: RankTrace) -> LayerTimes | None:
    """Times of :func:`kernel_operators` in a step of typical length; None without compute kernels."""
    rows, window = _kernels(rank)
    if not len(rows):
        return None
    spans = rank.timeline
    start, end = spans["start"], spans["end"]
    moves = spans.integer("kind") == COMMUNICATION
    reached = np.maximum.accumulate(end[rows])
    before = np.concatenate([[start[rows[0]]], reached[:-1]])
    busy = np.maximum(end[rows] - np.maximum(before, start[rows]), 0.0)
    network = Union(start[moves], end[moves])
    gap = np.maximum(start[rows] - before, 0.0)
    waited = np.array(
        [network.length(b, s) if s > b else 0.0 for b, s in zip(before, start[rows], strict=True)]
    )
    begins = _begins(len(rows))
    forward, idle = np.add.reduceat(busy, begins), np.add.reduceat(gap - waited, begins)
    none = np.zeros(len(forward))
    return LayerTimes(
        forward,
        none,
        np.where(idle > SMALL_GAP, forward + idle, 0.0),
        none,
        _sent(rank, window, start[rows[begins]]),
        exposed_s=float(waited.sum()),
        step_s=float(reached[-1] - start[rows[0]]),
        steps=1,
    )


def _kernels(rank: RankTrace) -> tuple[IntArray, tuple[float, float]]:
    """Compute kernels of a step of typical length (of everything without steps), and its window."""
    spans = rank.timeline
    start, kind = spans["start"], spans.integer("kind")
    steps = sorted((s.end - s.start, s.start, s.end) for s in rank.steps if np.isfinite(s.end - s.start))
    window = steps[len(steps) // 2][1:] if steps else (-np.inf, np.inf)
    if not ((kind == COMPUTE) & (start >= window[0]) & (start < window[1])).any():
        window = (-np.inf, np.inf)
    rows = np.flatnonzero((kind == COMPUTE) & (start >= window[0]) & (start < window[1]))
    rows = rows[np.lexsort((spans["end"][rows], start[rows]))]
    timed = (spans["end"][rows] > start[rows]).any()
    return (rows if timed else rows[:0]), window


def _begins(count: int) -> IntArray:
    """First kernel of each layer."""
    return np.unique(np.linspace(0, count, min(count, MOST_LAYERS), endpoint=False).astype(np.int64))


def _sent(rank: RankTrace, window: tuple[float, float], begins: FloatArray) -> FloatArray:
    """Bytes of all-reduces by the layer before them: gradients, as far as the trace can say."""
    sent = np.zeros(len(begins))
    for one in rank.collectives:
        if one.kind == "all_reduce" and one.size_bytes and window[0] <= one.start < window[1]:
            sent[max(int(np.searchsorted(begins, one.start, "right")) - 1, 0)] += one.size_bytes
    return sent
