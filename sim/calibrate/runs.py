"""``calibrate runs``: few physical parameters per device, precision and framework from measured step times.

Only rows of the calibration split are read. Parameters are fitted as logarithms, around their present values
as a prior, to the logarithm of step time; sources count alike however many rows they have. No parameter
belongs to a source or a row. The error is reported in five-fold cross-validation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.calibrate.least_squares import STEP, Fit, least_squares
from sim.calibrate.run_stack import Stack
from sim.calibrate.run_terms import Shape, Term
from sim.models.compute import step_overhead
from sim.models.kernels import CONVOLUTION, FLASH, MATRIX
from sim.spec import Calibration
from sim.spec.calibration import Parameter
from sim.validate.runs_loader import framework_calibration
from sim.validate.spread import Z80

FloatArray = npt.NDArray[np.float64]

SOURCE = "fitted to published training runs (measurements/training_runs.csv, split calibration)"
NOISE = 0.08
"""Standard deviation of the logarithm of a step time around the model, for a source of typical size."""
TYPICAL_ROWS = 60
FEWEST_ROWS = 10
"""Rows that must depend on a parameter for it to be fitted."""

CHIPS: dict[str, tuple[str, ...]] = {
    "k80": ("k80",),
    "p100": ("p100-16gb",),
    "v100": ("v100-16gb", "v100-32gb", "v100-sxm3-32gb", "v100-pcie-16gb"),
    "a100": ("a100-40gb", "a100-80gb", "a100-pcie-40gb", "a100-pcie-80gb", "a800-80gb"),
    "h100": ("h100-80gb", "h200-141gb", "h100-96gb", "h100-pcie-80gb", "h800-80gb", "gh200-96gb"),
    "blackwell": ("b200-180gb", "b300-270gb", "gb200-186gb", "gb300-279gb"),
}
"""Catalogue devices that share a chip, and its efficiencies."""


@dataclass(frozen=True)
class Knob:
    """One fitted parameter.

    Attributes
    ----------
    section, key, name : str
        Where it lies in the calibration; for devices the key is a chip of :data:`CHIPS`.
    spread : float
        Standard deviation of the prior of its logarithm.
    upper : float
        Largest value.
    """

    section: str
    key: str
    name: str
    spread: float
    upper: float

    @property
    def keys(self) -> tuple[str, ...]:
        """Calibration keys that take the value."""
        return CHIPS.get(self.key, (self.key,)) if self.section == "device" else (self.key,)

    def concerns(self, term: Term) -> bool:
        """Whether a run's time can depend on it."""
        if self.section == "device":
            return term.shape.device.name in self.keys and self._used(term.shape)
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
    ("gemm_efficiency_vector", 0.12, 0.97),
    ("gemm_efficiency_matrix", 0.15, 0.9),
    ("gemm_efficiency_tf32", 0.2, 0.9),
    ("gemm_efficiency_eight_bit", 0.25, 0.9),
    ("gemm_efficiency_four_bit", 0.35, 0.9),
    ("conv_efficiency_vector", 0.2, 0.97),
    ("conv_efficiency_matrix", 0.2, 0.9),
    ("conv_efficiency_tf32", 0.25, 0.9),
    ("winograd_gain", 0.15, 2.6),
    ("attention_efficiency", 0.2, 0.75),
    ("memory_efficiency", 0.12, 0.93),
    ("tile_fill_time", 0.7, 2e-5),
)
_FRAMEWORK = (
    ("kernel_issue_time", 0.8, 3e-4),
    ("elementwise_traffic", 0.35, 4.0),
    ("attention_speed", 0.4, 1.5),
    ("step_overhead", 0.4, 0.02),
    ("collective_issue_time", 0.8, 3e-4),
    ("exposed_launches", 1.0, 1.0),
)


