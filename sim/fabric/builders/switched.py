"""Switch fabrics with direct cables between switches: dragonfly and BiGraph.

Dragonfly (J. Kim, W. Dally, S. Scott, D. Abts, ISCA 2008): groups of ``a`` routers, all joined to each other;
``p`` hosts' ports and ``h`` global cables per router; every two groups joined by as many global cables as
there are, laid round robin. Balanced: a = 2p = 2h.

BiGraph (J. Dong et al., EFLOPS, HPCA 2020): two rows of switches, each switch of one row joined to every
switch of the other; even ports hang on the lower row, odd ones on the upper, so that one hop leads from
either port of a host to the other row.
"""

from __future__ import annotations

import math

from sim.errors import InputError
from sim.fabric.builders.base import PathChoice, Ports, Wiring, port_cables, require_size
from sim.fabric.builders.graph import Cable, CableGraph
from sim.spec.fabric import Fabric


def dragonfly(fabric: Fabric, ports: Ports) -> Wiring:
    """Dragonfly of groups of ``k`` routers with ``hosts_per_leaf`` ports each; balanced if absent."""
    per_router = fabric.hosts_per_leaf or _balanced(len(ports))
    routers = fabric.k or 2 * per_router
    groups = max(1, math.ceil(len(ports) / (per_router * routers)))
    global_per_router = max(1, routers // 2)
    if groups - 1 > routers * global_per_router:
        got = f"{groups} groups of {routers} routers"
        hint = f"Try {2 * _balanced(len(ports))} and no hosts_per_leaf, which is balanced."
        raise InputError("cluster.fabric.k", "let every two groups have a cable", got, hint=hint)
    per_pair = routers * global_per_router // max(groups - 1, 1)
    among_groups = per_pair * groups * (groups - 1) // 2
    require_size("k", groups * routers * (routers - 1) // 2 + among_groups, cables=True)
    reach, delay = port_cables(fabric, ports)
    local = fabric.uplink_bandwidth or float(reach[0])
    local_latency = fabric.latency if fabric.uplink_latency is None else fabric.uplink_latency
    far = fabric.global_bandwidth or local
    far_latency = local_latency if fabric.global_latency is None else fabric.global_latency
    cables = [
        Cable(_router(group, i), _router(group, j), local, local_latency)
        for group in range(groups)
        for i in range(routers)
        for j in range(i)
    ]
    used = [0] * groups  # global cables laid so far, for the router that takes the next
    for _ in range(per_pair):
        for a in range(groups):
            for b in range(a):
                one, other = (_router(group, used[group] % routers) for group in (a, b))
                cables.append(Cable(one, other, far, far_latency))
                used[a], used[b] = used[a] + 1, used[b] + 1
    at = [_router(*divmod(port // per_router, routers)) for port in range(len(ports))]
    return CableGraph(cables, ports, PathChoice.of(fabric), (reach, delay), at)


def _balanced(num_ports: int) -> int:
    """Smallest p with room for the ports in a balanced dragonfly: 2p routers of p ports, 2p^2 + 1 groups."""
    ports = 1
    while 2 * ports * ports * (2 * ports * ports + 1) < num_ports:
        ports += 1
    return ports


def _router(group: int, index: int) -> str:
    return f"router{group}_{index}"


def bigraph(fabric: Fabric, ports: Ports) -> Wiring:
    """BiGraph with ``hosts_per_leaf`` ports below each switch and ``num_spines`` switches in each row."""
    side = math.ceil(len(ports) / 2)
    per_switch = fabric.hosts_per_leaf or max(1, math.isqrt(side))
    row = fabric.num_spines or max(1, math.ceil(side / per_switch))
    if row * per_switch < side:
        raise InputError(
            "cluster.fabric.num_spines", f"hold all {len(ports)} ports", f"room for {2 * row * per_switch}"
        )
    require_size("num_spines", row * row, cables=True)
    reach, delay = port_cables(fabric, ports)
    latency = fabric.latency if fabric.uplink_latency is None else fabric.uplink_latency
    between = fabric.uplink_bandwidth or float(reach[0]) * per_switch / row
    cables = [Cable(f"lower{i}", f"upper{j}", between, latency) for i in range(row) for j in range(row)]
    at = [f"{('lower', 'upper')[port % 2]}{port // 2 // per_switch}" for port in range(len(ports))]
    return CableGraph(cables, ports, PathChoice.of(fabric), (reach, delay), at)
