"""A cluster: hosts, how many, and the fabric that joins them."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from pydantic import Field, model_validator

from sim.errors import InputError
from sim.spec.base import BytesPerSecond, CatalogSpec, Spec, refuse
from sim.spec.device import Device
from sim.spec.fabric import Fabric
from sim.spec.host import Host, Storage

MAX_HOSTS = 1_000_000
PROCESSOR_PROTOCOLS = ("dpdk", "tcp")
Protocol = Literal["rdma_ib", "roce_v2", "iwarp", "dpdk", "tcp"]


class HostGroup(Spec):
    """Equal hosts of a mixed cluster; groups are filled in order."""

    host: str | Host = Field(description="kind of the hosts (catalogue name)")
    count: int = Field(ge=1, description="how many of them")


class BackgroundFlow(Spec):
    """Traffic of others at a constant rate: on one link by name, or all the way between two hosts' ports.

    It does not give way: what it takes is gone from each link on its way, split as the fabric splits it.
    """

    link: str | None = Field(None, description="a link as load tables name it, e.g. `leaf0->spine1`")
    source: int | None = Field(None, ge=0, description="host it comes from, through its first port")
    target: int | None = Field(None, ge=0, description="host it goes to, through its first port")
    rate: BytesPerSecond = Field(gt=0, description="bytes/s that it takes")

    @model_validator(mode="after")
    def _one_way(self) -> BackgroundFlow:
        ends = self.source is not None and self.target is not None
        if (self.link is None) != ends or (self.source is None) != (self.target is None):
            refuse("be given, or both source and target", field="link")
        if ends and self.source == self.target:
            refuse("be another host than the source", self.target, field="target")
        return self


class Cluster(CatalogSpec):
    """Hosts joined by a fabric. The catalogue fills ``host_types``, ``host_type_of`` and ``device_types``."""

    host: str | Host | None = Field(
        None, description="the host all machines are; exactly one of host and hosts"
    )
    hosts: tuple[HostGroup, ...] = Field((), description="mixed clusters: groups of equal hosts")
    num_hosts: int | None = Field(
        None, ge=1, le=MAX_HOSTS, description="number of machines; given or derived from `hosts`"
    )
    fabric: Fabric = Field(description="network between hosts")
    library: str = Field(
        "nccl",
        description="collective library: gloo sends messages of segments; nccl and rccl have protocols where "
        "the calibration knows them; any other name steps like NCCL",
    )
    transport: str = Field(
        "verbs",
        description="whose measurements apply, a key of a calibration's links: verbs (InfiniBand, RoCE), "
        "efa, slingshot, tcp, tcpx, tcpxo; what is modelled instead is `protocol`",
    )
    protocol: Protocol | None = Field(
        None,
        description="model of what messages between hosts cost beside links, from textbook figures: headers, "
        "processor time per byte, latency (D9); absent: only what was measured, see `transport`",
    )
    protocol_cores: int = Field(
        1, ge=1, description="processor cores per network port that move bytes, for tcp and dpdk"
    )
    gpudirect_rdma: bool | None = Field(
        None,
        description="network ports read device memory; false: every byte is copied through host memory; if "
        "absent, true unless the protocol is one of processors (tcp, dpdk)",
    )
    gpudirect_p2p: bool = Field(
        True, description="devices without NVLink reach each other over PCIe; false: through host memory"
    )
    server_host: str | Host | None = Field(
        None,
        description="machine of dedicated parameter servers; the first host without its devices if absent",
    )
    storage: Storage | None = Field(None, description="shared storage; each host's local one if absent")
    background: tuple[BackgroundFlow, ...] = Field(
        (), description="constant-rate traffic of others: each takes its rate from the links on its way"
    )
    host_types: tuple[Host, ...] = Field((), description="resolved: distinct hosts")
    host_type_of: tuple[int, ...] = Field((), description="resolved: index into host_types of each host")
    device_types: tuple[Device, ...] = Field((), description="resolved: every device the hosts name")
    server_host_type: Host | None = Field(
        None, description="resolved: machine of dedicated parameter servers"
    )

    @model_validator(mode="after")
    def _one_kind_of_hosts(self) -> Cluster:
        if (self.host is None) == (not self.hosts):
            refuse("be given, or `hosts`, but not both", field="host")
        if self.library == "gloo" and self.fabric.in_network_reduction:
            hint = "Try library nccl."
            refuse(
                "be false: gloo reduces in ranks only", True, hint=hint, field="fabric.in_network_reduction"
            )
        total = sum(group.count for group in self.hosts)
        if self.hosts and self.num_hosts not in (None, total):
            refuse(f"equal the sum of the groups ({total})", self.num_hosts, field="num_hosts")
        return self

    @property
    def uses_gpudirect_rdma(self) -> bool:
        """Whether network ports read and write device memory."""
        return (
            self.protocol not in PROCESSOR_PROTOCOLS if self.gpudirect_rdma is None else self.gpudirect_rdma
        )

    @property
    def is_resolved(self) -> bool:
        """Whether the catalogue has filled in the host and device types."""
        return bool(self.host_types)

    @cached_property
    def size(self) -> int:
        """Number of hosts."""
        return self.num_hosts or sum(group.count for group in self.hosts) or 1

    @cached_property
    def devices_per_host(self) -> tuple[int, ...]:
        """Number of devices of each host."""
        counts = [host.num_devices for host in self.host_types]
        return tuple(counts[kind] for kind in self.host_type_of)

    @cached_property
    def num_devices(self) -> int:
        """Number of devices of all hosts together."""
        return sum(self.devices_per_host)

    @property
    def server_type(self) -> Host:
        """Machine of dedicated parameter servers."""
        return self.server_host_type or self.host_types[0].without_devices

    def host_of(self, index: int) -> Host:
        """Spec of host ``index``."""
        return self.host_types[self.host_type_of[index]]

    def device(self, name: str) -> Device:
        """Device type by name."""
        for device in self.device_types:
            if device.name == name:
                return device
        raise KeyError(name)

    @property
    def main_device(self) -> Device:
        """Device type of the first device."""
        for kind in self.host_type_of:
            if self.host_types[kind].devices:
                return self.device(self.host_types[kind].devices[0][0])
        raise InputError("cluster.host", "have at least one device", self.name)

    @property
    def price_per_hour(self) -> float:
        """Dollars per hour of all hosts and their devices."""
        prices = {device.name: device.price_per_hour for device in self.device_types}
        each = [host.price_per_hour + sum(prices[n] * c for n, c in host.devices) for host in self.host_types]
        return sum(each[kind] for kind in self.host_type_of)

    def with_hosts(self, num_hosts: int) -> Cluster:
        """The same cluster with another number of machines."""
        if num_hosts == self.size:
            return self if self.num_hosts else self.model_copy(update={"num_hosts": num_hosts})
        if self.hosts:
            raise InputError("cluster.num_hosts", f"be {self.size}, the sum of its groups", num_hosts)
        if isinstance(num_hosts, bool) or not isinstance(num_hosts, int) or num_hosts < 1:
            raise InputError("cluster.num_hosts", "be a whole number of at least 1", num_hosts)
        if num_hosts > MAX_HOSTS:
            raise InputError("cluster.num_hosts", f"be at most {MAX_HOSTS}", num_hosts)
        types = (0,) * num_hosts if self.is_resolved else ()
        return self.model_copy(update={"num_hosts": num_hosts, "host_type_of": types})
