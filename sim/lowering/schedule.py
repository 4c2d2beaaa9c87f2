"""Pipeline schedules: the order in which a pipeline rank runs its forwards and backwards.

One small generator per schedule; all are flushes (every micro-batch of a step is done before the optimiser).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Action(NamedTuple):
    """One forward (``F``) or backward (``B``) of a micro-batch through a model chunk."""

    kind: str
    micro_batch: int
    chunk: int


def naive(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Action]:
    """Layer-split model parallelism without pipelining: one micro-batch in the pipe at a time."""
    return [Action(kind, m, 0) for m in range(micro_batches) for kind in "FB"]


def gpipe(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Action]:
    """All forwards, then all backwards (Huang et al., NeurIPS 2019)."""
    return [Action(kind, m, 0) for kind in "FB" for m in range(micro_batches)]


def one_forward_one_backward(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Action]:
    """1F1B with flush (PipeDream-Flush; Narayanan et al., SC 2021)."""
    warm_up = min(stages - stage - 1, micro_batches)
    forwards = [Action("F", m, 0) for m in range(micro_batches)]
    backwards = [Action("B", m, 0) for m in range(micro_batches)]
    return _one_for_one(forwards, backwards, warm_up)


def interleaved(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Action]:
    """Interleaved 1F1B: ``chunks`` model chunks per rank (Narayanan et al., SC 2021, section 2.2)."""
    total = micro_batches * chunks
    forwards = [_interleaved_action("F", k, stages, chunks) for k in range(total)]
    backwards = [_interleaved_action("B", k, stages, chunks) for k in range(total)]
    warm_up = (
        total if micro_batches == stages else min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)
    )
    return _one_for_one(forwards, backwards, warm_up)


def _interleaved_action(kind: str, k: int, stages: int, chunks: int) -> Action:
    chunk = (k // stages) % chunks
    micro_batch = (k // (stages * chunks)) * stages + k % stages
    return Action(kind, micro_batch, chunk if kind == "F" else chunks - 1 - chunk)


def _one_for_one(forwards: list[Action], backwards: list[Action], warm_up: int) -> list[Action]:
    order = forwards[:warm_up]
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[len(forwards) - warm_up :]


SCHEDULES: dict[str, Callable[[int, int, int, int], list[Action]]] = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
}
