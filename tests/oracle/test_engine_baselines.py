"""Numbers other simulators print for the same work, and closed forms."""

from __future__ import annotations

from typing import Any

import pytest

from sim.engine import play
from sim.graph.execution import ExecutionGraph
from tests.graphs import make_graph

PORT = 50e9
SIZE = 102_228_128.0


def incast(num_workers: int, sizes: list[float], rounds: int = 1, **fields: Any) -> ExecutionGraph:
    """Workers push to one server through 50 GB/s ports, 500 ns end to end."""
    tasks = [
        {
            "name": f"push{i}",
            "kind": "transfer",
            "work": 500e-9,
            "bytes": sizes[i],
            "links": {f"out{i}": 1, "in": 1},
            "on": [f"worker{i}"],
            "after": [("update", 1)],
        }
        for i in range(num_workers)
    ]
    update = {
        "name": "update",
        "kind": "counter",
        "after": [task["name"] for task in tasks],
        "boundary": True,
    }
    links = {"in": PORT, **{f"out{i}": PORT for i in range(num_workers)}}
    return make_graph([*tasks, update], links=links, max_iterations=rounds, **fields)


def test_incast_of_equal_pushes() -> None:
    """SimGrid CM02 and theory: 2.044563060 s."""
    assert play(incast(1000, [SIZE] * 1000)).makespan == pytest.approx(2.044563060, rel=1e-9)


@pytest.mark.parametrize("service", ["fair", "weighted", "fifo"])
def test_incast_of_a_thousand_sizes(service: str) -> None:
    """SimGrid: 3.065822049 s under fair sharing; the port is never idle, whatever the order of service."""
    sizes = [SIZE * (1 + i / 1000) for i in range(1000)]
    run = play(incast(1000, sizes, link_service=service))
    assert run.makespan == pytest.approx(3.065822049, rel=1e-6)


def test_incast_finish_times_follow_processor_sharing() -> None:
    """Sizes s_1 <= ... <= s_n under fair sharing: t_j = (s_1 + ... + s_j + (n - j) s_j) / B + latency."""
    n = 50
    sizes = [SIZE * (1 + i / 50) for i in range(n)]
    run = play(incast(n, sizes))
    ends = sorted(run.end[run.task < n])
    for j, end in enumerate(ends):
        expected = (sum(sizes[: j + 1]) + (n - j - 1) * sizes[j]) / PORT + 500e-9
        assert end == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("ranks", "milliseconds"), [(8, 37.587964), (64, 42.341584), (512, 43.376787), (4096, 47.034187)]
)
def test_ring_all_reduce_as_one_transfer(ranks: int, milliseconds: float) -> None:
    """1 GiB, 50 GB/s and 500 ns per neighbour: 2(n-1)(S/(nB) + a); SimGrid CM02 prints the same."""
    graph = make_graph(
        [
            {
                "name": "ring",
                "kind": "transfer",
                "work": 2 * (ranks - 1) * 500e-9,
                "bytes": 2 * (ranks - 1) / ranks * 2**30,
                "links": {"hop": 1},
                "on": ["comm"],
            }
        ],
        links={"hop": PORT},
    )
    run = play(graph)
    assert run.step_time * 1e3 == pytest.approx(milliseconds, rel=1e-6)
    assert run.num_events <= 2


@pytest.mark.parametrize(("ranks", "milliseconds"), [(8, 470.9056), (64, 472.2686), (512, 473.3378)])
def test_gpt_like_data_parallel(ranks: int, milliseconds: float) -> None:
    """25 layers, each gradient all-reduced after its backward, one compute and one collective at a time."""
    bandwidth = 50 * 2**30
    layers = [(100e-6, 200e-6, 205_852_672.0)] + [(6400e-6, 12800e-6, 100_663_296.0)] * 24
    tasks: list[dict[str, Any]] = []
    for i, (forward, _, _) in enumerate(layers):
        tasks.append({"name": f"forward{i}", "work": forward, "on": ["compute"], "after": [("end", 1)]})
    for i, (_, backward, size) in reversed(list(enumerate(layers))):
        tasks.append({"name": f"backward{i}", "work": backward, "on": ["compute"]})
        tasks.append(
            {
                "name": f"reduce{i}",
                "kind": "transfer",
                "work": 2 * (ranks - 1) * 500e-9,
                "bytes": 2 * (ranks - 1) / ranks * size,
                "links": {"hop": 1},
                "on": ["comm"],
                "after": [f"backward{i}"],
            }
        )
    tasks.append({"name": "end", "kind": "counter", "after": ["reduce0"], "boundary": True})
    run = play(make_graph(tasks, links={"hop": bandwidth}))
    assert run.step_time * 1e3 == pytest.approx(milliseconds, rel=2e-3)


@pytest.mark.parametrize(("schedule", "makespan"), [("gpipe", 33.0), ("1f1b", 33.0)])
def test_pipeline_bubble(schedule: str, makespan: float) -> None:
    """p = 4, m = 8, forward 1, backward 2, no communication: (m + p - 1) * 3 = 33 for GPipe and 1F1B."""
    stages, micro_batches = 4, 8
    tasks: list[dict[str, Any]] = []
    for stage in range(stages):
        warm_up = micro_batches if schedule == "gpipe" else min(micro_batches, stages - stage)
        order = [("F", j) for j in range(warm_up)]
        for j in range(micro_batches):
            order.append(("B", j))
            if warm_up + j < micro_batches:
                order.append(("F", warm_up + j))
        for kind, j in order:
            neighbour = stage - 1 if kind == "F" else stage + 1
            after = [f"{kind}{neighbour}.{j}"] if 0 <= neighbour < stages else []
            tasks.append(
                {
                    "name": f"{kind}{stage}.{j}",
                    "work": 1 if kind == "F" else 2,
                    "on": [f"gpu{stage}"],
                    "after": after,
                }
            )
    assert play(make_graph(tasks, max_iterations=1)).makespan == makespan


def test_straggler_stretches_a_synchronous_step_by_its_excess() -> None:
    """8 ranks, one 1.2 times slower: step = 1.2 * compute + communication."""
    tasks: list[dict[str, Any]] = [
        {"name": f"compute{i}", "work": 1.2 if i == 3 else 1.0, "on": [f"gpu{i}"], "device": i}
        for i in range(8)
    ]
    tasks.append(
        {
            "name": "reduce",
            "kind": "transfer",
            "work": 0.25,
            "on": [f"comm{i}" for i in range(8)],
            "after": [f"compute{i}" for i in range(8)],
            "boundary": True,
        }
    )
    for task in tasks[:8]:
        task["after"] = [("reduce", 1)]
    assert play(make_graph(tasks)).step_time == pytest.approx(1.45, rel=1e-12)
