"""``calibrate runs``: few physical parameters per device, precision and framework from measured step times.

Only rows of the calibration split are read. Parameters are fitted as logarithms, around their present values
as a prior, to the logarithm of step time; sources count alike however many rows they have. No parameter
belongs to a source or a row. The error is reported in five-fold cross-validation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sim.calibrate.least_squares import STEP, Fit, least_squares
from sim.calibrate.run_priors import CHIPS, SOURCE, UNKNOWN
from sim.calibrate.run_stack import Stack
from sim.calibrate.run_terms import Shape, Term
from sim.models.compute import step_overhead
from sim.models.kernels import CONVOLUTION, FLASH, MATRIX
from sim.spec import Calibration
from sim.spec.calibration import Parameter
from sim.validate.frameworks import FRAMEWORKS, stack_of
from sim.validate.runs_loader import framework_calibration
from sim.validate.spread import Z80

FloatArray = npt.NDArray[np.float64]

NOISE = 0.08
"""Standard deviation of the logarithm of a step time around the model, for a source of typical size."""
TYPICAL_ROWS = 60
STACK_SHARE = 0.5
"""Share of the variance between frameworks that those of one stack have in common."""
FEWEST_ROWS = 10
"""Rows that must depend on a parameter for it to be fitted."""

_CHIP_DEVICES = {device for devices in CHIPS.values() for device in devices}


@dataclass(frozen=True)
class Knob:
    """One fitted parameter.

    Attributes
    ----------
    section, key, name : str
        Where it lies in the calibration; for devices the key is a chip of :data:`CHIPS`.
    spread : float
        Standard deviation of its logarithm between the members of its population (chips, frameworks).
    middle : float
        Standard deviation of the population's middle around the prior's value; all members share it.
    upper : float
        Largest value.
    """

    section: str
    key: str
    name: str
    spread: float
    middle: float
    upper: float

    @property
    def keys(self) -> tuple[str, ...]:
        """Calibration keys that take the value."""
        return CHIPS.get(self.key, (self.key,)) if self.section == "device" else (self.key,)

    def concerns(self, term: Term) -> bool:
        """Whether a run's time can depend on it."""
        if self.section == "device":
            name = term.shape.device.name
            mine = name not in _CHIP_DEVICES if self.key == UNKNOWN else name in self.keys
            return mine and self._used(term.shape)
        if self.name == "collective_issue_time" and not term.shape.exchanges.any():
            return False
        if self.name == "attention_speed" and not (term.shape.kernels.kind == FLASH).any():
            return False
        return term.shape.framework == self.key

    def _used(self, shape: Shape) -> bool:
        kinds = {"conv": CONVOLUTION, "winograd": CONVOLUTION, "attention": FLASH, "gemm": MATRIX}
        if self.name in ("sustained_clock", "memory_efficiency"):
            return True
        kind = kinds.get(self.name.split("_")[0])
        if kind is not None and not (shape.kernels.kind == kind).any():
            return False
        unit = self.name.rpartition("efficiency_")[2]
        narrow = {"fp8": "eight_bit", "fp4": "four_bit", "tf32": "tf32"}.get(shape.dtype)
        fp32 = shape.device.peak_flops.get("fp32", 0.0)
        wide = "matrix" if shape.device.peak(shape.dtype) > 2.5 * fp32 else "vector"
        if self.name.startswith(("gemm", "conv")):
            return unit == (narrow or wide) or (unit == "matrix" and narrow in ("eight_bit", "four_bit"))
        return self.name != "winograd_gain" or wide == "vector"


_DEVICE = (
    ("gemm_efficiency_vector", 0.12, 0.12, 0.97),
    ("gemm_efficiency_matrix", 0.15, 0.15, 0.9),
    ("gemm_efficiency_tf32", 0.2, 0.2, 0.9),
    ("gemm_efficiency_eight_bit", 0.25, 0.25, 0.9),
    ("gemm_efficiency_four_bit", 0.35, 0.35, 0.9),
    ("conv_efficiency_vector", 0.2, 0.2, 0.97),
    ("conv_efficiency_matrix", 0.2, 0.2, 0.9),
    ("conv_efficiency_tf32", 0.25, 0.25, 0.9),
    ("winograd_gain", 0.15, 0.15, 4.0),
    ("attention_efficiency", 0.2, 0.2, 0.66),
    ("memory_efficiency", 0.12, 0.12, 0.93),
    ("tile_fill_time", 0.7, 0.7, 2e-5),
)
_FRAMEWORK = (
    ("kernel_issue_time", 0.35, 2.0, 3e-4),
    ("elementwise_traffic", 0.35, 0.35, 4.0),
    ("attention_speed", 0.4, 0.4, 1.5),
    ("step_overhead", 0.4, 0.4, 0.02),
    ("collective_issue_time", 0.5, 0.8, 3e-4),
    ("exposed_launches", 0.5, 2.0, 1.0),
    ("optimizer_bandwidth_efficiency", 0.4, 0.4, 0.85),
)
"""Name, standard deviation between members and of their middle, largest value."""


