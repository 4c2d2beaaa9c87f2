"""The whole of ``calibrate runs``: simulate, fit, simulate again, leave rows out, and put it together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sim.calibrate.run_residuals import fold_of, left_out, mape, residuals, with_spread
from sim.calibrate.run_terms import make_terms
from sim.calibrate.runs import SOURCE, fit_runs, prior_of, without_fits
from sim.spec import Calibration
from sim.spec.calibration import Parameter
from sim.validate.runs import predict_all
from sim.validate.runs_loader import Run

Section = dict[str, dict[str, Parameter]]


@dataclass(frozen=True)
class Rounds:
    """A finished fit.

    Attributes
    ----------
    calibration : Calibration
        The given calibration with all fitted parameters in place of those of earlier fits.
    fit_mape, fold_mape, source_mape : dict
        MAPE in percent by source: of the fit, of rows left out in five folds, of sources left out.
    """

    calibration: Calibration
    fit_mape: dict[str, float]
    fold_mape: dict[str, float] = field(default_factory=dict)
    source_mape: dict[str, float] = field(default_factory=dict)

    def entries(self) -> list[tuple[str, str, str, Parameter]]:
        """(Section, key, name, parameter) of everything that was fitted."""
        return [
            (section, key, name, parameter)
            for section in ("device", "framework")
            for key, parameters in getattr(self.calibration, section).items()
            for name, parameter in parameters.items()
            if parameter.source.startswith(SOURCE)
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
        )


def fit_rounds(
    runs: list[Run],
    default: Calibration,
    *,
    rounds: int = 2,
    folds: bool = True,
    scratch: bool = False,
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
        Leave out folds and sources for held-out errors and intervals.
    scratch : bool
        Ignore what an earlier fit put into ``default``: only its cited values count.
    workers, cache
        As in :func:`sim.validate.runs.predict_all`.
    progress : callable, optional
        Called with a line of text.
    """
    cited = without_fits(default) if scratch else default
    prior = prior_of(default) if scratch else default
    present = prior
    for number in range(1, rounds + 1):
        progress(f"round {number} of {rounds}: simulating {len(runs)} runs")
        found = predict_all(runs, present, workers=workers, cache=cache)
        simulated = {p.id: p.step_time_s for p in found if p.step_time_s is not None}
        terms = make_terms(runs, simulated, present)
        fitted = fit_runs(terms, prior, present)
        present = fitted.calibration
    errors = mape(residuals(terms, fitted.calibration))
    by_fold: dict[str, float] = {}
    by_source: dict[str, float] = {}
    if folds:
        progress("leaving out folds and sources")
        unseen = left_out(terms, prior, fitted.calibration, fold_of)
        without = left_out(terms, prior, prior, lambda term: term.run.row.group)
        by_fold, by_source = mape(unseen), mape(without)
        fitted = with_spread(fitted, unseen, without or unseen, found)
    return Rounds(_merged(cited, fitted.calibration), errors, by_fold, by_source)


def _merged(cited: Calibration, fitted: Calibration) -> Calibration:
    """The cited calibration, and over it what was fitted; keys in the order of the cited, then by name."""
    sections: dict[str, Section] = {}
    for name in ("device", "framework"):
        table = {key: dict(parameters) for key, parameters in getattr(cited, name).items()}
        for key, parameters in sorted(getattr(fitted, name).items()):
            mine = {n: p for n, p in sorted(parameters.items()) if p.source.startswith(SOURCE)}
            if mine:
                table.setdefault(key, {}).update(mine)
        sections[name] = table
    return cited.model_copy(update=sections)
