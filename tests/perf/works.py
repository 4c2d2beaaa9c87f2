"""Work of known size and known cost elsewhere, measured in a fresh interpreter: specs ready, caches empty.

``python -m tests.perf.works NAME`` prints one measurement as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from sim.catalog import default_catalog
from sim.engine import play
from sim.graph.execution import ExecutionGraph
from sim.lowering import lower, lower_collective
from sim.spec import Cluster, HostLink, Nic, Scenario, Strategy
from tests.clusters import cluster, host, plain_host
from tests.perf.bare import bare_callback_loop, desynchronised
from tests.scenarios import scenario, timed_layer, workload

GIB = 2.0**30
LATENCY = 500e-9
PUSH = 102_228_128.0
ROOT = Path(__file__).parents[2]

Lowering = Callable[[], ExecutionGraph]


@dataclass(frozen=True)
class Measurement:
    """CPU seconds of one run and what it did; ``callbacks``: bare SimPy callbacks that take as long."""

    lower_s: float
    play_s: float
    callbacks: float
    tasks: int
    events: int
    devices: int
    simulated_s: float

    @property
    def seconds(self) -> float:
        """Lowering and simulation together."""
        return self.lower_s + self.play_s


def ring(n: int) -> Lowering:
    """All-reduce of 1 GiB on a ring of 50 GB/s cables."""
    calibration = default_catalog().calibration("ideal")
    where = cluster(plain_host(50e9), n, kind="ring", latency=LATENCY)
    return lambda: lower_collective(where, "all_reduce", "ring", GIB, calibration=calibration)


def hosts_of_eight(n: int) -> Cluster:
    """Eight devices on a switch of 300 GiB/s ports, each with a NIC of 50 GiB/s on one switch.

    Devices meet on a switch and not on a ring of cables, because a library would use both directions of
    such cables; ASTRA-sim's ring uses one.
    """
    links = (
        HostLink(a="gpu[0-7]", b="nvswitch0", bandwidth=300 * GIB, latency=LATENCY / 2, kind="nvlink"),
        HostLink(a="gpu[0-7]", b="nic[0-7]", bandwidth=50 * GIB, kind="pcie"),
    )
    nics = tuple(Nic(name=f"nic{i}", bandwidth=50 * GIB) for i in range(8))
    return cluster(host(8, nics, links), n, latency=1e-6)


def hierarchical(n: int, chunks: int) -> Lowering:
    """All-reduce of 1 GiB on 8 x n."""
    calibration = default_catalog().calibration("ideal")
    where = hosts_of_eight(n)
    return lambda: lower_collective(
        where, "all_reduce", "hierarchical", GIB, chunks=chunks, calibration=calibration
    )


def fat_tree(hosts: int, operation: str, algorithm: str) -> Lowering:
    """1 GiB on 8 A100 per host below a fat-tree."""
    calibration = default_catalog().calibration("ideal")
    where = default_catalog().cluster("a100-fat-tree", num_hosts=hosts)
    return lambda: lower_collective(where, operation, algorithm, GIB, calibration=calibration)


def incast(spread: float) -> Lowering:
    """1,000 workers push to one server, sizes between one and 1 + ``spread`` times the smallest."""
    calibration = default_catalog().calibration("ideal")
    where = cluster(plain_host(50e9), 1001, latency=LATENCY / 2)
    pairs = [[i, 0] for i in range(1, 1001)]
    sizes = PUSH * (1 + spread * np.arange(1000) / 1000)
    return lambda: lower_collective(where, "send", "direct", sizes, ranks=pairs, calibration=calibration)


def gpt_like(n: int) -> Lowering:
    """25 layers on a ring of n, each gradient all-reduced after its backward."""
    layers = [timed_layer(0, 100e-6, 200e-6, parameters=205_852_672 / 4)]
    layers += [timed_layer(i, 6400e-6, 12800e-6, parameters=100_663_296 / 4) for i in range(1, 25)]
    where = cluster(plain_host(50 * GIB), n, kind="ring", latency=LATENCY)
    one = scenario(workload(layers), where, collective="ring", bucket_size=1)
    return lambda: lower(one)


def gpt3(hosts: int, sequences: int, **strategy: object) -> Lowering:
    """GPT-3 175B on DGX A100 machines."""
    catalog = default_catalog()
    one = Scenario(
        workload=catalog.workload("gpt3-175b", global_batch_size=sequences),
        cluster=catalog.cluster("dgx-a100", num_hosts=hosts),
        strategy=Strategy.model_validate({"tp": 8, "micro_batch_size": 1} | strategy),
        calibration=catalog.calibration(),
    )
    return lambda: lower(one)


def desynchronised_ranks(length: int) -> Lowering:
    """4,096 ranks, each with ``length`` dependent computations of random length."""
    graph = desynchronised(4096, length, neighbours=False)
    return lambda: graph


INTERLEAVED = {"pp": 8, "schedule": "interleaved", "virtual_stages": 3}
WORKS: dict[str, Callable[[], Lowering]] = {
    "ring 512": lambda: ring(512),
    "ring 4,096": lambda: ring(4096),
    "hierarchical 8 x 8": lambda: hierarchical(8, 1),
    "hierarchical 8 x 64": lambda: hierarchical(64, 1),
    "hierarchical 8 x 512": lambda: hierarchical(512, 1),
    "hierarchical 8 x 64, 4 chunks": lambda: hierarchical(64, 4),
    "fat-tree hierarchical 16,384": lambda: fat_tree(2048, "all_reduce", "hierarchical"),
    "fat-tree ring 65,536": lambda: fat_tree(8192, "all_reduce", "ring"),
    "fat-tree all-to-all 65,536": lambda: fat_tree(8192, "all_to_all", "direct"),
    "incast of 1,000": lambda: incast(0.0),
    "incast of 1,000 sizes": lambda: incast(1.0),
    "GPT-like on 8": lambda: gpt_like(8),
    "GPT-like on 64": lambda: gpt_like(64),
    "GPT-like on 512": lambda: gpt_like(512),
    "GPT-3 on 64, full recompute": lambda: gpt3(8, 64, recompute="full", **INTERLEAVED),
    "GPT-3 on 64, selective": lambda: gpt3(
        8, 64, recompute="selective", sequence_parallel=True, **INTERLEAVED
    ),
    "GPT-3 on 8,192": lambda: gpt3(1024, 1536, pp=16, dp=64),
    "GPT-3 on 65,536": lambda: gpt3(8192, 12288, pp=16, dp=512),
    "4,096 ranks x 25": lambda: desynchronised_ranks(25),
    "4,096 ranks x 100": lambda: desynchronised_ranks(100),
}


def measure(name: str) -> Measurement:
    """Measure one work in this process, once."""
    lowering = WORKS[name]()
    start = time.process_time()
    graph = lowering()
    lowered = time.process_time()
    run = play(graph, contract=not name.startswith("4,096 ranks"))
    played = time.process_time()
    bare = time.process_time()
    bare_callback_loop(1000, 50_000)
    rate = 50_000 / (time.process_time() - bare)
    return Measurement(
        lower_s=lowered - start,
        play_s=played - lowered,
        callbacks=(played - start) * rate,
        tasks=graph.num_tasks,
        events=run.num_events,
        devices=len(graph.devices.rank),
        simulated_s=run.step_time,
    )


def fresh(name: str, tries: int = 2) -> Measurement:
    """The cheapest of several fresh interpreters: whatever else the machine does can only add."""
    found = []
    for _ in range(tries):
        command = [sys.executable, "-m", "tests.perf.works", name]
        output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
        found.append(Measurement(**json.loads(output)))
    return min(found, key=lambda each: each.callbacks)


if __name__ == "__main__":
    print(json.dumps(asdict(measure(sys.argv[1]))))
