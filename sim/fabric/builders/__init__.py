"""One builder per kind of fabric.

To add a kind: a Wiring, a function that makes it, a line here, and its fields in ``sim.spec.fabric``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from sim.fabric.builders.base import Ports, Wiring
from sim.fabric.builders.fat_tree import fat_tree
from sim.fabric.builders.torus import hypercube, ring, torus
from sim.fabric.builders.two_tier import leaf_spine, multi_plane, rail_only, rail_optimized, single_switch
from sim.spec.fabric import Fabric


def _on_graph(module: str, name: str) -> Callable[[Fabric, Ports], Wiring]:
    def build(fabric: Fabric, ports: Ports) -> Wiring:  # networkx is slow to import and needed by these only
        builder: Callable[[Fabric, Ports], Wiring] = getattr(import_module(module), name)
        return builder(fabric, ports)

    return build


def build_wiring(fabric: Fabric, ports: Ports) -> Wiring:
    """The fabric between ports, without what is down."""
    wiring = BUILDERS[fabric.kind](fabric, ports)
    if not fabric.failed:
        return wiring
    from sim.fabric.builders.graph import without_failures

    return without_failures(wiring, ports, fabric)


__all__ = ["BUILDERS", "Ports", "Wiring", "build_wiring"]

BUILDERS: dict[str, Callable[[Fabric, Ports], Wiring]] = {
    "single_switch": single_switch,
    "leaf_spine": leaf_spine,
    "fat_tree": fat_tree,
    "rail_optimized": rail_optimized,
    "torus": torus,
    "ring": ring,
    "rail_only": rail_only,
    "multi_plane": multi_plane,
    "hypercube": hypercube,
    "dragonfly": _on_graph("sim.fabric.builders.switched", "dragonfly"),
    "bigraph": _on_graph("sim.fabric.builders.switched", "bigraph"),
    "bcube": _on_graph("sim.fabric.builders.server_centric", "bcube"),
    "dcell": _on_graph("sim.fabric.builders.server_centric", "dcell"),
    "graph": _on_graph("sim.fabric.builders.graph", "graph"),
}
