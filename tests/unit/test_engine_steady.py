"""When open-ended runs stop, jitter, and what the window means."""

from __future__ import annotations

import numpy as np
import pytest

from sim.engine import play, steady
from sim.engine.confidence import confidence_interval, has_settled, student_t_90, truncation
from sim.engine.plan import jitter_factors
from sim.graph.execution import ExecutionGraph
from tests.graphs import make_graph, spans


def test_job_that_flushes_needs_one_iteration() -> None:
    graph = make_graph(
        [
            {"name": "forward", "work": 1, "on": ["s"], "after": [("update", 1)]},
            {"name": "reduce", "kind": "transfer", "work": 2, "on": ["c"], "after": ["forward"]},
            {"name": "update", "work": 1, "on": ["s"], "after": ["reduce"], "boundary": True},
        ]
    )
    run = play(graph)
    assert (run.stop, run.num_iterations, run.step_time) == ("recurrence", 1, 4.0)
    assert run.window_iterations == (0, 1)


def test_cycle_of_two_iterations_is_found() -> None:
    """A task that depends on two iterations back alternates: 1 s, then 5 s between boundaries."""
    graph = make_graph(
        [
            {"name": "a", "work": 6, "after": [("a", 2)]},
            {"name": "b", "work": 1, "on": ["s"], "after": ["a"], "boundary": True},
        ]
    )
    run = play(graph)
    assert run.stop == "recurrence"
    gaps = np.diff(run.boundary_times)
    assert len(gaps) >= 2
    assert np.allclose(gaps, np.resize([1.0, 5.0], len(gaps)))
    assert (run.window_iterations[1] - run.window_iterations[0]) % 2 == 0
    assert run.step_time == pytest.approx(3.0, rel=1e-12)


def test_warm_up_is_not_in_the_window() -> None:
    """Producer 2 s, consumer 3 s, one item ahead at most: first iteration 5 s, the following ones 3 s."""
    graph = make_graph(
        [
            {"name": "produce", "work": 2, "on": ["p"], "waits": [("room", -1, 1)]},
            {
                "name": "consume",
                "work": 3,
                "on": ["c"],
                "after": ["produce"],
                "adds": {"room": 1},
                "boundary": True,
            },
        ],
        counters={"room": False},
    )
    run = play(graph)
    assert run.stop == "recurrence"
    assert run.boundary_times[0] == 5.0
    assert run.step_time == pytest.approx(3.0, rel=1e-12)


def test_window_is_complete_what_started_in_it_has_ended() -> None:
    graph = make_graph(
        [
            {"name": "short", "work": 1, "on": ["s"], "boundary": True},
            {"name": "long", "work": 2.5, "on": ["t"], "after": ["short", ("long", 1)]},
        ]
    )
    run = play(graph, limit=40)
    started = run.start < run.window[1]
    assert started.any()
    assert np.isfinite(run.end[started]).all()
    long = {k: span for (name, k), span in spans(graph, run).items() if name == "long"}
    assert max(end for _, end in long.values()) >= run.window[1]


def jittered(cv: float, seed: int = 0) -> ExecutionGraph:
    tasks = [{"name": f"w{i}", "work": 1.0, "on": [f"s{i}"], "after": [("sync", 1)]} for i in range(4)]
    sync = {"name": "sync", "kind": "counter", "after": [f"w{i}" for i in range(4)], "boundary": True}
    return make_graph([*tasks, sync], jitter=cv, seed=seed)


def test_jitter_has_mean_one_and_the_given_variation() -> None:
    tasks = [{"name": f"t{i}", "work": 1} for i in range(2000)]
    graph = make_graph(tasks, jitter=0.3, seed=4)
    drawn = np.concatenate([jitter_factors(graph, k) for k in range(20)])
    assert drawn.mean() == pytest.approx(1.0, abs=0.01)
    assert drawn.std() == pytest.approx(0.3, rel=0.03)
    assert len(np.unique(drawn)) == len(drawn)


