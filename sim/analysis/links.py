"""How busy the links are: utilisation in the averaging window and the most loaded links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sim.analysis.timeline_from_run import expand
from sim.engine.record import RunRecord
from sim.graph.execution import ExecutionGraph, TaskKind

if TYPE_CHECKING:
    import pandas as pd

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def window_bytes(graph: ExecutionGraph, run: RunRecord) -> FloatArray:
    """Bytes of the transfers that finish in the averaging window, per link, shape (links,).

    Over a recurring cycle that is what the link carries in it: what runs into the window at its start
    leaves it at its end.
    """
    begin, finish = float(run.window[0]), float(run.window[1])
    rows = np.flatnonzero(
        (graph.kind[run.task] == TaskKind.TRANSFER)
        & (run.end > begin)
        & (run.end <= finish * (1 + 1e-12))
        & ~run.dropped
    )
    times_played = np.bincount(run.task[rows], minlength=graph.num_tasks).astype(np.float64)
    owner = graph.links.rows()
    load = graph.flow_bytes[owner] * graph.link_coefficient * times_played[owner]
    sums = np.bincount(graph.links.index, weights=load, minlength=len(graph.link_table.name))
    return np.asarray(sums, np.float64)


def link_table(graph: ExecutionGraph, run: RunRecord, steps: float) -> pd.DataFrame:
    """All links, the most loaded first.

    Parameters
    ----------
    steps : float
        Training steps in the averaging window.

    Returns
    -------
    DataFrame
        Columns ``link``, ``kind``, ``members`` (real links the row stands for), ``capacity_bytes_per_s``,
        ``bytes_per_step`` (of one member) and ``utilisation`` (0 .. 1, of the window).
    """
    import pandas as pd  # a sweep's workers do without: loading it takes longer than most points

    return pd.DataFrame(link_columns(graph, run, steps))


def link_columns(graph: ExecutionGraph, run: RunRecord, steps: float) -> dict[str, Any]:
    """The columns of :func:`link_table`."""
    moved = window_bytes(graph, run)
    capacity = graph.link_table.capacity
    span = float(run.window[1] - run.window[0])
    available = capacity * span
    utilisation = np.minimum(np.divide(moved, available, out=np.zeros_like(moved), where=available > 0), 1.0)
    order = np.lexsort((np.arange(len(moved)), -utilisation))
    return {
        "link": [graph.link_table.name[i] for i in order],
        "kind": [graph.link_table.kind[i] for i in order],
        "members": graph.link_table.members[order],
        "capacity_bytes_per_s": capacity[order],
        "bytes_per_step": moved[order] / steps,
        "utilisation": utilisation[order],
    }


def bottlenecks(columns: Mapping[str, Any], count: int = 5) -> list[dict[str, object]]:
    """The ``count`` most loaded links that carry anything, as plain values for the result."""
    used = np.flatnonzero(columns["bytes_per_step"] > 0)[:count]
    return [
        {
            "link": str(columns["link"][place]),
            "kind": str(columns["kind"][place]),
            "utilisation": float(columns["utilisation"][place]),
            "bytes": float(columns["bytes_per_step"][place]),
            "members": int(columns["members"][place]),
        }
        for place in used.tolist()
    ]


def link_rate_steps(
    graph: ExecutionGraph, run: RunRecord, link: int, window: tuple[float, float]
) -> tuple[FloatArray, FloatArray]:
    """Load of one link over time as a step function, from the mean rate of each transfer.

    Returns
    -------
    tuple of ndarray
        Times (s) at which the load changes, and the load (bytes/s) from then on.
    """
    rows = np.flatnonzero((graph.kind[run.task] == TaskKind.TRANSFER) & ~run.dropped)
    rows = rows[(run.end[rows] > window[0]) & (run.start[rows] < window[1])]
    owner, entry = expand(graph.links.offsets, run.task[rows])
    mine = graph.links.index[entry] == link
    rows, coefficient = rows[owner[mine]], graph.link_coefficient[entry[mine]]
    task = run.task[rows]
    end = run.end[rows]
    start = np.minimum(run.start[rows] + graph.work[task], end)
    positive = end > start
    rate = graph.flow_bytes[task][positive] * coefficient[positive] / (end - start)[positive]
    times = np.concatenate([start[positive], end[positive]])
    change = np.concatenate([rate, -rate])
    order = np.argsort(times, kind="stable")
    load = np.cumsum(change[order])
    peak = float(np.abs(change).max()) if len(change) else 0.0
    load[np.abs(load) < 1e-9 * peak] = 0.0
    times = times[order]
    last = np.concatenate([times[1:] != times[:-1], [True]]) if len(times) else np.zeros(0, bool)
    return times[last], load[last]
