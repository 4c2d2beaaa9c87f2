"""Results of a sweep -> one pandas table with typed, unit-suffixed columns; Parquet in and out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import InputError
from sim.sweep.columns import MEASURED

if TYPE_CHECKING:
    import pandas as pd

_DTYPE = {"float": "float64", "int": "Int64", "text": "string"}


def row(parameters: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """One flat row: the parameters of the point, then the measured columns."""
    return {**parameters, **{column.name: column.read(result) for column in MEASURED}}


def frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Table of rows, typed alike whatever they hold, with ``scaling_efficiency`` added.

    Two sweeps over the same points give equal tables: no clock, host or path enters.
    """
    import pandas as pd

    measured = {column.name: _DTYPE[column.kind] for column in MEASURED}
    names = list(dict.fromkeys(name for item in rows for name in item))
    names = [n for n in names if n not in measured] + list(measured)
    columns: dict[str, Any] = {}
    for name in names:
        values = [item.get(name) for item in rows]
        columns[name] = _typed(values, measured.get(name))
    table = pd.DataFrame(columns, columns=names)
    at = names.index("mfu") + 1
    table.insert(at, "scaling_efficiency", _scaling_efficiency(table))
    return table


def _typed(values: list[Any], dtype: str | None) -> Any:
    import pandas as pd

    if dtype is not None:
        if dtype == "float64":
            return pd.Series([float("nan") if v is None else float(v) for v in values], dtype=dtype)
        return pd.Series([pd.NA if v is None else v for v in values], dtype=dtype)
    present = [v for v in values if v is not None]
    if present and all(isinstance(v, bool) for v in present):
        return pd.Series(values, dtype="boolean")
    if present and all(isinstance(v, int) and not isinstance(v, bool) for v in present):
        return pd.Series(values, dtype="Int64")
    if present and all(isinstance(v, int | float) and not isinstance(v, bool) for v in present):
        return pd.Series([float("nan") if v is None else float(v) for v in values], dtype="float64")
    return pd.Series([pd.NA if v is None else _as_text(v) for v in values], dtype="string")


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _scaling_efficiency(table: pd.DataFrame) -> Any:
    """Throughput per device over the best one of the same workload at its fewest devices."""
    import pandas as pd

    per_device = table["samples_per_s"] / table["num_devices"].astype("float64")
    keys = [n for n in table.columns if n == "workload" or n.startswith("workload.")]
    keys = [n for n in keys if n not in ("workload.global_batch_size", "workload.batch_per_device")]
    group = (
        table[keys].astype("string").fillna("").agg("|".join, axis=1) if keys else pd.Series("", table.index)
    )
    result = pd.Series(float("nan"), index=table.index)
    for _, index in per_device.dropna().groupby(group).groups.items():
        devices = table.loc[index, "num_devices"]
        best = per_device.loc[index][devices == devices.min()].max()
        result.loc[index] = per_device.loc[index] / best
    return result


def write_parquet(table: pd.DataFrame, path: str | Path) -> None:
    """Write a table whole or not at all; a full disk is one `InputError` and leaves the old file."""
    target = Path(path)
    partial = target.with_name(target.name + ".partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        table.to_parquet(partial, index=False)
        os.replace(partial, target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InputError("--out", f"be writable ({error.strerror or error})", target) from error


def read_parquet(path: str | Path) -> pd.DataFrame:
    """Read a table written by ``write_parquet``."""
    import pandas as pd

    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise InputError(str(path), "be a Parquet table", hint=str(error).splitlines()[0]) from None


def ranked(table: pd.DataFrame, objective: str, better: str, by: Sequence[str] = ()) -> pd.DataFrame:
    """The ok rows, best first (within groups of ``by``); ties keep the plan's order."""
    ok = table[table["status"] == "ok"]
    ok = ok[ok[objective].notna()]
    return ok.sort_values([*by, objective], ascending=[*(True for _ in by), better == "min"], kind="stable")
