"""A measured collective: a row of a table, the cluster it ran on, and how it is grouped.

Columns are those of ``measurements/collectives.csv``; ``collective`` and ``message_bytes`` must be there,
``hardware`` and ``gpus`` are needed to predict, ``time_us`` (or ``algbw_GBs`` or ``busbw_GBs``) to compare.
Cells may carry a unit of their own (``16MiB``, ``1.2ms``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import pandas as pd

from sim.errors import InputError
from sim.models.collectives import OPERATIONS, bus_factor
from sim.spec.cluster import Cluster
from sim.spec.fabric import Fabric
from sim.spec.host import Host, HostLink, Nic
from sim.units import parse_quantity
from sim.validate.collectives.hardware import (
    Assumptions,
    DeviceFacts,
    Interior,
    NetworkFacts,
    UnknownHardware,
    find_device,
    find_network,
)
from sim.validate.collectives.variants import stated_algorithm
from sim.validate.datasheets import CABLE_LATENCY, NVLINK_LATENCY, PCIE_LATENCY, PORT_LATENCY

# Words of collectives in tables and logs -> operation of sim.models.collectives.
OPERATION_OF = {
    "all_reduce": "all_reduce", "allreduce": "all_reduce",
    "all_gather": "all_gather", "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter", "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all", "all_to_all": "all_to_all", "alltoallv": "all_to_all",
    "broadcast": "broadcast", "reduce": "reduce", "sendrecv": "send", "send_recv": "send", "send": "send",
    "gather": "gather", "scatter": "scatter", "barrier": "barrier",
}  # fmt: skip
_DIRECT = ("all_to_all", "send", "gather", "scatter")
_MOST_GPUS, _MOST_DIRECT = 65536, 4096
_SHORTEST, _LONGEST = 1e-9, 1e6  # seconds that a collective can have been measured to take
# InfiniBand and RoCE are one transport to the library: RDMA verbs.
_TRANSPORT = {"infiniband": "verbs", "roce": "verbs"}
SIZE_BANDS = (("<64KiB", 64 * 1024), ("64KiB-1MiB", 1 << 20), ("1-64MiB", 64 << 20), (">=64MiB", math.inf))


@dataclass(frozen=True)
class Setting:
    """All of a row but its size and time: what the calibration may depend on.

    Attributes
    ----------
    library, family, dtype : str
        ``nccl``, ``rccl``, ``gloo``; version family (``2.27``, or ``""``); element type.
    device, interior, transport : str
        Device, links in the host (``nvlink3``), transport between hosts (``efa``; ``""`` for one host).
    """

    library: str
    family: str
    dtype: str
    device: str
    interior: str
    transport: str

    @property
    def network_kind(self) -> str:
        """Key of the network's parameters: the transport, with the library unless that is NCCL."""
        return self.transport if self.library == "nccl" else f"{self.transport}/{self.library}"


@dataclass(frozen=True)
class Case:
    """What is simulated: an operation on all devices of a cluster, by an algorithm if the row names one."""

    operation: str
    cluster: Cluster
    setting: Setting
    algorithm: str = ""

    @property
    def num_ranks(self) -> int:
        """Devices that take part."""
        return self.cluster.num_devices

    @property
    def shape(self) -> tuple[str, int, int]:
        """Operation (with the algorithm, if stated), ranks and hosts."""
        operation = f"{self.operation}:{self.algorithm}" if self.algorithm else self.operation
        return operation, self.num_ranks, self.cluster.size

    @cached_property
    def key(self) -> tuple[str, str, str, Setting]:
        """Identity; equal keys predict equal times for equal sizes."""
        return self.operation, self.algorithm, self.cluster.name, self.setting


@dataclass(frozen=True)
class Row:
    """One measured row with its case, or the reason why there is none."""

    id: str
    system: str
    operation: str
    size_bytes: float
    time_s: float
    case: Case | None
    message: str = ""

    @property
    def band(self) -> str:
        """Size band for reports."""
        return next((name for name, limit in SIZE_BANDS if self.size_bytes < limit), "not stated")


def read_rows(table: pd.DataFrame) -> list[Row]:
    """Rows of a table in the columns of ``measurements/collectives.csv``.

    Raises
    ------
    InputError
        If a needed column is missing.
    """
    needed = ("collective", "message_bytes")
    missing = [name for name in needed if name not in table.columns]
    if missing:
        raise InputError("measurements", f"have the columns {', '.join(needed)}", f"no {', '.join(missing)}")
    return [_row(number, record) for number, record in enumerate(table.to_dict("records"), 1)]


