"""Communication patterns: what a family of process groups sends, and over which links.

A *family* is one kind of communication done by many groups of endpoints at once (the dp rings of a stage,
every worker's push). For each phase of its collective algorithm it knows, per group, the elementary flows,
the load of each link and the latency of a step. Nothing here depends on the message size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sim.fabric.network import Network
from sim.models.collectives import Phase, flows

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StepLatency:
    """Library latency added to every step of a collective, in seconds, by reach of the message."""

    local: float
    network: float


@dataclass(frozen=True)
class PhaseLoads:
    """Flows and link loads of one phase for all groups of a family.

    Attributes
    ----------
    group_link, load_link, load_coefficient :
        Aligned: group ``group_link[i]`` puts ``load_coefficient[i]`` elementary flows (times their relative
        bytes) on link ``load_link[i]``. Sorted by group, then link.
    flow_offsets, flow_latency, flow_inverse_rate :
        Flows by group. ``flow_inverse_rate`` is the time per byte (of a flow of relative 1) on an idle network.
    """

    phase: Phase
    group_link: IntArray
    load_link: IntArray
    load_coefficient: FloatArray
    flow_offsets: IntArray
    flow_latency: FloatArray
    flow_inverse_rate: FloatArray

    def without(self, links: npt.NDArray[np.bool_]) -> PhaseLoads:
        """The same loads, leaving out the given links."""
        keep = ~links[self.load_link]
        return replace(
            self,
            group_link=self.group_link[keep],
            load_link=self.load_link[keep],
            load_coefficient=self.load_coefficient[keep],
        )

    def timing(self, group: int, size: float) -> tuple[float, float]:
        """Latency (s) and bytes per elementary flow of one group for a message of ``size`` bytes.

        A step lasts as long as its slowest hop, latency plus bytes over rate; what exceeds the drain time at
        the group's own bottleneck is latency, so that an idle network gives the algorithm's closed form.
        """
        flows = slice(self.flow_offsets[group], self.flow_offsets[group + 1])
        flow_bytes = self.phase.fraction * size
        latency = self.phase.steps * self.flow_latency[flows]
        if latency.size == 0:
            return 0.0, flow_bytes
        inverse = self.flow_inverse_rate[flows]
        total = float(np.max(latency + flow_bytes * inverse)) - flow_bytes * float(np.max(inverse))
        return max(total, 0.0), flow_bytes


@dataclass(frozen=True)
class Family:
    """One kind of communication among equal-sized groups of endpoints.

    Parameters
    ----------
    name : str
        Label, e.g. ``dp_all_reduce_ring`` or ``pp_forward0``.
    groups : int array, shape (number of groups, group size)
        Endpoints (devices, or hosts' memories) of each group.
    phases : sequence of Phase
        The collective plan over local indices 0 .. group size - 1.
    asymmetric : bool
        Whether members play different parts (sender and receiver), so that folding keeps them apart.
    """

    name: str
    groups: IntArray
    phases: tuple[Phase, ...]
    loads: tuple[PhaseLoads, ...]
    asymmetric: bool = False

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return len(self.groups)


@dataclass(frozen=True)
class Feeds:
    """Through which host ports the traffic of links between switches enters and leaves.

    Aligned arrays; ``share`` is the largest part of a flow that ECMP puts on the link. A port of -1 is unknown.
    """

    link: IntArray
    port: IntArray
    share: FloatArray
    leaving: bool


@dataclass(frozen=True)
class Router:
    """Routes families over one network.

    Parameters
    ----------
    network : Network
    capacity : float array
        Achievable bytes/s of every link.
    step_latency : StepLatency
    """

    network: Network
    capacity: FloatArray
    step_latency: StepLatency
    feeds: list[Feeds] = field(default_factory=list)

    @cached_property
    def endpoint_host(self) -> IntArray:
        """Host of every endpoint: devices, then the memories of all hosts."""
        return np.concatenate([self.network.device_host, np.arange(len(self.network.host_kind))])

    def family(
        self, name: str, groups: IntArray, phases: Sequence[Phase], *, algorithm: str = "", asymmetric: bool = False
    ) -> Family:
        """Route every flow of every group and sum the link loads.

        ``algorithm`` spreads the flows over the rank orders that the library would use for it (rings over
        NVLinks, one per NIC); without it local rank ``i`` is the group's member ``i``.
        """
        orders = self._orders(groups, algorithm) if algorithm else [(np.arange(len(groups)), [_identity(groups)])]
        loads = tuple(self._phase_loads(groups, phase, orders) for phase in phases)
        return Family(name, groups, tuple(phases), loads, asymmetric)

    def _orders(self, groups: IntArray, algorithm: str) -> list[tuple[IntArray, list[IntArray]]]:
        """Groups of equal shape (same devices of their hosts, same host pattern) share their rank orders."""
        hosts = self.endpoint_host[groups]
        local = groups - self.network.first_device[hosts]
        pattern = np.cumsum(np.diff(hosts, axis=1, prepend=hosts[:, :1]) != 0, axis=1)
        shape = np.concatenate([local, pattern, self.network.host_kind[hosts]], axis=1)
        _, first, inverse = np.unique(shape, axis=0, return_index=True, return_inverse=True)
        out = []
        for number, representative in enumerate(first):
            members = groups[representative]
            place = {int(endpoint): i for i, endpoint in enumerate(members)}
            orders = [
                np.array([place[int(endpoint)] for endpoint in order])
                for order in self.network.orders(members, algorithm)
            ]
            out.append((np.flatnonzero(inverse.ravel() == number), orders))
        return out

    def _phase_loads(
        self, groups: IntArray, phase: Phase, orders: list[tuple[IntArray, list[IntArray]]]
    ) -> PhaseLoads:
        source, target, relative, owner = _flows(groups, phase, orders)
        routes = self.network.routes(source, target)
        flow = np.repeat(np.arange(len(source)), np.diff(routes.offsets))
        self._note_feeds(flow, routes.link, routes.share, len(source))
        weight = routes.share * relative[flow]
        num_links = np.int64(len(self.capacity))
        keys, inverse = np.unique(owner[flow] * num_links + routes.link, return_inverse=True)
        coefficient = np.bincount(inverse, weights=weight, minlength=len(keys))
        inverse_rate = coefficient / self.capacity[keys % num_links]
        per_flow = np.zeros(len(source))
        np.maximum.at(per_flow, flow, inverse_rate[inverse])
        host = self.endpoint_host
        library = np.where(host[source] == host[target], self.step_latency.local, self.step_latency.network)
        offsets = np.zeros(len(groups) + 1, np.int64)
        np.cumsum(np.bincount(owner, minlength=len(groups)), out=offsets[1:])
        return PhaseLoads(
            phase=phase,
            group_link=keys // num_links,
            load_link=keys % num_links,
            load_coefficient=coefficient,
            flow_offsets=offsets,
            flow_latency=routes.latency + library,
            flow_inverse_rate=per_flow,
        )


    def _note_feeds(self, flow: IntArray, link: IntArray, share: FloatArray, num_flows: int) -> None:
        kind = self.network.link_kind_code[link]
        port, between = np.flatnonzero(kind == _PORT), np.flatnonzero(kind == _BETWEEN_SWITCHES)
        if not len(between):
            return
        num_links = np.int64(len(self.capacity))
        for leaving in (True, False):
            gate = np.full(num_flows, -1, np.int64)
            order = port[::-1] if leaving else port  # the last write wins: first port out, last port in
            gate[flow[order]] = link[order]
            key = link[between] * (num_links + 1) + gate[flow[between]] + 1
            keys, inverse = np.unique(key, return_inverse=True)
            largest = np.zeros(len(keys))
            np.maximum.at(largest, inverse, share[between])
            self.feeds.append(Feeds(keys // (num_links + 1), keys % (num_links + 1) - 1, largest, leaving))

    def never_bottleneck(self) -> npt.NDArray[np.bool_]:
        """Links between switches that the host ports feeding (or draining) them cannot saturate.

        The capacities of those ports, each times the share of a flow it may send over the link, add up to no more
        than the link's own: every flow on it is held back by its port at least as much. Leaving such links out
        changes no max-min rate, and lets ranks on different leaves of a non-blocking fabric fold together.
        """
        relaxed = np.zeros(len(self.capacity), bool)
        for leaving in (True, False):
            parts = [feed for feed in self.feeds if feed.leaving == leaving]
            if not parts:
                continue
            link, port = np.concatenate([p.link for p in parts]), np.concatenate([p.port for p in parts])
            share = np.concatenate([p.share for p in parts])
            keys, inverse = np.unique(link * len(self.capacity) + np.maximum(port, 0), return_inverse=True)
            largest = np.zeros(len(keys))
            np.maximum.at(largest, inverse, np.where(port < 0, np.inf, share))
            target, gate = keys // len(self.capacity), keys % len(self.capacity)
            total = np.bincount(target, weights=largest * self.capacity[gate], minlength=len(self.capacity))
            relaxed |= (total > 0) & (total <= self.capacity * (1 + 1e-12))
        return relaxed


_PORT, _BETWEEN_SWITCHES = 0, 1  # codes of the first two of Network.link_kinds


def _identity(groups: IntArray) -> IntArray:
    return np.arange(groups.shape[1])


def _flows(
    groups: IntArray, phase: Phase, orders: list[tuple[IntArray, list[IntArray]]]
) -> tuple[IntArray, IntArray, FloatArray, IntArray]:
    """Sender, receiver, relative bytes and group of every flow, sorted by group."""
    source, target, relative, owner = [], [], [], []
    for rows, ranks in orders:
        src, dst, share = flows(phase, ranks)
        source.append(groups[rows][:, src].ravel())
        target.append(groups[rows][:, dst].ravel())
        relative.append(np.tile(share, len(rows)))
        owner.append(np.repeat(rows, len(src)))
    order = np.argsort(np.concatenate(owner), kind="stable")
    return (
        np.concatenate(source)[order],
        np.concatenate(target)[order],
        np.concatenate(relative)[order],
        np.concatenate(owner)[order],
    )
