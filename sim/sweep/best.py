"""The best points of a plan without simulating all of them: branch by a bound nothing can beat.

Every point is first lowered and given an optimistic row: what its result would be if the step took no
longer than a bound that no play of the graph can beat (``sim.analysis.bound``). Points are then played best
promise first, and as soon as the N-th best result is at least as good as the next promise, the rest cannot
enter and is pruned.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.errors import InputError
from sim.spec import Scenario
from sim.sweep import table as tables
from sim.sweep.columns import direction
from sim.sweep.engines import Engine, usable_cpus
from sim.sweep.evaluate import Task
from sim.sweep.plan import Plan, Point, check_objective
from sim.sweep.runner import Progress, Session, SweepResult, open_session
from sim.sweep.where import Where

# Columns that can only get worse when the step gets longer, so that the bound on the step bounds them.
BOUNDED = frozenset({
    "step_time_s", "samples_per_s", "tokens_per_s_per_device", "mfu", "energy_joules_per_step",
    "price_per_step", "price_per_sample",
})  # fmt: skip
# Columns that do not depend on the step time at all: known before a point is played.
STATIC = frozenset(
    {"num_devices", "samples_per_step", "peak_memory_bytes", "memory_capacity_bytes", "status"}
)


@dataclass(frozen=True)
class Search:
    """What to look for.

    Attributes
    ----------
    count : int
        How many points.
    objective : str
        Column to optimise.
    better : str
        ``min`` or ``max``; the column's own sense if empty.
    where : str
        Condition a point has to meet.
    """

    count: int
    objective: str
    better: str = ""
    where: str = ""


def optimistic_row(scenario: Scenario) -> dict[str, Any]:
    """Result data a scenario would have if its step took exactly the lower bound."""
    from sim.analysis.bound import step_bound
    from sim.analysis.breakdown import Breakdown
    from sim.analysis.simulate import fill_rates, prepare

    result, graph = prepare(scenario)
    if graph is not None:
        step = result.step_time_s = step_bound(graph, tight=True)
        fill_rates(result, graph, Breakdown({}, step, 0.0, 0.0, 0.0, ""))
    return result.to_dict()


def search(
    plan: Plan,
    wanted: Search,
    *,
    engine: str | Engine = "local",
    num_workers: int | None = None,
    store: str | Path | None = None,
    progress: Progress | None = None,
) -> SweepResult:
    """The best points of a plan; the others are pruned or computed as needed.

    The result holds every point that was played or refused; ``result.best`` are the rows that won.
    Parameters are those of ``sim.sweep.run``.
    """
    start = time.perf_counter()
    if wanted.count < 1:
        raise InputError("--best", "be at least 1", wanted.count)
    check_objective(plan, wanted.objective, "--objective")
    if wanted.where:
        Where.parse(wanted.where).check(plan.columns)
    with open_session(plan, engine, num_workers, store) as session:
        hunt = _Hunt(session, wanted, (num_workers or usable_cpus()) * 2)
        hunt.play(hunt.promises(progress), progress)
        result = session.result()
    result.pruned, result.unfit = hunt.pruned, hunt.unfit
    result.best = hunt.best
    result.wall_s = time.perf_counter() - start
    return result


class _Hunt:
    """State of one search."""

    def __init__(self, session: Session, wanted: Search, batch: int) -> None:
        self.session, self.wanted, self.batch = session, wanted, batch
        self.better = wanted.better or direction(wanted.objective)
        self.where = Where.parse(wanted.where) if wanted.where else None
        self.pruned = self.unfit = 0
        self.found: list[tuple[float, int]] = []  # (cost, row of the plan), sorted, at most `count`

    @property
    def best(self) -> list[int]:
        """Rows of the plan, best first."""
        return [index for _, index in self.found]

    def promises(self, progress: Progress | None) -> list[tuple[float, Point]]:
        """Optimistic cost of every point not known yet, cheapest first; records what cannot run."""
        session, plan = self.session, self.session.plan
        todo = [point for point in plan.points if session.result_of(point) is None]
        for point in plan.points:
            self._consider(point)
        if not todo:
            return []
        tasks = [Task(point.index, point.overrides, "bound") for point in todo]
        ranked: list[tuple[float, Point]] = []
        with closing(_generator(session.worker.map(plan.context, tasks))) as outcomes:
            for number, (task, outcome) in enumerate(outcomes, start=1):
                self._promise(plan.points[task.index], outcome.result, ranked)
                if progress is not None:
                    progress(number, 2 * len(todo))
        return sorted(ranked, key=lambda item: (item[0], item[1].index))

    def _promise(self, point: Point, data: dict[str, Any], ranked: list[tuple[float, Point]]) -> None:
        if data.get("status") != "ok":
            self.session.by_key[point.key] = data  # refused or infeasible: there is nothing to play
            return
        row = tables.row(point.parameters, data)
        known = STATIC | set(point.parameters)
        if self.where is not None and self.where.decidable_by(known) and not self.where.matches(row):
            self.unfit += 1
            return
        bounded = self.wanted.objective in BOUNDED | STATIC or self.wanted.objective in point.parameters
        ranked.append((self._cost(row) if bounded else -math.inf, point))

    def play(self, ranked: Sequence[tuple[float, Point]], progress: Progress | None) -> None:
        """Play the promising points in batches until no promise is left that could enter."""
        total, played = len(ranked), 0
        while played < total:
            batch = []
            for promise, point in ranked[played : played + self.batch]:
                if self._full and promise >= self.found[-1][0]:
                    break
                batch.append(point)
            if not batch:
                break
            self.session.compute(batch)
            for point in batch:
                self._consider(point)
            played += len(batch)
            if progress is not None:
                progress(total + played, 2 * total)
        self.pruned += total - played
        if progress is not None:
            progress(2 * max(total, 1), 2 * max(total, 1))

    @property
    def _full(self) -> bool:
        return len(self.found) >= self.wanted.count

    def _consider(self, point: Point) -> None:
        """Let a known result compete."""
        data = self.session.result_of(point)
        if data is None or data.get("status") != "ok":
            return
        row = tables.row(point.parameters, data)
        if self.where is not None and not self.where.matches(row):
            return
        cost = self._cost(row)
        if math.isnan(cost):
            return
        self.found = sorted([*self.found, (cost, point.index)])[: self.wanted.count]

    def _cost(self, row: dict[str, Any]) -> float:
        value = row.get(self.wanted.objective)
        if value is None or isinstance(value, str):
            return math.nan
        return float(value) if self.better == "min" else -float(value)


def _generator(outcomes: Any) -> Any:
    return outcomes if hasattr(outcomes, "close") else (item for item in outcomes)
