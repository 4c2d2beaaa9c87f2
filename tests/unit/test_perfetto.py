from __future__ import annotations

import gzip
import itertools
import json

import numpy as np
import pytest

from sim.errors import InputError
from sim.timeline import Timeline
from sim.trace.perfetto import events, lanes, nanoseconds, write_trace


def timeline() -> Timeline:
    return Timeline.build(
        names=("forward", "all_reduce"),
        devices=("rank0", "rank1"),
        streams=("compute", "comm", "pool"),
        causes=("forward", "gradient_comm"),
        name=[0, 1, 1, 0, 0],
        device=[0, 0, 1, 1, 1],
        stream=[0, 1, 1, 2, 2],
        start=[0.0, 1e-3, 1e-3, 0.0, 0.5e-3],
        end=[1e-3, 3e-3, 3e-3, 1e-3, 2e-3],
        posted=[0.0, 1e-3, 0.5e-3, 0.0, 0.5e-3],
        bytes=[0, 100, 100, 0, 0],
        kind=[0, 1, 1, 0, 0],
        cause=[0, 1, 1, 0, 0],
    )


COUNTERS = [("nic0", np.array([1e-3, 3e-3]), np.array([5e9, 0.0]))]


def test_structure_of_the_trace(tmp_path):
    path = write_trace(tmp_path / "run.json.gz", timeline(), COUNTERS)
    data = json.loads(gzip.decompress(path.read_bytes()))
    listed = data["traceEvents"]
    assert {event["ph"] for event in listed} == {"M", "X", "C"}
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in listed if e["name"] == "thread_name"}
    processes = {e["pid"]: e["args"]["name"] for e in listed if e["name"] == "process_name"}
    assert processes == {1: "rank0", 2: "rank1", 0: "links"}
    spans = [event for event in listed if event["ph"] == "X"]
    assert len(spans) == 5
    for span in spans:
        assert span["dur"] >= 0
        assert (span["pid"], span["tid"]) in names
    reduce = next(s for s in spans if s["name"] == "all_reduce" and s["pid"] == 2)
    assert (reduce["ts"], reduce["dur"]) == (1000.0, 2000.0)
    assert reduce["args"]["waited_us"] == 500.0
    assert reduce["cat"] == "gradient_comm"
    loads = [(e["ts"], e["args"]["GB/s"]) for e in listed if e["ph"] == "C"]
    assert loads == [(1000.0, 5.0), (3000.0, 0.0)]


def test_spans_of_one_track_never_overlap():
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events(timeline()):
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append(
                (event["ts"], event["ts"] + event["dur"])
            )
    for spans in tracks.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    assert len(tracks) == 5  # the pool of two overlapping tasks needs two tracks


def test_equal_timelines_give_equal_bytes(tmp_path):
    first = write_trace(tmp_path / "a.json.gz", timeline(), COUNTERS).read_bytes()
    second = write_trace(tmp_path / "b.json.gz", timeline(), COUNTERS).read_bytes()
    assert first == second


def test_lanes_reuse_the_first_free_one():
    start, end = np.array([0, 1, 2, 5]), np.array([4, 2, 6, 7])
    assert lanes(start, end).tolist() == [0, 1, 1, 0]


def test_times_beyond_two_to_the_31_nanoseconds():
    assert nanoseconds(np.array([3.0, 6.0])).tolist() == [3_000_000_000, 6_000_000_000]


def test_bad_name_and_bad_folder(tmp_path):
    with pytest.raises(InputError, match=r"end in \.json"):
        write_trace(tmp_path / "run.csv", timeline())
    with pytest.raises(InputError, match="can be written"):
        write_trace(tmp_path / "missing" / "run.json", timeline())
