"""What every pipeline schedule must keep: all work once, no circular waits, bounded memory, its bubble."""

from __future__ import annotations

import pytest

from sim.models.schedules import SCHEDULES, Action, Order, Schedule, Slot, peak, staleness
from sim.spec import strategy as spec
from sim.spec.names import names_of
from sim.taxonomy.schedules import SCHEDULES as FACTS

FLUSHING = [name for name, facts in FACTS.items() if facts.flushes]
SHAPES = [(2, 5), (3, 9), (4, 4), (4, 8), (4, 10), (6, 12), (8, 16)]
Cost = dict[str, float]


def chunks_of(name: str) -> int:
    return FACTS[name].chunks or 3


def fits(name: str, p: int, m: int) -> bool:
    facts = FACTS[name]
    return (
        not (facts.even_stages and p % 2)
        and not (facts.even_micro_batches and m % 2)
        and not (facts.whole_rounds and m % p)
        and m >= facts.micro_batches_of_stages * p
    )


CASES = [(name, p, m) for name in SCHEDULES for p, m in SHAPES if fits(name, p, m)]


class Played:
    """Every rank works through its order, each slot blocking, with messages that take no time."""

    def __init__(self, name: str, p: int, m: int, cost: Cost, *, periods: int = 1) -> None:
        self.schedule: Schedule = SCHEDULES[name]
        self.p, self.cost, v = p, cost, chunks_of(name)
        self.last = (p if self.schedule.placement == "bidirectional" else p * v) - 1
        self.orders: list[Order] = [self.schedule.order(s, p, m, v) for s in range(p)]
        self.end: dict[tuple[str, int, int, int], float] = {}
        self.spans: list[tuple[float, float]] = []
        self.periods = periods
        self._play()

    def _needs(self, stage: int, action: Action, period: int) -> tuple[str, int, int, int] | None:
        """What must have ended: (kind, place in the model, micro-batch, step)."""
        place = self.schedule.virtual_stage(stage, action.chunk, self.p)
        m, step = action.micro_batch, period + action.ahead
        if action.kind == "F":
            return ("F", place - 1, m, step) if place else None
        if action.kind == "W":
            return ("B", place, m, step)
        if action.kind == "U":
            return None
        return ("B", place + 1, m, step) if place < self.last else ("F", place, m, step)

    def _play(self) -> None:
        queue: list[list[tuple[int, Slot]]] = [
            [(period, slot) for period in range(self.periods) for slot in order] for order in self.orders
        ]
        clock, first = [0.0] * self.p, [None] * self.p  # type: list[float], list[Any]
        while any(queue):
            before = [len(each) for each in queue]
            for stage, waiting in enumerate(queue):
                while waiting:
                    period, slot = waiting[0]
                    needs = [self._needs(stage, action, period) for action in slot]
                    # The steady state of a schedule without a flush begins with a full pipeline.
                    known = [n for n in needs if n is not None and not self._assumed(n)]
                    if any(n not in self.end for n in known):
                        break
                    start = max([clock[stage], *(self.end[n] for n in known)])
                    first[stage] = start if first[stage] is None else first[stage]
                    clock[stage] = start + sum(self.cost.get(action.kind, 0.0) for action in slot)
                    for action in slot:
                        place = self.schedule.virtual_stage(stage, action.chunk, self.p)
                        kind = "B" if action.kind == "I" else action.kind
                        self.end[kind, place, action.micro_batch, period + action.ahead] = clock[stage]
                    waiting.pop(0)
            assert [len(each) for each in queue] != before, "the schedule waits for itself"
        self.spans = list(zip(first, clock, strict=True))

    def _assumed(self, need: tuple[str, int, int, int]) -> bool:
        kind, place, m, step = need
        if kind != "F" or self.schedule.placement != "loop":
            return False
        order = self.orders[place % self.p]
        ahead = [a.ahead for slot in order for a in slot if a.kind == "F" and a.micro_batch == m]
        return step < ahead[0]

    @property
    def makespan(self) -> float:
        return max(end for _, end in self.spans)


def cost(forward: float, inputs: float, weights: float, name: str) -> Cost:
    """Seconds of an action on one chunk."""
    v = chunks_of(name)
    both = inputs + weights
    return {kind: each / v for kind, each in zip("FIWB", (forward, inputs, weights, both), strict=True)}


def test_names_agree() -> None:
    assert list(SCHEDULES) == list(FACTS) == list(names_of(spec.Schedule))
    for name, facts in FACTS.items():
        kinds = {action.kind for slot in SCHEDULES[name].order(0, 4, 8, 2) for action in slot}
        assert facts.split_backward == ("W" in kinds)


@pytest.mark.parametrize(("name", "p", "m"), CASES)
def test_every_micro_batch_once_and_in_a_possible_order(name: str, p: int, m: int) -> None:
    schedule, v = SCHEDULES[name], chunks_of(name)
    forwards: dict[tuple[int, int], int] = {}
    for stage in range(p):
        order = [action for slot in schedule.order(stage, p, m, v) for action in slot if action.kind != "U"]
        assert all(len(slot) in (1, 2) for slot in schedule.order(stage, p, m, v))
        place = {(a.kind, a.micro_batch, a.chunk): i for i, a in enumerate(order)}
        assert len(place) == len(order)
        for a in order:
            if a.kind == "F":
                key = (schedule.virtual_stage(stage, a.chunk, p), a.micro_batch)
                forwards[key] = forwards.get(key, 0) + 1
                whole, halves = (
                    ("B", *a[1:3]) in place,
                    [(kind, *a[1:3]) in place for kind in ("I", "W")],
                )
                assert (whole and not any(halves)) or (all(halves) and not whole)
                if not a.ahead:
                    later = place["B" if whole else "I", a.micro_batch, a.chunk]
                    assert place["F", a.micro_batch, a.chunk] < later
                    assert whole or later < place["W", a.micro_batch, a.chunk]
    places = p if schedule.placement == "bidirectional" else p * v
    assert forwards == {(place, each): 1 for place in range(places) for each in range(m)}
    Played(name, p, m, cost(1, 1, 1, name), periods=1 if FACTS[name].flushes else 3)


