"""Whatever the strategy: a result keeps its promises, from catalogue names to JSON."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys

import pytest

import sim

STRATEGIES: dict[str, dict[str, object]] = {
    "all_reduce": {},
    "tree": {"collective": "tree"},
    "no_overlap": {"overlap": False},
    "zero1": {"state": "zero1"},
    "zero3": {"state": "zero3"},
    "ps_bsp": {"state": "ps_dedicated", "num_servers": 4},
    "ps_asp": {"state": "ps_colocated", "synchronization": "asp"},
    "ps_ssp": {"state": "ps_dedicated", "synchronization": "ssp", "staleness": 3},
    "local_sgd": {"synchronization": "local", "local_steps": 4},
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_breakdown_adds_up_and_shares_are_shares(name: str):
    result = sim.run("resnet50", sim.cluster("v100-dlperf", num_hosts=2), STRATEGIES[name])
    assert result.status == "ok", result.message
    assert math.isclose(math.fsum(result.parts.values()), result.step_time_s, rel_tol=1e-9)
    assert min(result.parts.values()) >= 0
    assert 0 < result.mfu < 1
    assert 0 <= result.overlap_fraction <= 1
    assert 0 < result.busy_fraction <= 1
    assert all(0 <= link["utilisation"] <= 1 for link in result.bottlenecks)
    assert result.bound_s <= result.step_time_s * (1 + 1e-9)
    assert result.samples_per_s == pytest.approx(result.samples_per_step / result.step_time_s)
    assert sum(result.memory_bytes.values()) == pytest.approx(result.peak_memory_bytes)
    assert result.critical_path()["share"].sum() == pytest.approx(1.0, abs=1e-6)
    assert (result.staleness is not None) == (name in ("ps_asp", "ps_ssp"))


def test_same_scenario_same_bytes_in_two_processes():
    code = (
        "import sim; cluster = sim.cluster('v100-dlperf', num_hosts=2); "
        "print(sim.run('alexnet', cluster, jitter=0.05, seed=3).to_json())"
    )
    first, second = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
        for _ in "ab"
    )
    assert first == second
    assert json.loads(first)["status"] == "ok"


def test_a_straggler_stretches_the_step_and_the_others_wait():
    cluster = sim.cluster("v100-dlperf", num_hosts=1)
    even = sim.run("resnet50", cluster, {"overlap": False})
    late = sim.run("resnet50", cluster, {"overlap": False}, slow_ranks={3: 1.2})
    compute = even.parts["compute_s"]
    assert late.step_time_s - even.step_time_s == pytest.approx(0.2 * compute, rel=0.02)
    spans = late.timeline()
    reduces = spans[(spans["cause"] == "gradient_comm") & (spans["iteration"] == 0)]
    waited = (reduces["start_s"] - reduces["posted_s"]).groupby(reduces["device"]).sum()
    on_time = waited.drop("rank3")
    assert on_time.tolist() == pytest.approx([0.2 * compute] * len(on_time), rel=0.02)
    assert waited["rank3"] == pytest.approx(0.0, abs=1e-9)


def test_refused_and_oversized_strategies_are_results():
    cluster = sim.cluster("v100-dlperf", num_hosts=1)
    invalid = sim.run("resnet50", cluster, {"tp": 2})
    assert invalid.status == "invalid"
    assert invalid.message
    assert invalid.step_time_s is None
    too_big = sim.run("gpt3-13b", cluster)
    assert too_big.status == "infeasible"
    assert too_big.missing_bytes > 0
    assert "missing" in too_big.message
    for result in (invalid, too_big):
        json.loads(result.to_json())
        assert result.breakdown().empty


def test_sensitivity_names_what_limits():
    result = sim.run("resnet50", sim.cluster("v100-dlperf", num_hosts=1))
    table = result.sensitivity().set_index("resource")["percent_per_percent"]
    assert table["device_flops"] > 0.3
    assert table["device_flops"] + table["memory_bandwidth"] == pytest.approx(1.0, abs=0.1)
    assert abs(table["latency"]) < 0.05


def test_interval_comes_from_the_calibration():
    cluster = sim.cluster("v100-dlperf", num_hosts=2)
    result = sim.run("resnet50", cluster)
    interval = result.interval()
    assert interval.low_s < result.step_time_s < interval.high_s
    assert interval.samples_per_s_low < result.samples_per_s < interval.samples_per_s_high
    assert all(value > 0 for value in interval.contributions.values())
    certain = result.scenario.calibration
    for section, key, name in certain.uncertain():
        found = certain.parameter(section, key, name)
        table = getattr(certain, section)
        fixed = found.model_copy(update={"low": None, "high": None})
        certain = certain.model_copy(update={section: {**table, key: {**table[key], name: fixed}}})
    exact = sim.run("resnet50", cluster, calibration=certain).interval()
    assert (exact.low_s, exact.high_s) == (exact.step_time_s, exact.step_time_s)


def test_trace_of_a_scenario(tmp_path):
    result = sim.run("resnet50", sim.cluster("v100-dlperf", num_hosts=2))
    path = result.save_trace(tmp_path / "x.json.gz")
    listed = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    tracks = {event["args"]["name"] for event in listed if event["name"] == "thread_name"}
    assert "compute" in tracks
    assert any(event["ph"] == "C" and event["args"]["GB/s"] > 0 for event in listed)


def test_comparison_of_two_scenarios_adds_up():
    cluster = sim.cluster("v100-dlperf", num_hosts=2)
    difference = sim.compare(sim.run("vgg16", cluster), sim.run("vgg16", cluster, {"overlap": False}))
    assert difference.difference_s > 0
    assert math.fsum(difference.parts().values()) == difference.difference_s
