"""Collectives of a simulation as an NCCL-like library runs them: variant, fixed time and reached rate.

The same model (:mod:`sim.models.library`) and the same entries of a calibration as on the board of measured
collectives. It is used where the calibration has such entries; otherwise a step costs one latency and a link
its efficiency, as in the ideal calibration's closed forms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sim.fabric.network import Network
from sim.lowering.collective_paths import group_paths, link_parts, steps
from sim.lowering.patterns import Family
from sim.models.library import PARAMETERS, Path, Problem, Variants, parameters_of, slot_efficiency, variants
from sim.spec import Calibration, Cluster
from sim.spec.host import expand_nodes

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# Bytes/s a device sends over all its NVLinks, by generation.
_NVLINK = {1: 80e9, 2: 150e9, 3: 300e9, 4: 450e9, 5: 900e9}
PCIE = {3: 15.75e9, 4: 31.5e9, 5: 63e9, 6: 121e9}
"""Bytes/s of a PCIe slot of 16 lanes in one direction, by generation (PCI-SIG)."""
# Wires of an ordinary machine room, which fitted latencies contain: a longer way costs what it is longer.
_USUAL_WIRE = (2e-6, 5e-6)


@dataclass(frozen=True)
class Timing:
    """A phase of a collective: seconds before bytes flow, bytes of an elementary flow, its highest rate."""

    latency: float
    flow_bytes: float
    cap: float = float("inf")
    protocol: str = ""


@dataclass(frozen=True, eq=False)
class LibraryTimes:
    """The library model on one network.

    Attributes
    ----------
    network : Network
    parameters : dict of str to float
        See :data:`sim.models.library.PARAMETERS`.
    interior : str
        Links among the devices of a host, as in calibrations: ``nvlink4``, ``pcie3`` ...
    """

    network: Network
    parameters: dict[str, float]
    interior: str
    _paths: dict[tuple[str, bytes], tuple[Path, ...]] = field(default_factory=dict)
    _best: dict[tuple[str, bytes, float], str] = field(default_factory=dict)

    @classmethod
    def of(cls, network: Network, calibration: Calibration) -> LibraryTimes | None:
        """The model for a cluster, or None where its library is another or the calibration lacks entries."""
        cluster = network.cluster
        if not cluster.library.startswith(("nccl", "rccl")) or cluster.fabric.attach == "device":
            return None
        interior = interior_of(cluster)
        if not calibration.has("link", interior, "launch_latency"):
            return None
        parameters = parameters_of(calibration, interior, _network_kind(cluster), (cluster.library,))
        return cls(network, parameters, interior)

    @property
    def in_switch(self) -> bool:
        """Whether the NVSwitches of a host reduce."""
        return switches_reduce(self.network.cluster)

    def capacity(self, effective: FloatArray) -> FloatArray:
        """Achievable bytes/s of links: at least what the library reaches on them."""
        p = self.parameters
        local = max(p["simple_efficiency"], p["exchange_efficiency"], p["switch_efficiency"])
        reach = np.array([local, slot_efficiency(), p["network_efficiency"]])
        raised: FloatArray = np.maximum(effective, self.network.link_capacity * reach[self._parts])
        return raised

    def choose(self, operation: str, size: float, ranks: IntArray) -> str:
        """Algorithm the library runs over a group of devices."""
        key = operation, ranks.tobytes(), size
        if key not in self._best:
            options = self._group(operation, ranks)
            if len(options) == 1:
                return options[0].algorithm
            found = self._variants(options, size, len(ranks), self._hosts(ranks))
            self._best[key] = found.chosen()[0][0]
        return self._best[key]

    def candidates(self, operation: str, ranks: IntArray) -> list[str]:
        """Algorithms the library may choose for some size."""
        return [path.algorithm for path in self._group(operation, ranks)]

    def _group(self, operation: str, ranks: IntArray) -> tuple[Path, ...]:
        key = operation, ranks.tobytes()
        if key not in self._paths:
            self._paths[key] = group_paths(self.network, ranks, operation, in_switch=self.in_switch)
        return self._paths[key]

    def timing(self, family: Family, group: int, phase: int, size: float) -> Timing:
        """One phase of a collective of ``size`` bytes in one group of a routed family."""
        ranks = family.groups[group]
        operation, algorithm = family.collective
        paths = [self._phase_path(family, group, number) for number in range(len(family.loads))]
        hosts = self._hosts(ranks)
        whole = _sum(algorithm, paths)
        if algorithm in _KIND:
            per_host = -(-len(ranks) // hosts)
            local, network = steps(operation, algorithm, per_host, hosts)
            whole = Path(algorithm, local, network, whole.local, whole.slot, whole.network)
        found = self._variants((whole,), size, len(ranks), hosts)
        best = int(found.seconds[:, 0].argmin())
        protocol = found.names[best][1]
        mine, loads = paths[phase], family.loads[phase]
        flow_bytes = loads.phase.fraction * size
        fixed, drain = float(found.fixed[best, 0]), float(found.seconds[best, 0] - found.fixed[best, 0])
        all_steps = sum(loads.phase.steps for loads in family.loads)
        latency = fixed * (loads.phase.steps / all_steps if all_steps else 1 / len(paths))
        latency += loads.phase.steps * max(0.0, loads.wire(group) - _USUAL_WIRE[mine.network > 0])
        if mine.ideal == 0.0 or flow_bytes == 0.0:
            return Timing(latency, flow_bytes if mine.ideal else 0.0, protocol=protocol)
        if drain <= 0.0:  # so few bytes that their time is lost in the rounding of the fixed one
            return Timing(latency, flow_bytes, protocol=protocol)
        cap = flow_bytes * whole.ideal / (drain * mine.ideal)
        return Timing(latency, flow_bytes, cap, protocol)

    def _variants(self, paths: tuple[Path, ...], size: float, num_ranks: int, hosts: int) -> Variants:
        named = [Path(_KIND.get(p.algorithm, "ring"), *_rest(p)) for p in paths]
        problem = Problem.of([size], [named], [self.interior], [num_ranks], [hosts])
        return variants(problem, self.parameters)

    def _phase_path(self, family: Family, group: int, number: int) -> Path:
        loads = family.loads[number]
        links, coefficient = loads.of_group(group)
        inverse = loads.phase.fraction * coefficient / self.network.link_capacity[links]
        rates = [float(inverse[self._parts[links] == part].max(initial=0.0)) for part in range(3)]
        count = loads.phase.steps
        return Path("", 0 if rates[2] else count, count if rates[2] else 0, rates[0], rates[1], rates[2])

    def _hosts(self, ranks: IntArray) -> int:
        return len(set(self.network.device_host[ranks].tolist()))

    @cached_property
    def _parts(self) -> IntArray:
        return link_parts(self.network)


def switches_reduce(cluster: Cluster) -> bool:
    """Whether the NVSwitches of every host reduce: NVLink SHARP, from Hopper on."""
    workers = [host for host in cluster.host_types if host.num_devices]
    return bool(workers) and all(host.nvswitch_reduces for host in workers)


def achievable(network: Network, calibration: Calibration, times: LibraryTimes | None) -> FloatArray:
    """Achievable bytes/s of every link, less what background traffic takes."""
    effective = network.effective_capacity(calibration)
    return network.spared(effective if times is None else times.capacity(effective))


# Algorithms the library does not have are timed as rings: dependent steps at Simple's, LL's or LL128's price.
_KIND = {name: name for name in ("ring", "tree", "direct", "nvls", "nvls_tree", "collnet")}


def _rest(path: Path) -> tuple[int, int, float, float, float]:
    return path.local_steps, path.network_steps, path.local, path.slot, path.network


def _sum(algorithm: str, paths: list[Path]) -> Path:
    columns = zip(*(_rest(path) for path in paths), strict=True)
    local_steps, network_steps, local, slot, network = (sum(column) for column in columns)
    return Path(algorithm, int(local_steps), int(network_steps), local, slot, network)


def library_link_key(cluster: Cluster, calibration: Calibration, name: str) -> str:
    """Key of the ``link`` section that a parameter of the library model is taken from."""
    kind = _network_kind(cluster) if PARAMETERS[name].part == "transport" else interior_of(cluster)
    return kind if name in calibration.link.get(kind, {}) else "default"


def _network_kind(cluster: Cluster) -> str:
    return cluster.transport if cluster.library == "nccl" else f"{cluster.transport}/{cluster.library}"


def interior_of(cluster: Cluster) -> str:
    """Key of the links among the devices of a host: ``nvlink3``, ``pcie4``, ``xgmi3`` ..."""
    host = next((host for host in cluster.host_types if host.num_devices), None)
    if host is None:
        return "default"
    at_device = [link for link in host.links if "gpu0" in (*expand_nodes(link.a), *expand_nodes(link.b))]
    nvlink = sum(
        link.bandwidth * (1 if "gpu" not in link.b else len(expand_nodes(link.b)))
        for link in at_device
        if link.kind == "nvlink"
    )
    if nvlink:
        family = "xgmi" if host.devices[0][0].startswith("mi") else "nvlink"
        return f"{family}{_nearest(nvlink, _NVLINK)}" if family == "nvlink" else "xgmi3"
    slot = max((link.bandwidth for link in at_device if link.kind == "pcie"), default=PCIE[4])
    return f"pcie{_nearest(slot, PCIE)}"


def _nearest(value: float, table: dict[int, float]) -> int:
    return min(table, key=lambda generation: abs(np.log(table[generation] / value)))
