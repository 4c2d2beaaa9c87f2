"""Small clusters for tests, written out so that expected values can be read off."""

from __future__ import annotations

from typing import Any

from sim.spec import Cluster, Device, Fabric, Host, HostLink, Nic

NVLINK = 25e9  # one NVLink 2 connection, one direction
# NVIDIA DGX-1 with V100, `nvidia-smi topo -m`: connections per pair of devices.
DGX1_PAIRS = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def device(name: str = "unit") -> Device:
    """A device of round numbers."""
    return Device(
        name=name,
        kind="gpu",
        peak_flops={"fp32": 1e13},
        memory_bytes=16e9,
        memory_bandwidth=1e12,
        idle_power=50,
        peak_power=300,
        price_per_hour=1,
        num_multiprocessors=80,
    )


def host(num_devices: int, nics: tuple[Nic, ...], links: tuple[HostLink, ...] = (), **fields: Any) -> Host:
    """A host of unit devices."""
    devices = (("unit", num_devices),) if num_devices else ()
    return Host(
        name=f"host-{num_devices}",
        devices=devices,
        nics=nics,
        links=links,
        cpu_cores=8,
        memory_bytes=64e9,
        **fields,
    )


def plain_host(bandwidth: float = 50e9, latency: float = 0.0) -> Host:
    """One device that is its NIC."""
    return host(1, (Nic(name="nic0", bandwidth=bandwidth, latency=latency),))


def switched_host(num_devices: int = 8, num_nics: int = 8, nvlink: float = 300e9, nic: float = 25e9) -> Host:
    """NVSwitch, one PCIe switch per two devices, two sockets: the shape of a DGX A100."""
    switches = max(1, num_devices // 2)
    links = (
        HostLink(a=f"gpu[0-{num_devices - 1}]", b="nvswitch0", bandwidth=nvlink, latency=1e-6, kind="nvlink"),
        HostLink(
            a=f"gpu[0-{num_devices - 1}]",
            b=f"plx[0-{switches - 1}]",
            bandwidth=32e9,
            latency=5e-7,
            kind="pcie",
        ),
        HostLink(
            a=f"nic[0-{num_nics - 1}]", b=f"plx[0-{switches - 1}]", bandwidth=32e9, latency=5e-7, kind="pcie"
        ),
        HostLink(a=f"plx[0-{switches - 1}]", b="cpu[0-1]", bandwidth=32e9, latency=5e-7, kind="pcie"),
        HostLink(a="cpu0", b="cpu1", bandwidth=40e9, latency=5e-7, kind="qpi"),
    )
    return host(
        num_devices, tuple(Nic(name=f"nic{i}", bandwidth=nic, latency=1e-6) for i in range(num_nics)), links
    )


def dgx1(num_nics: int = 4) -> Host:
    """Eight V100 in the hybrid cube mesh, four PCIe switches, two sockets with a half-duplex bus."""
    mesh = tuple(
        HostLink(a=f"gpu{a}", b=f"gpu{b}", bandwidth=NVLINK * count, latency=1e-6, kind="nvlink")
        for (a, b), count in DGX1_PAIRS.items()
    )
    tree = (
        HostLink(a="gpu[0-7]", b="plx[0-3]", bandwidth=16e9, latency=5e-7, kind="pcie"),
        HostLink(
            a=f"nic[0-{num_nics - 1}]", b=f"plx[0-{num_nics - 1}]", bandwidth=16e9, latency=5e-7, kind="pcie"
        ),
        HostLink(a="plx[0-3]", b="cpu[0-1]", bandwidth=16e9, latency=5e-7, kind="pcie"),
        HostLink(a="cpu0", b="cpu1", bandwidth=19.2e9, latency=5e-7, kind="qpi", duplex="half"),
    )
    return host(
        8, tuple(Nic(name=f"nic{i}", bandwidth=12.5e9, latency=1e-6) for i in range(num_nics)), mesh + tree
    )


def cluster(host_type: Host, num_hosts: int, **fabric: Any) -> Cluster:
    """A resolved cluster of equal hosts; fabric defaults to one switch."""
    return Cluster(
        name="test",
        host=host_type,
        num_hosts=num_hosts,
        fabric=Fabric(**({"kind": "single_switch"} | fabric)),
        host_types=(host_type,),
        host_type_of=(0,) * num_hosts,
        device_types=(device(),),
    )
