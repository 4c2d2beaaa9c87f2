"""Every synchronisation rule and update: staleness bound, limits, and the archetypes of Langer et al."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from sim.analysis.result import Result
from sim.analysis.simulate import simulate
from sim.graph.execution import Cause, TaskKind
from sim.spec.names import names_of
from sim.spec.strategy import LogicalTopology, Synchronization, UpdateSemantics
from sim.taxonomy import check
from sim.taxonomy.context import Context
from sim.taxonomy.rules import violations
from sim.taxonomy.states import STATES as FACTS
from sim.taxonomy.synchronizations import BARRIER_FREE
from tests.scenarios import even_workload, ideal, scenario, serving, serving_host

WORKERS = 8
MODEL = even_workload(3, 0.01, 0.02, parameters=1e6)
RACK = serving(serving_host(1e9), WORKERS)
SERVERS: dict[str, Any] = {"state": "ps_dedicated", "num_servers": 2}
PARAMETERS: dict[str, dict[str, Any]] = {
    "ssp": {"staleness": 2},
    "backup": {"backup_workers": 1},
    "soft_sync": {"gradients_per_update": 4},
    "delayed": {"delay": 1},
    "partial_allreduce": {"group_size": 3},
    "group_hybrid": {"group_size": 2},
    "local": {"local_steps": 3},
}
STATES = tuple(FACTS)


def run(*, slow: dict[int, float] | None = None, fold: bool = True, **fields: Any) -> Result:
    one = scenario(MODEL, RACK, calibration=ideal(server_speed=0.2), slow_ranks=slow, fold=fold, **fields)
    result = simulate(one)
    assert result.ok, result.message
    return result


def step(**fields: Any) -> float:
    found = run(**fields).step_time_s
    assert found is not None
    return found


@cache
def points() -> list[dict[str, Any]]:
    """Every valid combination of rule, state, update and topology, one number each."""
    found = []
    for rule in names_of(Synchronization):
        for state in STATES:
            for update in (None, *names_of(UpdateSemantics)):
                for topology in names_of(LogicalTopology):
                    fields = {"synchronization": rule, "state": state, "update": update, "topology": topology}
                    fields |= PARAMETERS.get(rule, {})
                    if topology == "tree":
                        fields["group_size"] = 2
                    if topology == "sharded_star":
                        fields["num_servers"] = 2
                    one = scenario(MODEL, RACK, **fields)
                    if not violations(Context.of(one.strategy, MODEL, RACK)):
                        found.append(fields)
    return found


def test_every_rule_update_and_topology_has_a_place() -> None:
    valid = points()
    for name, values in (
        ("synchronization", Synchronization),
        ("update", UpdateSemantics),
        ("topology", LogicalTopology),
    ):
        assert {point[name] for point in valid} - {None} == set(names_of(values))


@pytest.mark.parametrize("rule", names_of(Synchronization))
def test_a_rule_plays_wherever_it_is_valid_and_conserves_updates(rule: str) -> None:
    mine = [point for point in points() if point["synchronization"] == rule]
    assert mine
    for fields in mine[:: max(1, len(mine) // 4)]:
        result = run(slow={0: 1.3}, **fields)
        graph, played = result.graph, result.run
        assert graph is not None
        assert result.step_time_s >= 0.03 * (1 - 1e-9)
        worth = result.updates
        assert worth["bytes_per_update_per_worker"] > 0
        assert worth["samples_per_update"] >= worth["effective_batch_size"] >= 1
        assert 0 <= worth["staleness_mean"] <= worth["staleness_max"]
        assert sum(worth["staleness_histogram"].values()) == pytest.approx(1)
        # Nothing gets lost: every gradient that was computed is part of an update or counted as dropped.
        backward = (graph.kind == TaskKind.COMPUTE) & (graph.cause == Cause.BACKWARD)
        updates = graph.closes_update
        if not updates.any() or rule == "backup":
            continue
        last = played.window_iterations[1] - 1
        computed = np.isin(played.task, np.flatnonzero(backward)) & (played.iteration < last)
        closed = np.isin(played.task, np.flatnonzero(updates)) & (played.iteration < last)
        per_iteration = backward.sum() / updates.sum()
        assert closed.sum() * per_iteration == pytest.approx(computed.sum(), rel=0.02)


@pytest.mark.parametrize("rule", names_of(Synchronization))
def test_staleness_keeps_the_bound_of_its_rule(rule: str) -> None:
    for state in ("ps_dedicated", "replicated"):
        fields = {"synchronization": rule, "state": state, **PARAMETERS.get(rule, {})}
        if check(scenario(MODEL, RACK, **fields).strategy, MODEL, RACK):
            continue
        result = run(slow={0: 2.0}, **fields)
        most = result.updates["staleness_max"]
        if rule == "ssp":
            assert result.staleness["max_ahead"] <= fields["staleness"]
        elif rule == "delayed":
            assert most == fields["delay"]
        elif rule not in BARRIER_FREE:
            assert most == 0
        else:
            assert most > 0


# -- limits: what a rule with an extreme number equals ---------------------------------------------------


@pytest.mark.parametrize(
    ("slow", "overlap"),
    [
        ({0: 1.7}, True),
        (None, False),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((None, True), ({0: 1.7}, False))),
    ],
)
def test_rules_without_slack_are_barriers(slow: dict[int, float] | None, overlap: bool) -> None:
    common = SERVERS | {"slow": slow, "overlap": overlap}
    bsp = step(**common)
    assert step(synchronization="ssp", staleness=0, **common) == pytest.approx(bsp, rel=1e-9)
    assert step(synchronization="backup", backup_workers=0, **common) == pytest.approx(bsp, rel=1e-9)
    assert step(synchronization="delayed", **common) == pytest.approx(bsp, rel=1e-9)
    full = step(synchronization="soft_sync", gradients_per_update=WORKERS, **common)
    assert full == pytest.approx(bsp, rel=1e-9)
    one = step(synchronization="soft_sync", gradients_per_update=1, **common)
    assert one == pytest.approx(step(synchronization="asp", **common), rel=1e-9)


@pytest.mark.parametrize("slow", [None, {0: 1.7}])
def test_one_local_step_is_a_synchronous_one(slow: dict[int, float] | None) -> None:
    assert step(synchronization="local", slow=slow) == pytest.approx(step(overlap=False, slow=slow), rel=1e-9)
    whole = step(synchronization="partial_allreduce", group_size=WORKERS, slow=slow)
    assert whole == pytest.approx(step(overlap=False, slow=slow, collective="ring"), rel=1e-6)


def test_throughput_lies_between_synchronous_and_asynchronous() -> None:
    """SSP may be a tenth behind: its fast workers take bandwidth from the slow one, which all wait for."""
    slow = {0: 1.5}
    bsp, asp = step(slow=slow, **SERVERS), step(slow=slow, synchronization="asp", **SERVERS)
    for rule in (
        {"synchronization": "ssp", "staleness": 3},
        {"synchronization": "soft_sync"} | PARAMETERS["soft_sync"],
    ):
        assert asp * 0.999 <= step(slow=slow, **SERVERS, **rule) <= bsp * 1.1


# -- archetypes --------------------------------------------------------------------------------------------


def test_synchronous_servers_wait_for_the_slowest() -> None:
    assert step(slow={0: 3.0}, **SERVERS) > 0.09
    assert step(**SERVERS | {"num_servers": 1}) > step(**SERVERS)


def test_asynchronous_servers_see_everybody_else_once() -> None:
    found = run(synchronization="asp", **SERVERS).updates
    assert found["staleness_mean"] == pytest.approx(WORKERS - 1, rel=0.05)


@pytest.mark.parametrize(
    "fields",
    [
        {"topology": "graph", "graph": "random", "synchronization": "asp", "update": "push_sum"},
        pytest.param(
            {"topology": "graph", "graph": "random", "synchronization": "asp"}, marks=pytest.mark.slow
        ),
        {"topology": "full_mesh", "synchronization": "asp", "update": "gradient_sum", "fragments": 7},
    ],
)
def test_asynchronous_systems_are_immune_to_one_slow_worker(fields: dict[str, Any]) -> None:
    """Seven workers keep their pace beside one that is three times slower; a barrier loses two thirds."""
    plain, slowed = step(**fields), step(slow={0: 3.0}, **fields)
    expected = WORKERS / ((WORKERS - 1) + 1 / 3)
    assert slowed / plain == pytest.approx(expected, rel=0.04)
    assert step(slow={0: 3.0}) / step() > 2.5


def test_local_steps_divide_communication() -> None:
    bsp = step(overlap=False) - 0.03
    for tau in (2, 5, 10):
        assert step(synchronization="local", local_steps=tau) - 0.03 == pytest.approx(bsp / tau, rel=1e-6)


def test_diloco_sends_one_hth_of_the_bytes() -> None:
    every = run().updates["bytes_per_update_per_worker"]
    for steps in (5, 20):
        found = run(synchronization="local", local_steps=steps, update="outer_optimizer").updates
        assert found["bytes_per_update_per_worker"] / steps == pytest.approx(every / steps)
    four = {"exchange_bits": 4, "fragments": 2, "exchange_overlap": 1}
    found = run(synchronization="local", local_steps=10, update="outer_optimizer", **four).updates
    assert found["bytes_per_update_per_worker"] == pytest.approx(every / 8)


def test_gossip_bytes_are_one_model_per_peer() -> None:
    model = 4 * MODEL.num_parameters
    for degree in (1, 2, 4):
        found = run(topology="graph", graph_degree=degree).updates
        assert found["bytes_per_update_per_worker"] == pytest.approx(degree * model)


@pytest.mark.parametrize(
    "fields",
    [
        {"topology": "graph"},
        {"topology": "graph", "graph": "exponential", "update": "push_sum"},
        {"topology": "full_mesh", "update": "gradient_sum"},
        {"update": "sma"},
        {"synchronization": "delayed", "delay": 1},
        {
            "synchronization": "local",
            "local_steps": 4,
            "update": "outer_optimizer",
            "fragments": 2,
            "exchange_overlap": 1,
        },
        {"state": "ps_dedicated", "topology": "tree", "group_size": 4},
        {
            "state": "ps_colocated",
            "topology": "tree",
            "group_size": 2,
            "synchronization": "delayed",
            "delay": 1,
        },
        {"state": "ps_dedicated", "synchronization": "local", "local_steps": 3},
    ],
)
@pytest.mark.parametrize("slow", [pytest.param(None, marks=pytest.mark.slow), {3: 1.4}])
def test_folded_equals_unfolded(fields: dict[str, Any], slow: dict[int, float] | None) -> None:
    folded = run(slow=slow, **fields)
    assert folded.step_time_s == pytest.approx(step(slow=slow, fold=False, **fields), rel=1e-9)


def test_servers_must_hold_the_model_in_the_memory_of_their_hosts() -> None:
    """Parameters and the sum in fp32, and for DC-ASGD the model that each of the workers pulled."""
    fields = {**SERVERS, "synchronization": "asp"}
    assert run(**fields).server_memory_bytes == pytest.approx(2 * 4 * MODEL.num_parameters / 2)
    compensated = run(**fields, delay_compensation=True)
    assert compensated.server_memory_bytes == pytest.approx((2 + WORKERS) * 4 * MODEL.num_parameters / 2)
    # Two more passes over the slice of a server (4 bytes each): plain SGD reads and writes three times.
    updates = [
        run(**each).task_seconds["optimizer"] for each in (fields, fields | {"delay_compensation": True})
    ]
    assert updates[1] / updates[0] == pytest.approx(5 / 3, rel=0.05)
    host = serving_host(1e9).model_copy(update={"memory_bytes": 30 * MODEL.num_parameters / 2})
    small = serving(host, WORKERS)
    for asked, fits in ((fields, True), (fields | {"delay_compensation": True}, False)):
        result = simulate(scenario(MODEL, small, calibration=ideal(server_speed=0.2), **asked))
        assert result.ok == fits
    assert result.missing_bytes == pytest.approx((40 - 30) * MODEL.num_parameters / 2)
    assert "per server host" in result.message
