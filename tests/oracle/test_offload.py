"""Optimiser state in host memory against a closed form."""

from __future__ import annotations

import pytest

from sim.analysis.simulate import simulate
from sim.engine import play
from sim.lowering import lower, make_plan
from sim.lowering.host_memory import host_footprint
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


def test_what_leaves_devices_must_fit_their_hosts() -> None:
    """Adam in mixed precision: 12 bytes of states, 2 of gradients, 2 of the compute copy."""
    parameters, fields = 1e9, {"state": "zero3", "offload_optimizer": True, "offload_parameters": True}
    layers = [timed_layer(0, 1e-3, 2e-3, parameters=parameters, stored_elements=1e6, input_elements=1e6)]
    model = workload(layers, batch=2).model_copy(update={"dtype": "fp16", "optimizer": "adam"})
    for hosts, room, fits in ((1, 15.9e9, False), (1, 16.1e9, True), (2, 8.1e9, True)):
        host = switched_host(4, 4).model_copy(update={"memory_bytes": room})
        where = resolved([(host, hosts)])
        result = simulate(scenario(model, where, calibration=ideal(server_speed=1.0), **fields))
        assert result.ok == fits, result.message
        if not fits:
            assert result.missing_bytes == pytest.approx(16 * parameters - room)
            assert "try strategy.offload_target=nvme" in result.message
    held, _ = host_footprint(make_plan(scenario(model, where, offload_activations=True)))
    assert held == {"activations": pytest.approx(4 * 2 * 1e6 * 2)}  # ranks of a host, samples, bytes
    held, capacity = host_footprint(make_plan(scenario(model, where)))
    assert (held, capacity) == ({}, 0.0)
