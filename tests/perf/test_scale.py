"""What the work of other simulators costs here; see ``tests.perf.works``.

Counts are gated exactly or nearly so. Seconds are gated through the bare SimPy callbacks that would take as
long in the same process: 900,000 of them are one second of the machine the limits were stated for.
"""

from __future__ import annotations

import time

import pytest

from sim.engine import play
from tests.perf.bare import bare_callback_loop, desynchronised
from tests.perf.works import Measurement, fresh

CALLBACKS_PER_SECOND = 900_000


def within(found: Measurement, seconds: float) -> bool:
    return found.callbacks <= seconds * CALLBACKS_PER_SECOND


def test_ring_of_4096_takes_less_than_50_ms() -> None:
    found = fresh("ring 4,096")
    assert (found.tasks, found.devices) == (2, 1)
    assert found.events <= 2
    assert within(found, 0.05), found


def test_hierarchical_on_4096_takes_less_than_50_ms() -> None:
    found = fresh("hierarchical 8 x 512")
    assert (found.tasks, found.devices) == (4, 1)
    assert within(found, 0.05), found


def test_a_thousand_finish_times_take_less_than_0_3_s() -> None:
    found = fresh("incast of 1,000 sizes")
    assert found.events <= 2 * 1000
    assert within(found, 0.3), found


def test_gpt_like_data_parallel_on_512_takes_less_than_100_ms() -> None:
    found = fresh("GPT-like on 512")
    assert found.devices == 1
    assert found.tasks <= 25 * 3 + 5  # forward, backward and all-reduce of every layer
    assert within(found, 0.1), found


@pytest.mark.slow
def test_65536_devices_cost_little_more_than_8192() -> None:
    """The graphs are equally large and play alike; only laying out, routing and folding ranks grows.

    Eight times the ranks take 1.6 to 1.8 times as long, 0.7 instead of 0.4 s: what does not grow has been
    halved twice, and with it the ratio's denominator.
    """
    pairs = [(fresh("GPT-3 on 8,192"), fresh("GPT-3 on 65,536")) for _ in range(2)]  # in turn
    small, large = pairs[0]
    (
        seconds_small,
        seconds_large,
    ) = (  # the best of two, part by part: neighbours on the machine only slow down
        min(m.lower_s for m in each) + min(m.play_s for m in each) for each in zip(*pairs, strict=True)
    )
    assert large.tasks == small.tasks <= 50_000
    assert large.devices == small.devices <= 2 * 16  # two classes per pipeline stage: a tree has two roots
    assert large.events == pytest.approx(small.events, rel=0.01)
    assert small.events <= 60_000
    assert any(within(first, 1.0) for first, _ in pairs), pairs
    assert seconds_large <= 2 * seconds_small, pairs
    assert any(within(second, 1.0) for _, second in pairs), pairs


@pytest.mark.parametrize("length", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_desynchronised_ranks_cost_at_most_4_bare_callbacks(length: int) -> None:
    """4,096 ranks of dependent computations of random length, each played as a task of its own."""
    graph = desynchronised(4096, length, neighbours=False)
    bare, engine = float("inf"), float("inf")
    for _ in range(2):
        start = time.process_time()
        bare_callback_loop(4096, 4096 * length)
        middle = time.process_time()
        run = play(graph, contract=False)
        bare, engine = min(bare, middle - start), min(engine, time.process_time() - middle)
    assert run.num_events <= 4096 * length + 1
    ends = graph.work.reshape(length, 4096).sum(0)
    assert run.makespan == pytest.approx(ends.max(), rel=1e-12)
    assert engine <= 4 * bare, (engine, bare)
