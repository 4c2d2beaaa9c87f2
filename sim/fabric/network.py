"""The network of a cluster: numbered links, vectorised routes, ring orders.

Links inside hosts come first (host by host, each as its type's :class:`HostGraph` numbers them), then those
of the fabric. A transfer between hosts goes from the device to its nearest NIC, through the fabric, and from
the NIC nearest to the receiver; host memory uses the NIC of the same index as its peer. Nothing of size
hosts^2 is stored and no graph is built unless :meth:`Network.graph` is asked for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from sim.errors import InputError
from sim.fabric.builders import BUILDERS, Ports, Wiring
from sim.fabric.host_graph import HostGraph, host_graph
from sim.spec.calibration import Calibration
from sim.spec.cluster import Cluster
from sim.spec.host import Host

if TYPE_CHECKING:
    import networkx

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
_Scalar = TypeVar("_Scalar", bound=np.generic)


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
class _Types:
    """Per host type tables, stacked so that mixed clusters route in one go."""

    num_devices: IntArray
    num_nics: IntArray
    num_points: IntArray
    path_base: IntArray
    paths: IntArray
    reachable: npt.NDArray[np.bool_]
    nic_base: IntArray
    device_nics: IntArray  # a last 0 stands for types without devices

    @classmethod
    def of(cls, graphs: tuple[HostGraph, ...]) -> _Types:
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
            reachable=np.concatenate([graph.reachable for graph in graphs]),
            nic_base=np.cumsum(devices) - devices,
            device_nics=np.array([*(nic for graph in graphs for nic in graph.device_nics), 0], np.int64),
        )


@dataclass(frozen=True, eq=False)
class _Places:
    """Endpoints resolved: host, its type, attachment point, and whether it is host memory."""

    host: IntArray
    kind: IntArray
    point: IntArray
    memory: npt.NDArray[np.bool_]


class Network:
    """Links and routes of a cluster; build with :meth:`Network.build`.

    Attributes
    ----------
    num_devices, num_hosts, num_servers : int
        Devices; hosts of the cluster; hosts of dedicated parameter servers, numbered after them. Endpoints 0
        .. num_devices - 1 are devices (hosts filled in order), ``num_devices + h`` is the memory of host h.
    device_host, device_type : int[D]
        Host of each device; index of its type in ``cluster.device_types``.
    link_capacity, link_latency : float[L]
        Raw bytes/s and seconds of each link; a bundle has the capacity of its members together.
    link_members : int[L]
        Physical links a row stands for.
    """

    def __init__(self, cluster: Cluster, num_server_hosts: int = 0) -> None:
        if not cluster.is_resolved:
            raise InputError("cluster.host", "be resolved by the catalogue", cluster.name)
        self.cluster = cluster
        self.num_hosts, self.num_servers = len(cluster.host_type_of), num_server_hosts
        servers = (cluster.server_type,) if num_server_hosts else ()
        self.host_types: tuple[Host, ...] = (*cluster.host_types, *servers)
        self.host_kind = np.array(
            [*cluster.host_type_of, *[len(cluster.host_types)] * num_server_hosts], np.int64
        )
        self._graphs = tuple(host_graph(host) for host in self.host_types)
        self._types = _Types.of(self._graphs)
        self._number_devices()
        self._number_links()

    @staticmethod
    def build(cluster: Cluster, *, num_server_hosts: int = 0) -> Network:
        """Network of a resolved cluster with extra server hosts; cached by content."""
        return _build(cluster, num_server_hosts)

    def _number_devices(self) -> None:
        counts = self._types.num_devices[self.host_kind]
        counts[self.num_hosts :] = 0  # a server's devices, if it has any, are no workers
        self.first_device = np.cumsum(counts) - counts
        self.num_devices = int(counts.sum())
        self.device_host = np.repeat(np.arange(len(counts)), counts)
        names = {device.name: i for i, device in enumerate(self.cluster.device_types)}
        own = [np.array([names.get(n, -1) for n in host.device_names], np.int64) for host in self.host_types]
        local = np.arange(self.num_devices) - self.first_device[self.device_host]
        stacked = np.concatenate([*own, np.zeros(0, np.int64)])
        self.device_type: IntArray = stacked[self._types.nic_base[self.host_kind[self.device_host]] + local]

    def _number_links(self) -> None:
        sizes = np.array([len(graph.capacity) for graph in self._graphs])[self.host_kind]
        self._first_link = np.cumsum(sizes) - sizes
        self._num_host_links = int(sizes.sum())
        self.ports = self._make_ports()
        self._first_port = np.searchsorted(self.ports.host, np.arange(len(self.host_kind)))
        fabric = self.cluster.fabric
        self.wiring: Wiring = BUILDERS[fabric.kind](fabric, self.ports)
        wired = len(self.wiring.capacity)
        self.link_capacity: FloatArray = np.concatenate([*self._tiled("capacity"), self.wiring.capacity])
        self.link_latency: FloatArray = np.concatenate([*self._tiled("latency"), self.wiring.latency])
        self.link_members: IntArray = np.concatenate(
            [np.ones(self._num_host_links, np.int64), self.wiring.members]
        )
        self.link_kinds: tuple[str, ...] = (
            "nic",
            "fabric",
            *dict.fromkeys(k for g in self._graphs for k in g.kind),
        )
        code = {kind: i for i, kind in enumerate(self.link_kinds)}
        codes = [np.array([code[k] for k in graph.kind], np.int8) for graph in self._graphs]
        outside = np.ones(wired, np.int8)
        outside[: self.wiring.num_port_links] = 0
        self.link_kind_code = np.concatenate([*self._tile(codes), outside])

    def _make_ports(self) -> Ports:
        by_device = self.cluster.fabric.attach == "device"
        if by_device:
            if self.num_servers:
                must = "be host where dedicated parameter servers are used"
                raise InputError("cluster.fabric.attach", must, "device", hint="Use co-located servers.")
            counts, zeros = self._types.num_devices[self.host_kind], np.zeros(self.num_devices)
            index = np.arange(self.num_devices) - self.first_device[self.device_host]
            return Ports(np.repeat(np.arange(len(counts)), counts), index, zeros, zeros, devices=True)
        counts = self._types.num_nics[self.host_kind]
        nics = [host.nics for host in self.host_types]
        return Ports(
            host=np.repeat(np.arange(len(counts)), counts),
            index=np.concatenate([*self._tile([np.arange(len(each)) for each in nics])]),
            bandwidth=np.concatenate(
                [*self._tile([np.array([nic.bandwidth for nic in each]) for each in nics])]
            ),
            latency=np.concatenate([*self._tile([np.array([nic.latency for nic in each]) for each in nics])]),
        )

    def _tiled(self, column: str) -> Iterator[FloatArray]:
        return self._tile([getattr(graph, column) for graph in self._graphs])

    def _tile(self, per_type: Sequence[npt.NDArray[_Scalar]]) -> Iterator[npt.NDArray[_Scalar]]:
        """A column of each host in order, from one per host type; runs of equal hosts at once."""
        edges = np.flatnonzero(np.diff(self.host_kind)) + 1
        for run in np.split(self.host_kind, edges):
            yield np.tile(per_type[run[0]], len(run))

    # --- links ------------------------------------------------------------------------------------------

    @property
    def num_links(self) -> int:
        """Number of links."""
        return len(self.link_capacity)

    @cached_property
    def link_kind(self) -> npt.NDArray[np.str_]:
        """Kind of each link: nvlink, pcie, qpi, memory, nic (host cable) or fabric (between switches)."""
        kinds: npt.NDArray[np.str_] = np.array(self.link_kinds)[self.link_kind_code]
        return kinds

    def effective_capacity(self, calibration: Calibration) -> FloatArray:
        """Achievable bytes/s per link: raw capacity times ``link/<kind>/bandwidth_efficiency``.

        Links between switches take the efficiency of ``nic`` unless the calibration has a ``fabric`` section,
        since what is lost there are the protocol's headers.
        """
        factors = []
        for kind in self.link_kinds:
            key = "nic" if kind == "fabric" and "fabric" not in calibration.link else kind
            factors.append(calibration.value("link", key, "bandwidth_efficiency"))
        effective: FloatArray = self.link_capacity * np.array(factors)[self.link_kind_code]
        return effective

    def link_name(self, link: int) -> str:
        """Readable name, e.g. ``host3/gpu0->nvswitch0`` or ``leaf1->spine2``."""
        if link >= self._num_host_links:
            return "->".join(self.wiring.ends(link - self._num_host_links))
        host = int(np.searchsorted(self._first_link, link, side="right")) - 1
        graph = self._graphs[self.host_kind[host]]
        return f"host{host}/{graph.link_names[link - int(self._first_link[host])]}"

    def memory_endpoint(self, host: int) -> int:
        """Endpoint of the memory of a host; servers follow the cluster's hosts."""
        return self.num_devices + host

    def endpoint_name(self, endpoint: int) -> str:
        """Node name of an endpoint in :meth:`graph`."""
        place = self._place(np.array([endpoint]))
        host = int(place.host[0])
        return f"host{host}/{self._graphs[self.host_kind[host]].point_name(int(place.point[0]))}"

    # --- routes -----------------------------------------------------------------------------------------

    def routes(self, src: npt.ArrayLike, dst: npt.ArrayLike) -> Routes:
        """Links of flows from endpoint ``src[i]`` to ``dst[i]``.

        Raises
        ------
        InputError
            If a host's links do not connect what a flow needs.
        """
        a, b = self._place(np.asarray(src, np.int64)), self._place(np.asarray(dst, np.int64))
        inside = a.host == b.host
        if self.ports.devices:
            inside &= a.memory | b.memory | (a.point == b.point)
        local = self._local(a.host[inside], a.kind[inside], a.point[inside], b.point[inside])
        blocks = [(np.flatnonzero(inside), local, np.ones_like(local, np.float64))]
        outside = np.flatnonzero(~inside)
        if len(outside):
            blocks.append((outside, *self._remote(a, b, outside)))
        return self._assemble(len(inside), blocks)

    def load(self, src: npt.ArrayLike, dst: npt.ArrayLike, relative: npt.ArrayLike = 1.0) -> Load:
        """Coefficient of each link under flows with the given relative bytes, and their largest latency."""
        routes = self.routes(src, dst)
        weights = np.broadcast_to(np.asarray(relative, np.float64), routes.latency.shape)
        amount = np.repeat(weights, np.diff(routes.offsets)) * routes.share
        total = np.bincount(routes.link, amount, self.num_links).astype(np.float64)
        link = np.flatnonzero(total)
        return Load(link, total[link], float(routes.latency.max(initial=0.0)))

    def _place(self, endpoint: IntArray) -> _Places:
        if len(endpoint) and (endpoint.min() < 0 or endpoint.max() >= self.num_devices + len(self.host_kind)):
            last = self.num_devices + len(self.host_kind) - 1
            raise InputError("endpoint", f"be between 0 and {last}", f"{endpoint.min()} to {endpoint.max()}")
        memory = endpoint >= self.num_devices
        device = np.where(memory, 0, endpoint)
        host = np.where(
            memory, endpoint - self.num_devices, self.device_host[device] if self.num_devices else 0
        )
        kind = self.host_kind[host]
        point = np.where(memory, self._types.num_devices[kind], endpoint - self.first_device[host])
        return _Places(host, kind, point, memory)

    def _local(self, host: IntArray, kind: IntArray, a: IntArray, b: IntArray) -> IntArray:
        """Global links of paths inside hosts, int[n, w] padded with -1."""
        row = self._types.path_base[kind] + a * self._types.num_points[kind] + b
        if not self._types.reachable[row].all():
            bad = int(np.flatnonzero(~self._types.reachable[row])[0])
            graph = self._graphs[kind[bad]]
            pair = f"{graph.point_name(int(a[bad]))} and {graph.point_name(int(b[bad]))}"
            raise InputError(f"host.{self.host_types[kind[bad]].name}.links", f"connect {pair}")
        path = self._types.paths[row]
        return np.where(path >= 0, path + self._first_link[host][:, None], -1)

    def _nic_index(self, places: _Places, peers: _Places) -> IntArray:
        """Index in its host of the port each endpoint uses."""
        if self.ports.devices:
            return np.where(places.memory, 0, places.point)
        types = self._types

        def nearest(p: _Places) -> IntArray:
            return np.where(
                p.memory, 0, types.device_nics[types.nic_base[p.kind] + np.where(p.memory, 0, p.point)]
            )

        follow = nearest(peers) % types.num_nics[places.kind]
        return np.where(places.memory, follow, nearest(places))

    def _remote(self, a: _Places, b: _Places, rows: IntArray) -> tuple[IntArray, FloatArray]:
        """Links and shares of flows between hosts: to the port, through the fabric, from the port."""
        a, b = (_Places(p.host[rows], p.kind[rows], p.point[rows], p.memory[rows]) for p in (a, b))
        out, into = self._nic_index(a, b), self._nic_index(b, a)
        first_point = 0 if self.ports.devices else self._types.num_devices + 1
        offset = np.broadcast_to(first_point, self._types.num_devices.shape)
        leave = self._local(a.host, a.kind, a.point, offset[a.kind] + out)
        arrive = self._local(b.host, b.kind, offset[b.kind] + into, b.point)
        hops = self.wiring.route(self._first_port[a.host] + out, self._first_port[b.host] + into)
        between = np.where(hops.link >= 0, hops.link + self._num_host_links, -1)
        ones = np.ones((len(rows), leave.shape[1]))
        return np.concatenate([leave, between, arrive], 1), np.concatenate([ones, hops.share, ones], 1)

    def _assemble(self, n: int, blocks: list[tuple[IntArray, IntArray, FloatArray]]) -> Routes:
        """One ragged table from padded blocks of rows."""
        full = [block for block in blocks if len(block[0]) == n]
        if full:
            return self._compact(*full[0][1:])
        counts, latency = np.zeros(n, np.int64), np.zeros(n)
        padded_latency = np.append(self.link_latency, 0.0)  # entry -1: padding
        for rows, links, shares in blocks:
            counts[rows] = (links >= 0).sum(1)
            latency[rows] = (padded_latency[links] * shares).sum(1)
        offsets = np.zeros(n + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        link, share = np.empty(offsets[-1], np.int64), np.empty(offsets[-1])
        for rows, links, shares in blocks:
            used = links >= 0
            target = (offsets[rows][:, None] + np.cumsum(used, 1) - 1)[used]
            link[target], share[target] = links[used], shares[used]
        return Routes(offsets, link, share, latency)

    def _compact(self, links: IntArray, shares: FloatArray) -> Routes:
        """The ragged table of one padded block that holds every row."""
        used = links >= 0
        offsets = np.zeros(len(links) + 1, np.int64)
        np.cumsum(used.sum(1), out=offsets[1:])
        latency = (np.append(self.link_latency, 0.0)[links] * shares).sum(1)
        return Routes(offsets, links[used], shares[used], latency)

    # --- orders -----------------------------------------------------------------------------------------

    def ring_order(self, devices: npt.ArrayLike) -> IntArray:
        """Devices in the order of one ring a library like NCCL would build; see :meth:`ring_orders`."""
        return self.ring_orders(devices)[0]

    def ring_orders(self, devices: npt.ArrayLike) -> list[IntArray]:
        """All rings of a group, each to carry an equal share; see :func:`sim.fabric.orders.ring_orders`."""
        from sim.fabric.orders import ring_orders

        return ring_orders(self, np.asarray(devices, np.int64))

    def orders(self, devices: npt.ArrayLike, algorithm: str) -> list[IntArray]:
        """Rank orders for any algorithm, equal shares each; see :func:`sim.fabric.orders.orders`."""
        from sim.fabric.orders import orders

        return orders(self, np.asarray(devices, np.int64), algorithm)

    # --- view -------------------------------------------------------------------------------------------

    def arcs(self) -> Iterator[tuple[str, str, int]]:
        """Directed connections as (node, node, link); a half-duplex bus gives two with one link."""
        for host, kind in enumerate(self.host_kind.tolist()):
            for a, b, link in self._graphs[kind].arcs:
                yield f"host{host}/{a}", f"host{host}/{b}", int(self._first_link[host]) + link
        for link in range(len(self.wiring.capacity)):
            yield *self.wiring.ends(link), self._num_host_links + link

    def graph(self) -> networkx.DiGraph[str]:
        """The network as a networkx graph; edges have ``link``, ``capacity``, ``latency``, ``kind``."""
        import networkx as nx

        result: networkx.DiGraph[str] = nx.DiGraph()
        for a, b, link in self.arcs():
            result.add_edge(
                a,
                b,
                link=link,
                capacity=float(self.link_capacity[link]),
                latency=float(self.link_latency[link]),
                kind=str(self.link_kind[link]),
            )
        return result


@lru_cache(maxsize=64)
def _build(cluster: Cluster, num_server_hosts: int) -> Network:
    return Network(cluster, num_server_hosts)
