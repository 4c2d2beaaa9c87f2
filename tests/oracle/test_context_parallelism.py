"""Context parallelism against closed forms: ring attention, Ulysses, gathered keys."""

from __future__ import annotations

import numpy as np
import pytest

from sim.engine import play
from sim.graph.execution import Cause, ExecutionGraph
from sim.lowering import lower
from sim.models.compute import layer_cost
from sim.spec import Cluster, Layer, Workload
from sim.spec.layer import Attention
from tests.random_jobs import resolved
from tests.scenarios import BANDWIDTH, ELEMENT, ideal, scenario, serving_host, workload

TOKENS, HEADS, WIDTH = 4096, 8, 64
RATE = 1e10


def attention(*, kv_heads: int = HEADS, causal: bool = False) -> Layer:
    core = Attention(
        query_length=TOKENS, key_length=TOKENS, heads=HEADS, kv_heads=kv_heads, head_dim=WIDTH,
        causal=causal, flash=True,
    )  # fmt: skip
    return Layer(name="block", kind="attention", block=0, ops=(core,))


def job(layer: Layer, count: int = 1) -> Workload:
    layers = [layer.model_copy(update={"name": f"block{i}", "block": i}) for i in range(count)]
    return workload(layers, sequence_length=TOKENS, num_heads=HEADS)


def hosts(cp: int, rate: float = RATE) -> Cluster:
    return resolved([(serving_host(rate), cp)])


def passes(layer: Layer, cp: int, where: Cluster) -> tuple[float, float]:
    cost = layer_cost(
        layer, device=where.device_types[0], dtype="fp32", micro_batch=1 / cp, calibration=ideal()
    )
    return cost.attention_forward_s, cost.attention_backward_s


def transfers(graph: ExecutionGraph) -> np.ndarray:
    """Bytes a rank sends in each exchange."""
    return np.asarray(graph.total_bytes[graph.cause == Cause.CONTEXT_COMM])


@pytest.mark.parametrize("cp", [2, 4, 8])
@pytest.mark.parametrize("rate", [1e8, 1e14])
def test_a_ring_step_is_the_longer_of_block_and_hop(cp: int, rate: float) -> None:
    layer, where = attention(), hosts(cp, rate)
    forward, backward = passes(layer, cp, where)
    output = TOKENS / cp * HEADS * WIDTH * ELEMENT
    hop, merge = 2 * output / rate, 3 * output / BANDWIDTH
    block = forward / cp + merge
    ring = forward / cp + (cp - 1) * max(block, hop)
    if hop > block:  # the last block follows the last hop
        ring += merge
    slow = (2 * cp - 1) * hop
    fast = backward + (cp - 1) * merge + hop
    step = play(lower(scenario(job(layer), where, cp=cp)), max_iterations=1).makespan
    assert step == pytest.approx(ring + (slow if hop > block else fast), rel=1e-6)


def test_a_ring_sends_keys_and_values_round_and_their_gradients_home() -> None:
    cp, kv_heads = 4, 2
    graph = lower(scenario(job(attention(kv_heads=kv_heads)), hosts(cp), cp=cp))
    block = 2 * TOKENS / cp * kv_heads * WIDTH * ELEMENT
    assert transfers(graph) == pytest.approx(np.full((cp - 1) + (cp - 1) + cp, block))


@pytest.mark.parametrize("kind", ["ring", "all_gather"])
def test_contiguous_causal_parts_cost_the_last_rank_nearly_twice(kind: str) -> None:
    cp, where = 4, hosts(4, 1e18)
    step = {
        balance: play(
            lower(
                scenario(
                    job(attention(causal=True)),
                    where,
                    cp=cp,
                    context_parallelism=kind,
                    context_balance=balance,
                )
            )
        ).step_time
        for balance in (True, False)
    }
    merges = 2 * (cp - 1) * 3 * TOKENS / cp * HEADS * WIDTH * ELEMENT / BANDWIDTH if kind == "ring" else 0.0
    ratio = (step[False] - merges) / (step[True] - merges)
    assert ratio == pytest.approx(2 - 1 / cp, rel=1e-6)


@pytest.mark.parametrize("cp", [2, 8])
def test_ulysses_is_four_all_to_alls_of_bsh_over_n_each_way(cp: int) -> None:
    layer, where = attention(), hosts(cp)
    graph = lower(scenario(job(layer), where, cp=cp, context_parallelism="ulysses"))
    sent = TOKENS * HEADS * WIDTH * ELEMENT / cp * (cp - 1) / cp
    assert transfers(graph) == pytest.approx(np.full(8, sent))
    assert play(graph).step_time == pytest.approx(sum(passes(layer, cp, where)) + 8 * sent / RATE, rel=1e-9)


def test_gathered_keys_are_gathered_again_and_their_gradients_scattered() -> None:
    cp = 4
    graph = lower(scenario(job(attention()), hosts(cp), cp=cp, context_parallelism="all_gather"))
    sent = 2 * TOKENS * HEADS * WIDTH * ELEMENT * (cp - 1) / cp
    assert transfers(graph) == pytest.approx(np.full(3, sent))


def test_context_parallel_ranks_share_activations_and_sum_gradients() -> None:
    layer = attention().model_copy(update={"parameters": 1e6, "stored_elements": 1e6})
    model = job(layer)
    memory = [
        lower(scenario(model, hosts(4), cp=cp, dp=4 // cp, state="zero1")).metadata["memory"] for cp in (1, 4)
    ]
    alone, shared = (stages[0] for stages in memory)  # type: ignore[index]
    assert shared["activations"] == alone["activations"] / 4
    assert shared["optimizer"] == alone["optimizer"]
    graph = lower(scenario(model, hosts(4), cp=4, collective="ring"))
    exchanged = graph.total_bytes[graph.cause == Cause.GRADIENT_COMM].sum()
    assert exchanged == pytest.approx(2 * 3 / 4 * 1e6 * ELEMENT)
