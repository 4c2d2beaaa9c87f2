"""Runs a plan: skips what the journal has, computes the rest, journals each point, makes the table."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sim
from sim.sweep import table as tables
from sim.sweep.engines import Engine
from sim.sweep.engines import engine as make_engine
from sim.sweep.evaluate import BAD_STATUS, Outcome, Task
from sim.sweep.journal import Journal
from sim.sweep.plan import Plan, Point

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[int, int], None]  # points finished, points in all


@dataclass
class SweepResult:
    """What a sweep gave.

    Attributes
    ----------
    plan : Plan
    results : list of dict
        Result data of each point of the plan, in order; None for a point that a search pruned.
    computed, resumed, pruned, unfit : int
        Points computed now, taken from the journal, left out by the bound of a search, and left out because
        they cannot meet its condition.
    notices : list of str
        What to tell the user about the store.
    wall_s : float
        Seconds of this run.
    best : list of int
        Points (rows of the plan) that a search found, best first.
    """

    plan: Plan
    results: list[dict[str, Any] | None]
    computed: int = 0
    resumed: int = 0
    pruned: int = 0
    unfit: int = 0
    notices: list[str] = field(default_factory=list)
    wall_s: float = 0.0
    best: list[int] = field(default_factory=list)

    @property
    def table(self) -> pd.DataFrame:
        """One row per point, in the plan's order; see ``sim.sweep.columns``."""
        pairs = zip(self.plan.points, self.results, strict=True)
        return tables.frame(
            [tables.row(point.parameters, result) for point, result in pairs if result is not None]
        )

    @property
    def best_table(self) -> pd.DataFrame:
        """The rows a search found, best first, with the columns of ``table``."""
        kept = [index for index, result in enumerate(self.results) if result is not None]
        place = {index: row for row, index in enumerate(kept)}
        return self.table.iloc[[place[index] for index in self.best]].reset_index(drop=True)

    @property
    def counts(self) -> dict[str, int]:
        """Points by status."""
        return dict(Counter(str(result.get("status")) for result in self.results if result is not None))

    @property
    def num_failed(self) -> int:
        """Points that could not be simulated although nothing is wrong with their strategy."""
        return sum(count for status, count in self.counts.items() if status in BAD_STATUS)

    def refusals(self) -> dict[str, list[str]]:
        """Reason -> the points it stopped, for invalid, infeasible and failed ones.

        Points that one rule refuses differ in what they got: they count together, under the first's message.
        """
        reasons: dict[str, list[str]] = {}
        first: dict[str, str] = {}
        for point, result in zip(self.plan.points, self.results, strict=True):
            if result is not None and result.get("status") in ("invalid", "infeasible", "failed"):
                message = str(result.get("message"))
                reason = first.setdefault(str(result.get("rule") or message), message)
                changed = ", ".join(f"{name}={value}" for name, value in point.overrides.items())
                reasons.setdefault(reason, []).append(str(point.parameters.get("strategy") or changed))
        return reasons


def run(
    plan: Plan,
    *,
    engine: str | Engine = "local",
    num_workers: int | None = None,
    store: str | Path | None = None,
    progress: Progress | None = None,
) -> SweepResult:
    """Compute every point of a plan that the store does not hold yet.

    Parameters
    ----------
    plan : Plan
        What to compute.
    engine : str or Engine
        ``local``, ``dask``, ``ray``, or an object with ``map``.
    num_workers : int, optional
        Worker processes; all usable CPUs by default.
    store : path, optional
        Folder of the journal; without one nothing is kept but the result.
    progress : callable, optional
        Called with (finished, total) after every point.
    """
    start = time.perf_counter()
    with open_session(plan, engine, num_workers, store) as session:
        session.compute(plan.points, progress)
        result = session.result()
    result.wall_s = time.perf_counter() - start
    return result


