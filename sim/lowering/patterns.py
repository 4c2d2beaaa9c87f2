"""Communication patterns: what a family of process groups sends, and over which links.

A *family* is one kind of communication done by many groups of endpoints at once (the dp rings of a stage,
every worker's push). For each phase of its collective algorithm it knows, per group, the elementary flows,
the load of each link and the latency of a step. Nothing here depends on the message size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sim.fabric.network import Network
from sim.models.collectives import Phase, flows

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class StepLatency:
    """Library latency added to every step of a collective, in seconds, by reach of the message."""

    local: float
    network: float


@dataclass(frozen=True)
class RoutedPhase:
    """Every flow of one phase of all groups of a family, with its route. Flows are sorted by group.

    Attributes
    ----------
    flow_offsets : int array
        Flows of each group.
    relative, latency : float arrays, one entry per flow
        Relative bytes; latency of a step in seconds, library included.
    flow, link, share :
        Aligned: flow ``flow[i]`` puts the fraction ``share[i]`` of itself on ``link[i]``.
    """

    phase: Phase
    flow_offsets: IntArray
    relative: FloatArray
    latency: FloatArray
    flow: IntArray
    link: IntArray
    share: FloatArray

    def loads(self, capacity: FloatArray, left_out: BoolArray) -> PhaseLoads:
        """Sum the flows' loads per (group, link), leaving some links out."""
        keep = ~left_out[self.link]
        flow, link = self.flow[keep], self.link[keep]
        num_groups = len(self.flow_offsets) - 1
        owner = np.repeat(np.arange(num_groups), np.diff(self.flow_offsets))
        group, link, coefficient, entry = _sum_loads(
            owner[flow], link, self.share[keep] * self.relative[flow], len(capacity)
        )
        inverse_rate = np.zeros(len(self.relative))
        np.maximum.at(inverse_rate, flow, (coefficient / capacity[link])[entry])
        return PhaseLoads(self.phase, group, link, coefficient, self.flow_offsets, self.latency, inverse_rate)


