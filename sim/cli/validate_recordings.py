"""``clusterloom validate recordings``: predicted and measured times of real torch.distributed jobs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.cli.output import console, emit_json, grid, note, percent
from sim.errors import InputError

if TYPE_CHECKING:
    from sim.validate.recordings.board import Line, Scored
    from sim.validate.recordings.predict import Predictor


def recordings(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIR|FILE...]",
            help="Recorded CSV tables, or folders of them; the shipped ones by default.",
        ),
    ] = None,
    calibration: Annotated[
        list[str] | None,
        typer.Option(help="Calibration name or file, over the shipped one of gloo; may repeat."),
    ] = None,
    traces: Annotated[
        str | None, typer.Option(help="Folder of layer traces; DIR/traces, or DIR, by default.")
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="Write rows and predictions to this CSV file (a folder for several).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Predict every recorded configuration and print the errors by kind and subset, beside two baselines."""
    from sim.catalog import default_catalog
    from sim.validate.recordings.board import board
    from sim.validate.recordings.predict import Predictor
    from sim.validate.recordings.rows import find_files, trace_folders
    from sim.validate.recordings.trace import Traces

    given = files or [str(default_catalog().data_file("measurements/recordings/ddp.csv").parent)]
    paths = find_files(given)
    fitted = default_catalog().calibration(("default", "gloo", *(calibration or ())))
    predictor = Predictor(fitted, Traces(trace_folders(given, paths, traces)))
    _note_others(given, paths)
    everything = _scored(paths, predictor, _targets(out, paths))
    lines = board(everything)
    skipped = [item for item in everything if item.prediction.status != "ok"]
    if len(skipped) == len(everything):
        why = f"{skipped[0].row.place}: {skipped[0].prediction.message}" if skipped else "no rows"
        raise InputError("recordings", "hold at least one row that can be predicted", why)
    if json:
        places = [{"row": item.row.place, "message": item.prediction.message} for item in skipped]
        emit_json({"board": [line.to_dict() for line in lines], "rows": len(everything), "skipped": places})
        return 0
    _print(lines)
    for item in skipped:
        place, message = item.row.place, item.prediction.message
        note(message if message.endswith(f"({place})") else f"{place}: {message}")
    return 0


def _scored(paths: list[Path], predictor: Predictor, targets: dict[Path, Path]) -> list[Scored]:
    """Rows of all files with their predictions, written to the targets."""
    from sim.validate.recordings.board import score, write_predictions
    from sim.validate.recordings.rows import read_rows

    everything = []
    for number, path in enumerate(paths, 1):
        columns, rows = read_rows(path)
        if sys.stderr.isatty():
            note(f"{path.name}: {len(rows)} rows ({number} of {len(paths)} files)")
        scored = score(rows, predictor)
        everything += scored
        if targets:
            write_predictions(targets[path], columns, scored)
    return everything


def _note_others(given: list[str], paths: list[Path]) -> None:
    """Name the tables of a folder that are of no known kind."""
    found = {path.name for folder in given if Path(folder).is_dir() for path in Path(folder).glob("*.csv")}
    others = sorted(found - {path.name for path in paths})
    if others:
        note(f"not read, of no known kind: {', '.join(others)}")


def _targets(out: str | None, paths: list[Path]) -> dict[Path, Path]:
    if out is None:
        return {}
    target = Path(out)
    if len(paths) == 1 and not target.is_dir():
        return {paths[0]: target}
    if target.exists() and not target.is_dir():
        raise InputError("--out", "be a folder where there are several files", out)
    target.mkdir(parents=True, exist_ok=True)
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        raise InputError("--out", "get files of different names", ", ".join(sorted(names)))
    return {path: target / path.name for path in paths}


_COLUMNS = (
    ("kind", "left"),
    ("subset", "left"),
    *(
        (name, "right")
        for name in ("rows", "scored", "MAPE", "bias", "worst", "in 80 %", "bandwidth only", "one latency")
    ),
)


def _print(lines: list[Line]) -> None:
    def cells(line: Line) -> tuple[str, ...]:
        figures = (
            line.mape, line.bias, line.worst, line.inside, line.bandwidth_only, line.one_latency,
        )  # fmt: skip
        shown = (percent(value) if value is not None else "-" for value in figures)
        return (line.kind, line.subset, str(line.rows), str(line.scored), *shown)

    screen = console()
    whole = [line for line in lines if line.subset == "all"]
    screen.print(grid(_COLUMNS, [cells(line) for line in whole], title="Recordings"))
    screen.print(grid(_COLUMNS, [cells(line) for line in lines if line.subset != "all"]))