def _row(number: int, record: Mapping[Hashable, Any]) -> Row:
    text = {str(key): _text(value) for key, value in record.items()}
    name = text["collective"].lower()
    operation = OPERATION_OF.get(name, name)
    size = _number(record.get("message_bytes"), 1.0, "bytes")
    time = _time(record, operation, size)
    row_id = text.get("id") or f"row{number}"
    system = text.get("system") or "unnamed"
    try:
        if not 0 <= size < math.inf:
            raise UnknownHardware(_unusable("message size", text["message_bytes"]))
        case, message = _case(operation, text, _number(record.get("gpus")), _number(record.get("nodes")))
        case = replace(case, algorithm=stated_algorithm(text.get("algorithm", ""), size))
    except UnknownHardware as reason:
        return Row(row_id, system, operation, size, time, None, str(reason))
    return Row(row_id, system, operation, size, time, case, message)


def _unusable(what: str, cell: str) -> str:
    """Why a cell gives no number."""
    return f"{what} makes no sense: {cell}" if cell else f"{what} not stated"


def _text(value: Any) -> str:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value).strip()


def _number(value: Any, scale: float = 1.0, dimension: str = "") -> float:
    """A cell as an SI value: a bare number times ``scale``, or text with a unit; not a number if neither."""
    try:
        return float(value) * scale
    except (TypeError, ValueError):
        pass
    try:
        return parse_quantity(str(value), dimension) if dimension and _text(value) else math.nan
    except InputError:
        return math.nan


def _time(record: Mapping[Hashable, Any], operation: str, size: float) -> float:
    """Seconds of a row, from its time or else from its bandwidth (nccl-tests, doc/PERFORMANCE.md)."""
    time = _number(record.get("time_us"), 1e-6, "seconds")
    if math.isnan(time):
        rate = _number(record.get("algbw_GBs")) * 1e9
        bus, ranks = _number(record.get("busbw_GBs")) * 1e9, _number(record.get("gpus"))
        if math.isnan(rate) and ranks >= 2 and operation in OPERATIONS:
            rate = bus / bus_factor(operation, int(ranks)) if operation != "barrier" else math.nan
        time = size / rate if rate > 0 else math.nan
    return time if _SHORTEST <= time <= _LONGEST else math.nan


def _case(operation: str, text: Mapping[str, str], gpus: float, nodes: float) -> tuple[Case, str]:
    if operation not in OPERATION_OF.values():
        raise UnknownHardware(f"collective not known: {operation or 'none given'}")
    if not 1 <= gpus < math.inf or gpus != int(gpus):
        raise UnknownHardware(_unusable("number of GPUs", text.get("gpus", "")))
    if gpus > (_MOST_DIRECT if operation in _DIRECT else _MOST_GPUS):
        raise UnknownHardware("more GPUs than a collective is laid out over")
    hardware, intra, inter = (text.get(name, "") for name in ("hardware", "intra_link", "inter_network"))
    hosts, notes = _hosts(gpus, nodes, hardware, intra, inter)
    if int(gpus) % hosts:
        raise UnknownHardware("GPUs not spread evenly over nodes")
    cluster, transport, device, assumed = _cluster(
        hardware, intra, inter, int(gpus), hosts, text.get("system", "")
    )
    library, family = library_of(text.get("library_version", ""), device.name)
    dtype = _dtype(text.get("dtype", ""))
    setting = Setting(
        library, family, dtype, device.name, device.interior.name, _TRANSPORT.get(transport, transport)
    )
    return Case(operation, cluster, setting), "; ".join(part for part in (notes, assumed) if part)


