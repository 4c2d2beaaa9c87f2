"""Fitting gives back the parameters that made the data; odd curves break nothing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sim.calibrate.collectives import fit, population_of, usable
from sim.calibrate.hold_out import HOLD_OUTS
from sim.calibrate.least_squares import least_squares
from sim.models.library import NAMES, PARAMETERS, variants
from sim.spec.calibration import Calibration
from sim.validate.collectives.board import Board, predictions
from sim.validate.collectives.predict import predict, problem_of
from sim.validate.collectives.rows import Row, read_rows

TRUTH = {name: PARAMETERS[name].guess for name in NAMES} | {
    "launch_latency": 14e-6,
    "simple_efficiency": 0.7,
    "step_ll_latency": 1.1e-6,
    "network_efficiency": 0.6,
}


def made(noise: float = 0.0, systems: int = 1, hosts: int = 1) -> list[Row]:
    """Rows of made-up A100 systems that obey the model exactly, up to log-normal noise."""
    sizes = 2.0 ** np.arange(3, 34)
    table = pd.DataFrame(
        {
            "system": f"s{system}", "hardware": "A100-SXM4-80GB", "gpus": 8 * hosts, "nodes": hosts,
            "intra_link": "NVLink3 NVSwitch", "inter_network": "InfiniBand 8x200G", "library_version": "",
            "collective": "all_reduce", "message_bytes": size, "time_us": 1.0,
        }
        for system in range(systems)
        for size in sizes
    )  # fmt: skip
    rows = read_rows(table)
    times = variants(problem_of([r.case for r in rows if r.case], np.tile(sizes, systems)), TRUTH).best()
    times = times * np.exp(np.random.default_rng(0).normal(0, noise, len(times)))
    table["time_us"] = times * 1e6
    return read_rows(table)


def test_least_squares_finds_a_line_among_outliers() -> None:
    x = np.linspace(0, 1, 50)
    y = 2 + 3 * x
    y[::10] += 30

    def residual(p: np.ndarray) -> np.ndarray:
        return (p[:, :1] + p[:, 1:] * x - y) / 0.1

    found = least_squares(residual, np.zeros(2), np.zeros(2), np.full(2, 100.0), np.full(2, np.inf))
    np.testing.assert_allclose(found.x, [2, 3], atol=0.1)


def test_a_bound_that_binds_does_not_stop_the_rest() -> None:
    def residual(p: np.ndarray) -> np.ndarray:
        return np.stack([p[:, 0] - 5, p[:, 1] - 5], 1)

    found = least_squares(residual, np.zeros(2), np.zeros(2), np.full(2, 100.0), np.array([1.0, np.inf]))
    np.testing.assert_allclose(found.x, [1, 5], atol=1e-2)


@pytest.mark.parametrize("hosts", [1, 4])
def test_a_system_that_obeys_the_model_is_predicted_exactly(hosts: int) -> None:
    rows = made(hosts=hosts)
    fitted = fit(rows)
    found = predict(rows, fitted.calibration("mine", "test"))
    errors = np.abs(found.time / np.array([row.time_s for row in rows]) - 1)
    assert errors.max() < 0.06
    assert fitted.held_out["s0"] < 0.04


def test_fitted_values_come_back_with_intervals_around_them() -> None:
    calibration = fit(made(noise=0.02)).calibration("mine", "test")
    found = calibration.library["nccl-float-nvlink3@s0"]["simple_efficiency"]
    assert found.at("low") <= 0.7 <= found.at("high")
    assert found.value == pytest.approx(0.7, rel=0.05)


def test_left_out_rows_are_covered_by_the_interval() -> None:
    rows = made(noise=0.05)
    kept, left = rows[::2], rows[1::2]
    table = predictions(left, fit(kept).calibration("mine", "test"))
    assert 0.6 <= Board.of(table).systems[0].coverage <= 1.0


def test_curves_that_fall_and_jump_break_nothing() -> None:
    rows = made()
    odd = [
        Row(r.id, r.system, r.operation, r.size_bytes, r.time_s * (4 if i % 7 == 3 else 1), r.case)
        for i, r in enumerate(rows)
    ]
    calibration = fit(odd).calibration("mine", "test")
    found = predict(rows, calibration)
    errors = np.abs(found.time / np.array([row.time_s for row in rows]) - 1)
    assert np.median(errors) < 0.1  # the outliers are ignored
    assert (found.high > found.low).all()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_rows_are_enough(count: int) -> None:
    rows = made()[:count]
    assert np.isfinite(predict(rows, fit(rows).calibration("mine", "test")).time).all()


def test_a_file_gives_its_population_back() -> None:
    fitted = fit(made(systems=2), errors=False)
    again = population_of(fitted.calibration("mine", "test"))
    for key, level in fitted.population.items():
        for name, value in level.items():
            assert again[key][name].mean == pytest.approx(value.mean, abs=1e-3)


def test_pooled_calibrations_know_no_system() -> None:
    calibration = fit(made(systems=2), errors=False).calibration("mine", "test", systems=False)
    assert not any("@" in key for key in calibration.library)


def test_each_hold_out_judges_only_what_it_left_out() -> None:
    rows = made(systems=5) + made(hosts=2)
    for name, number in (("sizes", 1), ("systems", 5)):
        parts = HOLD_OUTS[name](rows)
        assert len(parts) == number
        for part in parts:
            assert 0 < len(part.rows) < len(rows)
    assert HOLD_OUTS["hosts"](rows) == []  # no system with three numbers of hosts


def test_rows_without_a_case_or_time_are_not_used() -> None:
    rows = [*made(), Row("x", "s0", "all_reduce", 8.0, float("nan"), None, "why")]
    assert len(usable(rows)) == len(rows) - 1
    board = Board.of(predictions(rows, Calibration(name="empty", source="test")))
    assert board.skipped == {"why": 1}
    assert board.summary()["rows"] == len(rows) - 1


def test_a_step_in_a_curve_is_kept_beside_the_model() -> None:
    """A library that changes its mind: a smooth model would miss these sizes by 60 %."""
    rows = made(hosts=4)
    jump = [
        Row(
            r.id,
            r.system,
            r.operation,
            r.size_bytes,
            r.time_s * (2.5 if 2**16 <= r.size_bytes < 2**21 else 1),
            r.case,
        )
        for r in rows
    ]
    kept, left = jump[::2], jump[1::2]
    found = predict(left, fit(kept).calibration("mine", "test"))
    errors = np.abs(found.time / np.array([row.time_s for row in left]) - 1)
    assert np.median(errors) < 0.06
    inside = [error for row, error in zip(left, errors, strict=True) if 2**17 <= row.size_bytes < 2**20]
    assert np.median(inside) < 0.15
    assert max(inside) < 0.4


def test_repetitions_that_scatter_count_less() -> None:
    """A size whose repetitions differ by factors does not move the fit of the others."""
    rows = made(hosts=4)
    middle = rows[20]
    noisy = [
        Row(f"n{i}", middle.system, middle.operation, middle.size_bytes, middle.time_s * factor, middle.case)
        for i, factor in enumerate((1.0, 6.0, 20.0))
    ]
    found = predict(rows, fit(rows[:20] + noisy + rows[21:]).calibration("mine", "test"))
    errors = np.abs(found.time / np.array([row.time_s for row in rows]) - 1)
    assert np.median(np.delete(errors, 20)) < 0.05


@pytest.mark.parametrize("repeats", [1, 5])
def test_one_size_only_or_twice_the_same_row(repeats: int) -> None:
    """Tiny and duplicated inputs give a prediction with an interval around it."""
    rows = [made()[12]] * repeats
    found = predict(rows, fit(rows).calibration("mine", "test"))
    assert found.time[0] == pytest.approx(rows[0].time_s, rel=0.1)
    assert (found.low < found.time).all()
    assert (found.time < found.high).all()
