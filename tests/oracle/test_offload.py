"""Optimiser state in host memory against a closed form."""

from __future__ import annotations

import pytest

from sim.engine import play
from sim.lowering import lower
from tests.clusters import switched_host
from tests.random_jobs import resolved
from tests.scenarios import BANDWIDTH, ELEMENT, ideal, scenario, timed_layer, workload


@pytest.mark.parametrize("fold", [True, False])
def test_a_step_adds_both_transfers_and_an_update_shared_by_the_hosts_ranks(fold: bool) -> None:
    parameters, rate = 1e8, 1e10
    where = resolved([(switched_host(4, 4, nvlink=1e13, nic=rate), 1)])
    model = workload([timed_layer(0, 1e-3, 2e-3, parameters=parameters)])
    calibration = ideal(server_speed=1.0)
    steps = {}
    for offload in (False, True):
        one = scenario(
            model, where, calibration=calibration, fold=fold, state="zero1", offload_optimizer=offload
        )
        graph = lower(one)
        steps[offload] = play(graph, max_iterations=1).makespan
        memory = graph.metadata["memory"]
        assert memory[0]["optimizer"] == 0  # plain SGD has none
    shard = parameters / 4
    update = shard * (8 + ELEMENT) * 4 / BANDWIDTH  # SGD: weight read and written, gradient read
    moved = graph.total_bytes[[graph.names[n].startswith("optimizer.") for n in graph.name]]
    assert sorted(moved)[-2:] == pytest.approx([shard * ELEMENT] * 2)
    slot = 32e9 / 2  # two devices share the link of their PCIe switch to the processors
    assert steps[True] - steps[False] == pytest.approx(update + 2 * shard * ELEMENT / slot, rel=1e-3)
