"""Schedules that finish every micro-batch of a step, whole backwards, before the update."""

from __future__ import annotations

from sim.models.schedules.base import Action, Kind, Order, Schedule, single


def naive(stage: int, stages: int, micro_batches: int, chunks: int) -> Order:
    """Layer-split model parallelism without pipelining: one micro-batch in the pipe at a time."""
    both: tuple[Kind, Kind] = ("F", "B")
    return single([Action(kind, m, 0) for m in range(micro_batches) for kind in both])


def gpipe(stage: int, stages: int, micro_batches: int, chunks: int) -> Order:
    """All forwards, then all backwards (Huang et al., NeurIPS 2019)."""
    both: tuple[Kind, Kind] = ("F", "B")
    return single([Action(kind, m, 0) for kind in both for m in range(micro_batches)])


def one_forward_one_backward(stage: int, stages: int, micro_batches: int, chunks: int) -> Order:
    """1F1B with flush (PipeDream-Flush; DAPPLE's early backward; Narayanan et al., SC 2021)."""
    warm_up = min(stages - stage - 1, micro_batches)
    forwards = [Action("F", m, 0) for m in range(micro_batches)]
    backwards = [Action("B", m, 0) for m in range(micro_batches)]
    return _one_for_one(forwards, backwards, warm_up)


def interleaved(stage: int, stages: int, micro_batches: int, chunks: int) -> Order:
    """Interleaved 1F1B: ``chunks`` model chunks per rank (Narayanan et al., SC 2021, section 2.2)."""
    total = micro_batches * chunks
    forwards = [_interleaved_action("F", k, stages, chunks) for k in range(total)]
    backwards = [_interleaved_action("B", k, stages, chunks) for k in range(total)]
    warm_up = (
        total if micro_batches == stages else min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)
    )
    return _one_for_one(forwards, backwards, warm_up)


def _interleaved_action(kind: Kind, k: int, stages: int, chunks: int) -> Action:
    chunk = (k // stages) % chunks
    micro_batch = (k // (stages * chunks)) * stages + k % stages
    return Action(kind, micro_batch, chunk if kind == "F" else chunks - 1 - chunk)


def _one_for_one(forwards: list[Action], backwards: list[Action], warm_up: int) -> Order:
    order = forwards[:warm_up]
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        order += [forward, backward]
    return single(order + backwards[len(forwards) - warm_up :])


def _interleaved_in_flight(stage: int, stages: int, micro_batches: int, chunks: int) -> float:
    if micro_batches == stages:  # Megatron-LM then runs all forwards first
        return float(stages)
    return min(float(micro_batches), (2 * (stages - 1 - stage) + (chunks - 1) * stages + 1) / chunks)


def _flush_bubble(p: int, m: int, v: int, forward: float, inputs: float, weights: float) -> float:
    """(p - 1) / v forwards and backwards: (p-1)/(m+p-1) of the step without chunks."""
    return (p - 1) / v * (forward + inputs + weights)


NAIVE = Schedule(
    order=naive,
    in_flight=lambda stage, p, m, v: 1.0,
    bubble=lambda p, m, v, f, i, w: (p - 1) * m * (f + i + w),
)
GPIPE = Schedule(order=gpipe, in_flight=lambda stage, p, m, v: float(m), bubble=_flush_bubble)
ONE_FORWARD_ONE_BACKWARD = Schedule(
    order=one_forward_one_backward,
    in_flight=lambda stage, p, m, v: float(min(m, p - stage)),
    bubble=_flush_bubble,
)
INTERLEAVED = Schedule(order=interleaved, in_flight=_interleaved_in_flight, bubble=_flush_bubble)

SCHEDULES: dict[str, Schedule] = {
    "naive": NAIVE,
    "gpipe": GPIPE,
    "1f1b": ONE_FORWARD_ONE_BACKWARD,
    "interleaved": INTERLEAVED,
}
