"""Sharded state: bytes of memory and volumes of communication against the published forms."""

from __future__ import annotations

import pytest

from sim.graph.execution import Cause
from sim.lowering import lower, make_plan
from sim.models.memory import stage_memory
from sim.spec import Workload
from tests.random_jobs import resolved
from tests.scenarios import ELEMENT, scenario, serving_host, timed_layer, workload

RANKS, PARAMETERS = 8, 8e6
WHERE = resolved([(serving_host(1e10), RANKS)])


def model(micro_batches: int = 1) -> Workload:
    layers = [timed_layer(i, 1e-3, 2e-3, parameters=PARAMETERS / 4) for i in range(4)]
    return workload(layers, batch=micro_batches)


def volumes(micro_batches: int = 1, **fields: object) -> tuple[float, float]:
    """Bytes a rank sends of gradients and of parameters in one step, in units of the parameters' bytes."""
    graph = lower(scenario(model(micro_batches), WHERE, micro_batch_size=1, collective="ring", **fields))
    sent = [graph.total_bytes[graph.cause == c].sum() for c in (Cause.GRADIENT_COMM, Cause.PARAMETER_COMM)]
    return sent[0] / (PARAMETERS * ELEMENT), sent[1] / (PARAMETERS * ELEMENT)


SHARE = (RANKS - 1) / RANKS


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"state": "replicated"}, (2 * SHARE, 0)),
        ({"state": "zero1"}, (SHARE, SHARE)),
        ({"state": "zero1", "shard_reduction": "all_reduce"}, (2 * SHARE, SHARE)),
        ({"state": "zero2"}, (SHARE, SHARE)),
        ({"state": "zero3"}, (SHARE, 2 * SHARE)),
        ({"state": "zero3", "reshard_after_forward": False}, (SHARE, SHARE)),
    ],
)
def test_volumes_are_two_two_and_three_times_the_parameters(
    fields: dict[str, object], expected: tuple[float, float]
) -> None:
    """Rajbhandari et al., ZeRO, section 7: 2, 2 and 3 Psi (times (n - 1) / n)."""
    assert volumes(**fields) == pytest.approx(expected)


@pytest.mark.parametrize("state", ["zero1", "zero2", "zero3"])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_hybrid_sharding_sums_each_shard_over_its_copies_once(
    state: str, size: int, micro_batches: int
) -> None:
    """Within a group as ever; between groups one all-reduce of a shard, after the last micro-batch."""
    within, copies = (size - 1) / size, RANKS // size
    times = 1 if state == "zero1" else micro_batches
    between = 2 * (copies - 1) / copies / size
    gathers = 2 * micro_batches if state == "zero3" else 1
    found = volumes(micro_batches, state=state, shard_ranks=size)
    assert found == pytest.approx((times * within + between, gathers * within))


def test_gradients_summed_for_everybody_need_no_second_sum() -> None:
    """InternEvo: an all-reduce over all replicas, gathers inside a group of 4."""
    found = volumes(state="zero1", shard_ranks=4, shard_reduction="all_reduce")
    assert found == pytest.approx((2 * SHARE, 3 / 4))


def test_neighbours_share_and_their_peers_hold_copies() -> None:
    plan = make_plan(scenario(model(), WHERE, state="zero3", shard_ranks=4))
    assert plan.shard_groups().tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert plan.replica_groups().tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize(
    ("state", "bytes_each"),
    [("replicated", 16.0), ("zero1", 4 + 12 / 4), ("zero2", 2 + 14 / 4), ("zero3", 16 / 4)],
)
def test_bytes_of_mixed_precision_adam(state: str, bytes_each: float) -> None:
    """16 Psi, 4 Psi + 12 Psi / N, 2 Psi + 14 Psi / N, 16 Psi / N; N the ranks that share one copy."""
    mixed = model().model_copy(update={"dtype": "bf16", "optimizer": "adam"})
    strategy = scenario(mixed, WHERE, state=state).strategy
    if state != "replicated":
        strategy = strategy.model_copy(update={"shard_ranks": 4})
    sizes = stage_memory(mixed.layers, strategy=strategy, workload=mixed, micro_batch=1, dp=RANKS)
    states = sizes["weights"] + sizes["gradients"] + sizes["optimizer"]
    assert states == pytest.approx(bytes_each * PARAMETERS)
