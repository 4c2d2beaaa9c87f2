"""Calibrate the collective model on measured rows, and measure its error on rows left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

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
)
from sim.models.library import PARAMETERS
from sim.spec.calibration import Calibration, Parameter
from sim.validate.collectives.predict import ERROR_BANDS, predict, scope_key
from sim.validate.collectives.rows import Row

FloatArray = npt.NDArray[np.float64]
Errors = dict[tuple[Scope | None, str], float]

_NORMAL_80 = 1.2816  # of a normal distribution, 80 % lies within so many standard deviations
_FOLDS = 3  # parts that sizes are left out in
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
    errors : dict of (Scope or None, band name) to float
        80 % half-width of the logarithm of time on left-out rows; None: a system never seen.
    held_out : dict of str to float
        Mean absolute relative error of each system on the sizes left out.
    """

    estimates: dict[Scope, Level]
    population: Population
    errors: Errors = field(default_factory=dict)
    held_out: dict[str, float] = field(default_factory=dict)

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
            (library if is_setting else link)[key] = _entries(level, source)
        for scope, level in self.estimates.items() if systems else ():
            library[scope_key(scope.setting, scope.system)] = _entries(level, source)
        for (scope_or_none, band), width in self.errors.items():
            if scope_or_none is None:
                key = "default"
            elif systems:
                key = scope_key(scope_or_none.setting, scope_or_none.system)
            else:
                continue
            library.setdefault(key, {})[band] = Parameter(value=width, source=f"{source}; rows left out")
        return Calibration(
            name=name, description="Collective library model", source=source, link=link, library=library
        )


def _entries(level: Level, source: str) -> dict[str, Parameter]:
    return {name: _parameter(value, source) for name, value in level.items()}


def _parameter(fitted: Value, source: str) -> Parameter:
    width = _NORMAL_80 * fitted.deviation
    low, value, high = (float(f"{np.exp(fitted.mean + shift):.4g}") for shift in (-width, 0.0, width))
    return Parameter(
        value=value, low=min(low, value), high=max(high, value), n=fitted.num_points, source=source
    )


def usable(rows: Iterable[Row]) -> list[Row]:
    """Rows with a case and a positive time."""
    return [row for row in rows if row.case is not None and row.time_s > 0 and row.size_bytes >= 0]


def fit(rows: Sequence[Row], start: Population | None = None, *, errors: bool = True) -> CollectiveFit:
    """Fit all systems in ``rows``.

    Parameters
    ----------
    rows : sequence of Row
        Rows without a case or a time are passed over.
    start : Population, optional
        Prior, such as that of the shipped calibration.
    errors : bool
        Whether to measure the error on left-out rows too (about three times the work).
    """
    good = usable(rows)
    scopes = by_scope(good)
    population = populate(good, start)
    result = CollectiveFit(
        {key: fit_scope(key, mine, population) for key, mine in scopes.items()}, population
    )
    if errors:
        left_out: dict[str, list[float]] = {}
        for scope, mine in scopes.items():
            found = left_out_errors(scope, mine, population)
            result.errors.update({(scope, band): width for band, width in _widths(found).items()})
            left_out.setdefault(scope.system, []).extend(abs(np.expm1(-error)) for _, error in found)
        result.held_out = {system: float(np.mean(each)) for system, each in left_out.items() if each}
        result.errors.update(system_errors(good, population))
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


def left_out_errors(scope: Scope, rows: list[Row], population: Population) -> list[tuple[Row, float]]:
    """Fit all but every third size of each curve, look at the others; three times, so that each is left out.

    Returns each row with log(measured / predicted); nothing if there are too few sizes.
    """
    if len({row.size_bytes for row in rows}) < _FEWEST:
        return []
    errors: list[tuple[Row, float]] = []
    for turn in range(_FOLDS):
        mine, others = alternate_sizes(rows, _FOLDS, turn)
        if mine and others:
            part = CollectiveFit({scope: fit_scope(scope, mine, population)}, population)
            found = log_errors(others, part.calibration("part", "part of the sizes"))
            errors += zip(others, found.tolist(), strict=True)
    return errors


def scope_errors(scope: Scope, rows: list[Row], population: Population) -> Errors:
    """Width of the interval of one system in each size band."""
    found = left_out_errors(scope, rows, population)
    return {(scope, band): width for band, width in _widths(found).items()}


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
    spread = np.log(entry.at("high") / entry.at("low")) / (2 * _NORMAL_80)
    return Value(float(np.log(entry.value)), float(spread), entry.n)


def system_errors(rows: Sequence[Row], population: Population) -> Errors:
    """Predict each system from the population of all others; every system counts the same."""
    systems = list(dict.fromkeys(row.system for row in rows))
    if len(systems) < _FEWEST:
        return {}
    errors: list[tuple[Row, float, float]] = []
    for system in systems:
        left = [row for row in rows if row.system == system]
        others = populate_without(rows, left, population)
        calibration = CollectiveFit({}, others).calibration("others", "other systems")
        found = log_errors(left, calibration).tolist()
        errors += [(row, abs(error), 1 / len(left)) for row, error in zip(left, found, strict=True)]
    return {(None, band): _weighted_quantile(inside) for band, inside in _bands(errors)}


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


def _widths(errors: Sequence[tuple[Row, float]]) -> dict[str, float]:
    """80 % quantile of the absolute error in each band that has rows, drawn towards that of all bands."""
    if not errors:
        return {}
    overall = float(np.quantile([abs(error) for _, error in errors], 0.8))
    result, low = {}, 0.0
    for band, limit in ERROR_BANDS:
        mine = [abs(error) for row, error in errors if low <= row.size_bytes < limit]
        low = limit
        share = len(mine) / (len(mine) + 8)
        quantile = float(np.quantile(mine, 0.8)) if mine else overall
        result[band] = max(float(f"{share * quantile + (1 - share) * overall:.3g}"), 0.005)
    return result
