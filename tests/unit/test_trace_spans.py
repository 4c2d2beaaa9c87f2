"""Traces that hold spans alone, replayed: timelines of tensors, AICB logs, SimAI text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.cli.main import main
from sim.trace.operations import Operations
from sim.trace.read import read
from sim.trace.replay import replay
from sim.trace.span_operations import innermost
from sim.trace.to_graph import operations_of
from tests.trace_samples import write

#: Two tensors, one 20 us later: negotiation 10 us, then an all-reduce of 40 us with a copy of 5 us in it.
HOROVOD = "[" + ", ".join(
    json.dumps(event)
    for pid in (0, 1)
    for event in (
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"grad{pid}"}},
        *(
            {"ph": phase, "name": name, "pid": pid, "ts": 1000 + 20 * pid + at}
            for phase, name, at in (
                ("B", "NEGOTIATE_ALLREDUCE", 0),
                ("E", "NEGOTIATE_ALLREDUCE", 10),
                ("B", "ALLREDUCE", 15),
                ("B", "MEMCPY_IN_FUSION_BUFFER", 15),
                ("E", "MEMCPY_IN_FUSION_BUFFER", 20),
                ("B", "NCCL_ALLREDUCE", 20),
                ("E", "NCCL_ALLREDUCE", 55),
                ("E", "ALLREDUCE", 55),
            )
        ),
    )
)
AICB = """comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time
CommType.computation,None,None,None,forward,None,None,,2.0
CommType.all_reduce,CommGroup.tp_group,2,1024,forward,None,None,,3.0
"""
SIMAI = """HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 4 ep: 1 pp: 1 vpp: 1 ga: 1 all_gpus: 8
2
mlp_a -1 300000 ALLGATHER 65536 300000 REDUCESCATTER 65536 300000 NONE 0 100
mlp_b -1 100000 NONE 0 100000 NONE 0 100000 ALLREDUCE 8000000 100
"""


def job(folder: Path, text: str, name: str) -> Operations:
    return operations_of(read([write(folder, text, name)], host=True))


def test_innermost_spans_count() -> None:
    outer, inner, across = (0.0, 10.0), (2.0, 4.0), (8.0, 12.0)
    lanes = innermost(*zip(outer, inner, across, strict=True))
    assert lanes == [[(0.0, 2.0, 0), (2.0, 4.0, 1), (4.0, 10.0, 0)], [(8.0, 12.0, 2)]]
    assert innermost([1.0, 1.0], [1.0, 1.0]) == [[(1.0, 1.0, 0), (1.0, 1.0, 1)]]


def test_a_timeline_of_tensors_plays_as_it_happened(tmp_path: Path) -> None:
    ops = job(tmp_path, HOROVOD, "timeline.json")
    result, _ = replay(ops)
    assert result.measured_step_s == pytest.approx(75e-6)
    assert result.error == pytest.approx(0.0, abs=1e-9)
    moved = {row["type"]: row["measured_s"] for row in result.kinds}
    assert moved == {"all_reduce": pytest.approx(2 * 35e-6)}  # what is around it is not counted twice
    faster, _ = replay(ops, ["links=2"])
    assert faster.what_if is not None
    assert faster.what_if["step_s"] == pytest.approx((75 - 17.5) * 1e-6)
    assert ops.issues.counts["dependency_between_threads_unknown"] == 1


def test_a_measured_aicb_log_plays_in_order(tmp_path: Path) -> None:
    result, _ = replay(job(tmp_path, AICB, "log.csv"))
    assert result.replayed_step_s == pytest.approx(5e-3)
    assert {row["type"]: row["work_s"] for row in result.kinds} == pytest.approx(
        {"forward": 2e-3, "all_reduce": 3e-3}
    )


def test_an_aicb_workload_that_was_not_run_takes_no_time_and_says_so(tmp_path: Path) -> None:
    ops = job(tmp_path, AICB.replace(",2.0", ",").replace(",3.0", ","), "workload.csv")
    result, _ = replay(ops)
    assert [(row["type"], row["count"], row["work_s"]) for row in result.kinds] == [
        ("forward", 1, 0.0), ("all_reduce", 1, 0.0)]  # fmt: skip
    assert ops.issues.counts["no_times"] == 1
    assert result.to_json()["error"] is None
    both = [tmp_path / "workload.csv", write(tmp_path, AICB, "log.csv")]
    timed = operations_of(read(both, host=True))
    assert (timed.issues.counts["no_times"], sum(timed.work)) == (1, pytest.approx(5e-3))


def test_simai_text_plays_its_compute_and_a_cluster_adds_collectives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ops = job(tmp_path, SIMAI, "w.txt")
    result, _ = replay(ops)
    assert result.replayed_step_s == pytest.approx(1.2e-3)
    assert ops.issues.counts["collective_without_time"] == 3
    place = str(tmp_path / "w.txt")
    assert main(["trace", "replay", place, "--cluster", "dgx-a100", "--json"]) == 0
    played = json.loads(capsys.readouterr().out)["what_if"]["scenario"]
    assert played["base_num_devices"] == 8  # tp 4 as stated, two replicas of it on all_gpus: 8
    assert played["modelled_step_s"] > 1.2e-3
    assert played["step_ratio"] == 1.0


def test_import_names_what_a_timeline_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(write(tmp_path, HOROVOD, "timeline.json"))
    assert main(["trace", "import", place, "-o", str(tmp_path / "w.yaml")]) == 2
    assert "compute times of layers" in capsys.readouterr().err
    assert main(["trace", "import", place, "--graph", str(tmp_path / "w.npz")]) == 0
    assert main(["trace", "replay", str(tmp_path / "w.npz"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out.split("\n", 2)[-1])
    assert document["replayed_step_s"] == pytest.approx(75e-6)
