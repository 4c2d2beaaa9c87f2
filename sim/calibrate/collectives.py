"""Calibrate the collective model on measured rows, and measure its error on rows left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from sim.calibrate.collective_fit import (
    Level,
    Population,
    Scope,
    Value,
    fit_scope,
    populate,
    populate_without,
    scatter,
)
from sim.models.library import PARAMETERS
from sim.models.residual import Points, outlying
from sim.spec.calibration import Calibration, Parameter
from sim.validate.collectives.predict import ERROR_BANDS, NORMAL_80, Curves, predict, scope_key
from sim.validate.collectives.rows import Row

FloatArray = npt.NDArray[np.float64]
Errors = dict[str, float]

_FOLDS = 3  # parts that sizes are left out in
_PRIOR_POINTS = 8  # what the usual spread counts beside a system's own
UNTOUCHED = "as shipped"
_USUAL_SCALE = 0.75  # residuals have long tails: 80 % lie nearer than their standard deviation says
_LEAST_NOISE = 0.015  # of log(time): repeated runs in one host
_NOISE = 0.1  # of log(time): the usual spread of a system's measurements around its fitted model
_FEWEST = 5  # sizes (or systems) below which none is left out to measure the error


@dataclass
class CollectiveFit:
    """Estimates of all scopes, the population, and residuals on rows that were left out.

    Attributes
    ----------
    estimates : dict
        By scope.
    population : dict
        See :data:`sim.calibrate.collective_fit.Population`.
    errors : dict of band name to float
        80 % half-width of the logarithm of time on rows of a system never seen.
    curves : dict
        Residuals of each scope's measured curves, and how far they spread.
    start : dict
        Levels that the fit began with; those that it did not touch are still the same.
    left_out : dict of str to list of float
        log(measured / predicted) of each system's rows that were left out.
    """

    estimates: dict[Scope, Level]
    population: Population
    errors: Errors = field(default_factory=dict)
    curves: dict[Scope, Curves] = field(default_factory=dict)
    start: Population = field(default_factory=dict)
    left_out: dict[str, list[float]] = field(default_factory=dict)

    def add_held_out(self, system: str, errors: FloatArray) -> None:
        """Note errors of rows that were left out."""
        self.left_out.setdefault(system, []).extend(errors.tolist())

    @property
    def held_out(self) -> dict[str, float]:
        """Mean absolute relative error of each system on the rows left out."""
        return {
            system: float(np.mean(np.abs(np.expm1(-np.array(errors)))))
            for system, errors in self.left_out.items()
            if errors
        }

    def calibration(self, name: str, source: str, *, systems: bool = True) -> Calibration:
        """As a calibration file.

        Parameters
        ----------
        name, source : str
            Name of the calibration; source of its parameters.
        systems : bool
            Whether to keep what is known of single systems; without it only the populations are.
        """
        link: dict[str, dict[str, Parameter]] = {}
        library: dict[str, dict[str, Parameter]] = {}
        for key, level in self.population.items():
            is_setting = "-" in key
            origin = UNTOUCHED if level is self.start.get(key) else source
            (library if is_setting else link)[key] = _entries(level, origin)
        for scope, level in self.estimates.items() if systems else ():
            library[scope_key(scope.setting, scope.system)] = _entries(level, source)
        for band, width in self.errors.items():
            entry = Parameter(value=width, source=f"{source}; systems left out")
            library.setdefault("default", {})[band] = entry
        for scope, curves in self.curves.items() if systems else ():
            for key, entries in curve_entries(scope_key(scope.setting, scope.system), curves, source).items():
                library.setdefault(key, {}).update(entries)
        return Calibration(
            name=name, description="Collective library model", source=source, link=link, library=library
        )


def _entries(level: Level, source: str) -> dict[str, Parameter]:
    return {name: _parameter(value, source) for name, value in level.items()}


def _parameter(fitted: Value, source: str) -> Parameter:
    width = NORMAL_80 * fitted.deviation
    low, value, high = (float(f"{np.exp(fitted.mean + shift):.4g}") for shift in (-width, 0.0, width))
    return Parameter(
        value=value, low=min(low, value), high=max(high, value), n=fitted.num_points, source=source
    )


def usable(rows: Iterable[Row]) -> list[Row]:
    """Rows with a case and a positive time."""
    return [row for row in rows if row.case is not None and row.time_s > 0 and row.size_bytes >= 0]


def fit(
    rows: Sequence[Row], start: Population | None = None, *, errors: bool = True, systems: bool = True
) -> CollectiveFit:
    """Fit all systems in ``rows``.

    Parameters
    ----------
    rows : sequence of Row
        Rows without a case or a time are passed over.
    start : Population, optional
        Prior, such as that of the shipped calibration.
    errors : bool
        Whether to measure the error on left-out rows too (about three times the work).
    systems : bool
        Whether to fit every single system, too; without it, the errors are those of systems left out.
    """
    good = usable(rows)
    population = populate(good, start)
    result = CollectiveFit({}, population, start=start or {})
    for scope, mine in by_scope(good).items() if systems else ():
        level = result.estimates[scope] = fit_scope(scope, mine, population)
        if errors:
            result.curves[scope], found = scope_curves(scope, mine, level, population)
            result.add_held_out(scope.system, found)
    if errors and len({row.system for row in good}) >= _FEWEST:
        left_out = leave_systems_out(good, population)
        result.errors.update(system_errors(left_out))
        for each in left_out if not systems else ():
            result.add_held_out(each.system, each.errors)
    return result


def by_scope(rows: Sequence[Row]) -> dict[Scope, list[Row]]:
    """Rows by system and setting."""
    result: dict[Scope, list[Row]] = {}
    for row in rows:
        assert row.case is not None
        result.setdefault(Scope(row.case.setting, row.system), []).append(row)
    return result


def alternate_sizes(rows: Sequence[Row], every: int = 2, turn: int = 1) -> tuple[list[Row], list[Row]]:
    """Rows without every second (or so) size of each curve (system, operation, ranks, hosts), and those.

    ``turn`` says with which size the counting starts.
    """
    curves: dict[object, set[float]] = {}
    for row in rows:
        curves.setdefault(_curve(row), set()).add(row.size_bytes)
    left = {key: set(sorted(sizes)[turn::every]) for key, sizes in curves.items()}
    kept = [row for row in rows if row.size_bytes not in left[_curve(row)]]
    return kept, [row for row in rows if row.size_bytes in left[_curve(row)]]


def _curve(row: Row) -> object:
    return row.system, row.operation, row.case and row.case.key


def log_errors(rows: Sequence[Row], calibration: Calibration) -> FloatArray:
    """log(measured / predicted) of each row."""
    measured = np.array([row.time_s for row in rows])
    ratio: FloatArray = np.log(measured / predict(rows, calibration).time)
    return ratio


def scope_curves(
    scope: Scope, rows: list[Row], level: Level, population: Population
) -> tuple[Curves, FloatArray]:
    """Residuals of a system's curves; and log(measured / predicted) of sizes left out.

    All but every third size of each curve are fitted and the others looked at, three times, so that each is
    left out once; nothing if there are too few sizes. What the errors are in units of the predicted deviation
    stretches (or narrows) the intervals.
    """
    whole = curves_of(scope, rows, level, population)
    if len({row.size_bytes for row in rows}) < _FEWEST:
        return whole, np.zeros(0)
    errors, units = [np.zeros(0)], [np.zeros(0)]
    for turn in range(_FOLDS):
        mine, others = alternate_sizes(rows, _FOLDS, turn)
        if not mine or not others:
            continue
        part = fit_scope(scope, mine, population)
        curves = curves_of(scope, mine, part, population)
        cases = [row.case for row in others if row.case is not None]
        shift, deviation = curves.deviations(cases, [row.size_bytes for row in others])
        error = _residuals(scope, others, part, population) - shift
        errors.append(error)
        units.append(np.abs(error) / deviation)
    unit = np.concatenate(units)
    quantile = float(np.quantile(unit, 0.8)) / NORMAL_80
    share = len(unit) / (len(unit) + _PRIOR_POINTS)
    return replace(whole, scale=share * quantile + (1 - share) * _USUAL_SCALE), np.concatenate(errors)


def curves_of(scope: Scope, rows: Sequence[Row], level: Level, population: Population) -> Curves:
    """Median residual at every size of every curve, how far they spread, and how far repetitions do."""
    residual = _residuals(scope, rows, level, population)
    groups: dict[tuple[str, int, int, float], list[float]] = {}
    for row, value in zip(rows, residual.tolist(), strict=True):
        assert row.case is not None
        groups.setdefault((*row.case.shape, row.size_bytes), []).append(value)
    middle = np.array([np.median(values) for values in groups.values()])
    each = np.array([scatter(values) for values in groups.values()])
    noise = max(_LEAST_NOISE, float(np.median(each[each > 0]))) if (each > 0).any() else _LEAST_NOISE
    number, points = len(middle), Points.of(list(groups))
    spread = float(np.sqrt((np.sum(middle**2) + _PRIOR_POINTS * _NOISE**2) / (number + _PRIOR_POINTS)))
    spread *= np.sqrt(1 + _PRIOR_POINTS / number)  # few points fit well and say little
    odd = outlying(points, middle, deviation=spread, noise=np.maximum(noise, each))
    return Curves(points, middle, np.maximum(each, odd), spread, noise, 1.0)


def _residuals(scope: Scope, rows: Sequence[Row], level: Level, population: Population) -> FloatArray:
    """log(measured / modelled) without any curve's help."""
    return log_errors(rows, CollectiveFit({scope: level}, population).calibration("part", "a system's part"))


