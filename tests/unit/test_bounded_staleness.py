"""SSP beside BSP where servers and ports are no bottleneck: what the bound costs, and reading late."""

from __future__ import annotations

import pytest

import sim
from sim.analysis.result import Result

WORKERS = 4
PARAMETER_BYTES = 4 * 61.1e6  # AlexNet in fp32


def step(slow: dict[int, float], **strategy: object) -> Result:
    """One worker per host, as many servers as workers: every port carries one worker's traffic."""
    workload = sim.workload("alexnet", batch_per_device=1024)
    cluster = sim.cluster("single-gpu", num_hosts=WORKERS)
    rule = {"staleness": 3} if strategy["synchronization"] == "ssp" else {}
    chosen = {"state": "ps_dedicated", "num_servers": WORKERS, **rule, **strategy}
    result = sim.run(workload, cluster, chosen, slow_ranks=slow)
    assert result.status == "ok", result.message
    return result


@pytest.mark.parametrize("slow", [{}, {3: 1.5}, {3: 4.0}], ids=["even", "slow", "very slow"])
def test_ssp_is_not_slower_than_bsp_where_both_read_alike(slow: dict[int, float]) -> None:
    """Nobody waits for more than under BSP: at worst all go at the pace of the straggler."""
    for reading in ({"overlap": False}, {"reads": "eager"}):
        bound = step(slow, synchronization="ssp", **reading).step_time_s
        barrier = step(slow, synchronization="bsp", overlap=reading.get("overlap", True)).step_time_s
        assert bound <= barrier * (1 + 1e-6), reading


def test_lazy_reads_show_one_pull_that_bsp_hides() -> None:
    """SSP pulls when its clock allows, BSP each bucket behind its update, beside the backward."""
    port = sim.cluster("single-gpu", num_hosts=1).host_types[0].nics[0].bandwidth
    pull = PARAMETER_BYTES / port
    barrier = step({}, synchronization="bsp").step_time_s
    lazy = step({}, synchronization="ssp").step_time_s
    eager = step({}, synchronization="ssp", reads="eager").step_time_s
    assert eager < barrier < lazy
    # 7 % for headers and latencies; the rest of the pull hides behind what follows the last update.
    assert 0.5 * pull < lazy - eager < 1.3 * pull
