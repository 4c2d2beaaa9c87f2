"""``clusterloom check``: validate YAML files, one line per problem with file and line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.output import console, emit_json, escape, existing_folders
from sim.errors import ClusterloomError, InputError

if TYPE_CHECKING:
    from sim.catalog import Catalog
    from sim.spec.cluster import Cluster
    from sim.sweep.plan import Plan
    from sim.yamlio import Document

# Fields that only one kind of file has, most telling first.
_TELLING: tuple[tuple[str, frozenset[str]], ...] = (
    ("sweep", frozenset({"axes", "grids", "points"})),
    ("workload", frozenset({"generator", "layers"})),
    ("device", frozenset({"peak_flops"})),
    ("cluster", frozenset({"fabric"})),
    ("calibration", frozenset({"library", "framework"})),
    ("host", frozenset({"nics", "links"})),
    ("scenario", frozenset({"workload", "cluster"})),
)


def command(
    files: Annotated[
        list[str], typer.Argument(help="YAML files: device, host, cluster, workload, strategy, sweep ...")
    ],
    kind: Annotated[str, typer.Option(help="Kind of the files; by their fields and folder if absent.")] = "",
    catalog: Annotated[
        list[str] | None, typer.Option(help="Folder of your own catalogue; may repeat.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Validate YAML files; messages carry file:line. Exit code 2 for a bad file, 3 for a bad strategy."""
    from sim.catalog import Catalog

    found = Catalog(existing_folders(catalog or ()))
    reports = [_check(found, name, kind) for name in files]
    if json:
        emit_json({"files": reports})
    else:
        screen = console()
        for report in reports:
            mark = "[green]ok[/green]" if report["ok"] else "[red]bad[/red]"
            screen.print(f"{mark}  {escape(report['file'])}  {escape(report['kind'])}", soft_wrap=True)
            for message in report["messages"]:
                screen.print(f"     {escape(message)}", soft_wrap=True)
    codes = [int(report["exit_code"]) for report in reports if not report["ok"]]
    return min(codes) if codes else 0


def kind_of_document(document: Document, name: str) -> str:
    """Kind of a file by the fields only that kind has, else by the folder it lies in, else a strategy."""
    for kind, telling in _TELLING:
        if telling & set(document.data) and (kind != "scenario" or telling <= set(document.data)):
            return kind
    from sim.catalog import FOLDERS

    folder = Path(name).resolve().parent.name
    return next((kind for kind, place in FOLDERS.items() if place.split("/")[-1] == folder), "strategy")


def _check(catalog: Catalog, name: str, kind: str) -> dict[str, Any]:
    from sim.catalog import kind_of
    from sim.yamlio import load

    report: dict[str, Any] = {"file": name, "kind": "", "ok": False, "messages": [], "exit_code": 2}
    try:
        if not Path(name).is_file():
            raise InputError("FILE", "be an existing file", name)
        read = "workload" if name.endswith(".json") else ""
        report["kind"] = kind_of(kind) if kind else read or kind_of_document(load(name), name)
        report["messages"] = _problems(
            catalog, report["kind"], str(Path(name)) if "/" in name else f"./{name}"
        )
        report["ok"] = not report["messages"]
    except ClusterloomError as error:
        report["messages"], report["exit_code"] = [str(error)], error.exit_code
    if report["ok"]:
        report["exit_code"] = 0
    return report


def _require_usable(catalog: Catalog, name: str) -> None:
    """Refuse a host of unknown devices or with devices and ports that its links do not connect."""
    from sim.fabric.host_graph import unconnected
    from sim.spec.host import expand_nodes
    from sim.yamlio import load

    host = catalog.host(name)
    catalog.devices_of(host, name)
    if (pair := unconnected(host)) is None:
        return
    # The link that should lead there, if there is one: of the port rather than of the device.
    places = [
        i
        for node in reversed(pair)
        for i, link in enumerate(host.links)
        if node in expand_nodes(link.a) or node in expand_nodes(link.b)
    ]
    where = load(catalog.find_file("host", name)).where(("links", *places[:1]))
    raise InputError("host.links", f"connect {pair[0]} and {pair[1]}", where=where)


def _messages(catalog: Catalog, path: str, plan: Plan) -> Iterator[str]:
    """What is wrong with the points of a sweep, with the lines that say so."""
    for point in plan.points:
        if point.refusal is not None:
            try:
                with catalog.located("sweep", path):
                    raise point.refusal
            except ClusterloomError as error:
                yield str(error)


def _require_usable_hosts(catalog: Catalog, cluster: Cluster) -> None:
    for given in (cluster.host, *(group.host for group in cluster.hosts), cluster.server_host):
        if isinstance(given, str):
            _require_usable(catalog, given)


def _problems(catalog: Catalog, kind: str, path: str) -> list[str]:
    """Load a file with everything it refers to; a sweep's points are resolved, not run."""
    if kind == "cluster":
        _require_usable_hosts(catalog, catalog.cluster(path))
    elif kind == "host":
        _require_usable(catalog, path)
    elif kind == "workload":
        catalog.workload(path)
    elif kind == "scenario":
        from sim.taxonomy import require_valid

        with catalog.located("scenario", path):
            scenario = catalog.scenario(path)
            _require_usable_hosts(catalog, scenario.cluster)
            require_valid(scenario.strategy, scenario.workload, scenario.cluster)
    elif kind == "sweep":
        from sim.sweep.plan import plan_sweep

        with catalog.located("sweep", path):
            plan = plan_sweep(catalog.sweep(path), folders=tuple(map(str, catalog.folders)))
        return list(dict.fromkeys(_messages(catalog, path, plan)))
    else:
        catalog.get(kind, path)
    return []
