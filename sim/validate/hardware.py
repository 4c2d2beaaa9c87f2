"""Cells that describe hardware -> a :class:`~sim.spec.cluster.Cluster`.

A host is put together from its device, its GPU links and its network ports. What a row leaves open is filled
with the reference design of the system (NVIDIA's DGX and NVL72 documents, named in ``topologies/hosts``) and
reported as an assumption.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

from sim.catalog import Catalog
from sim.spec import Cluster, Device, Fabric, Host
from sim.spec.host import HostLink, Nic
from sim.validate.boards import (
    BOARDS,
    MESHES,
    NVL72_DOMAIN,
    VARIANTS,
    Board,
    board_key,
    count_in_name,
    memory_in_name,
    stated_power,
)
from sim.validate.datasheets import (
    CABLE_LATENCY,
    GIGABIT,
    NVLINK_LATENCY,
    PCIE_LATENCY,
    PORT_LATENCY,
    device_bandwidth,
    ports_each,
)
from sim.validate.rows import Row

MOST_GPUS = 131_072
"""Devices of the largest job that is simulated."""
MOST_GPUS_OF_A_HOST = 256
MEMORY_OF_A_HOST, MODULE_MEMORY = 1e12, 240e9
"""Bytes of a server's memory, and of a processor's for each GPU of its module (480 GB of a Grace for two)."""

_LINKED = r"nvlink|nvswitch|infinity|xgmi|\bici\b|torus|gaudi|roce|all-to-all|fully connected"


class Unsupported(Exception):
    """A row that cannot be simulated; the text is the reason it is counted under."""


def board_name(row: Row) -> str:
    """Key of :data:`BOARDS` for a row's GPU."""
    base = board_key(row.text("gpu"))
    if base is None:
        raise Unsupported(f"unknown GPU {row.text('gpu') or '(none given)'}")
    link = f"{row.text('gpu')} {row.text('intra_link')}".upper()
    if "PCIE" in link and "NVLINK" not in link and f"{base}-PCIE" in BOARDS:
        return f"{base}-PCIE"
    return base


def device_name(row: Row) -> str:
    """Catalogue name of a row's GPU, the nearest memory size."""
    name = board_name(row)
    board = BOARDS[name]
    described = f"{row.text('gpu')} {row.text('intra_link')} {row.text('source_detail')}"
    for (base, pattern), device in VARIANTS.items():
        if base == name and re.search(pattern, described):
            return device
    size = row.number("gpu_mem_gb") or memory_in_name(row.text("gpu"))
    if size is None:
        return next(iter(board.device.values()))
    return board.device[min(board.device, key=lambda known: abs(known - size))]


LOWEST_POWER, USUAL_POWER = 0.3, 0.97
"""Shares of a device's power between which a stated limit is taken for one."""


def power_limit(row: Row, device: Device) -> float | None:
    """Watts that a row limits its GPU to; None where it says nothing, or what the device draws anyway."""
    for column in ("gpu", "notes", "source_detail"):
        watts = stated_power(row.text(column))
        if watts and LOWEST_POWER <= watts / device.peak_power <= USUAL_POWER:
            return watts
    return None


def limited(device: Device, watts: float) -> Device:
    """The device under a lower power limit: a slower clock, the same memory.

    Power of a chip falls about with the square of its clock between its limit and half of it: voltage falls
    with the clock, at first less than in proportion (the 700 and 500 W variants of H100 are told apart
    alike).
    """
    slower = math.sqrt(watts / device.peak_power)
    peaks = {dtype: peak * slower for dtype, peak in device.peak_flops.items()}
    return device.model_copy(update={"peak_flops": peaks, "peak_power": watts})


