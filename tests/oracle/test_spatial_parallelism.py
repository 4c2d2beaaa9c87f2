"""Spatial parallelism: rows exchanged with the neighbours, work and activations divided, gradients summed."""

from __future__ import annotations

import numpy as np
import pytest

import sim
from sim.engine import play
from sim.graph.execution import Cause
from sim.lowering import lower, make_plan
from sim.spec.layer import Convolution
from sim.taxonomy import check
from tests.random_jobs import resolved
from tests.scenarios import scenario, serving_host

WHERE = resolved([(serving_host(1e10), 8)])
SPATIAL = {"cp": 4, "context_parallelism": "spatial"}


def test_each_convolution_exchanges_half_a_kernel_of_rows_forward_and_backward() -> None:
    model = sim.workload("vgg16", batch_per_device=4)
    graph = lower(scenario(model, WHERE, micro_batch_size=4, **SPATIAL))
    halo = graph.cause == Cause.CONTEXT_COMM
    widths = [(224, 3), (224, 64), (112, 64), (112, 128), (56, 128), (56, 256), (56, 256),
              (28, 256), (28, 512), (28, 512), (14, 512), (14, 512), (14, 512)]  # fmt: skip
    rows = [4 * 4.0 * width * channels for width, channels in widths]  # samples x bytes x one row
    expected = rows + rows[1:]  # the image has no gradient
    assert sorted(graph.flow_bytes[halo]) == pytest.approx(sorted(expected))
    # Two of four ranks have two neighbours: six messages per exchange, all at once.
    assert sorted(graph.total_bytes[halo] * 4) == pytest.approx(sorted(6 * np.array(expected)))


def test_work_and_activations_are_divided_and_gradients_are_summed_over_all_ranks() -> None:
    model = sim.workload("resnet50", batch_per_device=32)
    plain, spatial = (make_plan(scenario(model, WHERE, **fields)) for fields in ({"dp": 8}, SPATIAL))
    device = plain.device_of_rank(0)
    flops = [plan.layer_costs(device).forward_flops.sum() for plan in (plain, spatial)]
    assert flops[1] == pytest.approx(flops[0] / 4)
    activations = [plan.footprints[0]["activations"] for plan in (plain, spatial)]
    assert activations[1] == pytest.approx(activations[0] / 4)
    assert spatial.gradient_groups().shape == plain.gradient_groups().shape == (1, 8)


@pytest.mark.parametrize("slow", [{}, {2: 1.2}])
def test_folded_equals_unfolded(slow: dict[int, float]) -> None:
    model = sim.workload("alexnet", batch_per_device=8)
    one = scenario(model, WHERE, micro_batch_size=4, slow_ranks=slow, **SPATIAL)
    alone = play(lower(one.model_copy(update={"fold": False})))
    assert play(lower(one)).step_time == pytest.approx(alone.step_time, rel=1e-9)


def test_only_models_of_convolutions_are_divided_by_rows() -> None:
    strategy = sim.strategy(cp=2, context_parallelism="spatial")
    cluster = sim.cluster("single-gpu", num_hosts=4)
    (refusal,) = check(strategy, sim.workload("gpt2", global_batch_size=8), cluster)
    assert "is no chain of convolutions" in str(refusal)
    (refusal,) = check(
        sim.strategy(cp=8, context_parallelism="spatial"),
        sim.workload("resnet50", batch_per_device=8),
        sim.cluster("single-gpu", num_hosts=8),
    )
    assert "be at most the 7 rows" in str(refusal)
    smallest = min(
        op.out_height
        for layer in sim.workload("resnet50").layers
        for op in layer.ops
        if isinstance(op, Convolution)
    )
    assert smallest == 7
