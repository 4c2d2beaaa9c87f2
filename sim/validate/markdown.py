"""The board as a page of the documentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sim.validate.board import Line, Scored
from sim.validate.causes import causes
from sim.validate.report import Report

_HEAD = (
    "source", "regime", "split", "rows", "scored", "MAPE %", "median %", "bias %", "worst %", "Spearman",
    "regret %", "in 80 % interval", "half-width %", "constant %", "published %",
)  # fmt: skip

_INTRODUCTION = """Step time, predicted against measured, in percent of the measured time. Rows with split
*calibration* were used to fit efficiencies, rows with split *validation* never. *constant* is the same error
with one constant utilisation per device and precision; *published* the best published figure of another
tool. *best framework* are the fastest runs of jobs that several frameworks ran."""

_CAUSES_INTRODUCTION = """Sources count alike. *Repetition* is the scatter of runs of one configuration, which
nothing can predict from the row; *framework* the mean of each framework's runs; the rest is estimated in
proportion to the parts of the predicted step."""

_CAUSES: tuple[tuple[str, Callable[[Scored], bool]], ...] = (
    ("mostly computation, one device", lambda s: s.run.regime == "1 device"),
    ("mostly computation, several devices", lambda s: s.run.regime != "1 device" and _waiting(s) < 0.1),
    ("10 to 30 % exposed communication or bubbles", lambda s: 0.1 <= _waiting(s) < 0.3),
    ("over 30 % exposed communication or bubbles", lambda s: _waiting(s) >= 0.3),
)


def page(report: Report) -> str:
    """Markdown of the board, the residuals by cause and framework, and what was not scored."""
    whole = [line for line in report.lines if line.regime == "all"]
    parts = [line for line in report.lines if line.regime != "all"]
    good = [s for s in report.scored if s.error is not None]
    sections = [
        "# Accuracy on published training runs",
        "<!-- Written by `make board`: clusterloom validate runs --markdown. -->",
        _INTRODUCTION,
        "## By source",
        _table(_HEAD, [_cells(line) for line in whole]),
        "## By source and regime",
        _table(_HEAD, [_cells(line) for line in parts]),
        "## Residuals by cause",
        _CAUSES_INTRODUCTION,
        _table(
            ("cause", "share of step %", "error of that part %", "of squared residual %"), _by_cause(good)
        ),
        "## Residuals by where the predicted time goes",
        _table(("where", "rows", "MAPE %", "bias %"), _residuals(good, _CAUSES)),
        "## Residuals by framework",
        _table(("framework", "rows", "MAPE %", "bias %"), _residuals(good, _frameworks(good))),
        "## Memory",
        "All of these runs fitted into their devices. Those predicted not to:",
        _table(("source", "runs", "predicted not to fit"), _memory(whole)),
        "## Not scored",
        _table(("source", "reason", "rows"), _skipped(whole)),
    ]
    return "\n\n".join(sections) + "\n"


def _by_cause(scored: Sequence[Scored]) -> list[tuple[str, ...]]:
    def percent(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.1f}"

    return [(c.name, percent(c.share), percent(c.deviation), f"{c.percent:.0f}") for c in causes(scored)]


def _memory(lines: Sequence[Line]) -> list[tuple[str, ...]]:
    return [(line.group, str(line.scored), str(line.over_memory)) for line in lines if line.over_memory]


def _skipped(lines: Sequence[Line]) -> list[tuple[str, ...]]:
    return [
        (line.group, reason, str(count)) for line in lines for reason, count in sorted(line.skipped.items())
    ]


def _waiting(item: Scored) -> float:
    parts = item.prediction.parts
    waiting = sum(parts.get(name, 0.0) for name in ("exposed_comm_s", "wait_s", "bubble_s"))
    return waiting / (item.prediction.step_time_s or 1.0)


def _frameworks(scored: Sequence[Scored]) -> list[tuple[str, Callable[[Scored], bool]]]:
    def of(name: str) -> Callable[[Scored], bool]:
        return lambda item: item.run.framework == name

    return [(name, of(name)) for name in sorted({item.run.framework for item in scored})]


def _residuals(
    scored: Sequence[Scored], groups: Sequence[tuple[str, Callable[[Scored], bool]]]
) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for name, belongs in groups:
        errors = 100 * np.array([s.error for s in scored if belongs(s)], float)
        if len(errors):
            lines.append((name, str(len(errors)), f"{np.abs(errors).mean():.1f}", f"{errors.mean():+.1f}"))
    return lines


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines: list[Sequence[str]] = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _cells(line: Line) -> tuple[str, ...]:
    figures = (
        line.mape, line.median, line.bias, line.worst, line.spearman, line.regret, line.coverage,
        line.half_width, line.constant, line.published,
    )  # fmt: skip
    texts = ["" if value is None else f"{value:.3g}" for value in figures]
    return (line.group, line.regime, line.split, str(line.rows), str(line.scored), *texts)