def knobs_for(terms: Sequence[Term]) -> list[Knob]:
    """Parameters that runs depend on, and those of the unknown member of each of their populations."""
    seen = {term.shape.framework for term in terms} - {UNKNOWN}
    stacks = {stack_of(key) for key in seen}
    relatives = {each.key for each in FRAMEWORKS if stack_of(each.key) in stacks} - seen
    frameworks = sorted(seen)
    found = [Knob("device", chip, *entry) for chip in CHIPS for entry in _DEVICE]
    found += [Knob("framework", key, *entry) for key in frameworks for entry in _FRAMEWORK]
    found = [knob for knob in found if sum(knob.concerns(term) for term in terms) >= FEWEST_ROWS]
    populations = {(knob.section, knob.name): knob for knob in found}
    found += [replace(knob, key=UNKNOWN) for knob in populations.values()]
    shared = {(stack_of(knob.key), knob.name): knob for knob in found if knob.section == "framework"}
    found += [
        replace(knob, key=key)
        for key in sorted(relatives)
        for (stack, _), knob in shared.items()
        if stack == stack_of(key)
    ]
    return found + [Knob("device", device, "sustained_clock", 0.1, 0.0, 1.5) for device in _compared(terms)]


def covariance_of(knobs: Sequence[Knob]) -> FloatArray:
    """Prior covariance: members of a population share the uncertainty of its middle, and frameworks of one
    stack part of what sets them apart from it; float[p, p]."""
    size = (len(knobs), len(knobs))
    pairs = [[(a.section, a.name) == (b.section, b.name) for b in knobs] for a in knobs]
    alike = np.array(pairs, dtype=bool).reshape(size)
    stack = [stack_of(knob.key) if knob.section == "framework" else knob.key for knob in knobs]
    related = np.array([[a == b for b in stack] for a in stack], dtype=bool).reshape(size) & alike
    middle, spread = (np.array([getattr(knob, name) for knob in knobs]) for name in ("middle", "spread"))
    shared = np.where(np.eye(len(knobs), dtype=bool), 1.0, STACK_SHARE * related)
    return np.asarray(shared * np.outer(spread, spread) + alike * np.outer(middle, middle))


def _compared(terms: Sequence[Term]) -> list[str]:
    """Devices whose clock can be told from their chip's efficiencies: others with the chip are there, too."""
    rows = Counter(term.shape.device.name for term in terms)
    return [
        device
        for chip in CHIPS.values()
        for device in chip[1:]
        if sum(rows[other] for other in chip if other != device) >= FEWEST_ROWS
    ]


@dataclass(frozen=True, eq=False)
class RunFit:
    """A fit of run terms.

    Attributes
    ----------
    knobs : list of Knob
    fit : Fit
        Logarithms of the parameters, in the order of ``knobs``.
    rows : list of int
        Runs that depend on each parameter.
    calibration : Calibration
        The calibration with the fitted values and their 80 % intervals.
    source : str
        Source of the fitted parameters.
    """

    knobs: list[Knob]
    fit: Fit
    rows: list[int]
    calibration: Calibration
    source: str = SOURCE


