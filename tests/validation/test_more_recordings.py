"""The bars on our own recordings of other networks, each calibrated from its own trace and ping."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from sim.calibrate.recordings import fit
from sim.catalog import default_catalog
from sim.validate.recordings.board import score
from sim.validate.recordings.predict import Predictor
from sim.validate.recordings.rows import Row, read_rows
from sim.validate.recordings.trace import Traces

FOLDER = Path(__file__).parents[2] / "measurements" / "recordings" / "more"
RECORDINGS = sorted(path.name for path in FOLDER.iterdir() if path.is_dir() and path.name != "servers2")


def rows_of(name: str) -> list[Row]:
    return [row for path in sorted((FOLDER / name).glob("*.csv")) for row in read_rows(path)[1]]


def kind(row: Row) -> str:
    if row.kind == "collective":
        if row.text("op") != "all_reduce":
            return ""
        return "small" if row.number_of("bytes") < 2**18 else "large"
    if row.kind == "training":
        return "local" if row.text("algo") == "local" else row.text("hook")
    return row.kind


@pytest.fixture(scope="module")
def found() -> dict[str, list[tuple[float, bool]]]:
    """Relative errors and whether the interval holds, by kind; the servers' fit is that of two workers."""
    base = default_catalog().calibration(("default", "gloo"))
    servers = read_rows(FOLDER / "servers2" / "ps.csv")[1]
    result = defaultdict(list)
    for name in RECORDINGS:
        rows, traces = rows_of(name), Traces([FOLDER / name / "traces"])
        used = [row for row in rows if row.kind != "server"] + servers
        predictor = Predictor(fit(name, used, traces, base).calibration, traces)
        for item in score([row for row in rows if kind(row)], predictor):
            value, low, high = item.prediction.value, item.prediction.low, item.prediction.high
            measured = item.row.measured
            assert value
            assert low
            assert high
            assert measured
            result[kind(item.row)].append((abs(value / measured - 1), low <= measured <= high))
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mean", "worst"),
    [("large", 0.04, 0.08), ("small", 0.08, 0.1), ("none", 0.025, 0.08), ("server", 0.08, 0.08)],
)
def test_bars(found: dict[str, list[tuple[float, bool]]], name: str, mean: float, worst: float) -> None:
    errors = [error for error, _ in found[name]]
    assert len(errors) >= 8
    assert np.mean(errors) < mean
    assert max(errors) < worst


@pytest.mark.slow
def test_intervals_hold(found: dict[str, list[tuple[float, bool]]]) -> None:
    """None of these rows had a part in the intervals."""
    inside = [held for items in found.values() for _, held in items]
    assert 0.75 <= np.mean(inside) <= 0.9
