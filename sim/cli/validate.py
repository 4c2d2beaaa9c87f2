"""``clusterloom validate``: how wrong the simulator is, on published measurements."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.cli.output import MISSING, console, emit_json, escape, grid, note, number, refuse_overwriting
from sim.cli.validate_collectives import collectives
from sim.cli.validate_recordings import recordings

if TYPE_CHECKING:
    from sim.validate.board import Line
    from sim.validate.report import Report

command = typer.Typer(
    help="Accuracy board: predictions beside published measurements.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


command.command("recordings")(recordings)


@command.callback(invoke_without_command=True)
def _group(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


command.command("collectives")(collectives)


@command.command("runs")
def runs(
    measurements: Annotated[
        str | None, typer.Option(help="CSV of training runs; the published ones by default.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Only this source: identifier (VTS) or part of its name.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Only this split: calibration or validation.")] = None,
    calibration: Annotated[
        list[str] | None, typer.Option(help="Calibration name or file, merged over the default; may repeat.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="Write the predictions to this CSV file.")] = None,
    markdown: Annotated[str | None, typer.Option(help="Write the board to this Markdown page.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Simulate again what an earlier call has done.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Simulate every training run and print the errors of step time by source and regime."""
    from sim.catalog import Catalog
    from sim.validate.report import validate_runs

    for option, path in (("--out", out), ("--markdown", markdown)):
        refuse_overwriting(option, path, "--measurements", measurements)
    catalog = Catalog()
    report = validate_runs(
        measurements,
        source=source,
        split=split,
        calibration=catalog.calibration(("default", *(calibration or ()))) if calibration else None,
        catalog=catalog,
        workers=workers,
        cache=None if fresh else cache_folder(),
        progress=_progress if sys.stderr.isatty() else None,
    )
    if out:
        report.write(out)
    if markdown:
        from sim.validate.markdown import page

        Path(markdown).write_text(page(report), encoding="utf-8")
    if json:
        emit_json(report.to_dict())
    else:
        _print(report)
    _has_predictions(report, measurements)
    return 0


def _has_predictions(report: Report, measurements: str | None) -> None:
    """Refuse a file of which no row can be simulated; its rows and reasons are printed all the same."""
    from sim.errors import InputError

    if any(item.prediction.ok for item in report.scored):
        return
    reasons = Counter(item.reason for item in report.skipped)
    reasons.update(item.prediction.message for item in report.scored)
    (reason, rows), *others = reasons.most_common()
    more = f" and {len(others)} other reasons" if others else ""
    hint = f"{rows} of {reasons.total()} rows: {reason.rstrip('.')}{more}"
    raise InputError("--measurements", "have a row that can be simulated", measurements or None, hint=hint)


def cache_folder() -> Path:
    """Where finished predictions are kept: ``$XDG_CACHE_HOME/clusterloom``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "clusterloom" / "validate"


def _progress(done: int, total: int) -> None:
    print(f"\r{done} of {total} runs", end="" if done < total else "\n", file=sys.stderr, flush=True)


_COLUMNS = (
    ("source", "left"),
    ("regime", "left"),
    ("split", "left"),
    *(
        (name, "right")
        for name in (
            "rows", "scored", "MAPE %", "median", "bias", "worst", "Spearman", "regret %", "in 80 %", "±80 %",
            "constant", "published",
        )
    ),
)  # fmt: skip


def _print(report: Report) -> None:
    screen = console()
    whole = [line for line in report.lines if line.regime == "all"]
    screen.print(grid(_COLUMNS, [_cells(line) for line in whole], title="Step time, by source"))
    parts = [line for line in report.lines if line.regime != "all"]
    if parts:
        screen.print(grid(_COLUMNS, [_cells(line) for line in parts], title="By source and regime"))
    reasons = [
        (line.group, reason, str(count))
        for line in whole
        for reason, count in sorted(line.skipped.items(), key=lambda item: -item[1])
    ]
    if reasons:
        columns = [("source", "left"), ("not scored because", "left"), ("rows", "right")]
        screen.print(grid(columns, reasons))
    over = sum(line.over_memory for line in whole)
    if over:
        note(f"{over} of the scored runs are predicted to need more memory than they had")
    for line in whole:
        if line.published_by:
            screen.print(escape(f"{line.group}: published {line.published} %: {line.published_by}"))


def _cells(line: Line) -> tuple[str, ...]:
    figures = (
        line.mape, line.median, line.bias, line.worst, line.spearman, line.regret,
        line.coverage, line.half_width, line.constant, line.published,
    )  # fmt: skip
    return (
        line.group,
        line.regime,
        line.split or MISSING,
        str(line.rows),
        str(line.scored),
        *(number(value, 3) for value in figures),
    )
