"""Figures of a results table: the Pareto front and scaling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sim.plot.style import INK, Chart, group_styles, higher_is_better, label, new_chart, scaled, style_axes

if TYPE_CHECKING:
    import pandas as pd


_MAX_NAMES = 5


def pareto_front(table: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """Rows that no other row beats in both columns, ordered by ``x``."""
    rows = table[table[x].notna() & table[y].notna()]
    sign_x, sign_y = (-1.0 if higher_is_better(x) else 1.0), (-1.0 if higher_is_better(y) else 1.0)
    cost_x = sign_x * rows[x].to_numpy(float)
    cost_y = sign_y * rows[y].to_numpy(float)
    order = np.lexsort((cost_y, cost_x))
    best, kept = np.inf, []
    for index in order:
        if cost_y[index] < best:
            best = cost_y[index]
            kept.append(int(index))
    return rows.iloc[kept].sort_values(x, kind="stable")


def pareto(
    table: pd.DataFrame,
    x: str = "peak_memory_bytes",
    y: str = "samples_per_s",
    *,
    by: str | None = None,
    names: str = "strategy",
    title: str = "",
) -> Chart:
    """All ok points of a table and the front of those that nothing beats in both columns.

    Parameters
    ----------
    table : DataFrame
        A sweep's table.
    x, y : str
        Columns; which way is better follows from the column.
    by : str, optional
        Column to group by, one front each; the workload if the table holds several.
    names : str
        Column that names the points of the front.
    title : str
        Heading.
    """
    rows = _ok(table)
    if by is None and "workload" in rows and rows["workload"].nunique() > 1:
        by = "workload"
    groups = list(dict.fromkeys(rows[by])) if by else [""]
    chart, first = new_chart(6.4 if len(groups) == 1 else 4.8 * len(groups), 5.2)
    chart.delaxes(first)
    for position, group in enumerate(groups):
        axes = chart.add_subplot(1, len(groups), position + 1)
        style_axes(axes)
        part = rows[rows[by] == group] if by else rows
        _pareto_panel(axes, part, x, y, names)
        axes.set_title(str(group), fontsize=10, color=INK)
        if position == 0:
            axes.set_ylabel(scaled(y, part[y])[1])
    chart.suptitle(title or f"{_words(y)} against {_words(x)}", fontsize=11, color=INK)
    return chart


def _pareto_panel(axes: object, rows: pd.DataFrame, x: str, y: str, names: str) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    groups = rows["num_devices"] if "num_devices" in rows and x != "num_devices" else rows["status"]
    styles = group_styles(sorted(set(groups)))
    xs, x_label = scaled(x, rows[x])
    ys, _ = scaled(y, rows[y])
    front = pareto_front(rows.assign(_x=xs, _y=ys), x, y)
    for group, (color, marker) in styles.items():
        mask = (groups == group).to_numpy()
        text = f"{group} device{'' if group == 1 else 's'}" if groups.name == "num_devices" else None
        axes.scatter(
            np.array(xs)[mask], np.array(ys)[mask], s=22, c=color, marker=marker, alpha=0.75, lw=0, label=text
        )
    axes.plot(front["_x"], front["_y"], color=INK, lw=1.2, marker="o", ms=7, mfc="none", label="Pareto front")
    for number, (_, row) in enumerate(_spread(front, _MAX_NAMES).iterrows(), start=1):
        at = (row["_x"], row["_y"])
        axes.annotate(str(number), at, xytext=(4, 5), textcoords="offset points", fontsize=8, color=INK)
        axes.plot([], [], " ", label=f"{number}  {row[names]}")
    axes.set_xlabel(x_label)
    axes.set_ylim(0, None)
    axes.margins(x=0.12)
    axes.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def _spread(front: pd.DataFrame, count: int) -> pd.DataFrame:
    """At most ``count`` rows, ends included, so that labels stay readable."""
    if len(front) <= count:
        return front
    return front.iloc[np.unique(np.linspace(0, len(front) - 1, count).round().astype(int))]


def scaling(
    table: pd.DataFrame,
    *,
    x: str = "num_devices",
    y: str = "samples_per_s",
    by: str = "strategy",
    only: Sequence[str] | None = None,
    measured: pd.DataFrame | None = None,
    title: str = "",
) -> Chart:
    """Throughput over the number of devices, one panel per workload, with the ideal line.

    Parameters
    ----------
    table : DataFrame
        A sweep's table.
    by : str
        Column whose values are the lines.
    only : sequence of str, optional
        Lines to draw; by default the best, the middle ones and the worst at the largest size, at most 6.
    measured : DataFrame, optional
        Columns ``workload``, ``num_devices``, ``samples_per_s`` and ``series``: published points.
    """
    rows = _ok(table)
    groups = list(dict.fromkeys(rows["workload"])) if "workload" in rows else [""]
    chart, first = new_chart(6.4 if len(groups) == 1 else 4.6 * len(groups), 4.6)
    chart.delaxes(first)
    for position, group in enumerate(groups):
        axes = chart.add_subplot(1, len(groups), position + 1)
        style_axes(axes)
        part = rows[rows["workload"] == group] if "workload" in rows else rows
        lines = _best_per_size(part, x, y, by)
        chosen = list(only) if only is not None else _representative(lines, x, y, by)
        for name, (color, marker) in group_styles(chosen).items():
            line = lines[lines[by] == name]
            axes.plot(line[x], line[y], color=color, marker=marker, ms=5, lw=1.4, label=str(name))
        _ideal(axes, lines, x, y)
        if measured is not None:
            _measured(axes, measured[measured["workload"] == group], x, y)
        axes.set(xlabel=label(x), title=str(group), xlim=(0, None), ylim=(0, None))
        axes.title.set_fontsize(10)
        axes.legend(fontsize=7, frameon=False)
        if position == 0:
            axes.set_ylabel(label(y))
    chart.suptitle(title or f"{_words(y)} over {_words(x)}", fontsize=11, color=INK)
    return chart


def _words(column: str) -> str:
    """A column's label without its unit."""
    return label(column).split(" (")[0]


def _ok(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["status"] == "ok"] if "status" in table else table.assign(status="ok")


def _best_per_size(rows: pd.DataFrame, x: str, y: str, by: str) -> pd.DataFrame:
    order = rows.sort_values(y, ascending=not higher_is_better(y), kind="stable")
    return order.drop_duplicates([by, x]).sort_values(x, kind="stable")


def _representative(lines: pd.DataFrame, x: str, y: str, by: str, count: int = 6) -> list[str]:
    """Lines spread from best to worst at the largest size."""
    last = lines[lines[x] == lines[x].max()].sort_values(y, ascending=not higher_is_better(y), kind="stable")
    return list(_spread(last, count)[by])


def _ideal(axes: object, lines: pd.DataFrame, x: str, y: str) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    if y != "samples_per_s" or lines.empty:
        return
    smallest = lines[x].min()
    rate = float(lines[lines[x] == smallest][y].max()) / float(smallest)
    largest = float(lines[x].max())
    axes.plot([0, largest], [0, rate * largest], color=INK, lw=0.9, ls=":", label="ideal (linear)")


def _measured(axes: object, rows: pd.DataFrame, x: str, y: str) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    if rows.empty:
        return
    name = "measured" if "series" not in rows else f"measured: {rows['series'].iloc[0]}"
    axes.scatter(
        rows[x], rows[y], s=60, facecolors="none", edgecolors=INK, linewidths=1.4, zorder=5, label=name
    )
