"""Answers that can be worked out by hand, end to end: scenario, lowering, engine, analysis.

Everything runs at datasheet speed (``tests.scenarios.ideal``), so that only what a test is about takes time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.analysis.breakdown import PARTS, activities, counter_waits, device_occupancy, summarize
from sim.analysis.result import Result
from sim.analysis.simulate import simulate
from sim.analysis.timeline_from_run import timeline_from_run
from sim.engine import play
from sim.lowering import lower, memory_by_stage
from sim.models.closed_forms import closed_form
from sim.spec import Scenario, Workload
from tests.clusters import cluster, plain_host, switched_host
from tests.scenarios import even_workload, ideal, scenario, serving, serving_host, timed_layer, workload

B = 1e9  # bytes/s of a port
ONE_BUCKET = {"bucket_size": 1e18, "overlap": False}
FORWARD, BACKWARD = 1.0, 2.0
COMPUTE = FORWARD + BACKWARD


def network(n: int, latency: float = 0.0) -> Any:
    return serving(serving_host(B, latency), n)


def sized(megabytes: float, *, batch: int = 1, layers: int = 4) -> Workload:
    """3 s of computation per sample, and fp32 parameters of so many bytes."""
    return even_workload(layers, FORWARD, BACKWARD, parameters=megabytes * 1e6 / 4, batch=batch)


def step_time(one: Scenario) -> float:
    return play(lower(one)).step_time


# --- collectives --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["ring", "tree", "direct", "halving_doubling", "recursive_doubling"])
@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_an_idle_all_reduce_takes_its_closed_form(algorithm: str, n: int) -> None:
    calibration = ideal(step_latency_network=3e-6)
    one = scenario(
        sized(400), network(n, latency=1e-6), calibration=calibration, collective=algorithm, **ONE_BUCKET
    )
    expected = closed_form("all_reduce", algorithm, n, 400e6, B, alpha=3e-6 + 2 * 1e-6)
    assert step_time(one) - COMPUTE == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("hosts", [2, 3, 8])
def test_an_idle_hierarchical_all_reduce_takes_its_closed_form(hosts: int) -> None:
    """Four devices a host on 300 GB/s NVSwitch, each with a 25 GB/s NIC of its own."""
    where = cluster(switched_host(4, 4), hosts)
    one = scenario(sized(4000), where, collective="hierarchical", **ONE_BUCKET)
    inside, outside = 2e-6, 2 * (1e-6 + 2 * 5e-7)  # two NVLink hops; per side two PCIe hops and the NIC
    expected = closed_form(
        "all_reduce", "hierarchical", 4 * hosts, 4e9, [300e9, 25e9], [inside, outside], dims=(4, hosts)
    )
    assert step_time(one) - COMPUTE == pytest.approx(expected, rel=1e-9)


def test_every_rank_sends_and_receives_all_it_must() -> None:
    """cases 1: 8 ranks, 50 GB/s, 100 MB, 10 ns: ring and direct take 3.5 ms and differ by 12 latencies."""
    calibration = ideal(step_latency_network=10e-9)
    where = cluster(plain_host(50e9), 8)
    ring, direct = (
        step_time(scenario(sized(100), where, calibration=calibration, collective=algorithm, **ONE_BUCKET))
        - COMPUTE
        for algorithm in ("ring", "direct")
    )
    assert ring == pytest.approx(3.5e-3 + 14 * 10e-9, rel=1e-9)
    assert direct == pytest.approx(3.5e-3 + 2 * 10e-9, rel=1e-9)


def test_oversubscription_doubles_what_crosses_the_leaves() -> None:
    """cases 2: rank i of leaf 0 and rank i of leaf 1 exchange; all four rings cross the uplinks."""
    layers = [timed_layer(i, 0.1, 0.2, parameters=1e8, tensor_parameters=1e8) for i in range(2)]

    def communication(oversubscription: float) -> float:
        fabric = {"kind": "leaf_spine", "hosts_per_leaf": 4, "num_spines": 4}
        where = cluster(plain_host(B), 8, **fabric, oversubscription=oversubscription)
        one = scenario(workload(layers), where, tp=4, collective="ring", **ONE_BUCKET)
        return step_time(one) - 0.6

    assert communication(1) == pytest.approx(2 * 1 / 2 * 2e8 / 4 * 4 / B, rel=1e-9)
    assert communication(2) == pytest.approx(2 * communication(1), rel=1e-9)
    assert communication(4) == pytest.approx(4 * communication(1), rel=1e-9)


def test_a_group_wider_than_a_host_pays_for_the_network() -> None:
    """cases 8: a tensor parallel all-reduce over 4 hosts of 4 runs at the speed of the ports between them."""
    layers = [
        timed_layer(
            i, 0.01, 0.02, parameters=4e6, tensor_parameters=4e6, tensor_all_reduce=True,
            input_elements=1e6, output_elements=1e6,
        )
        for i in range(2)
    ]  # fmt: skip

    def communication(tp: int) -> float:
        where = cluster(switched_host(4, 1, nvlink=300e9, nic=25e9), 4)
        return step_time(scenario(workload(layers), where, tp=tp, dp=1)) - 2 * 0.03

    # Two forward, one backward: nobody waits for the gradient of the model's input.
    inside = 3 * closed_form("all_reduce", "ring", 4, 4e6, 300e9, 2e-6)
    across = 3 * closed_form("all_reduce", "ring", 16, 4e6, 25e9, 4e-6)
    assert communication(4) == pytest.approx(inside, rel=1e-9)
    assert communication(16) == pytest.approx(across, rel=1e-9)


# --- parameter servers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("servers", [1, 2, 4])
def test_dedicated_servers_move_n_models_through_k_ports(n: int, servers: int) -> None:
    one = scenario(sized(200), network(n), state="ps_dedicated", num_servers=servers, **ONE_BUCKET)
    port = max(n / servers, 1)  # the servers' ports, or the worker's own if it is alone with many servers
    assert step_time(one) == pytest.approx(COMPUTE + 2 * port * 200e6 / B, rel=1e-9)


@pytest.mark.parametrize("n", [2, 4, 7])
def test_colocated_servers_keep_their_own_share(n: int) -> None:
    one = scenario(sized(200), network(n), state="ps_colocated", **ONE_BUCKET)
    assert step_time(one) == pytest.approx(COMPUTE + 2 * (n - 1) * 200e6 / (n * B), rel=1e-9)


def test_a_server_sums_and_updates_at_the_speed_of_its_memory() -> None:
    """3 x 4 bytes per parameter and worker for sums, 3 x 4 for plain SGD, at 1 % of 1 TB/s."""
    one = scenario(
        sized(200), network(4), calibration=ideal(server_speed=0.01), state="ps_dedicated", **ONE_BUCKET
    )
    server = (4 * 3 * 200e6 + 3 * 200e6) / 1e10
    assert step_time(one) == pytest.approx(COMPUTE + 2 * 4 * 200e6 / B + server, rel=1e-9)


def asynchronous(rule: str, n: int = 4, *, megabytes: float = 1e-6, **fields: Any) -> Result:
    calibration = ideal(server_speed=fields.pop("server_speed", 1.0))
    return simulate(
        scenario(
            sized(megabytes), network(n), calibration=calibration, state="ps_dedicated", synchronization=rule,
            **{"bucket_size": 1e18, **fields},
        )
    )  # fmt: skip


@settings(max_examples=10)
@given(
    st.integers(0, 3),
    st.lists(st.floats(1.0, 3.0), min_size=3, max_size=3),
    st.booleans(),
    st.sampled_from([1e-6, 100.0]),
)
def test_bounded_workers_never_run_further_ahead(
    bound: int, speeds: list[float], overlap: bool, size: float
) -> None:
    slow = dict(enumerate(speeds))
    result = asynchronous("ssp", staleness=bound, slow_ranks=slow, overlap=overlap, megabytes=size)
    if bound == 0:  # a barrier: there is nothing to be ahead of
        assert result.staleness is None
        return
    assert result.staleness is not None
    assert result.staleness["max_ahead"] <= bound


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_a_fast_worker_uses_its_whole_bound(bound: int) -> None:
    result = asynchronous("ssp", staleness=bound, slow_ranks={0: 4.0})
    assert result.staleness is not None
    assert result.staleness["max_ahead"] == bound
    assert result.step_time_s == pytest.approx(4 * COMPUTE, rel=1e-6)


@pytest.mark.parametrize("slow", [{}, {2: 1.5}])
def test_a_bound_of_zero_is_synchronous(slow: dict[int, float]) -> None:
    fields: dict[str, Any] = {"megabytes": 200, "overlap": False, "slow_ranks": slow, "server_speed": 1e18}
    bounded = asynchronous("ssp", staleness=0, **fields)
    assert bounded.step_time_s == pytest.approx(asynchronous("bsp", **fields).step_time_s, rel=1e-9)


def test_asynchronous_throughput_is_the_sum_of_the_workers_rates() -> None:
    slow = {0: 1.0, 1: 1.3, 2: 1.7, 3: 2.9}
    result = asynchronous("asp", slow_ranks=slow)
    assert result.samples_per_s == pytest.approx(sum(1 / (COMPUTE * x) for x in slow.values()), rel=0.02)


def test_asynchronous_throughput_ends_where_the_servers_port_is_full() -> None:
    """8 workers would each move 2 GB in 3 s; served first come, first served, pushes and pulls overlap."""
    where = serving(serving_host(B), 8, link_service="fifo")
    fields: dict[str, Any] = {"state": "ps_dedicated", "synchronization": "asp", "bucket_size": 1e18}
    result = simulate(scenario(sized(2000), where, **fields))
    assert result.samples_per_s == pytest.approx(B / 2e9, rel=1e-6)


@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("spread", [0.0, 0.01])
def test_equal_asynchronous_workers_are_n_minus_1_updates_stale(n: int, spread: float) -> None:
    slow = {rank: 1 + spread * rank / n for rank in range(n)}
    result = asynchronous("asp", n=n, slow_ranks=slow, megabytes=10)
    assert result.staleness is not None
    assert result.staleness["mean"] == pytest.approx(n - 1, rel=0.05)
    assert result.staleness["effective_batch_size"] == 1


def test_backup_workers_hide_a_straggler() -> None:
    """The updates need 3 of 4 gradients; the straggler's are dropped and it goes on with the newest step."""
    even = asynchronous("backup", backup_workers=1)
    uneven = asynchronous("backup", backup_workers=1, slow_ranks={3: 3.5})
    assert even.samples_per_s == pytest.approx(3 / COMPUTE, rel=1e-6)
    assert uneven.samples_per_s == pytest.approx(3 / COMPUTE, rel=1e-6)
    assert asynchronous("bsp", slow_ranks={3: 3.5}).samples_per_s == pytest.approx(
        4 / 3.5 / COMPUTE, rel=1e-6
    )

    graph, run = uneven.graph, uneven.run
    assert graph is not None
    assert run is not None
    names = np.array(graph.names)[graph.name[run.task]]
    straggler = graph.device[run.task] == 3
    dropped = run.dropped[straggler & (names == "bucket0.push")]
    assert len(dropped)
    assert dropped.all()
    # One step in 3.5 is computed at all; what is skipped pulls nothing either.
    for name in ("layer0.forward", "bucket0.pull"):
        skipped = run.dropped[straggler & (names == name)].mean()
        assert skipped == pytest.approx(1 - 1 / 4, abs=0.1)