class Session:
    """Results by key while a plan runs; used by ``run`` and by the search for the best."""

    def __init__(self, plan: Plan, worker: Engine, journal: Journal | None) -> None:
        self.plan, self.worker, self.journal = plan, worker, journal
        self.by_key: dict[str, dict[str, Any]] = {}
        self.computed = self.resumed = 0
        if journal is not None:
            wanted = {point.key for point in plan.points if point.key}
            self.by_key = {
                key: dict(entry["result"])
                for key, entry in journal.entries.items()
                if key in wanted and isinstance(entry.get("result"), dict)
            }
            self.resumed = len(self.by_key)

    def result_of(self, point: Point) -> dict[str, Any] | None:
        """Result data of a point, if it is known."""
        return point.error if point.error is not None else self.by_key.get(point.key)

    def compute(self, points: Sequence[Point], progress: Progress | None = None) -> None:
        """Compute those of the points whose result is not known."""
        todo = {point.key: point for point in points if self.result_of(point) is None}
        finished = len(points) - len(todo)
        if progress is not None:
            progress(finished, len(points))
        tasks = [Task(point.index, point.overrides) for point in todo.values()]
        with contextlib.closing(_as_generator(self.worker.map(self.plan.context, tasks))) as outcomes:
            for task, outcome in outcomes:
                self._take(self.plan.points[task.index], outcome)
                finished += 1
                if progress is not None:
                    progress(finished, len(points))

    def _take(self, point: Point, outcome: Outcome) -> None:
        self.by_key[point.key] = outcome.result
        self.computed += 1
        if self.journal is not None and not outcome.lost:
            self.journal.append(point.key, {"point": _plain(point.overrides), **outcome.as_entry()})

    def result(self) -> SweepResult:
        """The outcome so far."""
        results = [self.result_of(point) for point in self.plan.points]
        notices = list(self.journal.notices) if self.journal is not None else []
        return SweepResult(self.plan, results, self.computed, self.resumed, notices=notices)


@contextlib.contextmanager
def open_session(
    plan: Plan, engine: str | Engine, num_workers: int | None, store: str | Path | None
) -> Iterator[Session]:
    """A session with its journal open; closed whatever happens."""
    worker = make_engine(engine, num_workers) if isinstance(engine, str) else engine
    if store is None:
        yield Session(plan, worker, None)
        return
    with Journal(store, sim.__version__) as journal:
        yield Session(plan, worker, journal)


def _as_generator(outcomes: Any) -> Any:
    return outcomes if hasattr(outcomes, "close") else (item for item in outcomes)


def _plain(overrides: dict[str, Any]) -> dict[str, Any]:
    return {
        name: v if isinstance(v, int | float | str | bool | None) else str(v) for name, v in overrides.items()
    }


class Sweep:
    """A sweep that can be run, continued and searched; what ``sim.sweep(...)`` returns.

    Parameters
    ----------
    plan : Plan
        The points.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.result: SweepResult | None = None

    def __len__(self) -> int:
        return len(self.plan.points)

    def __repr__(self) -> str:
        return f"Sweep({self.plan.name!r}, {len(self)} points)"

    def run(
        self,
        *,
        engine: str | Engine = "local",
        num_workers: int | None = None,
        store: str | Path | None = None,
        progress: Progress | None = None,
    ) -> pd.DataFrame:
        """Simulate all points and return the table, one row per point; parameters as in ``run``."""
        self.result = run(self.plan, engine=engine, num_workers=num_workers, store=store, progress=progress)
        return self.result.table

    def best(
        self,
        count: int = 1,
        objective: str = "step_time_s",
        *,
        where: str = "",
        engine: str | Engine = "local",
        num_workers: int | None = None,
        store: str | Path | None = None,
    ) -> pd.DataFrame:
        """The best points by a column, best first; points that cannot win are not simulated."""
        from sim.sweep.best import Search, search

        wanted = Search(count, objective, where=where or self.plan.where)
        self.result = search(self.plan, wanted, engine=engine, num_workers=num_workers, store=store)
        return self.result.best_table


def sweep(
    workload: Any = None,
    cluster: Any = None,
    axes: Mapping[str, Sequence[Any]] | None = None,
    *,
    strategy: Any = None,
    calibration: Any = None,
    **options: Any,
) -> Sweep:
    """A sweep over a product of axes; see ``sim.sweep``.

    Parameters
    ----------
    workload, cluster, strategy, calibration
        The base: names, YAML paths or specs; each may be an axis instead.
    axes : mapping of str to sequence
        Dotted field -> values; a mapping among the values sets several fields together.
    **options
        ``where`` (a condition on the points), ``name``, ``folders``, and further dotted fields of the base
        under ``base``.
    """
    from sim.sweep.plan import plan_axes

    base = {"workload": workload, "cluster": cluster, "strategy": strategy, "calibration": calibration}
    given = {name: value for name, value in base.items() if value is not None}
    return Sweep(plan_axes({**given, **options.pop("base", {})}, axes or {}, **options))
