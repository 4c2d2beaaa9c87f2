"""What a fit to runs leaves unexplained in rows that it has not seen, and the intervals that follow.

Rows are left out three times: in five folds (a source's other rows are known), source by source (the
framework is known from others), and framework by framework: then its rows are predicted as those of a
framework that nobody has measured. That tells how sure a prediction is for a source that was fitted, for a
new one, and for a framework that was not calibrated.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sim.calibrate.run_priors import CHIPS
from sim.calibrate.run_terms import Term
from sim.calibrate.runs import RunFit, fit_runs
from sim.spec import Calibration
from sim.spec.calibration import Parameter
from sim.validate.rows import Row
from sim.validate.runs import Prediction
from sim.validate.runs_loader import Run, framework_calibration
from sim.validate.spread import TERMS, Z80, deviation, deviations, shares, standard_deviations

FloatArray = npt.NDArray[np.float64]

FOLDS = 5
FEWEST_ROWS = 20
"""Rows of a framework from which its own scatter is taken."""
ITERATIONS = 4
"""Steps of a search that starts from the fit to all rows."""
VARIANTS = ("-graphs", "-xla")
"""Endings of frameworks that are the same software run in another mode."""


REPEATED = "-0\x1f"
"""Between an identifier that several rows share and the number that tells them apart; sources stay."""


def distinct(rows: Iterable[Row]) -> list[Row]:
    """Rows with identifiers that are theirs alone; the first of those that share one keeps it."""
    seen: Counter[str] = Counter()
    found = []
    for row in rows:
        seen[row.id] += 1
        number = seen[row.id]
        found.append(
            row if number == 1 else Row({**row.cells, "id": f"{row.id}{REPEATED}{number}"}, row.line)
        )
    return found


@dataclass(frozen=True)
class Residual:
    """A row that a fit has not seen: logarithm of predicted over measured step time."""

    term: Term
    log_ratio: float

    @property
    def group(self) -> str:
        """Short name of the source."""
        return self.term.run.row.group

    @property
    def software(self) -> str:
        """Framework, all of its variants alike."""
        return software(self.term)

    @property
    def chip(self) -> str:
        """Chip of the device, itself if it shares none."""
        name = self.term.shape.device.name
        return next((chip for chip, devices in CHIPS.items() if name in devices), name)


def lot_of(run: Run) -> int:
    """A large number that a row's identifier gives it, by which rows are drawn: it never changes."""
    return _hashed(run.row.id)


def _hashed(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)


def fold_of(term: Term) -> int:
    """Fold of a row; rows that share an identifier, say repetitions of one job, are in the same fold."""
    return _hashed(term.run.row.id.partition(REPEATED)[0]) % FOLDS


def software(term: Term) -> str:
    """Framework of a row, all of its variants alike."""
    key = term.shape.framework
    for ending in VARIANTS:
        key = key.removesuffix(ending)
    return key


def left_out(
    terms: Sequence[Term],
    prior: Calibration,
    base: Calibration,
    part_of: Callable[[Term], object],
    *,
    iterations: int = 8,
) -> list[Residual]:
    """Fit without each part in turn and predict it.

    Parameters
    ----------
    terms : sequence of Term
    prior, base : Calibration
        Means of the priors, which must not know of any fit, and where the searches start.
    part_of : callable
        Term -> fold or framework.
    iterations : int
        Steps of each search.
    """
    found = []
    for part in sorted({str(part_of(term)) for term in terms}):
        seen = [term for term in terms if str(part_of(term)) != part]
        if seen:
            fitted = fit_runs(seen, prior, start=base, iterations=iterations)
            found += residuals((t for t in terms if str(part_of(t)) == part), fitted.calibration)
    return found


def residuals(terms: Iterable[Term], calibration: Calibration) -> list[Residual]:
    """Residuals of terms under a calibration."""
    own: dict[str, Calibration] = {}
    found = []
    for term in terms:
        key = term.shape.framework
        if key not in own:
            own[key] = framework_calibration(calibration, key)
        predicted = term.seconds(own[key], term.shape.seconds(own[key]))
        found.append(Residual(term, math.log(max(predicted, 1e-9) / (term.run.measured_s or 1.0))))
    return found


