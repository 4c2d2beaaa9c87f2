"""The board of collectives as a page of the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from sim.validate.collectives.board import Board, Line

_TITLES = {
    "sizes": ("the same system, other sizes", "Every second size of each curve is kept from the fit."),
    "systems": (
        "a whole system left out",
        "Each system in turn is kept from the fit, and predicted from its spec sheet and what the others "
        "have in common. This is what the shipped calibration gives for a machine it has never seen.",
    ),
    "hosts": (
        "another number of hosts",
        "Each number of hosts of a system measured on several is kept from the fit of that system.",
    ),
}
_HEAD = (
    "system", "rows", "MAPE %", "median %", "bias %", "worst %", "spec-sheet ring %", "in 80 % interval",
    "half-width %", "interval score",
)  # fmt: skip
_INTRODUCTION = """Time of a collective, predicted against measured, in percent of the measured time. No row
was seen by the fit that predicts it. *spec-sheet ring* is the error of a ring at datasheet speed without
latency. *interval score*: width of the 80 % interval plus ten times the distance outside it, over the
measured time."""


def page(tables: Mapping[str, pd.DataFrame]) -> str:
    """Markdown of the held-out predictions: a summary, then each kind of hold-out by system and by size.

    Parameters
    ----------
    tables : mapping
        Name of the hold-out (see :data:`sim.calibrate.hold_out.HOLD_OUTS`) -> its predictions.
    """
    sections = [
        "# Accuracy on published collectives",
        "<!-- Written by `make board`: clusterloom validate collectives --markdown. -->",
        _INTRODUCTION,
        _grid(_SUMMARY, [_summary(name, table) for name, table in tables.items()]),
    ]
    for name, table in tables.items():
        title, text = _TITLES[name]
        sections += [f"## {title[0].upper()}{title[1:]}", text]
        board = Board.of(table)
        column = "left_out" if name == "hosts" else "system"
        lines = board.systems if column == "system" else Board.of(table.assign(system=table[column])).systems
        sections.append(_grid(_HEAD, [_cells(line) for line in lines]))
        sections.append(_grid(("collective", "size", *_HEAD[1:]), _by_size(table)))
    return "\n\n".join(sections) + "\n"


_SUMMARY = (
    "judged on", "systems", "rows", "median MAPE over systems %", "of 1 MiB and more %", "MAPE of rows %",
    "in 80 % interval", "half-width %", "interval score", "spec-sheet ring %",
)  # fmt: skip


def _summary(name: str, table: pd.DataFrame) -> tuple[str, ...]:
    large = Board.of(table[table["message_bytes"] >= 1 << 20]).summary()
    all_sizes = Board.of(table).summary()
    scored = table[(table["status"] == "ok") & (table["measured_time_us"] > 0)]
    error = np.abs(scored["predicted_time_us"] / scored["measured_time_us"] - 1).mean()
    values = (
        all_sizes["median_mape"], large.get("median_mape", np.nan), error, all_sizes["coverage"],
        all_sizes["median_half_width"],
    )  # fmt: skip
    return (
        _TITLES[name][0], str(all_sizes["systems"]), str(all_sizes["rows"]), *map(_percent, values),
        f"{all_sizes['interval_score']:.2f}", _percent(all_sizes["median_baseline"]),
    )  # fmt: skip


def _by_size(table: pd.DataFrame) -> list[tuple[str, ...]]:
    """Scores by collective and size band over all systems."""
    lines = Board.of(table.assign(system="all")).lines
    return [
        (line.operation, line.band, *_cells(line)[1:])
        for line in lines
        if line.operation != "all" and line.band != "all"
    ]


def _cells(line: Line) -> tuple[str, ...]:
    values = (
        line.mape, line.median, line.bias, line.worst, line.baseline, line.coverage, line.half_width,
    )  # fmt: skip
    return (line.system, str(line.rows), *map(_percent, values), f"{line.interval_score:.2f}")


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines: list[Sequence[str]] = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
