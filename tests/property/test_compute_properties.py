"""Laws of the compute model that hold for every shape."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.architecture import generate
from sim.catalog import default_catalog
from sim.models.compute import LayerCosts, chain_cost
from sim.models.memory import stage_memory
from sim.spec import Strategy
from sim.spec.workload import Workload

DEVICES = ("k80", "p100-16gb", "v100-16gb", "t4", "a100-80gb", "h100-80gb", "tpu-v3")

transformers = st.builds(
    lambda layers, heads, width, sequence, grouped, flash, fused: generate(
        "transformer",
        {
            "num_layers": layers,
            "hidden": heads * width,
            "num_heads": heads,
            "num_kv_heads": 8 if grouped else heads,
            "vocabulary": 8192,
            "sequence_length": sequence,
            "flash": flash,
            "fused_kernels": fused,
            "optimizer": "adam",
        },
    ),
    st.integers(1, 3),
    st.sampled_from([8, 16, 32]),
    st.sampled_from([32, 64, 80, 128]),
    st.integers(16, 1024),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
networks = st.sampled_from(["alexnet", "resnet50", "inception-v3"]).map(default_catalog().workload)
workloads = st.one_of(transformers, networks)


def _cost(workload: Workload, device: str, micro_batch: float, **options: object) -> LayerCosts:
    catalog = default_catalog()
    return chain_cost(
        workload.layers,
        device=catalog.device(device),
        dtype=workload.dtype,
        micro_batch=micro_batch,
        calibration=catalog.calibration("default"),
        **options,
    )


@given(workloads, st.sampled_from(DEVICES), st.integers(1, 64), st.integers(1, 64))
def test_more_samples_are_never_faster(workload: Workload, device: str, batch: int, more: int) -> None:
    small, large = _cost(workload, device, batch), _cost(workload, device, batch + more)
    # Of a pass: where the host issues kernels more slowly than the device runs them, layers share its time.
    assert large.forward_s.sum() >= small.forward_s.sum() * (1 - 1e-12)
    assert large.backward_s.sum() >= small.backward_s.sum() * (1 - 1e-12)
    np.testing.assert_allclose(large.forward_flops, small.forward_flops * (batch + more) / batch, rtol=1e-12)


@given(workloads, st.sampled_from(DEVICES), st.integers(1, 64))
def test_never_above_the_roofline(workload: Workload, device: str, batch: int) -> None:
    """No pass exceeds the peak, except by what Winograd saves; layers share what a slow host takes."""
    costs = _cost(workload, device, batch)
    peak = default_catalog().device(device).peak(workload.dtype)
    saved = default_catalog().calibration("default").value("device", device, "winograd_gain")
    gain = saved if workload.family == "cnn" else 1.0
    assert costs.forward_flops.sum() <= costs.forward_s.sum() * peak * gain


@given(transformers, st.sampled_from([2, 4, 8]), st.booleans(), st.sampled_from(DEVICES))
def test_tensor_parallelism_conserves_flops(
    workload: Workload, tp: int, sequence_parallel: bool, device: str
) -> None:
    whole = _cost(workload, device, 2)
    part = _cost(workload, device, 2, tp=tp, sequence_parallel=sequence_parallel)
    np.testing.assert_allclose(part.forward_flops * tp, whole.forward_flops, rtol=1e-12)
    # A part is slower than the whole at most by its launches of collectives, where the host issues kernels
    # more slowly than the device runs them. Nor is it faster than its share.
    collectives = sum(layer.tensor_all_reduce for layer in workload.layers)
    calibration = default_catalog().calibration("default")
    issue_time = calibration.value("framework", "default", "collective_issue_time")
    assert part.forward_s.sum() <= whole.forward_s.sum() * (1 + 1e-9) + collectives * issue_time
    assert part.backward_s.sum() * tp * 1.02 >= whole.backward_s.sum()


@given(workloads, st.sampled_from(DEVICES), st.integers(1, 16))
def test_costs_are_finite_and_repeatable(workload: Workload, device: str, batch: int) -> None:
    costs = _cost(workload, device, batch)
    for array in vars(costs).values():
        assert np.isfinite(array).all()
        assert (array >= 0).all()
    again = generate_again(workload)
    np.testing.assert_array_equal(costs.forward_s, _cost(again, device, batch).forward_s)


def generate_again(workload: Workload) -> Workload:
    return Workload.model_validate(workload.model_dump())


@given(
    transformers,
    st.sampled_from(["replicated", "zero1", "zero2", "zero3"]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 8),
)
def test_sharding_never_costs_state_memory(
    workload: Workload, state: str, dp: int, tp: int, batch: int
) -> None:
    def states(**fields: object) -> float:
        sizes = stage_memory(
            workload.layers, strategy=Strategy(**fields), workload=workload, micro_batch=batch, dp=dp
        )
        return sizes["weights"] + sizes["gradients"] + sizes["optimizer"]

    assert states(state=state, tp=tp) <= states(tp=tp) * (1 + 1e-12)
    assert states(state=state, tp=tp) <= states(state=state) * (1 + 1e-12)
    if state == "replicated":
        per_parameter = 16.0  # Adam: 4 + 4 + 8 bytes in fp32
        assert states() == pytest.approx(per_parameter * workload.num_parameters)


@given(workloads, st.sampled_from(["none", "selective", "alternate", "full"]), st.integers(1, 16))
def test_activations_grow_with_the_batch(workload: Workload, recompute: str, batch: int) -> None:
    def activations(samples: int) -> float:
        return stage_memory(
            workload.layers,
            strategy=Strategy(recompute=recompute),
            workload=workload,
            micro_batch=samples,
            dp=1,
        )["activations"]

    assert activations(2 * batch) == pytest.approx(2 * activations(batch))
    assert activations(batch) > 0
