"""BytePS: summing machines beside the workers' hosts, against the closed forms of its paper (section 4.1)."""

from __future__ import annotations

from typing import Any

import pytest

from sim.engine import play
from sim.lowering import lower, make_plan
from sim.spec import Scenario
from tests.random_jobs import resolved
from tests.scenarios import even_workload, ideal, scenario, serving_host

BANDWIDTH = 1e10
PARAMETERS = 5e7
SIZE = 4 * PARAMETERS


def job(n: int, **fields: Any) -> Scenario:
    where = resolved([(serving_host(BANDWIDTH), n)])
    model = even_workload(1, 1e-3, 2e-3, parameters=PARAMETERS)
    fields = {"overlap": False, "bucket_size": 1e12, **fields}
    return scenario(model, where, calibration=ideal(), **fields)


def exchange(n: int, **fields: Any) -> float:
    """Seconds of a step that nothing else fills: a push of everything, then a pull."""
    return play(lower(job(n, **fields))).step_time - 3e-3


def closed_form(n: int, k: int) -> float:
    return 2 * n * (n - 1) * SIZE / ((n * n + k * n - 2 * k) * BANDWIDTH)


@pytest.mark.parametrize(("n", "k"), [(4, 1), (4, 3), (8, 2), (8, 7), (16, 4)])
def test_the_exchange_takes_the_closed_form(n: int, k: int) -> None:
    """Push and pull are one after the other here; side by side on full-duplex ports they take half."""
    assert exchange(n, state="ps_mixed", num_servers=k) == pytest.approx(2 * closed_form(n, k), rel=1e-6)


@pytest.mark.parametrize("n", [4, 8])
def test_the_ends_are_servers_beside_the_workers_and_servers_of_their_own(n: int) -> None:
    beside = exchange(n, state="ps_colocated")
    # No machine: n slices in n hosts, whose busiest port carries (n - 1) / n of the model each way.
    assert beside == pytest.approx(2 * (n - 1) / n * SIZE / BANDWIDTH, rel=1e-6)
    assert closed_form(n, 0) * BANDWIDTH == pytest.approx(2 * (n - 1) / n * SIZE)  # an all-reduce's time
    alone = exchange(n, state="ps_dedicated", num_servers=n)
    assert exchange(n, state="ps_mixed", num_servers=n) == pytest.approx(alone, rel=1e-9)
    assert alone == pytest.approx(2 * closed_form(n, n), rel=1e-6)


@pytest.mark.parametrize(("n", "k"), [(4, 1), (8, 2), (8, 7)])
def test_all_ports_carry_the_same(n: int, k: int) -> None:
    plan = make_plan(job(n, state="ps_mixed", num_servers=k))
    share = plan.server_shares
    assert share.sum() == pytest.approx(1)
    machine, host = share[0], share[-1]
    assert machine == pytest.approx(2 * (n - 1) / (n * n + k * n - 2 * k))
    assert host == pytest.approx((n - k) / (n * n + k * n - 2 * k))
    # Out of a worker's host: its gradients for others, and its sums for the others; into a machine: all n.
    assert (1 - host) + (n - 1) * host == pytest.approx(n * machine)


def test_machines_make_it_faster_until_there_is_one_per_worker() -> None:
    times = [exchange(8, state="ps_mixed", num_servers=k) for k in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)
    assert times[-1] == pytest.approx(exchange(8, state="ps_mixed", num_servers=12), rel=1e-9)


def test_workers_update_and_keep_the_state() -> None:
    graph = lower(job(4, state="ps_mixed", num_servers=2))
    names = [graph.names[name] for name in graph.name]
    assert "optimizer" in names
    updates = [work for name, work in zip(names, graph.work, strict=True) if name.endswith(".update")]
    assert updates
    assert not any(updates)
    mixed, servers = (
        make_plan(job(4, state=state, num_servers=2)).footprints[0] for state in ("ps_mixed", "ps_dedicated")
    )
    assert mixed["weights"] == servers["weights"]
    assert mixed["optimizer"] >= servers["optimizer"]
