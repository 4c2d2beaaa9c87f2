"""Rows that a fit has not seen: other sizes of the same systems, whole systems, other numbers of hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from sim.calibrate.collective_fit import Level, Scope, fit_scope, populate, populate_without
from sim.calibrate.collectives import (
    CollectiveFit,
    alternate_sizes,
    by_scope,
    fit,
    leave_systems_out,
    scope_curves,
    system_errors,
    usable,
)
from sim.spec.calibration import Calibration
from sim.validate.collectives.board import predictions
from sim.validate.collectives.predict import Curves
from sim.validate.collectives.rows import Row

_MANY_HOSTS = 3  # different numbers of hosts that make a system one to interpolate over


@dataclass(frozen=True)
class HeldOut:
    """Rows that a fit has not seen, and the calibration they are judged with."""

    name: str
    rows: list[Row]
    calibration: Calibration


def hold_out_sizes(rows: Sequence[Row]) -> list[HeldOut]:
    """Fit every first size of each curve, predict every second."""
    kept, left = alternate_sizes(usable(rows))
    return [HeldOut("other sizes", left, fit(kept).calibration("held-out", "every second size left out"))]


def hold_out_systems(rows: Sequence[Row]) -> list[HeldOut]:
    """For each system: fit all others, predict it."""
    good = usable(rows)
    left_out = leave_systems_out(good, populate(good))
    parts = []
    for each in left_out:
        errors = system_errors([other for other in left_out if other is not each])
        calibration = CollectiveFit({}, each.population, errors).calibration(
            f"without {each.system}", "a system left out"
        )
        parts.append(HeldOut(each.system, each.rows, calibration))
    return parts


def hold_out_hosts(rows: Sequence[Row]) -> list[HeldOut]:
    """For each system measured on several numbers of hosts, and each of these: fit the others, predict it."""
    good = usable(rows)
    whole = populate(good)
    parts = []
    for system in dict.fromkeys(row.system for row in good):
        numbers = sorted({_hosts(row) for row in good if row.system == system})
        for number in numbers if len(numbers) >= _MANY_HOSTS else ():
            left = [row for row in good if row.system == system and _hosts(row) == number]
            kept = [row for row in good if row.system == system and _hosts(row) != number]
            population = populate_without(good, left, whole)
            estimates: dict[Scope, Level] = {}
            curves: dict[Scope, Curves] = {}
            for scope, mine in by_scope(kept).items():
                estimates[scope] = fit_scope(scope, mine, population)
                curves[scope], _ = scope_curves(scope, mine, estimates[scope], population)
            name = f"{system}, {number} hosts"
            fitted = CollectiveFit(estimates, population, curves=curves)
            calibration = fitted.calibration(name, "hosts left out")
            parts.append(HeldOut(name, left, calibration))
    return parts


def _hosts(row: Row) -> int:
    assert row.case is not None
    return row.case.cluster.size


HOLD_OUTS: dict[str, Callable[[Sequence[Row]], list[HeldOut]]] = {
    "sizes": hold_out_sizes,
    "systems": hold_out_systems,
    "hosts": hold_out_hosts,
}


def held_out_predictions(name: str, rows: Sequence[Row]) -> pd.DataFrame:
    """Predictions of what one kind of hold-out leaves out, with its name as ``left_out``; may be empty."""
    parts = HOLD_OUTS[name](rows)
    tables = [predictions(part.rows, part.calibration).assign(left_out=part.name) for part in parts]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
