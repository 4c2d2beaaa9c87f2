"""What users bring beside complete GPU profiles: CPU jobs, kernels alone, execution traces, op tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sim import api
from sim.catalog import Catalog, default_catalog
from sim.cli.main import main
from sim.graph.execution import Cause
from sim.trace.read import read
from sim.trace.replay import replay
from sim.trace.to_graph import operations_of
from sim.trace.to_workload import import_workload, stated_workload
from tests.trace_samples import BASE_TS, kernel, kineto, operator, step, write


def cpu_rank(rank: int, *, slow: int = 0) -> dict[str, Any]:
    """Forward and backward on the host, two all-reduces of gloo on threads of their own, then the update.

    ``slow``: microseconds that the rank's backward takes longer.
    """
    t, late = BASE_TS, slow
    shapes = {"Input Dims": [[4, 8], [16, 8], [16]], "Input type": ["float"] * 3}
    engine = "autograd::engine::evaluate_function: AddmmBackward0"
    reduced = {"Input Dims": [[1000]], "Input type": ["float"]}
    end = t + 350 + late
    events = [
        step(1, t, 400 + late),
        operator("aten::linear", t + 10, 90, **shapes, **{"Sequence number": 1}),
        operator("aten::addmm", t + 20, 70, **shapes),
        operator(engine, t + 110, 100 + late, **{"Sequence number": 1}),
        operator("aten::mm", t + 120, 80 + late),
        operator(
            "gloo:all_reduce",
            t + 215 + late,
            end - t - 215 - late,
            cat="user_annotation",
            thread=21,
            **reduced,
        ),
        operator(
            "gloo:all_reduce",
            t + 220 + late,
            end - t - 230 - late,
            cat="user_annotation",
            thread=22,
            **reduced,
        ),
        operator("Optimizer.step#SGD.step", end + 5, 40, cat="user_annotation"),
        operator("aten::add_", end + 10, 30),
    ]
    return kineto(events, rank=rank)


def test_a_cpu_job_of_two_ranks_plays_as_it_happened(tmp_path: Path) -> None:
    paths = [write(tmp_path, cpu_rank(rank), f"rank{rank}.json") for rank in range(2)]
    ops = operations_of(read(paths, host=True))
    result, _ = replay(ops)
    assert [r["replayed_s"] for r in result.ranks] == pytest.approx([400e-6] * 2)
    assert result.joined_collectives == 2
    assert ops.issues.counts["host_operators_replayed"] == 12
    kinds = {row["type"]: row["work_s"] for row in result.kinds}
    assert kinds["aten::linear"] == pytest.approx(2 * 20e-6)  # of nested operators the innermost counts
    assert kinds["aten::addmm"] == pytest.approx(2 * 70e-6)
    causes = dict(zip(ops.name, ops.cause, strict=True))
    assert causes["aten::mm"] == Cause.BACKWARD
    assert causes["aten::add_"] == Cause.OPTIMIZER


def test_a_slow_cpu_rank_holds_up_the_other_and_a_faster_one_does_not(tmp_path: Path) -> None:
    paths = [write(tmp_path, cpu_rank(rank, slow=100 * rank), f"rank{rank}.json") for rank in range(2)]
    ops = operations_of(read(paths, host=True))
    result, _ = replay(ops, ["aten::mm=0.1"])
    assert result.what_if is not None
    assert result.what_if["step_s"] < result.replayed_step_s - 70e-6


def test_a_cpu_only_trace_is_a_workload_that_holds_on_any_device(tmp_path: Path) -> None:
    path = write(tmp_path, cpu_rank(0) | {"deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]})
    imported = import_workload(read([path], host=True), name="x")
    assert imported.device is None
    assert imported.issues.counts["host_times"] == 1
    for cluster in ("dgx-a100", "dgx-1"):
        step_s = api.run(imported.workload, api.cluster(cluster, 1), {"dp": 1}).step_time_s
        assert step_s == pytest.approx(400e-6, rel=1e-6)


def test_host_times_count_nothing_twice(tmp_path: Path) -> None:
    """Operators that hooks run between two of the engine's are no second forward pass."""
    document = cpu_rank(0)
    shapes = {"Input Dims": [[1000]], "Input type": ["float"]}
    document["traceEvents"] += [operator("aten::div_", BASE_TS + 212, 2, **shapes)]
    imported = import_workload(read([write(tmp_path, document)], host=True), name="x")
    assert imported.times is not None
    total = imported.times.forward_s.sum() + imported.times.backward_s.sum()
    assert total + imported.times.update_s + imported.times.rest_s == pytest.approx(400e-6)


