from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.analysis.breakdown import PARTS
from sim.analysis.compare import compare
from sim.analysis.result import Result, load_result
from sim.analysis.simulate import fill_memory, fill_run
from sim.engine import play
from sim.errors import ClusterloomError, InputError
from sim.graph.builder import GraphBuilder
from sim.graph.execution import Cause, ExecutionGraph, TaskKind
from tests.handmade import links

METADATA = {
    "samples_per_iteration": 64,
    "tokens_per_sample": 128,
    "num_devices": 4,
    "model_flops_per_iteration": 4e12,
    "peak_flops_total": 8e12,
    "memory": [{"weights": 3.0, "gradients": 1.0}, {"weights": 5.0, "gradients": 1.0}],
    "memory_capacity": 8.0,
    "price_per_hour_total": 36.0,
    "idle_power_total": 100.0,
    "peak_power_total": 300.0,
    "synchronization": "bsp",
}


def graph(comm_bytes: float = 1.0, **metadata: object) -> ExecutionGraph:
    """Two ranks (one class) that compute 1 s, exchange over a 2 B/s link and update for 0.5 s."""
    builder = GraphBuilder()
    rank = builder.device("rank0", 0, multiplicity=4)
    load = builder.load_row(np.array([0]), np.array([1.0]))
    compute = builder.compute(rank, 1.0, "backward", Cause.BACKWARD)
    reduce = builder.task(
        TaskKind.TRANSFER, "all_reduce", Cause.GRADIENT_COMM, device=rank, after=[compute],
        streams=(builder.stream(rank, "comm"),), flow_bytes=comm_bytes, total_bytes=comm_bytes, loads=load,
    )  # fmt: skip
    update = builder.compute(rank, 0.5, "update", Cause.OPTIMIZER, after=[reduce])
    end = builder.control("step_end", device=rank, after=[update], boundary=True)
    builder.edge(compute, end, 1)
    return builder.build(links(2.0, 4.0), metadata={**METADATA, **metadata})


def simulated(comm_bytes: float = 1.0) -> Result:
    played = graph(comm_bytes)
    result = Result("ok", workload="toy", cluster="two", num_devices=4)
    fill_memory(result, played.metadata["memory"], played.metadata["memory_capacity"], str)
    fill_run(result, played, play(played))
    return result


def test_numbers_of_a_step():
    result = simulated()
    assert result.step_time_s == pytest.approx(2.0)
    assert result.samples_per_s == pytest.approx(32.0)
    assert result.tokens_per_s_per_device == pytest.approx(32 * 128 / 4)
    assert result.mfu == pytest.approx(0.25)
    assert result.parts == pytest.approx(
        {"optimizer_s": 0.5, "compute_s": 1, "data_s": 0, "exposed_comm_s": 0.5, "wait_s": 0, "bubble_s": 0}
    )
    assert result.busy_fraction == pytest.approx(0.75)
    assert result.energy_joules_per_step == pytest.approx((100 + 200 * 0.75) * 2.0)
    assert result.price_per_sample == pytest.approx(36 / 3600 * 2 / 64)
    assert result.peak_memory_bytes == 6.0
    assert result.bottlenecks == [
        {"link": "l0", "kind": "nic", "utilisation": 0.25, "bytes": 1.0, "members": 1}
    ]
    assert result.task_seconds == pytest.approx({"backward": 4, "optimizer": 2, "gradient_comm": 2})


def test_json_is_byte_identical_and_reads_back(tmp_path):
    first, second = simulated(), simulated()
    assert first.to_json() == second.to_json()
    read = load_result(first.save(tmp_path / "result.json"))
    assert read.to_json() == first.to_json()
    assert list(json.loads(first.to_json())["breakdown"]) == sorted(PARTS)
    assert read == first


def test_the_json_holds_what_the_command_promises():
    data = json.loads(simulated().to_json())
    promised = (
        "status step_time_s samples_per_s tokens_per_s_per_device mfu num_devices peak_memory_bytes "
        "breakdown bottlenecks memory energy_joules_per_step price_per_sample overlap_fraction warnings "
        "scenario_key version"
    )
    assert set(promised.split()) <= set(data)
    assert math.fsum(data["breakdown"].values()) == pytest.approx(data["step_time_s"], rel=1e-9)


def test_numbers_that_are_not_finite_become_null():
    assert json.loads(Result("ok", step_time_s=math.inf, mfu=math.nan).to_json())["step_time_s"] is None


