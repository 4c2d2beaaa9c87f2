"""``clusterloom compare``: two results side by side, the difference attributed to causes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sim.cli.output import console, emit_json, escape, existing_folders, grid, number, percent, seconds
from sim.errors import InfeasibleError, InputError, InvalidStrategyError

if TYPE_CHECKING:
    from sim.analysis.result import Result


def command(
    first: Annotated[str, typer.Argument(help="Result (JSON of `run --json`), scenario (YAML) or trace.")],
    second: Annotated[str, typer.Argument(help="Result, scenario or trace to compare it with.")],
    catalog: Annotated[
        list[str] | None, typer.Option(help="Folder of your own catalogue; may repeat.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Compare two results, scenarios or traces; the parts of the difference add up to it."""
    from sim.analysis.compare import compare

    folders = existing_folders(catalog or ())
    comparison = compare(_result(first, "A", folders), _result(second, "B", folders))
    if json:
        emit_json(comparison.to_dict())
        return 0
    screen = console()
    screen.print(f"[bold]A[/bold] {escape(first)}    [bold]B[/bold] {escape(second)}")
    headline = comparison.headline().to_dict("records")
    rows = [
        (str(r["metric"]), number(r["first"], 6), number(r["second"], 6), number(r["ratio"]))
        for r in headline
    ]
    screen.print(grid([("", "left"), ("A", "right"), ("B", "right"), ("B / A", "right")], rows))
    parts = comparison.breakdown().to_dict("records")
    lines = [
        (
            str(p["cause"]),
            seconds(p["first_s"]),
            seconds(p["second_s"]),
            _signed(p["change_s"]),
            percent(p["share"]),
        )
        for p in parts
    ]
    total = seconds(comparison.first.step_time_s), seconds(comparison.second.step_time_s)
    lines.append(
        ("step", *total, _signed(comparison.difference_s), percent(1.0 if comparison.difference_s else 0.0))
    )
    columns = [("where a step goes", "left"), *((name, "right") for name in ("A", "B", "change", "share"))]
    screen.print(grid(columns, lines))
    return 0


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{seconds(value)}"


def _is_trace(path: str) -> bool:
    """Whether a file is a measured trace: everything but the JSON of a result."""
    from pathlib import Path

    try:
        with Path(path).open("rb") as file:
            head = file.read(1 << 16)
    except OSError:
        return False
    text = head.lstrip()
    return text[:1] == b"[" or b'"traceEvents"' in head or (bool(text) and text[:1] != b"{")


def _result(path: str, name: str, folders: tuple[str, ...]) -> Result:
    """A saved result, or the simulation of a scenario file."""
    from sim.analysis.result import load_result
    from sim.analysis.simulate import simulate
    from sim.analysis.trace_result import trace_result
    from sim.catalog import Catalog

    if not path.endswith((".yaml", ".yml")):
        return trace_result(path) if _is_trace(path) else load_result(path)
    result = simulate(Catalog(folders).scenario(path))
    if result.status == "invalid":
        raise InvalidStrategyError(name, "be a valid strategy", path, hint=result.message)
    if result.status == "infeasible":
        raise InfeasibleError(f"{name}: {path}: {result.message}", result.missing_bytes or 0.0)
    if not result.ok:
        raise InputError(name, "be a scenario that runs", path, hint=result.message)
    return result
