"""Transfer scheduling (D8): merge plans, slices, priorities, credits, negotiations do what they promise."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.engine import play
from sim.lowering import lower, make_plan
from sim.lowering.fusion import FUSIONS, FusionOptions, ReadyTensor
from sim.lowering.scheduling import negotiation_seconds
from sim.spec import Workload
from tests.clusters import cluster, plain_host
from tests.scenarios import ideal, scenario, serving, serving_host, timed_layer, workload

BANDWIDTH = 1e9


def chain(*layers: tuple[float, float, float]) -> Workload:
    """Layers of (forward s, backward s, gradient bytes)."""
    return workload([timed_layer(i, f, b, parameters=size / 4) for i, (f, b, size) in enumerate(layers)])


def step(model: Workload, ranks: int = 4, *, latency: float = 0.0, **fields: Any) -> float:
    where = serving(serving_host(BANDWIDTH), ranks)
    fields = {"collective": "ring", **fields} if "state" not in fields else fields
    one = scenario(model, where, calibration=ideal(step_latency_network=latency), **fields)
    return play(lower(one)).step_time


def last_end(groups: list[tuple[list[ReadyTensor], float]], options: FusionOptions) -> float:
    end = 0.0
    for group, _ in groups:
        size = sum(tensor.size for tensor in group)
        end = max(end, group[-1].ready) + options.startup + options.per_byte * size
    return end


tensors = st.lists(st.tuples(st.floats(0, 3), st.floats(0.01, 5)), min_size=1, max_size=7).map(
    lambda found: [
        ReadyTensor(-i, size, size, ready)
        for i, (ready, (_, size)) in enumerate(
            zip(itertools.accumulate(gap for gap, _ in found), found, strict=True)
        )
    ]
)


@given(tensors, st.floats(0, 3), st.floats(0.01, 2))
def test_a_merge_plan_ends_first_of_all_merges(
    found: list[ReadyTensor], startup: float, per_byte: float
) -> None:
    options = FusionOptions(1e9, startup=startup, per_byte=per_byte)
    planned = last_end(FUSIONS["merge_plan"](found, options), options)
    for cuts in itertools.product([False, True], repeat=len(found) - 1):
        groups: list[tuple[list[ReadyTensor], float]] = [([found[0]], 0.0)]
        for cut, tensor in zip(cuts, found[1:], strict=True):
            if cut:
                groups.append(([], 0.0))
            groups[-1][0].append(tensor)
        assert planned <= last_end(groups, options) * (1 + 1e-9)


def test_a_merge_plan_beats_every_tensor_alone_and_all_together() -> None:
    """MG-WFBP's motivation: start-up times are paid per message, a single message overlaps with nothing."""
    model = chain(*[(0.01, 0.02, 8e6)] * 20)
    alone, one, planned = (
        step(model, latency=2e-3, **fields)
        for fields in ({"fusion": "none"}, {"bucket_size": 1e12}, {"fusion": "merge_plan"})
    )
    assert planned < min(alone, one) * 0.97


def test_a_merge_plan_knows_what_an_exchange_costs() -> None:
    """The line it plans with is the ring's: 2(n-1) latencies, 2(n-1)/n of the bytes."""
    one = scenario(
        chain((1, 1, 1e6)), cluster(plain_host(BANDWIDTH), 4), collective="ring", fusion="merge_plan",
        calibration=ideal(step_latency_network=1e-4),
    )  # fmt: skip
    startup, per_byte = make_plan(one).bucketing.exchange_line(expert=False)
    assert per_byte == pytest.approx(1.5 / BANDWIDTH, rel=1e-6)
    assert 6e-4 <= startup <= 7e-4


def test_cycles_fuse_what_is_ready_and_wait_for_their_end() -> None:
    """Backward of 10 ms a layer and cycles of 25 ms: layers 2 and 2 and 1, the last after 75 ms."""
    model = chain(*[(0.0, 0.01, 1e6)] * 5)
    fields = {"fusion": "time", "cycle_time": 0.025, "collective": "ring"}
    graph = lower(scenario(model, cluster(plain_host(BANDWIDTH), 4), **fields))
    names = [graph.names[name] for name in graph.name.tolist()]
    sizes = [graph.flow_bytes[i] for i, name in enumerate(names) if name.endswith(".all_reduce")]
    assert len(sizes) == 3
    assert sizes[0] == pytest.approx(sizes[1]) == pytest.approx(2 * sizes[2])
    assert step(model, **fields) == pytest.approx(0.075 + 1.5e6 / BANDWIDTH, rel=1e-6)


layers = st.lists(
    st.tuples(st.floats(0.01, 1), st.floats(0.01, 1), st.floats(1e6, 1e9)), min_size=2, max_size=6
)


