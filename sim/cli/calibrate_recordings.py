"""``clusterloom calibrate recordings``: gloo and its machines from traces, a ping and two server runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.output import console, emit_json, grid, note, number, seconds

if TYPE_CHECKING:
    from sim.spec.calibration import Calibration, Parameter


def recordings(
    files: Annotated[
        list[str], typer.Argument(metavar="DIR|FILE...", help="Recorded CSV tables, or folders of them.")
    ],
    output: Annotated[str, typer.Option("-o", "--output", help="Calibration to write.")],
    traces: Annotated[
        str | None, typer.Option(help="Folder of layer traces; DIR/traces, or DIR, by default.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Fit from layer traces, the ping of two ranks, one synchronous and one asynchronous server run."""
    from sim.calibrate.recordings import fit
    from sim.catalog import default_catalog
    from sim.validate.recordings.rows import find_files, read_rows, trace_folders
    from sim.validate.recordings.trace import Traces
    from sim.yamlio import dumps

    paths = find_files(files)
    rows = [row for path in paths for row in read_rows(path)[1]]
    catalog = default_catalog()
    base = catalog.calibration(("default", "gloo"))
    fitted = fit(Path(output).stem, rows, Traces(trace_folders(files, paths, traces)), base)
    own = catalog.calibration(("gloo",)).merge(fitted.calibration)
    Path(output).write_text(dumps(_data(own, fitted.calibration, base)), encoding="utf-8")
    parameters = _changed(fitted.calibration, base)
    if json:
        emit_json(
            {
                "parameters": [
                    {
                        "key": key, "name": name, "value": p.value, "low": p.at("low"), "high": p.at("high"),
                        "n": p.n, "source": p.source,
                    }
                    for key, name, p in parameters
                ],
                "used": list(fitted.used),
                "output": output,
            }
        )  # fmt: skip
    else:
        columns = [("key", "left"), ("parameter", "left"), ("value", "right"), ("80 % interval", "right")]
        columns += [("from", "left")]
        cells = []
        for key, name, p in parameters:
            show = seconds if name.rsplit("_", 1)[-1] in ("latency", "network") else number
            cells.append((key, name, show(p.value), f"{show(p.at('low'))} .. {show(p.at('high'))}", p.source))
        console().print(grid(columns, cells, title="Parameters"))
    note(f"wrote {output}; not to be judged on: {', '.join(fitted.used)}")
    return 0


def _changed(fitted: Calibration, base: Calibration) -> list[tuple[str, str, Parameter]]:
    """Parameters that the fit has set."""
    return [
        (f"{section}/{key}", name, parameter)
        for section in ("device", "link", "library", "framework")
        for key, entries in getattr(fitted, section).items()
        for name, parameter in entries.items()
        if getattr(base, section).get(key, {}).get(name) != parameter
    ]


def _data(own: Calibration, fitted: Calibration, base: Calibration) -> dict[str, Any]:
    """The fitted parameters as YAML data."""
    data: dict[str, Any] = {
        "schema": 1, "name": fitted.name, "description": "gloo and its machines, fitted to recordings",
        "source": "clusterloom calibrate recordings; each parameter states its own",
    }  # fmt: skip
    for key, name, parameter in _changed(fitted, base):
        section, _, part = key.partition("/")
        data.setdefault(section, {}).setdefault(part, {})[name] = _entry(name, parameter)
    return data


def _entry(name: str, parameter: Parameter) -> dict[str, Any]:
    def written(value: float) -> Any:
        if name.endswith("latency"):
            return f"{value * 1e6:.5g}us"
        return f"{value / 1e9:.5g}GB/s" if name.endswith("bandwidth") else float(f"{value:.5g}")

    entry: dict[str, Any] = {"value": written(parameter.value)}
    if parameter.low is not None and parameter.high is not None:
        entry |= {"low": written(parameter.low), "high": written(parameter.high)}
    return entry | {"n": parameter.n, "source": parameter.source}
