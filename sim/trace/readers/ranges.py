"""Named ranges of a program (NVTX), and which of them are iterations; steps by any marker."""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from sim.errors import InputError
from sim.trace.model import RankTrace, Step

#: (text, start, end) of a range, nanoseconds.
Range = tuple[str, int, int]

_WORD = r"(?:profiler|training|train|global|opt(?:imi[sz]er)?|mini|micro)?[ _-]?(?:step|iteration|iter|batch)"
_ITERATION = re.compile(rf"\s*(?P<stem>{_WORD})\s*[ _#:=.\[(-]*\s*(?P<number>\d+)?[\])]?\s*", re.IGNORECASE)
#: Of parts of an iteration that look like iterations themselves.
_PART = re.compile(r"micro|optimi|opt[ _-]", re.IGNORECASE)


def iterations(ranges: Iterable[Range], marker: str, origin: int) -> tuple[Step, ...]:
    """The ranges that are iterations, in order of time.

    Parameters
    ----------
    ranges : iterable of (str, int, int)
        Text, start and end in nanoseconds.
    marker : str
        How the texts of iterations begin; if empty, iterations are the ranges that cover most time of those
        called ``step``, ``iteration``, ``iter``, ``batch``, ``train_step`` ..., alone or with a number.
    origin : int
        Nanoseconds of the rank's time 0.
    """
    found: dict[str, dict[Range, None]] = defaultdict(dict)
    for text, start, end in ranges:
        match = _ITERATION.fullmatch(text)
        if marker and text.startswith(marker):
            found[marker][(text, start, end)] = None
        elif not marker and match and not _PART.match(match["stem"]):
            found[match["stem"].lower()][(text, start, end)] = None
    if not found:
        return ()
    chosen = max(found.values(), key=lambda same: sum(end - start for _, start, end in same))
    ordered: list[Range] = []
    for one in sorted(chosen, key=lambda one: (one[1], -one[2])):
        # Nested, or of another thread: the same iteration again.
        if not ordered or one[1] >= ordered[-1][2]:
            ordered.append(one)
    distinct = len({text for text, *_ in ordered}) == len(ordered)
    return tuple(
        Step(
            text.strip() if distinct else f"{text.strip()} #{place}",
            (start - origin) * 1e-9,
            (end - origin) * 1e-9,
        )
        for place, (text, start, end) in enumerate(ordered)
    )


def apply_marker(ranks: Iterable[RankTrace], marker: str) -> None:
    """Where no step of a rank is called by the marker, the spans that are become its steps.

    Raises
    ------
    InputError
        If no step and no span of any rank is.
    """
    found, names = False, set()
    for rank in ranks:
        if any(step.name.startswith(marker) for step in rank.steps):
            found = True
            continue
        spans = rank.timeline
        rows = np.flatnonzero(np.isin(spans.integer("name"), _starting(spans.names, marker)))
        names |= {*spans.names, *(rank.host.names if rank.host is not None else ())}
        if len(rows):
            texts = (spans.names[name] for name in spans.integer("name")[rows].tolist())
            times = (np.rint(spans[column][rows] * 1e9).astype(int).tolist() for column in ("start", "end"))
            rank.steps = iterations(zip(texts, *times, strict=True), marker, 0)
            rank.issues.counts.pop("no_steps", None)
            found = True
    if not found:
        close = difflib.get_close_matches(marker, sorted(names)[:5000], 3, 0.3)
        some = ", ".join(name[:40] for name in sorted(names)[:3])
        hint = f"There are {some} ..." if names else "The files hold no ranges with names and times."
        hint = f"Near: {', '.join(close)}." if close else hint
        raise InputError("--step-marker", "be how the names of some ranges begin", marker, hint=hint)


def _starting(names: tuple[str, ...], marker: str) -> list[int]:
    return [number for number, name in enumerate(names) if name.startswith(marker)]
