"""Communication patterns: what a family of process groups sends, and over which links.

A *family* is one kind of communication done by many groups of endpoints at once (the dp rings of a stage,
every worker's push). For each phase of its collective algorithm it knows, per group, the elementary flows,
the load of each link and the latency of a step. Nothing here depends on the message size.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sim.fabric.exchange import exchange_load, exchange_samples
from sim.fabric.network import Network
from sim.fabric.routes import Load, Lookup, Paths
from sim.lowering.arrays import distinct
from sim.models.collectives import Phase, flows

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class StepLatency:
    """Library latency added to every step of a collective, in seconds, by reach of the message.

    ``start``: what an operation whose messages the library sends one by one takes besides, once.
    """

    local: float
    network: float
    start: float = 0.0


@dataclass(frozen=True)
class PhaseFlows:
    """Every flow of one phase of all groups of a family, sorted by group.

    Attributes
    ----------
    offsets : int array
        Flows of each group.
    group : int array, one entry per flow
    relative, latency : float arrays, one entry per flow
        Relative bytes; the library's latency of a step in seconds.
    paths : Paths
        Ways through hosts and ports.
    counted : tuple of Load, optional
        Loads of each group where its flows are too many to be written down; those that are there stand for
        all latencies and rates.
    """

    phase: Phase
    offsets: IntArray
    group: IntArray
    relative: FloatArray
    latency: FloatArray
    paths: Paths
    counted: tuple[Load, ...] | None = None


@dataclass(frozen=True)
class RoutedPhase:
    """The flows of one phase with their links.

    Attributes
    ----------
    flow, link, share :
        Aligned: flow ``flow[i]`` puts the fraction ``share[i]`` of itself on ``link[i]``.
    latency : float array
        Seconds of a step of each flow, library included.
    """

    flows: PhaseFlows
    flow: IntArray
    link: IntArray
    share: FloatArray
    latency: FloatArray

    def loads(self, capacity: FloatArray, left_out: BoolArray) -> PhaseLoads:
        """Sum the flows' loads per (group, link), leaving some links out."""
        if self.flows.counted is not None:
            return self._counted_loads(self.flows.counted, capacity)
        flows, flow, link, share = self.flows, self.flow, self.link, self.share
        if left_out.any():
            keep = ~left_out[link]
            flow, link, share = flow[keep], link[keep], share[keep]
        group, weight = flows.group[flow], share * flows.relative[flow]
        group, link, coefficient, entry = _sum_loads(group, link, weight, len(capacity))
        inverse_rate = np.zeros(len(flows.relative))
        first = np.flatnonzero(np.diff(flow, prepend=-1))  # entries are ordered by flow
        if len(first):
            inverse_rate[flow[first]] = np.maximum.reduceat((coefficient / capacity[link])[entry], first)
        return PhaseLoads(
            flows.phase, group, link, coefficient, flows.offsets, self.latency, inverse_rate, flows.latency
        )

    def _counted_loads(self, counted: Sequence[Load], capacity: FloatArray) -> PhaseLoads:
        """Loads that were counted; the flows that are there only tell latencies and rates."""
        flows = self.flows
        inverse_rate = np.zeros(len(flows.relative))
        first = np.searchsorted(self.flow, flows.offsets)
        per_byte = np.zeros(len(capacity))
        for group, load in enumerate(counted):
            per_byte[:] = 0.0
            per_byte[load.link] = load.coefficient / capacity[load.link]
            mine = slice(first[group], first[group + 1])
            np.maximum.at(inverse_rate, self.flow[mine], per_byte[self.link[mine]])
        return PhaseLoads(
            flows.phase,
            np.repeat(np.arange(len(counted)), [len(load.link) for load in counted]),
            np.concatenate([load.link for load in counted]),
            np.concatenate([load.coefficient for load in counted]),
            flows.offsets, self.latency, inverse_rate, flows.latency,
        )  # fmt: skip


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
    flow_library :
        The part of ``flow_latency`` that is the library's.
    """

    phase: Phase
    group_link: IntArray
    load_link: IntArray
    load_coefficient: FloatArray
    flow_offsets: IntArray
    flow_latency: FloatArray
    flow_inverse_rate: FloatArray
    flow_library: FloatArray

    @cached_property
    def _by_group(self) -> tuple[IntArray, IntArray]:
        """Entries in the order of groups, and where each group's begin."""
        order = np.argsort(self.group_link, kind="stable")
        bounds = np.arange(len(self.flow_offsets))
        return order, np.searchsorted(self.group_link[order], bounds)

    def of_group(self, group: int) -> tuple[IntArray, FloatArray]:
        """Links of a group and the coefficient on each."""
        order, starts = self._by_group
        mine = order[starts[group] : starts[group + 1]]
        return self.load_link[mine], self.load_coefficient[mine]

    def round_trip(self, group: int) -> float:
        """Seconds of all steps of the phase without bytes: a round trip, where they are one."""
        flows = slice(self.flow_offsets[group], self.flow_offsets[group + 1])
        return float(self.phase.steps * np.max(self.flow_latency[flows], initial=0.0))

    def wire(self, group: int) -> float:
        """Longest latency of a way of the group, without the library."""
        flows = slice(self.flow_offsets[group], self.flow_offsets[group + 1])
        return float(np.max(self.flow_latency[flows] - self.flow_library[flows], initial=0.0))

    def timing(self, group: int, size: float) -> tuple[float, float]:
        """Latency (s) and bytes per elementary flow of one group for a message of ``size`` bytes.

        A step lasts as long as its slowest hop, latency plus bytes over rate; what exceeds the drain time at
        the group's own bottleneck is latency, so that an idle network gives the algorithm's closed form.
        """
        flows = slice(self.flow_offsets[group], self.flow_offsets[group + 1])
        flow_bytes = self.phase.fraction * size
        latency = self.phase.steps * self.flow_latency[flows]
        inverse = self.flow_inverse_rate[flows]
        if not inverse.any():  # no link in between: the bytes stay in one memory
            return float(np.max(latency, initial=0.0)), 0.0
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
    flows : sequence of PhaseFlows
        The phases of the collective.
    asymmetric : bool
        Whether members play different parts (sender and receiver), so that folding keeps them apart.
    marks : float array, optional
        What else tells groups apart, one number each: groups of different marks do not fold.
    operation : str
        The collective that is sent as messages of the phases; empty: the phases follow one another.
    collective : (str, str)
        Operation and algorithm, where a library runs it as one; empty for any other traffic.
    windows : tuple of float
        Bytes of an elementary flow that may be on their way at a time, one per phase; empty: any number.
    loads : sequence of PhaseLoads
        Filled by :meth:`Router.load`.
    """

    name: str
    groups: IntArray
    flows: tuple[PhaseFlows, ...]
    asymmetric: bool = False
    marks: FloatArray | None = None
    operation: str = ""
    collective: tuple[str, str] = ("", "")
    windows: tuple[float, ...] = ()
    loads: tuple[PhaseLoads, ...] = ()

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return len(self.groups)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The collective's plan over local indices 0 .. group size - 1."""
        return tuple(flows.phase for flows in self.flows)


