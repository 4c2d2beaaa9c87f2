"""Samples, bytes and staleness of updates, and the way to a user's target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.analysis.convergence import epochs_to_target, interpolate, time_to_target
from sim.analysis.simulate import simulate
from sim.catalog import load_convergence
from sim.errors import InputError
from sim.spec.convergence import Convergence
from tests.random_jobs import DENSE
from tests.scenarios import even_workload, ideal, scenario, serving, serving_host

WORKERS, PARAMETERS, BATCH = 8, 1e6, 2
MODEL = even_workload(4, 0.01, 0.02, parameters=PARAMETERS, batch=BATCH)
RACK = serving(serving_host(1e9), WORKERS)
BYTES = 4 * PARAMETERS
SERVERS = {"state": "ps_dedicated", "num_servers": 2}


def updates(**strategy: Any) -> dict[str, Any]:
    one = scenario(MODEL, RACK, calibration=ideal(server_speed=0.05), **strategy)
    return simulate(one).updates


@pytest.mark.parametrize(
    ("strategy", "samples", "moved", "stale"),
    [
        ({}, WORKERS * BATCH, 2 * 7 / 8 * BYTES, 0),
        ({"synchronization": "delayed", "delay": 2}, WORKERS * BATCH, 2 * 7 / 8 * BYTES, 2),
        ({"synchronization": "local", "local_steps": 5}, 5 * WORKERS * BATCH, 2 * 7 / 8 * BYTES, 0),
        (SERVERS, WORKERS * BATCH, 2 * BYTES, 0),
        (SERVERS | {"synchronization": "asp"}, BATCH, 2 * BYTES, WORKERS - 1),
        (SERVERS | {"synchronization": "asp", "local_steps": 3}, 3 * BATCH, 2 * BYTES, WORKERS - 1),
        (SERVERS | {"synchronization": "soft_sync", "gradients_per_update": 2}, 2 * BATCH, 2 * BYTES, 3),
        # Four replicas of two stages: each sees the updates of three others, also where the last micro-batch
        # pulled nothing itself.
        (SERVERS | {"synchronization": "asp", "pp": 2, "micro_batch_size": 1}, BATCH, BYTES, 3),
        (SERVERS | {"synchronization": "soft_sync", "gradients_per_update": 2, "pp": 2}, 2 * BATCH, BYTES, 1),
        ({"topology": "graph"}, WORKERS * BATCH, 2 * BYTES, 0),
        ({"topology": "graph", "graph_degree": 1}, WORKERS * BATCH, BYTES, 0),
    ],
)
def test_samples_bytes_and_staleness(
    strategy: dict[str, Any], samples: float, moved: float, stale: float
) -> None:
    found = updates(**strategy)
    assert found["samples_per_update"] == pytest.approx(samples)
    assert found["effective_batch_size"] == pytest.approx(samples / strategy.get("local_steps", 1))
    assert found["bytes_per_update_per_worker"] == pytest.approx(moved)
    assert found["staleness_mean"] == pytest.approx(stale, abs=0.3)
    assert sum(found["staleness_histogram"].values()) == pytest.approx(1)
    assert found["dropped_gradient_share"] == 0


@pytest.mark.parametrize("slow", [None, {0: 1.2}])
def test_tensor_parallel_ranks_are_no_workers_of_their_own(slow: dict[int, float] | None) -> None:
    """Four replicas of two ranks, alike or not: each sees the updates of the three others."""
    fields = {**SERVERS, "synchronization": "asp", "tp": 2}
    found = simulate(
        scenario(DENSE, RACK, calibration=ideal(server_speed=0.05), slow_ranks=slow, **fields)
    ).updates
    assert found["staleness_mean"] == pytest.approx(3, abs=0.4)


def test_backup_workers_drop_their_share() -> None:
    one = scenario(
        MODEL, RACK, calibration=ideal(server_speed=0.05), slow_ranks={0: 1.5}, synchronization="backup",
        backup_workers=1, **SERVERS,
    )  # fmt: skip
    found = simulate(one).updates
    assert found["dropped_gradient_share"] == pytest.approx(1 / WORKERS, rel=0.2)
    assert found["samples_per_update"] == pytest.approx((WORKERS - 1) * BATCH)


CURVE = Convergence(
    samples_per_epoch=1e6,
    epochs={100: 90, 1000: 90, 10000: 120},
    staleness={7: 1.5},
    local_steps={16: 1.2},
    compression={"topk": 1.1},
)


def test_interpolation_is_logarithmic_and_knows_its_ends() -> None:
    assert interpolate(CURVE.epochs, 100) == 90
    assert interpolate(CURVE.epochs, 10000) == 120
    assert interpolate(CURVE.epochs, 10**3.5) == pytest.approx(105)
    assert interpolate(CURVE.epochs, 99) is None
    assert interpolate(CURVE.epochs, 10001) is None


def test_factors_multiply() -> None:
    ask = {"batch": 100, "staleness": 0, "local_steps": 1, "compression": "none"}
    assert epochs_to_target(CURVE, **ask) == (90, "")
    assert epochs_to_target(CURVE, **ask | {"staleness": 7, "compression": "topk"})[0] == pytest.approx(148.5)
    assert epochs_to_target(CURVE, **ask | {"local_steps": 4})[0] == pytest.approx(99)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": 50}, "an effective batch of 50; epochs are given from 100 to 10000"),
        ({"staleness": 20}, "staleness of 20; factors are given up to 7"),
        ({"compression": "onebit"}, "compression onebit; factors are given for topk"),
    ],
)
def test_nothing_is_extrapolated(change: dict[str, Any], words: str) -> None:
    ask = {"batch": 100, "staleness": 0, "local_steps": 1, "compression": "none"}
    assert epochs_to_target(CURVE, **ask | change) == (None, words)


def test_time_and_cost_to_target() -> None:
    one = scenario(MODEL, RACK).model_copy(
        update={"convergence": Convergence(samples_per_epoch=1e4, epochs={1: 10, 100: 10})}
    )
    result = simulate(one)
    assert result.convergence["time_to_target_s"] == pytest.approx(1e5 / result.samples_per_s)
    assert result.convergence["cost_to_target"] == pytest.approx(1e5 * result.price_per_sample)
    unknown = one.model_copy(update={"convergence": Convergence(samples_per_epoch=1e4, epochs={1: 10})})
    result = simulate(unknown)
    assert result.convergence == {}
    assert "does not cover an effective batch of 16" in result.warnings[-1]
    assert simulate(scenario(MODEL, RACK)).convergence == {}


def test_curves_are_read_from_yaml_and_csv(tmp_path: Path) -> None:
    table = tmp_path / "curve.csv"
    table.write_text(
        "quantity,at,value\nsamples_per_epoch,,1000000\nepochs,100,90\nepochs,1000,90\nepochs,10000,120\n"
        "staleness,7,1.5\nlocal_steps,16,1.2\ncompression,topk,1.1\n"
    )
    text = tmp_path / "curve.yaml"
    text.write_text(
        "samples_per_epoch: 1000000\nepochs: {100: 90, 1000: 90, 10000: 120}\nstaleness: {7: 1.5}\n"
        "local_steps: {16: 1.2}\ncompression: {topk: 1.1}\n"
    )
    assert load_convergence(table) == load_convergence(text) == CURVE


def test_no_time_to_target_without_the_staleness_that_the_curve_asks_for() -> None:
    known = {"effective_batch_size": 1000.0, "local_steps": 1}
    ask = {"samples_per_s": 10.0, "price_per_sample": None, "compression": "none"}
    assert time_to_target(CURVE, known | {"staleness_mean": None}, **ask) == (
        {}, "how stale updates are, which this job does not say",
    )  # fmt: skip
    assert time_to_target(CURVE, known | {"staleness_mean": 0.0}, **ask)[0]["epochs_to_target"] == 90
    careless = CURVE.model_copy(update={"staleness": {}})
    assert time_to_target(careless, known | {"staleness_mean": None}, **ask)[0]["epochs_to_target"] == 90


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("samples_per_epoch: 10\n", "convergence.epochs"),
        ("samples_per_epoch: 10\nepochs: {1: 0}\n", "convergence.epochs"),
        ("samples_per_epoch: 10\nepochs: {1: 2}\nstaleness: {0: 2}\n", "must have factor 1"),
    ],
)
def test_bad_curves_are_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "curve.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        load_convergence(file)
    assert "\n" not in str(caught.value)