@dataclass(frozen=True)
class PhaseLoads:
    """Flows and link loads of one phase for all groups of a family.

    Attributes
    ----------
    group_link, load_link, load_coefficient :
        Aligned: group ``group_link[i]`` puts ``load_coefficient[i]`` elementary flows (times their relative
        bytes) on link ``load_link[i]``, each pair once.
    flow_offsets, flow_latency, flow_inverse_rate :
        Flows by group. ``flow_inverse_rate`` is the time per byte (of a flow of relative 1) when idle.
    """

    phase: Phase
    group_link: IntArray
    load_link: IntArray
    load_coefficient: FloatArray
    flow_offsets: IntArray
    flow_latency: FloatArray
    flow_inverse_rate: FloatArray

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
        Label, e.g. ``dp_all_reduce_ring`` or ``pp_forward``.
    groups : int array, shape (number of groups, group size)
        Endpoints (devices, or hosts' memories) of each group.
    routed : sequence of RoutedPhase
        The phases of the collective.
    asymmetric : bool
        Whether members play different parts (sender and receiver), so that folding keeps them apart.
    loads : sequence of PhaseLoads
        Filled by :meth:`loaded`.
    """

    name: str
    groups: IntArray
    routed: tuple[RoutedPhase, ...]
    asymmetric: bool = False
    loads: tuple[PhaseLoads, ...] = ()

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return len(self.groups)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The collective's plan over local indices 0 .. group size - 1."""
        return tuple(routed.phase for routed in self.routed)

    def loaded(self, capacity: FloatArray, left_out: BoolArray) -> Family:
        """The family with its link loads, leaving some links out."""
        return replace(self, loads=tuple(routed.loads(capacity, left_out) for routed in self.routed))


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

    @cached_property
    def endpoint_host(self) -> IntArray:
        """Host of every endpoint: devices, then the memories of all hosts."""
        return np.concatenate([self.network.device_host, np.arange(len(self.network.host_kind))])

    def family(
        self,
        name: str,
        groups: IntArray,
        phases: Sequence[Phase],
        *,
        algorithm: str = "",
        asymmetric: bool = False,
    ) -> Family:
        """Route every flow of every group.

        ``algorithm`` spreads the flows over the rank orders that the library would use for it (rings over
        NVLinks, one per NIC); without it local rank ``i`` is the group's member ``i``.
        """
        everyone = np.arange(len(groups)), [np.arange(groups.shape[1])]
        orders = self._orders(groups, algorithm) if algorithm else [everyone]
        routed = tuple(self._route(groups, phase, orders) for phase in phases)
        return Family(name, groups, routed, asymmetric)

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

    def _route(
        self, groups: IntArray, phase: Phase, orders: list[tuple[IntArray, list[IntArray]]]
    ) -> RoutedPhase:
        source, target, relative, owner = _flows(groups, phase, orders)
        routes = self.network.routes(source, target)
        host = self.endpoint_host
        library = np.where(host[source] == host[target], self.step_latency.local, self.step_latency.network)
        offsets = np.zeros(len(groups) + 1, np.int64)
        np.cumsum(np.bincount(owner, minlength=len(groups)), out=offsets[1:])
        return RoutedPhase(
            phase=phase,
            flow_offsets=offsets,
            relative=relative,
            latency=routes.latency + library,
            flow=np.repeat(np.arange(len(source)), np.diff(routes.offsets)),
            link=routes.link,
            share=routes.share,
        )

    def never_bottleneck(self, families: Iterable[Family]) -> BoolArray:
        """Links that the host ports feeding (or draining) all their flows cannot saturate.

        The capacities of those ports, each times the largest share of a flow that takes the link, add up to
        no more than the link's own: every flow on it is held back by its port at least as much. Leaving such
        links out changes no max-min rate, and lets ranks on different leaves of a non-blocking fabric fold.
        """
        routed = [phase for family in families for phase in family.routed]
        relaxed = np.zeros(len(self.capacity), bool)
        for leaving in (True, False):
            relaxed |= self._ports_bound(routed, leaving) <= self.capacity * (1 + 1e-12)
        return relaxed

    def _ports_bound(self, routed: Sequence[RoutedPhase], leaving: bool) -> FloatArray:
        """Bytes/s that the ports in front of (behind) each link can send at most; inf without a port.

        Ports themselves, and links that no flow uses, get inf.
        """
        size = len(self.capacity)
        is_port = self.network.link_kind_code == _PORT
        largest = np.zeros(size)
        lowest, highest = np.full(size, size), np.full(size, -1)
        seen = []
        for phase in routed:
            gate = np.full(len(phase.relative), -1)
            entries = np.flatnonzero(is_port[phase.link])
            order = entries[::-1] if leaving else entries  # the last write wins: first port out, last port in
            gate[phase.flow[order]] = phase.link[order]
            port = gate[phase.flow]
            np.minimum.at(lowest, phase.link, port)
            np.maximum.at(highest, phase.link, port)
            np.maximum.at(largest, phase.link, phase.share)
            seen.append((phase.link, port))
        bound = np.full(size, np.inf)
        single = (lowest == highest) & (lowest >= 0) & ~is_port
        bound[single] = self.capacity[lowest[single]] * largest[single]
        several = (lowest != highest) & (lowest >= 0) & ~is_port & (highest >= 0)
        self._sum_several(bound, several, largest, seen)
        return bound

    def _sum_several(
        self,
        bound: FloatArray,
        several: BoolArray,
        largest: FloatArray,
        seen: list[tuple[IntArray, IntArray]],
    ) -> None:
        """Bound of the links that more than one port feeds."""
        if not several.any():
            return
        size = np.int64(len(self.capacity))
        keys = np.unique(np.concatenate([(link * size + port)[several[link]] for link, port in seen]))
        link = keys // size
        total = np.bincount(link, weights=largest[link] * self.capacity[keys % size], minlength=size)
        bound[several] = total[several]


_PORT = 0  # code of host ports, the first of Network.link_kinds


def _sum_loads(
    group: IntArray, link: IntArray, weight: FloatArray, num_links: int
) -> tuple[IntArray, IntArray, FloatArray, IntArray | slice]:
    """Loads summed per (group, link), and which sum each entry went into."""
    key = group * np.int64(num_links) + link
    ordered = np.sort(key)
    if not np.any(ordered[1:] == ordered[:-1]):  # no group loads a link twice: nothing to sum
        return group, link, weight, slice(None)
    keys, inverse = np.unique(key, return_inverse=True)
    total: FloatArray = np.bincount(inverse, weights=weight, minlength=len(keys)).astype(np.float64)
    return keys // num_links, keys % num_links, total, inverse


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
    if len(orders) == 1:
        return source[0], target[0], relative[0], owner[0]
    order = np.argsort(np.concatenate(owner), kind="stable")
    return (
        np.concatenate(source)[order],
        np.concatenate(target)[order],
        np.concatenate(relative)[order],
        np.concatenate(owner)[order],
    )
