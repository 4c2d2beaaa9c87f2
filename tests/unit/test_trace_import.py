from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.catalog import Catalog
from sim.cli.main import main
from sim.errors import InputError
from sim.models.compute import model_flops
from sim.trace.operators import Operator
from sim.trace.read import read
from sim.trace.to_workload import one_pass, to_workload
from tests.trace_samples import BASE_TS, kernel, kineto, operator, step, two_stream_rank, write


def kineto_model() -> dict[str, Any]:
    """Convolution 3 -> 8 (3x3, stride 2), batch norm, relu, linear 2048 -> 10; 4 images of 32 x 32; twice."""
    events: list[Any] = []
    for number in (1, 2):
        t = BASE_TS + 1000 * number
        dims = {"Input type": ["c10::Half", "c10::Half"]}
        events += [
            step(number, t, 900),
            operator(
                "aten::conv2d", t + 10, 50, **dims, **{"Input Dims": [[4, 3, 32, 32], [8, 3, 3, 3], []]}
            ),
            operator("aten::cudnn_convolution", t + 20, 30, **{"Input Dims": [[4, 3, 32, 32], [8, 3, 3, 3]]}),
            operator("aten::batch_norm", t + 70, 9, **{"Input Dims": [[4, 8, 16, 16], [8], [8], [8], [8]]}),
            operator("aten::relu_", t + 80, 9, **{"Input Dims": [[4, 8, 16, 16]]}),
            operator("aten::linear", t + 90, 9, **{"Input Dims": [[4, 2048], [10, 2048], [10]]}),
            operator("autograd::engine::evaluate_function: AddmmBackward0", t + 200, 50, thread=12),
            operator("aten::mm", t + 210, 20, thread=12, **{"Input Dims": [[4, 10], [10, 2048]]}),
            operator("Optimizer.step#Adam.step", t + 400, 90),
            operator("aten::add_", t + 410, 20, **{"Input Dims": [[8, 3, 3, 3], [8, 3, 3, 3]]}),
        ]
    return kineto([*events, kernel("k", BASE_TS, 5)], world=1)


def test_model_of_a_kineto_trace(tmp_path: Path) -> None:
    workload = to_workload(read([write(tmp_path, kineto_model())], host=True), name="tiny")
    assert [layer.kind for layer in workload.layers] == ["conv", "norm", "elementwise", "linear"]
    assert [layer.block for layer in workload.layers] == [0, 0, 0, 1]
    assert workload.num_parameters == 8 * 27 + 16 + 2048 * 10 + 10
    assert (workload.batch_per_device, workload.dtype, workload.optimizer) == (4, "fp16", "adam")
    conv = workload.layers[0].ops[0]
    assert conv.op == "conv"
    assert (conv.out_height, conv.stride) == (16, 2)
    assert model_flops(workload) == pytest.approx(2 * (8 * 27 * 256 + 2048 * 10))


def test_batch_may_be_given(tmp_path: Path) -> None:
    trace = read([write(tmp_path, kineto_model())], host=True)
    assert to_workload(trace, name="tiny", batch=2).layers[0].input_elements == 2 * 3 * 32 * 32


def test_model_of_an_execution_trace_with_a_tied_head(tmp_path: Path) -> None:
    def tensor(storage: int, elements: int) -> list[Any]:
        return [storage + 100, storage, 0, elements, 4, "cuda:0"]

    def node(
        number: int, name: str, parent: int, values: list[Any], given: list[Any], out: list[Any]
    ) -> dict[str, Any]:
        types = ["Tensor(float)"] * len(given)
        inputs = {"values": values, "shapes": given, "types": types}
        return {
            "id": number,
            "name": name,
            "ctrl_deps": parent,
            "inputs": inputs,
            "outputs": {"shapes": [out]},
        }

    table, tokens = tensor(5, 500), tensor(6, 8)
    nodes = [
        {"id": 1, "name": "[thread]", "ctrl_deps": 1},
        node(2, "aten::embedding", 1, [table, tokens], [[50, 10], [2, 4]], [2, 4, 10]),
        node(3, "aten::linear", 1, [tensor(7, 80), tensor(8, 200)], [[2, 4, 10], [20, 10]], [2, 4, 20]),
        node(4, "aten::mm", 3, [tensor(7, 80), tensor(8, 200)], [[8, 10], [10, 20]], [8, 20]),
        node(5, "aten::linear", 1, [tensor(9, 80), table], [[2, 4, 10], [50, 10]], [2, 4, 50]),
        {"id": 6, "name": "autograd::engine::evaluate_function: MmBackward0", "ctrl_deps": 1},
        node(7, "aten::mm", 6, [], [[8, 20], [20, 10]], [8, 10]),
    ]
    path = write(tmp_path, {"schema": "1.0.3-chakra.0.0.4", "nodes": nodes})
    workload = to_workload(read([path], host=True), name="tied")
    assert [layer.kind for layer in workload.layers] == ["embedding", "linear", "linear"]
    assert workload.num_parameters == 500 + 200
    assert workload.layers[2].shared_parameters == 500
    assert workload.batch_per_device == 2


def test_several_equal_passes_are_one_model() -> None:
    def ops(passes: int) -> list[Operator]:
        one = [Operator("aten::linear", ((4, k), (8, k)), None, "float") for k in (8, 16)]
        return [*one, Operator("aten::relu", ((4, 8),), None, "float")] * passes

    assert one_pass(ops(4)) == ops(1)
    assert one_pass(ops(1)) == ops(1)


def test_traces_that_name_no_work_are_refused_with_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="compute kernels with times") as caught:
        to_workload(read([write(tmp_path, kineto([operator("op", 1, 1)]))], host=True), name="x")
    assert "record_shapes=True" in str(caught.value)


def test_imported_file_is_a_workload_of_the_catalogue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, target = write(tmp_path, kineto_model()), tmp_path / "tiny.yaml"
    assert main(["trace", "import", str(trace), "-o", str(target), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    workload = Catalog().workload(str(target))
    assert workload.num_parameters == summary["parameters"]
    assert workload == to_workload(read([trace], host=True), name="tiny")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["trace"], 0),
        (["trace", "info"], 2),
        (["trace", "nothing"], 2),
        (["trace", "info", "{}/absent.json"], 2),
        (["trace", "info", "{}/trace.json"], 0),
        (["trace", "info", "{}/trace.json", "--json"], 0),
        (["trace", "replay", "{}/trace.json"], 0),
        (
            ["trace", "replay", "{}/trace.json", "--what-if", "device=2", "--json", "--trace", "{}/out.json"],
            0,
        ),
        (["trace", "replay", "{}/trace.json", "--what-if", "x=2"], 2),
        (["trace", "export", "{}/trace.json", "-o", "{}/x.goal"], 0),
        (["trace", "export", "{}/trace.json", "-o", "{}/x.vhs"], 2),
        (["trace", "import", "{}/trace.json", "-o", "{}/x.yaml", "--json"], 0),
        (["trace", "import", "{}/trace.json", "-o", "{}/x.txt"], 2),
        (["trace", "import", "{}/trace.json"], 2),
        (["trace", "import", "{}/trace.json", "--graph", "{}/x.npz", "--json"], 0),
    ],
)
def test_commands_and_exit_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    write(tmp_path, two_stream_rank(0))
    assert main([word.replace("{}", str(tmp_path)) for word in arguments]) == code
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    if code:
        assert len(err.strip().splitlines()) == 1
    elif "--json" in arguments:
        json.loads(out)
