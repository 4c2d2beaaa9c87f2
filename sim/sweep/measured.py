"""Published measurements beside the predictions of a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sim.errors import InputError
from sim.spec import Strategy

if TYPE_CHECKING:
    import pandas as pd

    from sim.sweep.runner import SweepResult

COLUMNS = (
    "workload",
    "cluster",
    "dtype",
    "num_devices",
    "batch_per_device",
    "framework",
    "step_time_s",
    "samples_per_s",
)
_OPEN = {
    "workload", "workload.dtype", "workload.global_batch_size", "workload.batch_per_device",
    "cluster", "cluster.num_hosts", "strategy", "seed", "fidelity",
}  # fmt: skip
"""Fields that name a job; whatever else is changed, the measured cluster or workload is another one."""
_MATCH = ["workload", "cluster", "dtype", "num_devices", "batch_per_device"]


def read_runs(path: str | Path) -> pd.DataFrame:
    """A file of measured training runs, one per row, with at least ``COLUMNS``."""
    import pandas as pd

    try:
        runs = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(
            "measurements", "be a readable CSV file", path, hint=str(error).splitlines()[0]
        ) from None
    missing = [name for name in COLUMNS if name not in runs]
    if missing:
        raise InputError("measurements", f"have the columns {', '.join(missing)}", path)
    return runs


def as_named(result: SweepResult) -> list[bool]:
    """Of every row of a sweep's table, whether its workload and cluster are as named, like those measured."""
    points = zip(result.plan.points, result.results, strict=True)
    done = [{**result.plan.context.base, **point.overrides} for point, found in points if found is not None]
    return [all(name in _OPEN or name.startswith("strategy.") for name in fields) for fields in done]


def beside(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Predictions of a table with the published runs of the same work on the same cluster.

    The published runs are synchronous data parallel with each framework's defaults, so they are held
    against the points of that strategy (every field at its default but ``dp``).

    Returns
    -------
    DataFrame
        One row per matched point: ``workload, cluster, dtype, num_devices, batch_per_device``,
        ``samples_per_s`` (predicted), ``measured_samples_per_s`` (fastest framework), ``framework``,
        ``frameworks`` (how many published it), ``slowest_samples_per_s`` and ``step_time_error`` (predicted
        over measured step time, minus 1).
    """
    rows = table[_is_default(table) & (table["status"] == "ok")].copy()
    batch = rows["samples_per_step"] / rows["num_devices"].astype("float64")
    rows["batch_per_device"] = batch.round().astype("Int64")
    best = runs.sort_values("samples_per_s", ascending=False, kind="stable").groupby(_MATCH, sort=False)
    summary = best.agg(
        measured_samples_per_s=("samples_per_s", "first"),
        framework=("framework", "first"),
        frameworks=("framework", "nunique"),
        slowest_samples_per_s=("samples_per_s", "last"),
    ).reset_index()
    for name in ("workload", "cluster", "dtype"):
        summary[name] = summary[name].astype("string")
        rows[name] = rows[name].astype("string")
    for name in ("num_devices", "batch_per_device"):
        summary[name] = summary[name].astype("Int64")
    joined = rows[[*_MATCH, "samples_per_s"]].merge(summary, on=_MATCH, how="inner")
    joined["step_time_error"] = joined["measured_samples_per_s"] / joined["samples_per_s"] - 1
    return joined


def _is_default(table: pd.DataFrame) -> pd.Series:
    """Rows whose strategy is plain data parallelism in every field."""
    import pandas as pd

    same = pd.Series(True, index=table.index)
    for name, info in Strategy.model_fields.items():
        column, default = f"strategy.{name}", info.get_default()
        if name == "dp" or column not in table:
            continue
        if default is None:
            same &= table[column].isna()
        else:
            wanted = ",".join(default) if isinstance(default, tuple) else default
            same &= (table[column] == wanted).fillna(False).astype(bool)
    return same
