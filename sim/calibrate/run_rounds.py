"""The whole of ``calibrate runs``: simulate, fit, simulate again, leave rows out, and put it together.

Of sources with many rows a sample is looked at: sources count alike, so more rows of one would add little.
A round is linear around the calibration that it simulates with. From scratch, two rounds come close; one does
where the calibration is already close (``warm``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sim.calibrate.run_priors import SOURCE, UNKNOWN, prior_of, without_fits
from sim.calibrate.run_residuals import (
    ITERATIONS,
    Residual,
    fold_of,
    left_out,
    lot_of,
    mape,
    of_new_sources,
    residuals,
    software,
    with_spread,
)
from sim.calibrate.run_terms import make_terms
from sim.calibrate.runs import FEWEST_ROWS, fit_runs
from sim.errors import InputError
from sim.spec import Calibration
from sim.spec.calibration import Parameter
from sim.validate.runs import predict_all
from sim.validate.runs_loader import Run

Section = dict[str, dict[str, Parameter]]

SAMPLE = 700
"""Rows of a source that are simulated, about."""


@dataclass(frozen=True)
class Rounds:
    """A finished fit.

    Attributes
    ----------
    calibration : Calibration
        The given calibration with all fitted parameters in place of those of earlier fits.
    fit_mape, fold_mape, framework_mape : dict
        MAPE in percent by source: of the fit, of rows left out in five folds, of frameworks left out.
    source : str
        How the source of every fitted parameter begins.
    """

    calibration: Calibration
    fit_mape: dict[str, float]
    fold_mape: dict[str, float] = field(default_factory=dict)
    framework_mape: dict[str, float] = field(default_factory=dict)
    source: str = SOURCE

    def entries(self) -> list[tuple[str, str, str, Parameter]]:
        """(Section, key, name, parameter) of everything that was fitted."""
        return [
            (section, key, name, parameter)
            for section in ("device", "framework")
            for key, parameters in getattr(self.calibration, section).items()
            for name, parameter in parameters.items()
            if parameter.source.startswith(self.source)
        ]

    def fitted_only(self, name: str) -> Calibration:
        """What was fitted, as a calibration to merge over the default one."""
        sections: dict[str, Section] = {"device": {}, "framework": {}}
        for section, key, parameter_name, parameter in self.entries():
            sections[section].setdefault(key, {})[parameter_name] = parameter
        return Calibration(
            name=name,
            description="Fitted to measured training runs",
            source="clusterloom calibrate runs",
            device=sections["device"],
            framework=sections["framework"],
            fitted_sources=self.calibration.fitted_sources,
        )


def fit_rounds(
    runs: list[Run],
    default: Calibration,
    *,
    rounds: int = 2,
    folds: bool = True,
    scratch: bool = False,
    warm: bool = False,
    source: str = SOURCE,
    workers: int = 2,
    cache: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Rounds:
    """Fit device and framework parameters to measured runs.

    Parameters
    ----------
    runs : list of Run
        Calibration rows; those without a measured time are not used.
    default : Calibration
        Its values are the means of the priors.
    rounds : int
        Times to simulate all runs and fit.
    folds : bool
        Leave out folds and frameworks for held-out errors and intervals.
    scratch : bool
        Ignore what an earlier fit put into ``default``: only its cited values count.
    warm : bool
        With ``scratch``: simulate the first round with ``default`` as it is, and start the search there. The
        priors stay those of the cited values.
    source : str
        Source of the fitted parameters.
    workers, cache
        As in :func:`sim.validate.runs.predict_all`.
    progress : callable, optional
        Called with a line of text.
    """
    cited = without_fits(default) if scratch else default
    prior = prior_of(default) if scratch else default
    present = default if warm else prior
    some = sample(runs)
    for number in range(1, rounds + 1):
        progress(f"round {number} of {rounds}: simulating {len(some)} of {len(runs)} runs")
        found = predict_all(some, present, workers=workers, cache=cache)
        simulated = {p.id: p.step_time_s for p in found if p.step_time_s is not None}
        terms = make_terms(some, simulated, present)
        progress(f"fitting {len(terms)} runs")
        fitted = fit_runs(terms, prior, start=present, source=source)
        if not fitted.knobs:
            must = f"have {FEWEST_ROWS} rows that share a device or a framework"
            raise InputError("DATA", must, f"{len(terms)} rows that differ")
        present = fitted.calibration
    errors = mape(residuals(terms, fitted.calibration))
    by_fold: dict[str, float] = {}
    by_framework: dict[str, float] = {}
    unseen: list[Residual] = []
    if folds:
        progress("leaving out folds and frameworks")
        unseen = left_out(terms, prior, fitted.calibration, fold_of, iterations=ITERATIONS)
        if not unseen:
            progress("all rows are in one fold (do they share an identifier?): no intervals for step times")
    if unseen:
        new, unknown = of_new_sources(terms, prior, prior), left_out(terms, prior, prior, software)
        by_fold, by_framework = mape(unseen), mape(unknown)
        fitted = with_spread(fitted, unseen, new, unknown or unseen, found)
    merged = _merged(cited, fitted.calibration, source)
    sources = tuple(sorted({run.row.group for run in runs}))
    merged = merged.model_copy(update={"fitted_sources": sources})
    return Rounds(merged, errors, by_fold, by_framework, source)


def sample(runs: Sequence[Run]) -> list[Run]:
    """About :data:`SAMPLE` rows of each source, by their identifiers, so that they never change."""
    counts = Counter(run.row.group for run in runs)

    def kept(run: Run) -> bool:
        return lot_of(run) % 1000 < 1000 * SAMPLE / counts[run.row.group]

    return [run for run in runs if kept(run)]


def _merged(cited: Calibration, fitted: Calibration, source: str) -> Calibration:
    """The cited calibration, and over it what was fitted; keys in the order of the cited, then by name.

    What is cited for a device stays where no row has told more.
    """
    sections: dict[str, Section] = {}
    for name in ("device", "framework"):
        table = {key: dict(parameters) for key, parameters in getattr(cited, name).items()}
        for key, parameters in sorted(getattr(fitted, name).items()):
            told = [name for name, p in parameters.items() if p.source.startswith(source)]
            kept = set(table.get(key, ())) if key != UNKNOWN else set()
            mine = {n: parameters[n] for n in sorted(told) if parameters[n].n or n not in kept}
            if mine:
                table.setdefault(key, {}).update(mine)
        sections[name] = table
    return cited.model_copy(update=sections)