def mape(found: Iterable[Residual]) -> dict[str, float]:
    """MAPE in percent of each source."""
    errors: dict[str, list[float]] = {}
    for residual in found:
        errors.setdefault(residual.group, []).append(abs(math.expm1(residual.log_ratio)))
    return {group: 100.0 * float(np.mean(values)) for group, values in sorted(errors.items())}


def fit_spread(entries: Sequence[tuple[dict[str, float], float, float]]) -> dict[str, float]:
    """Standard deviations of the terms of :mod:`sim.validate.spread` by maximum likelihood.

    Parameters
    ----------
    entries : sequence of (dict, float, float)
        Factors of the terms, logarithm of predicted over measured step time, and weight, of every row.
    """
    factors = np.array([[entry[0][term] for term in TERMS] for entry in entries])
    errors, weights = (np.array([entry[i] for entry in entries]) for i in (1, 2))
    return dict(zip(TERMS, standard_deviations(factors, errors, weights).tolist(), strict=True))


def own_spread(entries: Sequence[tuple[dict[str, float], float, float]], sizes: Mapping[str, float]) -> float:
    """The ``own`` deviation with which the interval holds 80 % of the weight of some rows."""
    weights = np.array([weight for _, _, weight in entries])
    # The own deviation that puts each row's residual just on the end of its interval; the weighted quantile.
    needed = []
    for factors, log_ratio, _ in entries:
        others = deviation({**factors, "own": 0.0}, dict(sizes))
        needed.append(max((log_ratio / Z80) ** 2 - others**2, 0.0))
    return max(math.sqrt(_weighted_quantile(needed, weights.tolist(), 0.8)), 0.01)


def measured_elsewhere(found: Sequence[Residual], shared: str, part: str) -> list[Residual]:
    """Residuals whose ``shared`` thing other parts have: else leaving out theirs leaves it out, too.

    Both are names of properties of :class:`Residual`.
    """
    parts: dict[str, set[str]] = {}
    for residual in found:
        parts.setdefault(getattr(residual, shared), set()).add(getattr(residual, part))
    return [residual for residual in found if len(parts[getattr(residual, shared)]) > 1]


def of_new_sources(terms: Sequence[Term], prior: Calibration, base: Calibration) -> list[Residual]:
    """Residuals of sources left out whose frameworks and chips others have."""
    every = [Residual(term, 0.0) for term in terms]
    kept = measured_elsewhere(measured_elsewhere(every, "software", "group"), "chip", "group")
    wanted = {id(residual.term) for residual in kept}
    sources = {residual.group for residual in kept}
    found = []
    for source in sorted(sources):
        seen = [term for term in terms if term.run.row.group != source]
        fitted = fit_runs(seen, prior, start=base, iterations=ITERATIONS)
        mine = (t for t in terms if t.run.row.group == source and id(t) in wanted)
        found += residuals(mine, fitted.calibration)
    return found


