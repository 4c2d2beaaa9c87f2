"""Traces that nobody would write: replay, import and export work or refuse them in one line."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sim.errors import InputError
from sim.trace.export import export
from sim.trace.read import read
from sim.trace.replay import replay
from sim.trace.to_graph import operations_of
from sim.trace.to_workload import import_workload

TIMES = st.integers(0, 1000) | st.floats(0, 1e3)
ODD = st.none() | st.integers(-3, 2**66) | st.text(max_size=4) | st.lists(st.integers(0, 9), max_size=3)
NAMES = ["ncclDevKernel_AllReduce", "record_param_comms", "ProfilerStep#1", "gemm", "aten::mm",
         "aten::conv2d", "cudaLaunchKernel", "cudaDeviceSynchronize", "Optimizer.step#SGD.step",
         "nccl:all_reduce", "autograd::engine::evaluate_function: MmBackward0"]  # fmt: skip
ARGS = st.fixed_dictionaries({}, optional={
    "correlation": st.integers(0, 4), "stream": st.integers(0, 2), "device": st.integers(0, 1),
    "External id": st.integers(0, 4), "Record function id": st.integers(0, 5), "Seq": ODD,
    "Input Dims": ODD | st.just([[4, 8], [8, 8]]), "Input type": ODD, "dtype": st.just("Float"),
    "Collective name": st.sampled_from(["allreduce", "send", "recv", "alltoall"]),
    "In msg nelems": ODD, "Group size": ODD, "Process Group Ranks": ODD | st.just("[0, 1]"),
    "Src Rank": st.integers(-1, 5), "Dst Rank": st.integers(-1, 5)})  # fmt: skip
EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "ph": st.just("X"),
            "cat": st.sampled_from(["kernel", "gpu_memcpy", "cpu_op", "user_annotation", "cuda_runtime"]),
            "name": st.sampled_from(NAMES),
            "ts": TIMES,
            "dur": TIMES,
        },
        optional={"pid": st.integers(0, 1), "tid": st.integers(0, 2), "args": ARGS},
    ),
    max_size=12,
)
NODES = st.lists(
    st.fixed_dictionaries(
        {"id": st.integers(0, 8), "name": st.sampled_from(NAMES)},
        optional={
            "parent": st.integers(0, 8), "ctrl_deps": ODD, "ts": TIMES, "dur": TIMES, "tid": ODD,
            "cat": st.sampled_from(["kernel", "gpu_memcpy"]), "stream": ODD, "rf_id": st.integers(0, 5),
            "inputs": ODD | st.just([[1, 2, 0, 4, 4, "cuda:0"]]),
            "outputs": ODD | st.just([[1, 3, 0, 4, 4, "cuda:0"]]),
        },
    ),
    max_size=10,
)  # fmt: skip
LINES = ["rank 0 {", "}", "rank 1 {", "l1: send 8b to 1 tag 0", "l2: calc 500 cpu 1", "l2 requires l1",
         "l1 irequires l2", "l3: recv 8b from 0 tag 0", "l1: recv 8b from 1 tag 0",
         "l3 requires l2"]  # fmt: skip


def _replayed(trace: Any, folder: Path) -> None:
    result, _ = replay(operations_of(trace), ["no-stragglers"])
    json.dumps(result.to_json(), allow_nan=False)


USES: tuple[Callable[[Any, Path], object], ...] = (
    _replayed,
    lambda trace, folder: import_workload(trace, name="x"),
    lambda trace, folder: export(trace, folder / "out.goal"),
    lambda trace, folder: export(trace, folder / "out.et"),
    lambda trace, folder: export(trace, folder / "out.json"),
)


def _use(*files: tuple[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for label, data in files:
            (folder / label).write_bytes(data)
        for use in USES:
            try:
                use(read([folder / label for label, _ in files], host=True), folder)
            except InputError as error:
                assert "\n" not in str(error)


def _kineto(events: list[Any], rank: int) -> tuple[str, bytes]:
    document = {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}
    return f"rank{rank}.json", json.dumps(document).encode()


@given(EVENTS, EVENTS, NODES)
def test_two_ranks_and_an_execution_trace(first: list[Any], second: list[Any], nodes: list[Any]) -> None:
    graph = json.dumps({"schema": "1.0.1", "nodes": nodes}).encode()
    _use(_kineto(first, 0), _kineto(second, 1), ("rank0_et.json", graph))


@given(NODES)
def test_an_execution_trace_alone(nodes: list[Any]) -> None:
    _use(("et.json", json.dumps({"schema": "1.1.0-chakra.0.0.4", "nodes": nodes}).encode()))


@given(st.lists(st.sampled_from(LINES), max_size=14))
def test_a_schedule(lines: list[str]) -> None:
    _use(("job.goal", "\n".join(["num_ranks 2", *lines]).encode()))
