"""The execution trace's tensors as dependencies of the kernels of a Kineto trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.trace.operations import DEVICE, Operations
from sim.trace.read import read
from sim.trace.replay import replay
from sim.trace.tensors import aligned_runs
from sim.trace.to_graph import operations_of
from tests.trace_samples import BASE_TS, kernel, kineto, launch, operator, step, write


def kineto_trace(*, ids: bool, steps: tuple[int, ...] = (1,)) -> dict[str, Any]:
    """Two kernels on stream 7, long and short; one on stream 9 that starts right behind the short one."""
    events: list[Any] = []
    for count, number in enumerate(steps):
        t = BASE_TS + 2000 * count
        events.append(step(number, t, 1000))
        for place, (name, at) in enumerate((("aten::mm", 5), ("aten::relu", 25), ("aten::add", 45))):
            args = {"Record function id": 101 + place} if ids else {}
            correlation = 10 * count + place
            events += [operator(name, t + at, 15, **args), launch(t + at + 5, correlation=correlation)]
        events += [
            kernel("long", t + 60, 300, correlation=10 * count),
            kernel("short", t + 360, 40, correlation=10 * count + 1),
            kernel("sum", t + 405, 50, stream=9, correlation=10 * count + 2),
        ]
    return kineto(events, world=1)


def execution_trace(reads: int, schema: str = "1.0.1") -> dict[str, Any]:
    """The sum reads what the long (storage 11) or what the short one (storage 12) wrote."""

    def tensor(storage: int) -> list[Any]:
        return [storage + 100, storage, 0, 64, 4, "cuda:0"]

    operators = [("aten::mm", [5], 11), ("aten::relu", [6], 12), ("aten::add", [reads, 5], 13)]
    nodes: list[dict[str, Any]] = [
        {"id": 1, "name": "[pytorch|profiler|execution_trace|thread]", "parent": 1, "ctrl_deps": 1},
        {"id": 2, "name": "ProfilerStep#1", "parent": 1, "ctrl_deps": 1, "tid": 1},
    ]
    for place, (name, read_, written) in enumerate(operators):
        node: dict[str, Any] = {"id": 3 + place, "name": name}
        values, results = [[tensor(storage) for storage in read_], 1], [tensor(written)]
        if schema == "1.0.1":
            node |= {"parent": 2, "rf_id": 101 + place, "tid": 1, "inputs": values, "outputs": results}
        else:
            attrs = [{"name": "rf_id", "value": 101 + place}, {"name": "tid", "value": 1}]
            node |= {"ctrl_deps": 2, "attrs": attrs}
            node |= {"inputs": {"values": values}, "outputs": {"values": results}}
        nodes.append(node)
    return {"schema": schema, "nodes": nodes}


def joined(folder: Path, timed: dict[str, Any], graph: dict[str, Any] | None) -> Operations:
    paths = [write(folder, timed, "rank0_kineto.json")]
    if graph is not None:
        paths.append(write(folder, graph, "rank0_et.json"))
    return operations_of(read(paths, host=True))


def waits(ops: Operations, name: str) -> set[str]:
    """Kernels that the first operation of a name waits for, directly or behind a launch delay."""
    found, open_ = set(), [ops.name.index(name)]
    while open_:
        operation = open_.pop()
        for target, source in ops.edges:
            if target == operation and ops.category[source] == DEVICE:
                found.add(ops.name[source])
            elif target == operation and ops.type[source] == "launch":
                open_.append(source)
    return found


@pytest.mark.parametrize("schema", ["1.0.1", "1.1.0-chakra.0.0.4"])
@pytest.mark.parametrize("ids", [True, False], ids=["record-function-ids", "names"])
@pytest.mark.parametrize(("reads", "source"), [(11, "long"), (12, "short")])
def test_a_kernel_waits_for_what_wrote_its_tensor(
    tmp_path: Path, schema: str, ids: bool, reads: int, source: str
) -> None:
    ops = joined(tmp_path, kineto_trace(ids=ids), execution_trace(reads, schema))
    assert waits(ops, "sum") == {source}
    assert ops.issues.counts["tensor_dependency"] == 1
    result, _ = replay(ops)
    assert result.worst_error < 1e-6
    assert result.replayed_step_s == pytest.approx(1e-3)


def test_without_the_execution_trace_order_is_all_there_is(tmp_path: Path) -> None:
    assert waits(joined(tmp_path, kineto_trace(ids=True), None), "sum") == {"short"}


def test_a_tensor_that_nobody_wrote_is_waited_for_by_nobody(tmp_path: Path) -> None:
    assert waits(joined(tmp_path, kineto_trace(ids=True), execution_trace(99)), "sum") == set()


def test_a_faster_producer_lets_its_reader_start_earlier(tmp_path: Path) -> None:
    """The short kernel's length does not matter to a reader of the long one's result."""
    found = {}
    for reads in (11, 12):
        ops = joined(tmp_path, kineto_trace(ids=True), execution_trace(reads))
        _, played = replay(ops, ["short=3"])
        found[reads] = float(played.start[ops.name.index("sum")])
    assert found[12] - found[11] == pytest.approx(80e-6)


def test_one_recorded_step_stands_for_all(tmp_path: Path) -> None:
    ops = joined(tmp_path, kineto_trace(ids=False, steps=(1, 2, 5)), execution_trace(11))
    assert ops.issues.counts["tensor_dependency"] == 3
    assert not ops.issues.counts["kernel_without_node"]


def test_a_file_of_another_rank_is_not_joined(tmp_path: Path) -> None:
    paths = [
        write(tmp_path, kineto_trace(ids=True), "rank0.json"),
        write(tmp_path, execution_trace(11), "rank1_et.json"),
    ]
    assert not operations_of(read(paths, host=True)).issues.counts["tensor_dependency"]


@pytest.mark.parametrize("seed", range(5))
def test_runs_of_names_with_insertions_are_found(seed: int) -> None:
    generator = np.random.default_rng(seed)
    truth = [f"op{n}" for n in generator.integers(0, 40, 600)]
    kept = generator.random(600) > 0.03
    first, of_first, second, of_second = [], [], [], []
    for at, name in enumerate(truth):
        if kept[at]:
            first.append(name)
            of_first.append(at)
        if generator.random() < 0.03:
            second.append("added")
            of_second.append(-1)
        second.append(name)
        of_second.append(at)
    pairs = aligned_runs(first, second)
    assert all(first[i] == second[j] for i, j in pairs)
    assert [i for i, _ in pairs] == sorted({i for i, _ in pairs})
    assert [j for _, j in pairs] == sorted({j for _, j in pairs})
    right = sum(of_first[i] == of_second[j] for i, j in pairs)
    assert right > 0.97 * len(first)
    assert aligned_runs([], second) == [] == aligned_runs(first, ["x"])
