"""The machines of a recording: hosts of one rank each behind one switch."""

from __future__ import annotations

from collections.abc import Mapping

from sim.spec import Cluster, Device, Fabric, Host, HostGroup, Nic

WORKER, SERVER = "recorded-rank", "recorded-server"


def _device(name: str, memory_bandwidth: float) -> Device:
    return Device(
        name=name,
        kind="cpu",
        # Times are measured: no product is ever timed by this.
        peak_flops={"fp32": 1e11},
        memory_bytes=64e9,
        memory_bandwidth=memory_bandwidth,
        idle_power=1,
        peak_power=1,
        price_per_hour=0,
        num_multiprocessors=1,
    )


def recorded_cluster(
    num_hosts: int,
    *,
    rate: float,
    delay: float,
    memory_bandwidth: float,
    slow_links: Mapping[int, float] | None = None,
    server_rate: float | None = None,
    queued: bool = False,
) -> Cluster:
    """A star of hosts with one rank each that talk through gloo.

    Parameters
    ----------
    num_hosts : int
    rate : float
        Bytes/s of every host's cable.
    delay : float
        Seconds one way of one cable; two of them lie between two hosts.
    memory_bandwidth : float
        Bytes/s at which a rank streams its memory.
    slow_links : mapping of int to float, optional
        Host -> its own rate.
    server_rate : float, optional
        Of the cable of a server beside these hosts; theirs if absent.
    queued : bool
        Whether the switch puts control messages in line with all other data.
    """
    rates = dict.fromkeys(range(num_hosts), rate) | dict(slow_links or {})
    kinds = list(dict.fromkeys(rates.values()))
    hosts = tuple(_host(kind) for kind in kinds)
    kind_of = tuple(kinds.index(rates[host]) for host in range(num_hosts))
    return Cluster(
        name="testbed",
        description="Hosts of one rank behind one switch",
        source="recording",
        hosts=tuple(HostGroup(host=hosts[kind], count=1) for kind in kind_of),
        library="gloo",
        fabric=Fabric(kind="single_switch", latency=delay, link_service="fifo" if queued else "tcp"),
        host_types=hosts,
        host_type_of=kind_of,
        device_types=(_device(WORKER, memory_bandwidth), _device(SERVER, memory_bandwidth)),
        server_host_type=_host(server_rate or rate).without_devices,
    )


def _host(rate: float) -> Host:
    return Host(
        name=f"host-{rate:g}",
        devices=((WORKER, 1),),
        nics=(Nic(name="nic0", bandwidth=rate),),
        cpu_cores=1,
        cpu_device=SERVER,
        memory_bytes=64e9,
    )
