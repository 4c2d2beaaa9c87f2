"""The accuracy board: errors of step time by source and regime, beside the baselines."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.validate.baseline import PUBLISHED
from sim.validate.runs import Prediction
from sim.validate.runs_loader import Run, Skipped

FloatArray = npt.NDArray[np.float64]

SMALLEST_GROUP = 4
"""Configurations of a model on as many devices, below which ranks are not compared."""


@dataclass(frozen=True)
class Scored:
    """One run with its prediction, interval and baseline, all in seconds."""

    run: Run
    prediction: Prediction
    low_s: float | None = None
    high_s: float | None = None
    constant_s: float | None = None

    @property
    def error(self) -> float | None:
        """Relative error of the step time; None if the run is not scored."""
        if not self.prediction.ok or not self.run.measured_s or self.prediction.step_time_s is None:
            return None
        return self.prediction.step_time_s / self.run.measured_s - 1.0


@dataclass
class Line:
    """One line of the board. Errors are percent of the measured step time.

    Attributes
    ----------
    group, regime, split : str
    rows, scored : int
    skipped : dict of str to int
        Rows without a score, by reason.
    mape, median, bias, worst : float or None
        Mean and median absolute error, mean error, and the largest error with its sign.
    spearman, regret : float or None
        Mean rank correlation of the configurations of a model on equally many devices, and how much slower
        (percent) the configuration predicted best is than the one measured best.
    coverage, half_width : float or None
        Percent of rows whose measurement lies in the 80 % interval, and the median half-width in percent.
    constant : float or None
        MAPE of the constant-utilisation baseline.
    published : float or None
    """

    group: str
    regime: str
    split: str
    rows: int
    scored: int
    skipped: dict[str, int] = field(default_factory=dict)
    mape: float | None = None
    median: float | None = None
    bias: float | None = None
    worst: float | None = None
    spearman: float | None = None
    regret: float | None = None
    coverage: float | None = None
    half_width: float | None = None
    constant: float | None = None
    published: float | None = None
    published_by: str = ""
    over_memory: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return dict(vars(self))


def board(scored: Sequence[Scored], skipped: Iterable[Skipped]) -> list[Line]:
    """Lines by source, then by source and regime."""
    missing = list(skipped)
    lines = [
        _line(group, "all", [s for s in scored if s.run.row.group == group], missing)
        for group in _groups(scored, missing)
    ]
    for group in _groups(scored, missing):
        mine = [s for s in scored if s.run.row.group == group]
        regimes = sorted({s.run.regime for s in mine})
        if len(regimes) > 1:
            lines += [_line(group, r, [s for s in mine if s.run.regime == r], []) for r in regimes]
        fastest = best_frameworks(mine)
        if fastest:
            lines.append(_line(group, "best framework", fastest, []))
    return lines


def best_frameworks(scored: Sequence[Scored]) -> list[Scored]:
    """Of each job that several frameworks ran, the fastest run: what the hardware can do."""
    jobs: dict[tuple[Any, ...], list[Scored]] = defaultdict(list)
    for item in scored:
        if item.run.measured_s:
            row, params = item.run.row, item.run.params
            batch = params["global_batch_size"]
            columns = ("model", "gpu", "gpu_mem_gb", "gpus", "seq_len")
            jobs[(*(row.text(name) for name in columns), params["dtype"], batch)].append(item)
    several = [job for job in jobs.values() if len({item.run.row.text("framework") for item in job}) > 1]
    return [min(job, key=lambda item: item.run.measured_s or 0.0) for job in several]


def _groups(scored: Sequence[Scored], skipped: Sequence[Skipped]) -> list[str]:
    splits = {s.run.row.group: s.run.row.split for s in scored}
    splits |= {s.row.group: s.row.split for s in skipped if s.row.group not in splits}
    return sorted(splits, key=lambda name: (splits[name], name))


def _line(group: str, regime: str, scored: Sequence[Scored], skipped: Sequence[Skipped]) -> Line:
    absent = [s for s in skipped if s.row.group == group]
    reasons = Counter(s.reason for s in absent)
    reasons.update(_reason(s) for s in scored if s.error is None)
    good = [s for s in scored if s.error is not None]
    splits = sorted({s.run.row.split for s in scored} | {s.row.split for s in absent})
    line = Line(
        group, regime, "+".join(filter(None, splits)), len(scored) + len(absent), len(good), dict(reasons)
    )
    line.over_memory = sum("memory predicted" in s.prediction.message for s in good)
    if regime == "all" and group in PUBLISHED:
        line.published, line.published_by = PUBLISHED[group]
    if good:
        _errors(line, good)
        line.spearman, line.regret = ranking(good)
    return line


def _reason(scored: Scored) -> str:
    if not scored.prediction.ok:
        return f"{scored.prediction.status}: {scored.prediction.message.split(' Got ')[0][:90]}"
    return scored.run.unmeasured or "no measured step time"


def _errors(line: Line, scored: Sequence[Scored]) -> None:
    errors = 100.0 * np.array([s.error for s in scored], float)
    line.mape, line.median = float(np.abs(errors).mean()), float(np.median(np.abs(errors)))
    line.bias, line.worst = float(errors.mean()), float(errors[np.argmax(np.abs(errors))])
    constant = [
        abs(s.constant_s / s.run.measured_s - 1.0) for s in scored if s.constant_s and s.run.measured_s
    ]
    line.constant = 100.0 * float(np.mean(constant)) if constant else None
    bounded = [s for s in scored if s.low_s is not None and s.high_s is not None]
    if bounded:
        inside = [s.low_s <= (s.run.measured_s or 0) <= s.high_s for s in bounded if s.low_s and s.high_s]
        widths = [
            (s.high_s - s.low_s) / 2 / (s.prediction.step_time_s or 1)
            for s in bounded
            if s.low_s and s.high_s
        ]
        line.coverage, line.half_width = 100.0 * float(np.mean(inside)), 100.0 * float(np.median(widths))


def ranking(scored: Sequence[Scored]) -> tuple[float | None, float | None]:
    """Mean Spearman correlation and mean regret (percent) over the models with several configurations.

    Configurations are compared where model, devices, precision and global batch are the same.
    """
    sets: dict[tuple[Any, ...], list[Scored]] = defaultdict(list)
    for item in scored:
        row, params = item.run.row, item.run.params
        name = (
            row.text("model"),
            row.text("gpu"),
            row.text("gpus"),
            params["dtype"],
            params["global_batch_size"],
        )
        sets[(*name, row.text("seq_len"))].append(item)
    correlations, regrets = [], []
    for members in sets.values():
        predicted = np.array([m.prediction.step_time_s for m in members], float)
        measured = np.array([m.run.measured_s for m in members], float)
        if len(members) < SMALLEST_GROUP or np.ptp(measured) == 0 or np.ptp(predicted) == 0:
            continue
        correlations.append(spearman(predicted, measured))
        regrets.append(100.0 * (measured[np.argmin(predicted)] / measured.min() - 1.0))
    if not correlations:
        return None, None
    return float(np.mean(correlations)), float(np.mean(regrets))


def spearman(a: FloatArray, b: FloatArray) -> float:
    """Rank correlation; ties share their mean rank."""
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: FloatArray) -> FloatArray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    upper = np.cumsum(counts)
    return np.asarray((upper - (counts - 1) / 2.0)[inverse], float)


def weighted_mape(lines: Iterable[Line], keep: Callable[[Line], bool] = lambda line: True) -> float | None:
    """Mean over sources of their MAPE, so that a source counts once however many rows it has."""
    found = [line.mape for line in lines if line.regime == "all" and line.mape is not None and keep(line)]
    return float(np.mean(found)) if found else None
