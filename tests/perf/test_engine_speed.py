"""The engine against a bare SimPy callback loop in the same process, as a ratio."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simpy.core import Environment
from simpy.events import Event, Timeout

from sim.engine import play
from sim.graph.execution import (
    Cause,
    CounterTable,
    DeviceTable,
    ExecutionGraph,
    LinkTable,
    Ragged,
    StreamTable,
    TaskKind,
)
from tests.graphs import make_graph

ROOT = Path(__file__).parents[2]


def desynchronised(num_streams: int, length: int) -> ExecutionGraph:
    """Program streams of ``length`` tasks of random duration; each waits for one task on another stream."""
    count = num_streams * length
    generator = np.random.default_rng(1)
    task = np.arange(count)
    stream = task % num_streams
    # The predecessor is one row earlier on the next stream, so that all streams stay active.
    row = task // num_streams
    source = np.where(row > 0, (row - 1) * num_streams + (stream + 1) % num_streams, -1)
    has = source >= 0
    zeros, none = np.zeros(count), np.full(count, -1)
    return ExecutionGraph(
        kind=np.full(count, int(TaskKind.COMPUTE)),
        work=generator.uniform(0.5e-3, 1.5e-3, count),
        flow_bytes=zeros,
        cap=np.full(count, np.inf),
        total_bytes=zeros,
        priority=np.zeros(count, np.int64),
        cause=np.full(count, int(Cause.OTHER)),
        name=np.zeros(count, np.int64),
        micro_batch=none,
        step=np.zeros(count, np.int64),
        device=stream,
        boundary=row == length - 1,
        closes_update=np.zeros(count, bool),
        opens_pull=np.zeros(count, bool),
        predecessors=Ragged.from_pairs(count, task[has], source[has]),
        predecessor_distance=np.zeros(int(has.sum()), np.int64),
        streams=Ragged(np.arange(count + 1), stream),
        links=Ragged.empty(count),
        link_coefficient=np.zeros(0),
        adds=Ragged.empty(count),
        add_amount=np.zeros(0),
        waits=Ragged.empty(count),
        wait_value=np.zeros(0),
        wait_slope=np.zeros(0),
        wait_distance=np.zeros(0, np.int64),
        skip_counter=none,
        skip_value=zeros,
        skip_leader=none,
        spins=np.zeros(count, bool),
        stream_table=StreamTable(
            tuple(f"s{i}" for i in range(num_streams)),
            np.arange(num_streams),
            np.ones(num_streams, np.int64),
            np.zeros(num_streams, np.int64),
        ),
        link_table=LinkTable((), np.zeros(0), np.zeros(0, np.int64), ()),
        devices=DeviceTable(
            tuple(f"gpu{i}" for i in range(num_streams)),
            np.arange(num_streams),
            np.ones(num_streams, np.int64),
            np.zeros(num_streams, np.int64),
            ("worker",) * num_streams,
        ),
        counters=CounterTable((), np.zeros(0, bool)),
        names=("task",),
        max_iterations=1,
    )


def bare_callback_loop(num_pending: int, total: int) -> None:
    """``num_pending`` pending timeouts; each callback schedules the next one, ``total`` in all."""
    env = Environment()
    delays = np.random.default_rng(1).uniform(0.5e-3, 1.5e-3, total).tolist()
    started = 0

    def fire(_event: Event) -> None:
        nonlocal started
        if started < total:
            timeout = Timeout(env, delays[started])
            timeout.callbacks.append(fire)
            started += 1

    for _ in range(num_pending):
        fire(Event(env))
    env.run()


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
