"""Writer of Chrome / Perfetto JSON traces: device, stream and link tracks. Opens at ui.perfetto.dev."""

from __future__ import annotations

import gzip
import heapq
import io
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.errors import InputError
from sim.files import write_whole
from sim.timeline import Timeline

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: Name of a counter track, times (s) at which its value changes, values from then on.
CounterTrack = tuple[str, FloatArray, FloatArray]
#: Device (number in the timeline), name, start and end (s) of a training step.
StepMark = tuple[int, str, float, float]
#: Category of step marks.
STEP = "step"
#: Category of the flows that show what a span waited for.
DEPENDENCY = "dependency"
#: Rows of the timeline: spans, and the spans that they waited for.
Flows = tuple[IntArray, IntArray]

_COUNTER_PID = 0
_STEP_TID = 0  # below all streams
_DEFAULT_TRACK = "tasks"


def nanoseconds(seconds: FloatArray) -> IntArray:
    """Times in whole nanoseconds, Perfetto's resolution.

    Starts and ends are rounded by the same rule, so spans that follow each other never overlap.
    """
    return np.rint(seconds * 1e9).astype(np.int64)


def lanes(start: IntArray, end: IntArray) -> IntArray:
    """Lane of each span such that spans in a lane do not overlap; the first free one, by start."""
    result = np.zeros(len(start), np.int64)
    order = np.lexsort((end, start))
    ordered_start, ordered_end = start[order], end[order]
    if not (ordered_start[1:] < ordered_end[:-1]).any():
        return result
    free: list[int] = []
    running: list[tuple[int, int]] = []
    opened = 0
    for position in order.tolist():
        while running and running[0][0] <= start[position]:
            heapq.heappush(free, heapq.heappop(running)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, opened = opened, opened + 1
        result[position] = lane
        heapq.heappush(running, (int(end[position]), lane))
    return result


def events(
    timeline: Timeline,
    counters: Iterable[CounterTrack] = (),
    steps: Iterable[StepMark] = (),
    flows: Flows | None = None,
) -> Iterator[dict[str, Any]]:
    """Trace events: metadata (M) names the tracks, complete events (X) are spans, C events link loads, pairs
    of s and f events (flows) what waited for what.

    One process per device and one thread per stream (several where spans of a wide stream overlap), and one
    for its steps; counters are one process of their own. Times in microseconds.
    """
    tracks = _tracks(timeline)
    yield from _track_names(timeline, tracks)
    yield from _steps(list(steps))
    target, source = flows if flows is not None else (np.zeros(0, np.int64), np.zeros(0, np.int64))
    yield from _spans(timeline, tracks, np.union1d(target, source))
    yield from _flows(timeline, tracks, target, source)
    yield from _counters(list(counters))


def _tracks(timeline: Timeline) -> IntArray:
    """Thread id of each row, within its device."""
    device, stream = timeline.integer("device"), timeline.integer("stream")
    start, end = nanoseconds(timeline["start"]), nanoseconds(timeline["end"])
    lane = np.zeros(len(timeline), np.int64)
    key = device * (len(timeline.streams) + 1) + stream + 1
    order = np.argsort(key, kind="stable")
    edges = np.flatnonzero(np.concatenate([[True], key[order][1:] != key[order][:-1], [True]]))
    for first, last in itertools.pairwise(edges.tolist() if len(key) else []):
        rows = order[first:last]
        lane[rows] = lanes(start[rows], end[rows])
    most = int(lane.max()) + 1 if len(lane) else 1
    return (stream + 1) * most + lane + 1


def _track_names(timeline: Timeline, tracks: IntArray) -> Iterator[dict[str, Any]]:
    device, stream = timeline.integer("device"), timeline.integer("stream")
    for number, name in enumerate(timeline.devices):
        yield _meta("process_name", number + 1, 0, name=name)
        yield _meta("process_sort_index", number + 1, 0, sort_index=number)
    seen: set[tuple[int, int]] = set()
    lanes_of: dict[tuple[int, int], int] = {}
    order = np.lexsort((tracks, device))
    for row in order[_first_of(device[order], tracks[order])].tolist():
        pid, tid, number = int(device[row]) + 1, int(tracks[row]), int(stream[row])
        if (pid, tid) in seen:
            continue
        seen.add((pid, tid))
        lane = lanes_of.get((pid, number), 0)
        lanes_of[(pid, number)] = lane + 1
        base = timeline.streams[number] if number >= 0 else _DEFAULT_TRACK
        yield _meta("thread_name", pid, tid, name=base if lane == 0 else f"{base} #{lane + 1}")
        yield _meta("thread_sort_index", pid, tid, sort_index=tid)


def _first_of(device: IntArray, track: IntArray) -> npt.NDArray[np.bool_]:
    """First row of each (device, track) in sorted order."""
    if not len(device):
        return np.zeros(0, bool)
    return np.concatenate([[True], (device[1:] != device[:-1]) | (track[1:] != track[:-1])])


def _meta(kind: str, pid: int, tid: int, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": arguments}


def _flows(
    timeline: Timeline, tracks: IntArray, target: IntArray, source: IntArray
) -> Iterator[dict[str, Any]]:
    """An arrow from the end of each source to the start of its target."""
    start, end = nanoseconds(timeline["start"]), nanoseconds(timeline["end"])
    device = timeline.integer("device")
    for number, (after, before) in enumerate(zip(target.tolist(), source.tolist(), strict=True)):
        # Viewers bind a flow to the span around it, which its very end is not.
        leaves = max(int(end[before]) - 1, int(start[before]))
        for phase, row, when in (("s", before, leaves), ("f", after, int(start[after]))):
            event = {"ph": phase, "id": number, "name": DEPENDENCY, "cat": DEPENDENCY}
            event |= {"pid": int(device[row]) + 1, "tid": int(tracks[row]), "ts": when / 1000}
            yield event if phase == "s" else {**event, "bp": "e", "args": {"from": before, "to": after}}


def _spans(timeline: Timeline, tracks: IntArray, numbered: IntArray) -> Iterator[dict[str, Any]]:
    start, end = nanoseconds(timeline["start"]), nanoseconds(timeline["end"])
    order = np.lexsort((tracks, timeline.integer("device"), start)).tolist()
    names, cause = timeline.integer("name").tolist(), timeline.integer("cause").tolist()
    device, thread = timeline.integer("device").tolist(), tracks.tolist()
    begin, duration = start.tolist(), (end - start).tolist()
    posted = nanoseconds(timeline["posted"]).tolist()
    moved, step = timeline["bytes"].tolist(), timeline.integer("step").tolist()
    batch, iteration = timeline.integer("micro_batch").tolist(), timeline.integer("iteration").tolist()
    many, dropped = timeline.integer("multiplicity").tolist(), timeline.integer("dropped").tolist()
    linked = set(numbered.tolist())
    for row in order:
        arguments: dict[str, Any] = {"iteration": iteration[row], "step": step[row], "ranks": many[row]}
        if batch[row] >= 0:
            arguments["micro_batch"] = batch[row]
        if moved[row] > 0:
            arguments["bytes"] = moved[row]
        if posted[row] < begin[row]:
            arguments["waited_us"] = (begin[row] - posted[row]) / 1000
        if dropped[row]:
            arguments["dropped"] = True
        if row in linked:
            arguments["span"] = row
        yield {
            "ph": "X",
            "name": timeline.names[names[row]],
            "cat": timeline.causes[cause[row]] if cause[row] >= 0 else "unknown",
            "pid": device[row] + 1,
            "tid": thread[row],
            "ts": begin[row] / 1000,
            "dur": duration[row] / 1000,
            "args": arguments,
        }


def _steps(steps: list[StepMark]) -> Iterator[dict[str, Any]]:
    for device in sorted({device for device, *_ in steps}):
        yield _meta("thread_name", device + 1, _STEP_TID, name="steps")
        yield _meta("thread_sort_index", device + 1, _STEP_TID, sort_index=_STEP_TID)
    for device, name, start, end in steps:
        begin, finish = nanoseconds(np.array([start, end])).tolist()
        yield {
            "ph": "X",
            "name": name,
            "cat": STEP,
            "pid": device + 1,
            "tid": _STEP_TID,
            "ts": begin / 1000,
            "dur": (finish - begin) / 1000,
        }


def _counters(counters: list[CounterTrack]) -> Iterator[dict[str, Any]]:
    if counters:
        yield _meta("process_name", _COUNTER_PID, 0, name="links")
        yield _meta("process_sort_index", _COUNTER_PID, 0, sort_index=1_000_000)
    for name, times, values in counters:
        for when, value in zip(nanoseconds(times).tolist(), values.tolist(), strict=True):
            yield {
                "ph": "C",
                "name": name,
                "pid": _COUNTER_PID,
                "tid": 0,
                "ts": when / 1000,
                "args": {"GB/s": value / 1e9},
            }


def write_trace(
    path: Path,
    timeline: Timeline,
    counters: Iterable[CounterTrack] = (),
    steps: Iterable[StepMark] = (),
    flows: Flows | None = None,
) -> Path:
    """Write a timeline as ``.json`` or ``.json.gz``; equal timelines give byte-identical files.

    Parameters
    ----------
    path : Path
        Target; its name decides on compression.
    timeline : Timeline
        Simulated or measured rows.
    counters : iterable of (str, ndarray, ndarray)
        Counter tracks: name, times (s), loads (bytes/s).
    steps : iterable of (int, str, float, float)
        Marks of the steps of devices: number of the device, name, start and end (s).
    flows : (ndarray, ndarray) of int, optional
        Rows of the timeline, and rows that they waited for; None where that is not known.
    """
    if not path.name.endswith((".json", ".json.gz")):
        raise InputError("trace", "end in .json or .json.gz", str(path), hint=f"Try {path.name}.json.gz.")
    text = io.StringIO()
    known = ',"dependencies":true' if flows is not None else ""
    text.write(f'{{"displayTimeUnit":"ms","otherData":{{"producer":"clusterloom"{known}}},"traceEvents":[\n')
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    text.write(",\n".join(encode(event) for event in events(timeline, counters, steps, flows)))
    text.write("\n]}\n")
    data = text.getvalue().encode()
    if path.name.endswith(".gz"):
        packed = io.BytesIO()
        with gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=6, mtime=0) as file:
            file.write(data)
        data = packed.getvalue()
    try:
        write_whole(path, data)
    except OSError as error:
        raise InputError(
            "trace", "be a file that can be written", str(path), hint=f"{error.strerror}."
        ) from None
    return path
