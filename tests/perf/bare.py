"""What speed is compared with: a bare SimPy callback loop; and a graph of as many independent streams."""

from __future__ import annotations

import numpy as np
from simpy.core import Environment
from simpy.events import Event, Timeout

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


def desynchronised(num_streams: int, length: int, *, neighbours: bool = True) -> ExecutionGraph:
    """Program streams of ``length`` tasks of random duration; each waits for one task before it.

    With ``neighbours`` that task is on another stream, else on its own.
    """
    count = num_streams * length
    generator = np.random.default_rng(1)
    task = np.arange(count)
    stream = task % num_streams
    # The predecessor is one row earlier on the next stream, so that all streams stay active.
    row = task // num_streams
    source = np.where(row > 0, (row - 1) * num_streams + (stream + neighbours) % num_streams, -1)
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
