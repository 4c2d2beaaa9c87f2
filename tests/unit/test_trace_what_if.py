"""What-if edits: direction and size of every kind of answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.analysis.trace_what_if import ScenarioWhatIf, scenario_what_if
from sim.catalog import default_catalog
from sim.cli.main import main
from sim.errors import InputError
from sim.spec import Workload
from sim.trace.operations import Operations
from sim.trace.read import read
from sim.trace.replay import replay
from sim.trace.to_graph import operations_of
from sim.trace.to_workload import to_workload
from tests.trace_samples import BASE_TS, kernel, kineto, launch, operator, step, two_stream_rank, write

SHIPPED = "workloads/traces/transformer_cpu.json.gz"


def host_bound(folder: Path, steps: int = 3) -> Operations:
    """Steps of 400 us of host time in which the device works for 100 us and nobody waits for it."""
    events = []
    for number in range(steps):
        t = BASE_TS + 400 * number
        back = operator("autograd::engine::evaluate_function: MmBackward0", t + 195, 100, thread=12)
        events += [step(number, t, 400), back]
        for place, (name, thread) in enumerate(
            (("sgemm_a", 11), ("ncclDevKernel_AllReduce", 11), ("sgemm_b", 12))
        ):
            key = 10 * number + place + 1
            length = 20 if place == 1 else 40
            events.append(launch(t + 100 * (place + 1) - 100 + 5, correlation=key, thread=thread))
            events.append(kernel(name, t + 100 * place + 20, length, correlation=key))
    return operations_of(read([write(folder, kineto(events, world=1))], host=True))


def answer(ops: Operations, *edits: str) -> float:
    result, _ = replay(ops, list(edits))
    assert result.what_if is not None
    assert result.replayed_step_s == pytest.approx(400e-6)
    return float(result.what_if["step_s"])


def test_steps_of_a_host_that_does_not_wait_end_with_the_device(tmp_path: Path) -> None:
    ops = host_bound(tmp_path)
    assert answer(ops, "compute=0.5") == pytest.approx(400e-6, rel=0.01)
    assert answer(ops, "host=0.5") == pytest.approx(200e-6, rel=0.01)
    # However fast the host: 80 us of kernels, 20 of the collective, 3 x 15 of launch latency at most.
    assert 100e-6 * 0.99 < answer(ops, "host=1e-6") < 150e-6
    assert (
        answer(ops, "device=0.1") > 800e-6
    )  # ten times slower: the device bounds, though no mark waits for it


@pytest.mark.parametrize(
    ("edit", "names"),
    [
        ("*GEMM_a=4", {"sgemm_a"}),
        ("sgemm_?=4", {"sgemm_a", "sgemm_b"}),
        ("backward=4", {"sgemm_b"}),
        ("all_reduce=4", {"ncclDevKernel_AllReduce"}),
        ("communication=4", {"ncclDevKernel_AllReduce"}),
        ("compute=4", {"sgemm_a", "sgemm_b"}),
    ],
)
def test_edits_select_by_pattern_cause_and_kind(tmp_path: Path, edit: str, names: set[str]) -> None:
    ops = host_bound(tmp_path, 1)
    _, played = replay(ops, [edit])
    pairs = zip(ops.name, ops.work, played.operations.work, strict=True)
    assert {name for name, old, new in pairs if new == pytest.approx(4 * old) and old > 0} == names


def test_an_edit_without_any_operation_says_so(tmp_path: Path) -> None:
    path = write(tmp_path, kineto([launch(BASE_TS), kernel("gemm", BASE_TS + 5, 9)], world=1))
    result, _ = replay(operations_of(read([path], host=True)), ["links=2"])
    assert {w["name"]: w["count"] for w in result.warnings}["edit_without_effect"] == 1


@pytest.fixture(scope="module")
def workload() -> Workload:
    return to_workload(read([default_catalog().data_file(SHIPPED)], host=True), name="mine")


def what_if(workload: Workload, *edits: str) -> ScenarioWhatIf:
    return scenario_what_if(workload, "v100-dlperf", edits, world_size=8)


def test_twice_the_replicas_leave_the_work_of_each(workload: Workload) -> None:
    found = what_if(workload, "dp=16")
    assert (found.base.num_devices, found.changed.num_devices) == (8, 16)
    assert found.changed.parts["compute_s"] == pytest.approx(found.base.parts["compute_s"], rel=0.02)
    assert found.ratio >= 1 - 1e-9


def test_tensor_parallelism_shares_the_work_and_exchanges_activations(workload: Workload) -> None:
    found = what_if(workload, "tp=2")
    assert found.changed.num_devices == 8
    busy = found.changed.parts["compute_s"] / found.base.parts["compute_s"]
    assert 0.5 < busy < 0.8  # its norms and embeddings are not divided
    assert found.changed.task_seconds["tensor_comm"] > 0
    assert "tensor_comm" not in found.base.task_seconds


def test_pipelines_have_bubbles_and_fewer_layers_each(workload: Workload) -> None:
    found = what_if(workload, "pp=2")
    assert 0.4 < found.changed.parts["compute_s"] / found.base.parts["compute_s"] < 0.65
    assert found.changed.parts["bubble_s"] > 0.3 * found.changed.step_time_s  # type: ignore[operator]


def test_without_overlap_all_communication_is_exposed(workload: Workload) -> None:
    found = scenario_what_if(workload, "p2-8xlarge", ["overlap=false"], world_size=16)
    assert found.base.overlap_fraction > 0.1
    assert found.changed.overlap_fraction == pytest.approx(0.0, abs=1e-6)
    hidden = found.changed.parts["exposed_comm_s"] - found.base.parts["exposed_comm_s"]
    assert hidden == pytest.approx(
        found.base.overlap_fraction * found.changed.parts["exposed_comm_s"], rel=0.1
    )


@pytest.mark.parametrize("edit", ["tp=x", "strategy.tp=x", "tp=[1]", "cp=x", "pp="])
def test_a_degree_that_is_no_number_is_refused(workload: Workload, edit: str) -> None:
    with pytest.raises(InputError, match="must be a whole number"):
        what_if(workload, edit)


def test_options_of_traces_that_say_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(write(tmp_path, two_stream_rank(0)))
    for arguments, said in (
        (["export", trace, "-o", str(tmp_path)], "-o: must be a file"),
        (["export", trace, "-o", str(tmp_path / ".json")], "-o: must be a file"),
        (["info", trace, "--step-marker", ""], "--step-marker: must"),
        (["replay", trace, "--what-if", "rank:99=2"], "must name a rank of the trace (0). Got rank:99."),
    ):
        assert main(["trace", *arguments]) == 2
        assert said in capsys.readouterr().err
