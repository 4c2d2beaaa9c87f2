"""Nsight Systems: steps from NVTX ranges, launches from the runtime, SQLite and CSV; steps by any marker."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from sim.cli.main import main
from sim.errors import InputError
from sim.trace.readers.ranges import iterations
from sim.trace.to_graph import operations_of
from tests.trace_samples import write

from sim.trace.read import read  # isort: skip

PROCESS = 1 << 24
MS = 1_000_000


def database(folder: Path, *, old: bool = False) -> Path:
    """Two steps of 10 ms: a launch, a kernel, a synchronisation; and a second process."""
    path = folder / "report.sqlite"
    with sqlite3.connect(path) as db:
        texts = ["iteration 1", "iteration 2", "gemm", "cudaLaunchKernel", "cudaDeviceSynchronize", "forward"]
        db.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", list(enumerate(texts)))
        more = "" if old else ", eventType INT"
        db.execute(
            f"CREATE TABLE NVTX_EVENTS (start INT, end INT, text TEXT, textId INT, globalTid INT{more})"
        )
        ranges = [
            (0, 10 * MS, None, 0, PROCESS | 1, 59),
            (MS, 9 * MS, "forward", None, PROCESS | 1, 59),
            (10 * MS, 20 * MS, None, 1, PROCESS | 1, 60),
            (20 * MS, None, "iteration 3", None, PROCESS | 1, 60),
            (5 * MS, 5 * MS, "iteration 9", None, PROCESS | 1, 34),  # a mark
            (0, 30 * MS, "iteration 1", None, 2 * PROCESS | 7, 59),
        ]
        width = 5 if old else 6
        kept = [row[:width] for row in ranges if not (old and row[5] == 34)]
        db.executemany(f"INSERT INTO NVTX_EVENTS VALUES ({', '.join('?' * width)})", kept)
        db.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME "
            "(start INT, end INT, globalTid INT, correlationId INT, nameId INT)"
        )
        calls = [
            (2 * MS, 2 * MS + 1000, PROCESS | 1, 1, 3),
            (3 * MS, 9 * MS, PROCESS | 1, 2, 4),
            (12 * MS, 12 * MS + 1000, PROCESS | 1, 3, 3),
            (13 * MS, 19 * MS, PROCESS | 1, 4, 4),
            (MS, MS + 1000, 2 * PROCESS | 7, 5, 3),
        ]
        db.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)", calls)
        db.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL "
            "(start INT, end INT, streamId INT, demangledName INT, deviceId INT, correlationId INT)"
        )
        kernels = [
            (3 * MS, 8 * MS, 7, 2, 0, 1),
            (13 * MS, 18 * MS, 7, 2, 0, 3),
            (2 * MS, 25 * MS, 7, 2, 1, 5),
        ]
        db.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?)", kernels)
    db.close()
    return path


@pytest.mark.parametrize("old", [False, True])
def test_steps_and_launches_of_a_database(old: bool, tmp_path: Path) -> None:
    first, second = read([database(tmp_path, old=old)], host=True).ranks
    assert [step.name for step in first.steps] == ["iteration 1", "iteration 2"]
    assert [step.duration for step in first.steps] == pytest.approx([10e-3, 10e-3])
    assert [step.duration for step in second.steps] == pytest.approx([30e-3])
    assert first.timeline["start"] - first.timeline["posted"] == pytest.approx([1e-3, 1e-3])
    assert first.host is not None
    assert len(first.host.start) == 4
    assert first.issues.counts["unclosed_begin"] == 1
    assert first.issues.counts["no_steps"] == 0


def test_replay_waits_for_launches_and_the_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ops = operations_of(read([database(tmp_path)], host=True))
    marked = [mark for mark in ops.marks if mark[1] == 0]
    assert [mark[4] for mark in marked] == pytest.approx([10e-3, 10e-3])
    assert main(["trace", "replay", str(tmp_path / "report.sqlite"), "--what-if", "gemm=2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["error"] == pytest.approx(0.0, abs=1e-9)
    # The host waits for both kernels of 5 ms of the first process, and for none of the second's.
    assert found["ranks"][0]["replayed_s"] == pytest.approx(10e-3)
    assert found["what_if"]["speedup"] < 1


GPU = "Start (ns),Duration (ns),CorrId,Device,Strm,Name\n"
RANGES = "Start (ns),End (ns),Duration (ns),Name,PID,TID,Lvl,NumChild,RangeId,ParentId,RngStack\n"
CALLS = "Start (ns),Duration (ns),Name,Result,CorrID,Pid,Tid,T-Pri,Thread Name\n"


def reports(folder: Path, *, calls: bool = True) -> list[Path]:
    gpu = GPU + "3000000,5000000,1,Test GPU (0),7,gemm\n13000000,5000000,3,Test GPU (0),7,gemm\n"
    ranges = RANGES + "0,10000000,10000000,:train_step 4,1,1,0,1,1,,\n"
    ranges += "10000000,20000000,10000000,:train_step 5,1,1,0,0,3,,\n"
    ranges += "1000000,9000000,8000000,:forward,1,1,1,0,2,1,\n"
    runtime = CALLS + "2000000,1000,cudaLaunchKernel,0,1,1,1,1,main\n"
    runtime += "12000000,1000,cudaLaunchKernel,0,3,1,1,1,main\n"
    files = {"r_cuda_gpu_trace.csv": gpu, "r_nvtx_pushpop_trace.csv": ranges}
    files |= {"r_cuda_api_trace.csv": runtime} if calls else {}
    return [write(folder, text, name) for name, text in files.items()]


@pytest.mark.parametrize("calls", [True, False])
def test_csv_reports_of_one_recording_are_joined(calls: bool, tmp_path: Path) -> None:
    files = reports(tmp_path, calls=calls)
    for order in (files, files[::-1]):
        (rank,) = read(order, host=True).ranks
        assert [step.name for step in rank.steps] == ["train_step 4", "train_step 5"]
        assert (rank.timeline["posted"] < rank.timeline["start"]).all() == calls
        # The first kernel's start is time 0 of the rank.
        assert rank.steps[0].start == pytest.approx(-3e-3)


def test_host_report_alone_says_what_it_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = str(reports(tmp_path)[1])
    assert main(["trace", "info", alone]) == 0
    assert main(["trace", "replay", alone]) == 2
    assert "nsys-host-csv" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["step_0", "step_1", "forward"], ["step_0", "step_1"]),
        (["Iteration #3", "Iteration #4"], ["Iteration #3", "Iteration #4"]),
        (["train_step", "train_step"], ["train_step #0", "train_step #1"]),
        (["global step: 7"], ["global step: 7"]),
        (["ProfilerStep#5"], ["ProfilerStep#5"]),
        (["micro_batch 1", "optimizer step"], []),
        (["stepwise", "iterate"], []),
    ],
)
def test_names_of_iterations(names: list[str], found: list[str]) -> None:
    ranges = [(name, 10 * i, 10 * i + 9) for i, name in enumerate(names)]
    assert [step.name for step in iterations(ranges, "", 0)] == found


def test_nested_and_repeated_ranges_count_once() -> None:
    ranges = [("step 1", 0, 10), ("step 1", 1, 9), ("step 2", 10, 20), ("batch 1", 2, 3)]
    assert [step.name for step in iterations(ranges, "", 0)] == ["step 1", "step 2"]


def test_marker_of_spans_and_near_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (rank,) = read(reports(tmp_path)[:1], marker="ge").ranks
    assert [step.duration for step in rank.steps] == pytest.approx([5e-3, 5e-3])
    assert main(["trace", "info", str(reports(tmp_path)[0]), "--step-marker", "gemn"]) == 2
    assert "Near: gemm" in capsys.readouterr().err
    assert main(["trace", "info", str(reports(tmp_path)[0]), "--step-marker", "zzz"]) == 2
    assert "There are gemm" in capsys.readouterr().err


def test_marker_is_refused_where_nothing_has_a_name(tmp_path: Path) -> None:
    schedule = write(tmp_path, "num_ranks 1\nrank 0 {\nl1: calc 10\n}\n", "s.goal")
    with pytest.raises(InputError, match="step-marker"):
        read([schedule], marker="iteration")
