"""What-if questions on training with published answers: recomputation, pipelines, parameter servers."""

from __future__ import annotations

from typing import Any

import pytest

import sim
from sim.analysis.simulate import simulate
from sim.architecture import generate
from sim.catalog import Catalog
from sim.spec import Scenario
from sim.validate.runs_loader import framework_calibration
from tests.oracle.test_right_answers import BACKWARD, FORWARD, even_workload, network, scenario


def test_gpipe_bubble_table() -> None:
    """Speed over one device is K M / (M + K - 1): the bubble is small where M >= 4 K.

    Huang et al. 2019 (arXiv:1811.06965), section 2.3; table 2 measures 1.8, 3.4 and 6.3 times the
    throughput of (K = 2, M = 1) for a transformer on K = 2, 4 and 8 accelerators with M = 32.
    """
    blocks = 8

    def seconds(stages: int, micro_batches: int) -> float:
        model = even_workload(
            blocks, FORWARD * 8 / micro_batches, BACKWARD * 8 / micro_batches, batch=micro_batches
        )
        fields: dict[str, Any] = {"schedule": "gpipe", "pp": stages, "micro_batch_size": 1}
        found = simulate(scenario(model, network(stages), **fields)).step_time_s
        assert found is not None
        return found

    base = seconds(2, 1)  # as fast as one device
    for stages in (2, 4, 8):
        for micro_batches in (1, 4, 32):
            ideal = stages * micro_batches / (micro_batches + stages - 1)
            assert base / seconds(stages, micro_batches) == pytest.approx(ideal, rel=1e-6)
    published = {2: 1.8, 4: 3.4, 8: 6.3}
    for stages, speed in published.items():
        assert base / seconds(stages, 32) == pytest.approx(speed, rel=0.09)


def test_selective_recomputation_is_nearly_free() -> None:
    """A layer: +7 % alone, +4 % with sequence parallelism, +39 % in full (Korthikanti et al. 2022, table 4).

    Of a model of 22 billion parameters (hidden 6144, 64 heads, sequence 2048, micro-batch 4, tp 8, A100),
    19.6 ms without recomputation; sequence parallelism alone saves 3 %. Two depths tell what a layer takes,
    with Megatron's kernels.
    """
    cluster = sim.cluster("dgx-a100", num_hosts=1)
    calibration = framework_calibration(Catalog().calibration(("default",)), "megatron-deepspeed")

    def seconds(**fields: Any) -> float:
        times = []
        for blocks in (2, 4):
            workload = generate(
                "transformer",
                {
                    "name": "gpt-22b", "num_layers": blocks, "hidden": 6144, "num_heads": 64,
                    "vocabulary": 51200, "sequence_length": 2048, "max_positions": 2048,
                    "global_batch_size": 4, "dtype": "fp16",
                },
            )  # fmt: skip
            strategy = sim.strategy(tp=8, micro_batch_size=4, **fields)
            result = simulate(
                Scenario(workload=workload, cluster=cluster, strategy=strategy, calibration=calibration)
            )
            assert result.step_time_s is not None
            times.append(result.step_time_s - result.parts["optimizer_s"])
        return (times[1] - times[0]) / 2

    plain = seconds(recompute="none")
    assert plain == pytest.approx(19.6e-3, rel=0.05)
    assert 1.33 <= seconds(recompute="full") / plain <= 1.45
    assert 1.05 <= seconds(recompute="selective") / plain <= 1.09
    assert 1.01 <= seconds(recompute="selective", sequence_parallel=True) / plain <= 1.06
    assert 0.94 <= seconds(recompute="none", sequence_parallel=True) / plain < 1


def test_parameter_servers_cost_most_where_there_are_most_parameters() -> None:
    """VGG-16 has 5.4 times ResNet-50's parameters at about 4 times its work: more bytes per second."""
    ratios = {}
    for name in ("resnet50", "vgg16"):
        for hosts in (2, 4):
            cluster = sim.cluster("v100-dlperf", num_hosts=hosts)
            workload = sim.workload(name, batch_per_device=64, dtype="fp32")
            times = [
                sim.run(workload, cluster, sim.strategy(dp=8 * hosts, **fields)).step_time_s or 0.0
                for fields in ({"state": "replicated"}, {"state": "ps_colocated", "num_servers": hosts})
            ]
            ratios[name, hosts] = times[1] / times[0]
    assert all(ratio > 1.0 for ratio in ratios.values())
    for hosts in (2, 4):
        assert ratios["vgg16", hosts] > 1.3 * ratios["resnet50", hosts]
    assert all(ratios[name, 2] <= ratios[name, 4] * 1.01 for name in ("resnet50", "vgg16"))


def test_mixed_precision_gains_most_from_channels_last() -> None:
    """ResNet-50, batch 128, PyTorch on one V100: 342 ms in fp32, 152 ms and 111 ms with mixed precision.

    The last with channels last (sandeepkumar-skb/pytorch_experiments, torchvision_exp); in fp32 that gains
    nothing.
    """
    cluster = sim.cluster("v100-dlperf", num_hosts=1)
    calibration = framework_calibration(Catalog().calibration(("default",)), "pytorch")

    def seconds(dtype: str, channels_last: bool) -> float:
        params = {
            "name": "resnet50",
            "dtype": dtype,
            "global_batch_size": 128,
            "channels_last": channels_last,
        }
        result = simulate(
            Scenario(
                workload=generate("cnn:resnet50", params),
                cluster=cluster,
                strategy=sim.strategy(dp=1),
                calibration=calibration,
            )
        )
        assert result.step_time_s is not None
        return result.step_time_s

    assert seconds("fp32", True) == seconds("fp32", False)
    assert 1.2 <= seconds("fp16", False) / seconds("fp16", True) <= 1.5
