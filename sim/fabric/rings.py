"""Ring orders inside a host: Hamiltonian cycles over NVLink, and how rings enter and leave through NICs.

NCCL runs a ring collective over several channels. On a mesh of point-to-point NVLinks (DGX-1) each channel
is a Hamiltonian cycle of its own links, used in both directions: three cycles, six rings on eight V100 with
six links each. On an NVSwitch, or over PCIe, one order is as good as many. Over several hosts there is one
ring per NIC in use: it enters a host through its NIC, visits the devices along NVLink, and leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from sim.fabric.host_graph import HostGraph, host_graph
from sim.spec.host import Host

Order = tuple[int, ...]
_Edges = dict[tuple[int, int], int]

_MAX_CYCLES = 2000  # cycles looked at per level of the packing search


@lru_cache(maxsize=4096)
def host_rings(host: Host, devices: Order) -> tuple[Order, ...]:
    """Directed rings over devices of one host that share no NVLink direction; equal shares of the data each.

    Parameters
    ----------
    host : Host
        Host type.
    devices : tuple of int
        Local device indices, at least one.

    Returns
    -------
    tuple of tuple of int
        Orders of ``devices``. One order where NVLinks form no cycle over them (NVSwitch, PCIe, two devices).
    """
    graph = host_graph(host)
    if len(devices) < 3 or graph.switched:
        return (devices,)
    cycles = _mesh_cycles(graph, devices) or _pack_cycles(_multiplicities(graph, devices), devices)
    if not cycles:
        return (_nvlink_path(graph, devices) or devices,)
    return tuple(ring for cycle in cycles for ring in (cycle, (cycle[0], *reversed(cycle[1:]))))


def _is_full_mesh(graph: HostGraph, devices: Order) -> bool:
    """Whether every two devices have an NVLink connection, all of one width."""
    widths = {graph.nvlink.get((a, b), 0.0) for a in devices for b in devices if a != b}
    return len(widths) == 1 and 0.0 not in widths


def _mesh_cycles(graph: HostGraph, devices: Order) -> list[Order]:
    """n - 1 cycles that use every connection of a full mesh of n devices twice; none for other hosts.

    The round-robin tournament pairs n players in n - 1 rounds; where n - 1 is prime, the games of two rounds
    in succession join into one cycle (A. Kotzig, 1963: perfect one-factorisation).
    """
    count = len(devices)
    prime = all((count - 1) % d for d in range(2, count - 1))
    if count % 2 or count < 4 or not prime or not _is_full_mesh(graph, devices):
        return []
    last = count - 1

    def opponent(player: int, game: int) -> int:
        if player == last:
            return game
        return last if player == game else (2 * game - player) % last

    cycles = []
    for game in range(last):
        cycle = [last]
        for step in range(count - 1):
            cycle.append(opponent(cycle[-1], (game + step % 2) % last))
        cycles.append(tuple(devices[player] for player in cycle))
    return cycles


def _multiplicities(graph: HostGraph, devices: Order) -> _Edges:
    """NVLinks between each two devices, counted in the narrowest connection among them."""
    inside = {(a, b): w for (a, b), w in graph.nvlink.items() if a in devices and b in devices}
    unit = min(inside.values(), default=1.0)
    return {edge: round(width / unit) for edge, width in inside.items()}


def _pack_cycles(edges: _Edges, devices: Order) -> list[Order]:
    """As many link-disjoint Hamiltonian cycles as found, the one over the widest connections first."""
    degrees = [sum(count for (a, _), count in edges.items() if a == device) for device in devices]
    most = min(degrees) // 2
    if most < 1:
        return []
    best: list[Order] = []
    for width in sorted(set(edges.values()), reverse=True):
        for i, cycle in enumerate(_cycles({e for e, count in edges.items() if count >= width}, devices)):
            rest = {e: count - width * _on_cycle(e, cycle) for e, count in edges.items()}
            found = [cycle] * width + _pack_cycles({e: c for e, c in rest.items() if c > 0}, devices)
            best = max(best, found, key=len)
            if len(best) >= most or i >= _MAX_CYCLES:
                return best
    return best


def _on_cycle(edge: tuple[int, int], cycle: Order) -> bool:
    apart = abs(cycle.index(edge[0]) - cycle.index(edge[1]))
    return apart in (1, len(cycle) - 1)


def _cycles(edges: set[tuple[int, int]], devices: Order, closed: bool = True) -> Iterator[Order]:
    """Hamiltonian cycles (or paths) from the first device, in lexicographic order."""
    path = [devices[0]]

    def extend() -> Iterator[Order]:
        if len(path) == len(devices):
            if not closed or (path[-1], path[0]) in edges:
                yield tuple(path)
            return
        for device in devices:
            if device not in path and (path[-1], device) in edges:
                path.append(device)
                yield from extend()
                path.pop()

    return extend()


def _nvlink_path(graph: HostGraph, devices: Order) -> Order | None:
    """An open chain over NVLink, if there is one."""
    edges = set(graph.nvlink)
    for start in devices:
        rotated = (start, *(device for device in devices if device != start))
        for path in _cycles(edges, rotated, closed=False):
            return path
    return None


@dataclass(frozen=True)
class Passage:
    """How a ring of several hosts runs through one host: devices in order.

    ``alternate``: it enters and leaves through different NICs, so every second host is passed in reverse;
    then neighbours meet on NICs of the same index (the same rail).
    """

    order: Order
    alternate: bool


def _zigzags(graph: HostGraph, devices: Order) -> list[Order]:
    """Paths that together use every link of a full mesh once; none if the mesh is not full, or odd.

    W. Walecki's decomposition: from each device i of one half, in turn one further up and down, modulo n; and
    the same backwards. So every device is the first of one path and the last of another.
    """
    count = len(devices)
    if count % 2 or not _is_full_mesh(graph, devices):
        return []
    steps = [(step + 1) // 2 if step % 2 else -(step // 2) for step in range(count)]
    paths = [tuple(devices[(start + step) % count] for step in steps) for start in range(count // 2)]
    return [way for path in paths for way in (path, path[::-1])]


@lru_cache(maxsize=4096)
def host_passages(host: Host, devices: Order) -> tuple[Passage, ...]:
    """One passage per NIC that the devices use, balanced over NICs and NVLinks.

    Each passage is a rotation of a ring of :func:`host_rings`. It is chosen to load every NIC equally, then
    to leave through the NIC it entered by, then to spread over the NVLinks.
    """
    graph = host_graph(host)
    nics = [graph.device_nics[device] for device in range(graph.num_devices)]
    num_rings = len({nics[device] for device in devices})
    rings = host_rings(host, devices)
    closed = len(rings) > 1 or graph.switched or not graph.nvlink
    candidates = _zigzags(graph, devices)
    candidates += [
        ring[turn:] + ring[:turn] for turn in range(len(devices) if closed else 1) for ring in rings
    ]
    arrivals, departures = dict.fromkeys(nics, 0), dict.fromkeys(nics, 0)
    used: dict[tuple[int, int], float] = {}
    passages = []
    for _ in range(num_rings):

        def cost(order: Order) -> tuple[int, bool, float]:
            first, last = nics[order[0]], nics[order[-1]]
            crowd = max((used.get(hop, 0.0) for hop in pairwise(order)), default=0.0)
            return max(arrivals[first], departures[last]), first != last, crowd

        order = min(candidates, key=cost)
        arrivals[nics[order[0]]] += 1
        departures[nics[order[-1]]] += 1
        for hop in pairwise(order):
            used[hop] = used.get(hop, 0.0) + 1 / graph.nvlink.get(hop, 1.0)
        passages.append(Passage(order, nics[order[0]] != nics[order[-1]]))
    return tuple(passages)