# --- stragglers ---------------------------------------------------------------------------------------------


def parts_of(result: Result, rank: int) -> dict[str, float]:
    """Breakdown of a step on one device, here by its rank class."""
    graph, run = result.graph, result.run
    assert graph is not None
    assert run is not None
    timeline = timeline_from_run(graph, run, window=run.window)
    found = activities(timeline, waits=counter_waits(graph, timeline))
    table = device_occupancy(found, np.array(run.window), np.array([rank]))[0]
    steps = run.window_iterations[1] - run.window_iterations[0]
    return summarize(table, run.window[1] - run.window[0], steps, "").parts


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("state", ["replicated", "zero1"])
def test_a_straggler_stretches_a_step_by_exactly_its_excess(state: str, fold: bool) -> None:
    """cases 11: 8 ranks, one 1.2 times as slow: 1.2 compute + communication; the others wait 0.2 compute."""
    fields: dict[str, Any] = {"state": state, "fold": fold, "collective": "ring", **ONE_BUCKET}
    slow = simulate(scenario(sized(200), network(8), slow_ranks={0: 1.2}, **fields))
    communication = 2 * 7 / 8 * 200e6 / B
    assert slow.step_time_s == pytest.approx(1.2 * COMPUTE + communication, rel=1e-9)
    assert slow.graph is not None
    for rank in range(1, len(slow.graph.devices.name)):
        parts = parts_of(slow, rank)
        assert parts["wait_s"] == pytest.approx(0.2 * COMPUTE, rel=1e-9)
        assert parts["exposed_comm_s"] == pytest.approx(communication, rel=1e-9)
        assert parts["compute_s"] == pytest.approx(COMPUTE, rel=1e-9)
    assert slow.parts["wait_s"] == 0
    assert slow.critical_device == "rank0"


