"""What is stored: one CSV per kind of job, with the columns that ``validate recordings`` reads."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sim.errors import InputError

COLUMNS: dict[str, tuple[str, ...]] = {
    "coll": (
        "tag", "op", "world", "rate_mbit", "delay_us", "bytes", "reps", "min_us", "q25_us", "median_us",
        "q75_us", "max_us", "start_skew_us", "cv", "cpu_busy", "loadavg",
    ),
    "ddp": (
        "tag", "mode", "algo", "model", "world", "rate_mbit", "delay_us", "bucket_mb", "hook", "k", "scale",
        "slow", "params", "steps", "median_step_us", "mean_step_us", "q25_us", "q75_us", "cv", "steps_per_s",
        "cpu_busy", "loadavg",
    ),
    "ps": (
        "tag", "algo", "s", "model", "workers", "rate_mbit", "delay_us", "slow", "seconds", "params",
        "compute_us", "updates_per_s", "median_iter_us", "median_comm_us", "cv", "mean_staleness",
        "per_worker_iters_per_s", "cpu_busy", "loadavg",
    ),
    "pipe": (
        "tag", "sched", "model", "stages", "microbatches", "rate_mbit", "delay_us", "act_bytes",
        "stage_fwd_us", "stage_bwd_us", "median_step_us", "mean_step_us", "cv", "cpu_busy", "loadavg",
    ),
    "fsdp": (
        "tag", "mode", "model", "world", "rate_mbit", "delay_us", "groups", "reshard", "params",
        "median_step_us", "mean_step_us", "cv", "cpu_busy", "loadavg",
    ),
}  # fmt: skip
"""Times in microseconds of one clock; rates in Mbit/s of a host's cable; delays one way of one cable."""


def append(folder: Path, kind: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Append rows to the folder's table of a kind; returns its path.

    Raises
    ------
    InputError
        If it cannot be written, or is a table of other columns.
    """
    path, columns = folder / f"{kind}.csv", COLUMNS[kind]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        if not new:
            with open(path, newline="", encoding="utf-8") as file:
                found = next(csv.reader(file), [])
            if found != list(columns):
                raise InputError("--output", f"have a {kind}.csv of our own columns", str(path))
        with open(path, "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerows([{key: _text(value) for key, value in row.items()} for row in rows])
    except OSError as error:
        raise InputError("--output", f"be writable ({(error.strerror or '').lower()})", str(path)) from None
    return path


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
