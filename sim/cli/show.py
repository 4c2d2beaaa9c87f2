"""``clusterloom show``: one catalogue entry with units, derived sizes and sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.output import console, emit_json, escape, existing_folders, note, number, save_fabric, size
from sim.errors import InputError

if TYPE_CHECKING:
    from sim.catalog import Catalog

KINDS = ("workload", "cluster", "strategy", "device", "host", "calibration", "sweep")


def command(
    name: Annotated[str, typer.Argument(help="Name in the catalogue, a YAML file, or `dimension`.")],
    which: Annotated[
        str, typer.Argument(help="With `dimension`: its id or name, e.g. D3.", show_default=False)
    ] = "",
    kind: Annotated[str, typer.Option(help="Kind, where the same name exists in several.")] = "",
    num_hosts: Annotated[int | None, typer.Option(min=1, help="For a cluster: its number of hosts.")] = None,
    plot: Annotated[str, typer.Option(help="For a cluster: draw its fabric, e.g. fabric.svg.")] = "",
    catalog: Annotated[
        list[str] | None, typer.Option(help="Folder of your own catalogue; may repeat.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON in SI units.")] = False,
) -> int:
    """Show one entry: resolved values with units, derived sizes, sources."""
    from sim.catalog import Catalog, kind_of
    from sim.yamlio import dumps

    if name in ("dimension", "dimensions"):
        from sim.cli.show_dimension import show_dimension

        return show_dimension(which, json=json)
    if which:
        raise InputError("NAME", "be one name", f"{name} {which}", hint="Example: show dimension D3.")
    found = Catalog(existing_folders(catalog or ()))
    chosen = kind_of(kind) if kind else _kind_of_name(found, name)
    spec = found.cluster(name, num_hosts=num_hosts) if chosen == "cluster" else found.get(chosen, name)
    derived = _derived(chosen, spec)
    if plot:
        if chosen != "cluster":
            raise InputError("--plot", "be given for a cluster only", f"a {chosen}")
        save_fabric(spec, plot)
    header = _preset(found, name) if chosen == "strategy" else {}
    if json:
        emit_json(
            {
                "kind": chosen,
                **header,
                "spec": spec.model_dump(mode="json", by_alias=True),
                "derived": derived,
            }
        )
        return 0
    screen = console()
    screen.print(f"[bold]{chosen}[/bold] {escape(str(header.get('name') or name))}")
    for label, text in header.items():
        if label not in ("schema", "name") and text:
            lead = "" if label == "description" else f"{label.replace('_', ' ')}: "
            screen.print(escape(f"{lead}{text}"), soft_wrap=True)
    if derived:
        screen.print("\n[bold]derived[/bold]")
        for label, value in derived.items():
            screen.print(f"  {label.replace('_', ' '):<28} {escape(_text(label, value))}")
    screen.print("\n[bold]values[/bold]")
    screen.print(escape(dumps(_readable(chosen, spec)).rstrip()))
    return 0


def _preset(catalog: Catalog, name: str) -> dict[str, Any]:
    return catalog.preset(name).model_dump(mode="json", by_alias=True)


def _kind_of_name(catalog: Catalog, name: str) -> str:
    """The kind that knows a name (or the file's own fields)."""
    if name.endswith(".json"):
        return "workload"
    if name.endswith((".yaml", ".yml")):
        from sim.cli.check import kind_of_document
        from sim.yamlio import load

        return kind_of_document(load(name), name)
    kinds = [each for each in KINDS if name in catalog.names(each)]
    if len(kinds) > 1:
        note(f"{name} is also a {' and a '.join(kinds[1:])}; --kind shows that one")
    if not kinds:
        from sim.suggestions import near_names, setting_of

        close = near_names(name, [known for each in KINDS for known in catalog.names(each)])
        hint = f"Try {', '.join(close)}." if close else "`clusterloom list` shows all names."
        if setting := setting_of(name):
            hint = f"It belongs to a field of strategies ({setting}); see: clusterloom list dimensions."
        raise InputError("NAME", "be in the catalogue", name, hint=hint)
    return kinds[0]


def _derived(kind: str, spec: Any) -> dict[str, Any]:
    if kind == "workload":
        return _workload_sizes(spec)
    if kind == "cluster":
        devices = {device.name: device for device in spec.device_types}
        return {
            "num_hosts": spec.num_hosts,
            "num_devices": spec.num_devices,
            "device_types": ", ".join(devices),
        }
    if kind == "host":
        return {"num_devices": sum(count for _, count in spec.devices), "num_nics": len(spec.nics)}
    return {}


def _workload_sizes(workload: Any) -> dict[str, Any]:
    from sim.models.compute import model_flops
    from sim.spec import DTYPE_BYTES

    forward = float(model_flops(workload))
    return {
        "num_parameters": float(workload.num_parameters),
        "weight_bytes": float(workload.num_parameters) * DTYPE_BYTES[workload.dtype],
        "forward_flops_per_sample": forward,
        "training_flops_per_sample": 3 * forward,
        "num_layers": len(workload.layers),
        "num_blocks": workload.num_blocks,
    }


def _text(label: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if label.endswith("_bytes"):
        return size(value)
    if "flops" in label:
        return f"{value / 1e9:,.4g} GFLOP"
    return number(value) if value < 1e6 else f"{value / 1e6:,.4g} million"


def _readable(kind: str, spec: Any) -> dict[str, Any]:
    """The spec as its YAML file would say it; the layer chain in short."""
    data: dict[str, Any] = spec.to_data(digits=6)
    if kind == "workload":
        layers = spec.layers
        counts = [(layer, layer.parameters + layer.expert_parameters) for layer in layers[:40]]
        data["layers"] = [f"{layer.name} ({layer.kind}, {count:,.0f} parameters)" for layer, count in counts]
        if len(layers) > 40:
            data["layers"].append(f"... {len(layers) - 40} more (--json has all)")
    if kind == "cluster":
        for name in ("host_type_of", "host_types", "device_types", "server_host_type"):
            data.pop(name, None)
        data["devices"] = [device.to_data(digits=6) for device in spec.device_types]
        data["hosts_resolved"] = [host.to_data(digits=6) for host in spec.host_types]
    return data
