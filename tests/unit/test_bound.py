"""The bound on a step never exceeds it, and is as tight as it can be known to be."""

from __future__ import annotations

from typing import Any

import pytest

from sim.analysis.bound import step_bound
from sim.analysis.simulate import simulate
from sim.lowering import lower
from sim.spec import Scenario, Strategy
from sim.spec.scenario import Perturbation
from tests.clusters import cluster, plain_host
from tests.scenarios import even_workload, ideal, scenario, serving, serving_host


def bound_and_step(*, parameters: float = 1e3, ranks: int = 4, **fields: Any) -> tuple[float, float]:
    model = even_workload(4, 1.0, 2.0, parameters=parameters)
    one = scenario(model, serving(serving_host(), ranks), **fields)
    return step_bound(lower(one), tight=True), simulate(one).step_time_s


@pytest.mark.parametrize(("schedule", "makespan"), [("gpipe", 33.0), ("1f1b", 33.0), ("naive", 96.0)])
def test_a_pipeline_is_bounded_by_its_longest_chain(schedule: str, makespan: float) -> None:
    model = even_workload(8, 4.0, 8.0, batch=8)
    graph = lower(scenario(model, cluster(plain_host(), 4), pp=4, micro_batch_size=1, schedule=schedule))
    assert step_bound(graph) == pytest.approx(24)
    assert step_bound(graph, tight=True) == pytest.approx(makespan)


def test_steps_that_overlap_are_not_bounded_by_the_way_through_one() -> None:
    """Asynchronous pushes and pulls of different workers overlap: rates count, not the critical path."""
    bound, step = bound_and_step(parameters=25e6, state="ps_dedicated", synchronization="asp")
    assert bound <= step


def test_unsynchronised_workers_are_bounded_by_the_sum_of_their_rates() -> None:
    """The slowest worker's 12 s bound nothing: the others go on. 4 / (3 / 3 s + 1 / 12 s)."""
    bound, step = bound_and_step(state="ps_dedicated", synchronization="asp", slow_ranks={0: 4.0})
    assert bound == pytest.approx(4 / (3 / 3 + 1 / 12), rel=1e-6)
    assert bound == pytest.approx(step, rel=0.02)


def test_a_full_port_bounds_unsynchronised_workers() -> None:
    """Four workers push 2 GB each through a port of 1 GB/s."""
    bound, step = bound_and_step(parameters=5e8, state="ps_dedicated", synchronization="asp")
    assert bound == pytest.approx(8)
    assert bound <= step


def test_what_may_be_skipped_bounds_nothing() -> None:
    fields = {"synchronization": "backup", "backup_workers": 1, "slow_ranks": {0: 4.0}}
    bound, step = bound_and_step(state="ps_dedicated", **fields)
    assert (bound, step) == (0.0, pytest.approx(3, rel=1e-3))


def test_local_steps_share_the_bound_of_an_iteration() -> None:
    bound, step = bound_and_step(parameters=1e8, synchronization="local", local_steps=4, collective="ring")
    assert bound == pytest.approx(step)


def random_run(model: Any, where: Any, seed: int, fidelity: str, random: dict[str, float], **strategy: Any):
    return simulate(
        Scenario(
            workload=model,
            cluster=where,
            strategy=Strategy(**strategy),
            calibration=ideal(),
            perturbation=Perturbation(**random),
            fidelity=fidelity,
            confidence=0.1,
            seed=seed,
        )
    )


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_of_a_random_run_is_that_of_its_sample(seed: int) -> None:
    """A device on its own is never idle: however its sample fell out, the bound is the step."""
    result = random_run(even_workload(4, 1.0, 2.0), cluster(plain_host(), 1), seed, "fluid", {"jitter": 0.5})
    assert result.bound_s == pytest.approx(result.step_time_s, rel=1e-9)
    assert result.bound_s != pytest.approx(3.0, rel=1e-6)


@pytest.mark.parametrize("fidelity", ["fluid", "analytic"])
@pytest.mark.parametrize(
    "strategy",
    [
        {"collective": "ring"},
        {"synchronization": "local", "local_steps": 4},
        {"state": "ps_dedicated"},
        {"state": "ps_dedicated", "synchronization": "asp"},
        {"state": "ps_dedicated", "synchronization": "ssp", "staleness": 2},
    ],
)
@pytest.mark.parametrize("random", [{"jitter": 0.4}, {"slow_probability": 0.1, "slow_factor": 3.0}])
def test_the_bound_never_exceeds_the_step_as_played(
    fidelity: str, strategy: dict[str, Any], random: dict[str, float]
) -> None:
    model = even_workload(4, 1.0, 2.0, parameters=1e8)
    for seed in range(3):
        result = random_run(model, serving(serving_host(), 4), seed, fidelity, random, **strategy)
        assert 0 < result.bound_s <= result.step_time_s * (1 + 1e-9)
