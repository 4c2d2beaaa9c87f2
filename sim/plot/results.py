"""Figures of single results: where the time goes, where the memory goes, and the timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sim.plot.style import CAUSE_COLORS, INK, PALETTE, PART_COLORS, Chart, new_chart

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_PARTS = ("compute_s", "optimizer_s", "data_s", "exposed_comm_s", "wait_s", "bubble_s")


class _Result(Protocol):
    def to_dict(self) -> dict[str, Any]: ...


def breakdown(results: Any, *, title: str = "") -> Chart:
    """Stacked bars of a step's time by cause, one bar per result.

    Parameters
    ----------
    results : Result, mapping of label to Result, sequence of Results, or a sweep's table
        A table uses its ``strategy`` column as labels.
    """
    rows = _rows(results, "breakdown", _PARTS)
    chart, axes = new_chart(7.2, 1.2 + 0.42 * max(len(rows), 2))
    factor, unit = _time_unit(max((sum(parts.values()) for _, parts in rows), default=1.0))
    _stack(axes, rows, [p for p in _PARTS if any(parts.get(p) for _, parts in rows)], factor, _part_color)
    axes.set_xlabel(f"time of one step ({unit})")
    axes.set_title(title or "Where the time of a step goes", fontsize=11, color=INK)
    return chart


def memory(results: Any, *, capacity_bytes: float | None = None, title: str = "") -> Chart:
    """Stacked bars of the memory of the fullest device by component, one bar per result.

    Parameters
    ----------
    results : Result, mapping of label to Result, or sequence of Results
    capacity_bytes : float, optional
        Draws the limit of the device; taken from the results if they know it.
    """
    rows = _rows(results, "memory", ())
    components = list(dict.fromkeys(name for _, parts in rows for name in parts))
    chart, axes = new_chart(7.2, 1.2 + 0.42 * max(len(rows), 2))
    colors = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(components)}
    _stack(axes, rows, components, 1e9, lambda name: colors[name])
    limit = capacity_bytes if capacity_bytes is not None else _capacity(results)
    if limit:
        axes.axvline(limit / 1e9, color=INK, lw=1.2, ls="--", label="capacity")
        axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.set_xlabel("memory of the fullest device (GB)")
    axes.set_title(title or "Where the memory goes", fontsize=11, color=INK)
    return chart


def timeline(
    result: Any,
    *,
    start_s: float | None = None,
    end_s: float | None = None,
    devices: Sequence[str] | None = None,
    max_lanes: int = 24,
    title: str = "",
) -> Chart:
    """Gantt chart: one lane per device and stream, coloured by cause.

    Parameters
    ----------
    result : Result or DataFrame
        A result that holds its run, or the table of ``result.timeline()``.
    start_s, end_s : float, optional
        Part of the run to draw; all of it by default.
    devices : sequence of str, optional
        Devices to draw; by default the first ones, at most ``max_lanes`` lanes.
    """
    frame: pd.DataFrame = result if hasattr(result, "columns") else result.timeline()
    frame = frame[(frame["kind"] != "counter") & ~frame["dropped"]]
    if devices is not None:
        frame = frame[frame["device"].isin(list(devices))]
    low = float(frame["start_s"].min()) if start_s is None else start_s
    high = float(frame["end_s"].max()) if end_s is None else end_s
    frame = frame[(frame["end_s"] > low) & (frame["start_s"] < high)]
    lanes = _lanes(frame, max_lanes)
    chart, axes = new_chart(9.0, 1.3 + 0.3 * max(len(lanes), 2))
    factor, unit = _time_unit(high - low)
    shown = _draw_lanes(axes, frame, lanes, low, factor)
    axes.set_yticks(range(len(lanes)), [f"{device} {stream}".strip() for device, stream in lanes], fontsize=8)
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_xlim(0, (high - low) / factor)
    axes.set_xlabel(f"time ({unit})" if low == 0 else f"time after {low:.6g} s ({unit})")
    axes.set_title(title or "Timeline", fontsize=11, color=INK)
    _cause_legend(axes, shown)
    return chart


def _rows(results: Any, key: str, parts: Sequence[str]) -> list[tuple[str, dict[str, float]]]:
    if hasattr(results, "columns") and parts:
        names = results.get("strategy", results.index)
        values = results[list(parts)].fillna(0.0).to_dict("records")
        return [
            (str(name), {k: float(v) for k, v in row.items()})
            for name, row in zip(names, values, strict=True)
        ]
    if isinstance(results, Mapping):
        items = [(str(name), result) for name, result in results.items()]
    else:
        listed = list(results) if isinstance(results, list | tuple) else [results]
        items = [(_title(result, i), result) for i, result in enumerate(listed)]
    return [(name, {k: float(v or 0) for k, v in result.to_dict()[key].items()}) for name, result in items]


def _title(result: _Result, index: int) -> str:
    data = result.to_dict()
    text = f"{data.get('workload', '')} x{data.get('num_devices')}".strip()
    return text or f"result {index + 1}"


def _capacity(results: Any) -> float | None:
    listed = list(results.values()) if isinstance(results, Mapping) else results
    first = listed[0] if isinstance(listed, list | tuple) else listed
    value = getattr(first, "memory_capacity_bytes", None)
    return float(value) if value else None


def _time_unit(largest: float) -> tuple[float, str]:
    if largest >= 1:
        return 1.0, "s"
    return (1e-3, "ms") if largest >= 1e-3 else (1e-6, "us")


def _part_color(name: str) -> str:
    return PART_COLORS.get(name.removesuffix("_s"), "#999999")


def _stack(
    axes: Axes, rows: list[tuple[str, dict[str, float]]], names: Sequence[str], factor: float, color: Any
) -> None:
    position = np.arange(len(rows))
    left = np.zeros(len(rows))
    for name in names:
        width = np.array([parts.get(name, 0.0) / factor for _, parts in rows])
        text = name.removesuffix("_s").replace("exposed_comm", "exposed communication").replace("_", " ")
        axes.barh(
            position, width, left=left, height=0.68, color=color(name), edgecolor="white", lw=0.5, label=text
        )
        left += width
    axes.set_yticks(position, [name for name, _ in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


def _lanes(frame: pd.DataFrame, max_lanes: int) -> list[tuple[str, str]]:
    pairs = frame[["device", "stream"]].drop_duplicates()
    order = {device: i for i, device in enumerate(dict.fromkeys(pairs["device"]))}
    lanes = [(str(d), str(s)) for d, s in zip(pairs["device"], pairs["stream"], strict=True)]
    return sorted(lanes, key=lambda lane: (order[lane[0]], lane[1]))[:max_lanes]


def _draw_lanes(
    axes: Axes, frame: pd.DataFrame, lanes: list[tuple[str, str]], low: float, factor: float
) -> list[str]:
    """Draw the spans, one collection per lane and cause; returns the causes that occur."""
    number = {lane: i for i, lane in enumerate(lanes)}
    shown: dict[str, None] = {}
    for (device, stream, cause), group in frame.groupby(["device", "stream", "cause"], sort=False):
        lane = number.get((str(device), str(stream)))
        if lane is None:
            continue
        starts = (group["start_s"].to_numpy(float) - low) / factor
        widths = (group["end_s"].to_numpy(float) - group["start_s"].to_numpy(float)) / factor
        key = str(cause).lower()
        axes.broken_barh(
            list(zip(starts, widths, strict=True)), (lane - 0.36, 0.72),
            facecolors=CAUSE_COLORS.get(key, "#BDBDBD"), edgecolors="white", linewidth=0.3,
        )  # fmt: skip
        shown[key] = None
    return [cause for cause in CAUSE_COLORS if cause in shown] + [c for c in shown if c not in CAUSE_COLORS]


def _cause_legend(axes: Axes, causes: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=CAUSE_COLORS.get(c, "#BDBDBD"), label=c.replace("_", " ")) for c in causes]
    if handles:
        axes.legend(handles=handles, fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