def _hosts(gpus: float, nodes: float, hardware: str, intra: str, inter: str) -> tuple[int, str]:
    """Hosts, and what was assumed about them: as many as the usual machine needs where a network is named."""
    if 1 <= nodes < math.inf:
        return int(nodes), ""
    if not inter:
        return 1, "assumed one host"
    per_host = find_device(hardware, intra, inter).per_host
    hosts = max(1, -(-int(gpus) // per_host))
    return hosts, "assumed one host" if hosts == 1 else f"assumed {hosts} hosts"


def library_of(text: str, device: str = "") -> tuple[str, str]:
    """Library and version family (major.minor, or nothing) of a version column."""
    low = text.lower()
    library = "rccl" if "rccl" in low or device.startswith("mi") else "gloo" if "gloo" in low else "nccl"
    version = re.search(r"(?:nccl)[^\d]{0,3}(\d+\.\d+)", low)
    return library, version[1] if version else ""


def _dtype(text: str) -> str:
    low = text.lower()
    if low in ("half", "float16", "fp16", "bfloat16", "bf16"):
        return "half"
    return low or "float"


@lru_cache(maxsize=1024)
def _cluster(
    hardware: str, intra_link: str, inter_network: str, gpus: int, hosts: int, system: str
) -> tuple[Cluster, str, DeviceFacts, str]:
    notes = Assumptions()
    device = find_device(hardware, intra_link, f"{inter_network} {system}")
    if not hardware:
        notes.add(f"assumed {device.name} after the network or system")
    per_host, network = gpus // hosts, NetworkFacts("", 0, 0.0)
    if hosts > 1:
        network = find_network(inter_network, device, per_host, notes, hardware)
        if network.transport == "nvlink":  # one NVLink domain over several machines
            per_host, hosts = gpus, 1
    host = build_host(device, per_host, network)
    fabric = Fabric(kind="single_switch", latency=CABLE_LATENCY)
    name = f"{hosts} x {host.name}"
    cluster = Cluster(
        name=name, source="row", host=host, num_hosts=hosts, fabric=fabric, host_types=(host,),
        host_type_of=(0,) * hosts,
    )  # fmt: skip
    return cluster, network.transport, device, str(notes)


def build_host(device: DeviceFacts, count: int, network: NetworkFacts) -> Host:
    """A machine with ``count`` devices in use, and the NICs nearest to them."""
    used = min(1.0, count / device.per_host)
    num_nics = max(1, round(network.num_nics * used))
    bandwidth = network.bandwidth or 12.5e9  # alone: never used
    if num_nics > count:  # several NICs of one device work as one
        bandwidth, num_nics = bandwidth * num_nics / count, count
    nics = tuple(Nic(name=f"nic{i}", bandwidth=bandwidth, latency=PORT_LATENCY) for i in range(num_nics))
    gigabits = round(bandwidth * 8e-9)
    interior = device.interior
    name = f"{count} {device.name} {interior.kind} {interior.bandwidth / 1e9:g}GB/s"
    if network.transport:
        name += f", {num_nics} x {gigabits}G {network.transport}"
    return Host(
        name=name, source="row", devices=((device.name, count),), nics=nics, cpu_cores=64, memory_bytes=1e12,
        links=(*_device_links(interior, count), *_slots(device, count, num_nics)),
        nic_of_device=tuple(i * num_nics // count for i in range(count)),
    )  # fmt: skip


def _device_links(interior: Interior, count: int) -> tuple[HostLink, ...]:
    if count < 2 or interior.kind == "pcie":
        return ()

    def link(a: str, b: str, bandwidth: float) -> HostLink:
        return HostLink(a=a, b=b, bandwidth=bandwidth, latency=NVLINK_LATENCY, kind="nvlink")

    if interior.kind == "nvswitch":
        return (link(f"gpu[0-{count - 1}]", "nvswitch0", interior.bandwidth),)
    if interior.kind == "pairs":
        return tuple(link(f"gpu{i}", f"gpu{i + 1}", interior.bandwidth) for i in range(0, count - 1, 2))
    if interior.kind == "cube" and count <= 8:
        unit = interior.bandwidth / 6
        return tuple(
            link(f"gpu{a}", f"gpu{b}", width * unit) for a, b, width in _CUBE if a < count and b < count
        )
    full = {"xgmi3": 8, "xgmi2": 8, "nvlink4": 4}.get(interior.name, count)
    each = interior.bandwidth / (max(full, count) - 1)
    return tuple(link(f"gpu{a}", f"gpu{b}", each) for a in range(count) for b in range(a + 1, count))


# NVLinks between pairs of GPUs of a DGX-1 with V100 (see topologies/hosts/dgx-1-v100.yaml).
_CUBE = (
    (0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2), (2, 6, 1),
    (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2),
)  # fmt: skip


def _slots(device: DeviceFacts, count: int, num_nics: int) -> tuple[HostLink, ...]:
    """PCIe: devices and NICs on the root ports of one processor, or of two beyond four devices."""
    sockets = 2 if count > 4 and count % 2 == 0 else 1
    roots = f"cpu[0-{sockets - 1}]" if sockets > 1 else "cpu0"
    common = {"latency": PCIE_LATENCY, "kind": "pcie"}
    links = [HostLink(a=f"gpu[0-{count - 1}]", b=roots, bandwidth=device.pcie, **common)]
    nic_roots = roots if num_nics % sockets == 0 and num_nics >= sockets else "cpu0"
    links.append(HostLink(a=f"nic[0-{num_nics - 1}]", b=nic_roots, bandwidth=device.pcie, **common))
    if sockets > 1:
        links.append(HostLink(a="cpu0", b="cpu1", bandwidth=96e9, latency=0.3e-6, kind="qpi"))
    return tuple(links)
