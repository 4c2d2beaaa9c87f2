"""One library model for the board and for simulations: a bare collective takes what the board predicts."""

from __future__ import annotations

import numpy as np
import pytest

import sim
from sim.catalog import default_catalog
from sim.engine import play
from sim.fabric.network import Network
from sim.lowering.collective import lower_collective
from sim.lowering.collective_paths import collective_paths
from sim.lowering.library import LibraryTimes, interior_of
from sim.models.library import Problem, variants

CALIBRATION = default_catalog().calibration("collectives")


def simulated(cluster: sim.Cluster, op: str, size: float) -> tuple[float, str, str]:
    """Seconds, algorithm and protocol of one collective over all devices on an idle network."""
    graph = lower_collective(cluster, op, "auto", size, calibration=CALIBRATION)
    (used,) = graph.metadata["collectives"]
    return play(graph).makespan, used["algorithm"], used["protocol"]


def predicted(cluster: sim.Cluster, op: str, size: float) -> tuple[float, str, str]:
    """The same from the model that the board uses."""
    times = LibraryTimes.of(Network.build(cluster), CALIBRATION)
    assert times is not None
    paths = collective_paths(cluster, op, in_switch=times.in_switch)
    problem = Problem.of([size], [paths], [times.interior], [cluster.num_devices], [cluster.size])
    found = variants(problem, times.parameters)
    return float(found.best()[0]), *found.chosen()[0]


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100"])
@pytest.mark.parametrize("hosts", [1, 2, 4, 40])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all"])
def test_a_bare_collective_takes_what_the_board_predicts(name: str, hosts: int, op: str) -> None:
    """Same algorithm, same protocol, same time, from bytes to gigabytes."""
    cluster = sim.cluster(name, num_hosts=hosts)
    for size in (256.0, 65536.0, float(4 << 20), float(1 << 30)):
        time, algorithm, protocol = simulated(cluster, op, size)
        board, *variant = predicted(cluster, op, size)
        assert [algorithm, protocol] == variant
        assert time == pytest.approx(board, rel=1e-6)


def test_small_and_large_messages_run_differently() -> None:
    """LL for few bytes, the switches for many on Hopper."""
    cluster = sim.cluster("dgx-h100", num_hosts=1)
    assert simulated(cluster, "all_reduce", 1024.0)[1:] == ("ring", "ll")
    assert simulated(cluster, "all_reduce", 1e9)[1:] == ("nvls", "simple")


def test_the_ideal_calibration_has_no_library() -> None:
    """Closed forms stay closed forms."""
    cluster = sim.cluster("dgx-h100", num_hosts=2)
    assert LibraryTimes.of(Network.build(cluster), default_catalog().calibration("ideal")) is None


def test_gloo_and_tori_are_no_nccl() -> None:
    """Other libraries keep their own mechanism."""
    gloo = sim.cluster("dgx-a100", num_hosts=2).model_copy(update={"library": "gloo"})
    assert LibraryTimes.of(Network.build(gloo), CALIBRATION) is None
    assert LibraryTimes.of(Network.build(sim.cluster("tpu-v3-pod")), CALIBRATION) is None


@pytest.mark.parametrize(
    ("name", "interior"),
    [("dgx-a100", "nvlink3"), ("dgx-h100", "nvlink4"), ("dgx-b200", "nvlink5"), ("dgx-1", "nvlink2"),
     ("p2-8xlarge", "pcie3")],
)  # fmt: skip
def test_links_in_the_host_by_their_bandwidth(name: str, interior: str) -> None:
    """The key of calibrations follows from the host's links."""
    assert interior_of(sim.cluster(name)) == interior


def test_a_training_run_says_what_it_ran() -> None:
    """Tensor parallel all-reduces by size, gradients over hosts; the choice is in the result."""
    cluster, workload = sim.cluster("dgx-h100", num_hosts=2), sim.workload("bert-large")
    result = sim.run(workload, cluster, sim.strategy(tp=8), calibration="collectives")
    run = {(each["family"], each["protocol"]) for each in result.to_dict()["collectives"]}
    assert {("tp_all_reduce_ring", "ll"), ("tp_all_reduce_ring", "simple")} <= run
    assert any(family.startswith("dp_all_reduce") for family, _ in run)
    plain = sim.run(workload, cluster, sim.strategy(tp=8))
    assert {each["protocol"] for each in plain.collectives} == {""}
    assert np.isclose(result.step_time_s, plain.step_time_s, rtol=0.5)


def test_a_slow_wire_still_costs() -> None:
    """Latencies beyond a machine room's come on top of the library's steps."""
    near = sim.cluster("dgx-a100", num_hosts=2)
    far = near.model_copy(update={"fabric": near.fabric.model_copy(update={"latency": 5e-3})})
    assert simulated(far, "all_gather", 1024.0)[0] > simulated(near, "all_gather", 1024.0)[0] + 5e-3
