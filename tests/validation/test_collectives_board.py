"""The shipped collective calibration against the shipped measurements: the board must not get worse."""

from __future__ import annotations

import numpy as np
import pytest

from sim.calibrate.hold_out import held_out_predictions
from sim.catalog import default_catalog
from sim.validate.collectives.board import Board, predictions
from sim.validate.collectives.load import load_rows, published


def test_the_shipped_board() -> None:
    """In sample, pooled over systems: 12 % median error against 75 % of a ring at datasheet speed."""
    rows = load_rows([published()])
    table = predictions(rows, default_catalog().calibration(("default", "collectives")))
    board = Board.of(table)
    assert len(rows) == 3095
    assert board.skipped == {"network between hosts not stated": 75}
    summary = board.summary()
    assert summary["median_mape"] < 0.13
    assert summary["median_baseline"] > 0.7
    assert np.isfinite(table.loc[table["status"] == "ok", "predicted_time_us"]).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "median", "large"), [("sizes", 0.06, 0.05), ("systems", 0.20, 0.15), ("hosts", 0.24, 0.33)]
)
def test_rows_no_fit_has_seen(kind: str, median: float, large: float) -> None:
    """Median error over systems on left-out sizes, systems and hosts; 80 % intervals hold about 80 %."""
    table = held_out_predictions(kind, load_rows([published()]))
    summary = Board.of(table).summary()
    assert summary["median_mape"] < median
    assert Board.of(table[table["message_bytes"] >= 1 << 20]).summary()["median_mape"] < large
    assert 0.72 < summary["coverage"] < 0.88
