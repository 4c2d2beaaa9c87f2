"""Random jobs: whatever the engine plays, every instant of a device has exactly one cause."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sim.analysis.breakdown import activities, breakdown, counter_waits, device_occupancy, summarize
from sim.analysis.critical_path import critical_path
from sim.analysis.intervals import by_precedence, occupancy
from sim.analysis.links import link_table
from sim.analysis.timeline_from_run import timeline_from_run
from sim.engine import play
from sim.graph.builder import GraphBuilder
from sim.graph.execution import Cause, ExecutionGraph, TaskKind
from tests.handmade import links

SECONDS = st.sampled_from([0.0, 0.1, 0.25, 0.3, 1.0, 1.7])
CAUSES = [
    Cause.FORWARD,
    Cause.BACKWARD,
    Cause.OPTIMIZER,
    Cause.DATA,
    Cause.GRADIENT_COMM,
    Cause.PIPELINE_COMM,
]


@st.composite
def jobs(draw: st.DrawFn) -> ExecutionGraph:
    """Ranks that compute and exchange over two shared links, in a random but deadlock-free order."""
    builder = GraphBuilder()
    count = draw(st.integers(1, 4))
    devices = [builder.device(f"rank{i}", i, multiplicity=draw(st.integers(1, 3))) for i in range(count)]
    load = builder.load_row(np.array([0, 1]), np.array([1.0, draw(st.sampled_from([1.0, 2.0]))]))
    last: dict[int, list[int]] = {device: [] for device in devices}
    roots: list[int] = []
    for _ in range(draw(st.integers(1, 12))):
        cause = draw(st.sampled_from(CAUSES))
        chosen = draw(st.sets(st.sampled_from(devices), min_size=1, max_size=2))
        transfer = cause in (Cause.GRADIENT_COMM, Cause.PIPELINE_COMM)
        members = sorted(chosen) if transfer else [min(chosen)]
        name = "comm" if transfer else draw(st.sampled_from(["compute", "side"]))
        after = [task for device in members for task in last[device] if draw(st.booleans())]
        task = builder.task(
            TaskKind.TRANSFER if transfer else TaskKind.COMPUTE, cause.name, cause, device=members[0],
            streams=tuple(builder.stream(device, name) for device in members), after=sorted(set(after)),
            work=draw(SECONDS), flow_bytes=draw(SECONDS) if transfer else 0.0, loads=load if transfer else 0,
        )  # fmt: skip
        roots.append(task)
        for device in members:
            last[device].append(task)
    mode = draw(st.sampled_from(["bsp", "asp"]))
    closing = []
    for device in devices:
        work = builder.compute(device, 0.5, "end", Cause.FORWARD)
        end = builder.control("step_end", device=device, after=sorted({*last[device], work}), boundary=True)
        for task in roots:
            if draw(st.booleans()) or not last[device]:
                builder.edge(task, end, 1)
        closing.append((work, end))
    # Every task is bounded by the iteration before; under bsp all ranks wait for all.
    for task in roots:
        builder.edge(task, end, 1)
    for work, own in closing:
        for _, other in closing if mode == "bsp" else [(work, own)]:
            builder.edge(work, other, 1)
    return builder.build(links(1.0, 2.0), metadata={"synchronization": mode})


@settings(max_examples=25)
@given(jobs(), st.integers(1, 4))
def test_parts_add_up_to_the_step(graph: ExecutionGraph, iterations: int):
    run = play(graph, max_iterations=iterations)
    result = breakdown(graph, run, timeline_from_run(graph, run, window=run.window))
    assert min(result.parts.values()) >= 0.0
    assert math.isclose(math.fsum(result.parts.values()), result.step_time_s, rel_tol=1e-9)
    assert 0.0 <= result.overlap_fraction <= 1.0 + 1e-12
    if graph.metadata["synchronization"] == "bsp":
        assert math.isclose(result.step_time_s, run.step_time, rel_tol=1e-9)


@settings(max_examples=25)
@given(jobs())
def test_parts_add_up_in_the_steady_state_of_every_device(graph: ExecutionGraph):
    assume(graph.metadata["synchronization"] == "bsp")
    run = play(graph)
    timeline = timeline_from_run(graph, run, window=run.window)
    found = activities(timeline, waits=counter_waits(graph, timeline))
    span = run.window[1] - run.window[0]
    work = np.bincount(
        graph.device,
        weights=np.where(graph.kind == TaskKind.COMPUTE, graph.work, 0.0),
        minlength=len(graph.devices.name),
    )
    for device in range(len(graph.devices.name)):
        row = device_occupancy(found, np.array(run.window), np.array([device]))[0]
        result = summarize(row, span, 1.0, "")
        assert math.isclose(math.fsum(result.parts.values()), span, rel_tol=1e-9)
        # No more than the device's compute work, which may overlap on its two compute streams.
        iterations = run.window_iterations[1] - run.window_iterations[0]
        assert result.busy_s <= iterations * work[device] * (1 + 1e-9) + 1e-9


@settings(max_examples=25)
@given(jobs())
def test_critical_path_covers_the_window(graph: ExecutionGraph):
    run = play(graph, max_iterations=3)
    path = critical_path(graph, run)
    assert path["share"].sum() <= 1.0 + 1e-9
    assert (path["end_s"].to_numpy()[:-1] <= path["start_s"].to_numpy()[1:] + 1e-9).all()
    assert math.isclose(path["end_s"].iloc[-1], run.window[1], rel_tol=1e-9)
    # Nothing but edges, streams and counters holds tasks in these jobs, so nothing is unexplained.
    assert math.isclose(path["share"].sum(), 1.0, rel_tol=1e-9)


@settings(max_examples=25)
@given(jobs())
def test_links_carry_the_bytes_of_the_template(graph: ExecutionGraph):
    run = play(graph)
    steps = run.window_iterations[1] - run.window_iterations[0]
    table = link_table(graph, run, steps).set_index("link")
    owner = graph.links.rows()
    expected = np.bincount(
        graph.links.index, weights=graph.flow_bytes[owner] * graph.link_coefficient, minlength=2
    )
    for number, name in enumerate(graph.link_table.name):
        assert math.isclose(table.loc[name, "bytes_per_step"], expected[number], rel_tol=1e-9, abs_tol=1e-12)
    assert table["utilisation"].between(0, 1).all()


interval_lists = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 6)), max_size=30)


@given(interval_lists)
def test_occupancy_equals_counting_unit_slots(rows: list[tuple[int, int, int]]):
    level, start, length = (np.array([row[i] for row in rows], float) for i in range(3))
    table = occupancy(np.zeros(len(rows), np.int64), level.astype(np.int64), start, start + length, 1, 3)
    expected = np.zeros(8)
    for slot in range(30):
        mask = 0
        for kind, begin, span in rows:
            if begin <= slot < begin + span:
                mask |= 1 << kind
        if mask:
            expected[mask] += 1
    assert np.allclose(table[0], expected)
    first = [expected[[m for m in range(8) if m & ((2 << bit) - 1) == 1 << bit]].sum() for bit in range(3)]
    assert np.allclose(by_precedence(table, 3)[0], first)
