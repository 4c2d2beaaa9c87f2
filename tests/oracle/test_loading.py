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


@pytest.mark.parametrize("ahead", [1, 2, 3, 7])
@pytest.mark.parametrize("strategy", [{}, {"synchronization": "local", "local_steps": 4}])
def test_being_further_ahead_does_not_change_the_mean(ahead: int, strategy: dict[str, object]) -> None:
    fast = run(0.0, **strategy).step_time_s
    assert fast is not None
    assert run(0.9 * fast / 32, prefetch_batches=ahead, **strategy).step_time_s == pytest.approx(
        fast, rel=1e-9
    )
    slow = run(1.5 * fast / 32, prefetch_batches=ahead, **strategy)
    assert slow.step_time_s == pytest.approx(1.5 * fast, rel=1e-6)


def load(shared: dict[str, object] | None = None, hosts: int = 4, **strategy: object) -> Result:
    """AlexNet on 8 V100s a host; 1.2 million samples of 100 kB; 10 core-milliseconds to decode each."""
    workload = sim.workload(
        "alexnet", batch_per_device=64, sample_bytes=1e5, num_samples=1_200_000,
        decode_time_per_sample=0.01, device_decode_time_per_sample=1e-4,
    )  # fmt: skip
    cluster = sim.cluster("v100-dlperf", num_hosts=hosts, storage=shared)
    return sim.run(workload, cluster, sim.strategy(**strategy), calibration=["ideal"])


def test_stages_of_the_data_path() -> None:
    """Each stage by hand: cores, bytes, requests, one client's share, other hosts' caches."""
    cores = sim.host("v100-dlperf").cpu_cores
    slow = {"bandwidth": 1e9, "latency": 1e-3, "operations_per_second": 5e3, "client_bandwidth": 2e8}
    path = load(slow).data_path
    assert path is not None
    assert path["decode_s"] == pytest.approx(64 * 0.01 / (cores / 8))
    assert path["read_s"] == pytest.approx(1e-3 + max(32 * 64e5 / 1e9, 8 * 64e5 / 2e8))
    files = load(slow, sample_format="files").data_path
    assert files is not None
    assert files["read_s"] == pytest.approx(1e-3 + 32 * 64 / 5e3)
    cached = load(slow, store="memory_cache", shuffle="global")
    assert cached.data_path is not None
    ports = sum(nic.bandwidth for nic in sim.host("v100-dlperf").nics)
    assert cached.data_path["read_s"] == 0
    assert cached.data_path["fetch_s"] == pytest.approx(8 * 64e5 * 3 / 4 / ports)
    assert cached.data_path["staging_s"] == pytest.approx(1e-3 + max(1.2e11 / 1e9, 1.2e11 / 4 / 2e8))
    more = load(slow, decode_workers=1).data_path
    assert more is not None
    assert more["decode_s"] == pytest.approx(0.64)


def test_the_slowest_stage_is_what_a_step_takes_and_a_device_that_decodes_computes_less() -> None:
    by_cores = load()
    assert by_cores.data_path is not None
    assert by_cores.data_path["bottleneck"] == "decode"
    assert by_cores.step_time_s == pytest.approx(by_cores.data_path["decode_s"], rel=1e-6)
    assert by_cores.epoch_time_s == pytest.approx(1.2e6 / (32 * 64) * by_cores.step_time_s)
    on_device = load(decode="device")
    plain = load(decode="device", synchronization="bsp", prefetch_batches=2)
    assert on_device.step_time_s == pytest.approx(plain.step_time_s)
    without = sim.run(
        sim.workload("alexnet", batch_per_device=64),
        sim.cluster("v100-dlperf", num_hosts=4),
        calibration=["ideal"],
    )
    assert without.step_time_s is not None
    assert on_device.step_time_s == pytest.approx(without.step_time_s + 64 * 1e-4, rel=1e-6)


def test_checkpoints_cost_their_stall_and_asynchronous_ones_less() -> None:
    plain = load(decode="device")
    store = {"bandwidth": 1e9, "latency": 0.0}
    saved = load(store, decode="device", store="local", checkpoint_every=50)
    hidden = load(store, decode="device", store="local", checkpoint_every=50, checkpoint_mode="async")
    assert plain.step_time_s is not None
    assert saved.checkpoint is not None
    assert hidden.step_time_s is not None
    total = sim.workload("alexnet").num_parameters * 8  # fp32 parameters and momentum
    assert saved.checkpoint["bytes_total"] == pytest.approx(total)
    assert saved.checkpoint["stall_s"] == pytest.approx(total / 1e9)
    assert saved.step_time_s == pytest.approx(plain.step_time_s + total / 1e9 / 50, rel=1e-6)
    assert plain.step_time_s < hidden.step_time_s < saved.step_time_s
