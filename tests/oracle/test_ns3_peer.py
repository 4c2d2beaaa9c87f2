"""Bulk transfers against ns-3: finish times of the fluid network and of TCP in a packet-level simulator.

Needs the extra `ns3` (headers and libraries of its package; no Python binding is used) and a C++ compiler.
Senders run DCTCP with marking queues, as data centres do, over jumbo frames. `python -m
tests.oracle.test_ns3_peer` prints the table of `docs/explanation/network.md`.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import pytest

from sim.catalog import default_catalog
from sim.engine import play
from sim.fabric.network import Network
from sim.graph.execution import TaskKind
from sim.lowering import lower_collective
from sim.spec import Cluster
from tests.clusters import cluster, plain_host

COMPILER = shutil.which("g++")
PACKAGE = find_spec("ns3")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PACKAGE is None, reason="needs the extra `ns3` (the package ns3 of PyPI)"),
    pytest.mark.skipif(COMPILER is None, reason="needs g++ to build the ns-3 program of the comparison"),
]

MODULES = ("applications", "internet", "traffic-control", "point-to-point", "network", "core")
B = 12.5e9  # 100 Gbit/s
MTU, HEADERS, FRAME = 9000, 52, 2  # IPv4, TCP and its time stamps; point-to-point framing
GOODPUT = (MTU - HEADERS) / (MTU + FRAME)
QUEUE, MARKING = 1000, 20  # packets
SIZE = 40e6
IDEAL = default_catalog().calibration(("default", "ideal"))
SPINE = {"kind": "leaf_spine", "hosts_per_leaf": 4, "routing": "static"}
HOST = plain_host(B, 1e-6)

Pairs = list[list[int]]
Case = tuple[Cluster, Pairs, npt.NDArray[np.float64]]


def _case(spec: Cluster, pairs: Pairs, *relative: float) -> Case:
    return spec, pairs, SIZE * np.broadcast_to(relative or (1.0,), len(pairs))


CASES: dict[str, Case] = {
    "one flow": _case(cluster(HOST, 4), [[0, 1]]),
    "two flows into one port": _case(cluster(HOST, 4), [[0, 2], [1, 2]]),
    "two flows, one of half the size": _case(cluster(HOST, 4), [[0, 2], [1, 2]], 1.0, 0.5),
    "incast of 8": _case(cluster(HOST, 9), [[i, 0] for i in range(1, 9)]),
    "incast of 8, all sizes different": _case(
        cluster(HOST, 9), [[i, 0] for i in range(1, 9)], *(0.25 + 0.125 * np.arange(8))
    ),
    "dumbbell of 4 pairs, 2.7:1": _case(
        cluster(HOST, 8, num_spines=1, uplink_bandwidth=1.5 * B, **SPINE), [[0, 4], [1, 5], [2, 6], [3, 7]]
    ),
    "leaf-spine, two jobs' rings on one spine": _case(
        cluster(HOST, 8, num_spines=1, uplink_bandwidth=1.5 * B, **SPINE),
        [[0, 1], [1, 4], [4, 5], [5, 0], [2, 6], [6, 3], [3, 7], [7, 2]],
    ),
    "leaf-spine, two spines, traffic both ways": _case(
        cluster(HOST, 8, num_spines=2, uplink_bandwidth=0.75 * B, **SPINE),
        [[0, 4], [1, 6], [2, 5], [3, 5], [7, 0]],
    ),
}


# Data that leaves a port delays the acknowledgements of what arrives there: such flows get less than others.
TWO_WAY = ("leaf-spine, two jobs' rings on one spine", "leaf-spine, two spines, traffic both ways")


def build_driver(folder: Path) -> Path:
    """Compile the ns-3 program against the package's headers and libraries."""
    assert PACKAGE is not None
    assert COMPILER is not None
    root = Path(next(iter(PACKAGE.submodule_search_locations or ())))
    library = next(path for path in (root / "lib64", root / "lib") if path.is_dir())
    version = next(library.glob("libns3*-core.so")).name.removesuffix("core.so").removeprefix("lib")
    program = folder / "driver"
    command = [COMPILER, "-std=c++20", "-O1", f"-I{root / 'include'}", f"-L{library}"]
    command += [str(Path(__file__).with_name("ns3_driver.cc")), "-o", str(program)]
    command += [f"-l{version}{module}" for module in MODULES]
    command += [f"-Wl,-rpath,{library}", f"-Wl,-rpath-link,{library}"]
    subprocess.run(command, check=True, timeout=600)
    return program


