"""Time on one machine: priorities against noise, precise sleeps, and how busy the machine was."""

from __future__ import annotations

import ctypes
import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29


def real_time(priority: int) -> None:
    """Give this thread, and those it starts, a real-time priority where that is allowed; sleep precisely."""
    with suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def ordinary(name: str) -> None:
    """Take real-time priority from this process's threads whose names begin so (Linux)."""
    for task in Path("/proc/self/task").glob("*/comm"):
        with suppress(AttributeError, OSError):
            if task.read_text().startswith(name):
                os.sched_setscheduler(int(task.parent.name), os.SCHED_OTHER, os.sched_param(0))


@contextmanager
def kernel_first(priority: int = 25) -> Iterator[None]:
    """Let the kernel's network threads (ksoftirqd) run before real-time ranks, where that is allowed.

    At their usual priority they starve beside ranks and switch, and so does the ranks' traffic.
    """
    raised: list[tuple[int, int, Any]] = []
    for name in Path("/proc").glob("[0-9]*/comm"):
        with suppress(AttributeError, OSError):
            if name.read_text().startswith("ksoftirqd/"):
                process = int(name.parent.name)
                raised.append((process, os.sched_getscheduler(process), os.sched_getparam(process)))
                os.sched_setscheduler(process, os.SCHED_FIFO, os.sched_param(priority))
    try:
        yield
    finally:
        for process, policy, given in raised:
            with suppress(OSError):
                os.sched_setscheduler(process, policy, given)


@contextmanager
def ending_orderly() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does: with hosts and ranks put away."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_with_parent() -> None:
    """Have the kernel end this process when the one that started it ends (Linux)."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def sleep_until(instant: float) -> None:
    """Sleep to a time of ``time.perf_counter``; the last 60 us are spun."""
    while (left := instant - time.perf_counter()) > 0:
        if left > 60e-6:
            time.sleep(left - 40e-6)


class Load:
    """Fraction of all cores' time that was busy while the context was open."""

    def __enter__(self) -> Load:
        self._start = _ticks()
        self.busy = 0.0
        return self

    def __exit__(self, *_: object) -> None:
        spent = [after - before for before, after in zip(self._start, _ticks(), strict=True)]
        total = sum(spent)
        if total and len(spent) > 4:
            self.busy = 1 - (spent[3] + spent[4]) / total


def _ticks() -> list[int]:
    try:
        return [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return []


def quantile(values: Sequence[float], part: float) -> float:
    """Linear interpolation between order statistics."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * part
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def variation(values: Sequence[float]) -> float:
    """Coefficient of variation."""
    mean = statistics.fmean(values)
    return statistics.stdev(values) / mean if len(values) > 1 and mean else 0.0
