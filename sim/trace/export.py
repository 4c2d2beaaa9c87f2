"""Write a trace for others: Perfetto or Chrome, Chakra execution traces, GOAL."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from sim.errors import InputError
from sim.timeline import COLUMNS, Timeline
from sim.trace.host_operations import has_host_spans, with_host_spans
from sim.trace.model import KINDS, RankTrace, Trace
from sim.trace.operations import DELAY
from sim.trace.perfetto import Flows, StepMark, write_trace
from sim.trace.to_graph import operations_of
from sim.trace.writers import chakra, goal

FORMATS = ("perfetto", "chakra", "goal")


def export(trace: Trace, target: Path, form: str = "") -> list[Path]:
    """Write a trace.

    Parameters
    ----------
    trace : Trace
        For ``chakra`` and ``goal`` read with ``host=True``.
    target : Path
        A file; for ``chakra`` the prefix ``FOLDER/NAME`` of ``NAME.RANK.et``.
    form : str
        One of :data:`FORMATS`; by default what the name says: ``.json`` and ``.json.gz`` Perfetto, ``.goal``
        GOAL, ``.et`` or no suffix Chakra.

    Returns
    -------
    list of Path
        The files written.
    """
    if target.is_dir() or target.name.startswith("."):
        raise InputError("-o", "be a file or the beginning of file names, no folder", str(target))
    form = form or _form_of(target.name)
    if form not in FORMATS:
        raise InputError("--format", f"be one of {', '.join(FORMATS)}", form)
    if not target.parent.is_dir():
        raise InputError("-o", "lie in an existing folder", str(target.parent))
    try:
        if form == "perfetto":
            combined, steps = combined_timeline(trace)
            return [write_trace(target, combined, steps=steps, flows=_flows(trace, combined))]
        operations = operations_of(trace)
        if form == "goal":
            return [goal.write_operations(target, operations)]
        return chakra.write_operations(target.parent, target.name.removesuffix(".et"), operations)
    except OSError as error:
        raise InputError("-o", "be a place that can be written", f"{target} ({error.strerror})") from None


def _flows(trace: Trace, combined: Timeline) -> Flows | None:
    """Which spans waited for which spans of other streams; None where the trace does not say."""
    try:
        operations = operations_of(trace)
    except InputError:
        return None
    device, task = combined.integer("device"), combined.integer("task")
    known = {place: row for row, place in enumerate(zip(device.tolist(), task.tolist(), strict=True))}
    span = {
        o: known[place]
        for o, place in enumerate(zip(operations.rank, operations.row, strict=False))
        if place in known
    }
    if not span:
        return None
    through: dict[int, int] = {}  # of a delay: the span before it
    for after, before in operations.edges:
        if operations.category[after] == DELAY and before in span:
            through[after] = before
    pairs: dict[tuple[int, int], None] = {}
    for after, before in operations.edges:
        before = through.get(before, before)
        if after in span and before in span and operations.stream[after] != operations.stream[before]:
            pairs[(span[after], span[before])] = None
    rows = np.array(list(pairs), np.int64).reshape(-1, 2)
    return rows[:, 0], rows[:, 1]


def _form_of(name: str) -> str:
    if name.endswith((".json", ".json.gz")):
        return "perfetto"
    if name.endswith(".goal"):
        return "goal"
    if name.endswith(".et") or "." not in name:
        return "chakra"
    raise InputError("-o", "end in .json, .json.gz, .goal or .et", name, hint="Or give --format.")


def combined_timeline(trace: Trace) -> tuple[Timeline, list[StepMark]]:
    """All ranks' device spans as one timeline, and their steps.

    One device per rank; absolute clocks are aligned to the first.
    """
    ranks = [with_host_spans(rank) if has_host_spans(rank) else rank for rank in trace.ranks]
    ranks = [rank for rank in ranks if len(rank.timeline)]
    if not ranks:
        raise InputError("trace", "hold device operations with times", "none")
    base = min(rank.clock_origin_ns for rank in ranks)
    names: dict[str, int] = {}
    streams: dict[str, int] = {}
    parts: dict[str, list[np.ndarray]] = {column: [] for column in COLUMNS}
    marks: list[StepMark] = []
    for device, rank in enumerate(ranks):
        spans = rank.timeline
        shift = (rank.clock_origin_ns - base) * 1e-9
        marks += _step_marks(rank, device, shift)
        name_of = np.array([names.setdefault(n, len(names)) for n in spans.names] or [0], np.int64)
        stream_of = np.array([streams.setdefault(s, len(streams)) for s in spans.streams] or [-1], np.int64)
        stream = spans.integer("stream")
        for column in COLUMNS:
            parts[column].append(spans.columns[column])
        for column in ("ready", "posted", "start", "end"):
            parts[column][-1] = spans[column] + shift
        parts["device"][-1] = np.full(len(spans), device, np.int64)
        parts["name"][-1] = name_of[spans.integer("name")]
        parts["stream"][-1] = np.where(stream >= 0, stream_of[stream], -1)
        parts["cause"][-1] = spans.integer("kind")
        parts["task"][-1] = np.arange(len(spans))
    devices = tuple(f"rank {rank.rank}" if rank.rank is not None else rank.label for rank in ranks)
    columns = {column: np.concatenate(values) for column, values in parts.items()}
    first = min(*(float(columns[column].min()) for column in ("posted", "start")), *(m[2] for m in marks))
    for column in ("ready", "posted", "start", "end"):  # viewers do not show what lies before 0
        columns[column] = columns[column] - first
    extent = (float(columns["start"].min()), float(columns["end"].max()))
    combined = Timeline(columns, tuple(names), devices, tuple(streams), KINDS, window=extent).sorted()
    return combined, [(device, name, start - first, end - first) for device, name, start, end in marks]


def _step_marks(rank: RankTrace, device: int, shift: float) -> list[StepMark]:
    """The measured steps of a rank, under the name that PyTorch's profiler gives them."""
    return [
        (
            device,
            step.name if step.name.startswith("ProfilerStep") else f"ProfilerStep#{place}",
            step.start + shift,
            step.end + shift,
        )
        for place, step in enumerate(rank.steps)
        if math.isfinite(step.start) and math.isfinite(step.end)
    ]
