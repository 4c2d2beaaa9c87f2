"""Predicted time of measured collectives under a calibration, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sim.lowering.collective_paths import collective_paths
from sim.models.library import Path, Problem, parameters_of, variants
from sim.models.residual import Points, interpolate
from sim.spec.calibration import Calibration
from sim.validate.collectives.rows import Case, Row, Setting
from sim.validate.collectives.variants import among

FloatArray = npt.NDArray[np.float64]

# Below the first limit latency rules, above the last bandwidth does; errors differ accordingly.
ERROR_BANDS = (("error_small", 64 * 1024), ("error_medium", 4 << 20), ("error_large", float("inf")))
NORMAL_80 = 1.2816  # of a normal distribution, 80 % lies within so many standard deviations
_USUAL_ERROR = 0.35  # half-width of the 80 % interval of log(time) where the calibration says nothing


def setting_key(setting: Setting) -> str:
    """Key of a setting in the ``library`` section of a calibration."""
    links = setting.interior + (f"+{setting.transport}" if setting.transport else "")
    return "-".join(part for part in (setting.library, setting.family, setting.dtype, links) if part)


_known_paths: dict[tuple[str, str, bool], tuple[Path, ...]] = {}


def paths_of(case: Case) -> tuple[Path, ...]:
    """Algorithms and loads of a case, cached; only the one that ran where that is known."""
    reduces = (
        case.setting.interior in ("nvlink4", "nvlink5") and "nvswitch" in case.cluster.host_types[0].name
    )
    key = (case.cluster.name, case.operation, reduces)  # the name says all that the paths depend on
    if key not in _known_paths:
        _known_paths[key] = collective_paths(case.cluster, case.operation, in_switch=reduces)
    only = case.algorithm or ("ring" if case.setting.library == "gloo" else "")
    return among(_known_paths[key], only)


def problem_of(cases: Sequence[Case], sizes: Sequence[float]) -> Problem:
    """The library model's input for these cases and sizes."""
    return Problem.of(
        sizes,
        [paths_of(case) for case in cases],
        [case.setting.interior for case in cases],
        [case.num_ranks for case in cases],
        [case.cluster.size for case in cases],
    )


def scope_key(setting: Setting, system: str) -> str:
    """Key of one system in one setting in the ``library`` section of a calibration."""
    return f"{setting_key(setting)}@{system}"


def setting_parameters(calibration: Calibration, setting: Setting, system: str = "") -> dict[str, float]:
    """Each parameter of the library model, from the most special place that has it.

    First ``library/<library-version-dtype-links>@<system>``, which exists only where that very system was
    calibrated; then the setting without the system; then ``link`` with the links in the host or the
    transport; then the default of that section; then the first guess.
    """
    special = setting_key(setting), scope_key(setting, system)
    return parameters_of(calibration, setting.interior, setting.network_kind, special)


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions of rows that have a case, in the order given; seconds.

    Attributes
    ----------
    time, low, high : float[m]
        Best guess and its 80 % interval.
    variant : list of (str, str)
        Algorithm and protocol the library is taken to run.
    """

    time: FloatArray
    low: FloatArray
    high: FloatArray
    variant: list[tuple[str, str]]


def predict(rows: Sequence[Row], calibration: Calibration) -> Predicted:
    """Predict rows; every row must have a case."""
    time, low, high = (np.empty(len(rows)) for _ in range(3))
    chosen: list[tuple[str, str]] = [("", "")] * len(rows)
    by_scope: dict[tuple[Setting, str], list[int]] = {}
    for number, row in enumerate(rows):
        assert row.case is not None
        by_scope.setdefault((row.case.setting, row.system), []).append(number)
    for (setting, system), numbers in by_scope.items():
        cases = [case for number in numbers if (case := rows[number].case) is not None]
        sizes = [rows[number].size_bytes for number in numbers]
        found = variants(problem_of(cases, sizes), setting_parameters(calibration, setting, system))
        best = found.best()
        known = Curves.of(calibration, scope_key(setting, system))
        if known is None:
            width = error_width(calibration, np.array(sizes))
        else:
            shift, width = known.at(cases, sizes)
            best = best * np.exp(shift)
        time[numbers], low[numbers], high[numbers] = best, best * np.exp(-width), best * np.exp(width)
        for number, variant in zip(numbers, found.chosen(), strict=True):
            chosen[number] = variant
    return Predicted(time, low, high, chosen)


@dataclass(frozen=True, eq=False)
class Curves:
    """What a calibration remembers of one system's measured curves: residuals beside the model.

    In the ``library`` section, ``<scope>`` holds ``residual_deviation``, ``residual_noise`` and
    ``residual_scale`` (standard deviations of log(time); what intervals are stretched by, from sizes left
    out), ``<scope>/<operation>-<ranks>x<hosts>`` measured over modelled time at ``size_<bytes>``.
    """

    points: Points
    residual: FloatArray
    scatter: FloatArray
    deviation: float
    noise: float
    scale: float

    @classmethod
    def of(cls, calibration: Calibration, scope: str) -> Curves | None:
        """The curves of a scope; None if the calibration has never seen it."""
        table = calibration.library
        spread = table.get(scope, {})
        if "residual_deviation" not in spread:
            return None
        points, residual, scatter = [], [], []
        for key, entries in table.items():
            if not key.startswith(scope + "/"):
                continue
            operation, _, shape = key[len(scope) + 1 :].rpartition("-")
            ranks, hosts = (float(number) for number in shape.split("x"))
            for name, entry in entries.items():
                points.append((operation, ranks, hosts, float(name.removeprefix("size_"))))
                residual.append(np.log(entry.value))
                scatter.append(np.log(entry.at("high") / entry.at("low")) / 2 / NORMAL_80)
        deviation, noise, scale = (
            spread[f"residual_{name}"].value for name in ("deviation", "noise", "scale")
        )
        known = Points.of(points)
        return cls(known, np.array(residual), np.array(scatter), deviation, noise, scale)

    def at(self, cases: Sequence[Case], sizes: Sequence[float]) -> tuple[FloatArray, FloatArray]:
        """Shift of log(time) and half-width of its 80 % interval."""
        mean, deviation = self.deviations(cases, sizes)
        return mean, NORMAL_80 * self.scale * deviation

    def deviations(self, cases: Sequence[Case], sizes: Sequence[float]) -> tuple[FloatArray, FloatArray]:
        """Shift of log(time) and the standard deviation the kriging predicts."""
        target = Points.of([(*case.shape, size) for case, size in zip(cases, sizes, strict=True)])
        return interpolate(
            self.points,
            self.residual,
            target,
            deviation=self.deviation,
            noise=self.noise,
            scatter=self.scatter,
        )


def error_width(calibration: Calibration, sizes: FloatArray) -> FloatArray:
    """Half-width of the 80 % interval of log(time) for each size on systems never seen."""
    key = "default"
    widths = [
        calibration.value("library", key, name) if calibration.has("library", key, name) else _USUAL_ERROR
        for name, _ in ERROR_BANDS
    ]
    limits = [limit for _, limit in ERROR_BANDS[:-1]]
    return np.array(widths)[np.searchsorted(limits, sizes, side="right")]


def spec_sheet_ring(case: Case, size_bytes: float) -> float:
    """The baseline: a ring (or direct exchange) at the datasheet speed of the slowest link, no latency."""
    return size_bytes * paths_of(replace(case, algorithm=""))[0].ideal
