"""What a fabric builder gives: numbered links, and vectorised routes between ports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.errors import InputError
from sim.rng import uniform_hash
from sim.spec.fabric import Fabric

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

# Parallel links between two tiers become one bundle when there would be more of them than this. Under ideal
# ECMP all links of a bundle carry the same load, so nothing is lost but their names.
MAX_REAL_LINKS = 2048


@dataclass(frozen=True, eq=False)
class Ports:
    """Where hosts meet the fabric: every NIC, or every device of a fabric that joins devices directly.

    Attributes
    ----------
    host, index : int[P]
        Host, and index of the NIC or device in it; hosts in order, so ports of a host are consecutive.
    bandwidth, latency : float[P]
        Bytes/s and seconds of the NIC, one direction; unused for devices.
    devices : bool
        Whether ports are devices.
    """

    host: IntArray
    index: IntArray
    bandwidth: FloatArray
    latency: FloatArray
    devices: bool = False

    def __len__(self) -> int:
        return len(self.host)

    @property
    def num_hosts(self) -> int:
        """Number of hosts."""
        return int(self.host[-1]) + 1 if len(self.host) else 0

    def name(self, port: int) -> str:
        """Node name of a port."""
        return f"host{self.host[port]}/{'gpu' if self.devices else 'nic'}{self.index[port]}"


@dataclass(frozen=True, eq=False)
class Hops:
    """Links between pairs of ports as columns: ``link`` int[n, w] padded with -1, ``share`` float of equal
    shape.

    ``share`` is the part of a flow on each link, 1 but for flows split over equal paths (ideal ECMP).
    """

    link: IntArray
    share: FloatArray

    @classmethod
    def of(cls, n: int, *columns: tuple[IntArray, float]) -> Hops:
        """From groups of columns (int[n] or int[n, w]), each with one share."""
        links = [column[:, None] if column.ndim == 1 else column for column, _ in columns]
        shares = [np.full(link.shape[1], share) for link, (_, share) in zip(links, columns, strict=True)]
        link = np.concatenate(links, axis=1)
        return cls(link, np.broadcast_to(np.concatenate(shares), link.shape))


@dataclass(frozen=True)
class PathChoice:
    """Which of several equal paths a flow takes.

    Attributes
    ----------
    routing : str
        ``ecmp``: all of them, evenly; ``static``: one, by destination; ``hashed``: one, by a hash of the
        flow's two ports, as switches do with the five-tuple, so that flows may collide.
    seed : int
        Of the hash.
    separate : bool
        Whether parallel links stay single links, however many they are (some of them may be down).
    """

    routing: str = "ecmp"
    seed: int = 0
    separate: bool = False

    @classmethod
    def of(cls, fabric: Fabric) -> PathChoice:
        """As a fabric says."""
        return cls(fabric.routing, fabric.seed, bool(fabric.failed))

    @property
    def may_bundle(self) -> bool:
        """Whether parallel links may become one."""
        return not self.single and not self.separate

    @property
    def single(self) -> bool:
        """Whether a flow takes one path."""
        return self.routing != "ecmp"

    def lanes(self, src: IntArray, dst: IntArray, count: int, *, level: int = 0) -> IntArray:
        """Lanes that each flow uses, of ``count``: int[n, 1], or int[1, count] if all are shared evenly.

        Successive choices on a way are told apart by ``level``.
        """
        if self.routing == "ecmp":
            return np.arange(count)[None, :]
        lane: IntArray
        if self.routing == "static":
            lane = dst // count**level % count
        else:
            drawn = uniform_hash(self.seed * 1_000_003 + level, src, dst)
            lane = np.minimum((drawn * count).astype(np.int64), count - 1)
        return lane[:, None]


class Wiring(ABC):
    """Links of one fabric, numbered from 0, each one direction.

    Attributes
    ----------
    capacity, latency : float[l]
        Bytes/s (all members of a bundle together) and seconds.
    members : int[l]
        Physical links a row stands for; more than 1 for bundles.
    num_port_links : int
        The first so many links are NIC cables (kind ``nic``); the others are of kind ``fabric``.
    """

    capacity: FloatArray
    latency: FloatArray
    members: IntArray
    num_port_links: int

    @abstractmethod
    def route(self, src: IntArray, dst: IntArray) -> Hops:
        """Links from port ``src[i]`` to port ``dst[i]``, in order."""

    @abstractmethod
    def ends(self, link: int) -> tuple[str, str]:
        """Names of the nodes a link leads from and to."""

    def demand(self, sending: FloatArray, receiving: FloatArray) -> FloatArray:
        """Bytes/s on each link if every port that could use it sends (or takes) as much as it can.

        Parameters
        ----------
        sending, receiving : float[P]
            Bytes/s of each port, out of the host and into it.

        Returns
        -------
        float[l]
            An upper bound; infinite for ports themselves, and where the builder knows none.
        """
        return np.full(len(self.capacity), np.inf)


def port_cables(fabric: Fabric, ports: Ports) -> tuple[FloatArray, FloatArray]:
    """Capacity and latency of the cable of each port: the narrower of NIC and cable, both latencies."""
    cable = np.inf if fabric.bandwidth is None else fabric.bandwidth
    return np.minimum(ports.bandwidth, cable), ports.latency + fabric.latency


MAX_LINKS = 20_000_000
MAX_CABLES = 1_000_000
"""Links of a fabric kept as arrays, and cables of one kept as a graph, at most."""


def require_size(field: str, links: int, *, cables: bool = False) -> None:
    """Refuse a fabric of more links (cables of a graph) than can be built."""
    limit, what = (MAX_CABLES, "cables between switches") if cables else (MAX_LINKS, "links between switches")
    if links > limit:
        raise InputError(f"cluster.fabric.{field}", f"give at most {limit:,} {what}", f"{links:,}")


def require_room(field: str, places: int, needed: int, what: str, hint: str = "") -> None:
    """Refuse a fabric with fewer places than things to attach."""
    if places < needed:
        raise InputError(
            f"cluster.fabric.{field}", f"hold all {needed} {what}", f"room for {places}", hint=hint
        )
