"""Traffic: the families of process groups that communicate on one network, and what they fold into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from sim.fabric.network import Network
from sim.lowering.arrays import distinct
from sim.lowering.fold import Partition, partition, quotient_loads
from sim.lowering.grids import group_dims, group_links, nested_dims
from sim.lowering.library import LibraryTimes, switches_reduce
from sim.lowering.patterns import Family, FloatArray, IntArray, Router, StepLatency
from sim.models import gloo
from sim.models.collectives import GRID_ALGORITHMS, Phase, choose, plan
from sim.models.tree_packing import Matrix
from sim.spec import Calibration, Cluster


def step_latency(calibration: Calibration, library: str) -> StepLatency:
    """Latency that a library adds to every step of a collective."""
    start = "start_latency"
    return StepLatency(
        calibration.value("library", library, "step_latency"),
        calibration.value("library", library, "step_latency_network"),
        calibration.value("library", library, start) if calibration.has("library", library, start) else 0.0,
    )


def reduction_rate(cluster: Cluster, calibration: Calibration, compression: str = "none") -> float:
    """Bytes/s at which the slowest device adds up two arrays: two reads and a write per byte of sum.

    A library on processors converts each half to a float and back (``half_sum_time`` per element).
    """
    rate = min(
        device.memory_bandwidth * calibration.value("device", device.name, "memory_efficiency") / 3
        for device in cluster.device_types
    )
    if compression == "fp16" and calibration.has("library", cluster.library, "half_sum_time"):
        rate = min(rate, 2.0 / calibration.value("library", cluster.library, "half_sum_time"))
    return rate


@dataclass(kw_only=True)
class Traffic:
    """Families are requested, then classified together; after that :class:`TransferEmitter` can emit them.

    Parameters
    ----------
    network : Network
    capacity : float array
        Achievable bytes/s of every link.
    step_latency : StepLatency
    reduction_rate : float
        Bytes/s at which a rank adds up what it received, where the library waits for that.
    library_times : LibraryTimes, optional
        How an NCCL-like library times its collectives, where the calibration knows.
    families : dict of str to Family
        By name; with loads once classified.
    alternatives : dict of str to int array
        Names of collectives with one family per algorithm, and a group of theirs: see :meth:`family_of`.
    parts : Partition, optional
        Classes of endpoints, groups and links.
    loads : dict
        Per family ``[phase][group class] -> (links, coefficients)``.
    apart : bool
        Ranks come to a collective from their own work, not at one agreed moment as in a benchmark.
    """

    network: Network
    capacity: FloatArray
    step_latency: StepLatency
    reduction_rate: float = float("inf")
    library_times: LibraryTimes | None = None
    families: dict[str, Family] = field(default_factory=dict)
    alternatives: dict[str, IntArray] = field(default_factory=dict)
    parts: Partition | None = None
    loads: dict[str, list[list[tuple[IntArray, FloatArray]]]] = field(default_factory=dict)
    apart: bool = True
    _chosen: dict[tuple[str, float, bytes], str] = field(default_factory=dict, repr=False)

    @property
    def classes(self) -> Partition:
        """The partition into classes."""
        assert self.parts is not None
        return self.parts

    @property
    def messages(self) -> bool:
        """Whether the library sends collectives as messages (:mod:`sim.models.gloo`)."""
        return self.network.cluster.library == "gloo"

    @property
    def queued_notes(self) -> bool:
        """Whether control messages wait in line with all other data."""
        return self.network.cluster.fabric.link_service == "fifo"

    @cached_property
    def router(self) -> Router:
        """Routes families of groups over the network."""
        return Router(self.network, self.capacity, self.step_latency)

    def request(
        self,
        name: str,
        groups: IntArray,
        phases: Sequence[Phase],
        *,
        algorithm: str = "",
        asymmetric: bool = False,
        marks: FloatArray | None = None,
        operation: str = "",
        collective: tuple[str, str] = ("", ""),
        windows: tuple[float, ...] = (),
    ) -> None:
        """Add a family of groups; see :meth:`Router.family`.

        ``operation`` names a collective that the library sends as messages of these phases. Any other message
        is a rendezvous where the library makes it one: a note one way, then the data. ``collective`` is the
        operation and algorithm of what an NCCL-like library runs as one kernel. ``windows`` bound the bytes
        of a flow on their way, phase by phase.
        """
        if self.messages and not operation:
            phases = [replace(phase, steps=2 * phase.steps) for phase in phases]
        family = self.router.family(
            name, groups, phases, algorithm=algorithm, asymmetric=asymmetric, marks=marks
        )
        self.families[name] = replace(family, operation=operation, collective=collective, windows=windows)

    def request_collective(
        self,
        name: str,
        groups: IntArray,
        op: str,
        algorithm: str,
        *,
        dims: tuple[int, ...] | None = None,
        radix: int | None = None,
    ) -> None:
        """Add the collective ``op`` over equal-sized ``groups``, in the orders the library would use.

        ``dims`` and ``radix`` are what the user wants of a grid, of digits or of a tree; see
        :func:`sim.models.collectives.plan`.
        """
        size = groups.shape[1]
        if size < 2:
            return
        if self.messages:
            phases = gloo.message_plan(op, size, queued=self.queued_notes, apart=self.apart)
            self.request(name, groups, phases, operation=op)
            return
        if algorithm == "nvls":
            algorithm = self._nvls(op, groups)
        grid = self.grid(groups, algorithm, dims)
        if algorithm in GRID_ALGORITHMS and (grid is None or min(grid) < 2):
            algorithm, grid = "ring", None
        links = self.links(groups, grid) if algorithm == "packed_trees" else None
        phases = plan(op, algorithm, size, dims=grid, radix=radix, links=links)
        self.request(name, groups, phases, algorithm=algorithm, collective=(op, algorithm))

    def grid(
        self, groups: IntArray, algorithm: str, given: tuple[int, ...] | None = None
    ) -> tuple[int, ...] | None:
        """Dimensions the groups have for an algorithm; see :func:`sim.lowering.grids.group_dims`."""
        return group_dims(self.network, self.router.endpoint_host, groups, algorithm, given)

    def links(
        self, groups: IntArray, grid: tuple[int, ...] | None, *, arranged: bool = False
    ) -> Matrix | None:
        """NVLinks among the ranks of a host; see :func:`sim.lowering.grids.group_links`.

        ``arranged``: ranks are what they are in the group (of one host), not in the order of devices.
        """
        groups = groups if arranged else np.sort(groups, axis=1)
        per_host = groups.shape[1] if arranged else (grid or (1,))[0]
        on_host = nested_dims([self.router.endpoint_host[groups]])
        if (groups >= self.network.num_devices).any() or on_host is None or on_host[0] != per_host:
            return None
        return group_links(self.network, groups, per_host)

    def request_by_size(self, name: str, groups: IntArray, op: str) -> None:
        """Add ``op`` in every algorithm the library may choose for some size.

        Without the library's model: a ring, or CollNet where switches between hosts reduce.
        """
        if self.library_times is None or groups.shape[1] < 2:
            reduced = op == "all_reduce" and self._fabric_reduces(groups)
            self.request_collective(name, groups, op, "collnet" if reduced else "ring")
            return
        self.alternatives[name] = groups[0]
        for algorithm in self.library_times.candidates(op, groups[0]):
            self.request_collective(f"{name}_{algorithm}", groups, op, algorithm)

    def family_of(self, name: str, operation: str, size: float) -> str:
        """The family that a collective of this size runs in."""
        if name not in self.alternatives:
            return name
        return f"{name}_{self.choose(operation, size, self.alternatives[name])}"

    def choose(self, op: str, size: float, group: IntArray) -> str:
        """Algorithm that the library runs for ``op`` over a group of endpoints."""
        key = (op, size, group.tobytes())
        if key not in self._chosen:
            self._chosen[key] = self._choose(op, size, group)
        return self._chosen[key]

    def _choose(self, op: str, size: float, group: IntArray) -> str:
        hosts = len(distinct(self.router.endpoint_host[group]))
        if self.library_times is None or group.max() >= self.network.num_devices:
            return self._choose_roughly(op, size, group, hosts)
        return self.library_times.choose(op, size, group)

    def _choose_roughly(self, op: str, size: float, group: IntArray, hosts: int) -> str:
        """By orders of magnitude, where the calibration does not know the library."""
        if self.messages:
            return choose(op, size, len(group), hosts, library="gloo")
        even = self._hosts_of(group[None]) > 0
        return choose(
            op, size, len(group), hosts,
            in_switch=even and switches_reduce(self.network.cluster),
            in_fabric=even and self._fabric_reduces(group[None]),
        )  # fmt: skip

    def _nvls(self, op: str, groups: IntArray) -> str:
        """What NVLink SHARP is for these groups: in a host itself, over hosts trees; a ring where neither."""
        hosts = self._hosts_of(groups)
        if hosts == 1:
            return "nvls"
        return "nvls_tree" if op == "all_reduce" and 1 < hosts < groups.shape[1] else "ring"

    def _fabric_reduces(self, groups: IntArray) -> bool:
        """Whether the library would have switches between hosts reduce for every group."""
        cluster = self.network.cluster
        allowed = cluster.fabric.in_network_reduction and cluster.library.startswith(("nccl", "rccl"))
        return allowed and self._hosts_of(groups) > 1

    def _hosts_of(self, groups: IntArray) -> int:
        """Hosts of every group of devices; 0 where ranks are not spread over them evenly."""
        if groups.max() >= self.network.num_devices:
            return 0
        grid = self.grid(groups, "collnet")
        return 0 if grid is None else grid[1] if len(grid) > 1 else 1

    def classify(self, endpoint_keys: IntArray, *, fold: bool) -> None:
        """Partition endpoints, groups and links into classes and compute the folded loads.

        Parameters
        ----------
        endpoint_keys : int array
            Equal keys: equal device and program; -1 takes no part.
        fold : bool
            ``False`` keeps everything apart.
        """
        families = self.router.load(list(self.families.values()))
        self.families = dict(zip(self.families, families, strict=True))
        self.parts = partition(families, endpoint_keys, self.capacity, fold=fold)
        quotient = quotient_loads(families, self.parts)
        self.loads = dict(zip(self.families, quotient, strict=True))
