"""Inside one host: its links and the path a transfer takes between two of its attachment points.

Attachment points of a host with ``D`` devices and ``N`` NICs are numbered: device i is i, the host memory
(processor) is D, NIC j is D + 1 + j.

Which way a transfer takes follows NCCL's ranking of paths: devices use NVLink, directly or through an
NVSwitch, else two NVLink hops through one other device (NCCL's ``NVB``), else PCIe switches, processors and
the bus between sockets. Nothing is routed through a NIC or, except for NVB, through a device. Among paths of
equally many hops the widest wins, then the one whose nodes come first in the host's description.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from sim.fabric.host_stack import (
    COPY_LATENCY,
    UNLIMITED,
    HostStack,
    Rows,
    add_processors,
    stage_peers,
    stage_ports,
)
from sim.spec.host import Host

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

_Adjacency = list[list[tuple[int, int]]]  # node -> (neighbour, link)
_Path = tuple[int, ...]
_DIRECT = HostStack()


@dataclass(frozen=True, eq=False)
class HostGraph:
    """Links and paths of one host type. Links are numbered locally, one per direction (a bus is one link).

    Attributes
    ----------
    arcs : tuple of (str, str, int)
        Directed connections between named nodes and the link each of them loads.
    capacity, latency : float[l]
        Bytes/s and seconds per link.
    kind : tuple of str
        Link kind of each link.
    paths : int[A * A, w]
        Links from attachment point a to b in row ``a * A + b``, padded with -1.
    reachable : bool[A * A]
        Whether there is a path at all.
    nvlink : dict
        Bandwidth of direct NVLink connections between two devices, bytes/s.
    switched : bool
        Whether all devices meet on NVSwitches (any order of them is a good ring).
    """

    num_devices: int
    num_nics: int
    device_nics: tuple[int, ...]
    arcs: tuple[tuple[str, str, int], ...]
    link_names: tuple[str, ...]
    capacity: FloatArray
    latency: FloatArray
    kind: tuple[str, ...]
    paths: IntArray
    reachable: BoolArray
    memory_node: str
    nvlink: dict[tuple[int, int], float]
    switched: bool

    @property
    def num_points(self) -> int:
        """Number of attachment points."""
        return self.num_devices + 1 + self.num_nics

    def point_name(self, point: int) -> str:
        """Node name of an attachment point."""
        if point < self.num_devices:
            return f"gpu{point}"
        return self.memory_node if point == self.num_devices else f"nic{point - self.num_devices - 1}"


@dataclass(frozen=True)
class _Links:
    """Links of a host while its graph is built; parallel cables between two nodes are one link."""

    arcs: dict[tuple[str, str], int]
    names: list[str]
    capacity: list[float]
    latency: list[float]
    kind: list[str]

    def add(self, a: str, b: str, bandwidth: float, latency: float, kind: str, both: bool) -> None:
        known = self.arcs.get((a, b))
        if known is not None and self.kind[known] == kind:
            self.capacity[known] += bandwidth
            return
        self.arcs[a, b] = len(self.names)
        if both:
            self.arcs[b, a] = len(self.names)
        self.names.append(f"{a}-{b}" if both else f"{a}->{b}")
        self.capacity.append(bandwidth)
        self.latency.append(latency)
        self.kind.append(kind)

    def lone(self, name: str, bandwidth: float, latency: float, kind: str) -> int:
        """A link between no nodes of the description, loaded by both directions."""
        self.names.append(name)
        self.capacity.append(bandwidth)
        self.latency.append(latency)
        self.kind.append(kind)
        return len(self.names) - 1


def _collect(host: Host) -> _Links:
    links = _Links({}, [], [], [], [])
    for link in host.expanded_links:
        half = link.duplex == "half"
        links.add(link.a, link.b, link.bandwidth, link.latency, link.kind, half)
        if not half:
            links.add(link.b, link.a, link.bandwidth, link.latency, link.kind, half)
    return links


@lru_cache(maxsize=256)
def host_graph(host: Host, stack: HostStack = _DIRECT) -> HostGraph:
    """Graph of a host type with a stack, cached by content."""
    links = _collect(host)
    nodes = list(host.nodes)
    memory_node = next((node for node in ("cpu0", "plx0") if node in nodes), "nic0")
    points = [f"gpu{i}" for i in range(host.num_devices)] + [memory_node] + [nic.name for nic in host.nics]
    paths = _all_paths(host, links, nodes, points, stack)
    width = max((len(path) for path in paths if path), default=0)
    table = np.full((len(paths), width), -1, np.int64)
    for row, path in enumerate(paths):
        table[row, : len(path or ())] = path or ()
    is_gpu_pair = [(a, b) for a, b in links.arcs if a.startswith("gpu") and b.startswith("gpu")]
    on_switch = {
        a for (a, b), i in links.arcs.items() if links.kind[i] == "nvlink" and b.startswith("nvswitch")
    }
    return HostGraph(
        num_devices=host.num_devices,
        num_nics=len(host.nics),
        device_nics=host.device_nics,
        arcs=tuple((a, b, link) for (a, b), link in links.arcs.items()),
        link_names=tuple(links.names),
        capacity=np.array(links.capacity, np.float64),
        latency=np.array(links.latency, np.float64),
        kind=tuple(links.kind),
        paths=table,
        reachable=np.array([path is not None for path in paths], np.bool_),
        memory_node=memory_node,
        nvlink={
            (int(a[3:]), int(b[3:])): links.capacity[links.arcs[a, b]]
            for a, b in is_gpu_pair
            if links.kind[links.arcs[a, b]] == "nvlink"
        },
        switched=host.num_devices > 0 and on_switch >= set(points[: host.num_devices]),
    )


def unconnected(host: Host) -> tuple[str, str] | None:
    """Two nodes of a host that traffic needs a path between and that have none; None if all have.

    Every device needs one to every other and to its nearest port; the memory of a host without devices
    needs one to every port.
    """
    graph = host_graph(host)
    first_nic = graph.num_devices + 1
    devices = range(graph.num_devices)
    needed = [(a, first_nic + graph.device_nics[a]) for a in devices]
    needed += [(a, b) for a in devices for b in devices if a != b]
    if not devices:
        needed = [(0, first_nic + nic) for nic in range(graph.num_nics)]
    for a, b in needed:
        if not graph.reachable[a * graph.num_points + b]:
            return graph.point_name(a), graph.point_name(b)
    return None


def _all_paths(
    host: Host, links: _Links, nodes: list[str], points: list[str], stack: HostStack
) -> list[_Path | None]:
    """Path from every attachment point to every other, row-major; None where there is none."""
    number = {name: i for i, name in enumerate(nodes)}
    everything: _Adjacency = [[] for _ in nodes]
    nvlinks: _Adjacency = [[] for _ in nodes]
    for (a, b), link in links.arcs.items():
        everything[number[a]].append((number[b], link))
        if links.kind[link] == "nvlink":
            nvlinks[number[a]].append((number[b], link))
    is_device = [name.startswith("gpu") for name in nodes]
    is_switch = [name.startswith("nvswitch") for name in nodes]
    passable = [not name.startswith(("gpu", "nic")) for name in nodes]
    at = [number.get(name, -1) for name in points]
    # A plain host without any links: the device, the memory and the NICs are one point.
    if not host.links and host.num_devices <= 1:
        plain = Rows([()] * len(points) ** 2, host.num_devices, len(points))
        if stack.staged_ports:
            copy = links.lone("copy", stack.memory, COPY_LATENCY, "memory")
            stage_ports(plain, lambda a, b: (copy,))
        return _processed(plain, links, stack)
    rows: list[_Path | None] = []
    for source in at:
        found = _best_paths(everything, links.capacity, source, passable)
        if is_device[source]:
            switched = _best_paths(nvlinks, links.capacity, source, is_switch)
            relayed = _best_paths(nvlinks, links.capacity, source, is_device)
            for target in range(host.num_devices):
                relay = relayed[target] if len(relayed[target] or ()) <= 2 else None
                found[target] = switched[target] or relay or found[target]
            found[source] = ()
        rows += [found[target] for target in at]
    table = Rows(rows, host.num_devices, len(points))
    if stack.has_copies:
        processors = [i for i, name in enumerate(nodes) if name.startswith("cpu")]
        copy = links.lone("copy", stack.memory, COPY_LATENCY, "memory")
        near = _Memory(everything, links.capacity, passable, at, processors or [at[host.num_devices]], copy)
        if stack.staged_ports:
            stage_ports(table, lambda a, b: near.detour(a, b, device=min(a, b)))
        if stack.staged_peers:
            stage_peers(table, lambda a, b: near.detour(a, b, device=a), lambda i: links.kind[i] == "nvlink")
    _forward(rows, host, links, len(points))
    return _processed(table, links, stack)


def _processed(rows: Rows, links: _Links, stack: HostStack) -> list[_Path | None]:
    """Paths with the processors in front of all ports."""
    if stack.has_processing:
        rate = min(stack.processors, UNLIMITED)
        add_processors(rows, links.lone("processors", rate, stack.latency, "processor"))
    return rows.paths


@dataclass(frozen=True)
class _Memory:
    """Ways through the memory next to a device: of the processor least hops away."""

    adjacency: _Adjacency
    capacity: list[float]
    passable: list[bool]
    at: list[int]
    candidates: list[int]
    copy: int

    def detour(self, a: int, b: int, *, device: int) -> _Path | None:
        """From one attachment point to the memory next to ``device`` and on to another."""
        out = _best_paths(self.adjacency, self.capacity, self.at[device], self.passable)
        reached = [(len(path), node) for node in self.candidates if (path := out[node]) is not None]
        if not reached:
            return None
        memory = min(reached)[1]
        there = _best_paths(self.adjacency, self.capacity, self.at[a], self.passable)[memory]
        back = _best_paths(self.adjacency, self.capacity, memory, self.passable)[self.at[b]]
        return None if there is None or back is None else (*there, self.copy, *back)


def _forward(rows: list[_Path | None], host: Host, links: _Links, width: int) -> None:
    """From a device to the NIC of another: over NVLink to that device if they have one (NCCL's ``PXN``)."""
    first_nic = host.num_devices + 1
    for device in range(host.num_devices):
        for nic in set(host.device_nics) - {host.device_nics[device]}:
            for proxy in (other for other, own in enumerate(host.device_nics) if own == nic):
                across, out = rows[device * width + proxy], rows[proxy * width + first_nic + nic]
                if across and out is not None and all(links.kind[link] == "nvlink" for link in across):
                    rows[device * width + first_nic + nic] = (*across, *out)
                    break


def _best_paths(
    adjacency: _Adjacency, capacity: list[float], source: int, passable: list[bool]
) -> list[_Path | None]:
    """Paths of least hops from a node, the widest of them; only ``passable`` nodes may lie inside a path."""
    paths: list[_Path | None] = [None] * len(adjacency)
    width = [0.0] * len(adjacency)
    paths[source], width[source] = (), float("inf")
    frontier = [source]
    while frontier:
        found: dict[int, tuple[float, _Path]] = {}
        for node in frontier:
            if node != source and not passable[node]:
                continue
            before = paths[node] or ()
            for neighbour, link in adjacency[node]:
                if paths[neighbour] is not None:
                    continue
                wide = min(width[node], capacity[link])
                if neighbour not in found or wide > found[neighbour][0] * (1 + 1e-12):
                    found[neighbour] = wide, (*before, link)
        for node, (wide, path) in found.items():
            paths[node], width[node] = path, wide
        frontier = list(found)
    return paths
