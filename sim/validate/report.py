"""From a file of runs to the board: load, simulate, hold against the measurements."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.catalog import Catalog
from sim.errors import InputError
from sim.spec import Calibration
from sim.validate.baseline import constant_prediction, constant_rates
from sim.validate.board import Line, Scored, board
from sim.validate.rows import FILE, read_rows
from sim.validate.runs import predict_all
from sim.validate.runs_loader import Loaded, Skipped, framework_calibration, load_runs
from sim.validate.spread import interval

COLUMNS = (
    "id",
    "measured_step_time_s",
    "predicted_step_time_s",
    "low_s",
    "high_s",
    "peak_memory_bytes",
    "status",
    "message",
)


@dataclass(frozen=True)
class Report:
    """The board, the scored rows in the order of the file, and the rows that were skipped."""

    lines: list[Line]
    scored: list[Scored]
    skipped: list[Skipped]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "board": [line.to_dict() for line in self.lines],
            "rows": len(self.scored) + len(self.skipped),
            "scored": sum(s.error is not None for s in self.scored),
        }

    def records(self) -> list[dict[str, Any]]:
        """One record per row of the file, in its order; columns as in :data:`COLUMNS`."""
        found = [(s.run.row.line, _record(s)) for s in self.scored]
        found += [
            (s.row.line, {"id": s.row.id, "status": "skipped", "message": s.reason}) for s in self.skipped
        ]
        return [record for _, record in sorted(found, key=lambda item: item[0])]

    def write(self, path: str | Path) -> None:
        """Write the predictions as CSV."""
        try:
            with open(path, "w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
                writer.writeheader()
                writer.writerows(self.records())
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise InputError("--out", f"be writable ({reason})", str(path)) from None


def _record(item: Scored) -> dict[str, Any]:
    prediction = item.prediction
    message = "; ".join(filter(None, [prediction.message, item.run.unmeasured]))
    if item.run.assumed:
        message = "; ".join(filter(None, [message, "assumed: " + " ".join(item.run.assumed)]))
    values = (
        item.run.row.id,
        item.run.measured_s,
        prediction.step_time_s,
        item.low_s,
        item.high_s,
        prediction.peak_memory_bytes,
        prediction.status,
        message,
    )
    return {k: "" if v is None else v for k, v in zip(COLUMNS, values, strict=True)}


def validate_runs(
    measurements: str | Path | None = None,
    *,
    source: str | None = None,
    split: str | None = None,
    calibration: Calibration | None = None,
    catalog: Catalog | None = None,
    workers: int = 2,
    cache: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Simulate the runs of a file and score them.

    Parameters
    ----------
    measurements : path, optional
        CSV file; the catalogue's ``measurements/training_runs.csv`` by default.
    source, split : str, optional
        Only rows whose identifier starts with, or whose source contains, this text; only this split.
    calibration : Calibration, optional
        The default one if absent.
    workers : int
        Processes.
    cache : path, optional
        Folder for finished predictions.
    progress : callable, optional
        Called with (runs done, runs in all).

    Returns
    -------
    Report
    """
    catalog = catalog or Catalog()
    own = catalog.data_file(FILE)
    loaded = load_runs(read_rows(measurements or own), catalog)
    chosen = _chosen(loaded, source, split)
    # The baseline's rates are those of the published runs, which take a while to read.
    published = (
        loaded
        if measurements is None
        else load_runs(read_rows(own) if chosen.runs else (), catalog, fit=False)
    )
    rates = constant_rates(published.runs)
    calibration = calibration or catalog.calibration("default")
    predictions = predict_all(chosen.runs, calibration, workers=workers, cache=cache, progress=progress)
    scored = []
    for run, prediction in zip(chosen.runs, predictions, strict=True):
        mine = framework_calibration(calibration, run.framework)
        device, group = run.cluster.main_device.name, run.row.group
        low, high = interval(prediction, run.assumed, mine, device, source=group) or (None, None)
        scored.append(Scored(run, prediction, low, high, constant_prediction(run, rates)))
    return Report(board(scored, chosen.skipped), scored, chosen.skipped)


def _chosen(loaded: Loaded, source: str | None, split: str | None) -> Loaded:
    def wanted(item: Any) -> bool:
        row = item.row
        named = (
            source is None
            or row.group.lower() == source.lower()
            or source.lower() in row.text("source").lower()
        )
        return named and (split is None or row.split == split)

    runs: Sequence[Any] = [run for run in loaded.runs if wanted(run)]
    skipped = [item for item in loaded.skipped if wanted(item)]
    if not runs and not skipped:
        if not loaded.runs and not loaded.skipped:
            raise InputError("--measurements", "have rows", "a header alone")
        what = ", ".join(f"{k} {v}" for k, v in (("--source", source), ("--split", split)) if v)
        raise InputError("--measurements", "have rows that match", what or "none")
    return Loaded(list(runs), skipped)
