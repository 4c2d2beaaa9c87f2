"""Run records written by hand, for tests of the analysis that must not depend on the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.engine.record import RunRecord
from sim.graph.execution import ExecutionGraph, LinkTable

Row = tuple[int, int, float, float]  # task, iteration, start, end


def links(*capacities: float, kind: str = "nic") -> LinkTable:
    """Links l0, l1, ... of one kind."""
    count = len(capacities)
    return LinkTable(
        tuple(f"l{i}" for i in range(count)),
        np.array(capacities, float),
        np.ones(count, np.int64),
        (kind,) * count,
    )


def record(
    graph: ExecutionGraph,
    rows: Sequence[Row],
    *,
    window: tuple[float, float] | None = None,
    window_iterations: tuple[int, int] | None = None,
    stop: str = "recurrence",
    **fields: Any,
) -> RunRecord:
    """A record of the given spans; the window is the whole run by default."""
    ordered = sorted(rows, key=lambda row: (row[3], row[1], row[0]))
    task, iteration = (np.array([row[i] for row in ordered], np.int64) for i in (0, 1))
    start, end = (np.array([row[i] for row in ordered], float) for i in (2, 3))
    last = int(iteration.max()) + 1
    closing = graph.boundary[task]
    times = [
        float(end[closing & (iteration == k)].max())
        for k in range(last)
        if (closing & (iteration == k)).any()
    ]
    window = window or (0.0, float(end.max()))
    window_iterations = window_iterations or (0, last)
    count = (window_iterations[1] - window_iterations[0]) * graph.steps_per_iteration
    step = (window[1] - window[0]) / count
    values: dict[str, Any] = {
        "ready": start.copy(),
        "dropped": np.zeros(len(task), bool),
        "link_bytes": np.zeros(len(graph.link_table.name)),
        "makespan": float(end.max()),
        "boundary_times": np.array(times),
        "step_time": step,
        "step_time_interval": (step, step),
        "converged": True,
        "num_events": len(task),
    }
    return RunRecord(
        task=task,
        iteration=iteration,
        start=start,
        end=end,
        window=window,
        window_iterations=window_iterations,
        stop=stop,
        **{**values, **fields},
    )
