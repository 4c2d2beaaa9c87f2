"""The engine against a bare SimPy callback loop in the same process, as a ratio."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sim.engine import play
from sim.graph.execution import ExecutionGraph
from tests.graphs import make_graph
from tests.perf.bare import bare_callback_loop, desynchronised

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("length", [100])
def test_ratio_to_bare_simpy(length: int) -> None:
    graph = desynchronised(1000, length)
    best = {"bare": float("inf"), "engine": float("inf")}
    for _ in range(3):
        begin = time.process_time()
        bare_callback_loop(1000, 1000 * length)
        best["bare"] = min(best["bare"], time.process_time() - begin)
        begin = time.process_time()
        run = play(graph, contract=False)
        best["engine"] = min(best["engine"], time.process_time() - begin)
    assert run.num_instances == 1000 * length
    assert run.num_events <= 1000 * length + 1  # one event per task and not more
    assert best["engine"] <= 4 * best["bare"], best


def peak_mebibytes() -> float:
    """Peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_memory_per_task() -> None:
    """200,000 tasks in a fresh process stay under a fifth of the 1 GB that 10^6 may take."""
    code = (
        "from tests.perf.test_engine_speed import *\n"
        "base = peak_mebibytes()\n"
        "play(desynchronised(1000, 200), contract=False)\n"
        "print(peak_mebibytes() - base)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert float(found.stdout) < 200


def incast(num_workers: int, rounds: int) -> ExecutionGraph:
    """Every worker sends ``rounds`` messages of its own size through one server port, desynchronised."""
    tasks = [
        {
            "name": f"push{i}",
            "kind": "transfer",
            "work": 500e-9,
            "bytes": 1e8 * (1 + i / num_workers),
            "links": {"in": 1, f"out{i}": 1},
            "on": [f"worker{i}"],
        }
        for i in range(num_workers)
    ]
    links = {"in": 50e9, **{f"out{i}": 50e9 for i in range(num_workers)}}
    return make_graph(tasks, links=links, max_iterations=rounds)


@pytest.mark.parametrize("service", ["fair", "fifo"])
def test_incast_costs_little_per_transfer(service: str) -> None:
    """1,000 workers x 5 rounds: a change costs the links of one transfer, not a solution for a thousand."""
    graph = replace(incast(1000, 5), link_service=service)
    begin = time.process_time()
    bare_callback_loop(1000, 10_000)
    bare = time.process_time() - begin
    begin = time.process_time()
    run = play(graph)
    engine = time.process_time() - begin
    assert run.num_instances == 5000
    assert run.num_events < 4 * 5000
    assert engine <= 60 * bare, (engine, bare)
