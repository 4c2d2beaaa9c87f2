"""Expert parallelism folded into the ranks of a stage: bytes, work and memory against closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from sim.architecture import generate
from sim.graph.execution import Cause
from sim.lowering import lower, make_plan
from sim.models.compute import chain_cost
from sim.spec import Workload
from tests.random_jobs import resolved
from tests.scenarios import ELEMENT, ideal, scenario, serving_host

TOKENS, HIDDEN, FFN, EXPERTS, TOP_K = 512, 256, 512, 8, 2
WHERE = resolved([(serving_host(1e10), 8)])


def mixture() -> Workload:
    return generate(
        "moe",
        {
            "name": "mixture", "num_layers": 1, "hidden": HIDDEN, "num_heads": 8, "ffn_hidden": FFN,
            "vocabulary": 512, "sequence_length": TOKENS, "num_experts": EXPERTS, "top_k": TOP_K,
            "dtype": "fp32", "optimizer": "adam", "batch_per_device": 1, "dropout": False,
        },
    )  # fmt: skip


FOLDED = {"tp": 2, "ep": 8, "expert_tp": 1, "sequence_parallel": True}


@pytest.mark.parametrize(
    ("fields", "tokens"), [({"ep": 4}, TOKENS), ({"ep": 4, "cp": 2}, TOKENS / 2), (FOLDED, TOKENS / 2)]
)
def test_a_rank_sends_its_tokens_top_k_times_four_times_over(fields: dict[str, int], tokens: float) -> None:
    graph = lower(scenario(mixture(), WHERE, **fields))
    sent = graph.total_bytes[graph.cause == Cause.EXPERT_COMM]
    ep = fields["ep"]
    assert sent == pytest.approx(np.full(4, tokens * TOP_K * HIDDEN * ELEMENT * (ep - 1) / ep))


def test_whole_experts_on_tensor_parallel_ranks_need_no_tensor_collective() -> None:
    counts = []
    for fields in ({"ep": 4}, {"ep": 8, "expert_tp": 1}):
        graph = lower(scenario(mixture(), WHERE, tp=2, sequence_parallel=True, **fields))
        names = [graph.names[n] for n in graph.name[graph.cause == Cause.TENSOR_COMM]]
        counts.append(sum("moe" in name for name in names))
    assert counts == [5, 0]  # gather, scatter, gather of gradients, gather of the input again, scatter


@pytest.mark.parametrize("inside", [1, 2, 4])
def test_folding_changes_neither_work_nor_parameters_of_a_rank(inside: int) -> None:
    plan = make_plan(scenario(mixture(), WHERE, tp=4, ep=2, expert_tp=inside, dp=2, sequence_parallel=True))
    layer = next(i for i, layer in enumerate(plan.workload.layers) if layer.num_experts)
    costs = {}
    for tp in (inside, 4):
        costs[tp] = chain_cost(
            plan.workload.layers,
            device=WHERE.device_types[0],
            dtype="fp32",
            micro_batch=1,
            tp=4,
            ep=2,
            sequence_parallel=True,
            expert_tp=tp,
            calibration=ideal(),
        )
    router = 2 * TOKENS * HIDDEN * EXPERTS  # replicated where the tokens are
    assert costs[inside].forward_flops[layer] + router * (1 - inside / 4) == pytest.approx(
        costs[4].forward_flops[layer]
    )
    experts = plan.workload.layers[layer].expert_parameters
    assert plan.local_elements(layer, expert=True) == pytest.approx(experts / (2 * inside))
    assert plan.gradient_groups(expert=True).shape == (2 * inside, 8 // (2 * inside))


def test_the_busiest_expert_or_its_capacity_decides() -> None:
    model = mixture()
    layer = next(i for i, layer in enumerate(model.layers) if layer.num_experts)
    graphs = {
        key: lower(scenario(model, WHERE, ep=8, **{key: value}))
        for key, value in (("expert_imbalance", 1.5), ("expert_capacity", 2.0), ("dp", 8))
    }
    sent = {key: g.total_bytes[g.cause == Cause.EXPERT_COMM].sum() for key, g in graphs.items()}
    assert sent["expert_imbalance"] == pytest.approx(1.5 * sent["dp"])
    assert sent["expert_capacity"] == pytest.approx(2 * sent["dp"])
    memory = {key: make_plan(scenario(model, WHERE, ep=8, **{key: v})).footprints[0]["activations"]
              for key, v in (("dp", 8), ("expert_capacity", 2.0))}  # fmt: skip
    routed = model.layers[layer].stored_tensor_elements + 2 * model.layers[layer].expert_elements
    assert memory["expert_capacity"] - memory["dp"] == pytest.approx(routed * ELEMENT)