def test_a_straggler_holds_up_a_parameter_server_by_what_the_port_does_not_hide() -> None:
    """Seven pushes of 0.2 s begin after 3 s; the straggler's joins after 3.6 s, so the port never idles."""
    fields: dict[str, Any] = {"state": "ps_dedicated", **ONE_BUCKET}
    assert step_time(scenario(sized(200), network(8), slow_ranks={0: 1.2}, **fields)) == pytest.approx(
        COMPUTE + 2 * 8 * 0.2, rel=1e-9
    )
    # With small pushes only the straggler is left at the end: its own push, then all pulls.
    assert step_time(scenario(sized(20), network(8), slow_ranks={0: 1.2}, **fields)) == pytest.approx(
        1.2 * COMPUTE + 0.02 + 8 * 0.02, rel=1e-9
    )


# --- local SGD ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [1, 4, 16])
def test_local_steps_divide_communication_by_tau(tau: int) -> None:
    fields: dict[str, Any] = {"synchronization": "local", "local_steps": tau, "collective": "ring"}
    result = simulate(scenario(sized(400), network(4), **fields, **ONE_BUCKET))
    assert result.step_time_s == pytest.approx(COMPUTE + 2 * 3 / 4 * 0.4 / tau, rel=1e-9)
    assert result.samples_per_s == pytest.approx(4 / result.step_time_s, rel=1e-9)


