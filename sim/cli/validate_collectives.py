"""``clusterloom validate collectives``: how wrong predicted collective times are, on measured ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sim.cli.output import console, emit_json, given_columns, grid, note, number, percent
from sim.errors import InputError

if TYPE_CHECKING:
    from sim.validate.collectives.board import Board, Line


def collectives(
    measurements: Annotated[
        list[str] | None,
        typer.Option(help="CSV or nccl-tests log; may repeat. The published measurements by default."),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="COLUMN=VALUE a log does not say: hardware, nodes, collective ...; may repeat."
        ),
    ] = None,
    calibration: Annotated[
        list[str] | None,
        typer.Option(help="Calibration name or file, over the shipped one; may repeat."),
    ] = None,
    hold_out: Annotated[
        str | None,
        typer.Option(help="Judge rows no fit has seen: fit again without some sizes, systems or hosts."),
    ] = None,
    markdown: Annotated[
        str | None,
        typer.Option(help="Write the errors on rows no fit has seen, of all three kinds, to this page."),
    ] = None,
    out: Annotated[str | None, typer.Option(help="Write every prediction to this CSV file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Predict measured collectives and print the errors by system, collective and size band."""
    from pathlib import Path

    from sim.catalog import default_catalog
    from sim.validate.collectives.board import Board, predictions
    from sim.validate.collectives.load import load_rows, published

    rows = load_rows(measurements or [published()], given_columns(given or []))
    if hold_out is None:
        fitted = default_catalog().calibration(("default", "collectives", *(calibration or ())))
        table = predictions(rows, fitted)
    else:
        from sim.calibrate.hold_out import HOLD_OUTS, held_out_predictions

        if hold_out not in HOLD_OUTS:
            raise InputError("--hold-out", f"be one of {', '.join(HOLD_OUTS)}", hold_out)
        table = held_out_predictions(hold_out, rows)
        if not len(table):
            raise InputError("--hold-out", "find something to leave out in these rows", hold_out)
    if markdown:
        from sim.calibrate.hold_out import HOLD_OUTS, held_out_predictions
        from sim.validate.collectives.markdown import page

        tables = {name: held_out_predictions(name, rows) for name in HOLD_OUTS}
        text = page({name: part for name, part in tables.items() if len(part)})
        Path(markdown).write_text(text, encoding="utf-8")
    board = Board.of(table)
    if out:
        table.to_csv(out, index=False, float_format="%.6g")
    if json:
        emit_json(board.to_dict())
    else:
        _print(board)
    if not board.systems and not (out and (table["status"] == "ok").any()):
        reason, count = max(board.skipped.items(), key=lambda item: item[1])
        hint = f"{count} of {len(table)} rows: {reason}"
        raise InputError("--measurements", "have a row that can be predicted and compared", hint=hint)
    return 0


_COLUMNS = (
    ("system", "left"), ("collective", "left"), ("size", "left"),
    *((name, "right") for name in (
        "rows", "MAPE", "median", "bias", "worst", "spec-sheet ring", "in 80 %", "±80 %", "score",
    )),
)  # fmt: skip


def _print(board: Board) -> None:
    screen = console()
    screen.print(grid(_COLUMNS, [_cells(line) for line in board.systems], title="Collectives, by system"))
    parts = [line for line in board.lines if line.operation != "all"]
    screen.print(grid(_COLUMNS, [_cells(line) for line in parts], title="By collective and size"))
    for title, counts in (("without an error because", board.skipped), ("predicted although", board.assumed)):
        if counts:
            ordered = sorted(counts.items(), key=lambda item: -item[1])
            cells = [(reason, str(count)) for reason, count in ordered]
            screen.print(grid([(title, "left"), ("rows", "right")], cells))
    summary = board.summary()
    if summary["rows"]:
        note(
            f"median over {summary['systems']} systems: {percent(summary['median_mape'])} error, "
            f"{percent(summary['median_baseline'])} with a ring at datasheet speed; "
            f"{percent(summary['coverage'])} of rows in their 80 % interval"
        )


def _cells(line: Line) -> tuple[str, ...]:
    fractions = (line.mape, line.median, line.bias, line.worst, line.baseline, line.coverage, line.half_width)
    return (
        line.system, line.operation, line.band, str(line.rows),
        *(percent(value) for value in fractions), number(line.interval_score, 3),
    )  # fmt: skip
