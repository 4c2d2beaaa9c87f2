"""``clusterloom list``: what the catalogue holds."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sim.cli.output import console, emit_json, existing_folders, grid

KINDS = ("devices", "hosts", "clusters", "workloads", "strategies", "sweeps", "calibrations")
DIMENSIONS = "dimensions"


def command(
    kind: Annotated[
        str, typer.Argument(help=f"One of {', '.join(KINDS)} (all if absent), or {DIMENSIONS}.")
    ] = "",
    catalog: Annotated[
        list[str] | None, typer.Option(help="Folder of your own catalogue; may repeat.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """List the catalogue (devices, clusters, workloads, strategies ...) or the taxonomy's dimensions."""
    from sim.catalog import Catalog, kind_of

    if kind in (DIMENSIONS, "dimension"):
        return _dimensions(json=json)

    found = Catalog(existing_folders(catalog or ()))
    kinds = [kind_of(kind)] if kind else [kind_of(each) for each in KINDS]
    listing = {each: [_entry(found, each, name) for name in found.names(each)] for each in kinds}
    if json:
        emit_json(listing)
        return 0
    screen = console()
    for each, entries in listing.items():
        rows = [(entry["name"], entry["description"]) for entry in entries]
        title = next((word for word in KINDS if kind_of(word) == each), each)
        screen.print(grid([(title, "left"), ("", "left")], rows))
    return 0


def _dimensions(*, json: bool) -> int:
    from sim.taxonomy import DIMENSIONS as dimensions

    if json:
        rows = [
            {"id": d.id, "name": d.name, "question": d.question, "values": [v.name for v in d.values]}
            for d in dimensions
        ]
        emit_json({"dimensions": rows})
        return 0
    lines = [(d.id, d.name, d.question, ", ".join(v.name for v in d.values)) for d in dimensions]
    columns = [("id", "left"), ("dimension", "left"), ("question", "left"), ("values", "left")]
    screen = console()
    screen.print(grid(columns, lines))
    screen.print("  clusterloom show dimension NAME explains one, with the rules that speak of it")
    return 0


def _entry(catalog: Any, kind: str, name: str) -> dict[str, str]:
    """Name and description without resolving the spec: one bad file must not hide the others."""
    from sim.errors import InputError
    from sim.yamlio import load

    try:
        data = load(catalog.find_file(kind, name)).data
    except InputError as error:
        return {"name": name, "description": f"unreadable: {error}"}
    return {"name": name, "description": " ".join(str(data.get("description", "")).split())}