# --- pipelines ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "chunks", "makespan"),
    [("gpipe", 1, 33.0), ("1f1b", 1, 33.0), ("interleaved", 2, 28.5), ("naive", 1, 96.0)],
)
def test_bubbles_without_communication(schedule: str, chunks: int, makespan: float) -> None:
    """cases 9: p = 4, m = 8, F = 1, B = 2 per stage: (m + p - 1) 3 = 33, interleaved (m + (p - 1) / v) 3."""
    model = even_workload(8, 4 * FORWARD, 4 * BACKWARD, batch=8)
    fields: dict[str, Any] = {"schedule": schedule, "virtual_stages": chunks}
    result = simulate(scenario(model, network(4), pp=4, micro_batch_size=1, **fields))
    assert result.step_time_s == pytest.approx(makespan, rel=1e-9)
    assert result.parts["compute_s"] == pytest.approx(24, rel=1e-9)
    idle = sum(result.parts[name] for name in PARTS if name in ("bubble_s", "wait_s", "exposed_comm_s"))
    assert idle == pytest.approx(makespan - 24, rel=1e-9)


@pytest.mark.parametrize(("schedule", "transfers"), [("gpipe", 2), ("1f1b", 4)])
def test_transfers_that_a_pipeline_exposes(schedule: str, transfers: int) -> None:
    """Two stages, 4 micro-batches: GPipe waits for a first and a last transfer.

    1F1B lets stage 0 begin forward m + 2 only after backward m, so two more round trips show, each hidden in
    part: F0 0-1 | 1.1-2.1, B0 -4.1 | 4.2-6.2, F2 -7.2 | 7.3-8.3, B2 -10.3 | 10.4-12.4; F3 9.2-10.2 |
    10.3-11.3, B3 -13.3 | 13.4-15.4.
    """
    model = even_workload(2, 2 * FORWARD, 2 * BACKWARD, batch=4, input_elements=2.5e7, output_elements=2.5e7)
    one = scenario(model, network(2), pp=2, micro_batch_size=1, schedule=schedule)
    assert step_time(one) == pytest.approx((4 + 2 - 1) * COMPUTE + transfers * 0.1, rel=1e-9)


