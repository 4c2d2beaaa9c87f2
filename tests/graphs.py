"""Small execution graphs from readable lists: one dict per task, everything by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.graph.execution import (
    Cause,
    CounterTable,
    DeviceTable,
    Discipline,
    ExecutionGraph,
    LinkTable,
    Ragged,
    StreamTable,
    TaskKind,
)


def make_graph(
    tasks: Sequence[dict[str, Any]],
    *,
    streams: dict[str, dict[str, Any]] | None = None,
    links: dict[str, float] | None = None,
    counters: dict[str, bool] | None = None,
    **fields: Any,
) -> ExecutionGraph:
    """Build a graph.

    A task has a ``name`` and any of: ``kind`` (compute, transfer, counter), ``work``, ``bytes``, ``cap``,
    ``priority``, ``device``, ``boundary``, ``after`` (names, or (name, iterations back)), ``on`` (streams),
    ``links`` ({link: coefficient}), ``adds`` ({counter: amount}), ``waits`` ([(counter, value, slope, back)]
    ), ``skip`` ((counter, value)), ``skip_with`` (a task), ``spins``. Streams not in ``streams`` are program
    streams of width 1 on device 0; ``streams`` gives ``width``, ``discipline``, ``device``. ``counters`` maps
    a name to whether it is per iteration.
    """
    index = {task["name"]: i for i, task in enumerate(tasks)}
    assert len(index) == len(tasks), "task names must differ"
    stream_specs = dict(streams or {})
    for task in tasks:
        for stream in task.get("on", ()):
            stream_specs.setdefault(stream, {})
    stream_index = {name: i for i, name in enumerate(stream_specs)}
    links = links or {}
    link_index = {name: i for i, name in enumerate(links)}
    counters = counters or {}
    counter_index = {name: i for i, name in enumerate(counters)}
    edges = [
        [(index[e], 0) if isinstance(e, str) else (index[e[0]], e[1]) for e in task.get("after", ())]
        for task in tasks
    ]
    waits = [[(*wait, *(0, 0)[len(wait) - 2 :]) for wait in task.get("waits", ())] for task in tasks]
    num_devices = 1 + max(
        [task.get("device", 0) for task in tasks] + [spec.get("device", 0) for spec in stream_specs.values()]
    )
    count = len(tasks)
    return ExecutionGraph(
        kind=np.array([int(TaskKind[task.get("kind", "compute").upper()]) for task in tasks]),
        work=_floats(tasks, "work", 0.0),
        flow_bytes=_floats(tasks, "bytes", 0.0),
        cap=_floats(tasks, "cap", np.inf),
        total_bytes=_floats(tasks, "bytes", 0.0),
        priority=_ints(tasks, "priority", 0),
        cause=np.full(count, int(Cause.OTHER)),
        name=np.arange(count),
        micro_batch=np.full(count, -1),
        step=np.zeros(count, np.int64),
        device=_ints(tasks, "device", 0),
        boundary=_bools(tasks, "boundary"),
        closes_update=_bools(tasks, "closes_update"),
        opens_pull=_bools(tasks, "opens_pull"),
        predecessors=_ragged([[source for source, _ in row] for row in edges]),
        predecessor_distance=np.array([back for row in edges for _, back in row], np.int64),
        streams=_ragged([[stream_index[s] for s in task.get("on", ())] for task in tasks]),
        links=_ragged([[link_index[name] for name in task.get("links", {})] for task in tasks]),
        link_coefficient=np.array([c for task in tasks for c in task.get("links", {}).values()], float),
        adds=_ragged([[counter_index[c] for c in task.get("adds", {})] for task in tasks]),
        add_amount=np.array([a for task in tasks for a in task.get("adds", {}).values()], float),
        waits=_ragged([[counter_index[wait[0]] for wait in row] for row in waits]),
        wait_value=np.array([wait[1] for row in waits for wait in row], float),
        wait_slope=np.array([wait[2] for row in waits for wait in row], float),
        wait_distance=np.array([wait[3] for row in waits for wait in row], np.int64),
        skip_counter=np.array([counter_index[t["skip"][0]] if "skip" in t else -1 for t in tasks]),
        skip_value=np.array([t["skip"][1] if "skip" in t else 0.0 for t in tasks], float),
        skip_leader=np.array([index[t["skip_with"]] if "skip_with" in t else -1 for t in tasks]),
        spins=_bools(tasks, "spins"),
        stream_table=StreamTable(
            tuple(stream_specs),
            np.array([spec.get("device", 0) for spec in stream_specs.values()], np.int64),
            np.array([spec.get("width", 1) for spec in stream_specs.values()], np.int64),
            np.array(
                [
                    int(Discipline[spec.get("discipline", "program").upper()])
                    for spec in stream_specs.values()
                ],
                np.int64,
            ),
        ),
        link_table=LinkTable(
            tuple(links),
            np.array(list(links.values()), float),
            np.ones(len(links), np.int64),
            ("nic",) * len(links),
        ),
        devices=DeviceTable(
            tuple(f"gpu{i}" for i in range(num_devices)),
            np.arange(num_devices),
            np.ones(num_devices, np.int64),
            np.zeros(num_devices, np.int64),
            ("worker",) * num_devices,
        ),
        counters=CounterTable(tuple(counters), np.array(list(counters.values()), bool)),
        names=tuple(task["name"] for task in tasks),
        **fields,
    )


def spans(graph: ExecutionGraph, run: Any) -> dict[tuple[str, int], tuple[float, float]]:
    """(start, end) of every played instance by (task name, iteration)."""
    return {
        (graph.names[task], iteration): (start, end)
        for task, iteration, start, end in zip(
            run.task.tolist(), run.iteration.tolist(), run.start.tolist(), run.end.tolist(), strict=True
        )
    }


def _floats(tasks: Sequence[dict[str, Any]], key: str, default: float) -> Any:
    return np.array([task.get(key, default) for task in tasks], float)


def _ints(tasks: Sequence[dict[str, Any]], key: str, default: int) -> Any:
    return np.array([task.get(key, default) for task in tasks], np.int64)


def _bools(tasks: Sequence[dict[str, Any]], key: str) -> Any:
    return np.array([task.get(key, False) for task in tasks], bool)


def _ragged(rows: list[list[int]]) -> Ragged:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return Ragged(offsets, np.array([value for row in rows for value in row], np.int64))
