"""``clusterloom calibrate runs``: efficiencies of devices and frameworks from measured training runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.output import console, emit_json, grid, note, number
from sim.errors import InputError

if TYPE_CHECKING:
    from sim.calibrate.runs import RunFit
    from sim.spec.calibration import Parameter


def runs(
    files: Annotated[
        list[str], typer.Argument(metavar="DATA...", help="CSV files of measured training runs.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="Calibration to write.")],
    rounds: Annotated[int, typer.Option(min=1, help="Times to simulate all runs and fit.")] = 2,
    folds: Annotated[bool, typer.Option(help="Report the error in five-fold cross-validation.")] = True,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Fit few physical parameters per device and framework to rows whose split is calibration (or empty)."""
    from sim.calibrate.run_terms import make_terms
    from sim.calibrate.runs import cross_validate, fit_runs, with_spread
    from sim.catalog import default_catalog
    from sim.cli.validate import cache_folder
    from sim.validate.rows import read_rows
    from sim.validate.runs import predict_all
    from sim.validate.runs_loader import load_runs
    from sim.yamlio import dumps

    catalog = default_catalog()
    prior = present = catalog.calibration("default")
    rows = [row for file in files for row in read_rows(file) if row.split in ("calibration", "")]
    known = [run for run in load_runs(rows, catalog).runs if run.measured_s]
    if not known:
        raise InputError("DATA", "have rows of the calibration split that can be simulated", ", ".join(files))
    for number_of_round in range(1, rounds + 1):
        note(f"round {number_of_round} of {rounds}: simulating {len(known)} runs")
        found = predict_all(known, present, workers=workers, cache=cache_folder())
        simulated = {p.id: p.step_time_s for p in found if p.step_time_s is not None}
        terms = make_terms(known, simulated, present)
        fitted = fit_runs(terms, prior, present)
        held_out = (
            cross_validate(terms, prior, fitted.calibration) if folds and number_of_round == rounds else {}
        )
        present = fitted.calibration
    fitted = with_spread(fitted, terms, found)
    Path(output).write_text(dumps(_data(Path(output).stem, fitted)), encoding="utf-8")
    if json:
        emit_json({"parameters": list(_records(fitted)), "held_out_mape_percent": held_out, "output": output})
    else:
        _print(fitted, held_out)
    note(f"wrote {output}")
    return 0


def _entries(fitted: RunFit) -> list[tuple[str, str, str, Parameter]]:
    """(Section, key, name, parameter) of everything that was fitted."""
    calibration = fitted.calibration
    return [
        (knob.section, key, knob.name, getattr(calibration, knob.section)[key][knob.name])
        for knob in fitted.knobs
        for key in knob.keys
    ] + [
        ("framework", "default", name, parameter)
        for name, parameter in calibration.framework["default"].items()
        if parameter.source.startswith("fitted")
    ]


def _records(fitted: RunFit) -> list[dict[str, Any]]:
    return [
        {
            "key": f"{section}/{key}", "name": name, "n": p.n,
            "value": p.value, "low": p.at("low"), "high": p.at("high"),
        }
        for section, key, name, p in _entries(fitted)
    ]  # fmt: skip


def _data(name: str, fitted: RunFit) -> dict[str, Any]:
    """The fitted parameters as a calibration file."""
    from sim.spec.calibration import parameter_dimension

    data: dict[str, Any] = {
        "schema": 1, "name": name, "description": "Fitted to measured training runs",
        "source": "clusterloom calibrate runs", "device": {}, "framework": {},
    }  # fmt: skip
    for section, key, parameter_name, p in _entries(fitted):
        in_seconds = parameter_dimension(parameter_name) == "seconds"
        written = {
            part: f"{value * 1e6:.4g}us" if in_seconds else float(f"{value:.4g}")
            for part, value in (("value", p.value), ("low", p.at("low")), ("high", p.at("high")))
        }
        data[section].setdefault(key, {})[parameter_name] = {**written, "n": p.n, "source": p.source}
    return data


def _print(fitted: RunFit, held_out: dict[str, float]) -> None:
    screen = console()
    columns = [("parameter", "left"), *((name, "right") for name in ("value", "low", "high", "rows"))]
    lines = [
        (f"{r['key']} {r['name']}", *(number(r[part]) for part in ("value", "low", "high")), str(r["n"]))
        for r in _records(fitted)
    ]
    screen.print(grid(columns, lines, title="Fitted parameters, with 80 % intervals"))
    if held_out:
        columns = [("source", "left"), ("MAPE %, rows left out", "right")]
        screen.print(grid(columns, [(k, number(v, 3)) for k, v in held_out.items()]))
