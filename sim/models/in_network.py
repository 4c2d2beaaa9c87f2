"""Collectives that switches reduce: NVLink SHARP in a host, SHARP and SwitchML in the fabric.

A switch that adds up what its ports send needs from every port each byte once, and sends each byte of the
result once to every port: for an all-reduce of S bytes every port carries S up and S down, whatever the
number of ranks (R. Graham et al., SHARP, COM-HPC 2016; A. Sapio et al., SwitchML, NSDI 2021, section 3). No
endpoint stands for the switch. A ring of n flows of S bytes, each rank to its successor, loads the same
links by the same bytes: every port S up and S down; and where ranks are in the order of the leaves, each
leaf sends and gets one flow over the spine, which is what is left above a leaf that has reduced its own.
So a reduction tree is written as one ring step that carries the whole buffer.

Cost of the textbook: S / B + 2 * depth * a; against a ring the factor 2 (n - 1) / n of the bytes and the n
steps are gone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.models.phase import FloatArray, IntArray, Phase, Plan, equal_flows


def ring_of_all(ranks: IntArray) -> tuple[IntArray, IntArray]:
    """Each rank and its successor."""
    return ranks, np.roll(ranks, -1)


def in_switch(op: str, n: int, dims: tuple[int, ...] | None) -> Plan:
    """One switch reduces and multicasts: up to the switch, down from it.

    All-gather and reduce-scatter use the multicast or the reduction only: each port sends (or gets) its own
    part once and gets (or sends) the parts of the others, (n - 1) / n of the bytes.
    """
    fraction = 1.0 if op in ("all_reduce", "broadcast", "reduce") else (n - 1) / n
    return (equal_flows(*ring_of_all(np.arange(n)), fraction, 2 if op == "all_reduce" else 1, operation=op),)


def in_fabric(op: str, n: int, dims: tuple[int, ...] | None) -> Plan:
    """A reduction tree of switches over all ranks; with ``dims=(k, m)`` over one shard per device of a host.

    With ``dims`` the ``k`` devices of a host first share out the buffer (reduce-scatter in the host), each
    shard is reduced by the fabric, and the host gathers: what NCCL's CollNet does with one NIC per device.
    """
    if dims is None or dims[0] == 1:
        return (equal_flows(*ring_of_all(np.arange(n)), 1.0, 4, operation=op),)
    per_host = dims[0]
    ranks = np.arange(n)
    inside = ranks // per_host * per_host + (ranks + 1) % per_host
    across = (ranks + per_host) % n
    scatter = equal_flows(ranks, inside, (per_host - 1) / per_host, per_host - 1, 0, "reduce_scatter")
    middle = equal_flows(ranks, across, 1 / per_host, 4, 1, op)
    gather = equal_flows(ranks, inside, (per_host - 1) / per_host, per_host - 1, 0, "all_gather")
    return (scatter, middle, gather) if n > per_host else (scatter, gather)


def collnet(op: str, n: int, dims: tuple[int, ...] | None) -> Plan:
    """NCCL's CollNet: the three parts of :func:`in_fabric`, pipelined, so that the busiest link paces all."""
    parts = in_fabric(op, n, dims)
    if len(parts) == 1:
        return parts
    src, dst = (np.concatenate([getattr(part, end) for part in parts]) for end in ("src", "dst"))
    relative: FloatArray = np.concatenate([part.relative * part.fraction for part in parts])
    # Inside a host everybody sends to everybody at once: one step each way (NCCL's CollNet direct).
    return (Phase(src, dst, relative / relative.max(), float(relative.max()), 2 + 4, 0, op),)


def switch_tree(op: str, dims: tuple[int, ...], child: IntArray, parent: IntArray, depth: int) -> Plan:
    """NVSwitches reduce inside ``m`` hosts of ``k`` devices, double binary trees join equal devices of hosts.

    Everything is pipelined: each NVLink carries the buffer once each way, each device the share 1 / k of the
    trees' traffic.

    Parameters
    ----------
    child, parent : int arrays
        Edges of the two trees over hosts, half of the data each.
    depth : int
        Edges from the deepest leaf to the root.
    """
    per_host, hosts = dims[0], dims[1]
    device = np.arange(per_host)

    def of_devices(host: IntArray) -> IntArray:
        return (host[:, None] * per_host + device).ravel()

    ranks = np.arange(per_host * hosts)
    inside = ranks // per_host * per_host + (ranks + 1) % per_host
    up, down = of_devices(child), of_devices(parent)
    src = np.concatenate([ranks, up, down])
    dst = np.concatenate([inside, down, up])
    relative: FloatArray = np.concatenate([np.ones(len(ranks)), np.full(2 * len(up), 0.5 / per_host)])
    return (Phase(src, dst, relative, 1.0, 2 + 2 * depth, 0, op),)


def aggregated(n: int, dims: tuple[int, ...] | None, *, steps: int, payload: float) -> Plan:
    """An all-reduce by :func:`in_fabric` as packets of a given payload, after a round trip of ``steps``.

    Parameters
    ----------
    n, dims
        Ranks; devices of a host, hosts.
    steps : int
        Latencies of a round trip through the switches.
    payload : float
        Part of the bytes on the wire that is gradients.
    """
    return tuple(
        replace(phase, fraction=phase.fraction / payload, steps=steps) if crosses(phase) else phase
        for phase in in_fabric("all_reduce", n, dims)
    )


def crosses(phase: Phase) -> bool:
    """Whether a phase of :func:`in_fabric` goes through the fabric."""
    return phase.operation == "all_reduce"
