"""One point of a sweep -> its result as plain data. Runs in the workers; never raises."""

from __future__ import annotations

import importlib
import math
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sim.errors import ClusterloomError, InfeasibleError, InvalidStrategyError
from sim.sweep.context import Context

BAD_STATUS = frozenset({"failed"})


@dataclass(frozen=True)
class Task:
    """A point handed to an engine.

    Attributes
    ----------
    index : int
        Row of the plan.
    overrides : dict
        Dotted field -> value, as the plan lists them.
    mode : str
        ``run`` to simulate, ``bound`` for the optimistic row that prunes a search.
    """

    index: int
    overrides: dict[str, Any]
    mode: str = "run"


@dataclass(frozen=True)
class Outcome:
    """What came back of a point.

    Attributes
    ----------
    result : dict
        The result as JSON data.
    wall_s : float
        Seconds it took; never part of the table.
    lost : bool
        The failure speaks of the machine (a worker killed, no memory left), not of the point: it is not
        kept, and a restart tries again.
    """

    result: dict[str, Any]
    wall_s: float = 0.0
    lost: bool = False

    def as_entry(self) -> dict[str, Any]:
        """Fields of the journal line."""
        return {"result": self.result, "wall_s": self.wall_s}


def lost(message: str) -> Outcome:
    """The outcome of a point that this machine could not compute, this time."""
    return Outcome({"status": "failed", "message": message}, lost=True)


def failure(error: BaseException) -> dict[str, Any]:
    """Result data of a point that could not be simulated."""
    if isinstance(error, InfeasibleError):
        return {"status": "infeasible", "message": str(error), "missing_bytes": error.missing_bytes}
    if isinstance(error, InvalidStrategyError):
        return {"status": "invalid", "message": str(error), "rule": error.rule}
    if isinstance(error, ClusterloomError):
        return {"status": "failed", "message": str(error)}
    return {"status": "failed", "message": f"internal error: {type(error).__name__}: {error}{_place(error)}"}


def _place(error: BaseException) -> str:
    """Where in clusterloom an unexpected error arose, for the bug report."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if f"{os.sep}sim{os.sep}" in frame.filename]
    if not own:
        return ""
    parts = own[-1].filename.split(f"{os.sep}sim{os.sep}")
    return f" (sim/{parts[-1]}:{own[-1].lineno})"


def evaluate(context: Context, task: Task) -> Outcome:
    """Simulate (or bound) one point; any error becomes a row with its message."""
    start = time.perf_counter()
    try:
        scenario = context.scenario(task.overrides)
        name = context.simulate if task.mode == "run" else context.optimist
        result = _as_data(_function(name)(scenario))
    except MemoryError:
        return lost("not enough memory on this machine to simulate the point")
    except Exception as error:  # one bad point is one failed row
        result = failure(error)
    return Outcome(result, time.perf_counter() - start)


def _function(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def _as_data(result: Any) -> dict[str, Any]:
    """Plain JSON data of a Result (or of a dict, from a function that is already plain)."""
    data = result if isinstance(result, dict) else result.to_dict()
    return {str(key): _plain(value) for key, value in data.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