# --- bytes --------------------------------------------------------------------------------------------------

M, N = 400e6, 4  # bytes of the model, ranks
MICRO_BATCHES = 3


def wire_bytes(one: Scenario) -> float:
    """Bytes that leave ports in one iteration; on one switch each byte loads one port out and one in."""
    graph = lower(one)
    moved = graph.flow_bytes[graph.links.rows()] * graph.link_coefficient
    return float((moved * graph.link_table.members[graph.links.index]).sum()) / 2


STATE_BYTES: dict[str, tuple[dict[str, Any], float]] = {
    "ring": ({"collective": "ring"}, 2 * (N - 1) * M),
    "direct": ({"collective": "direct"}, 2 * (N - 1) * M),
    "tree": ({"collective": "tree"}, 2 * (N - 1) * M),
    "halving-doubling": ({"collective": "halving_doubling"}, 2 * (N - 1) * M),
    "recursive doubling": ({"collective": "recursive_doubling"}, N * 2 * M),
    "fp16 gradients": ({"collective": "ring", "compression": "fp16"}, (N - 1) * M),
    "zero1": ({"state": "zero1"}, 2 * (N - 1) * M),
    "zero2": ({"state": "zero2"}, (MICRO_BATCHES + 1) * (N - 1) * M),
    "zero3": ({"state": "zero3"}, MICRO_BATCHES * 3 * (N - 1) * M),
    "dedicated": ({"state": "ps_dedicated", "num_servers": 3}, 2 * N * M),
    "co-located": ({"state": "ps_colocated"}, 2 * (N - 1) * M),
    "asynchronous": ({"state": "ps_dedicated", "synchronization": "asp"}, 2 * N * M),
    "fp16 pushes": ({"state": "ps_dedicated", "compression": "fp16"}, 1.5 * N * M),
    "local": ({"synchronization": "local", "local_steps": 5, "collective": "ring"}, 2 * (N - 1) * M),
}


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("bucket", [1e18, 9e7])
@pytest.mark.parametrize("name", STATE_BYTES)
def test_links_carry_what_the_strategy_must_move(name: str, bucket: float, fold: bool, overlap: bool) -> None:
    fields, expected = STATE_BYTES[name]
    one = scenario(
        sized(400, batch=MICRO_BATCHES), network(N), micro_batch_size=1, bucket_size=bucket, fold=fold,
        overlap=overlap, **fields,
    )  # fmt: skip
    assert wire_bytes(one) == pytest.approx(expected, rel=1e-9)


COLLECTIVES = {"replicated": "ring", "zero1": "auto", "zero2": "auto", "zero3": "auto"}


def test_sharding_moves_two_two_and_three_models() -> None:
    """Rajbhandari et al. 2020, section 7: 2, 2 and 3 Psi per step and rank, times (n - 1) / n on a ring."""
    per_rank = {
        state: wire_bytes(scenario(sized(400), network(8), state=state, collective=collective)) / 8
        for state, collective in [
            ("replicated", "ring"),
            ("zero1", "auto"),
            ("zero2", "auto"),
            ("zero3", "auto"),
        ]
    }
    share = 7 / 8 * 400e6
    assert per_rank == pytest.approx(
        {"replicated": 2 * share, "zero1": 2 * share, "zero2": 2 * share, "zero3": 3 * share}, rel=1e-9
    )


def test_parallel_layers_move_their_activations() -> None:
    """tp 2 x pp 2 x dp 2, fp32, m = 3 micro-batches: what each kind of group moves, in bytes."""
    layers = [
        timed_layer(
            i, 0.1, 0.2, parameters=1e6, tensor_parameters=1e6, tensor_all_reduce=True,
            input_elements=1e5 * (i > 0), output_elements=1e5,
        )
        for i in range(4)
    ]  # fmt: skip
    fields: dict[str, Any] = {"tp": 2, "pp": 2, "micro_batch_size": 1, "collective": "ring"}
    one = scenario(workload(layers, batch=3), network(8), **fields)
    tensor = (4 + 3) * 2 * 4e5  # all-reduces of 2 ranks: forward, and backward but for the model's input
    pipeline = 2 * 2 * 4e5  # two sends by each of two tensor parallel ranks
    gradients = 4 * 2 * 4e6  # in each of 4 groups 2 ranks send half of their 2 half layers twice
    assert wire_bytes(one) == pytest.approx(2 * 3 * (tensor + pipeline) + gradients, rel=1e-9)

    # Sequence parallelism moves as much, and gathers the input once more for the weight gradients.
    sharded = scenario(
        workload(layers, batch=3, sequence_length=64), network(8), sequence_parallel=True, **fields
    )
    again = 3 * 4e5
    assert wire_bytes(sharded) == pytest.approx(2 * 3 * (tensor + pipeline / 2 + again) + gradients, rel=1e-9)


