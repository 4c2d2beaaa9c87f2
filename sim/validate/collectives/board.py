"""The accuracy board of collectives: predictions beside measurements, by system, collective and size band."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from sim.spec.calibration import Calibration
from sim.validate.collectives.predict import predict, spec_sheet_ring
from sim.validate.collectives.rows import Row

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """Scores of a group of rows; errors as fractions of the measured time.

    Attributes
    ----------
    system, operation, band : str
        What the group is of; ``all`` where it is not split.
    rows : int
    mape, median, bias, worst : float
        Mean and median absolute error; mean error; error of largest size, with its sign.
    baseline : float
        Mean absolute error of a ring at datasheet speed.
    coverage, half_width : float
        Part of rows inside the 80 % interval; median half-width over prediction.
    interval_score : float
        Mean of width + 10 x distance outside, over the measured time (Gneiting, Raftery 2007, for 80 %).
    """

    system: str
    operation: str
    band: str
    rows: int
    mape: float
    median: float
    bias: float
    worst: float
    baseline: float
    coverage: float
    half_width: float
    interval_score: float


def predictions(rows: Sequence[Row], calibration: Calibration) -> pd.DataFrame:
    """One line per row: id, measured and predicted time with its interval in microseconds, status, message.

    ``status`` is ``ok``, or ``skipped`` where no cluster can be made of the row; the message says why, or
    what was assumed.
    """
    good = [row for row in rows if row.case is not None]
    found = predict(good, calibration)
    at = {id(row): number for number, row in enumerate(good)}
    lines = []
    for row in rows:
        number = at.get(id(row))
        times = (
            (None,) * 3
            if number is None
            else tuple(1e6 * float(column[number]) for column in (found.time, found.low, found.high))
        )
        algorithm, protocol = ("", "") if number is None else found.variant[number]
        lines.append(
            {
                "id": row.id,
                "measured_time_us": row.time_s * 1e6,
                "predicted_time_us": times[0],
                "low_us": times[1],
                "high_us": times[2],
                "status": "skipped" if row.case is None else "ok",
                "message": row.message,
                "system": row.system,
                "collective": row.operation,
                "size_band": row.band,
                "message_bytes": row.size_bytes,
                "algorithm": algorithm,
                "protocol": protocol,
                "baseline_us": None if row.case is None else 1e6 * spec_sheet_ring(row.case, row.size_bytes),
            }
        )
    return pd.DataFrame(lines)


def score(table: pd.DataFrame) -> list[Line]:
    """Lines by system, then by system and collective, then by system, collective and size band."""
    good = table[(table["status"] == "ok") & (table["measured_time_us"] > 0)]
    levels: tuple[list[str], ...] = (
        ["system"], ["system", "collective"], ["system", "collective", "size_band"],
    )  # fmt: skip
    lines = []
    for columns in levels:
        for key, group in good.groupby(columns, sort=False):
            name = [*(str(part) for part in key), "all", "all"][:3]
            lines.append(_line(name, group))
    return lines


def _line(name: Sequence[str], group: pd.DataFrame) -> Line:
    measured = group["measured_time_us"].to_numpy(float)
    error = group["predicted_time_us"].to_numpy(float) / measured - 1
    low, high = group["low_us"].to_numpy(float), group["high_us"].to_numpy(float)
    outside = np.maximum(low - measured, 0) + np.maximum(measured - high, 0)
    system, operation, band = name
    return Line(
        system=system,
        operation=operation,
        band=band,
        rows=len(group),
        mape=float(np.abs(error).mean()),
        median=float(np.median(np.abs(error))),
        bias=float(error.mean()),
        worst=float(error[np.abs(error).argmax()]),
        baseline=float(np.abs(group["baseline_us"].to_numpy(float) / measured - 1).mean()),
        coverage=float((outside == 0).mean()),
        half_width=float(np.median((high - low) / 2 / group["predicted_time_us"].to_numpy(float))),
        interval_score=float((((high - low) + 10 * outside) / measured).mean()),
    )


@dataclass(frozen=True)
class Board:
    """Scores, and what was not scored.

    Attributes
    ----------
    lines : list of Line
    skipped : dict of str to int
        Rows without a prediction, by reason.
    assumed : dict of str to int
        Rows predicted under an assumption, by assumption.
    """

    lines: list[Line]
    skipped: dict[str, int]
    assumed: dict[str, int]

    @classmethod
    def of(cls, table: pd.DataFrame) -> Board:
        """Score a table of :func:`predictions`."""
        bad = table["status"] != "ok"
        no_time = int((~bad & ~(table["measured_time_us"] > 0)).sum())
        skipped = Counter(table.loc[bad, "message"])
        if no_time:
            skipped["no time to compare with"] = no_time
        assumed = Counter(text for text in table.loc[~bad, "message"] if text)
        return cls(score(table), dict(skipped), dict(assumed))

    @property
    def systems(self) -> list[Line]:
        """Lines of whole systems."""
        return [line for line in self.lines if line.operation == "all"]

    def summary(self) -> dict[str, float]:
        """Over systems: median error, median error of the baseline; over rows: coverage and half-width."""
        systems = self.systems
        if not systems:
            return {"systems": 0, "rows": 0}
        rows = np.array([line.rows for line in systems])

        def over_rows(value: Callable[[Line], float]) -> float:
            return float(np.dot([value(line) for line in systems], rows) / rows.sum())

        return {
            "systems": len(systems),
            "rows": int(rows.sum()),
            "median_mape": float(np.median([line.mape for line in systems])),
            "median_baseline": float(np.median([line.baseline for line in systems])),
            "coverage": over_rows(lambda line: line.coverage),
            "median_half_width": float(np.median([line.half_width for line in systems])),
            "interval_score": over_rows(lambda line: line.interval_score),
        }

    def to_dict(self) -> dict[str, Any]:
        """JSON data."""
        return {
            "summary": self.summary(),
            "lines": [asdict(line) for line in self.lines],
            "skipped": self.skipped,
            "assumed": self.assumed,
        }