@pytest.mark.parametrize(("name", "p", "m"), CASES)
def test_activations_in_flight_are_bounded(name: str, p: int, m: int) -> None:
    schedule, v = SCHEDULES[name], chunks_of(name)
    chunks = schedule.num_chunks(v)
    for stage in range(p):
        held = peak(schedule.order(stage, p, m, v), [1.0] * chunks, [1.0] * chunks) / chunks
        assert held <= schedule.in_flight(stage, p, m, v) + 1e-9


@pytest.mark.parametrize(("name", "p", "m"), [case for case in CASES if case[0] in FLUSHING])
def test_bubble_is_the_published_one(name: str, p: int, m: int) -> None:
    """With F = I = W and free messages; with too few micro-batches a pipeline does not fill up."""
    schedule, v = SCHEDULES[name], chunks_of(name)
    played = Played(name, p, m, cost(1.0, 1.0, 1.0, name))
    expected = schedule.bubble(p, m, v, 1.0, 1.0, 1.0)
    if FACTS[name].global_norm:
        idle = played.makespan - 3.0 * m
    else:  # a rank's next step begins when it is done itself
        idle = max(end - start for start, end in played.spans) - 3.0 * m
    if name == "chimera":  # published for backwards as long as forwards, and whole units of p
        expected = schedule.bubble(p, m, v, 1.0, 0.5, 0.5)
        idle = Played(name, p, m, {"F": 1.0, "B": 1.0}).makespan - 2.0 * m
    if (name in ("zb_h2", "zb_v") and m < 2 * p - 1) or (name == "chimera" and m % p):
        assert idle >= expected
    else:
        assert idle == pytest.approx(expected)


@pytest.mark.parametrize("name", ["zb_h1", "zb_h2"])
@pytest.mark.parametrize("times", [(10.0, 12.0, 8.0), (8.0, 9.0, 7.0)])
def test_zero_bubble_formulas_for_unequal_times(name: str, times: tuple[float, float, float]) -> None:
    """(p-1)(F+B-W) and (p-1)(F+B-2W), Qi et al., table 2."""
    p, m = 4, 12
    played = Played(name, p, m, cost(*times, name))
    idle = max(end - start for start, end in played.spans) - m * sum(times)
    assert idle == pytest.approx(SCHEDULES[name].bubble(p, m, 1, *times))


def test_zero_bubble_gains_in_the_right_order() -> None:
    """Qi et al., figure 1: 1F1B > ZB-H1 > ZB-H2 at zero, H1 with a third of the bubble."""
    idle = {}
    for name in ("1f1b", "zb_h1", "zb_h2", "zb_v"):
        played = Played(name, 8, 32, cost(1.0, 1.0, 1.0, name))
        idle[name] = max(end - start for start, end in played.spans) - 3 * 32
    assert idle["zb_h1"] == pytest.approx(idle["1f1b"] / 3)
    assert idle["zb_h2"] == pytest.approx(0, abs=1e-9)
    assert idle["zb_v"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("name", "p", "m"), [case for case in CASES if case[0] not in FLUSHING])
def test_schedules_without_a_flush_have_no_bubble(name: str, p: int, m: int) -> None:
    long, short = (Played(name, p, m, cost(1.0, 1.0, 1.0, name), periods=n) for n in (12, 9))
    assert (long.makespan - short.makespan) / 3 == pytest.approx(3.0 * m)


@pytest.mark.parametrize(("p", "m"), [(4, 1), (4, 4), (8, 1), (8, 3)])
def test_staleness_of_pipelines_without_a_flush(p: int, m: int) -> None:
    """PipeDream: p - 1 - s updates if each micro-batch makes one; 2BW: one, whatever the stage."""
    for stage in range(p):
        found = staleness(SCHEDULES["pipedream_async"].order(stage, p, m, 1), 0)
        if m == 1:
            assert found == [p - 1 - stage]
        assert sum(found) == p - 1 - stage
        if m >= p:
            assert staleness(SCHEDULES["2bw"].order(stage, p, m, 1), 1) == [1] * m


def test_zero_bubble_h1_keeps_the_memory_of_1f1b() -> None:
    """Every rank holds as many as 1F1B's first; H2 about twice as many (Qi et al., table 2)."""
    for stage in range(4):
        for name, most in (("zb_h1", 4), ("zb_h2", 7), ("zb_v", 4)):
            chunks = chunks_of(name)
            order = SCHEDULES[name].order(stage, 4, 16, chunks)
            assert peak(order, [1.0] * chunks, [1.0] * chunks) / chunks <= most
    assert peak(SCHEDULES["zb_h2"].order(0, 4, 16, 1), [1.0], [1.0]) == 7
