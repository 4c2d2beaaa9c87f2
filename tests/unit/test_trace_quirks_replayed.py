"""More quirks of real trace files: what replays must not be led astray by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.cli.main import main
from sim.trace.info import trace_info
from sim.trace.read import read
from sim.trace.replay import replay
from sim.trace.to_graph import operations_of
from tests.trace_samples import BASE_TS, kernel, kineto, launch, operator, step, write
from tests.unit.test_trace_quirks import ranks_of, warned


def test_2_kernels_that_overlap_on_one_stream_replay_as_measured(tmp_path: Path) -> None:
    """Programmatic dependent launches: each begins 3.7 us before the one before it ends; one lies inside."""
    events = []
    for i in range(4):
        events += [launch(BASE_TS + 5 * i, correlation=i + 1)]
        events += [kernel(f"k{i}", BASE_TS + 30 + 20 * i, 23.7, correlation=i + 1)]
    events += [launch(BASE_TS + 25, correlation=9), kernel("inside", BASE_TS + 35, 2, correlation=9)]
    path = write(tmp_path, kineto(events, world=1))
    assert warned(ranks_of(path)[0])["overlap_on_stream"] == 4
    result, _ = replay(operations_of(read([path], host=True)))
    assert result.worst_error == pytest.approx(0.0, abs=1e-9)
    assert sum(row["measured_s"] for row in result.kinds) == pytest.approx(96.8e-6)


def test_3_other_annotations_may_mark_the_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    t = BASE_TS
    events: list[Any] = []
    for i in range(3):
        mark = operator(f"iteration {i}", t + 100 * i, 90, cat="user_annotation")
        events += [mark, launch(t + 100 * i + 5, correlation=i + 1)]
        events += [kernel("gemm", t + 100 * i + 20, 50, correlation=i + 1)]
    place = str(write(tmp_path, kineto(events, world=1)))
    assert main(["trace", "info", place, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"][0]["steps"] == []
    assert main(["trace", "info", place, "--step-marker", "iteration", "--json"]) == 0
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    assert [s["name"] for s in rank["steps"]] == ["iteration 0", "iteration 1", "iteration 2"]
    assert main(["trace", "replay", place, "--step-marker", "iteration", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured_step_s"] == pytest.approx(90e-6)


def test_2_negative_durations_of_a_timeline_of_a_job(tmp_path: Path) -> None:
    names = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": s, "args": {"name": f"PP rank {s}, TP rank 0"}}
        for s in range(2)
    ]
    events = [
        {"ph": "X", "cat": f"{word}-compute", "name": word, "pid": 0, "tid": stage, "ts": 100 * stage + at,
         "dur": length, "args": {"step": number, "mb_id": 0}}
        for number, begin in ((825, 0), (831, 1000))
        for stage in range(2)
        for word, at, length in (("forward", begin, 80), ("backward", begin + 300, -27 if begin == 0 else 90))
    ]  # fmt: skip
    path = write(tmp_path, [*names, *events], "timeline.json")
    document = trace_info(read([path]))
    assert [s["name"] for s in document["steps"]] == ["step 825", "step 831"]
    assert sum(w["count"] for w in document["ranks"][0]["warnings"] if w["name"] == "negative_duration") == 2
    result, _ = replay(operations_of(read([path])))
    assert result.worst_error < 1e-6


def test_4_some_ranks_of_many_join_what_they_share(tmp_path: Path) -> None:
    """Ranks 0 and 60 of 64 share a group of 2; each is in a group of 8 with ranks that are absent."""
    paths = []
    for rank in (0, 60):
        events: list[Any] = [step(1, BASE_TS, 400)]
        for i, (group, members) in enumerate((("1", [0, 60]), (f"tp{rank}", list(range(rank, rank + 4))))):
            named = {
                "Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8, "dtype": "Float",
                "Group size": len(members), "Process Group Name": group, "Process Group Ranks": str(members),
            }  # fmt: skip
            events.append(launch(BASE_TS + 5 + 100 * i, correlation=i + 1))
            events.append(
                kernel("ncclDevKernel_AllReduce", BASE_TS + 20 + 100 * i, 50, correlation=i + 1, **named)
            )
        paths.append(write(tmp_path, kineto(events, rank=rank, world=64), f"rank{rank}.json"))
    ops = operations_of(read(paths, host=True))
    result, _ = replay(ops)
    assert (ops.ranks, result.joined_collectives) == ((0, 60), 1)
    assert ops.issues.counts["collective_of_absent_ranks"] == 2
    assert result.worst_error < 1e-6


def test_1_counters_arguments_and_processes_of_other_accelerators(tmp_path: Path) -> None:
    events: list[Any] = []
    for pid in range(4):
        events += [
            {
                "ph": "B",
                "name": "AllReduce_all_reduce Cmpt",
                "pid": pid,
                "tid": 0,
                "ts": 100.5,
                "attr": {"bytes": "5"},
            },
            {"ph": "E", "name": "AllReduce_all_reduce Cmpt", "pid": pid, "tid": 0, "ts": 150.5},
            {"ph": "C", "name": "Power", "pid": pid, "ts": 5, "args": {"Watts": "35.5"}},
        ]
    path = write(tmp_path, events, "aiu.json")
    (rank,) = ranks_of(path)
    assert (rank["num_streams"], rank["num_comm"], rank["comm_sum_s"]) == (4, 4, pytest.approx(200e-6))
    assert replay(operations_of(read([path], host=True)))[0].worst_error < 1e-9


def test_2_integers_past_64_bits_as_threads_and_arguments(tmp_path: Path) -> None:
    large = {"tid": 15514734831341844875, "args": {"x": 13072646111613355758, "y": 2**63 - 1, "Seq": 2**70}}
    events = [operator("op", BASE_TS, 9) | large, kernel("gemm", BASE_TS + 3, 5, correlation=2**64 - 1)]
    (rank,) = ranks_of(write(tmp_path, kineto(events)))
    assert rank["num_compute"] == 1