@dataclass(frozen=True)
class Router:
    """Routes families over one network: each is described first, then all are routed together.

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
        marks: FloatArray | None = None,
    ) -> Family:
        """The flows of every group.

        ``algorithm`` spreads the flows over the rank orders that the library would use for it (rings over
        NVLinks, one per NIC); without it local rank ``i`` is the group's member ``i``.
        """
        everyone = np.arange(len(groups)), [np.arange(groups.shape[1])]
        orders = self._orders(groups, algorithm) if algorithm else [everyone]
        flows = tuple(self._flows(groups, phase, orders) for phase in phases)
        return Family(name, groups, flows, asymmetric, marks)

    def _orders(self, groups: IntArray, algorithm: str) -> list[tuple[IntArray, list[IntArray]]]:
        """Groups of equal shape (same devices of their hosts, same host pattern) share their rank orders."""
        hosts = self.endpoint_host[groups]
        local = groups - self.network.first_device[hosts]
        pattern = np.cumsum(np.diff(hosts, axis=1, prepend=hosts[:, :1]) != 0, axis=1)
        shape = np.concatenate([local, pattern, self.network.host_kind[hosts]], axis=1).astype(np.int32)
        alike: dict[bytes, list[int]] = {}
        rows = np.ascontiguousarray(shape).view(f"V{shape.itemsize * shape.shape[1]}")
        for group, row in enumerate(rows.ravel().tolist()):
            alike.setdefault(row, []).append(group)
        out = []
        for same in alike.values():
            members = groups[same[0]]
            place = {int(endpoint): i for i, endpoint in enumerate(members)}
            orders = [
                np.array([place[int(endpoint)] for endpoint in order])
                for order in self.network.orders(members, algorithm)
            ]
            out.append((np.array(same), orders))
        return out

    def _flows(
        self, groups: IntArray, phase: Phase, orders: list[tuple[IntArray, list[IntArray]]]
    ) -> PhaseFlows:
        counted = None
        if phase.everyone:
            counted = tuple(exchange_load(self.network, group) for group in groups)
            pairs = [exchange_samples(self.network, group) for group in groups]
            source, target = (np.concatenate(ends) for ends in zip(*pairs, strict=True))
            relative = np.ones(len(source))
            owner = np.repeat(np.arange(len(groups)), [len(src) for src, _ in pairs])
        else:
            source, target, relative, owner = _flows(groups, phase, orders)
        host = self.endpoint_host
        library = np.where(host[source] == host[target], self.step_latency.local, self.step_latency.network)
        offsets = np.zeros(len(groups) + 1, np.int64)
        np.cumsum(np.bincount(owner, minlength=len(groups)), out=offsets[1:])
        paths = self.network.paths(source, target)
        return PhaseFlows(phase, offsets, owner, relative, library, paths, counted)

    def load(self, families: Sequence[Family]) -> list[Family]:
        """The families with their link loads; links that can never be a bottleneck are left out.

        A link is left out if the host ports feeding (or draining) all flows on it cannot saturate it: the
        capacities of those ports, each times the largest share of a flow that takes the link, add up to no
        more than its own, so every flow on it is held back by its port at least as much. That changes no
        max-min rate, and lets ranks on different leaves of a non-blocking fabric fold.
        """
        flows = [flows for family in families for flows in family.flows]
        quick = self.network.without_held_back([each.paths for each in flows], self.capacity)
        routed = [self.route(each, quick) for each in flows]
        left_out = self._never_bottleneck(routed)
        loads = iter([phase.loads(self.capacity, left_out) for phase in routed])
        return [
            replace(family, loads=tuple(itertools.islice(loads, len(family.flows)))) for family in families
        ]

    def route(self, flows: PhaseFlows, lookup: Lookup | None = None) -> RoutedPhase:
        """Look up the links of flows; only those in ``lookup`` if it is given."""
        routes = self.network.trace(flows.paths, lookup)
        return RoutedPhase(flows, routes.rows(), routes.link, routes.share, routes.latency + flows.latency)

    def _never_bottleneck(self, routed: Sequence[RoutedPhase]) -> BoolArray:
        """The exact test of :meth:`load` on the links that are still there."""
        is_port = self.network.link_kind_code == _PORT
        relaxed = np.zeros(len(self.capacity), bool)
        listed = [phase for phase in routed if phase.flows.counted is None]
        for leaving in (True, False):
            gated = [_behind_ports(phase, is_port, leaving) for phase in listed]
            relaxed |= self._ports_bound(gated) <= self.capacity * (1 + 1e-12)
        for phase in routed:  # of counted flows the ports are not known
            for load in phase.flows.counted or ():
                relaxed[load.link] = False
        return relaxed

    def _ports_bound(self, gated: Sequence[tuple[IntArray, IntArray, FloatArray]]) -> FloatArray:
        """Bytes/s that the ports in front of (behind) each link can send at most.

        Infinite for links that some flow reaches without a port, and for those that no flow uses.
        ``gated`` has (link, port, share) of every load.
        """
        size = len(self.capacity)
        bound, largest = np.full(size, np.inf), np.zeros(size)
        if not gated:
            return bound
        link, port, share = (np.concatenate(column) for column in zip(*gated, strict=True))
        if len(share) and (share == share[0]).all():  # mostly whole flows
            largest[link] = share[0]
        else:
            np.maximum.at(largest, link, share)
        one = np.full(size, -1)
        one[link] = port  # any one of the ports
        several, open_ = np.zeros(size, bool), np.zeros(size, bool)
        several[link[one[link] != port]] = True
        open_[link[port < 0]] = True
        single = (one >= 0) & ~several & ~open_
        bound[single] = self.capacity[one[single]] * largest[single]
        several &= ~open_
        if several.any():
            keep = several[link]
            keys = distinct(link[keep] * np.int64(size) + port[keep])
            fed = keys // size
            total = np.bincount(fed, weights=largest[fed] * self.capacity[keys % size], minlength=size)
            bound[several] = total[several]
        return bound


_PORT = 0  # code of host ports, the first of Network.link_kinds


def _behind_ports(
    phase: RoutedPhase, is_port: BoolArray, leaving: bool
) -> tuple[IntArray, IntArray, FloatArray]:
    """Link, first port out (or last port in; -1 if none) and share of every load but the ports' own."""
    at_port = is_port[phase.link]
    entries = np.flatnonzero(at_port)
    order = entries[::-1] if leaving else entries  # the last write wins
    others = np.flatnonzero(~at_port)
    gate = np.full(len(phase.latency), -1)
    if len(others):
        gate[phase.flow[order]] = phase.link[order]
    return phase.link[others], gate[phase.flow[others]], phase.share[others]


def _sum_loads(
    group: IntArray, link: IntArray, weight: FloatArray, num_links: int
) -> tuple[IntArray, IntArray, FloatArray, IntArray | slice]:
    """Loads summed per (group, link), and which sum each entry went into."""
    owner = np.full(num_links, -1)
    owner[link] = group
    if np.array_equal(owner[link], group):  # no link is loaded by several groups: sum by link
        used = np.flatnonzero(owner >= 0)
        place = np.empty(num_links, np.int64)
        place[used] = np.arange(len(used))
        total: FloatArray = np.bincount(link, weights=weight, minlength=num_links).astype(np.float64)[used]
        return owner[used], used, total, place[link]
    key = group * np.int64(num_links) + link
    ordered = np.sort(key)
    if not np.any(ordered[1:] == ordered[:-1]):  # no group loads a link twice: nothing to sum
        return group, link, weight, slice(None)
    keys, inverse = np.unique(key, return_inverse=True)
    total = np.bincount(inverse, weights=weight, minlength=len(keys)).astype(np.float64)
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
