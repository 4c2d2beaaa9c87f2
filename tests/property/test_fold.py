"""Folded equals unfolded, and classes are as coarse as they can be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings

from sim.analysis.bound import step_bound
from sim.analysis.breakdown import activities, counter_waits, device_occupancy
from sim.analysis.timeline_from_run import timeline_from_run
from sim.engine import play
from sim.engine.record import RunRecord
from sim.errors import InvalidStrategyError
from sim.graph.execution import ExecutionGraph
from sim.lowering import lower_plan, make_plan
from sim.lowering.plan import Plan
from sim.spec import Cluster, Scenario
from sim.spec.scenario import Perturbation
from tests.clusters import plain_host, switched_host
from tests.random_jobs import CLUSTERS, DENSE, SPINE, build, jobs, resolved
from tests.scenarios import scenario, serving_host

ITERATIONS = 3


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