def test_too_much_memory_is_infeasible_with_the_missing_bytes():
    result = Result("ok")
    fill_memory(result, [{"weights": 6e9}, {"weights": 9e9, "gradients": 1e9}], 8e9, "fewer {}".format)
    assert result.status == "infeasible"
    assert result.missing_bytes == pytest.approx(2e9)
    assert "stage 1" in result.message
    assert result.message.endswith("Most are weights (9.00 GB): try fewer weights")
    assert result.step_time_s is None


def test_tables(tmp_path):
    result = simulated()
    assert result.breakdown()["seconds"].sum() == pytest.approx(2.0)
    assert result.memory()["total"].tolist() == [4.0, 6.0]
    assert result.links()["utilisation"].tolist() == [0.25, 0.0]
    path = result.critical_path()
    assert path["task"].tolist()[:3] == ["backward", "all_reduce", "update"]
    assert path["duration_s"].sum() == pytest.approx(2.0)
    assert set(result.timeline()["cause"]) == {"backward", "gradient_comm", "optimizer"}
    assert result.save_trace(tmp_path / "t.json.gz").stat().st_size > 100
    assert "<table>" in result._repr_html_()
    assert "step time" in str(result)


def test_a_result_from_a_file_has_no_run(tmp_path):
    read = simulated().detached()
    assert read.run is None
    with pytest.raises(ClusterloomError, match="holds no run"):
        read.critical_path()
    assert pickle.loads(pickle.dumps(read)) == read


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "be JSON"),
        ("[]", "be a JSON object"),
        ('{"schema": 99}', "be 1"),
        ('{"schema": 1, "status": "ok", "colour": 1}', "colour"),
    ],
)
def test_bad_result_files(tmp_path, text: str, message: str):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_result(path)
    with pytest.raises(InputError, match="readable"):
        load_result(tmp_path / "absent.json")


@pytest.mark.parametrize(("before", "after"), [(1.0, 3.0), (3.0, 1.0), (1.0, 1.0), (0.1, 0.7)])
def test_comparison_parts_add_up_exactly(before: float, after: float):
    difference = compare(simulated(before), simulated(after))
    assert math.fsum(difference.parts().values()) == difference.difference_s
    assert difference.parts()["exposed_comm_s"] == pytest.approx((after - before) / 2, abs=1e-12)
    assert difference.parts()["compute_s"] == pytest.approx(0.0, abs=1e-12)
    tasks = difference.tasks().set_index("cause")["change_s"]
    assert tasks["gradient_comm"] == pytest.approx(4 * (after - before) / 2, abs=1e-12)
    json.dumps(difference.to_dict(), allow_nan=False)


def test_only_results_with_numbers_compare():
    with pytest.raises(InputError, match=r"compare\.second: must be a result with status ok"):
        compare(simulated(), Result("invalid", "no"))


def _saved(tmp_path, **changes: Any) -> Path:
    data = {**json.loads(simulated().to_json()), "step_time_interval_s": [0.5, 3.0], **changes}
    path = tmp_path / "r.json"
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"breakdown": None}, "result.breakdown: must be a mapping"),
        ({"breakdown": {}}, "result.breakdown: must hold optimizer_s, .* Got no optimizer_s"),
        ({"breakdown": {"compute_s": "x"}}, "result.breakdown.compute_s: must be a number. Got 'x'"),
        ({"breakdown": dict.fromkeys(PARTS, 1.0)}, "result.breakdown: must add up to step_time_s"),
        ({"step_time_s": math.inf}, "result.step_time_s: must be finite"),
        ({"step_time_s": "1"}, "result.step_time_s: must be a number. Got '1'"),
        ({"step_time_s": -1}, "result.step_time_s: must be at least 0"),
        ({"step_time_s": None}, "result.step_time_s: must be given where status is ok. Got null"),
        ({"num_devices": 0}, "result.num_devices: must be at least 1"),
        ({"step_time_interval_s": 3}, "result.step_time_interval_s: must be"),
        ({"status": 3}, "result.status: must be one of ok"),
        ({"status": []}, "result.status: must be one of ok"),
        ({"mfu": True}, "result.mfu: must"),
    ],
)
def test_a_damaged_result_is_refused_by_field_and_file(tmp_path, changes, message: str):
    assert load_result(_saved(tmp_path)).step_time_interval_s == (0.5, 3.0)
    with pytest.raises(InputError, match=message) as refused:
        load_result(_saved(tmp_path, **changes))
    assert str(refused.value).endswith(f"({tmp_path / 'r.json'})")
