"""Layers whose times were measured, and updates that were."""

from __future__ import annotations

import pytest

from sim.models.compute import layer_cost
from sim.spec import Layer, Measured
from tests.clusters import device
from tests.scenarios import ideal


def cost(micro_batch: float, tp: int = 1, **times: float) -> tuple[float, float]:
    layer = Layer(name="layer", kind="linear", block=0, ops=(Measured(**times),))
    found = layer_cost(
        layer, device=device(), dtype="fp32", micro_batch=micro_batch, calibration=ideal(), tp=tp
    )
    return found.forward_s, found.backward_s


def test_times_go_with_the_micro_batch() -> None:
    assert cost(8, forward_s=0.1, backward_s=0.3, batch=8) == pytest.approx((0.1, 0.3))
    assert cost(4, forward_s=0.1, backward_s=0.3, batch=8) == pytest.approx((0.05, 0.15))


def test_tensor_parallelism_divides_them() -> None:
    assert cost(8, tp=2, forward_s=0.1, backward_s=0.3, batch=8) == pytest.approx((0.05, 0.15))


def test_no_time_is_no_kernel() -> None:
    assert cost(1, forward_s=0.0, backward_s=0.2) == pytest.approx((0.0, 0.2))


def test_launches_are_part_of_what_was_measured() -> None:
    # A kernel has a latency and costs the host an issue; a measured time has both in it already.
    assert cost(1, forward_s=1e-9, backward_s=1e-9) == pytest.approx((1e-9, 1e-9))