@pytest.mark.parametrize("state", ["replicated", "zero1", "zero3"])
def test_experts_gradients_go_to_their_holders_only(state: str) -> None:
    """8 ranks, ep 4: experts' gradients are summed by 2 ranks, the others' by 8; tokens go to 4 ranks."""
    layer = timed_layer(
        0, 0.1, 0.2, parameters=1e6, expert_parameters=8e6, expert_elements=1e5, num_experts=4,
        tensors=(6e5, 4e5, *[2e6] * 4),
    )  # fmt: skip
    one = scenario(workload([layer], num_experts=4), network(8), ep=4, state=state)
    passes = {"replicated": 2, "zero1": 2, "zero3": 3}[state]
    dense = passes * 7 * 4e6
    experts = 4 * passes * 1 * 8e6  # 4 groups of 2, each with 2 million parameters
    tokens = 4 * 8 * 3 / 4 * 4e5  # dispatch and combine, forward and backward; a quarter stays
    assert wire_bytes(one) == pytest.approx(dense + experts + tokens, rel=1e-9)


def test_sizes_mean_what_nccl_tests_means() -> None:
    """cases 5: 8 ranks gather 8,388,608 bf16 elements: shards of 2,097,152 B, 7 of them through each port."""
    layer = timed_layer(0, 0.1, 0.2, parameters=8_388_608)
    model = workload([layer], dtype="bf16")
    graph = lower(scenario(model, network(8), state="zero3"))
    gathers = [t for t in range(graph.num_tasks) if graph.names[graph.name[t]].endswith("all_gather")]
    assert graph.total_bytes[gathers].tolist() == [14_680_064, 14_680_064]
    assert graph.flow_bytes[gathers] / B == pytest.approx(
        closed_form("all_gather", "ring", 8, 16_777_216, B), rel=1e-12
    )


# --- memory and time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "gigabytes"), [("replicated", 120), ("zero1", 31.4), ("zero2", 16.6), ("zero3", 1.88)]
)
def test_memory_of_seven_and_a_half_billion_parameters(state: str, gigabytes: float) -> None:
    """cases 10: mixed-precision Adam on 64 ranks (Rajbhandari et al. 2020, figure 1)."""
    model = workload([timed_layer(0, 0.1, 0.2, parameters=7.5e9)], dtype="bf16").model_copy(
        update={"optimizer": "adam"}
    )
    (stage,) = memory_by_stage(scenario(model, network(64), state=state))
    states = stage["weights"] + stage["gradients"] + stage["optimizer"]
    assert states / 1e9 == pytest.approx(gigabytes, rel=5e-3)


def test_too_little_memory_is_known_before_lowering(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_: object) -> None:
        raise AssertionError("lowered what does not fit")

    monkeypatch.setattr("sim.lowering.lower_plan", never)
    result = simulate(scenario(workload([timed_layer(0, 1, 1, parameters=5e9)]), network(2)))
    assert result.status == "infeasible"
    # fp32 weights, gradients and DDP's buckets: 12 bytes a parameter; a device has 16 GB.
    assert result.missing_bytes == pytest.approx(12 * 5e9 - 16e9, rel=1e-9)


def test_times_beyond_two_to_the_31_nanoseconds() -> None:
    """cases 3: two dependent operations of 3,000,000,000 ns end after exactly 6,000,000,000 ns."""
    model = workload([timed_layer(i, 3.0, 0.0) for i in range(2)])
    assert step_time(scenario(model, network(1))) == 6.0
    years = workload([timed_layer(i, 3e8, 0.0) for i in range(2)])
    assert step_time(scenario(years, network(1))) == 6e8
