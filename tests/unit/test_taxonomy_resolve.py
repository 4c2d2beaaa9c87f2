"""What a strategy leaves open is derived from workload and cluster."""

from __future__ import annotations

import pytest

from sim.catalog import Catalog
from sim.errors import InputError, InvalidStrategyError
from sim.spec import Cluster, Strategy
from sim.taxonomy import gradient_grid, num_micro_batches, resolve

CATALOG = Catalog()
GPT = CATALOG.workload("gpt3-125m", global_batch_size=96)
CNN = CATALOG.workload("resnet50", batch_per_device=32)
RACK = CATALOG.cluster("dgx-a100", num_hosts=4)
PAIR = CATALOG.cluster("dgx-a100", num_hosts=2)
HALF_HOST = RACK.host_types[0].replace(devices=(("a100-80gb", 4),), links=(), nic_of_device=None)
LOPSIDED = RACK.model_copy(
    update={"host_types": (RACK.host_types[0], HALF_HOST), "host_type_of": (1, 0), "num_hosts": 2}
)


class TestResolve:
    def test_degree_of_data_parallelism_fills_the_cluster(self) -> None:
        resolved = resolve(Strategy(tp=2, pp=4), GPT, RACK)
        assert resolved.dp == 4
        assert resolved.micro_batch_size == 24
        assert num_micro_batches(resolved, GPT) == 1

    def test_stated_dp_may_leave_devices_idle(self) -> None:
        assert resolve(Strategy(dp=24), GPT, RACK).dp == 24

    def test_weak_scaling_keeps_the_batch_of_a_replica(self) -> None:
        resolved = resolve(Strategy(micro_batch_size=8), CNN, PAIR)
        assert (resolved.dp, num_micro_batches(resolved, CNN)) == (16, 4)

    @pytest.mark.parametrize(
        ("state", "servers"), [("ps_dedicated", 1), ("ps_colocated", 4), ("replicated", None)]
    )
    def test_servers(self, state: str, servers: int | None) -> None:
        assert resolve(Strategy(state=state), GPT, RACK).num_servers == servers  # type: ignore[arg-type]

    def test_colocated_servers_only_where_workers_are(self) -> None:
        assert resolve(Strategy(state="ps_colocated", dp=12), GPT, RACK).num_servers == 2

    @pytest.mark.parametrize(
        ("given", "first"),
        [
            ({}, 2.0**20),
            ({"bucket_size": 64e6}, 64e6),
            ({"bucket_size": 64e6, "first_bucket_size": 1e6}, 1e6),
        ],
    )
    def test_first_bucket(self, given: dict[str, float], first: float) -> None:
        assert resolve(Strategy(**given), GPT, RACK).first_bucket_size == first  # type: ignore[arg-type]

    def test_resolving_twice_changes_nothing(self) -> None:
        once = resolve(Strategy(tp=2, state="ps_colocated"), GPT, RACK)
        assert resolve(once, GPT, RACK) == once

    def test_invalid_strategy_is_refused(self) -> None:
        with pytest.raises(InvalidStrategyError):
            resolve(Strategy(synchronization="asp"), GPT, RACK)


def test_micro_batches_need_a_known_degree() -> None:
    with pytest.raises(InputError, match=r"strategy\.dp: must be known"):
        num_micro_batches(Strategy(), GPT)


@pytest.mark.parametrize(
    ("strategy", "where", "grid"),
    [
        (Strategy(), RACK, (8, 4)),
        (Strategy(tp=4), RACK, (2, 4)),
        (Strategy(tp=2, pp=4), RACK, (4, 1)),
        (Strategy(tp=2, pp=2, placement=("tp", "cp", "pp", "dp")), RACK, (2, 4)),
        (Strategy(dp=12), PAIR, None),
        (Strategy(), LOPSIDED, None),
    ],
)
def test_gradient_groups_form_grids(strategy: Strategy, where: Cluster, grid: tuple[int, int] | None) -> None:
    assert gradient_grid(strategy, GPT, where) == grid