def with_spread(
    fitted: RunFit,
    folds: Sequence[Residual],
    sources: Sequence[Residual],
    frameworks: Sequence[Residual],
    predictions: Sequence[Prediction],
) -> RunFit:
    """The fit with the deviations of its residuals, sources weighted alike.

    Parameters
    ----------
    fitted : RunFit
    folds, sources, frameworks : sequence of Residual
        From :func:`left_out` by fold, :func:`of_new_sources`, and :func:`left_out` by framework.
    predictions : sequence of Prediction
        For where the time goes.
    """
    by_id = {prediction.id: prediction for prediction in predictions}

    def entries_of(found: Sequence[Residual]) -> list[tuple[dict[str, float], float, float]]:
        counts = Counter(residual.group for residual in found)
        return [
            (
                shares(by_id[residual.term.run.row.id], residual.term.run.assumed),
                residual.log_ratio,
                1.0 / counts[residual.group],
            )
            for residual in found
        ]

    elsewhere = measured_elsewhere(frameworks, "chip", "software")
    known, unknown = entries_of(folds), entries_of(elsewhere)
    unknown = unknown or entries_of(frameworks)
    sizes = fit_spread(known)
    framework = {key: dict(params) for key, params in fitted.calibration.framework.items()}
    source = f"{fitted.source}: residuals of rows left out"
    for term in ("communication", "assumed"):
        value = sizes[term]
        framework["default"][f"spread_{term}"] = Parameter(value=value, n=len(known), source=source)
    framework["default"]["spread_own"] = Parameter(
        value=own_spread(unknown, sizes),
        n=len(unknown),
        source=f"{fitted.source}: residuals of frameworks left out",
    )
    rows: dict[str, list[int]] = {}
    for index, residual in enumerate(folds):
        rows.setdefault(residual.term.shape.framework, []).append(index)
    for key, indices in sorted(rows.items()):
        if len(indices) >= FEWEST_ROWS:
            value = own_spread([known[i] for i in indices], sizes)
            framework.setdefault(key, {})["spread_own"] = Parameter(
                value=value, n=len(indices), source=source
            )
    _add_new_sources(fitted, framework, entries_of(sources), sources)
    device = _chip_factors(fitted, framework, known, [r.term for r in folds])
    update = {"framework": framework, "device": device}
    return replace(fitted, calibration=fitted.calibration.model_copy(update=update))


def _add_new_sources(
    fitted: RunFit,
    framework: dict[str, dict[str, Parameter]],
    entries: Sequence[tuple[dict[str, float], float, float]],
    found: Sequence[Residual],
) -> None:
    """Give fitted frameworks ``spread_source``, with which intervals hold 80 % of the rows of new sources."""
    if not found:
        return
    whole = fitted.calibration.model_copy(update={"framework": framework})
    needed = []
    for (factors, log_ratio, _), residual in zip(entries, found, strict=True):
        sizes = deviations(framework_calibration(whole, residual.term.shape.framework))
        inside = deviation({**factors, "source": 0.0}, sizes)
        needed.append(math.sqrt(max((log_ratio / Z80) ** 2 - inside**2, 0.0)))
    value = _weighted_quantile(needed, [weight for _, _, weight in entries], 0.8)
    source = f"{fitted.source}: residuals of sources left out"
    for parameters in framework.values():
        if "spread_own" in parameters and parameters is not framework["default"]:
            parameters["spread_source"] = Parameter(value=value, n=len(found), source=source)


def _chip_factors(
    fitted: RunFit,
    framework: Mapping[str, dict[str, Parameter]],
    entries: Sequence[tuple[dict[str, float], float, float]],
    terms: Sequence[Term],
) -> dict[str, dict[str, Parameter]]:
    """The devices' parameters with the factor by which the intervals of a chip hold 80 % of its rows."""
    device = {key: dict(parameters) for key, parameters in fitted.calibration.device.items()}
    whole = fitted.calibration.model_copy(update={"framework": dict(framework)})
    for members in CHIPS.values():
        mine = [i for i, term in enumerate(terms) if term.shape.device.name in members]
        if len(mine) < FEWEST_ROWS:
            continue
        sizes = [deviations(framework_calibration(whole, terms[i].shape.framework)) for i in mine]
        widths = [Z80 * deviation(entries[i][0], each) for i, each in zip(mine, sizes, strict=True)]
        ratios = [abs(entries[i][1]) / width for i, width in zip(mine, widths, strict=True)]
        value = _weighted_quantile(ratios, [entries[i][2] for i in mine], 0.8)
        source = f"{fitted.source}: residuals of rows left out"
        for name in members:
            device.setdefault(name, {})["spread_factor"] = Parameter(value=value, n=len(mine), source=source)
    return device


def _weighted_quantile(values: Sequence[float], weights: Sequence[float], share: float) -> float:
    order = np.argsort(values)
    reached = np.cumsum(np.array(weights)[order]) / sum(weights)
    return float(np.array(values)[order[int(np.searchsorted(reached, share))]])