def build_cluster(row: Row, catalog: Catalog) -> tuple[Cluster, list[str]]:
    """Cluster of a row, and what had to be assumed."""
    name = board_name(row)
    board, assumed = BOARDS[name], []
    gpus = gpu_count(row)
    if gpus is None:
        raise Unsupported("no GPU count")
    if gpus > MOST_GPUS:
        raise Unsupported(f"more than {MOST_GPUS:,} GPUs")
    per_host = _gpus_per_host(row, board, gpus)
    if per_host > MOST_GPUS_OF_A_HOST:
        raise Unsupported(f"more than {MOST_GPUS_OF_A_HOST} GPUs in a host")
    hosts = -(-gpus // per_host)
    ports, speed = _ports(row, board, per_host)
    if hosts > 1 and ports == 0:
        assumed.append("inter_net")
        ports, speed = max(1, min(board.ports[0], per_host)), board.ports[1]
    if hosts > 1 and re.search(r"not stated|recalled", row.text("inter_net")):
        assumed.append("inter_net")
    if not row.text("intra_link"):
        assumed.append("intra_link")
    ports = max(ports, 1)
    speed = speed or board.ports[1]
    nvlink = _nvlink(row, board)
    mesh = MESHES.get(name) if _is_mesh(row, name, per_host) else None
    device = device_name(row)
    power = power_limit(row, catalog.device(device))
    return _cluster(catalog, device, power, per_host, hosts, nvlink, mesh, ports, speed, name), assumed


def gpu_count(row: Row) -> int | None:
    """GPUs of a row: as stated, or those of its nodes, or the product of its degrees, or what names say."""
    gpus, nodes, each = (row.whole(name) for name in ("gpus", "nodes", "gpus_per_node"))
    if gpus is None and nodes and each:
        return nodes * each
    if gpus is None and row.whole("dp"):
        return math.prod(row.whole(name) or 1 for name in ("dp", "tp", "pp", "cp"))
    if gpus is None and nodes and (board := board_key(row.text("gpu"))):
        return nodes * BOARDS[board].gpus
    return gpus or count_in_name(row.text("gpu"))


def _gpus_per_host(row: Row, board: Board, gpus: int) -> int:
    if board.gpus == NVL72_DOMAIN:
        return min(gpus, NVL72_DOMAIN)
    per_host = row.whole("gpus_per_node")
    if per_host is None:
        nodes = row.whole("nodes")
        per_host = -(-gpus // nodes) if nodes else board.gpus
    return min(per_host, gpus)


def _is_mesh(row: Row, name: str, per_host: int) -> bool:
    link = row.text("intra_link").lower()
    return name in MESHES and per_host <= 8 and "nvswitch" not in link and "pcie" not in link


def _nvlink(row: Row, board: Board) -> float:
    """Bytes/s in one direction of a GPU behind NVLink switches."""
    link = row.text("intra_link")
    if link and not re.search(_LINKED, link.lower()):
        return 0.0
    stated = device_bandwidth(link)
    if stated is not None:
        return stated
    return 150e9 if "NVLink2" in link else board.nvlink


def _ports(row: Row, board: Board, per_host: int) -> tuple[int, float]:
    """Network ports of a host and Gb/s of each; (0, 0) where the row does not say."""
    text = row.text("inter_net")
    total = row.number("inter_gbps_per_node")
    counted = ports_each(text)
    if counted:
        return counted
    per_gpu = re.search(r"(\d+)\s*Gb/s per GPU", text)
    if per_gpu:
        return per_host, float(per_gpu[1])
    single = re.search(r"(\d+(?:\.\d+)?)\s*Gb/s", text)
    if total is None and single:
        total = float(single[1])
    if total is None:
        return 0, 0.0
    ports = min(board.ports[0], max(1, round(total / board.ports[1])))
    return ports, total / ports


@lru_cache(maxsize=256)
def _cluster(
    catalog: Catalog,
    device: str,
    power: float | None,
    per_host: int,
    hosts: int,
    nvlink: float,
    mesh: str | None,
    ports: int,
    speed: float,
    name: str,
) -> Cluster:
    board = BOARDS[name]
    spec, processor = catalog.device(device), catalog.device(board.cpu)
    spec = spec if power is None else limited(spec, power)
    host = _host(catalog, spec, per_host, nvlink, mesh, ports, speed, board)
    return Cluster(
        name=f"{device}-{per_host}x{hosts}",
        description="as a published run describes it",
        source="measurements",
        host=host,
        num_hosts=hosts,
        fabric=Fabric(kind="single_switch", latency=CABLE_LATENCY),
        host_types=(host,),
        host_type_of=(0,) * hosts,
        device_types=(spec, processor),
    )


def _host(
    catalog: Catalog,
    device: Device,
    per_host: int,
    nvlink: float,
    mesh: str | None,
    ports: int,
    speed: float,
    board: Board,
) -> Host:
    last, switches, pcie = per_host - 1, -(-per_host // 2), board.pcie
    links = (
        [_link(f"gpu[0-{last}]", f"plx[0-{switches - 1}]", pcie, "pcie")]
        if per_host % 2 == 0
        else [_link(f"gpu{i}", f"plx{i // 2}", pcie, "pcie") for i in range(per_host)]
    )
    sockets = 2 if switches >= 2 else 1
    links += [_link(f"plx{i}", f"cpu{i * sockets // switches}", pcie, "pcie") for i in range(switches)]
    links += [
        _link(f"nic{i}", f"plx{i * switches // ports}", max(pcie, speed * GIGABIT), "pcie")
        for i in range(ports)
    ]
    if sockets == 2:
        links.append(_link("cpu0", "cpu1", 38.4e9, "qpi"))
    if mesh is not None:
        links += [
            link
            for link in catalog.host(mesh).expanded_links
            if link.kind == "nvlink" and max(int(link.a[3:]), int(link.b[3:])) < per_host
        ]
    if board.chip_link:
        links += [_link(f"gpu{i}", "cpu0", board.chip_link, "nvlink") for i in range(per_host)]
    if mesh is None and nvlink and per_host > 1:
        links.append(_link(f"gpu[0-{last}]", "nvswitch0", nvlink, "nvlink"))
    return Host(
        name=f"{device.name}-x{per_host}",
        description="as a published run describes it",
        source="measurements",
        devices=((device.name, per_host),),
        nics=tuple(
            Nic(name=f"nic{i}", bandwidth=speed * GIGABIT, latency=PORT_LATENCY) for i in range(ports)
        ),
        links=tuple(links),
        cpu_cores=64,
        cpu_device=board.cpu,
        memory_bytes=max(MEMORY_OF_A_HOST, board.gpus * MODULE_MEMORY if board.chip_link else 0.0),
    )


def _link(a: str, b: str, bandwidth: float, kind: str) -> HostLink:
    latency = NVLINK_LATENCY if kind == "nvlink" else PCIE_LATENCY
    return HostLink.model_validate({"a": a, "b": b, "bandwidth": bandwidth, "latency": latency, "kind": kind})
