"""``clusterloom calibrate runs``: efficiencies of devices and frameworks from measured training runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.output import console, emit_json, grid, note, number, refuse_overwriting
from sim.errors import InputError

if TYPE_CHECKING:
    from sim.calibrate.run_rounds import Rounds
    from sim.validate.runs_loader import Loaded

_SHOWN = 5  # reasons


def runs(
    files: Annotated[
        list[str], typer.Argument(metavar="DATA...", help="CSV files of measured training runs.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="Calibration to write.")],
    rounds: Annotated[int, typer.Option(min=1, help="Times to simulate all runs and fit.")] = 2,
    folds: Annotated[
        bool, typer.Option(help="Leave out folds and frameworks: held-out error, and intervals from it.")
    ] = True,
    scratch: Annotated[
        bool,
        typer.Option(
            "--scratch", help="Start from cited values, and write the whole default calibration anew."
        ),
    ] = False,
    warm: Annotated[
        bool,
        typer.Option(
            "--warm", help="With --scratch: simulate first, and search, from the present default calibration."
        ),
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Fit few physical parameters per device and framework to rows whose split is calibration (or empty).

    The default calibration is where the search starts; what was fitted is written, to be merged over it.
    """
    from sim.calibrate.calibration_text import calibration_yaml
    from sim.calibrate.run_priors import SOURCE, source_of
    from sim.calibrate.run_residuals import distinct
    from sim.calibrate.run_rounds import fit_rounds
    from sim.calibrate.runs import FEWEST_ROWS
    from sim.catalog import default_catalog
    from sim.cli.validate import cache_folder
    from sim.validate.rows import read_rows
    from sim.validate.runs_loader import load_runs

    catalog = default_catalog()
    for file in files:
        refuse_overwriting("--output", output, "DATA", file)
    rows = [row for file in files for row in read_rows(file, "DATA") if row.split in ("calibration", "")]
    loaded = load_runs(distinct(rows), catalog)
    known = [run for run in loaded.runs if run.measured_s]
    left_out = _left_out(loaded)
    if len(known) < FEWEST_ROWS:
        must = f"have at least {FEWEST_ROWS} rows of the calibration split that can be simulated"
        raise InputError("DATA", must, len(known), hint=left_out)
    if left_out:
        note(left_out)
    found = fit_rounds(
        known,
        catalog.calibration("default"),
        rounds=rounds,
        folds=folds,
        scratch=scratch,
        warm=warm,
        source=SOURCE if scratch else source_of(files),
        workers=workers,
        cache=cache_folder(),
        progress=note,
    )
    calibration = found.calibration if scratch else found.fitted_only(Path(output).stem)
    Path(output).write_text(calibration_yaml(calibration), encoding="utf-8")
    if json:
        emit_json({"parameters": list(_records(found)), **_errors(found), "output": output})
    else:
        _print(found)
    note(f"wrote {output}")
    return 0


def _left_out(loaded: Loaded) -> str:
    """How many rows tell nothing, and why; empty if all do."""
    reasons = Counter(item.reason.rstrip(".") for item in loaded.skipped)
    reasons.update(run.unmeasured.rstrip(".") or "no step time" for run in loaded.runs if not run.measured_s)
    listed = [f"{reason} ({count})" for reason, count in reasons.most_common(_SHOWN)]
    more = f", and {len(reasons) - _SHOWN} other reasons" if len(reasons) > _SHOWN else ""
    return f"Left out {reasons.total()} rows: {'; '.join(listed)}{more}." if reasons else ""


def _errors(found: Rounds) -> dict[str, Any]:
    return {
        "mape_percent": found.fit_mape,
        "held_out_mape_percent": found.fold_mape,
        "framework_left_out_mape_percent": found.framework_mape,
    }


def _records(found: Rounds) -> list[dict[str, Any]]:
    return [
        {
            "key": f"{section}/{key}", "name": name, "n": p.n,
            "value": p.value, "low": p.at("low"), "high": p.at("high"),
        }
        for section, key, name, p in found.entries()
    ]  # fmt: skip


def _print(found: Rounds) -> None:
    screen = console()
    columns = [("parameter", "left"), *((name, "right") for name in ("value", "low", "high", "rows"))]
    lines = [
        (f"{r['key']} {r['name']}", *(number(r[part]) for part in ("value", "low", "high")), str(r["n"]))
        for r in _records(found)
    ]
    screen.print(grid(columns, lines, title="Fitted parameters, with 80 % intervals"))
    columns = [
        ("source", "left"),
        ("MAPE %", "right"),
        ("rows left out", "right"),
        ("framework left out", "right"),
    ]
    parts = (found.fit_mape, found.fold_mape, found.framework_mape)
    table = [(k, *(number(part[k], 3) if k in part else "" for part in parts)) for k in found.fit_mape]
    screen.print(grid(columns, table, title="Error of step time"))