def fluid(case: Case) -> npt.NDArray[np.float64]:
    """Finish times of the engine; the bytes are those on the wire, headers included."""
    spec, pairs, sizes = case
    graph = lower_collective(
        spec, "send", "direct", sizes / GOODPUT, calibration=IDEAL, ranks=pairs, fold=False
    )
    run = play(graph)
    transfers = np.flatnonzero(graph.kind[run.task] == TaskKind.TRANSFER)
    return np.asarray(run.end[transfers][np.argsort(run.task[transfers])])


def describe(case: Case) -> str:
    """What the ns-3 program reads."""
    spec, pairs, sizes = case
    network = Network.build(spec)
    routes = network.routes(*np.array(pairs).T)
    cables: dict[tuple[str, str], tuple[float, float]] = {}
    for a, b, link in network.arcs():
        cables[a, b] = (network.link_capacity[link] * 8, network.link_latency[link])
    flows = []
    for i, size in enumerate(sizes):
        row = routes.link[routes.offsets[i] : routes.offsets[i + 1]]
        ends = [network.link_name(link).split("->") for link in row]
        flows.append([0.0, int(size), len(ends) + 1, ends[0][0], *(b for _, b in ends)])
    both = [[a, b, rate, cables[b, a][0], delay] for (a, b), (rate, delay) in cables.items() if a < b]
    head = ["ns3::TcpDctcp", MTU, QUEUE, MARKING]
    lines = [head, [len(both)], *both, [len(flows)], *flows]
    return "\n".join(" ".join(map(str, line)) for line in lines)


def packets(driver: Path, case: Case) -> tuple[npt.NDArray[np.float64], int]:
    """Finish times in ns-3, and the packets that its queues dropped."""
    answer = subprocess.run(
        [driver], input=describe(case), capture_output=True, text=True, check=False, timeout=300
    )
    assert answer.returncode == 0, answer.stderr
    rows = [line.split() for line in answer.stdout.splitlines()]
    return np.array([float(row[0]) for row in rows]), int(rows[0][1])


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("ns3"))


@pytest.mark.parametrize("name", CASES)
def test_bulk_transfers_end_as_in_ns3(driver: Path, name: str) -> None:
    """The end of the whole exchange, and every flow: congestion control shares less evenly than max-min."""
    mine = fluid(CASES[name])
    theirs, dropped = packets(driver, CASES[name])
    assert dropped == 0
    assert theirs.min() > 0
    end, flow = (0.15, 0.2) if name in TWO_WAY else (0.01, 0.06)
    np.testing.assert_allclose(mine.max(), theirs.max(), rtol=end)
    np.testing.assert_allclose(mine, theirs, rtol=flow)


def table(run: Callable[[Case], tuple[npt.NDArray[np.float64], int]]) -> str:
    """Rows of the documentation: the end, its deviation, mean and largest of the flows, dropped packets."""
    lines = []
    for name, case in CASES.items():
        mine = fluid(case)
        cells = [name, f"{mine.max() * GOODPUT * 1e3:.2f}", f"{mine.max() * 1e3:.2f}"]
        theirs, dropped = run(case)
        flow = np.abs(mine / theirs - 1)
        cells += [f"{theirs.max() * 1e3:.2f}", f"{mine.max() / theirs.max() - 1:+.1%}"]
        cells += [f"{flow.mean():.1%}", f"{flow.max():.1%}", str(dropped)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        program = build_driver(Path(folder))
        print(table(lambda case: packets(program, case)))
