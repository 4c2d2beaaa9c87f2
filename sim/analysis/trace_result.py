"""A measured trace as a Result: its step time and where it goes, to be compared with a simulation."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from sim.analysis.breakdown import breakdown
from sim.analysis.result import Result
from sim.analysis.timeline_from_run import timeline_from_run
from sim.errors import InputError
from sim.graph.execution import Cause
from sim.trace.operations import Operations
from sim.trace.read import read
from sim.trace.replay import Played, replay
from sim.trace.saved import SUFFIX, load_operations
from sim.trace.to_graph import operations_of


def trace_result(path: str | Path) -> Result:
    """Result of replaying a trace, or a job that ``trace import`` saved.

    Parameters
    ----------
    path : str or Path
        Any trace that can be replayed.

    Returns
    -------
    Result
        Status ``ok``; ``step_time_s`` is the measured mean step, ``parts`` the breakdown of the replay's
        slowest rank, scaled to it. What only a simulation knows stays None.

    Raises
    ------
    InputError
        If the file is no such trace.
    """
    source = Path(path)
    if source.suffix == SUFFIX:
        operations, device = load_operations(source), ""
    else:
        trace = read([source], host=True)
        operations = operations_of(trace)
        device = next((rank.device for rank in trace.ranks if rank.device), "")
    measured, played = replay(operations)
    step = measured.measured_step_s
    if not step:
        raise InputError("trace", "hold steps, or operations that take time", source.name)
    parts, critical = _parts(played, step)
    return Result(
        status="ok",
        workload=source.name,
        cluster=device,
        fidelity="measured",
        num_devices=len(operations.ranks),
        step_time_s=step,
        parts=parts,
        critical_device=critical,
        task_seconds=_task_seconds(operations, measured.steps, played),
        warnings=[f"replay error {measured.error:+.2%}"],
    )


def explain(played: Played) -> tuple[dict[str, float], str, float]:
    """Breakdown (s per step) of the slowest rank of a replay, that rank, and its overlapped fraction."""
    spans = timeline_from_run(played.graph, played.run, without=Cause.CONTROL)
    found = breakdown(played.graph, played.run, spans)
    steps = steps_per_period(played)
    # What is below the resolution of the engine's clock is rounding.
    parts = {name: value / steps if value > 1e-12 * steps else 0.0 for name, value in found.parts.items()}
    return parts, found.critical_device, found.overlap_fraction


def steps_per_period(played: Played) -> int:
    """Measured steps in what the graph counts as one: its own steps, or those that a trace marks."""
    marks = Counter(mark[1] for mark in played.operations.marks)
    return max(marks.values(), default=1) if played.graph.steps_per_iteration == 1 else 1


def _parts(played: Played, step: float) -> tuple[dict[str, float], str]:
    """The replay's breakdown, stretched to the measured step: it covers everything between two steps, too."""
    parts, critical, _ = explain(played)
    total = sum(parts.values())
    return {name: value * step / total for name, value in parts.items()} if total else parts, critical


def _task_seconds(operations: Operations, steps: list[dict[str, object]], played: Played) -> dict[str, float]:
    """Seconds of operations per step by cause, overlapped or not."""
    count = max(1, len({mark[0] for mark in operations.marks}) or len(steps))
    sums: dict[str, float] = defaultdict(float)
    for operation, cause in enumerate(operations.cause):
        if cause != Cause.CONTROL:
            sums[cause.name.lower()] += float(played.end[operation] - played.start[operation]) / count
    return dict(sums)
