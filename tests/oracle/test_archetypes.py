"""The six archetypes of Langer et al. (TPDS 2020) behave as the survey says, by their presets."""

from __future__ import annotations

from typing import Any

import pytest

from sim.analysis.result import Result
from sim.analysis.simulate import simulate
from sim.catalog import Catalog
from sim.taxonomy import ARCHETYPES
from tests.scenarios import even_workload, ideal, scenario, serving, serving_host

CATALOG = Catalog()
COMPUTE, PARAMETERS, BANDWIDTH = 0.03, 1e6, 1e9
"""Seconds of a step's forward and backward, parameters (fp32), bytes/s of a host's port."""
MODEL = even_workload(3, 0.01, 0.02, parameters=PARAMETERS)
GRADIENTS = 4 * MODEL.num_parameters
SLOW = 3.0


def play(name: str, workers: int = 8, slow: bool = False, **changes: Any) -> Result:
    fields = CATALOG.strategy(name).model_dump(exclude_defaults=True) | changes
    rack = serving(serving_host(BANDWIDTH), workers)
    perturbed = {0: SLOW} if slow else None
    result = simulate(
        scenario(MODEL, rack, calibration=ideal(server_speed=1.0), slow_ranks=perturbed, **fields)
    )
    assert result.ok, result.message
    return result


def step(name: str, workers: int = 8, slow: bool = False, **changes: Any) -> float:
    found = play(name, workers, slow, **changes).step_time_s
    assert found is not None
    return found


def loss(name: str, workers: int = 8) -> float:
    """By how much one worker that takes three times as long stretches the step."""
    return step(name, workers, slow=True) / step(name, workers)


def test_all_six_have_presets() -> None:
    assert len(ARCHETYPES) == 6
    assert all(len(names) == 2 for names in ARCHETYPES.values())


@pytest.mark.parametrize("name", ["tf_ps_sync", "sparknet", "horovod", "pytorch_ddp"])
def test_synchronous_systems_are_as_fast_as_their_slowest_worker(name: str) -> None:
    extra = (SLOW - 1) * COMPUTE
    assert step(name, slow=True) - step(name) > 0.8 * extra


def test_one_server_moves_every_workers_model() -> None:
    """n models into the server's port and n out, every 50 steps."""
    few, many = step("sparknet", 4), step("sparknet", 16)
    assert 50 * (many - few) == pytest.approx(2 * 12 * GRADIENTS / BANDWIDTH, rel=0.1)


@pytest.mark.parametrize("name", ["petuum_bosen", "rudra"])
def test_bounded_servers_lie_between_synchronous_and_asynchronous(name: str) -> None:
    free = {"gradients_per_update": 1, "staleness": 0, "reads": "lazy"}
    bsp = step(name, slow=True, synchronization="bsp", **free)
    asp = step(name, slow=True, synchronization="asp", **free)
    assert asp * 0.999 <= step(name, slow=True) <= bsp * 1.001
    assert asp < 0.6 * bsp


def test_a_bound_of_zero_is_synchronous() -> None:
    fields: dict[str, Any] = {"slow": True, "staleness": 0, "reads": "lazy"}
    zero, bsp = step("petuum_bosen", **fields), step("petuum_bosen", synchronization="bsp", **fields)
    assert zero == pytest.approx(bsp, rel=0.01)


@pytest.mark.parametrize("name", ["distbelief_downpour", "easgd", "ad_psgd", "gosgd"])
def test_asynchronous_systems_lose_one_workers_share_only(name: str) -> None:
    """Seven workers keep their pace: 8 / (7 + 1/3) at most, where a barrier costs 3."""
    assert loss(name) == pytest.approx(8 / (7 + 1 / SLOW), rel=0.06)


def test_downpour_is_n_minus_1_updates_stale() -> None:
    assert play("distbelief_downpour").updates["staleness_mean"] == pytest.approx(7, rel=0.05)


@pytest.mark.parametrize("name", ["horovod", "pytorch_ddp"])
def test_a_ring_costs_two_models_whatever_the_number_of_workers(name: str) -> None:
    """2 (n - 1) / n of the gradients through each port, all exposed without overlap; no latency."""
    for workers in (4, 8, 16):
        exposed = step(name, workers, overlap=False, collective="ring") - COMPUTE
        share = 2 * (workers - 1) / workers
        assert exposed == pytest.approx(share * GRADIENTS / BANDWIDTH, rel=0.02)


def test_local_steps_divide_the_exchange() -> None:
    every = step("local_sgd", local_steps=1) - COMPUTE
    assert step("local_sgd") - COMPUTE == pytest.approx(every / 8, rel=1e-3)


def test_a_bound_between_neighbours_holds_everybody_back_in_the_end() -> None:
    """Hop: no barrier, and yet nobody outruns the slowest by more than its bound per neighbour."""
    assert 2.0 < loss("hop") <= SLOW * 1.001
