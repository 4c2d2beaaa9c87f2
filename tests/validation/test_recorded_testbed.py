"""The bars on a real testbed (gloo between network namespaces), where its recordings are at hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sim.calibrate.recordings import fit
from sim.catalog import default_catalog
from sim.validate.recordings.predict import Predictor
from sim.validate.recordings.rows import Row, read_rows
from sim.validate.recordings.trace import Traces

FOLDER = Path(__file__).parents[2] / ".." / "shared" / "testbed"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="no recordings of the testbed")


def rows(name: str) -> list[Row]:
    return read_rows(FOLDER / f"{name}.csv")[1]


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    """Calibrated from traces, one ping and one server run."""
    traces = Traces([FOLDER / "traces"])
    base = default_catalog().calibration(("default", "gloo"))
    return Predictor(fit("testbed", rows("coll") + rows("ps"), traces, base).calibration, traces)


def errors(predictor: Predictor, name: str, keep: Callable[[Row], bool]) -> np.ndarray:
    found = [predictor.value(row) / (row.measured or 1) - 1 for row in rows(name) if keep(row)]
    assert found
    return np.abs(found)


def is_emulated(row: Row, algorithm: str = "ddp") -> bool:
    return row.text("mode") == "replay" and row.text("algo") == algorithm and row.text("hook") == "none"


def test_all_reduce(predictor: Predictor) -> None:
    def reduces(row: Row) -> bool:
        return row.text("op") == "all_reduce" and row.text("tag").startswith("fluid")

    large = errors(predictor, "coll", lambda row: reduces(row) and row.number_of("bytes") >= 262144)
    small = errors(predictor, "coll", lambda row: reduces(row) and row.number_of("bytes") < 262144)
    assert large.mean() < 0.04
    assert small.mean() < 0.08


def test_all_reduce_where_one_line_serves_everything(predictor: Predictor) -> None:
    def reduces(row: Row) -> bool:
        return row.text("op") == "all_reduce" and row.text("tag") == "fifo"

    large = errors(predictor, "coll", lambda row: reduces(row) and row.number_of("bytes") >= 262144)
    assert large.mean() < 0.04
    assert large.max() < 0.1


def test_steps_that_compute_on_the_cores_that_move_their_bytes(predictor: Predictor) -> None:
    found = errors(predictor, "ddp", lambda row: "quiet-real2" in row.text("tag"))
    assert found.mean() < 0.025
    assert found.max() < 0.08


def test_data_parallel_steps(predictor: Predictor) -> None:
    found = errors(predictor, "ddp", lambda row: is_emulated(row) and "nort" not in row.text("tag"))
    assert found.mean() < 0.025
    assert found.max() < 0.08


def test_a_slow_rank(predictor: Predictor) -> None:
    assert errors(predictor, "ddp", lambda row: "hetero" in row.text("tag")).mean() < 0.03


def test_local_sgd(predictor: Predictor) -> None:
    assert errors(predictor, "ddp", lambda row: is_emulated(row, "local")).mean() < 0.02


def test_compression_hooks(predictor: Predictor) -> None:
    assert errors(predictor, "ddp", lambda row: row.text("hook") not in ("none", "noop")).mean() < 0.05


def test_pipelines(predictor: Predictor) -> None:
    assert errors(predictor, "pipe", lambda row: True).mean() < 0.04


def test_parameter_servers(predictor: Predictor) -> None:
    assert errors(predictor, "ps", lambda row: True).max() < 0.08


def test_fully_sharded(predictor: Predictor) -> None:
    assert errors(predictor, "fsdp", lambda row: True).max() < 0.05
