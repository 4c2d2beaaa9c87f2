"""The tasks of a step: what follows what, what is sent, and what is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim.architecture import generate
from sim.engine import play
from sim.graph.execution import Cause, ExecutionGraph, TaskKind
from sim.lowering import lower
from sim.models.memory import in_flight_micro_batches
from sim.spec import Strategy, Workload
from tests.clusters import cluster, plain_host
from tests.random_jobs import DENSE
from tests.scenarios import even_workload, scenario, serving, serving_host

TOKENS, HIDDEN, LAYERS = 32, 64, 2


def transformer(**fields: Any) -> Workload:
    sizes = {
        "num_layers": LAYERS,
        "hidden": HIDDEN,
        "num_heads": 4,
        "vocabulary": 128,
        "sequence_length": TOKENS,
    }
    return generate("transformer", {**sizes, "batch_per_device": 2, "dtype": "fp32", **fields})


def lowered(model: Workload, ranks: int, **fields: Any) -> ExecutionGraph:
    return lower(scenario(model, cluster(plain_host(), ranks), **fields))


def named(graph: ExecutionGraph, *words: str) -> list[int]:
    names = [graph.names[name] for name in graph.name.tolist()]
    return [task for task, name in enumerate(names) if all(word in name for word in words)]


def before(graph: ExecutionGraph, task: int) -> set[int]:
    return set(graph.predecessors.row(task).tolist())


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_no_collective_is_empty(sequence_parallel: bool) -> None:
    """The embedding has no input gradient; nothing is sent for it."""
    graph = lowered(transformer(), 4, tp=2, pp=2, sequence_parallel=sequence_parallel, micro_batch_size=1)
    assert (graph.flow_bytes[graph.kind == TaskKind.TRANSFER] > 0).all()


def test_tensor_parallel_all_reduces_of_a_transformer() -> None:
    """Forward: embedding, two a block. Backward: two a block, and one for the shared input of the head."""
    graph = lowered(transformer(), 2, tp=2, micro_batch_size=1)
    reduces = np.flatnonzero(graph.cause == Cause.TENSOR_COMM)
    assert len(reduces) == 2 * ((1 + 2 * LAYERS) + (2 * LAYERS + 1))
    assert graph.flow_bytes[reduces] == pytest.approx(TOKENS * HIDDEN * 4)  # 2 (n - 1) / n of the buffer


def test_sequence_parallel_gathers_and_scatters_of_a_transformer() -> None:
    """A block half gathers its input, the gradient of its output, and its input again for the weights."""
    graph = lowered(transformer(batch_per_device=1), 2, tp=2, sequence_parallel=True)
    halves = 2 * LAYERS
    assert len(named(graph, "all_gather")) == halves * 3 + 1 + 2  # the embedding's output, the head's input
    assert len(named(graph, "reduce_scatter")) == halves * 2 + 1 + 1


def test_weight_gradients_run_beside_the_all_reduce_of_the_input_gradient() -> None:
    graph = lowered(transformer(batch_per_device=1), 2, tp=2)
    (inputs,), (weights,) = (named(graph, f"block1.mlp.backward.{part}") for part in ("input", "weight"))
    forward, backward = named(graph, "block1.mlp.all_reduce")
    assert before(graph, backward) == {inputs}
    assert before(graph, weights) == {inputs}
    (following,) = named(graph, "block1.attention.backward.input")
    assert before(graph, following) == {backward}
    assert forward < inputs < weights


def test_full_recomputation_repeats_blocks_but_neither_embedding_nor_head() -> None:
    graph = lowered(transformer(batch_per_device=1), 1, recompute="full")
    repeated = {graph.names[graph.name[task]] for task in named(graph, ".recompute")}
    blocks = {f"block{b}.{half}.recompute" for b in range(LAYERS) for half in ("attention", "mlp")}
    assert repeated == blocks


def test_selective_recomputation_repeats_attention_cores() -> None:
    graph = lowered(transformer(batch_per_device=1), 1, recompute="selective")
    repeated = {graph.names[graph.name[task]] for task in named(graph, ".recompute")}
    assert repeated == {f"block{b}.attention.recompute" for b in range(LAYERS)}
    (again,), (backward,) = (
        named(graph, "block0.attention.recompute"),
        named(graph, "block0.attention.backward"),
    )
    assert before(graph, backward) == {again}


def test_eight_bit_training_exchanges_sixteen_bit_gradients() -> None:
    model = even_workload(1, 1.0, 2.0, parameters=1e6).model_copy(update={"dtype": "fp8"})
    where = cluster(plain_host(), 2)
    fast = where.device_types[0].model_copy(update={"peak_flops": {"fp32": 1e13, "fp8": 1e14}})
    graph = lower(scenario(model, where.model_copy(update={"device_types": (fast,)}), collective="ring"))
    (reduce,) = named(graph, "all_reduce")
    assert graph.flow_bytes[reduce] == pytest.approx(2e6)  # 2 (n - 1) / n of 2 bytes each


def test_gradients_of_all_stages_are_there_before_any_stage_updates() -> None:
    graph = lowered(DENSE, 4, pp=4, micro_batch_size=1)
    (barrier,) = named(graph, "gradient_norm")
    assert len(named(graph, "optimizer")) == 4
    assert all(before(graph, task) == {barrier} for task in named(graph, "optimizer"))


def test_tied_embeddings_are_summed_between_the_first_and_last_stage() -> None:
    graph = lowered(transformer(batch_per_device=1), 2, pp=2)
    (reduce,) = named(graph, "embedding.all_reduce")
    assert graph.flow_bytes[reduce] == pytest.approx(128 * HIDDEN * 4)
    assert not named(lowered(transformer(tied_embeddings=False), 2, pp=2), "embedding.all_reduce")


def test_a_tied_embedding_is_pushed_and_pulled_by_the_last_stage() -> None:
    model = transformer(batch_per_device=1)
    graph = lower(scenario(model, serving(serving_host(), 2), pp=2, state="ps_dedicated", bucket_size=1e18))
    moved = graph.total_bytes[graph.kind == TaskKind.TRANSFER].sum()
    activation = 2 * TOKENS * HIDDEN * 4
    parameters = model.num_parameters + 128 * HIDDEN
    assert moved == pytest.approx(activation + 2 * parameters * 4)


@pytest.mark.parametrize("m", [4, 8])
@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [("naive", 1), ("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("chimera", 1)],
)
def test_memory_counts_the_micro_batches_that_a_stage_really_holds(
    schedule: str, chunks: int, m: int
) -> None:
    """Play the pipeline; per stage, forwards begun and backwards not ended, in units of all its chunks."""
    model = even_workload(8, 8.0, 16.0, batch=m)
    fields: dict[str, Any] = {"pp": 4, "schedule": schedule, "virtual_stages": chunks}
    graph = lowered(model, 4, micro_batch_size=1, **fields)
    run = play(graph, max_iterations=1)
    layers = 8 // 4 * (2 if schedule == "chimera" else 1)
    for stage in range(4):
        mine = graph.device[run.task] == stage
        change = [
            (time, change)
            for cause, when, change in ((Cause.FORWARD, run.start, 1), (Cause.BACKWARD, run.end, -1))
            for time in when[mine & (graph.cause[run.task] == cause)].tolist()
        ]
        held = np.cumsum([step for _, step in sorted(change)]).max() / layers
        assert held <= in_flight_micro_batches(Strategy(**fields), stage, m) + 1e-9
        if stage == 0:
            assert held == pytest.approx(in_flight_micro_batches(Strategy(**fields), stage, m))
