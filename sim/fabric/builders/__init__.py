"""One builder per kind of fabric.

To add a kind: a Wiring, a function that makes it, a line here, and its fields in ``sim.spec.fabric``.
"""

from __future__ import annotations

from collections.abc import Callable

from sim.fabric.builders.base import Ports, Wiring
from sim.fabric.builders.fat_tree import fat_tree
from sim.fabric.builders.torus import ring, torus
from sim.fabric.builders.two_tier import leaf_spine, rail_optimized, single_switch
from sim.spec.fabric import Fabric


def _graph(fabric: Fabric, ports: Ports) -> Wiring:
    from sim.fabric.builders.graph import graph  # networkx is slow to import and needed here only

    return graph(fabric, ports)


__all__ = ["BUILDERS", "Ports", "Wiring"]

BUILDERS: dict[str, Callable[[Fabric, Ports], Wiring]] = {
    "single_switch": single_switch,
    "leaf_spine": leaf_spine,
    "fat_tree": fat_tree,
    "rail_optimized": rail_optimized,
    "torus": torus,
    "ring": ring,
    "graph": _graph,
}
