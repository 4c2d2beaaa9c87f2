"""What a collective library makes of an algorithm: protocols, launch, and which variant it runs.

NCCL and RCCL move data by one of three protocols. LL and LL128 carry a flag with every 8 or 128 bytes and
so need no fence: low latency, part of the bandwidth. Simple synchronises chunk by chunk: full bandwidth, high
latency. For each algorithm :math:`a` and protocol :math:`p` the time of a collective of :math:`S` bytes is

.. math::
    T_{ap} = t_0 + n_l \\alpha^l_p + n_n \\alpha^n_p + D_{ap} + 2 r \\sqrt{D_{ap} A_{ap}}, \\qquad
    D_{ap} = S \\max_k \\frac{\\tau_{ak}}{e_{kp}}

with :math:`n_l, n_n` dependent steps inside a host and between hosts, :math:`\\tau_{ak}` the seconds per byte
of the busiest link of kind :math:`k` at its datasheet speed, :math:`e` the reachable fraction of it,
:math:`A` all that does not depend on size. The last term, Simple only, is the pipeline that fills: with the
best chunk a pipelined transfer takes :math:`(\\sqrt A + \\sqrt D)^2` (r = 1), with chunks that are small
from the start A + D (r = 0). The library is taken to run the fastest variant, which is what its own tuner
aims at.

Source of the form and of the first guesses: NCCL 2.x, src/graph/tuning.cc (base and hop latencies per
protocol, LL and LL128 bandwidth limits); pipelines: R. van de Geijn, JPDC 22 (1994) 324.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.spec.calibration import Calibration, Parameter

FloatArray = npt.NDArray[np.float64]

PROTOCOLS = ("ll", "ll128", "simple")
_SIMPLE_ONLY = ("nvls", "nvls_tree", "collnet")  # no flags in what switches reduce


@dataclass(frozen=True)
class Path:
    """One algorithm on one cluster: dependent steps, and what the busiest links have to carry.

    Attributes
    ----------
    algorithm : str
        ``ring``, ``tree``, ``direct``, ``nvls`` (in one NVSwitch domain), ``nvls_tree`` (over hosts),
        ``collnet`` (switches between hosts reduce).
    local_steps, network_steps : int
        Steps that follow one another inside a host and between hosts.
    local, slot, network : float
        Seconds per byte of ``size_bytes`` at datasheet speed: of the links among devices, of PCIe between
        devices and NICs, of NICs and fabric; 0 where there is no traffic.
    """

    algorithm: str
    local_steps: int
    network_steps: int
    local: float
    slot: float
    network: float

    @property
    def ideal(self) -> float:
        """Seconds per byte if every link ran at its datasheet speed."""
        return max(self.local, self.slot, self.network)


@dataclass(frozen=True)
class ParameterSpec:
    """A parameter of the model.

    Attributes
    ----------
    part : str
        What it mostly depends on: ``interior`` (device and links in a host; the launch of a kernel goes with
        the age of the machine) or ``transport`` (between hosts).
    guess : float
        First guess: seconds for a latency, a fraction otherwise.
    spread : float
        Standard deviation of its logarithm between systems.
    limit : float
        Upper bound.
    source : str
        Where the guess comes from.
    """

    part: str
    guess: float
    spread: float
    limit: float
    source: str


_TUNING = "NCCL 2.x, src/graph/tuning.cc"
PARAMETERS: dict[str, ParameterSpec] = {
    "launch_latency": ParameterSpec("interior", 8e-6, 0.7, 1e-3, "CUDA kernel launch and " + _TUNING),
    "startup_simple_latency": ParameterSpec("interior", 6e-6, 0.7, 1e-3, _TUNING),
    "step_ll_latency": ParameterSpec("interior", 0.7e-6, 0.5, 1e-3, _TUNING),
    "step_ll128_latency": ParameterSpec("interior", 1.2e-6, 0.5, 1e-3, _TUNING),
    "step_simple_latency": ParameterSpec("interior", 2.5e-6, 0.5, 1e-3, _TUNING),
    "exchange_latency": ParameterSpec("interior", 6e-6, 0.7, 1e-3, "point-to-point start, as Simple"),
    "switch_latency": ParameterSpec("interior", 15e-6, 0.7, 1e-3, _TUNING + ", NVLS"),
    "simple_efficiency": ParameterSpec("interior", 0.8, 0.15, 1.0, "nccl-tests, see link.nvlink"),
    "ll_ratio": ParameterSpec("interior", 0.25, 0.4, 0.5, "half of the bytes are flags; fewer channels"),
    "ll128_ratio": ParameterSpec("interior", 0.8, 0.2, 1.0, "120 of 128 bytes are data"),
    "exchange_efficiency": ParameterSpec("interior", 0.75, 0.2, 1.0, "nccl-tests alltoall"),
    "switch_efficiency": ParameterSpec("interior", 0.6, 0.15, 1.0, "nccl-tests with NVLS on H100"),
    "pair_efficiency": ParameterSpec("interior", 0.87, 0.1, 1.0, "two ranks use fewer channels"),
    "ramp_ratio": ParameterSpec("interior", 0.2, 0.7, 3.0, "pipeline fill, between 0 and 1"),
    "network_launch_latency": ParameterSpec("transport", 15e-6, 0.9, 2e-3, "proxy thread and NIC doorbell"),
    "hop_ll_latency": ParameterSpec("transport", 6e-6, 0.8, 2e-3, _TUNING),
    "hop_ll128_latency": ParameterSpec("transport", 10e-6, 0.8, 2e-3, _TUNING),
    "hop_simple_latency": ParameterSpec("transport", 16e-6, 0.8, 2e-3, _TUNING),
    "network_efficiency": ParameterSpec("transport", 0.85, 0.2, 1.0, "headers and flow control"),
    "network_ll_ratio": ParameterSpec("transport", 0.3, 0.5, 0.5, "half of the bytes are flags"),
    "tree_efficiency": ParameterSpec("transport", 0.8, 0.25, 1.0, _TUNING + ", tree correction"),
    "network_ramp_ratio": ParameterSpec("transport", 0.4, 0.9, 3.0, "pipeline fill, between 0 and 1"),
}
NAMES = tuple(PARAMETERS)

Parameters = Mapping[str, float] | Mapping[str, FloatArray]


def parameters_of(
    calibration: Calibration, interior: str, network_kind: str, special: Sequence[str] = ()
) -> dict[str, float]:
    """Each parameter of the model, from the most special place that has it.

    Parameters
    ----------
    calibration : Calibration
    interior, network_kind : str
        Keys of the ``link`` section for links in the host and the transport between hosts.
    special : sequence of str
        Keys of the ``library`` section that come before them, the most special last.
    """
    entries: dict[str, Parameter] = {}
    for key in special:
        entries.update(calibration.library.get(key, {}))
    result = {}
    for name, spec in PARAMETERS.items():
        kind = network_kind if spec.part == "transport" else interior
        if name in entries:
            result[name] = entries[name].value
        elif calibration.has("link", kind, name):
            result[name] = calibration.value("link", kind, name)
        else:
            result[name] = spec.guess
    return result


@dataclass(frozen=True, eq=False)
class Problem:
    """Many collectives at once, one row each; columns of absent algorithms are NaN.

    Attributes
    ----------
    size : float[m]
        ``size_bytes``.
    steps, inverse : dict of algorithm to float[m, 2], float[m, 3]
        (local, network) steps and (local, slot, network) seconds per byte.
    ll128, pair, remote : bool[m]
        Whether LL128 is used (NVLink only); two ranks; several hosts.
    """

    size: FloatArray
    steps: dict[str, FloatArray]
    inverse: dict[str, FloatArray]
    ll128: npt.NDArray[np.bool_]
    pair: npt.NDArray[np.bool_]
    remote: npt.NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        sizes: Sequence[float],
        paths: Sequence[Sequence[Path]],
        interiors: Sequence[str],
        num_ranks: Sequence[int],
        num_hosts: Sequence[int],
    ) -> Problem:
        """Stack rows: sizes, the algorithms possible for each, link names in the host, ranks and hosts."""
        count = len(sizes)
        names = sorted({path.algorithm for row in paths for path in row})
        steps = {name: np.full((count, 2), np.nan) for name in names}
        inverse = {name: np.full((count, 3), np.nan) for name in names}
        for row, options in enumerate(paths):
            for path in options:
                steps[path.algorithm][row] = path.local_steps, path.network_steps
                inverse[path.algorithm][row] = path.local, path.slot, path.network
        return cls(
            size=np.asarray(sizes, np.float64),
            steps=steps,
            inverse=inverse,
            ll128=np.array([name.startswith("nvlink") for name in interiors], bool),
            pair=np.asarray(num_ranks) == 2,
            remote=np.asarray(num_hosts) > 1,
        )


@dataclass(frozen=True, eq=False)
class Variants:
    """Time of every (algorithm, protocol) of a problem, float[v, m] in seconds; infinite where impossible.

    With k sets of parameters there is one more axis, float[v, k, m]. ``fixed`` is the part of ``seconds``
    that does not depend on the size; the links are loaded during the rest.
    """

    names: tuple[tuple[str, str], ...]
    seconds: FloatArray
    fixed: FloatArray

    def best(self) -> FloatArray:
        """Time of the fastest variant, float[m]."""
        fastest: FloatArray = self.seconds.min(axis=0)
        return fastest

    def chosen(self) -> list[tuple[str, str]]:
        """(algorithm, protocol) of the fastest variant of each row."""
        return [self.names[i] for i in self.seconds.argmin(axis=0)]

    def smooth(self, width: float = 0.03) -> FloatArray:
        """As :meth:`best`, but with the corners between variants rounded off over ``width``: for fitting."""
        best = self.best()
        near = np.exp(-np.minimum((self.seconds / best - 1) / width, 700.0))
        weighted = np.where(np.isfinite(self.seconds), self.seconds, 0.0) * near
        mean: FloatArray = weighted.sum(axis=0) / near.sum(axis=0)
        return mean


def variants(problem: Problem, parameters: Parameters) -> Variants:
    """Time of every variant.

    Parameters
    ----------
    problem : Problem
        Collectives.
    parameters : mapping
        A value for each of :data:`NAMES`, or a column float[k, 1] for k sets of values at once.
    """
    names, rows, fixed = [], [], []
    for algorithm in problem.steps:
        for protocol in PROTOCOLS:
            if protocol != "simple" and algorithm in _SIMPLE_ONLY:
                continue
            names.append((algorithm, protocol))
            seconds, constant = _time(problem, parameters, algorithm, protocol)
            rows.append(seconds)
            fixed.append(np.broadcast_to(constant, seconds.shape))
    return Variants(tuple(names), np.array(rows), np.array(fixed))


def _time(problem: Problem, p: Parameters, algorithm: str, protocol: str) -> tuple[FloatArray, FloatArray]:
    """Seconds, and the part of them that does not depend on the size."""
    local_steps, network_steps = problem.steps[algorithm].T
    local, slot, network = problem.inverse[algorithm].T
    fixed: FloatArray = p["launch_latency"] + np.where(problem.remote, p["network_launch_latency"], 0.0)
    hops = network_steps * p[f"hop_{protocol}_latency"]
    local_ratio = {"ll": p["ll_ratio"], "ll128": p["ll128_ratio"], "simple": 1.0}[protocol]
    network_ratio = {"ll": p["network_ll_ratio"], "ll128": p["ll128_ratio"], "simple": 1.0}[protocol]
    efficiency: float | FloatArray = p["simple_efficiency"]
    tree = p["tree_efficiency"] if algorithm == "tree" else 1.0
    if algorithm == "direct":
        efficiency = p["exchange_efficiency"]
        fixed = fixed + hops + np.where(problem.remote, 0.0, p["exchange_latency"])
    elif algorithm.startswith("nvls"):
        efficiency = p["switch_efficiency"]
        fixed = fixed + hops + p["switch_latency"]
    else:
        fixed = fixed + hops + local_steps * p[f"step_{protocol}_latency"]
        fixed = fixed + (p["startup_simple_latency"] if protocol == "simple" else 0.0)
    reached = efficiency * local_ratio * tree * np.where(problem.pair, p["pair_efficiency"], 1.0)
    reach = p["network_efficiency"] * network_ratio * tree
    drain = problem.size * np.maximum(np.maximum(local / reached, network / reach), slot / _SLOT_EFFICIENCY)
    seconds = fixed + drain
    if protocol == "simple":
        ramp = np.where(problem.remote, p["network_ramp_ratio"], p["ramp_ratio"])
        seconds = seconds + 2 * ramp * np.sqrt(drain * fixed)
    if protocol == "ll128":
        seconds = np.where(problem.ll128, seconds, np.inf)
    result: FloatArray = np.where(np.isnan(seconds), np.inf, seconds)
    return result, fixed


# PCIe between a device and its NIC: as link.pcie of the default calibration.
_SLOT_EFFICIENCY = 0.8


def slot_efficiency() -> float:
    """Reachable fraction of PCIe between a device and its NIC."""
    return _SLOT_EFFICIENCY
