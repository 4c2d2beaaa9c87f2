"""The network of a cluster: numbered links, vectorised routes, ring orders.

Links inside hosts come first (host by host, each as its type's :class:`HostGraph` numbers them), then those
of the fabric. A transfer between hosts goes from the device to its nearest NIC, through the fabric, and from
the NIC nearest to the receiver; host memory uses the NIC of the same index as its peer. Nothing of size
hosts^2 is stored and no graph is built unless :meth:`Network.graph` is asked for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from sim.errors import InputError
from sim.fabric.builders import Ports, Wiring, build_wiring
from sim.fabric.host_graph import host_graph
from sim.fabric.host_stack import HostStack
from sim.fabric.routes import (
    FloatArray,
    HostTables,
    IntArray,
    Load,
    Lookup,
    Paths,
    Places,
    Routes,
    Segment,
    assemble,
    compact,
    drop_held_back,
)
from sim.spec.calibration import Calibration
from sim.spec.cluster import Cluster
from sim.spec.host import Host
from sim.wire.transports import TRANSPORTS

if TYPE_CHECKING:
    import networkx

_Scalar = TypeVar("_Scalar", bound=np.generic)


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
        self._graphs = tuple(host_graph(host, HostStack.of(cluster, host)) for host in self.host_types)
        self._types = HostTables.of(self._graphs)
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
        self.forwards = fabric.rail_forwarding or fabric.kind in ("rail_only", "multi_plane")
        self.wiring: Wiring = build_wiring(fabric, self.ports)
        wired = len(self.wiring.capacity)
        transport = TRANSPORTS.get(self.cluster.protocol or "")
        carried = self.wiring.capacity * (transport.goodput if transport else 1.0)
        self.link_capacity: FloatArray = np.concatenate([*self._tiled("capacity"), carried])
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
            stated = kind != "processor"  # its rate is what processors attain
            factors.append(calibration.value("link", key, "bandwidth_efficiency") if stated else 1.0)
        effective: FloatArray = self.link_capacity * np.array(factors)[self.link_kind_code]
        return effective

    def spared(self, capacity: FloatArray) -> FloatArray:
        """What the cluster's background traffic leaves of each link's bytes/s.

        Raises
        ------
        InputError
            If it names a link or host that there is not, or leaves nothing of a link.
        """
        if not self.cluster.background:
            return capacity
        from sim.fabric.background import background_load

        left = capacity - background_load(self)
        empty = np.flatnonzero(left <= 0)
        if len(empty):
            link = int(empty[0])
            must = f"leave some of {self.link_name(link)}, which carries {capacity[link]:.4g} bytes/s"
            raise InputError("cluster.background", must, f"{capacity[link] - left[link]:.4g} bytes/s")
        return left

    def link_name(self, link: int) -> str:
        """Readable name, e.g. ``host3/gpu0->nvswitch0`` or ``leaf1->spine2``."""
        if link >= self._num_host_links:
            return "->".join(self.wiring.ends(link - self._num_host_links))
        host = int(np.searchsorted(self._first_link, link, side="right")) - 1
        graph = self._graphs[self.host_kind[host]]
        return f"host{host}/{graph.link_names[link - int(self._first_link[host])]}"

    def host_links(self, host: int) -> tuple[int, int]:
        """First link inside a host, and the one after its last."""
        first = int(self._first_link[host])
        return first, first + len(self._graphs[self.host_kind[host]].capacity)

    def port_of_device(self, devices: IntArray) -> IntArray:
        """Port that each device's messages leave by."""
        place = self._place(devices)
        port: IntArray = self._first_port[place.host] + self._nic_index(place, place)
        return port

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
        return self.trace(self.paths(src, dst))

    def load(self, src: npt.ArrayLike, dst: npt.ArrayLike, relative: npt.ArrayLike = 1.0) -> Load:
        """Coefficient of each link under flows with the given relative bytes, and their largest latency."""
        routes = self.routes(src, dst)
        weights = np.broadcast_to(np.asarray(relative, np.float64), routes.latency.shape)
        amount = np.repeat(weights, np.diff(routes.offsets)) * routes.share
        total = np.bincount(routes.link, amount, self.num_links).astype(np.float64)
        link = np.flatnonzero(total)
        return Load(link, total[link], float(routes.latency.max(initial=0.0)))

    def paths(self, src: npt.ArrayLike, dst: npt.ArrayLike) -> Paths:
        """Paths inside hosts and ports of flows: the first half of :meth:`routes`."""
        a, b = self._place(np.asarray(src, np.int64)), self._place(np.asarray(dst, np.int64))
        within = a.host == b.host
        if self.ports.devices:
            within &= a.memory | b.memory | (a.point == b.point)
        inside, outside = np.flatnonzero(within), np.flatnonzero(~within)
        x, y = a.take(inside), b.take(inside)
        local = Segment(x.host, self._row(x.kind, x.point, y.point))
        x, y = a.take(outside), b.take(outside)
        into = self._nic_index(y, x)
        # NCCL's PXN: over NVLink to the device on the receiver's rail.
        out = into % self._types.num_nics[x.kind] if self.forwards else self._nic_index(x, y)
        first = np.zeros_like(self._types.num_devices) if self.ports.devices else self._types.num_devices + 1
        return Paths(
            inside,
            local,
            outside,
            Segment(x.host, self._row(x.kind, x.point, first[x.kind] + out)),
            Segment(y.host, self._row(y.kind, first[y.kind] + into, y.point)),
            self._first_port[x.host] + out,
            self._first_port[y.host] + into,
        )

    def trace(self, paths: Paths, lookup: Lookup | None = None) -> Routes:
        """Routes along paths. Links that are not in ``lookup`` are not listed; their latency still counts."""
        lookup = self._all_links if lookup is None else lookup
        blocks = []
        if len(paths.inside):
            local = self._local(paths.local, lookup.local)
            delay = self._types.path_latency[paths.local.row]
            blocks.append((paths.inside, compact(local, np.broadcast_to(1.0, local.shape), delay)))
        if len(paths.outside):
            blocks.append((paths.outside, self._remote(paths, lookup)))
        return assemble(paths.num_flows, blocks)

    @cached_property
    def _all_links(self) -> Lookup:
        """Every link there is."""
        table = self._types.paths
        return Lookup(table, table, table, np.ones(len(self.wiring.capacity), bool))

    def without_held_back(self, flows: Sequence[Paths], capacity: FloatArray) -> Lookup:
        """Links that the ports in front of (or behind) them may fill. Serves these flows only.

        A quick test, the same for all hosts of a type: a link inside a host is left out if only flows that
        leave (or only flows that arrive) use it, and the ports they use are together no wider than the link;
        a link between switches if all ports that could use it are together no wider.

        Parameters
        ----------
        flows : sequence of Paths
            All flows that there will ever be.
        capacity : float[L]
            Bytes/s of every link.
        """
        if self.ports.devices or not len(self.ports):
            return self._all_links
        rate = capacity[self._num_host_links :][: 2 * len(self.ports)].reshape(2, -1)
        between = self.wiring.demand(*rate) > capacity[self._num_host_links :] * (1 + 1e-12)
        tables = np.tile(self._types.paths, (3, 1, 1))  # local, leaving and arriving flows
        used = np.zeros((3, len(self._types.paths)), bool)
        for each in flows:
            for rows, segment in zip(used, (each.local, each.leave, each.arrive), strict=True):
                rows[segment.row] = True
        tables[~used] = -1
        for kind, graph in enumerate(self._graphs):
            mine = self.host_kind[self.ports.host] == kind
            if mine.any():
                own = slice(self._types.path_base[kind], self._types.path_base[kind] + graph.num_points**2)
                widest = np.zeros((2, graph.num_nics))
                for nics, ports in zip(widest, rate, strict=True):
                    np.maximum.at(nics, self.ports.index[mine], ports[mine])
                first = self._first_link[self.host_kind == kind]
                least = capacity[first[:, None] + np.arange(len(graph.capacity))].min(0)
                drop_held_back(graph, tables[:, own], widest, least)
        local, leave, arrive = (table[:, (table >= 0).any(0)] for table in tables)
        return Lookup(local, leave, arrive, between)

    def _place(self, endpoint: IntArray) -> Places:
        if len(endpoint) and (endpoint.min() < 0 or endpoint.max() >= self.num_devices + len(self.host_kind)):
            last = self.num_devices + len(self.host_kind) - 1
            raise InputError("endpoint", f"be between 0 and {last}", f"{endpoint.min()} to {endpoint.max()}")
        memory = endpoint >= self.num_devices
        if not memory.any():
            host = self.device_host[endpoint]
            return Places(host, self.host_kind[host], endpoint - self.first_device[host], memory)
        device = np.where(memory, 0, endpoint)
        host = np.where(
            memory, endpoint - self.num_devices, self.device_host[device] if self.num_devices else 0
        )
        kind = self.host_kind[host]
        point = np.where(memory, self._types.num_devices[kind], endpoint - self.first_device[host])
        return Places(host, kind, point, memory)

    def _row(self, kind: IntArray, a: IntArray, b: IntArray) -> IntArray:
        """Rows of the table of paths between points of a host type."""
        row: IntArray = self._types.path_base[kind] + a * self._types.num_points[kind] + b
        reachable = self._types.reachable[row]
        if not reachable.all():
            bad = int(np.flatnonzero(~reachable)[0])
            graph = self._graphs[kind[bad]]
            pair = f"{graph.point_name(int(a[bad]))} and {graph.point_name(int(b[bad]))}"
            raise InputError(f"host.{self.host_types[kind[bad]].name}.links", f"connect {pair}")
        return row

    def _local(self, segment: Segment, table: IntArray) -> IntArray:
        """Global links of paths inside hosts, int[n, w] padded with -1."""
        listed = (table >= 0).any(axis=0)  # links that nobody asks for leave whole columns of padding
        if not listed.any():
            return np.full((len(segment.row), 0), -1, np.int64)
        path = (table if listed.all() else np.ascontiguousarray(table[:, listed]))[segment.row]
        return np.where(path >= 0, path + self._first_link[segment.host][:, None], -1)

    def _nic_index(self, places: Places, peers: Places) -> IntArray:
        """Index in its host of the port each endpoint uses."""
        if self.ports.devices:
            return np.where(places.memory, 0, places.point)
        types = self._types

        def nearest(p: Places) -> IntArray:
            return np.where(
                p.memory, 0, types.device_nics[types.nic_base[p.kind] + np.where(p.memory, 0, p.point)]
            )

        if not places.memory.any():
            return nearest(places)
        follow = nearest(peers) % types.num_nics[places.kind]
        return np.where(places.memory, follow, nearest(places))

    def _remote(self, paths: Paths, lookup: Lookup) -> Routes:
        """Flows between hosts: to the port, through the fabric, from the port."""
        leave, arrive = self._local(paths.leave, lookup.leave), self._local(paths.arrive, lookup.arrive)
        hops = self.wiring.route(paths.out_port, paths.in_port)
        delay = (np.append(self.wiring.latency, 0.0)[hops.link] * hops.share).sum(1)  # entry -1: padding
        delay += self._types.path_latency[paths.leave.row] + self._types.path_latency[paths.arrive.row]
        if not lookup.between.any():  # no link between switches can hold anybody back
            links = np.concatenate([leave, arrive], 1)
            return compact(links, np.broadcast_to(1.0, links.shape), delay)
        listed = np.append(lookup.between, False)[hops.link]
        between = np.where(listed, hops.link + self._num_host_links, -1)
        shares = [np.broadcast_to(1.0, leave.shape), hops.share, np.broadcast_to(1.0, arrive.shape)]
        return compact(np.concatenate([leave, between, arrive], 1), np.concatenate(shares, 1), delay)

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


@lru_cache(maxsize=128)
def _build(cluster: Cluster, num_server_hosts: int) -> Network:
    return Network(cluster, num_server_hosts)
