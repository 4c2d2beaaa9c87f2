"""Sufficient factors: bytes, and the batch beyond which an all-reduce is less."""

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


def test_a_layer_sends_samples_times_rows_and_columns_to_everybody() -> None:
    model = sim.workload("vgg16", batch_per_device=4)
    graph = lower(scenario(model, WHERE, micro_batch_size=2, sufficient_factors="always"))
    named = np.array([graph.names[n].endswith(".factors") for n in graph.name])
    widths = [(4096, 25088), (4096, 4096), (1000, 4096)]
    expected = [(RANKS - 1) * 4 * (rows + columns) * ELEMENT for rows, columns in widths]
    assert sorted(graph.total_bytes[named]) == pytest.approx(sorted(expected))
    dense = graph.total_bytes[(graph.cause == Cause.GRADIENT_COMM) & ~named].sum()
    convolutions = model.num_parameters - sum(rows * columns + rows for rows, columns in widths)
    assert dense == pytest.approx(2 * (RANKS - 1) / RANKS * convolutions * ELEMENT, rel=1e-6)


@pytest.mark.parametrize("rows_columns", [(4096, 25088), (4096, 4096), (1000, 4096)])
def test_the_cheaper_of_factors_and_all_reduce_crosses_at_the_closed_form(
    rows_columns: tuple[int, int],
) -> None:
    """Per rank (P - 1) K (M + N) numbers against 2 (P - 1) / P of the matrix and its bias."""
    rows, columns = rows_columns
    crossing = 2 * (rows * columns + rows) / (RANKS * (rows + columns))
    for batch in (int(crossing), int(crossing) + 1):
        model = sim.workload("vgg16", batch_per_device=batch)
        plan = make_plan(scenario(model, WHERE, sufficient_factors="cheaper"))
        layer = next(
            i
            for i, one in enumerate(model.layers)
            if one.fully_connected and (one.fully_connected.n, one.fully_connected.k) == rows_columns
        )
        assert bool(plan.bucketing.factors(layer)) == (batch < crossing)


def test_factors_help_a_model_of_large_matrices_on_a_slow_network() -> None:
    cluster = sim.cluster("single-gpu", num_hosts=8, **{"host.nics.*.bandwidth": "25Gbps"})
    model = sim.workload("vgg16", batch_per_device=32)
    step = {
        kind: sim.run(model, cluster, sim.strategy(sufficient_factors=kind)).step_time_s
        for kind in ("never", "cheaper")
    }
    assert step["cheaper"] < step["never"]
