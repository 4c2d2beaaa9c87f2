"""DDP's bucket assignment: reverse order, closed by the tensor that reaches the capacity."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.lowering.buckets import make_buckets


def test_first_bucket_is_small_and_order_is_reversed() -> None:
    buckets = make_buckets(
        [0, 1, 2],
        [(6.0, 1.0), (4.0, 1.0), (3.0,)],
        bucket_bytes=20.0,
        first_bucket_bytes=8.0,
        element_bytes=4.0,
    )
    assert [(b.elements, b.last_layer) for b in buckets] == [(3.0, 2), (5.0, 1), (7.0, 0)]


def test_one_bucket_when_everything_fits() -> None:
    buckets = make_buckets(
        [4, 5], [(1.0,), (2.0,)], bucket_bytes=1e9, first_bucket_bytes=1e9, element_bytes=4.0
    )
    assert [(b.elements, b.last_layer) for b in buckets] == [(3.0, 4)]


@given(
    st.lists(st.lists(st.floats(1, 1e6), max_size=4), min_size=1, max_size=8),
    st.floats(1, 1e6),
    st.floats(1, 1e6),
)
def test_elements_are_conserved_and_layers_descend(
    sizes: list[list[float]], bucket: float, first: float
) -> None:
    buckets = make_buckets(
        list(range(len(sizes))), sizes, bucket_bytes=bucket, first_bucket_bytes=first, element_bytes=4.0
    )
    assert abs(sum(b.elements for b in buckets) - sum(map(sum, sizes))) <= 1e-9 * max(
        1.0, sum(map(sum, sizes))
    )
    layers = [b.last_layer for b in buckets]
    assert layers == sorted(layers, reverse=True)


@pytest.mark.parametrize("order", ["priority_layer", "critical_path"])
def test_experts_wait_for_their_own_gradients(order: str) -> None:
    """Dense buckets and those of experts have numbers of their own, so each update knows its exchange."""
    workload = sim.workload("mixtral-8x7b", num_layers=2, hidden=512, sequence_length=128, batch_per_device=2)
    cluster, strategy = sim.cluster("single-gpu", num_hosts=4), {"ep": 2, "bucket_size": 25e6}
    ordered = sim.run(workload, cluster, sim.strategy(**strategy, order=order))
    in_turn = sim.run(workload, cluster, sim.strategy(**strategy))
    assert ordered.status == "ok"
    assert ordered.step_time_s <= in_turn.step_time_s * (1 + 1e-9)
