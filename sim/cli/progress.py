"""The progress bar of long commands, on stderr."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from sim.cli.output import console, note

_QUIET_SECONDS = 10.0  # between two lines where stderr is no terminal


@contextlib.contextmanager
def progress_bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """A bar with the remaining time on a terminal; a line every few seconds elsewhere."""
    if not sys.stderr.isatty():
        yield _lines(name)
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)

        def update(finished: int, total: int) -> None:
            bar.update(task, completed=finished, total=total)

        yield update


def _lines(name: str) -> Callable[[int, int], None]:
    start = last = time.monotonic()
    first: int | None = None

    def update(finished: int, total: int) -> None:
        nonlocal last, first
        first = finished if first is None else first
        now = time.monotonic()
        if now - last < _QUIET_SECONDS or finished >= total:
            return
        last = now
        done = finished - first
        # The first points carry the start of the workers: an estimate from them would be far off.
        told = done >= max(5, total // 100)
        left = f", about {(now - start) / done * (total - finished):.0f} s left" if told else ""
        note(f"{name}: {finished} of {total} points{left}")

    return update


@contextlib.contextmanager
def ticking(name: str) -> Iterator[Callable[[str], None]]:
    """Every ten seconds a line on stderr that says what goes on; nothing from work that is over sooner."""
    start, over, doing = time.monotonic(), threading.Event(), ["preparing"]

    def tick() -> None:
        while not over.wait(_QUIET_SECONDS):
            note(f"{name}: {doing[0]}, {time.monotonic() - start:.0f} s")

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield lambda text: doing.__setitem__(0, text)
    finally:
        over.set()
        thread.join()