def knobs_for(terms: Sequence[Term]) -> list[Knob]:
    """Parameters that enough runs depend on."""
    found = [Knob("device", chip, *entry) for chip in CHIPS for entry in _DEVICE]
    found += [Knob("device", device, "sustained_clock", 0.1, 1.5) for device in _compared(terms)]
    frameworks = sorted({term.shape.framework for term in terms})
    found += [Knob("framework", key, *entry) for key in frameworks for entry in _FRAMEWORK]
    return [knob for knob in found if sum(knob.concerns(term) for term in terms) >= FEWEST_ROWS]


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
    """

    knobs: list[Knob]
    fit: Fit
    rows: list[int]
    calibration: Calibration


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
        own = {key: framework_calibration(calibration, key) for key in self.frameworks}
        overhead = np.array([step_overhead(own[key]) for key in self.frameworks])[self.framework_of]
        self.constant = (
            np.array([t.fixed_s + t.other(own[t.shape.framework]) for t in terms]) - overhead
        )  # communication and optimiser, which no knob changes

    def __call__(self, points: FloatArray) -> FloatArray:
        """float[k, p] -> float[k, m]."""
        return np.array([(self.log_seconds(x) - self.measured) / self.scale for x in points])

    def log_seconds(self, x: FloatArray) -> FloatArray:
        """Logarithm of the step time of every run."""
        whole = with_values(self.calibration, self.knobs, np.exp(x))
        own = {key: framework_calibration(whole, key) for key in self.frameworks}
        compute = self.stack.seconds(own)[self.shape_of]
        overhead = np.array([step_overhead(own[key]) for key in self.frameworks])[self.framework_of]
        return np.asarray(np.log(np.maximum(self.constant + self.passes * compute + overhead, 1e-6)))

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


PRIORS: dict[str, Parameter] = {
    name: Parameter(value=value, source=source)
    for name, value, source in (
        ("kernel_issue_time", 6e-6, "CPU time to launch one PyTorch operator"),
        ("collective_issue_time", 30e-6, "CPU time of one torch.distributed collective"),
        ("exposed_launches", 0.05, "nearly all launches hidden"),
        ("elementwise_traffic", 1.2, "what the layer description says, and a little that it leaves out"),
        ("attention_speed", 1.0, "the fused attention that attention_efficiency is stated for"),
    )
}
"""Means of the priors of framework parameters, which do not depend on any earlier fit."""


def without_fits(calibration: Calibration) -> Calibration:
    """The calibration as cited: what an earlier fit to runs has put into it is taken out again."""

    def cited(section: dict[str, dict[str, Parameter]]) -> dict[str, dict[str, Parameter]]:
        kept = {
            key: {name: p for name, p in params.items() if not p.source.startswith(SOURCE)}
            for key, params in section.items()
        }
        return {key: params for key, params in kept.items() if params}

    framework = cited(calibration.framework)
    framework["default"] = {**framework.get("default", {})}
    for name, parameter in PRIORS.items():
        framework["default"].setdefault(name, parameter)
    return calibration.model_copy(update={"device": cited(calibration.device), "framework": framework})


def prior_of(calibration: Calibration) -> Calibration:
    """Means of the priors: the cited values, with :data:`PRIORS` for the frameworks."""
    cited = without_fits(calibration)
    default = {**cited.framework["default"], **PRIORS}
    return cited.model_copy(update={"framework": {**cited.framework, "default": default}})


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
    terms: Sequence[Term], prior: Calibration, base: Calibration | None = None, *, iterations: int = 12
) -> RunFit:
    """Fit all knobs to the measured step times of ``terms``.

    Parameters
    ----------
    terms : sequence of Term
        Calibration rows.
    prior : Calibration
        Its values are the means of the priors.
    base : Calibration, optional
        Where to start, and what keeps the other parameters; the prior if absent.
    iterations : int
        Steps of the search.
    """
    base = base or prior
    knobs = knobs_for(terms)
    objective = Objective(terms, knobs, base)
    mean = np.array([start_of(prior, knob) for knob in knobs])
    fit = least_squares(
        objective,
        np.array([_start(base, prior, knob) for knob in knobs]),
        mean,
        np.array([knob.spread for knob in knobs]),
        np.log([knob.upper for knob in knobs]),
        jacobian=objective.jacobian,
        max_iterations=iterations,
    )
    rows = objective.affects.sum(axis=0).tolist()

    def parameter(index: int, value: float) -> Parameter:
        half = Z80 * float(fit.deviation[index])
        low, high = value * math.exp(-half), min(value * math.exp(half), knobs[index].upper)
        return Parameter(value=value, low=low, high=max(high, value), n=rows[index], source=SOURCE)

    fitted = with_values(base, knobs, np.exp(fit.x), parameter)
    return RunFit(knobs, fit, rows, _with_population(fitted, knobs, fit))


SHARED = (
    "elementwise_traffic",
    "attention_speed",
    "kernel_issue_time",
    "collective_issue_time",
    "exposed_launches",
)
"""Framework parameters whose typical value also serves frameworks without measurements."""


def _with_population(calibration: Calibration, knobs: Sequence[Knob], fit: Fit) -> Calibration:
    """Frameworks without parameters of their own get the geometric mean and spread of those that have."""
    default = dict(calibration.framework["default"])
    for name in SHARED:
        found = [
            (float(x), float(d))
            for knob, x, d in zip(knobs, fit.x, fit.deviation, strict=True)
            if knob.name == name and d < 0.5 * knob.spread  # the data say something
        ]
        if len(found) < 3:
            continue
        logs = np.array([x for x, _ in found])
        middle, half = float(logs.mean()), Z80 * float(logs.std(ddof=1))
        default[name] = Parameter(
            value=math.exp(middle),
            low=math.exp(middle - half),
            high=math.exp(middle + half),
            n=len(found),
            source=f"{SOURCE}: geometric mean over {len(found)} frameworks",
        )
    return calibration.model_copy(update={"framework": {**calibration.framework, "default": default}})