def test_jittered_run_stops_at_its_confidence_and_is_reproducible() -> None:
    loose, tight = play(jittered(0.2), confidence=0.05), play(jittered(0.2), confidence=0.005)
    assert loose.stop == tight.stop == "confidence"
    assert tight.num_iterations > loose.num_iterations
    low, high = tight.step_time_interval
    assert low < tight.step_time < high
    assert (high - low) / 2 <= 0.005 * tight.step_time
    again = play(jittered(0.2), confidence=0.005)
    assert np.array_equal(again.end, tight.end)
    assert np.array_equal(again.task, tight.task)
    assert play(jittered(0.2, seed=1), confidence=0.05).makespan != loose.makespan
    # The expected maximum of four lognormals of mean 1, cv 0.2, is about 1.21.
    assert tight.step_time == pytest.approx(1.21, abs=0.02)


def test_limit_of_iterations_is_reported() -> None:
    run = play(jittered(0.5), confidence=1e-6, limit=20)
    assert (run.stop, run.converged, run.num_iterations) == ("limit", False, 20)


def test_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        increments = generator.normal(1.0, 0.1, 81)
        first, half = confidence_interval(np.concatenate([[0.0], np.cumsum(increments)]))
        hits += abs(increments[first:].mean() - 1.0) <= half * increments[first:].mean()
    assert 0.72 < hits / 400 < 0.88


@pytest.mark.parametrize(("freedom", "value"), [(7, 1.41492), (10, 1.37218), (30, 1.31042), (1000, 1.28240)])
def test_student_quantile_against_tables(freedom: int, value: float) -> None:
    """NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2."""
    assert student_t_90(freedom) == pytest.approx(value, abs=2e-4)


def test_transient_is_cut_off_and_a_trend_is_not_accepted() -> None:
    generator = np.random.default_rng(1)
    noise = generator.normal(0.0, 0.02, 80)
    falling = 1.0 + np.exp(-np.arange(80) / 8.0) + noise
    assert 12 <= truncation(falling) <= 40
    cumulative = np.concatenate([[0.0], np.cumsum(falling)])
    first, half = confidence_interval(cumulative)
    mean = falling[first:].mean()
    assert has_settled(cumulative, first, 0.02)
    assert mean == pytest.approx(1.0, abs=0.02)
    assert half < 0.02
    early = np.concatenate([[0.0], np.cumsum(falling[:16])])
    assert not has_settled(early, confidence_interval(early)[0], 0.02)
    flat = np.concatenate([[0.0], np.cumsum(1.0 + noise)])
    assert confidence_interval(flat)[0] in (8, *range(8, 17))
    assert has_settled(flat, 8, 0.02)


def stragglers(factor: float, *, barrier: bool = False) -> ExecutionGraph:
    """Four workers without a barrier, the last ``factor`` times slower; or with one, and jitter."""
    work = [1.0, 1.03, 1.07, factor]
    return make_graph(
        [
            {
                "name": f"w{i}",
                "work": work[i],
                "on": [f"s{i}"],
                "after": [("w3", 1)] if barrier else [],
                "boundary": True,
            }
            for i in range(4)
        ],
        jitter=0.05,
    )


def test_worker_far_behind_does_not_keep_a_run_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady, "MAX_INSTANCES", 1200)
    run = play(stragglers(1e5), confidence=1e-4)
    assert (run.stop, run.converged) == ("limit", False)
    assert run.num_instances < 2000
    assert run.window[1] < 1e5  # not even one step of the slowest
    low, high = run.step_time_interval
    assert low < run.step_time < high
    again = play(stragglers(1e5), confidence=1e-4)
    assert np.array_equal(again.end, run.end)
    soon = play(stragglers(1e5), confidence=0.2)  # good enough is good enough
    assert (soon.stop, soon.converged) == ("confidence", True)
    assert soon.num_instances < run.num_instances
    assert soon.step_time_interval[1] <= 1.2 * soon.step_time


def test_run_over_its_budget_ends_with_the_interval_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady, "MAX_INSTANCES", 40)
    run = play(stragglers(1.0, barrier=True), confidence=1e-9)
    assert run.stop == "limit"
    assert run.num_iterations <= 12
    assert np.isfinite(run.step_time_interval).all()
