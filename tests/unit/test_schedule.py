"""Pipeline schedules: every action once, forwards before backwards, bounded in-flight micro-batches."""

from __future__ import annotations

import pytest

from sim.lowering.schedule import SCHEDULES, Action


def play(name: str, stages: int, micro_batches: int, chunks: int, forward: float, backward: float) -> float:
    """Makespan of a schedule with free communication: each rank runs its list in order."""
    orders = [SCHEDULES[name](s, stages, micro_batches, chunks) for s in range(stages)]
    finish: dict[tuple[int, Action], float] = {}
    clock, position = [0.0] * stages, [0] * stages
    while any(p < len(order) for p, order in zip(position, orders, strict=True)):
        before = list(position)
        for s in range(stages):
            while position[s] < len(orders[s]):
                action = orders[s][position[s]]
                needs = _needs(s, action, stages, chunks)
                if any(key not in finish for key in needs):
                    break
                start = max([clock[s], *(finish[key] for key in needs)])
                clock[s] = start + (forward if action.kind == "F" else backward)
                finish[s, action] = clock[s]
                position[s] += 1
        assert position != before, "schedule waits for itself"
    return max(clock)


def _needs(stage: int, action: Action, stages: int, chunks: int) -> list[tuple[int, Action]]:
    kind, m, chunk = action
    if kind == "F":
        if stage > 0:
            return [(stage - 1, Action("F", m, chunk))]
        return [(stages - 1, Action("F", m, chunk - 1))] if chunk else []
    if stage < stages - 1:
        return [(stage + 1, Action("B", m, chunk))]
    return [(0, Action("B", m, chunk + 1))] if chunk < chunks - 1 else [(stage, Action("F", m, chunk))]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 2), (4, 8), (4, 4), (8, 16), (3, 9)])
def test_every_action_once_and_forward_first(name: str, stages: int, micro_batches: int) -> None:
    chunks = 2 if name == "interleaved" else 1
    for stage in range(stages):
        order = SCHEDULES[name](stage, stages, micro_batches, chunks)
        assert len(order) == len(set(order)) == 2 * micro_batches * chunks
        for action in order:
            if action.kind == "B":
                assert order.index(action._replace(kind="F")) < order.index(action)


@pytest.mark.parametrize(
    ("name", "chunks", "makespan"),
    [("gpipe", 1, 33.0), ("1f1b", 1, 33.0), ("interleaved", 2, 28.5), ("naive", 1, 96.0)],
)
def test_bubble_algebra(name: str, chunks: int, makespan: float) -> None:
    """p=4, m=8, F=1, B=2: (m + p - 1) * 3 = 33; interleaved (m + (p - 1) / v) * 3 = 28.5; naive m * p * 3."""
    assert play(name, 4, 8, chunks, 1 / chunks, 2 / chunks) == pytest.approx(makespan)


def test_in_flight_micro_batches_on_the_first_stage() -> None:
    """GPipe keeps all m = 8 activations, 1F1B at most p = 4 (Narayanan et al. 2021)."""

    def peak(name: str) -> int:
        level = highest = 0
        for action in SCHEDULES[name](0, 4, 8, 1):
            level += 1 if action.kind == "F" else -1
            highest = max(highest, level)
        return highest

    assert (peak("gpipe"), peak("1f1b")) == (8, 4)
