"""``clusterloom calibrate``: fit a calibration to measurements, with intervals and held-out error."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.calibrate_recordings import recordings
from sim.cli.calibrate_runs import runs
from sim.cli.output import console, emit_json, given_columns, grid, note, number, percent, seconds
from sim.errors import InputError

UNTOUCHED = "as shipped"  # source of entries that a fit did not touch; see sim.calibrate.collectives

if TYPE_CHECKING:
    from sim.spec.calibration import Calibration, Parameter

command = typer.Typer(
    help="Fit a calibration to measurements.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


command.command("recordings")(recordings)
command.command("runs")(runs)


@command.callback(invoke_without_command=True)
def _group(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@command.command("collectives")
def collectives(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="CSV tables or nccl-tests logs.")],
    output: Annotated[str, typer.Option("--output", "-o", help="YAML file to write.")],
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="COLUMN=VALUE a log does not say: hardware, nodes, inter_network ...; may repeat."
        ),
    ] = None,
    pooled: Annotated[
        bool, typer.Option(help="Keep only what holds for kinds of systems, nothing of single systems.")
    ] = False,
    scratch: Annotated[bool, typer.Option(help="Do not start from the shipped calibration.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Fit launch and step latencies, efficiencies and protocols of a collective library."""
    from sim.calibrate.collectives import fit, population_of, usable
    from sim.catalog import default_catalog
    from sim.validate.collectives.board import Board, predictions
    from sim.validate.collectives.load import load_rows

    rows = load_rows(files, given_columns(given or []))
    good = usable(rows)
    if not good:
        reasons = sorted({row.message for row in rows if row.message}) or ["no row has a time"]
        hints = {"collective": "collective=all_reduce", "GPUs": "gpus=8"}
        lacking = next((hint for word, hint in hints.items() if word in reasons[0]), "hardware=H100")
        must = "have rows of a known collective on known hardware"
        raise InputError("FILE", must, "; ".join(reasons), hint=f"Use --set {lacking}.")
    start = None if scratch else population_of(default_catalog().calibration("collectives"))
    fitted = fit(rows, start, systems=not pooled)
    names = ", ".join(Path(file).name for file in files)
    calibration = fitted.calibration(Path(output).stem, f"fitted on {names}", systems=not pooled)
    Path(output).write_text(calibration_text(calibration), encoding="utf-8")
    board = Board.of(predictions(rows, calibration))
    held_out = fitted.held_out
    if json:
        emit_json(
            {
                "parameters": [_record(*entry) for entry in _parameters(calibration)],
                "held_out": held_out,
                "fit": board.to_dict(),
                "output": output,
            }
        )
    else:
        _print(calibration, held_out, board.skipped, "the system left out" if pooled else "left-out sizes")
    note(f"wrote {output}")
    return 0


def quoted(text: str) -> str:
    """A YAML scalar in double quotes, which JSON's are."""
    return dumps(text, ensure_ascii=False)


def calibration_text(calibration: Calibration) -> str:
    """A calibration as YAML, one line per parameter."""
    lines = ["schema: 1"]
    for field in ("name", "description", "source"):
        lines.append(f"{field}: {quoted(getattr(calibration, field))}")
    for section in ("link", "library"):
        lines.append(f"{section}:")
        for key, entries in sorted(getattr(calibration, section).items()):
            lines.append(f"  {quoted(key)}:")
            lines += [f"    {name}: {_entry(name, parameter)}" for name, parameter in sorted(entries.items())]
    return "\n".join(lines) + "\n"


def _entry(name: str, parameter: Parameter) -> str:
    def written(value: float) -> str:
        return f"{value * 1e6:.4g}us" if name.endswith("latency") else f"{value:.4g}"

    parts = [f"value: {written(parameter.value)}"]
    if parameter.low is not None and parameter.high is not None:
        parts += [f"low: {written(parameter.low)}", f"high: {written(parameter.high)}"]
    return "{" + ", ".join([*parts, f"n: {parameter.n}", f"source: {quoted(parameter.source)}"]) + "}"


def _parameters(calibration: Calibration) -> list[tuple[str, str, Parameter]]:
    return [
        (f"{section}/{key}", name, parameter)
        for section in ("link", "library")
        for key, entries in sorted(getattr(calibration, section).items())
        if "/" not in key  # a measured curve, in the file only
        for name, parameter in sorted(entries.items())
        if parameter.source != UNTOUCHED
    ]


def _record(key: str, name: str, parameter: Parameter) -> dict[str, Any]:
    return {
        "key": key, "name": name, "value": parameter.value, "low": parameter.at("low"),
        "high": parameter.at("high"), "n": parameter.n,
    }  # fmt: skip


def _print(calibration: Calibration, held_out: dict[str, float], skipped: dict[str, int], on: str) -> None:
    screen = console()
    columns = [
        ("key", "left"),
        ("parameter", "left"),
        ("value", "right"),
        ("80 % interval", "right"),
        ("n", "right"),
    ]
    cells = []
    for key, name, parameter in _parameters(calibration):
        show = seconds if name.endswith("latency") else number
        interval = f"{show(parameter.at('low'))} .. {show(parameter.at('high'))}"
        cells.append((key, name, show(parameter.value), interval, str(parameter.n)))
    screen.print(grid(columns, cells, title="Parameters"))
    if held_out:
        rows = [(system, percent(error)) for system, error in held_out.items()]
        screen.print(grid([("system", "left"), (f"mean error on {on}", "right")], rows))
    for reason, count in skipped.items():
        note(f"{count} rows not used: {reason}")
