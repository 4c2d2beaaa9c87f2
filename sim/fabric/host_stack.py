"""What messages cost a host beside its cables: processors, protocol latency, copies through host memory.

Three things change the paths inside a host (taxonomy D9). A protocol of processors puts one more link in
front of all ports, which bytes of both directions load: cores over processor time per byte. Without GPUDirect
RDMA what a port sends or gets passes the memory next to the device, over its PCIe links, there and back;
without GPUDirect P2P so does what devices without NVLink send each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sim.spec.cluster import Cluster
from sim.spec.host import Host
from sim.wire.transports import TRANSPORTS

Path = tuple[int, ...]
COPY_LATENCY = 5e-6
"""Seconds until a copy between device and host memory has begun and its end is known (cudaMemcpyAsync and an
event; Neugebauer et al. 2018 measure about 1 us for the PCIe round trips alone)."""
UNLIMITED = 1e15
"""Bytes/s of a copy through a memory that nobody describes, and of processors that do nothing per byte."""


@dataclass(frozen=True)
class HostStack:
    """How one type of host talks.

    Attributes
    ----------
    processors : float
        Bytes/s, both directions together, that its processors move; infinite if they take no part.
    latency : float
        Seconds that the protocol adds to each message at each end.
    staged_ports, staged_peers : bool
        Whether traffic of ports, and among devices without NVLink, is copied through host memory.
    memory : float
        Bytes/s of such copies: each writes and reads the memory once.
    """

    processors: float = float("inf")
    latency: float = 0.0
    staged_ports: bool = False
    staged_peers: bool = False
    memory: float = UNLIMITED

    @classmethod
    def of(cls, cluster: Cluster, host: Host) -> HostStack:
        """The stack of a host of a cluster."""
        transport = TRANSPORTS.get(cluster.protocol or "")
        per_byte = transport.cpu_time if transport else 0.0
        cores = cluster.protocol_cores * len(host.nics)
        direct = cluster.uses_gpudirect_rdma
        names = {device.name: device for device in cluster.device_types}
        memory = names[host.cpu_device].memory_bandwidth / 2 if host.cpu_device in names else UNLIMITED
        return cls(
            processors=cores / per_byte if per_byte else float("inf"),
            latency=transport.latency / 2 if transport else 0.0,
            staged_ports=not direct and host.num_devices > 0,
            staged_peers=not cluster.gpudirect_p2p and host.num_devices > 1,
            memory=memory,
        )

    @property
    def has_copies(self) -> bool:
        """Whether anything is copied through host memory."""
        return self.staged_ports or self.staged_peers

    @property
    def has_processing(self) -> bool:
        """Whether messages between hosts load processors or take longer."""
        return self.processors < float("inf") or self.latency > 0


@dataclass(frozen=True)
class Rows:
    """Paths between the attachment points of a host, row-major, while they are changed.

    Attributes
    ----------
    paths : list of tuple of int or None
    devices, width : int
        Devices, and attachment points in all: devices, memory, ports.
    """

    paths: list[Path | None]
    devices: int
    width: int

    @property
    def ports(self) -> range:
        """Attachment points of network ports."""
        return range(self.devices + 1, self.width)

    def change(self, a: int, b: int, path: Callable[[Path], Path | None]) -> None:
        """Replace the path from a point to another, if there is one."""
        row = a * self.width + b
        found = self.paths[row]
        if found is not None:
            changed = path(found)
            self.paths[row] = found if changed is None else changed


Detour = Callable[[int, int], Path | None]
"""From and to (a point each): the way through the memory next to the device, copy included."""


def stage_ports(rows: Rows, detour: Detour) -> None:
    """Send everything between devices and ports through host memory."""
    for device in range(rows.devices):
        for port in rows.ports:
            for a, b in ((device, port), (port, device)):
                rows.change(a, b, lambda path, a=a, b=b: detour(a, b))  # type: ignore[misc]


def stage_peers(rows: Rows, detour: Detour, is_nvlink: Callable[[int], bool]) -> None:
    """Send everything between devices without NVLink through host memory."""
    for a in range(rows.devices):
        for b in range(rows.devices):
            path = rows.paths[a * rows.width + b]
            if a != b and path is not None and not (path and all(is_nvlink(link) for link in path)):
                rows.change(a, b, lambda path, a=a, b=b: detour(a, b))  # type: ignore[misc]


def add_processors(rows: Rows, link: int) -> None:
    """Let all traffic of ports load a link."""
    for point in range(rows.devices + 1):
        for port in rows.ports:
            rows.change(point, port, lambda path: (*path, link))
            rows.change(port, point, lambda path: (link, *path))
