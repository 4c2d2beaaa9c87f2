"""The accuracy board of recordings: errors by kind and subset, beside two baselines; PRED.csv."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sim.errors import InputError
from sim.validate.recordings.intervals import SMALL
from sim.validate.recordings.predict import Prediction, Predictor
from sim.validate.recordings.rows import Row


@dataclass(frozen=True)
class Scored:
    """A row and its prediction."""

    row: Row
    prediction: Prediction

    def error(self, value: float | None) -> float | None:
        """Relative error of a value against what the row measured."""
        measured = self.row.measured
        return None if value is None or not measured else value / measured - 1


@dataclass(frozen=True)
class Line:
    """Errors of one subset as fractions of what was measured; None without a measured row.

    Attributes
    ----------
    kind, subset : str
    rows, scored : int
    mape, bias, worst : float
        Mean absolute, mean and largest error (with its sign).
    inside : float
        Part of rows inside the 80 % interval.
    bandwidth_only, one_latency : float
        Mean absolute error of the baselines.
    """

    kind: str
    subset: str
    rows: int
    scored: int
    mape: float | None
    bias: float | None
    worst: float | None
    inside: float | None
    bandwidth_only: float | None
    one_latency: float | None

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def score(rows: Iterable[Row], predictor: Predictor) -> list[Scored]:
    """Predict every row; equal configurations are simulated once."""
    known: dict[tuple[tuple[str, str], ...], Prediction] = {}
    found = []
    for row in rows:
        key = tuple(sorted((k, v) for k, v in row.cells.items() if k not in _RESULTS))
        if key not in known:
            known[key] = predictor.predict(row)
        found.append(Scored(row, known[key]))
    return found


def board(scored: Sequence[Scored]) -> list[Line]:
    """One line per kind and subset."""
    groups: dict[tuple[str, str], list[Scored]] = {}
    for item in scored:
        for subset in ("all", _subset(item.row)):
            groups.setdefault((item.row.kind, subset), []).append(item)
    return [_line(kind, subset, items) for (kind, subset), items in groups.items()]


def _line(kind: str, subset: str, items: Sequence[Scored]) -> Line:
    def errors(value: Callable[[Prediction], float | None]) -> list[float]:
        found = (item.error(value(item.prediction)) for item in items)
        return [error for error in found if error is not None]

    def mean(values: Sequence[float]) -> float | None:
        return float(np.mean(values)) if values else None

    own = errors(lambda p: p.value)
    inside = [
        float(item.prediction.low <= item.row.measured <= item.prediction.high)
        for item in items
        if item.row.measured and item.prediction.low is not None and item.prediction.high is not None
    ]
    return Line(
        kind=kind,
        subset=subset,
        rows=len(items),
        scored=len(own),
        mape=mean(np.abs(own).tolist()),
        bias=mean(own),
        worst=max(own, key=abs) if own else None,
        inside=mean(inside),
        bandwidth_only=mean(np.abs(errors(lambda p: p.bandwidth_only)).tolist()),
        one_latency=mean(np.abs(errors(lambda p: p.one_latency)).tolist()),
    )


def _subset(row: Row) -> str:
    """What a row tests: its tag without the number of a repetition, and operation and size, or rule."""
    setting = row.text("tag").rstrip("0123456789")
    if row.kind == "collective":
        size = "small" if row.number_of("bytes", 0.0) < SMALL else "large"
        return f"{row.text('op')} {size} ({setting})"
    if row.kind == "training":
        extra = row.text("algo", "ddp") + (" real compute" if row.text("mode") == "real" else "")
        return f"{extra} ({setting})"
    return f"{row.text('algo') or row.text('sched') or row.text('mode')} ({setting})"


_RESULTS = {
    "reps", "min_us", "q25_us", "median_us", "q75_us", "max_us", "start_skew_us", "cv", "cpu_busy",
    "cpu_steal", "loadavg", "steps", "median_step_us", "mean_step_us", "steps_per_s", "updates_per_s",
    "median_iter_us", "median_comm_us", "mean_staleness", "per_worker_iters_per_s", "tx_bytes_per_step",
}  # fmt: skip
"""Columns that were measured: they do not tell configurations apart."""


def write_predictions(path: Path, columns: Sequence[str], scored: Sequence[Scored]) -> None:
    """Write the rows as they were read, in order, with what was predicted for them."""
    unit = "predicted_updates_per_s" if any(s.row.kind == "server" for s in scored) else "predicted_us"
    added = [unit, "low_us", "high_us", "status", "message"]
    if unit != "predicted_us":
        added[1:3] = ["low_updates_per_s", "high_updates_per_s"]
    own = [column for column in columns if column not in added]
    try:
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*own, *added])
            for item in scored:
                writer.writerow([*(item.row.cells.get(c, "") for c in own), *_cells(item)])
    except OSError as error:
        raise InputError("--out", f"be writable ({(error.strerror or '').lower()})", str(path)) from None


def _cells(item: Scored) -> list[str]:
    given, scale = item.prediction, 1.0 if item.row.kind == "server" else 1e6
    numbers = ["" if v is None else f"{v * scale:.6g}" for v in (given.value, given.low, given.high)]
    return [*numbers, given.status, given.message]
