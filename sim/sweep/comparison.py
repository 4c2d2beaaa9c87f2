"""The survey's question: all valid combinations of some dimensions, ranked, with what each value costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sim.spec import Sweep
from sim.sweep.columns import direction
from sim.taxonomy.select import Choice, choices

if TYPE_CHECKING:
    import pandas as pd

    from sim.sweep.plan import Plan

FloatArray = npt.NDArray[np.float64]
PREFIX = "dimension."
_GROUP = ("workload", "cluster", "num_devices")


def taxonomy_axes(sweep: Sweep) -> tuple[Sweep, dict[str, list[Choice]]]:
    """The sweep with ``axes: taxonomy`` written out, and the choices its axes stand for."""
    chosen = choices(sweep.dimensions)
    axes = {name: [dict(choice.settings) for choice in values] for name, values in chosen.items()}
    return sweep.model_copy(update={"axes": axes, "dimensions": {}}), chosen


def with_labels(plan: Plan, chosen: Mapping[str, Sequence[Choice]]) -> Plan:
    """The plan with one column per dimension that names the value of each point."""
    points = []
    for point in plan.points:
        labels = {f"{PREFIX}{name}": _label(values, point.overrides) for name, values in chosen.items()}
        points.append(replace(point, parameters={**point.parameters, **labels}))
    return replace(plan, points=tuple(points))


def _label(values: Sequence[Choice], fields: Mapping[str, Any]) -> str | None:
    fitting = [choice for choice in values if choice.matches(fields)]
    return max(fitting, key=lambda choice: len(choice.settings)).label if fitting else None


def dimensions_of(table: pd.DataFrame) -> list[str]:
    """Names of the dimensions a table compares."""
    return [name.removeprefix(PREFIX) for name in table.columns if name.startswith(PREFIX)]


def main_effects(table: pd.DataFrame, objective: str = "samples_per_s") -> pd.DataFrame:
    """What each value of each dimension costs or gains, averaged over the others.

    Not every combination is valid, so plain means would compare values in different company. Instead
    ``log(objective) = mean + sum over dimensions of effect[value]`` is fitted by least squares (two-way
    analysis of variance without interactions; Montgomery, Design and Analysis of Experiments, chapter 5),
    where the effects of a dimension, weighted by their number of points, add up to zero.

    Parameters
    ----------
    table : DataFrame
        A comparison's results, with ``dimension.*`` columns.
    objective : str
        Column of positive numbers.

    Returns
    -------
    DataFrame
        Per workload, cluster and number of devices: ``dimension, value, points, effect`` (relative change
        of the objective: 0.1 is 10 % more than the average of the dimension), ``best`` (the best
        objective with this value) and ``r_squared`` of the fit: what effects that add explain at all.
    """
    import pandas as pd

    names = dimensions_of(table)
    ok = table[(table["status"] == "ok") & (table[objective] > 0)]
    parts = []
    for key, group in ok.groupby(list(_GROUP), sort=False, observed=True):
        part = _effects(group, names, objective)
        for name, value in zip(_GROUP, key, strict=True):
            part[name] = pd.Series([value] * len(part), index=part.index)
        parts.append(part)
    columns = [*_GROUP, "dimension", "value", "points", "effect", "best", "r_squared"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def _effects(rows: pd.DataFrame, names: Sequence[str], objective: str) -> pd.DataFrame:
    import pandas as pd

    logs = np.log(rows[objective].to_numpy(float))
    blocks, values = [], []
    for name in names:
        column = rows[f"{PREFIX}{name}"].astype("string").fillna("-")
        for value in dict.fromkeys(column):
            blocks.append((column == value).to_numpy(float))
            values.append((name, str(value)))
    design: FloatArray = np.column_stack([np.ones(len(rows)), *blocks]).astype(np.float64)
    # The minimum-norm solution; the shift below makes the effects of each dimension add up to zero.
    solution = np.linalg.lstsq(design, logs, rcond=None)[0]
    residual = logs - design @ solution
    spread = float(((logs - logs.mean()) ** 2).sum())
    explained = 1.0 - float((residual**2).sum()) / spread if spread > 0 else 1.0
    effects = pd.DataFrame(values, columns=["dimension", "value"])
    effects["points"] = [int(block.sum()) for block in blocks]
    effects["log"] = solution[1:]
    weighted = (effects["log"] * effects["points"]).groupby(effects["dimension"]).transform("sum")
    centre = weighted / effects["points"].groupby(effects["dimension"]).transform("sum")
    effects["effect"] = np.expm1(effects["log"] - centre)
    numbers = rows[objective].to_numpy(float)
    best = max if direction(objective) == "max" else min
    effects["best"] = [float(best(numbers[block > 0])) for block in blocks]
    effects["r_squared"] = explained
    return effects.drop(columns="log")
