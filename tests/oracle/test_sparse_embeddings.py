"""Sparse gradients of embedding tables: bytes and rows as published and counted."""

from __future__ import annotations

from typing import Any

import pytest

from sim.analysis.simulate import simulate
from sim.graph.execution import Cause
from sim.lowering import lower, make_plan
from sim.lowering.tables import INDEX_BYTES, touched_rows
from sim.rng import seed_tree
from sim.spec import Layer, Workload
from sim.spec.layer import Embedding
from sim.taxonomy import resolve, warnings
from tests.scenarios import even_workload, ideal, scenario, serving, serving_host, timed_layer

N, ROWS, WIDTH, BATCH, LOOKUPS = 8, 1e6, 64.0, 1000, 4.0
DENSE = 2e6
TABLE = Layer(
    name="table", kind="embedding", block=0, ops=(Embedding(rows=LOOKUPS, width=WIDTH),),
    parameters=ROWS * WIDTH, tensors=(ROWS * WIDTH,), output_elements=LOOKUPS * WIDTH,
    stored_elements=LOOKUPS * WIDTH,
)  # fmt: skip
RACK = serving(serving_host(1e9), N)
ALPHA_W = touched_rows(TABLE, BATCH) * (WIDTH * 4 + INDEX_BYTES)  # bytes of one worker's rows


def model(optimizer: str = "sgd") -> Workload:
    plain = even_workload(1, 0.01, 0.02, parameters=1e6)
    tower = timed_layer(1, 0.01, 0.02, parameters=DENSE)
    return plain.model_copy(
        update={"layers": (TABLE, tower), "batch_per_device": BATCH, "optimizer": optimizer}
    )


def moved(cause: Cause | None = None, **fields: Any) -> float:
    """Bytes that leave the ports of hosts in a step."""
    graph = lower(scenario(model(), RACK, **fields))
    size = graph.flow_bytes[graph.links.rows()] * graph.link_coefficient
    if cause is not None:
        size = size * (graph.cause[graph.links.rows()] == cause)
    return float((size * graph.link_table.members[graph.links.index]).sum()) / 2


def test_rows_are_those_of_random_look_ups() -> None:
    generator = seed_tree(0, "rows")
    drawn = [len(set(generator.integers(0, 500, 300).tolist())) for _ in range(200)]
    small = TABLE.model_copy(update={"tensors": (500 * WIDTH,), "parameters": 500 * WIDTH})
    assert touched_rows(small, 75) == pytest.approx(sum(drawn) / len(drawn), rel=0.01)


def test_bytes_are_those_of_the_parallax_table() -> None:
    """Kim et al., EuroSys 2019, table 3: per machine and sparse variable of alpha w bytes, in and out,
    servers 4 alpha w (N-1)/N, gathering 2 alpha w (N-1); the dense one 4 w (N-1)/N in both.
    """
    dense = 2 * (N - 1) * DENSE * 4
    everything = 2 * (N - 1) * (DENSE + ROWS * WIDTH) * 4
    assert moved(collective="ring") == pytest.approx(everything, rel=1e-9)
    served = moved(collective="ring", sparse_embeddings="servers")
    assert served == pytest.approx(dense + N * 2 * ALPHA_W * (N - 1) / N, rel=1e-9)
    gathered = moved(collective="ring", sparse_embeddings="gather")
    assert gathered == pytest.approx(dense + N * ALPHA_W * (N - 1), rel=1e-9)


def test_tables_of_servers_take_no_memory_of_devices() -> None:
    plans = {
        way: make_plan(scenario(model("adam"), RACK, sparse_embeddings=way))
        for way in ("never", "gather", "servers")
    }
    foot = {way: sum(plan.footprints[0].values()) for way, plan in plans.items()}
    assert foot["servers"] < 0.2 * foot["never"]
    held = plans["servers"].server_footprint
    assert held["weights"] + held["optimizer"] == pytest.approx(3 * 4 * ROWS * WIDTH / N)
    # Of the table only rows with gradients are updated: the optimiser reads and writes less.
    slow_servers = ideal(server_speed=0.2)
    times = {
        way: simulate(scenario(model(), RACK, calibration=slow_servers, sparse_embeddings=way))
        for way in plans
    }
    assert all(result.ok for result in times.values())
    assert times["servers"].step_time_s < times["gather"].step_time_s < times["never"].step_time_s  # type: ignore[operator]


@pytest.mark.parametrize("way", ["gather", "servers"])
def test_folded_equals_unfolded(way: str) -> None:
    steps = [
        simulate(
            scenario(model(), RACK, calibration=ideal(server_speed=0.2), sparse_embeddings=way, fold=fold,
                     slow_ranks={3: 1.3})
        ).step_time_s
        for fold in (True, False)
    ]  # fmt: skip
    assert steps[0] == pytest.approx(steps[1], rel=1e-9)


def test_switches_take_the_hot_rows_off_the_servers() -> None:
    fields = {"sparse_embeddings": "servers", "in_network": "libra"}
    served = moved(Cause.PARAMETER_COMM, sparse_embeddings="servers")
    for hot in (0.25, 0.5):
        pulled = moved(Cause.PARAMETER_COMM, switch_hot_share=hot, **fields)
        assert pulled == pytest.approx((1 - hot) * served, rel=1e-9)


def test_a_model_without_such_tables_is_all_reduced() -> None:
    plain = even_workload(3, 0.01, 0.02, parameters=1e6)
    one = scenario(plain, RACK, sparse_embeddings="servers", in_network="libra")
    found = resolve(one.strategy, plain, RACK)
    assert (found.sparse_embeddings, found.in_network, found.num_servers) == ("never", "none", None)
    assert any("all gradients" in text for text in warnings(one.strategy, plain, RACK))
    assert simulate(one).step_time_s == simulate(scenario(plain, RACK)).step_time_s
