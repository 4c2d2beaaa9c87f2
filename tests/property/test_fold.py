"""Folded equals unfolded, and classes are as coarse as they can be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sim.analysis.bound import step_bound
from sim.analysis.breakdown import activities, counter_waits, device_occupancy
from sim.analysis.timeline_from_run import timeline_from_run
from sim.engine import play
from sim.engine.record import RunRecord
from sim.errors import InvalidStrategyError
from sim.graph.execution import ExecutionGraph
from sim.lowering import lower_plan, make_plan
from sim.lowering.plan import Plan
from sim.spec import Cluster, Host, Scenario, Workload
from sim.spec.scenario import Perturbation
from tests.clusters import cluster, dgx1, plain_host, switched_host
from tests.scenarios import ideal, processor, scenario, serving_host, timed_layer, workload

ITERATIONS = 3


def model(*, experts: bool = False) -> Workload:
    """Eight layers in four blocks, alternately dense and (if wanted) of experts, with a tied output table."""
    layers = [
        timed_layer(
            i, 1e-3 * (1 + i % 3), 2e-3 * (1 + i % 2), block=i // 2,
            parameters=2e6 + 1e5 * i, tensor_parameters=2e6, tensor_all_reduce=True,
            input_elements=0 if i == 0 else 4e5, output_elements=4e5,
            expert_parameters=4e6 if experts and i % 2 else 0,
            expert_elements=4e5 if experts and i % 2 else 0, num_experts=4 if experts and i % 2 else 0,
        )
        for i in range(8)
    ]  # fmt: skip
    layers[-1] = layers[-1].model_copy(update={"shared_parameters": 1e6})
    return workload(layers, batch=4, num_experts=4 if experts else None)


DENSE, MIXTURE = model(), model(experts=True)
SERVING = {"cpu_device": "processor"}


def resolved(hosts: list[tuple[Host, int]], **fabric: Any) -> Cluster:
    """A cluster of several kinds of hosts, each of which can serve parameters."""
    kinds = [host.model_copy(update=SERVING) for host, _ in hosts]
    one = cluster(kinds[0], sum(count for _, count in hosts), **fabric)
    of = tuple(kind for kind, (_, count) in enumerate(hosts) for _ in range(count))
    types = (*one.device_types, processor())
    return one.model_copy(update={"host_types": tuple(kinds), "host_type_of": of, "device_types": types})


SPINE = {"kind": "leaf_spine", "hosts_per_leaf": 3, "num_spines": 2, "latency": 1e-6}
CLUSTERS = {
    "switch": resolved([(serving_host(1e10, 1e-6), 8)]),
    "uneven leaves": resolved([(serving_host(1e10, 1e-6), 8)], **SPINE),
    "oversubscribed": resolved([(serving_host(1e10), 8)], **SPINE, oversubscription=2),
    "nvswitch": resolved([(switched_host(4, 2, nvlink=1e11, nic=1e10), 2)], latency=1e-6),
    "rails": resolved(
        [(switched_host(4, 4), 4)], kind="rail_optimized", hosts_per_leaf=2, oversubscription=2
    ),
    "mesh": resolved([(dgx1(1), 2)]),
    "torus": resolved([(plain_host(1e10), 8)], kind="torus", dims=(4, 3)),
    "mixed": resolved([(switched_host(4, 2), 1), (plain_host(1e10, 2e-6), 4)], **SPINE),
}
STATES = ["replicated", "zero1", "zero2", "zero3", "local", "ps_dedicated", "ps_colocated"]


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """A job that folding may simplify, in every way its ranks can differ."""
    where = draw(st.sampled_from(sorted(CLUSTERS)))
    state = draw(st.sampled_from(STATES))
    pp = draw(st.sampled_from([1, 1, 2, 4]))
    fields: dict[str, Any] = {
        "tp": draw(st.sampled_from([1, 1, 2])),
        "pp": pp,
        "micro_batch_size": draw(st.sampled_from([1, 2, 4])),
        "overlap": draw(st.booleans()),
        "bucket_size": draw(st.sampled_from([1e9, 1.2e7])),
        "recompute": draw(st.sampled_from(["none", "full"])),
        "placement": draw(st.sampled_from([("tp", "cp", "dp", "pp"), ("dp", "cp", "pp", "tp")])),
        "ep": draw(st.sampled_from([1, 2])),
    }
    if pp > 1:
        fields["schedule"] = draw(st.sampled_from(["naive", "gpipe", "1f1b", "interleaved"]))
        if fields["schedule"] == "interleaved":
            fields |= {"pp": 2, "virtual_stages": 2, "micro_batch_size": 1}
    if state == "local":
        fields |= {"synchronization": "local", "local_steps": 2, "ep": 1}
    else:
        fields["state"] = state
    if state.startswith("ps_"):
        fields |= {"num_servers": draw(st.sampled_from([1, 2, 3])), "ep": 1}
    elif state == "zero3":
        fields["prefetch"] = draw(st.sampled_from([0, 1, 2]))
    elif state in ("replicated", "local"):
        fields["collective"] = draw(st.sampled_from(["auto", "ring", "tree", "hierarchical", "direct"]))
        fields["chunks"] = 2 if fields["collective"] == "hierarchical" else 1
    slow = draw(st.sampled_from([{}, {}, {3: 1.3}, {0: 1.1, 5: 1.1}]))
    speed = draw(st.sampled_from([1.0, 0.8]))
    return {"where": where, "slow_ranks": slow, "speed": speed, **fields}


def build(where: str, speed: float, **fields: Any) -> Scenario:
    calibration = ideal(
        server_speed=0.1, compute_speed_under_communication=speed, communication_speed_under_compute=speed
    )
    return scenario(
        MIXTURE if fields["ep"] > 1 else DENSE, CLUSTERS[where], calibration=calibration, **fields
    )


def played(one: Scenario) -> tuple[Plan, ExecutionGraph, RunRecord]:
    plan = make_plan(one)
    graph = lower_plan(plan)
    return plan, graph, play(graph, max_iterations=ITERATIONS)


def seconds_by_activity(graph: ExecutionGraph, run: RunRecord) -> np.ndarray:
    """Seconds per set of activities of every device, shape (devices, 2 ** levels)."""
    timeline = timeline_from_run(graph, run, window=run.window)
    found = activities(timeline, waits=counter_waits(graph, timeline))
    devices = range(len(graph.devices.name))
    return np.array([device_occupancy(found, np.array(run.window), np.array([d]))[0] for d in devices])


@settings(max_examples=60)
@given(jobs())
def test_folded_equals_unfolded(job: dict[str, Any]) -> None:
    one = build(**job)
    try:
        plan, graph, run = played(one)
    except InvalidStrategyError:
        assume(False)
    whole, unfolded, alone = played(one.model_copy(update={"fold": False}))
    assert run.step_time == pytest.approx(alone.step_time, rel=1e-9)
    assert run.boundary_times == pytest.approx(alone.boundary_times, rel=1e-9)

    # Every rank spends its time as the representative of its class does.
    classes, ranks = plan.classes.endpoint_class, whole.classes.endpoint_class
    members = np.flatnonzero(ranks >= 0)
    here, there = seconds_by_activity(graph, run), seconds_by_activity(unfolded, alone)
    assert here[classes[members]] == pytest.approx(there[ranks[members]], rel=1e-9, abs=1e-9 * run.makespan)

    # Every link carries what the representative of its class does.
    links, each = plan.classes.link_class, whole.classes.link_class
    loaded = np.flatnonzero(each >= 0)
    assert (links[loaded] >= 0).all()
    assert run.link_bytes[links[loaded]] == pytest.approx(alone.link_bytes[each[loaded]], rel=1e-9)
    assert step_bound(graph, tight=True) * graph.steps_per_iteration <= run.boundary_times[
        -1
    ] / ITERATIONS * (1 + 1e-9)


def num_classes(where: Cluster, *, slow_ranks: dict[int, float] | None = None, **fields: Any) -> int:
    plan = make_plan(scenario(DENSE, where, slow_ranks=slow_ranks, **fields))
    lower_plan(plan)
    return len(plan.classes.representatives)


EIGHT_HOSTS = (switched_host(4, 4), 8)
NON_BLOCKING = {
    "switch": resolved([EIGHT_HOSTS]),
    "leaves": resolved([EIGHT_HOSTS], kind="leaf_spine", hosts_per_leaf=4, num_spines=4),
    "rails": resolved([EIGHT_HOSTS], kind="rail_optimized", hosts_per_leaf=4, num_spines=4),
    "fat tree": resolved([EIGHT_HOSTS], kind="fat_tree"),
}


@pytest.mark.parametrize("fabric", NON_BLOCKING)
@pytest.mark.parametrize("state", ["replicated", "zero1", "zero3"])
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (4, 2), (4, 4), (2, 4)])
def test_regular_layouts_have_one_class_per_stage(fabric: str, state: str, tp: int, pp: int) -> None:
    assert num_classes(NON_BLOCKING[fabric], state=state, tp=tp, pp=pp, micro_batch_size=1) == pp


@pytest.mark.parametrize("hosts", [4, 16, 64])
def test_a_straggler_splits_only_itself_from_its_ring(hosts: int) -> None:
    where = resolved([(plain_host(), hosts)])
    assert num_classes(where, slow_ranks={2: 1.3}) == 2
    assert num_classes(where, slow_ranks={2: 1.3, 3: 1.3}) == 2
    assert num_classes(where, slow_ranks={2: 1.3, 3: 1.4}) == 3


def test_a_straggler_splits_what_shares_a_group_with_it() -> None:
    """Rank 5 of dp 16 x tp 2: itself, its tensor parallel peer, the rest of either data parallel group."""
    where = resolved([(switched_host(4, 4), 8)])
    assert num_classes(where, slow_ranks={5: 1.3}, tp=2) == 4


def test_only_leaves_of_another_size_differ() -> None:
    """Leaves of 3 hosts, 2:1 oversubscribed: of 8 = 3 + 3 + 2 hosts the full leaves are alike."""
    where = resolved([(serving_host(1e10), 8)], **SPINE, oversubscription=2)
    plan = make_plan(scenario(DENSE, where, state="ps_dedicated", num_servers=1))
    lower_plan(plan)
    workers = plan.classes.endpoint_class[:8].tolist()
    assert workers[:3] == workers[3:6]
    assert len(set(workers)) == 2


def test_random_and_unsynchronised_jobs_are_not_folded() -> None:
    where = CLUSTERS["switch"]
    assert num_classes(where, state="ps_dedicated", synchronization="asp") == 8 + 1
    one = scenario(DENSE, where).model_copy(update={"perturbation": Perturbation(jitter=0.1)})
    plan = make_plan(one)
    lower_plan(plan)
    assert len(plan.classes.representatives) == 8
