"""Loading samples is hidden until it takes longer than the step; then it is what a step takes."""

from __future__ import annotations

import pytest

import sim
from sim.analysis.result import Result


def run(seconds_per_sample: float, **strategy: object) -> Result:
    workload = sim.workload("resnet50", batch_per_device=32, input_time_per_sample=seconds_per_sample)
    cluster = sim.cluster("v100-dlperf", num_hosts=1)
    return sim.run(workload, cluster, sim.strategy(**strategy), calibration=["ideal"])


@pytest.mark.parametrize(
    "strategy",
    [
        {},
        {"state": "zero1"},
        {"state": "zero3"},
        {"synchronization": "local", "local_steps": 4},
        {"state": "ps_colocated", "num_servers": 1},
    ],
)
def test_a_step_takes_the_longer_of_training_and_loading(strategy: dict[str, object]) -> None:
    fast = run(0.0, **strategy).step_time_s
    assert fast is not None
    hidden = run(0.5 * fast / 32, **strategy)
    assert hidden.step_time_s == pytest.approx(fast, rel=1e-9)
    assert hidden.parts["data_s"] < 0.1 * fast
    slow = run(2.0 * fast / 32, **strategy)
    assert slow.step_time_s == pytest.approx(2.0 * fast, rel=1e-6)
    assert 0.0 < slow.parts["data_s"] < slow.step_time_s


def test_replicas_of_a_host_share_its_storage() -> None:
    """8 replicas read 32 samples of 50 MB from 2 GB/s: 6.4 s and the latency."""
    workload = sim.workload("alexnet", batch_per_device=32, sample_bytes=50e6)
    result = sim.run(workload, sim.cluster("v100-dlperf", num_hosts=1), calibration=["ideal"])
    assert result.step_time_s == pytest.approx(8 * 32 * 50e6 / 2e9 + 1e-4, rel=1e-6)
