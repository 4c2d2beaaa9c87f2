"""Random small graphs: laws hold (the engine checks itself), runs repeat, contraction changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.engine import bound, play
from sim.engine.bounds import rate_bound
from sim.graph.execution import ExecutionGraph
from tests.graphs import make_graph

_QUIET = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def graphs(draw: st.DrawFn, *, network: bool = True, iterations: int | None = 2) -> ExecutionGraph:
    """A few devices with compute and communication streams; random edges, each iteration after the last."""
    num_devices = draw(st.integers(1, 3))
    count = draw(st.integers(1, 14))
    tasks: list[dict[str, Any]] = []
    for i in range(count):
        device = draw(st.integers(0, num_devices - 1))
        task: dict[str, Any] = {
            "name": f"t{i}",
            "device": device,
            "work": draw(st.sampled_from([0.0, 0.5, 1.0, 1.7, 3.0])),
        }
        earlier = [f"t{j}" for j in range(i)]
        if earlier and draw(st.booleans()):
            task["after"] = draw(st.lists(st.sampled_from(earlier), max_size=2, unique=True))
        if network and draw(st.integers(0, 2)) == 0:
            task["kind"] = "transfer"
            peer = draw(st.integers(0, num_devices - 1))
            task["on"] = sorted(
                {f"comm{device}", f"comm{peer}"} if draw(st.booleans()) else {f"queue{device}"}
            )
            task["bytes"] = draw(st.sampled_from([0.0, 1.0, 2.5, 7.0]))
            task["links"] = {
                name: draw(st.sampled_from([1.0, 2.0]))
                for name in {f"out{device}", f"in{peer}", "core"}
                if draw(st.booleans())
            }
            task["cap"] = draw(st.sampled_from([1.5, 4.0]))
        else:
            task["on"] = [f"compute{device}"]
        task["priority"] = draw(st.integers(0, 2))
        task["boundary"] = i == count - 1
        tasks.append(task)
    streams: dict[str, dict[str, Any]] = {}
    for device in range(num_devices):
        streams[f"compute{device}"] = {"device": device}
        streams[f"comm{device}"] = {"device": device}
        kind = draw(st.sampled_from(["arrival", "priority", "program"]))
        streams[f"queue{device}"] = {"device": device, "discipline": kind, "width": draw(st.integers(1, 2))}
    links = {
        f"{side}{d}": draw(st.sampled_from([2.0, 3.0])) for side in ("out", "in") for d in range(num_devices)
    }
    links["core"] = 2.5
    # Every iteration after the one before, so that shared queues cannot be entered by all iterations at once.
    for task in tasks:
        task.setdefault("after", [])
        task["after"] = [*task["after"], (f"t{count - 1}", 1)]
    speeds = draw(st.sampled_from([(1.0, 1.0), (0.7, 1.0), (0.8, 0.6)]))
    return make_graph(
        tasks,
        streams=streams,
        links=links,
        max_iterations=iterations,
        link_service=draw(st.sampled_from(["fair", "weighted", "fifo"])),
        jitter=draw(st.sampled_from([0.0, 0.3])),
        seed=draw(st.integers(0, 5)),
        compute_speed_under_communication=speeds[0],
        communication_speed_under_compute=speeds[1],
    )


def by_instance(run: Any) -> Any:
    order = np.lexsort((run.task, run.iteration))
    return run.task[order], run.iteration[order], run.start[order], run.end[order], run.ready[order]


def fused_as_plain(
    tasks: list[dict[str, Any]], jitter: float, speeds: tuple[float, float]
) -> tuple[Any, Any]:
    """Play tasks one by one and contracted; both runs, after holding their instances against each other."""
    graph = make_graph(
        tasks,
        links={"nvlink": 10.0, "nic": 2.5},
        max_iterations=2,
        jitter=jitter,
        compute_speed_under_communication=speeds[0],
        communication_speed_under_compute=speeds[1],
    )
    plain, fused = play(graph, contract=False), play(graph)
    for a, b in zip(by_instance(plain), by_instance(fused), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    return plain, fused


@_QUIET
@given(graphs())
def test_runs_repeat_to_the_bit_and_keep_the_laws(graph: ExecutionGraph) -> None:
    first, second = play(graph), play(graph)
    for a, b in zip(by_instance(first), by_instance(second), strict=True):
        assert np.array_equal(a, b)
    assert first.num_instances == 2 * graph.num_tasks
    assert (np.diff(first.end) >= 0).all()
    assert (first.start >= first.ready - 1e-9).all()


@_QUIET
@given(graphs())
def test_contraction_changes_nothing(graph: ExecutionGraph) -> None:
    plain, fused = by_instance(play(graph, contract=False)), by_instance(play(graph, contract=True))
    assert np.array_equal(plain[0], fused[0])
    assert np.array_equal(plain[1], fused[1])
    for a, b in zip(plain[2:], fused[2:], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@_QUIET
@given(graphs(iterations=1))
def test_bound_is_a_bound(graph: ExecutionGraph) -> None:
    if graph.jitter == 0.0:
        run = play(graph)
        assert run.makespan >= bound(graph) * (1 - 1e-9)
        assert bound(graph) >= rate_bound(graph)


@_QUIET
@given(graphs(iterations=1), st.sampled_from([0.5, 4.0]))
def test_time_scales_with_work_and_bandwidth(graph: ExecutionGraph, factor: float) -> None:
    """Work times f and bandwidth over f: every time times f (no hidden constants)."""
    slower = replace(
        graph,
        work=graph.work * factor,
        cap=graph.cap / factor,
        link_table=replace(graph.link_table, capacity=graph.link_table.capacity / factor),
    )
    np.testing.assert_allclose(
        by_instance(play(slower))[3], by_instance(play(graph))[3] * factor, rtol=1e-8, atol=1e-9
    )


@_QUIET
@given(st.integers(2, 6), st.integers(1, 12), st.sampled_from([0.4, 1.0]))
def test_chains_are_fused_and_unfolded_exactly(chains: int, length: int, speed: float) -> None:
    """Runs of compute between transfers, jitter, coupled speeds: the record is that of the single tasks."""
    tasks: list[dict[str, Any]] = []
    for c in range(chains):
        for i in range(length):
            tasks.append({"name": f"c{c}.{i}", "work": 0.1 * (1 + (i * 7 + c) % 5), "on": ["compute"]})
        tasks.append(
            {"name": f"send{c}", "kind": "transfer", "bytes": 1.0 + c, "links": {"a": 1}, "on": [f"m{c % 2}"],
             "after": [f"c{c}.{length - 1}"]}
        )  # fmt: skip
    graph = make_graph(
        tasks, links={"a": 1.5}, max_iterations=3, jitter=0.2, seed=3, compute_speed_under_communication=speed
    )
    plain, fused = play(graph, contract=False), play(graph)
    for a, b in zip(by_instance(plain), by_instance(fused), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    if length > 1:
        assert fused.num_events < plain.num_events


@_QUIET
@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from([(1.0, 1.0), (0.8, 1.0), (0.8, 0.6)]),
    st.sampled_from([0.0, 0.2]),
    st.booleans(),
)
def test_chains_with_private_collectives_are_fused_exactly(
    blocks: int, layers: int, speeds: tuple[float, float], jitter: float, backwards: bool
) -> None:
    """Compute and a collective on private links alternate, sends in between disturb them."""
    tasks: list[dict[str, Any]] = []
    for b in range(blocks):
        for i in range(layers):
            before = [f"r{b}.{i - 1}"] if i else ([f"r{b - 1}.{layers - 1}"] if b else [])
            tasks.append({"name": f"c{b}.{i}", "work": 0.3 + 0.1 * i, "on": ["compute"], "after": before})
            tasks.append(
                {"name": f"r{b}.{i}", "kind": "transfer", "work": 0.05, "bytes": 1.0, "links": {"nvlink": 1},
                 "on": ["tp"], "after": [f"c{b}.{i}"]}
            )  # fmt: skip
        tasks.append(
            {"name": f"send{b}", "kind": "transfer", "work": 0.1, "bytes": 2.0, "links": {"nic": 1},
             "on": [f"pp{b % 2}"], "after": [f"r{b}.{layers - 1}"]}
        )  # fmt: skip
    if backwards:  # the order of tasks on different streams is not the order in which they run
        names = [task["name"] for task in tasks]
        tasks.sort(key=lambda task: (task["name"][0] == "c", names.index(task["name"])))
    fused_as_plain(tasks, jitter, speeds)


@_QUIET
@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([(1.0, 1.0), (0.8, 1.0), (0.8, 0.6), (1.0, 0.6)]),
    st.lists(st.sampled_from([0.03, 0.1, 0.2, 0.75]), min_size=3, max_size=3),
    st.sampled_from([0.0, 0.05, 0.3]),
    st.sampled_from([0.0, 0.2]),
    st.booleans(),
    st.booleans(),
)
def test_tasks_side_by_side_are_fused_exactly(
    blocks: int,
    layers: int,
    speeds: tuple[float, float],
    weights: list[float],
    latency: float,
    jitter: float,
    gathers: bool,
    recomputes: bool,
) -> None:
    """The backward of tensor parallelism: an all-reduce beside the weight gradient, sends disturb both.

    With sequence parallelism (``gathers``) the input is gathered beside the input gradient: pairs meet.
    """
    flow = {"kind": "transfer", "work": latency, "bytes": 1.0, "links": {"nvlink": 1}, "on": ["tp"]}
    tasks: list[dict[str, Any]] = []
    for b in range(blocks):
        for i in range(layers):
            before = [f"r{b}.{i - 1}", f"w{b}.{i - 1}"] if i else ([f"r{b - 1}.{layers - 1}"] if b else [])
            if recomputes:
                tasks.append({"name": f"c{b}.{i}", "work": 0.2, "on": ["compute"], "after": before[:1]})
                before = [f"c{b}.{i}", *before]
            if gathers:
                tasks.append({"name": f"g{b}.{i}", **flow, "after": before})
                before = [f"g{b}.{i}"]
                tasks.append({"name": f"a{b}.{i}", **flow, "after": before})
            tasks.append({"name": f"i{b}.{i}", "work": 0.3 + 0.1 * i, "on": ["compute"], "after": before})
            tasks.append({"name": f"r{b}.{i}", **flow, "after": [f"i{b}.{i}"]})
            both = [f"i{b}.{i}", *([f"a{b}.{i}"] if gathers else [])]
            tasks.append({"name": f"w{b}.{i}", "work": weights[i % 3], "on": ["compute"], "after": both})
        tasks.append(
            {"name": f"send{b}", "kind": "transfer", "work": 0.1, "bytes": 2.0, "links": {"nic": 1},
             "on": [f"pp{b % 2}"], "after": [f"r{b}.{layers - 1}"]}
        )  # fmt: skip
    plain, fused = fused_as_plain(tasks, jitter, speeds)
    if layers > 2 and not jitter:  # all but the last pair of a block, with what is between them
        assert fused.num_events <= plain.num_events - (2 + 3 * gathers) * blocks * (layers - 2)


def accumulated(layers: int, micro_batches: int, *, exchanged: bool) -> list[dict[str, Any]]:
    """Sequence parallelism: a gather and a scatter around each computation; then, if wanted, an exchange of
    gradients on the same links."""
    tasks: list[dict[str, Any]] = []
    before: list[Any] = [("update", 1)]
    for name in (f"{m}.{i}" for m in range(micro_batches) for i in range(layers)):
        moves = {"kind": "transfer", "work": 0.01, "bytes": 1.0, "links": {"nvlink": 1}, "on": ["tp"]}
        tasks += [
            {"name": f"gather{name}", **moves, "after": before},
            {"name": name, "work": 0.3, "on": ["compute"], "after": [f"gather{name}"]},
            {"name": f"scatter{name}", **moves, "after": [name]},
        ]
        before = [f"scatter{name}"]
    if exchanged:
        exchange = {"kind": "transfer", "bytes": 2.0, "links": {"nvlink": 1}, "on": ["dp"]}
        tasks.append({"name": "exchange", **exchange, "after": [f"{micro_batches - 1}.{layers - 1}"]})
        before = [*before, "exchange"]
    return [*tasks, {"name": "update", "work": 0.1, "on": ["compute"], "after": before}]


@_QUIET
@given(st.integers(1, 3), st.integers(2, 4), st.sampled_from([(1.0, 1.0), (0.8, 0.6)]), st.booleans())
def test_micro_batches_that_nothing_meets_cost_no_events(
    layers: int, micro_batches: int, speeds: tuple[float, float], exchanged: bool
) -> None:
    """Only the last scatter meets the exchange; what comes before is one event, however long it is."""
    events = [
        fused_as_plain(accumulated(layers, count, exchanged=exchanged), 0.0, speeds)[1].num_events
        for count in (micro_batches, micro_batches + 2)
    ]
    assert events[0] == events[1]
