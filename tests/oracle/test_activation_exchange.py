"""Layers held by parts: bytes, work, and the batch beyond which an all-reduce is less."""

from __future__ import annotations

import numpy as np
import pytest

import sim
from sim.graph.execution import Cause
from sim.lowering import lower, make_plan
from tests.random_jobs import resolved
from tests.scenarios import scenario, serving_host

RANKS = 8
WHERE = resolved([(serving_host(1e10), RANKS)])
ELEMENT = 4.0
FULLY_CONNECTED = [(4096, 25088), (4096, 4096), (1000, 4096)]  # rows, columns


def test_activations_travel_and_gradients_of_held_layers_do_not() -> None:
    """Samples x columns gathered forward, summed and scattered backward, for both micro-batches."""
    model = sim.workload("vgg16", batch_per_device=4)
    graph = lower(scenario(model, WHERE, micro_batch_size=2, activation_exchange="always"))
    names = np.array([graph.names[n] for n in graph.name])
    expected = [(RANKS - 1) * 2 * columns * ELEMENT for _, columns in FULLY_CONNECTED for _ in range(2)]
    moved = graph.total_bytes * (graph.cause == Cause.TENSOR_COMM)
    for operation in ("all_gather", "reduce_scatter"):
        ours = np.char.endswith(names, operation)
        assert sorted(moved[ours]) == pytest.approx(sorted(expected))
    dense = graph.total_bytes[graph.cause == Cause.GRADIENT_COMM].sum()
    convolutions = model.num_parameters - sum(rows * columns + rows for rows, columns in FULLY_CONNECTED)
    assert dense == pytest.approx(2 * (RANKS - 1) / RANKS * convolutions * ELEMENT, rel=1e-6)


@pytest.mark.parametrize("rows_columns", FULLY_CONNECTED)
def test_the_cheaper_of_activations_and_all_reduce_crosses_at_the_closed_form(
    rows_columns: tuple[int, int],
) -> None:
    """2 (P - 1) K N numbers of a rank against 2 (P - 1) / P of the matrix and its bias."""
    rows, columns = rows_columns
    crossing = (rows * columns + rows) / (RANKS * columns)
    for batch in (int(crossing), int(crossing) + 1):
        model = sim.workload("vgg16", batch_per_device=batch)
        plan = make_plan(scenario(model, WHERE, activation_exchange="cheaper"))
        layer = next(
            i
            for i, one in enumerate(model.layers)
            if one.fully_connected and (one.fully_connected.n, one.fully_connected.k) == rows_columns
        )
        assert (layer in plan.held) == (batch < crossing)


def test_a_rank_keeps_its_part_and_computes_as_much_as_before() -> None:
    model = sim.workload("vgg16", batch_per_device=32)
    whole, parts = (
        make_plan(scenario(model, WHERE, activation_exchange=choice)) for choice in ("never", "always")
    )
    held = sum(rows * columns + rows for rows, columns in FULLY_CONNECTED)
    assert sum(map(parts.local_elements, range(len(model.layers)))) == pytest.approx(
        model.num_parameters - held * (1 - 1 / RANKS)
    )
    for component in ("weights", "optimizer"):
        assert parts.footprints[0][component] < 0.3 * whole.footprints[0][component]
    device = whole.device_of_rank(0)
    flops = [plan.layer_costs(device).forward_flops.sum() for plan in (whole, parts)]
    assert flops[0] == pytest.approx(flops[1])
    assert parts.encoding.bytes_per_update == pytest.approx((model.num_parameters - held) * ELEMENT)


def test_it_helps_a_model_of_large_matrices_on_a_slow_network() -> None:
    cluster = sim.cluster("single-gpu", num_hosts=8)
    model = sim.workload("vgg16", batch_per_device=32)
    result = {
        choice: sim.run(model, cluster, sim.strategy(activation_exchange=choice))
        for choice in ("never", "cheaper")
    }
    assert result["cheaper"].step_time_s < result["never"].step_time_s
    same = [one.mfu * one.step_time_s for one in result.values()]
    assert same[0] == pytest.approx(same[1])
