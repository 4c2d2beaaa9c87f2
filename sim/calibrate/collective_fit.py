"""Fit the parameters of the library model, from all systems down to one.

A *setting* is a (library, version family, element type, links). Parameters are estimated by maximum a
posteriori level by level, each level the prior of the next: all systems together; the links in a host, on
single hosts; each transport between hosts; each setting; one system in one setting (a hierarchical model,
A. Gelman et al., *Bayesian Data Analysis*, 3rd ed. 2013, chapter 5). At the upper levels every system counts
the same, however many rows it has. So a parameter that the data of a level do not touch stays at the value of
the level above, and one never measured at the first guess. All parameters are positive and are fitted as
logarithms. Residuals of one system are of the logarithm of time; at the upper levels, where systems differ by
tens of percent and a new one is to be predicted, they are relative errors of time, in which the board scores:
too long counts more than too short by the same factor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.calibrate.least_squares import least_squares
from sim.models.library import NAMES, PARAMETERS, Problem, variants
from sim.validate.collectives.predict import problem_of, setting_key
from sim.validate.collectives.rows import Row, Setting

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_NOISE = 0.04  # of log(time) within a system: repeated runs of one binary differ by a few percent
_BETWEEN = 0.25  # of log(time) between systems of one kind
_ONE_SYSTEM = 30  # points that a system counts for at the upper levels
_MOST = 4.0  # log(predicted / measured) at which a relative error is cut off
_NARROW = 0.5  # systems of one setting differ by less than systems of one kind of link
_GUESS = np.log([PARAMETERS[name].guess for name in NAMES])
_SPREAD = np.array([PARAMETERS[name].spread for name in NAMES])
_UPPER = np.log([PARAMETERS[name].limit for name in NAMES])
_OF_TRANSPORT = np.array([PARAMETERS[name].part == "transport" for name in NAMES])


@dataclass(frozen=True)
class Scope:
    """A system in a setting: what one log of measurements is about."""

    setting: Setting
    system: str


@dataclass(frozen=True)
class Value:
    """A fitted parameter: logarithm, its posterior standard deviation, points behind it."""

    mean: float
    deviation: float
    num_points: int


def scatter(logs: Sequence[float] | FloatArray) -> float:
    """Standard error of the median of repeated measurements; 0 of one alone."""
    return 1.25 * float(np.std(logs, ddof=1)) / np.sqrt(len(logs)) if len(logs) > 1 else 0.0


Level = Mapping[str, Value]
Population = Mapping[str, Level]
"""``default``, kind of link, transport or setting -> parameter -> value."""


def kinds(setting: Setting, name: str) -> tuple[str, str, str]:
    """Keys of the levels a parameter is looked up at, the most special first."""
    kind = setting.network_kind if PARAMETERS[name].part == "transport" else setting.interior
    return setting_key(setting), kind, "default"


def prior(population: Population, setting: Setting, *, below: int = 0) -> FloatArray:
    """Logarithm of every parameter for a setting, from the levels at position ``below`` and above it."""
    result = _GUESS.copy()
    for i, name in enumerate(NAMES):
        for key in kinds(setting, name)[below:]:
            if name in population.get(key, {}):
                result[i] = population[key][name].mean
                break
    return result


@dataclass(frozen=True, eq=False)
class _Points:
    """Distinct (case, size) pairs: logarithm of the median time, and its standard error from repetitions."""

    problem: Problem
    logs: FloatArray
    scatter: FloatArray
    systems: list[str]
    settings: list[Setting]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> _Points:
        times: dict[tuple[object, str, float], list[float]] = {}
        first: dict[tuple[object, str, float], Row] = {}
        for row in rows:
            assert row.case is not None
            key = (row.case.key, row.system, row.size_bytes)
            times.setdefault(key, []).append(row.time_s)
            first.setdefault(key, row)
        cases = [row.case for row in first.values() if row.case is not None]
        return cls(
            problem_of(cases, [row.size_bytes for row in first.values()]),
            np.log([np.median(group) for group in times.values()]),
            np.array([scatter(np.log(group)) for group in times.values()]),
            [row.system for row in first.values()],
            [case.setting for case in cases],
        )

    def equal_systems(self) -> FloatArray:
        """Weights that make every system count the same."""
        _, inverse, counts = np.unique(self.systems, return_inverse=True, return_counts=True)
        return np.sqrt(np.minimum(_ONE_SYSTEM / counts[inverse], 1.0))


def _fit_level(
    points: _Points,
    base: FloatArray,
    active: IntArray,
    spread: FloatArray,
    scale: FloatArray,
    near: Level | None = None,
    *,
    relative: bool = False,
) -> dict[str, Value]:
    """Estimate the parameters ``active``; the others keep ``base``, float[m or 1, parameters].

    ``relative``: residuals are relative errors of time, in which the board scores, instead of logarithms.
    """
    mean = base.mean(axis=0)[active]
    offset = base - base.mean(axis=0)  # rows of different kinds keep their differences
    fixed = {name: np.exp(base[:, i])[None, :] for i, name in enumerate(NAMES)}

    def residual(x: FloatArray) -> FloatArray:
        moved = {NAMES[i]: np.exp(x[:, [j]] + offset[None, :, i]) for j, i in enumerate(active.tolist())}
        predicted = variants(points.problem, {**fixed, **moved}).smooth()
        ratio: FloatArray = np.log(predicted) - points.logs
        return (np.expm1(np.minimum(ratio, _MOST)) if relative else ratio) / scale

    names = [NAMES[i] for i in active]
    starts = _starts(mean, names)
    if near is not None:
        starts = [
            mean,
            np.array([near[n].mean if n in near else m for n, m in zip(names, mean, strict=True)]),
        ]
    fits = [least_squares(residual, start, mean, spread[active], _UPPER[active]) for start in starts]
    best = min(fits, key=lambda fit: fit.cost)
    columns = zip(names, best.x.tolist(), best.deviation.tolist(), strict=True)
    return {name: Value(value, deviation, len(points.logs)) for name, value, deviation in columns}


def _starts(mean: FloatArray, names: Sequence[str]) -> list[FloatArray]:
    """Several, since which variant runs where makes the loss multimodal."""
    slow = np.array([1.0 if "simple_latency" in name or "launch" in name else 0.0 for name in names])
    weak = np.array([-0.7 if name.endswith("ratio") and "ramp" not in name else 0.0 for name in names])
    return [mean, mean + slow, mean + 1.5 * slow + weak, mean + weak - 0.7 * slow]


def fit_scope(
    scope: Scope, rows: Sequence[Row], population: Population, *, near: Level | None = None
) -> Level:
    """Estimate one system in one setting; all rows must have cases and times.

    ``near`` is an estimate to start from; without it several starts are tried.
    """
    points = _Points.of(rows)
    base = prior(population, scope.setting)[None, :]
    active = _active(points.problem)
    return _fit_level(points, base, active, _SPREAD, np.hypot(_NOISE, points.scatter))


def _active(problem: Problem, transport_only: bool = False) -> IntArray:
    use = np.array([_matters(name, problem) for name in NAMES])
    return np.flatnonzero(use & _OF_TRANSPORT if transport_only else use)


def _matters(name: str, problem: Problem) -> bool:
    """Whether a parameter has any effect on these cases."""
    algorithms = set(problem.steps)
    if PARAMETERS[name].part == "transport" and not problem.remote.any():
        return False
    if name.startswith("switch"):
        return bool(algorithms & {"nvls", "nvls_tree"})
    if name.startswith("exchange"):
        return "direct" in algorithms
    if name.startswith("pair"):
        return bool(problem.pair.any())
    if name == "tree_efficiency":
        return "tree" in algorithms
    if "ll128" in name:
        return bool(problem.ll128.any())
    if name == "ramp_ratio":
        return bool((~problem.remote).any())
    return True


def populate(rows: Iterable[Row], start: Population | None = None) -> dict[str, Level]:
    """All levels above single systems; rows must have cases and times.

    Parameters
    ----------
    rows : iterable of Row
    start : Population, optional
        Levels to start from, such as those of the shipped calibration; kinds that the rows do not have stay.
    """
    rows = list(rows)
    population: dict[str, Level] = dict(start or {})
    if len({row.system for row in rows}) > 1 or "default" not in population:
        population["default"] = _pooled(rows, population, 2, wide=2.0)
    for key, (mine, below) in _groups(rows).items():
        population[key] = _pooled(mine, population, below)
    return population


def populate_without(rows: Sequence[Row], left_out: Sequence[Row], whole: Population) -> dict[str, Level]:
    """The population without some rows, given the one with them.

    The level of all systems and the kinds that the left-out rows belong to are estimated again, from where
    they are; the others do not see these rows.
    """
    gone = {id(row) for row in left_out}
    kept = [row for row in rows if id(row) not in gone]
    touched, groups = set(_groups(left_out)), _groups(kept)
    population: dict[str, Level] = {key: level for key, level in whole.items() if key not in touched}
    if kept:
        population["default"] = _pooled(kept, {}, 2, wide=2.0, near=whole["default"])
    for key in (key for key in groups if key in touched):
        mine, below = groups[key]
        population[key] = _pooled(mine, population, below, near=whole[key])
    return population


def _groups(rows: Sequence[Row]) -> dict[str, tuple[list[Row], int]]:
    """Rows of each kind of link (of single hosts, if any), transport and setting; the level above each."""
    groups: dict[str, tuple[list[Row], int]] = {}
    for interior in _distinct(rows, "interior"):
        mine = [row for row in rows if _setting(row).interior == interior]
        alone = [row for row in mine if not _setting(row).transport]
        groups[interior] = (alone or mine, 2)
    for kind in _distinct(rows, "network_kind"):
        mine = [row for row in rows if _setting(row).network_kind == kind]
        if _setting(mine[0]).transport not in ("", "nvlink"):
            groups[kind] = (mine, 1)
    for row in rows:
        groups.setdefault(setting_key(_setting(row)), ([], 0))[0].append(row)
    return groups


def _pooled(
    rows: Sequence[Row],
    population: Population,
    level: int,
    *,
    wide: float | None = None,
    near: Level | None = None,
) -> dict[str, Value]:
    """Fit a level on rows of several systems: 0 a setting, 1 a transport (its parameters), 2 the rest."""
    points = _Points.of(rows)
    at = {setting: prior(population, setting, below=level) for setting in dict.fromkeys(points.settings)}
    base = np.array([at[setting] for setting in points.settings])
    active = _active(points.problem, transport_only=level == 1)
    scale = np.hypot(_BETWEEN, points.scatter) / points.equal_systems()
    narrow = _NARROW if level == 0 else 1.0
    return _fit_level(points, base, active, (wide or narrow) * _SPREAD, scale, near, relative=True)


def _setting(row: Row) -> Setting:
    assert row.case is not None
    return row.case.setting


def _distinct(rows: Iterable[Row], field: str) -> list[str]:
    return list(dict.fromkeys(getattr(_setting(row), field) for row in rows))