def test_kernels_alone_become_layers(tmp_path: Path) -> None:
    kernels = [kernel(f"k{i}", BASE_TS + 100 * i, 60) for i in range(300)]
    path = write(tmp_path, kineto(kernels, world=1))
    imported = import_workload(read([path], host=True), name="x")
    assert len(imported.workload.layers) == 256
    assert {"kernels_as_layers", "batch_unknown", "gradients_unknown"} <= set(imported.issues.counts)
    result = api.run(imported.workload, api.cluster("dgx-a100", 1), {"dp": 1})
    assert result.step_time_s == pytest.approx(299 * 100e-6 + 60e-6, rel=1e-6)


def test_an_execution_trace_without_times_plays_on_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    linear = {"inputs": {"values": [], "shapes": [[32, 1024], [4096, 1024]], "types": ["Tensor(float)"] * 2}}
    nodes = [{"id": 1, "name": "[pytorch|profiler|execution_trace|process]", "ctrl_deps": 1}]
    nodes += [{"id": 2 + i, "name": "aten::linear", "ctrl_deps": 1, **linear} for i in range(3)]
    place = str(write(tmp_path, {"schema": "1.1.0-chakra.0.0.4", "nodes": nodes}, "et_0.json"))
    assert main(["trace", "replay", place, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["error"], document["kinds"][0]["count"]) == (None, 3)
    assert "no_times" in {warning["name"] for warning in document["warnings"]}
    assert main(["trace", "replay", place, "--cluster", "dgx-a100", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)["what_if"]
    assert known["step_s"] == known["scenario"]["modelled_step_s"] > 0


def test_an_op_table_becomes_a_layer_per_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id"]
    rows = [
        (dp, stage, 2 * stage + dp, 7, f"{word}-compute", float(mb), seconds * (stage + 1), mb, 0, mb)
        for dp in range(2)
        for stage in range(2)
        for mb in range(4)
        for word, seconds in (("forward", 0.1), ("backward", 0.2))
    ]
    path = tmp_path / "job.parquet"
    pd.DataFrame(rows, columns=names).to_parquet(path)
    stated = stated_workload(read([path]), "job")
    assert stated is not None
    workload, strategy, issues = stated
    assert [layer.measured.forward_s for layer in workload.layers if layer.measured] == pytest.approx(
        [0.1, 0.2]
    )
    assert strategy == {"pp": 2, "dp": 2, "micro_batch_size": 1}
    assert {"gradients_unknown", "shapes_unknown"} <= set(issues.counts)
    # 1F1B with 4 micro-batches: the slow stage's 4 x 0.6 s, and what the other does before and after it.
    cluster = api.cluster("dgx-a100", 1)
    assert api.run(workload, cluster, strategy).step_time_s == pytest.approx(2.4 + 0.3, rel=1e-3)
    target = tmp_path / "job.yaml"
    assert main(["trace", "import", str(path), "-o", str(target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["strategy"] == strategy
    assert Catalog().workload(str(target)).batch_per_device == 4


def test_the_shipped_trace_replays(capsys: pytest.CaptureFixture[str]) -> None:
    place = str(default_catalog().data_file("workloads/traces/transformer_cpu.json.gz"))
    assert main(["trace", "replay", place, "--what-if", "compute=0.5", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert abs(document["error"]) < 1e-9
    assert 1.7 < document["what_if"]["speedup"] < 2
    assert document["breakdown"]["step_time_s"] == pytest.approx(document["what_if"]["step_s"], rel=0.02)


def test_an_import_says_that_all_to_alls_are_not_taken_over(tmp_path: Path) -> None:
    moved = {"Collective name": "all_to_allv", "In msg nelems": 8, "Out msg nelems": 8, "dtype": "Float"}
    kernels = [kernel("gemm", BASE_TS, 60), kernel("ncclDevKernel_SendRecv", BASE_TS + 70, 9, **moved)]
    imported = import_workload(read([write(tmp_path, kineto(kernels))], host=True), name="x")
    assert imported.issues.counts["all_to_all_not_imported"] == 1


def test_import_says_which_steps_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = Path(__file__).parents[2] / "workloads" / "traces" / "transformer_cpu.json.gz"
    arguments = ["trace", "import", str(sample), "-o", str(tmp_path / "w.yaml")]
    assert main(arguments) == 0
    assert "(mean of 2 of 3 steps: the first, which warms up" in " ".join(capsys.readouterr().out.split())
    assert main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["measured_steps"], document["trace_steps"]) == (2, 3)
    used = [step.duration for step in read([sample]).ranks[0].steps[1:]]
    assert document["measured_step_s"] == pytest.approx(sum(used) / 2, rel=1e-6)