@settings(max_examples=10)
@given(layers, st.sampled_from([None, 5e7]))
def test_priority_is_never_slower_than_first_come_on_a_chain(
    found: list[tuple[float, float, float]], piece: float | None
) -> None:
    fields = {"fusion": "none", "partition_size": piece}
    first, urgent = (step(chain(*found), **fields, order=order) for order in ("fifo", "priority_layer"))
    assert urgent <= first * (1 + 1e-9)


def test_priority_lets_the_first_layer_pass_a_large_last_one() -> None:
    """The last layer's 1 GB is sliced; the first layer's megabyte goes in between."""
    model = chain((0.5, 0.5, 1e6), (0.5, 0.5, 1e6), (0.5, 0.5, 1e9))
    fields = {"fusion": "none", "partition_size": 1e7}
    first, urgent = (step(model, **fields, order=order) for order in ("fifo", "priority_layer"))
    assert first == pytest.approx(1.5 + 0.5 + 1.5 + 1.5 * 2e6 / BANDWIDTH, rel=1e-6)
    assert urgent < 3.05  # 1.5 s of exchange beside two backwards and two forwards


@pytest.mark.parametrize(("model", "gigabits", "least"), [("vgg19", 8, 1.4), ("resnet50", 2, 1.05)])
def test_p3_gains_at_low_bandwidth(model: str, gigabits: float, least: float) -> None:
    """Jayarajan et al., MLSys 2019: up to 66 % on VGG-19, 26 % on ResNet-50, four machines, a few Gb/s.

    As many servers as workers, devices of 4 TFLOP/s. Much faster networks leave nothing to gain.
    """
    job = sim.workload(model, batch_per_device=16, dtype="fp32")

    def gain(bandwidth: float) -> float:
        where = serving(serving_host(bandwidth), 4)
        slow = where.device_types[0].model_copy(update={"peak_flops": {"fp32": 4e12}})
        where = where.model_copy(update={"device_types": (slow, *where.device_types[1:])})
        plain = {"state": "ps_dedicated", "num_servers": 4, "fusion": "none"}
        base, sliced = (
            play(lower(scenario(job, where, **plain, **fields))).step_time
            for fields in ({}, {"partition_size": 2e6, "order": "priority_layer"})
        )
        return base / sliced

    assert gain(gigabits * 1e9 / 8) >= least
    assert gain(1e12) == pytest.approx(1, abs=0.01)


def test_a_credit_lets_several_pieces_share_the_network() -> None:
    """Start-up times of pieces overlap; with a credit of one they add up."""
    model = chain((0.1, 0.1, 1e8))
    fields = {"partition_size": 1e7, "overlap": False, "order": "priority_layer"}
    one, four = (step(model, latency=5e-3, **fields, credit=credit) for credit in (1e7, 4e7))
    assert one == pytest.approx(0.2 + 10 * 6 * 5e-3 + 1.5e8 / BANDWIDTH, rel=1e-2)
    assert four < 0.75 * one


@pytest.mark.parametrize("order", ["critical_path", "priority_layer"])
def test_servers_answer_what_is_needed_first(order: str) -> None:
    """Pulls of the first layer pass those of the last, where pushes are done sooner (TicTac, P3)."""
    model = chain(*[(0.1, 0.01, 1e8)] * 6)
    fields = {"state": "ps_dedicated", "fusion": "none", "num_servers": 4, "compression": "fp16"}
    first, urgent = (step(model, **fields, order=each) for each in ("fifo", order))
    assert urgent < first * 0.99


def test_negotiations_grow_with_the_ranks() -> None:
    """Kurth et al.: one coordinator is the bottleneck of thousands of ranks, a tree is not."""

    def seconds(kind: str, ranks: int) -> float:
        one = scenario(
            chain((1, 1, 1e6)), cluster(plain_host(BANDWIDTH), ranks), negotiation=kind, cycle_time=1e-3,
            calibration=ideal(step_latency_network=1e-6),
        )  # fmt: skip
        return negotiation_seconds(make_plan(one)) - 0.5e-3

    assert seconds("coordinator", 64) == pytest.approx(2 * 63e-6)
    assert seconds("coordinator", 256) == pytest.approx(2 * 255e-6)
    assert seconds("hier_coordinator", 64) == pytest.approx(2 * 4 * 3e-6)
    assert seconds("hier_coordinator", 256) == pytest.approx(2 * 4 * 4e-6)


def test_a_negotiation_delays_a_message_and_blocks_none() -> None:
    model = chain((0.0, 0.01, 1e6), (0.0, 0.01, 1e6))
    fields: dict[str, Any] = {"fusion": "none", "negotiation": "coordinator"}
    assert step(model, **fields, cycle_time=2e-3) == pytest.approx(step(model, fusion="none") + 1e-3)
