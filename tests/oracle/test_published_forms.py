"""Costs of collectives and crossing points as papers print them, written out here and played there."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sim.engine import play
from sim.graph.execution import Cause, TaskKind
from sim.lowering import lower
from sim.lowering.collective import lower_collective
from sim.spec import Workload
from sim.spec.layer import Gemm, Layer
from tests.clusters import cluster, plain_host
from tests.random_jobs import resolved
from tests.scenarios import ideal, scenario, serving_host, workload

BANDWIDTH, LATENCY = 1e10, 1e-6
STEP = 2 * LATENCY  # a port on either side


def seconds(algorithm: str, n: int, size: float, dims: tuple[int, ...] | None = None, **shape: int) -> float:
    """An all-reduce on a non-blocking switch of ports of ``BANDWIDTH``."""
    where = cluster(plain_host(BANDWIDTH, LATENCY), n)
    graph = lower_collective(where, "all_reduce", algorithm, size, calibration=ideal(), dims=dims, **shape)
    return play(graph).makespan


def steps(algorithm: str, n: int, dims: tuple[int, ...] | None = None, **shape: int) -> float:
    """Messages one after the other, of a buffer that takes no time."""
    return seconds(algorithm, n, 1e-9, dims, **shape) / STEP


@pytest.mark.parametrize("n", [2, 3, 8, 16])
def test_a_ring(n: int) -> None:
    """2 (n - 1) a + 2 (n - 1) / n M / B (Patarasuk and Yuan, JPDC 2009)."""
    assert seconds("ring", n, 1e8) == pytest.approx(2 * (n - 1) * (STEP + 1e8 / n / BANDWIDTH))


@pytest.mark.parametrize("n", [2, 3, 8, 16])
def test_a_binomial_tree(n: int) -> None:
    """2 ceil(log2 n) (a + M / B): reduce, then broadcast (Iandola et al., FireCaffe, CVPR 2016)."""
    assert seconds("binomial_tree", n, 1e8) == pytest.approx(
        2 * math.ceil(math.log2(n)) * (STEP + 1e8 / BANDWIDTH)
    )


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_halving_and_doubling(n: int) -> None:
    """2 log2 n a + 2 (n - 1) / n M / B, and log2 n (a + M / B) (Thakur et al., IJHPCA 2005)."""
    levels = math.log2(n)
    assert seconds("halving_doubling", n, 1e8) == pytest.approx(
        2 * levels * STEP + 2 * (n - 1) / n * 1e8 / BANDWIDTH
    )
    assert seconds("recursive_doubling", n, 1e8) == pytest.approx(levels * (STEP + 1e8 / BANDWIDTH))


@pytest.mark.parametrize("n", [4, 8, 16])
def test_a_double_binary_tree(n: int) -> None:
    """2 log2 n a, and 2 M / B however many ranks (Sanders et al. 2009; NCCL 2.4)."""
    assert seconds("tree", n, 1e9) == pytest.approx(2e9 / BANDWIDTH, rel=1e-3)
    assert steps("tree", n) == pytest.approx(2 * math.log2(n), abs=2)


@pytest.mark.parametrize(("k", "groups"), [(2, 4), (4, 4), (8, 3)])
def test_steps_over_two_dimensions(k: int, groups: int) -> None:
    """Groups with leaders 4 (k - 1) + 2 (n / k - 1) (Jia et al. 2018), a torus 2 (X - 1) + 2 (Y - 1) (Mikami
    et al. 2018), where one ring has 2 (n - 1)."""
    n, dims = k * groups, (k, groups)
    assert steps("leaders", n, dims) == pytest.approx(4 * (k - 1) + 2 * (groups - 1))
    assert steps("torus2d", n, dims) == pytest.approx(2 * (k - 1) + 2 * (groups - 1))
    assert steps("hierarchical", n, dims) == pytest.approx(2 * (k - 1) + 2 * (groups - 1))
    assert steps("ring", n) == pytest.approx(2 * (n - 1))


@pytest.mark.parametrize("dims", [(2, 2, 4), (4, 4), (2, 3, 2)])
def test_blueconnect(dims: tuple[int, ...]) -> None:
    """Sum over levels of 2 (p - 1) a + 2 (p - 1) / p M / (p of the levels below) / B (Cho et al., 2019)."""
    expected, below = 0.0, 1
    for extent in dims:
        expected += 2 * (extent - 1) * (STEP + 1e8 / (below * extent) / BANDWIDTH)
        below *= extent
    assert seconds("blueconnect", math.prod(dims), 1e8, dims) == pytest.approx(expected)


@pytest.mark.parametrize(("base", "digits"), [(2, 3), (4, 2), (3, 2)])
def test_bcube(base: int, digits: int) -> None:
    """2 log_base n steps and the bytes of a ring (Gloo; Wang et al., BML, NeurIPS 2018)."""
    n = base**digits
    assert steps("bcube", n, radix=base) == pytest.approx(2 * digits)
    assert seconds("bcube", n, 1e9, radix=base) == pytest.approx(2 * (n - 1) / n * 1e9 / BANDWIDTH, rel=1e-3)


# --- sufficient factors against parameter servers ------------------------------------------------------

RANKS, ROWS, COLUMNS = 8, 400, 1000
RACK = resolved([(serving_host(BANDWIDTH), RANKS)])


def matrix(batch: int) -> Workload:
    """One fully connected layer without a bias."""
    layer = Layer(
        name="fc", kind="linear", block=0, ops=(Gemm(rows=1, n=ROWS, k=COLUMNS),), parameters=ROWS * COLUMNS,
        tensors=(ROWS * COLUMNS,), input_elements=COLUMNS, output_elements=ROWS, stored_elements=COLUMNS,
    )  # fmt: skip
    return workload([layer], batch=batch)


def numbers_of_a_host(batch: int, **strategy: object) -> float:
    """Numbers of four bytes that go through a host's port in a step, out and in."""
    graph = lower(scenario(matrix(batch), RACK, **strategy))
    rows = graph.links.rows()
    sent = (graph.kind == TaskKind.TRANSFER) & np.isin(
        graph.cause, (Cause.GRADIENT_COMM, Cause.PARAMETER_COMM)
    )
    size = graph.flow_bytes[rows] * graph.link_coefficient * sent[rows]
    return float((size * graph.link_table.members[graph.links.index]).sum()) / RANKS / 4.0


def test_factors_and_servers_cross_where_poseidon_says() -> None:
    """2 K (P1 - 1) (M + N) numbers of a worker against 2 M N (P1 + P2 - 2) / P2 of a host that works and
    serves (Zhang et al., Poseidon, ATC 2017, table 1), here with P1 = P2 = 8 on the same hosts."""
    servers = {"state": "ps_colocated", "num_servers": RANKS}
    of_servers = 2 * ROWS * COLUMNS * (2 * RANKS - 2) / RANKS
    assert numbers_of_a_host(3, **servers) == pytest.approx(of_servers)
    crossing = ROWS * COLUMNS * (2 * RANKS - 2) / (RANKS * (RANKS - 1) * (ROWS + COLUMNS))
    for batch in (int(crossing), int(crossing) + 1):
        of_factors = numbers_of_a_host(batch, sufficient_factors="always")
        assert of_factors == pytest.approx(2 * batch * (RANKS - 1) * (ROWS + COLUMNS))
        assert (of_factors < of_servers) == (batch < crossing)
