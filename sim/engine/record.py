"""RunRecord: what the engine writes down about the task instances it played."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RunRecord:
    """Played instances of a graph, one row per finished (task, iteration), in order of completion.

    When each participant posted a task follows from these columns and the graph; the timeline has it.

    Attributes
    ----------
    task, iteration : int[N]
        Which task of the template, of which iteration.
    ready : float[N]
        Seconds at which the last predecessor had finished and the counters allowed the task.
    start, end : float[N]
        Seconds. A transfer starts with its last participant; its latency is part of the span.
    dropped : bool[N]
        Skipped at its start: it took no time and moved no bytes.
    link_bytes : float[L]
        Bytes each link row carried for the finished instances.
    makespan : float
        Seconds from 0 to the last recorded end.
    window : (float, float)
        Span in seconds over which averages are taken.
    window_iterations : (int, int)
        Half-open range of the iterations whose boundaries ``window`` joins: ``(k1, k2)`` means from the end
        of iteration ``k1 - 1`` (time 0 for ``k1 = 0``) to the end of iteration ``k2 - 1``.
    boundary_times : float[K]
        Seconds at which all boundary tasks of iteration 0, 1, ... were done.
    step_time : float
        Mean seconds per training step over the window.
    step_time_interval : (float, float)
        80 % confidence interval of ``step_time``; degenerate when the state recurred exactly.
    stop : str
        Why the run ended: ``recurrence``, ``confidence``, ``iterations`` (the number asked for) or ``limit``.
    converged : bool
        False only if the limit of iterations was hit before the state recurred or the interval was narrow.
    num_events : int
        Events the SimPy environment processed.
    """

    task: IntArray
    iteration: IntArray
    ready: FloatArray
    start: FloatArray
    end: FloatArray
    dropped: BoolArray
    link_bytes: FloatArray
    makespan: float
    window: tuple[float, float]
    window_iterations: tuple[int, int]
    boundary_times: FloatArray
    step_time: float
    step_time_interval: tuple[float, float]
    stop: str
    converged: bool
    num_events: int

    @property
    def num_instances(self) -> int:
        """Number of finished instances."""
        return len(self.task)

    @property
    def num_iterations(self) -> int:
        """Number of completed iterations."""
        return len(self.boundary_times)
