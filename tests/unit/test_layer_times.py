"""Kernel times back to the operators that launched them, and the workloads made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim import api
from sim.trace.devices import catalogue_device
from sim.trace.join import aligned
from sim.trace.layer_times import layer_times
from sim.trace.operators import Operator
from sim.trace.read import read
from sim.trace.saved import load_operations, save_operations
from sim.trace.to_graph import operations_of
from sim.trace.to_workload import import_workload, workload_data
from sim.yamlio import dumps
from tests.trace_samples import BASE_TS, kernel, kineto, launch, operator, step, write

FORWARD = (("aten::linear", [[8, 64], [32, 64], [32]]), ("aten::relu", [[8, 32]]))
MORE = ("aten::linear", [[8, 32], [10, 32], [10]])


class Maker:
    """A rank that trains a two-layer net: 10 us of host and, given times, of device per operator."""

    def __init__(self, *, dims: bool = True, sequence: bool = True) -> None:
        self.events: list[Any] = []
        self.dims, self.sequence = dims, sequence
        self.correlation = 0
        self.device = 0.0

    def run(self, t: int, kernel_us: float, *, thread: int = 11, name: str = "k") -> None:
        self.correlation += 1
        begin = max(t + 5, self.device)
        self.events.append(launch(t + 2, correlation=self.correlation, thread=thread))
        self.events.append(kernel(name, begin, kernel_us, correlation=self.correlation))
        self.device = begin + kernel_us

    def step(self, number: int, t: int, forward: float, *, gradients: bool = False) -> None:
        self.device = 0.0
        self.events.append(step(number, t, 400))
        for i, (name, dims) in enumerate((*FORWARD, MORE)):
            shapes = {"Input Dims": dims, "Input type": ["float"]} if self.dims else {}
            numbered = {"Sequence number": 10 * number + i} if self.sequence else {}
            self.events.append(operator(name, t + 10 * i + 10, 9, **shapes, **numbered))
            self.run(t + 10 * i + 10, forward)
        for i in (2, 1, 0):
            begin = t + 100 + 10 * (2 - i)
            numbered = {"Sequence number": 10 * number + i} if self.sequence else {}
            self.events.append(
                operator("autograd::engine::evaluate_function: X", begin, 9, thread=12, **numbered)
            )
            self.run(begin, 2 * forward, thread=12)
        self.events.append(operator("Optimizer.step#SGD.step", t + 200, 20))
        self.run(t + 205, 7.0)

    def trace(self, folder: Path, **header: Any) -> Any:
        return read([write(folder, kineto(self.events, world=1, **header))], host=True)


def test_times_go_to_the_operators_that_launched_them(tmp_path: Path) -> None:
    made = Maker()
    for number, forward in ((1, 90.0), (2, 20.0), (3, 22.0)):
        made.step(number, BASE_TS + 1000 * number, forward)
    times = layer_times(made.trace(tmp_path).ranks[0])
    assert times is not None
    assert times.steps == 2  # the first one warms up
    assert times.forward_s == pytest.approx([21e-6] * 3)
    assert times.backward_s == pytest.approx([42e-6] * 3)
    total = sum(
        np.maximum(device, host).sum()
        for device, host in (
            (times.forward_s, times.forward_host_s),
            (times.backward_s, times.backward_host_s),
        )
    )
    # Everything on the device's clock is owned: 15 us until the first kernel, 27 until backward.
    assert times.update_s == pytest.approx(7e-6)
    assert total + times.rest_s == pytest.approx(15e-6 + 3 * 21e-6 + 27e-6 + 3 * 42e-6)


def test_gaps_of_a_starved_device_are_host_time(tmp_path: Path) -> None:
    made = Maker()
    made.step(1, BASE_TS, 1.0)
    times = layer_times(made.trace(tmp_path).ranks[0])
    assert times is not None
    assert times.forward_s == pytest.approx([1e-6] * 3)
    assert times.forward_host_s[1:] == pytest.approx([10e-6] * 2)
    assert times.backward_host_s[:2] == pytest.approx([10e-6] * 2)


def test_backward_without_numbers_is_spread(tmp_path: Path) -> None:
    made = Maker(sequence=False)
    made.step(1, BASE_TS, 20.0)
    times = layer_times(made.trace(tmp_path).ranks[0])
    assert times is not None
    assert times.unknown_backward_s > 100e-6
    assert times.backward_s.sum() == pytest.approx(times.unknown_backward_s)


def test_imported_times_come_back_when_simulated(tmp_path: Path) -> None:
    made = Maker()
    for number in (1, 2, 3):
        made.step(number, BASE_TS + 1000 * number, 30.0)
    device = [{"id": 0, "name": "Tesla V100-SXM2-32GB", "totalGlobalMem": 34_000_000_000}]
    imported = import_workload(made.trace(tmp_path, deviceProperties=device), name="net")
    assert imported.device is not None
    assert imported.device.name == "v100-32gb"
    assert [layer.kind for layer in imported.workload.layers] == ["linear", "elementwise", "linear"]
    path = tmp_path / "net.yaml"
    path.write_text(dumps(workload_data(imported.workload)))
    assert api.workload(str(path)) == imported.workload
    host = api.host("single-gpu", devices=[["v100-32gb", 1]])
    result = api.run(str(path), api.cluster("single-gpu", 1, host=host))
    times = imported.times
    assert times is not None
    # 15 us pass before the first kernel runs: host time of the first layer.
    assert result.step_time_s == pytest.approx(15e-6 + 9 * 30e-6 + times.update_s + times.rest_s, rel=1e-6)


def test_an_execution_trace_gives_the_shapes(tmp_path: Path) -> None:
    made = Maker(dims=False)
    made.step(1, BASE_TS, 20.0)
    kineto_path = write(tmp_path, kineto(made.events, world=1), "rank0.json")
    nodes = [{"id": 1, "name": "[thread]", "ctrl_deps": 1}]
    for i, (name, dims) in enumerate((*FORWARD, MORE)):
        inputs = {"values": [], "shapes": dims, "types": ["Tensor(float)"] * len(dims)}
        nodes.append({"id": i + 2, "name": name, "ctrl_deps": 1, "inputs": inputs, "outputs": {}})
    graph_path = write(tmp_path, {"schema": "1.0.3-chakra.0.0.4", "nodes": nodes}, "et_rank0.json")
    alone = import_workload(read([kineto_path], host=True), name="x")
    assert alone.issues.counts["shapes_unknown"] == 1
    trace = read([kineto_path, graph_path], host=True)
    imported = import_workload(trace, name="net")
    assert imported.workload.num_parameters == 64 * 32 + 32 + 320 + 10
    assert imported.workload.layers[0].measured is not None
    assert trace.ranks[0].issues.counts["et_operators_joined"] == 3


def test_gradients_of_layers_without_shapes(tmp_path: Path) -> None:
    made = Maker(dims=False)
    made.step(1, BASE_TS, 20.0)
    args = {"Collective name": "allreduce", "In msg nelems": 2410, "Out msg nelems": 2410, "dtype": "Float",
            "Group size": 2, "Process Group Name": "0"}  # fmt: skip
    made.events.append(launch(BASE_TS + 125, correlation=900, thread=12))
    made.events.append(
        kernel("ncclDevKernel_AllReduce_Sum_f32", BASE_TS + 300, 20, stream=20, correlation=900, **args)
    )
    workload = import_workload(made.trace(tmp_path), name="net", batch=8).workload
    assert [layer.name.split()[0] for layer in workload.layers] == ["linear", "linear"]
    assert workload.num_parameters == pytest.approx(2410, abs=2)


def test_names_that_agree_are_joined_in_order() -> None:
    def ops(*names: str, inputs: Any = ()) -> list[Operator]:
        return [Operator(name, inputs, None, "") for name in names]

    assert aligned(ops("a", "b"), ops("a", "b")) == {0: 0, 1: 1}
    assert aligned(ops("x", "a", "b"), ops("a", "b")) == {1: 0, 2: 1}
    assert aligned(ops("a", inputs=((2,),)), ops("a", inputs=((3,),))) == {}
    assert aligned(ops("a", inputs=((2,), ())), ops("a", inputs=((2,),))) == {0: 0}


@pytest.mark.parametrize(
    ("name", "memory", "expected"),
    [
        ("Tesla V100-SXM2-32GB", None, "v100-32gb"),
        ("Tesla V100-SXM2-16GB", None, "v100-16gb"),
        ("NVIDIA A100-SXM4-80GB", None, "a100-80gb"),
        ("NVIDIA A100-PG509-200", 42.5e9, "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", None, "a100-pcie-40gb"),
        ("NVIDIA H100 80GB HBM3", None, "h100-80gb"),
        ("NVIDIA GeForce RTX 2080 Ti", None, None),
        ("AMD Instinct MI300X", None, None),
        (None, None, None),
    ],
)
def test_devices_by_the_profilers_name(name: str | None, memory: float | None, expected: str | None) -> None:
    found = catalogue_device(name, memory)
    assert (found.name if found else None) == expected


def test_operations_survive_the_file(tmp_path: Path) -> None:
    made = Maker()
    made.step(1, BASE_TS, 20.0)
    operations = operations_of(made.trace(tmp_path))
    path = save_operations(tmp_path / "job.npz", operations)
    again = load_operations(path)
    apart = {"issues": None, "row": None}  # rows are those of the trace's spans
    assert vars(again) | apart == vars(operations) | apart
    assert len(again.row) == len(operations.row)
    assert again.issues.counts == operations.issues.counts
    assert save_operations(tmp_path / "two.npz", again).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("damage", ["cut", "empty", "other", "pickle"])
def test_damaged_operations_are_one_line(tmp_path: Path, damage: str) -> None:
    made = Maker()
    made.step(1, BASE_TS, 20.0)
    path = save_operations(tmp_path / "job.npz", operations_of(made.trace(tmp_path)))
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:200])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "other":
        np.savez(path, x=np.zeros(3))
    else:
        np.savez(path, header=np.array([{}], dtype=object))
    with pytest.raises(Exception, match="file: must be") as caught:
        load_operations(path)
    assert "\n" not in str(caught.value)
