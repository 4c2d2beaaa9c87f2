"""Communication patterns: latency and bytes of messages, and which links can be left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim.lowering import lower_plan, make_plan
from sim.lowering.plan import Plan
from sim.spec import Cluster
from tests.clusters import cluster, plain_host, switched_host
from tests.scenarios import even_workload, ideal, scenario, serving, serving_host


def planned(where: Cluster, **fields: Any) -> Plan:
    plan = make_plan(scenario(even_workload(2, 1, 2, parameters=1e6), where, **fields))
    lower_plan(plan)
    return plan


def kinds(plan: Plan) -> set[str]:
    """Kinds of the links that a plan kept."""
    return {str(plan.network.link_kind[link]) for link in plan.classes.link_representative}


@pytest.mark.parametrize(("oversubscription", "kept"), [(0.5, False), (1, False), (2, True)])
def test_uplinks_of_a_non_blocking_leaf_are_left_out(oversubscription: float, kept: bool) -> None:
    where = cluster(
        plain_host(), 8, kind="leaf_spine", hosts_per_leaf=4, num_spines=2, oversubscription=oversubscription
    )
    assert ("fabric" in kinds(planned(where, collective="direct"))) == kept


def test_a_wide_bus_before_a_narrow_port_is_left_out_and_a_shared_one_is_not() -> None:
    """PCIe links of 32 GB/s feed a port of 10 GB/s each, or all together one of 50 GB/s."""
    narrow = cluster(switched_host(4, 4, nic=10e9), 4)
    wide = cluster(switched_host(4, 1, nic=50e9), 4)
    assert "pcie" not in kinds(planned(narrow, tp=1, collective="hierarchical"))
    assert "pcie" in kinds(planned(wide, collective="hierarchical"))


def test_ports_are_always_kept() -> None:
    plan = planned(cluster(plain_host(), 4))
    assert kinds(plan) == {"nic"}
    assert plan.classes.link_members.tolist() == [8]  # out and in of four hosts, all alike on a ring


def test_a_step_lasts_as_long_as_its_slowest_hop() -> None:
    """A ring over two hosts of four: six NVLink hops of 2 us, two network hops of 4 + 5 us."""
    where = cluster(switched_host(4, 4, nvlink=100e9, nic=10e9), 2)
    plan = planned(where, calibration=ideal(step_latency=0.0, step_latency_network=5e-6), collective="ring")
    (family,) = plan.families.values()
    (loads,) = family.loads
    steps = 2 * 7
    latency, flow_bytes = loads.timing(0, 8e6)
    assert flow_bytes == pytest.approx(2 * 7 / 8 * 8e6)
    assert latency == pytest.approx(steps * (4e-6 + 5e-6), rel=1e-9)


def test_messages_within_one_memory_move_no_bytes() -> None:
    """A co-located server on a host without links: worker and server share the memory."""
    where = serving(serving_host(), 1)
    plan = planned(where, state="ps_colocated")
    for family in plan.families.values():
        assert family.loads[0].timing(0, 1e9) == (0.0, 0.0)


def test_asymmetric_families_tell_sender_from_receiver() -> None:
    plan = planned(cluster(plain_host(), 2), pp=2, micro_batch_size=1)
    forward, backward = plan.families["pp_forward"], plan.families["pp_backward"]
    assert forward.groups.tolist() == [[0, 1]]
    assert backward.groups.tolist() == [[1, 0]]
    assert forward.asymmetric
    assert len(np.unique(plan.classes.endpoint_class[:2])) == 2


@pytest.mark.parametrize(
    ("groups", "dims"),
    [
        ([[0, 1, 4, 5], [2, 3, 6, 7]], (2, 2)),
        ([[0, 4, 1, 5]], (2, 2)),  # in any order
        ([[0, 1, 2, 3]], (4, 1)),
        ([[0, 4, 8, 12]], (1, 4)),
        ([[0, 1, 4, 5], [2, 6, 10, 14]], None),  # one group is a grid of another shape
        ([[0, 1, 2, 4]], None),
        ([[0, 1, 4, 5, 8, 9, 12]], None),
    ],
)
def test_hosts_of_groups_form_a_grid_or_not(groups: list[list[int]], dims: tuple[int, int] | None) -> None:
    plan = make_plan(scenario(even_workload(1, 1, 2), cluster(switched_host(4, 4), 4)))
    assert plan.grid(np.array(groups), "hierarchical") == dims
