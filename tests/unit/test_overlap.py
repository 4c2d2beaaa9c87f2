"""What communication hides behind computation, and what shows: exact step times of small jobs.

Four layers of 0.25 s forward and 0.5 s backward, each a bucket (and an FSDP unit) of its own; four ranks with
ports of 1 GB/s. Communication is short enough to be hidden wherever something runs beside it.
"""

from __future__ import annotations

from typing import Any

import pytest

from sim.engine import play
from sim.lowering import lower
from tests.scenarios import even_workload, scenario, serving, serving_host

N, LAYERS, COMPUTE = 4, 4, 3.0
BUCKET = 40e6  # bytes
PASS = (N - 1) / N * BUCKET / 1e9  # a reduce-scatter or all-gather of one bucket
PUSH = N * BUCKET / 1e9  # a push or pull of one bucket by all workers at one server


def step_time(*, batch: int = 1, **fields: Any) -> float:
    model = even_workload(LAYERS, 1.0, 2.0, parameters=LAYERS * BUCKET / 4, batch=batch)
    options: dict[str, Any] = {"bucket_size": 1e6, "micro_batch_size": 1, **fields}
    return play(lower(scenario(model, serving(serving_host(), N), **options))).step_time


@pytest.mark.parametrize("batch", [1, 3])
def test_all_reduces_hide_behind_backward_but_the_last(batch: int) -> None:
    assert step_time(batch=batch, collective="ring") == pytest.approx(batch * COMPUTE + 2 * PASS)
    assert step_time(batch=batch, collective="ring", overlap=False) == pytest.approx(
        batch * COMPUTE + LAYERS * 2 * PASS
    )


@pytest.mark.parametrize("batch", [1, 3])
def test_zero1_gathers_hide_behind_the_next_forward_but_the_first(batch: int) -> None:
    assert step_time(batch=batch, state="zero1") == pytest.approx(batch * COMPUTE + 2 * PASS)
    assert step_time(batch=batch, state="zero1", overlap=False) == pytest.approx(
        batch * COMPUTE + LAYERS * 2 * PASS
    )


def test_zero2_reduces_after_every_micro_batch() -> None:
    assert step_time(batch=3, state="zero2") == pytest.approx(3 * COMPUTE + 2 * PASS)
    assert step_time(batch=3, state="zero2", overlap=False) == pytest.approx(
        3 * COMPUTE + (3 + 1) * LAYERS * PASS
    )


@pytest.mark.parametrize("prefetch", [1, 2, 5])
@pytest.mark.parametrize("batch", [1, 2])
def test_zero3_shows_its_first_gather_and_last_scatter(prefetch: int, batch: int) -> None:
    expected = batch * COMPUTE + 2 * PASS
    assert step_time(batch=batch, state="zero3", prefetch=prefetch) == pytest.approx(expected)


def test_zero3_without_prefetching_shows_every_gather() -> None:
    """In the backward pass three gathers share the ports with a scatter and take twice as long."""
    forward, backward, last = 4 * PASS, PASS + 3 * 2 * PASS, PASS
    assert step_time(state="zero3", prefetch=0) == pytest.approx(COMPUTE + forward + backward + last)


@pytest.mark.parametrize("batch", [1, 2])
def test_zero3_without_overlap_shows_everything(batch: int) -> None:
    assert step_time(batch=batch, state="zero3", overlap=False) == pytest.approx(
        batch * (COMPUTE + 3 * LAYERS * PASS)
    )


@pytest.mark.parametrize("batch", [1, 3])
def test_servers_hide_all_but_the_last_push_and_its_pull(batch: int) -> None:
    fields = {"state": "ps_dedicated", "batch": batch}
    assert step_time(**fields) == pytest.approx(batch * COMPUTE + 2 * PUSH)
    assert step_time(**fields, overlap=False) == pytest.approx(batch * COMPUTE + 2 * LAYERS * PUSH)


def test_an_asynchronous_worker_alone_waits_for_its_own_round_trip() -> None:
    alone = step_time(state="ps_dedicated", synchronization="asp", dp=1)
    assert alone == pytest.approx(COMPUTE + 2 * BUCKET / 1e9)


@pytest.mark.parametrize("tau", [1, 3])
def test_models_are_averaged_after_the_last_local_update(tau: int) -> None:
    fields = {"synchronization": "local", "local_steps": tau, "collective": "ring"}
    assert step_time(**fields) == pytest.approx(COMPUTE + LAYERS * 2 * PASS / tau)