class Objective:
    """Residuals of many parameter vectors, in units of the standard deviation of each row."""

    def __init__(self, terms: Sequence[Term], knobs: Sequence[Knob], calibration: Calibration) -> None:
        self.terms, self.knobs, self.calibration = list(terms), list(knobs), calibration
        counts = Counter(term.run.row.group for term in terms)
        self.scale = np.array([NOISE * math.sqrt(counts[t.run.row.group] / TYPICAL_ROWS) for t in terms])
        self.measured = np.log([term.run.measured_s or 1.0 for term in terms])
        self.affects = np.array([[knob.concerns(term) for knob in knobs] for term in terms])
        shapes = list({id(term.shape): term.shape for term in terms}.values())
        index = {id(shape): i for i, shape in enumerate(shapes)}
        self.stack = Stack(shapes)
        self.shape_of = np.array([index[id(term.shape)] for term in terms])
        self.frameworks = sorted({term.shape.framework for term in terms})
        self.framework_of = np.array([self.frameworks.index(t.shape.framework) for t in terms])
        self.passes = np.array([term.passes for term in terms])
        self.fixed = np.array([term.fixed_s for term in terms])  # communication, which no knob changes
        own = {key: framework_calibration(calibration, key) for key in self.frameworks}
        latency = np.array(
            [own[t.shape.framework].value("device", t.shape.device.name, "kernel_latency") for t in terms]
        )
        update = np.array([t.other(own[t.shape.framework]) for t in terms]) - self._of_framework(
            own, step_overhead
        )
        self.update = (update - latency) * self._of_framework(own, _optimizer_efficiency)
        self.fixed += latency

    def __call__(self, points: FloatArray) -> FloatArray:
        """float[k, p] -> float[k, m]."""
        return np.array([(self.log_seconds(x) - self.measured) / self.scale for x in points])

    def log_seconds(self, x: FloatArray) -> FloatArray:
        """Logarithm of the step time of every run."""
        whole = with_values(self.calibration, self.knobs, np.exp(x))
        own = {key: framework_calibration(whole, key) for key in self.frameworks}
        compute = self.stack.seconds(own)[self.shape_of]
        update = self.update / self._of_framework(own, _optimizer_efficiency)
        other = self.fixed + update + self._of_framework(own, step_overhead)
        return np.asarray(np.log(np.maximum(other + self.passes * compute, 1e-6)))

    def _of_framework(
        self, own: Mapping[str, Calibration], value: Callable[[Calibration], float]
    ) -> FloatArray:
        """A value of each run's framework; float[m]."""
        return np.asarray(np.array([value(own[key]) for key in self.frameworks])[self.framework_of])

    def jacobian(self, x: FloatArray, values: FloatArray) -> FloatArray:
        """Derivatives; parameters that no row shares are moved together; float[m, p]."""
        slopes = np.zeros((len(self.terms), len(self.knobs)))
        waiting = list(range(len(self.knobs)))
        while waiting:
            taken, rows = [], np.zeros(len(self.terms), bool)
            for i in waiting:
                if not (rows & self.affects[:, i]).any():
                    taken.append(i)
                    rows |= self.affects[:, i]
            moved = x.copy()
            moved[taken] -= STEP
            change = (values - self(moved[None])[0]) / STEP
            for i in taken:
                slopes[:, i] = np.where(self.affects[:, i], change, 0.0)
            waiting = [i for i in waiting if i not in taken]
        return slopes


def _optimizer_efficiency(calibration: Calibration) -> float:
    return calibration.value("framework", "default", "optimizer_bandwidth_efficiency")


def with_values(
    calibration: Calibration,
    knobs: Sequence[Knob],
    values: FloatArray,
    parameter: Callable[[int, float], Parameter] = lambda _, value: Parameter(value=value, source="fit"),
) -> Calibration:
    """The calibration with the knobs' parameters replaced."""
    sections = {
        name: {key: dict(params) for key, params in getattr(calibration, name).items()}
        for name in ("device", "framework")
    }
    for index, (knob, value) in enumerate(zip(knobs, values, strict=True)):
        for key in knob.keys:
            sections[knob.section].setdefault(key, {})[knob.name] = parameter(index, float(value))
    return calibration.model_copy(update=sections)


def start_of(calibration: Calibration, knob: Knob) -> float:
    """Logarithm of the present value of a knob; a search does not start from nothing."""
    return math.log(max(calibration.value(knob.section, knob.keys[0], knob.name), SMALLEST))


SMALLEST = 1e-6
VISIBLE_ISSUE_TIME = 20e-6
"""Where the search for a launch time starts, so that launches bound some layers and the data can tell."""


def _start(base: Calibration, prior: Calibration, knob: Knob) -> float:
    present = start_of(base, knob)
    if knob.name == "kernel_issue_time" and abs(present - start_of(prior, knob)) < 0.2:
        return math.log(VISIBLE_ISSUE_TIME)
    return present


def fit_runs(
    terms: Sequence[Term],
    prior: Calibration,
    *,
    start: Calibration | None = None,
    iterations: int = 16,
    source: str = SOURCE,
) -> RunFit:
    """Fit all knobs to the measured step times of ``terms``.

    Parameters
    ----------
    terms : sequence of Term
        Calibration rows.
    prior : Calibration
        Its values are the means of the priors; parameters that are not fitted keep them.
    start : Calibration, optional
        Where the search starts; the prior if absent.
    iterations : int
        Steps of the search.
    source : str
        Source of the fitted parameters.
    """
    knobs = knobs_for(terms)
    if not knobs:  # so few rows that they tell nothing
        return RunFit([], Fit(np.zeros(0), np.zeros(0), 0.0), [], prior, source)
    objective = Objective(terms, knobs, prior)
    mean = np.array([start_of(prior, knob) for knob in knobs])
    fit = least_squares(
        objective,
        np.array([_start(start or prior, prior, knob) for knob in knobs]),
        mean,
        covariance_of(knobs),
        np.log([knob.upper for knob in knobs]),
        jacobian=objective.jacobian,
        max_iterations=iterations,
    )
    rows = objective.affects.sum(axis=0).tolist()

    def parameter(index: int, value: float) -> Parameter:
        half = Z80 * float(fit.deviation[index])
        low, high = value * math.exp(-half), min(value * math.exp(half), knobs[index].upper)
        return Parameter(value=value, low=low, high=max(high, value), n=rows[index], source=source)

    fitted = with_values(prior, knobs, np.exp(fit.x), parameter)
    return RunFit(knobs, fit, rows, fitted, source)
