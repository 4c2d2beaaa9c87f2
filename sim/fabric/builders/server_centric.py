"""Fabrics in which hosts forward for others: BCube and DCell.

BCube(n, l) (C. Guo et al., SIGCOMM 2009): n^(l+1) hosts, numbered by l + 1 digits of base n; on level i
every n hosts that differ in digit i only share a switch. Every host has l + 1 cables.

DCell(n, l) (C. Guo et al., SIGCOMM 2008): DCell(n, 0) is n hosts on a switch; DCell(n, l) is t + 1 cells of
level l - 1 with t hosts each, every two cells joined by one cable from host j - 1 of cell i to host i of cell
j, i < j.

All NICs of a host meet at its node, which forwards; a cable has the bandwidth of one NIC.
"""

from __future__ import annotations

from itertools import pairwise

from sim.errors import InputError
from sim.fabric.builders.base import PathChoice, Ports, Wiring, require_size
from sim.fabric.builders.graph import Cable, CableGraph
from sim.spec.fabric import Fabric


def bcube(fabric: Fabric, ports: Ports) -> Wiring:
    """BCube of ``k`` hosts per switch with as many levels as the hosts need."""
    hosts = ports.num_hosts
    base = fabric.bcube_base(hosts)
    bandwidth = fabric.bandwidth or float(ports.bandwidth.max())
    cables, level = [], 0
    require_size("k", hosts * max(1, hosts.bit_length() // base.bit_length()), cables=True)
    while True:
        stride = base**level
        for host in range(hosts):
            switch = host // (stride * base) * stride + host % stride
            cables.append(Cable(f"host{host}", f"switch{level}_{switch}", bandwidth, fabric.latency))
        level += 1
        if base**level >= hosts:
            break
    return CableGraph(cables, ports, PathChoice.of(fabric))


def dcell(fabric: Fabric, ports: Ports) -> Wiring:
    """DCell of ``k`` hosts per switch with as many levels as the hosts need; every place is filled."""
    hosts = ports.num_hosts
    sizes = fabric.dcell_sizes(hosts)
    size = sizes[0]
    bandwidth = fabric.bandwidth or float(ports.bandwidth.max())
    direct = fabric.uplink_bandwidth or bandwidth
    direct_latency = fabric.latency if fabric.uplink_latency is None else fabric.uplink_latency
    cables = [Cable(f"host{i}", f"switch{i // size}", bandwidth, fabric.latency) for i in range(hosts)]
    if sizes[-1] != hosts:
        fitting = ", ".join(str(number) for number in sizes)
        raise InputError(
            "cluster.num_hosts",
            f"fill a DCell of {size} hosts per switch",
            hosts,
            hint=f"Try one of {fitting}.",
        )
    require_size("k", hosts * len(sizes), cables=True)
    for below, whole in pairwise(sizes):
        for first in range(0, hosts, whole):
            for i in range(below + 1):
                for j in range(i + 1, below + 1):
                    a, b = first + i * below + j - 1, first + j * below + i
                    cables.append(Cable(f"host{a}", f"host{b}", direct, direct_latency))
    return CableGraph(cables, ports, PathChoice.of(fabric))
