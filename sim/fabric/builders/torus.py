"""Ring and torus of any number of dimensions, routed dimension by dimension.

The torus joins hosts (each host's NICs reach the router of its place) or devices directly (TPU). Along a
dimension of extent 3 or more every place has one cable to either side; extent 2 has a single cable, as there
is only one neighbour. A flow goes along dimension 0 first, then 1, and so on, always the shorter way round
and upwards on a tie (Dally, Towles, *Principles and Practices of Interconnection Networks*, 2004, section
8.4.2).
"""

from __future__ import annotations

import math

import numpy as np

from sim.errors import InputError
from sim.fabric.builders.base import Hops, IntArray, Ports, Wiring, require_room
from sim.spec.fabric import Fabric

MAX_PLACES = 4_000_000
"""Places of the largest torus: spare ones have links, too."""


class Torus(Wiring):
    """Places with extents ``dims``, dimension 0 fastest; a port sits at its host, a device at itself."""

    def __init__(self, fabric: Fabric, ports: Ports, dims: tuple[int, ...]) -> None:
        self.ports, self.dims = ports, dims
        self.place = np.arange(len(ports)) if ports.devices else ports.host
        self.num_places = math.prod(dims)
        self.strides = [math.prod(dims[:d]) for d in range(len(dims))]
        self.sides = [min(extent - 1, 2) for extent in dims]  # cables per place along each dimension
        self.num_port_links = 0 if ports.devices else 2 * len(ports)
        cables = np.cumsum([self.num_port_links, *(self.num_places * sides for sides in self.sides)])
        self.first = [int(value) for value in cables]
        bandwidth = fabric.bandwidth if fabric.bandwidth is not None else float(ports.bandwidth.max())
        between = self.first[-1] - self.num_port_links
        attached = [ports.bandwidth] * 2 if self.num_port_links else []
        delays = [ports.latency] * 2 if self.num_port_links else []
        self.capacity = np.concatenate([*attached, np.full(between, bandwidth)])
        self.latency = np.concatenate([*delays, np.full(between, fabric.latency)])
        self.members = np.ones(len(self.capacity), np.int64)

    def route(self, src: IntArray, dst: IntArray) -> Hops:
        """NIC up, the torus links of each dimension in turn, NIC down."""
        n = len(src)
        place, goal = self.place[src], self.place[dst]
        columns = [] if self.ports.devices else [(src, 1.0)]
        for d, extent in enumerate(self.dims):
            if extent == 1:
                continue
            here = place // self.strides[d] % extent
            ahead = (goal // self.strides[d] - here) % extent
            upwards = 2 * ahead <= extent
            hops = np.where(upwards, ahead, extent - ahead)
            j = np.arange(hops.max(initial=0))[None, :]
            position = (here[:, None] + np.where(upwards[:, None], j, -j)) % extent
            at = place[:, None] + (position - here[:, None]) * self.strides[d]
            link = self.first[d] + at * self.sides[d] + (self.sides[d] - 1) * ~upwards[:, None]
            columns.append((np.where(j < hops[:, None], link, -1), 1.0))
            place = place + (goal // self.strides[d] % extent - here) * self.strides[d]
        if not self.ports.devices:
            columns.append((len(self.ports) + dst, 1.0))
        return Hops.of(n, *columns)

    def ends(self, link: int) -> tuple[str, str]:
        """Port and place names."""
        if link < self.num_port_links:
            port = link % len(self.ports)
            pair = self.ports.name(port), self.place_name(int(self.place[port]))
            return pair if link < len(self.ports) else pair[::-1]
        d = int(np.searchsorted(self.first, link, side="right")) - 1
        place, side = divmod(link - self.first[d], self.sides[d])
        here = place // self.strides[d] % self.dims[d]
        beyond = (here + (1 if side == 0 else -1)) % self.dims[d]
        return self.place_name(place), self.place_name(place + (beyond - here) * self.strides[d])

    def place_name(self, place: int) -> str:
        """Node name of a place: a device of the host, or its router."""
        if self.ports.devices:
            return self.ports.name(place) if place < len(self.ports) else f"spare{place}"
        return f"router{place}"


def gray_rank(place: IntArray, dims: tuple[int, ...]) -> IntArray:
    """Position of each place on a walk through the torus in which successive places are neighbours.

    A reflected mixed-radix Gray code: every second row of a dimension is walked backwards, so the next step
    is one hop; if the last extent is even, the end is one wrap-around hop from the start.
    """
    rank = np.zeros_like(place)
    for d in reversed(range(len(dims))):
        digit = place // math.prod(dims[:d]) % dims[d]
        rank = rank * dims[d] + np.where(rank % 2 == 1, dims[d] - 1 - digit, digit)
    return rank


def torus(fabric: Fabric, ports: Ports) -> Wiring:
    """Torus with ``dims`` given, or the most square 2-D one over exactly what is attached."""
    places = len(ports) if ports.devices else ports.num_hosts
    extents = fabric.torus_extents(places)
    require_room("dims", math.prod(extents), places, "devices" if ports.devices else "hosts")
    if math.prod(extents) > MAX_PLACES:
        raise InputError("cluster.fabric.dims", f"have at most {MAX_PLACES} places", list(extents))
    return Torus(fabric, ports, extents)


# A torus, a hypercube and a ring differ in their extents only (``Fabric.torus_extents``).
hypercube = ring = torus
