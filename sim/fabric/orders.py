"""In which order the ranks of a collective are arranged, and how many copies of the arrangement run at once.

A library runs a collective over several channels, each with its own order of the same devices and an equal
share of the data (``sim.models.collectives.flows`` spreads a phase over orders).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sim.fabric.builders.torus import Torus, gray_rank
from sim.fabric.rings import Order, Passage, host_passages, host_rings
from sim.spec.host import Host

if TYPE_CHECKING:
    from sim.fabric.network import Network

IntArray = npt.NDArray[np.int64]


def ring_orders(network: Network, devices: IntArray) -> list[IntArray]:
    """Rings of a group, the way NCCL builds them.

    In one host: the link-disjoint NVLink rings of :func:`sim.fabric.rings.host_rings` (six on eight V100 of a
    DGX-1, one on an NVSwitch). Over hosts: host by host in order of first appearance, one ring per NIC in use
    (:func:`sim.fabric.rings.host_passages`); where a ring enters and leaves by different NICs every second
    host is passed in reverse, so that neighbouring hosts meet on one rail. On a torus of devices: one snake
    along neighbours.
    """
    snake = _snake(network, devices)
    if snake is not None:
        return [snake]
    groups = _Groups(network, devices)
    if len(groups.hosts) == 1:
        return groups.arrange(_rings)
    return groups.arrange(host_passages)


def orders(network: Network, devices: IntArray, algorithm: str) -> list[IntArray]:
    """Rank orders of a group for an algorithm of ``sim.models.collectives.plan``; host by host in all of
    them.

    ``ring``: :func:`ring_orders`. ``tree``: as many orders, but every host in the same sequence, so that the
    first ranks of all hosts hang on the same rail. ``hierarchical``, ``torus2d``, ``blueconnect``: the rings
    inside a host, equal in all hosts. Others, ``leaders`` among them: the devices host by host.
    """
    if algorithm == "ring":
        return ring_orders(network, devices)
    if isinstance(network.wiring, Torus) and network.ports.devices:
        return [np.sort(devices)]
    groups = _Groups(network, devices)
    if algorithm == "tree" and len(groups.hosts) > 1:
        return groups.arrange(_aligned_passages)
    if algorithm in ("tree", "hierarchical", "torus2d", "blueconnect"):
        return groups.arrange(_rings)
    return groups.arrange(lambda host, local: (Passage(local, False),))


def _rings(host: Host, local: Order) -> tuple[Passage, ...]:
    return tuple(Passage(ring, False) for ring in host_rings(host, local))


def _aligned_passages(host: Host, local: Order) -> tuple[Passage, ...]:
    return tuple(Passage(passage.order, False) for passage in host_passages(host, local))


def _snake(network: Network, devices: IntArray) -> IntArray | None:
    """Walk along neighbours, if the devices themselves form a torus."""
    if not (isinstance(network.wiring, Torus) and network.ports.devices):
        return None
    return devices[np.argsort(gray_rank(devices, network.wiring.dims), kind="stable")]


class _Groups:
    """The devices of a group by host, hosts in order of first appearance; equal hosts share one pattern."""

    def __init__(self, network: Network, devices: IntArray) -> None:
        hosts, first, group = np.unique(network.device_host[devices], return_index=True, return_inverse=True)
        appearance = np.argsort(first)
        self.hosts = hosts[appearance]
        position = np.argsort(appearance)[group]
        ordered = devices[np.lexsort((devices, position))]
        self.sizes = np.bincount(position)
        self.starts = np.cumsum(self.sizes) - self.sizes
        self.base = network.first_device[self.hosts]
        local = ordered - np.repeat(self.base, self.sizes)
        kinds = network.host_kind[self.hosts]
        self.patterns: list[tuple[Host, Order]] = []
        if len(set(kinds.tolist())) == 1 and len(set(self.sizes.tolist())) == 1:
            table = local.reshape(len(self.hosts), -1)
            if (table == table[0]).all():  # the regular case, without a loop over hosts
                self.patterns = [(network.host_types[kinds[0]], tuple(table[0].tolist()))]
                self.pattern = np.zeros(len(self.hosts), np.int64)
                return
        number: dict[tuple[int, Order], int] = {}
        each = [tuple(part.tolist()) for part in np.split(local, self.starts[1:])]
        keys = list(zip(kinds.tolist(), each, strict=True))
        self.pattern = np.array([number.setdefault(key, len(number)) for key in keys])
        self.patterns = [(network.host_types[kind], own) for kind, own in number]

    def arrange(self, passages_of: Callable[[Host, Order], tuple[Passage, ...]]) -> list[IntArray]:
        """Concatenate one passage per host, as many times as the host with the fewest passages allows."""
        passages = [passages_of(host, local) for host, local in self.patterns]
        result = []
        for copy in range(min(len(found) for found in passages)):
            order = np.empty(int(self.sizes.sum()), np.int64)
            for pattern, found in enumerate(passages):
                for parity in (0, 1):
                    rows = np.flatnonzero(self.pattern == pattern)
                    rows = rows[rows % 2 == parity]
                    passage = found[copy]
                    way = np.array(passage.order[::-1] if parity and passage.alternate else passage.order)
                    order[self.starts[rows][:, None] + np.arange(len(way))] = self.base[rows][:, None] + way
            result.append(order)
        return result
