"""The picture of a comparison: what each value of each dimension costs or gains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.plot.style import INK, PALETTE, Chart, new_chart, style_axes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_GROUP = ["workload", "cluster", "num_devices"]
_GAIN, _COST = PALETTE[2], PALETTE[5]


def main_effects(effects: pd.DataFrame, *, objective: str = "throughput", title: str = "") -> Chart:
    """Bars to the right (gain) and left (cost) of zero, one per value, grouped by dimension.

    Parameters
    ----------
    effects : DataFrame
        As :func:`sim.sweep.comparison.main_effects` returns it; one panel per workload, cluster and size.
    objective : str
        What the percents are of, for the axis label.
    title : str
        Heading.
    """
    groups = list(effects.groupby(_GROUP, sort=False, observed=True))
    rows = max((len(part) + part["dimension"].nunique() for _, part in groups), default=2)
    chart, first = new_chart(max(6.4, 5.4 * len(groups)), 1.2 + 0.24 * rows)
    chart.delaxes(first)
    for position, ((workload, cluster, devices), part) in enumerate(groups):
        axes = chart.add_subplot(1, len(groups), position + 1)
        style_axes(axes)
        _panel(axes, part)
        axes.set_title(f"{workload} on {devices} devices of {cluster}", fontsize=10, color=INK)
        axes.set_xlabel(f"{objective} against the average of the dimension (%)")
    chart.suptitle(
        title or "What each value costs or gains, averaged over the others", fontsize=11, color=INK
    )
    return chart


def _panel(axes: Axes, part: pd.DataFrame) -> None:
    labels, places, place = [], [], 0.0
    for name, values in part.groupby("dimension", sort=False):
        labels.append(str(name))
        places.append(place)
        for row in values.sort_values("effect", ascending=False, kind="stable").to_dict("records"):
            place += 1.0
            percent = 100 * float(row["effect"])
            axes.barh(place, percent, height=0.75, color=_GAIN if percent >= 0 else _COST)
            labels.append(f"{row['value']}  (n={row['points']})")
            places.append(place)
        place += 1.6
    axes.set_yticks(places, labels, fontsize=8)
    dimensions = set(part["dimension"])
    for tick, text in zip(axes.get_yticklabels(), labels, strict=True):
        if text in dimensions:
            tick.set_fontweight("bold")
    axes.axvline(0, color=INK, lw=0.8)
    axes.invert_yaxis()
    limit = float(np.abs(100 * part["effect"]).max()) if len(part) else 1.0
    axes.set_xlim(-1.08 * limit - 1, 1.08 * limit + 1)
