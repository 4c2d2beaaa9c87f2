"""Tables of routes, and what they are made from: paths inside hosts, ports, links to look up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.fabric.host_graph import HostGraph

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Routes:
    """Links of each of ``n`` flows: row ``i`` is ``offsets[i]:offsets[i + 1]`` of ``link`` and ``share``.

    Attributes
    ----------
    offsets, link : int[n + 1], int[nnz]
        Links in order from sender to receiver; equal paths of a split flow side by side.
    share : float[nnz]
        Part of the flow on the link.
    latency : float[n]
        Seconds; sum over the links of the path (mean over equal paths).
    """

    offsets: IntArray
    link: IntArray
    share: FloatArray
    latency: FloatArray

    def rows(self) -> IntArray:
        """Flow of each entry."""
        return np.repeat(np.arange(len(self.latency)), np.diff(self.offsets))


@dataclass(frozen=True, eq=False)
class Load:
    """What a set of simultaneous equal-rate flows puts on the network.

    Attributes
    ----------
    link, coefficient : int[m], float[m]
        Loaded links, ascending, and the sum of the relative bytes of flows on each.
    latency : float
        Largest latency of a flow, seconds.
    """

    link: IntArray
    coefficient: FloatArray
    latency: float


@dataclass(frozen=True, eq=False)
class HostTables:
    """Per host type tables, stacked so that mixed clusters route in one go."""

    num_devices: IntArray
    num_nics: IntArray
    num_points: IntArray
    path_base: IntArray
    paths: IntArray
    path_latency: FloatArray
    reachable: BoolArray
    nic_base: IntArray
    device_nics: IntArray  # a last 0 stands for types without devices

    @classmethod
    def of(cls, graphs: tuple[HostGraph, ...]) -> HostTables:
        """Stack the tables of the given host types."""
        width = max((graph.paths.shape[1] for graph in graphs), default=0)
        padded = [
            np.pad(g.paths, ((0, 0), (0, width - g.paths.shape[1])), constant_values=-1) for g in graphs
        ]
        points = np.array([graph.num_points for graph in graphs])
        devices = np.array([graph.num_devices for graph in graphs])
        return cls(
            num_devices=devices,
            num_nics=np.array([graph.num_nics for graph in graphs]),
            num_points=points,
            path_base=np.cumsum(points**2) - points**2,
            paths=np.concatenate(padded),
            path_latency=np.concatenate([np.append(g.latency, 0.0)[g.paths].sum(1) for g in graphs]),
            reachable=np.concatenate([graph.reachable for graph in graphs]),
            nic_base=np.cumsum(devices) - devices,
            device_nics=np.array([*(nic for graph in graphs for nic in graph.device_nics), 0], np.int64),
        )


@dataclass(frozen=True, eq=False)
class Places:
    """Endpoints resolved: host, its type, attachment point, and whether it is host memory."""

    host: IntArray
    kind: IntArray
    point: IntArray
    memory: BoolArray

    def take(self, index: IntArray) -> Places:
        """The places of some flows."""
        if len(index) == len(self.host):
            return self
        return Places(self.host[index], self.kind[index], self.point[index], self.memory[index])


@dataclass(frozen=True, eq=False)
class Segment:
    """Paths inside hosts: host, and row of the host types' table of paths, of each flow."""

    host: IntArray
    row: IntArray


@dataclass(frozen=True, eq=False)
class Paths:
    """What flows take before links are looked up.

    Attributes
    ----------
    inside, outside : int arrays
        Flows that stay in a host, and flows that leave it; ``local`` belongs to the former, the rest to the
        latter.
    local, leave, arrive : Segment
        From device to device, from device to port, from port to device.
    out_port, in_port : int arrays
        Ports of the fabric.
    """

    inside: IntArray
    local: Segment
    outside: IntArray
    leave: Segment
    arrive: Segment
    out_port: IntArray
    in_port: IntArray

    @property
    def num_flows(self) -> int:
        """Number of flows."""
        return len(self.inside) + len(self.outside)


@dataclass(frozen=True, eq=False)
class Lookup:
    """Where :meth:`Network.trace` looks links up.

    Attributes
    ----------
    local, leave, arrive : int[r, w]
        Links of the paths inside host types that each kind of :class:`Segment` takes, padded with -1.
    between : bool[l]
        Which of the fabric's links to list.
    """

    local: IntArray
    leave: IntArray
    arrive: IntArray
    between: BoolArray


def drop_held_back(graph: HostGraph, tables: IntArray, rate: FloatArray, capacity: FloatArray) -> None:
    """Take links that the NICs cannot fill out of one host type's paths.

    Parameters
    ----------
    graph : HostGraph
    tables : int[3, A * A, w]
        Links of the paths that local, leaving and arriving flows take; changed in place.
    rate : float[2, N]
        Bytes/s of each NIC, out and in.
    capacity : float[l]
        Bytes/s of the host's links.
    """
    if not len(capacity):  # a host without links: all its points are one
        return
    used = np.zeros((3, len(capacity)), bool)
    demand = np.zeros((2, len(capacity)))
    for way, table in enumerate(tables):
        rows, columns = np.nonzero(table >= 0)
        used[way, table[rows, columns]] = True
        if way:  # leaving: from a point to a NIC; arriving: from a NIC to a point
            nic = np.divmod(rows, graph.num_points)[2 - way] - graph.num_devices - 1
            feeds = np.zeros((len(capacity), graph.num_nics), bool)
            feeds[table[rows, columns], nic] = True
            demand[way - 1] = feeds @ rate[way - 1]
    one_way = used[1:] & ~used[0] & ~used[:0:-1]
    held_back = (one_way & (demand <= capacity * (1 + 1e-12))).any(0)
    tables[held_back[tables] & (tables >= 0)] = -1


def compact(links: IntArray, shares: FloatArray, latency: FloatArray) -> Routes:
    """The ragged table of one padded block."""
    used = links >= 0
    offsets = np.zeros(len(links) + 1, np.int64)
    np.cumsum(np.count_nonzero(used, axis=1), out=offsets[1:])
    return Routes(offsets, links[used], shares[used], latency)


def assemble(n: int, blocks: list[tuple[IntArray, Routes]]) -> Routes:
    """One ragged table from the routes of some rows each."""
    if len(blocks) == 1:
        return blocks[0][1]
    counts, latency = np.zeros(n, np.int64), np.zeros(n)
    for rows, part in blocks:
        counts[rows], latency[rows] = np.diff(part.offsets), part.latency
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    link, share = np.empty(offsets[-1], np.int64), np.empty(offsets[-1])
    for rows, part in blocks:
        target = np.arange(len(part.link)) + np.repeat(offsets[rows] - part.offsets[:-1], counts[rows])
        link[target], share[target] = part.link, part.share
    return Routes(offsets, link, share, latency)
