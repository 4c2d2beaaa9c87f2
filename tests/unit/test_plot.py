"""Figures draw what they are given, carry units and leave pyplot alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import sim
from sim import plot


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    axes = {"strategy.dp": [1, 8, 16], "strategy.collective": ["ring", "tree"]}
    return sim.sweep("vgg16", "v100-dlperf", axes).run(num_workers=1)


def test_pareto_marks_only_points_nothing_beats(table: pd.DataFrame):
    front = plot.pareto_front(table, "num_devices", "samples_per_s")
    assert front["num_devices"].is_unique
    for _, row in front.iterrows():
        better = (table["num_devices"] <= row["num_devices"]) & (
            table["samples_per_s"] > row["samples_per_s"]
        )
        assert not better.any()
    chart = plot.pareto(table, "num_devices", "samples_per_s")
    assert chart.axes[0].get_xlabel() == "devices"
    assert chart.axes[0].get_ylabel() == "throughput (samples/s)"


def test_labels_carry_units(table: pd.DataFrame):
    chart = plot.pareto(table, "peak_memory_bytes", "step_time_s")
    assert chart.axes[0].get_xlabel() == "peak memory (GB)"
    assert chart.axes[0].get_ylabel() == "step time (ms)"


def test_scaling_draws_every_chosen_line_and_the_measurements(table: pd.DataFrame):
    measured = pd.DataFrame(
        {"workload": ["vgg16"], "num_devices": [8], "samples_per_s": [2000.0], "series": ["X"]}
    )
    chart = plot.scaling(table, measured=measured)
    legend = [text.get_text() for text in chart.axes[0].get_legend().get_texts()]
    assert {"ideal (linear)", "measured: X"} < set(legend)
    assert any("ring" in text for text in legend)


def test_breakdown_bars_add_up_to_the_step(table: pd.DataFrame):
    chart = plot.breakdown(table)
    ends = {}
    for bar in chart.axes[0].patches:
        ends[round(bar.get_y(), 3)] = max(ends.get(round(bar.get_y(), 3), 0), bar.get_x() + bar.get_width())
    assert sorted(ends.values()) == pytest.approx(sorted(1e3 * table["step_time_s"]), rel=1e-6)


def test_single_results(tmp_path: Path):
    result = sim.run("resnet50", sim.cluster("v100-dlperf", num_hosts=1))
    chart = plot.memory({"DDP": result})
    widths = sum(bar.get_width() for bar in chart.axes[0].patches)
    assert widths == pytest.approx(result.peak_memory_bytes / 1e9)
    gantt = plot.timeline(result, end_s=result.step_time_s)
    assert gantt.axes[0].get_xlabel() == "time (ms)"
    lanes = [text.get_text() for text in gantt.axes[0].get_yticklabels()]
    assert any("rank0" in lane for lane in lanes)
    for name in ("a.png", "b.svg", "c.pdf"):
        assert gantt.save(tmp_path / name).stat().st_size > 1000
    assert gantt._repr_png_().startswith(b"\x89PNG")


def test_figures_are_repeatable(table: pd.DataFrame, tmp_path: Path):
    first = plot.scaling(table).save(tmp_path / "a.png").read_bytes()
    assert plot.scaling(table).save(tmp_path / "b.png").read_bytes() == first


def test_pyplot_is_never_loaded():
    program = "import sys, sim.plot; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
