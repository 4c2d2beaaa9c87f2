"""One look for all figures: colours, labels with units, a Figure without global state.

Colours are the Okabe-Ito palette (Okabe and Ito, "Color Universal Design", 2008), which readers with any
common colour vision deficiency can tell apart; groups also differ in marker.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C8C8C", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
INK, FAINT = "#333333", "#D9D9D9"
PART_COLORS = {
    "compute": "#0072B2",
    "optimizer": "#56B4E9",
    "exposed_comm": "#D55E00",
    "wait": "#E69F00",
    "bubble": "#BDBDBD",
    "data": "#009E73",
}
CAUSE_COLORS = {
    "forward": "#0072B2",
    "backward": "#56B4E9",
    "recompute": "#8DA0CB",
    "optimizer": "#009E73",
    "data": "#F0E442",
    "tensor_comm": "#CC79A7",
    "pipeline_comm": "#8C510A",
    "gradient_comm": "#D55E00",
    "parameter_comm": "#E69F00",
    "expert_comm": "#A6761D",
    "context_comm": "#7570B3",
    "control": "#8C8C8C",
    "other": "#BDBDBD",
}
_UNITS = {
    "samples_per_s": "throughput (samples/s)",
    "tokens_per_s_per_device": "throughput (tokens/s per device)",
    "mfu": "model FLOPs utilisation",
    "num_devices": "devices",
    "price_per_sample": "price ($ per sample)",
    "price_per_step": "price ($ per step)",
    "energy_joules_per_step": "energy per step (J)",
    "exposed_comm_s": "exposed communication (s)",
}
_HIGHER_IS_BETTER = (
    "samples_per_s",
    "tokens_per_s_per_device",
    "mfu",
    "scaling_efficiency",
    "overlap_fraction",
    "busy_fraction",
)


class Chart(Figure):
    """A matplotlib Figure that shows itself in a notebook and never touches pyplot's global state."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()

    def save(self, path: str | Path, *, dpi: float = 150) -> Path:
        """Write the figure; the file's suffix (.png, .svg, .pdf) chooses the format."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        self.savefig(target, dpi=dpi, metadata={"Software": None} if target.suffix == ".png" else None)
        return target


def new_chart(width: float = 7.2, height: float = 4.4) -> tuple[Chart, Axes]:
    """An empty figure (inches) with one styled pair of axes."""
    chart = Chart(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(chart)
    axes = chart.add_subplot()
    style_axes(axes)
    return chart, axes


def style_axes(axes: Axes) -> None:
    """Light grid, no box."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(True, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


def label(column: str) -> str:
    """Axis label of a column: words and the unit its suffix names."""
    if column in _UNITS:
        return _UNITS[column]
    name = column.removeprefix("strategy.")
    for suffix, unit in (("_bytes", "bytes"), ("_s", "s")):
        if name.endswith(suffix):
            return f"{name.removesuffix(suffix).replace('_', ' ')} ({unit})"
    return name.replace("_", " ").replace(".", " ")


def scaled(column: str, values: Iterable[float]) -> tuple[list[float], str]:
    """Values in a readable unit (GB, ms) with the fitting label."""
    numbers = [float(value) for value in values]
    largest = max((abs(v) for v in numbers if v == v), default=0.0)
    text = label(column)
    if column.endswith("_bytes"):
        factor, unit = (1e9, "GB") if largest >= 1e9 else (1e6, "MB")
        return [v / factor for v in numbers], text.replace("(bytes)", f"({unit})")
    if text.endswith("(s)") and largest < 1:
        factor, unit = (1e-3, "ms") if largest >= 1e-3 else (1e-6, "us")
        return [v / factor for v in numbers], text[:-3] + f"({unit})"
    return numbers, text


def higher_is_better(column: str) -> bool:
    """Whether more of a column is better."""
    return column in _HIGHER_IS_BETTER


def group_styles(groups: Iterable[Any]) -> dict[Any, tuple[str, str]]:
    """Colour and marker per group, in order of appearance."""
    distinct = list(dict.fromkeys(groups))
    return {g: (PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)]) for i, g in enumerate(distinct)}
