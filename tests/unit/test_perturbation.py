"""Speeds of ranks: constant, lognormal, and a slow state that comes and goes."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from sim.analysis.simulate import simulate
from sim.engine.perturbation import slow_workers
from sim.lowering import make_plan
from sim.spec.scenario import Perturbation
from tests.scenarios import even_workload, scenario, serving, serving_host

MODEL = even_workload(2, 0.01, 0.02, parameters=100.0)
RACK = serving(serving_host(1e9), 8)


def test_slow_states_are_a_markov_chain() -> None:
    ranks = tuple(range(64))
    states = np.array([slow_workers(3, ranks, 0.05, 0.2, step) for step in range(400)])
    assert states.mean() == pytest.approx(0.05 / 0.25, abs=0.02)
    entered = states[1:] & ~states[:-1]
    assert entered.sum() / (~states[:-1]).sum() == pytest.approx(0.05, abs=0.01)
    left = ~states[1:] & states[:-1]
    assert left.sum() / states[:-1].sum() == pytest.approx(0.2, abs=0.03)
    assert (slow_workers(3, ranks, 0.05, 0.2, 150) == states[150]).all()


def test_speeds_spread_once_per_rank() -> None:
    spread = Perturbation(speed_spread=0.3, slow_ranks={2: 2.0})
    one = scenario(MODEL, RACK).model_copy(update={"perturbation": spread})
    factors = make_plan(one).speed_factors
    plain = make_plan(one.model_copy(update={"perturbation": Perturbation(speed_spread=0.3)})).speed_factors
    assert factors[2] == pytest.approx(2 * plain[2])
    assert len(set(factors)) == 8
    assert simulate(one).step_time_s == pytest.approx(0.03 * factors.max(), rel=1e-3)


def test_a_barrier_waits_for_whoever_is_slow() -> None:
    """Eight ranks, each slow for one step in ten on its own: few steps have nobody slow."""
    given = Perturbation(slow_probability=0.1, recovery_probability=0.9, slow_factor=3)
    one = scenario(MODEL, RACK).model_copy(update={"perturbation": given, "confidence": 0.03})
    nobody = 0.9**8
    expected = 0.03 * (nobody + 3 * (1 - nobody))
    assert simulate(one).step_time_s == pytest.approx(expected, rel=0.08)


@pytest.mark.parametrize(
    "fields",
    [{"slow_factor": 1e300}, {"slow_ranks": {0: 1e300}}, {"slow_probability": 1}, {"speed_spread": 2}],
)
def test_extremes_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Perturbation.model_validate(fields)