def curve_entries(scope: str, curves: Curves, source: str) -> dict[str, dict[str, Parameter]]:
    """A scope's curves as entries of the ``library`` section; read by :meth:`Curves.of`."""
    spread = {"deviation": curves.deviation, "noise": curves.noise, "scale": curves.scale}
    entries: dict[str, dict[str, Parameter]] = {
        scope: {
            f"residual_{name}": Parameter(value=float(f"{value:.4g}"), source=f"{source}; sizes left out")
            for name, value in spread.items()
        }
    }
    points = curves.points
    for i, (value, width) in enumerate(zip(curves.residual, NORMAL_80 * curves.scatter, strict=True)):
        key = f"{scope}/{points.operation[i]}-{points.ranks[i]:.0f}x{points.hosts[i]:.0f}"
        low, middle, high = (float(f"{np.exp(value + shift):.4g}") for shift in (-width, 0.0, width))
        entries.setdefault(key, {})[f"size_{points.size[i]:.0f}"] = Parameter(
            value=middle, low=low, high=high, n=1, source=f"{source}; measured over modelled"
        )
    return entries


def population_of(calibration: Calibration) -> dict[str, Level]:
    """The levels above single systems that a calibration file holds."""
    levels = {**calibration.link, **{k: v for k, v in calibration.library.items() if "@" not in k}}
    population: dict[str, Level] = {}
    for key, entries in levels.items():
        level = {name: _value(entry) for name, entry in entries.items() if name in PARAMETERS}
        if level:
            population[key] = level
    return population


def _value(entry: Parameter) -> Value:
    spread = np.log(entry.at("high") / entry.at("low")) / (2 * NORMAL_80)
    return Value(float(np.log(entry.value)), float(spread), entry.n)


@dataclass(frozen=True, eq=False)
class LeftOut:
    """A system, its rows, the population of all others, and log(measured / predicted) from that."""

    system: str
    rows: list[Row]
    population: Population
    errors: FloatArray


def leave_systems_out(rows: Sequence[Row], population: Population) -> list[LeftOut]:
    """Predict each system from the population of all others, given the one of all."""
    found = []
    for system in dict.fromkeys(row.system for row in rows):
        left = [row for row in rows if row.system == system]
        others = populate_without(rows, left, population)
        calibration = CollectiveFit({}, others).calibration("others", "other systems")
        found.append(LeftOut(system, left, others, log_errors(left, calibration)))
    return found


def system_errors(left_out: Sequence[LeftOut]) -> Errors:
    """80 % of the weight of rows of left-out systems lie within; every system counts the same."""
    if len(left_out) < _FEWEST:
        return {}
    errors = [
        (row, abs(error), 1 / len(each.rows))
        for each in left_out
        for row, error in zip(each.rows, each.errors.tolist(), strict=True)
    ]
    return {band: _weighted_quantile(inside) for band, inside in _bands(errors)}


def _bands(
    errors: Sequence[tuple[Row, float, float]],
) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """(error, weight) of the rows of each size band; of all rows for a band that has none."""
    low = 0.0
    for band, limit in ERROR_BANDS:
        mine = [(error, weight) for row, error, weight in errors if low <= row.size_bytes < limit]
        yield band, mine or [(error, weight) for _, error, weight in errors]
        low = limit


def _weighted_quantile(errors: list[tuple[float, float]]) -> float:
    """The error that 80 % of the weight does not exceed."""
    ordered = sorted(errors)
    reached = np.cumsum([weight for _, weight in ordered])
    found = ordered[int(np.searchsorted(reached, 0.8 * reached[-1]))][0]
    return float(f"{found:.3g}")
