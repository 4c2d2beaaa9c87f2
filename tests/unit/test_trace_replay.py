from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sim.errors import InputError
from sim.trace.issues import Issues
from sim.trace.operations import DELAY, DEVICE, HOST, TRANSFER, Operations, clock_offsets, typical
from sim.trace.read import read
from sim.trace.replay import edited, replay, straggler_slowdowns
from sim.trace.to_graph import operations_of, to_graph
from tests.trace_samples import BASE_TS, kernel, kineto, launch, step, two_stream_rank, write

COLUMNS = ["dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id"]


def two_stages(slow: float = 1.0, delay: float = 0.0) -> list[tuple[Any, ...]]:
    """One micro-batch through two stages; forward 1 s, backward 2 s, transfers 0.1 s, stage 1 slower."""
    rows = []
    for number, factor in ((5, 1.0), (9, slow)):
        f0, f1 = 1.0, 1.0 + 0.1 + 1.0 * factor
        b1 = f1 + delay + 2.0 * factor
        rows += [
            (0, 0, 0, number, "forward-compute", 0.0, 1.0, 0, 0, 0),
            (0, 0, 0, number, "forward-send", f0, 0.1, 0, -1, -1),
            (0, 1, 1, number, "forward-recv", 0.0, f0 + 0.1, 0, -1, -1),
            (0, 1, 1, number, "forward-compute", f0 + 0.1, factor, 0, 0, 0),
            (0, 1, 1, number, "backward-compute", f1 + delay, 2.0 * factor, 0, 0, 0),
            (0, 1, 1, number, "backward-send", b1, 0.1, 0, -1, -1),
            (0, 0, 0, number, "backward-recv", f0, b1 + 0.1 - f0, 0, -1, -1),
            (0, 0, 0, number, "backward-compute", b1 + 0.1, 2.0, 0, 0, 0),
            (0, 0, 0, number, "optimizer", b1 + 2.1, 0.5, 0, -1, -1),
            (0, 1, 1, number, "optimizer", b1 + 0.1, 0.5, 0, -1, -1),
        ]
    return rows


def job(tmp_path: Path, rows: list[tuple[Any, ...]]) -> Operations:
    path = tmp_path / "trace-job.parquet"
    pd.DataFrame(rows, columns=COLUMNS).to_parquet(path)
    return operations_of(read([path]))


def test_job_replay_gives_the_measured_steps(tmp_path: Path) -> None:
    result, _ = replay(job(tmp_path, two_stages(1.5, delay=0.25)))
    assert [s["measured_s"] for s in result.steps] == pytest.approx([6.95, 8.45])
    assert [s["replayed_s"] for s in result.steps] == pytest.approx([6.95, 8.45])
    assert result.joined_collectives == 4


def test_transfers_cost_the_time_from_the_last_arrival(tmp_path: Path) -> None:
    ops = job(tmp_path, two_stages())
    moved = {ops.work[o] for o in range(len(ops)) if ops.category[o] == TRANSFER}
    assert np.ptp(list(moved)) < 1e-9
    assert moved.pop() == pytest.approx(0.1)


def test_without_launch_delays_and_without_stragglers(tmp_path: Path) -> None:
    rows, undelayed, ideal = straggler_slowdowns(job(tmp_path, two_stages(1.5, delay=0.25)))
    assert undelayed == pytest.approx((6.7 + 8.2) / 2)
    # forward: mean of 1, 1, 1, 1.5; backward: mean of 2, 2, 2, 3
    assert ideal == pytest.approx(2 * 1.125 + 2 * 2.25 + 0.2 + 0.5)
    slowdown = {row["type"]: row["slowdown"] for row in rows}
    assert slowdown["all"] == pytest.approx(undelayed / ideal)
    forward = (2.0 + 2.5) / 2 + 2 * 2.25 + 0.2 + 0.5
    assert slowdown["forward-compute"] == pytest.approx(forward / ideal)


def test_operations_of_one_name_that_do_not_overlap_are_local(tmp_path: Path) -> None:
    rows = []
    for rank, begin in ((0, 0.0), (1, 5.0)):
        rows.append((rank, 0, rank, 1, "backward-compute", 0.0, begin + 1, 0, 0, 0))
        rows.append((rank, 0, rank, 1, "layernorm-grads-all-reduce", begin + 1, 0.5, 0, -1, -1))
    ops = job(tmp_path, rows)
    assert ops.issues.counts["collective_not_simultaneous"] == 1
    assert not ops.members()


def kineto_ranks(tmp_path: Path, *documents: Any) -> Operations:
    paths = [write(tmp_path, document, f"rank{i}.json") for i, document in enumerate(documents)]
    return operations_of(read(paths, host=True))


def test_kineto_replay_of_two_ranks(tmp_path: Path) -> None:
    # Both run until 200 us after the first; the second one arrives 30 us later at the collective.
    second = two_stream_rank(1, late=30)
    for event in second["traceEvents"]:
        if event["name"].startswith("nccl"):
            event["dur"] = 110
        if event["ts"] > BASE_TS + 200 + 30:
            event["ts"] -= 30
    ops = kineto_ranks(tmp_path, two_stream_rank(0), second)
    result, _ = replay(ops)
    assert result.joined_collectives == 1
    cost = {ops.work[o] for o in range(len(ops)) if ops.category[o] == TRANSFER}
    assert cost.pop() == pytest.approx(110e-6)
    assert result.worst_error < 1e-6
    for rank in result.ranks:
        assert rank["measured_s"] == pytest.approx(400e-6)


def test_clock_offset_of_a_rank_is_found_by_the_ends_of_collectives(tmp_path: Path) -> None:
    def rank(number: int, ahead: int) -> dict[str, Any]:
        events = []
        for i in range(3):
            t = BASE_TS + ahead + 1000 * i
            events.append(launch(t, correlation=i + 1))
            events.append(
                kernel("ncclDevKernel_AllReduce", t + 10 + 5 * number, 200 - 5 * number, correlation=i + 1)
            )
        return kineto(events, rank=number)

    ops = kineto_ranks(tmp_path, rank(0, 0), rank(1, 40_000))
    assert len(ops.members()) == 3
    moved = [o for o in range(len(ops)) if ops.category[o] == TRANSFER]
    assert {round(ops.work[o] * 1e6) for o in moved} == {195}
    assert clock_offsets([np.array([1.0, 2.0]), np.array([1.5, np.nan])]).tolist() == [0.0, 0.5]


def stage_rank(number: int, ahead: int) -> dict[str, Any]:
    """Two stages of two replicas: messages 0 -> 2 and 1 -> 3, then an all-reduce per stage, three times."""
    replicas = [2 * (number // 2), 2 * (number // 2) + 1]
    sends = number < 2
    message = {
        "Collective name": "send" if sends else "recv", "In msg nelems": 4096, "Out msg nelems": 4096,
        "dtype": "Half", "Group size": 2, "Process Group Name": f"pp{number % 2}",
        "Process Group Ranks": str([number % 2, number % 2 + 2]),
        ("Dst Rank" if sends else "Src Rank"): 1 if sends else 0,
    }  # fmt: skip
    reduce = {
        "Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "Float",
        "Group size": 2, "Process Group Name": f"dp{number // 2}", "Process Group Ranks": str(replicas),
    }  # fmt: skip
    events: list[Any] = []
    for i in range(3):
        t, late = BASE_TS + ahead + 1000 * i, 0 if sends else -40
        events.append(launch(t + late, correlation=2 * i + 1))
        events.append(
            kernel("ncclDevKernel_SendRecv", t + 10 + late, 100 - late, stream=20, correlation=2 * i + 1,
                   **message)
        )  # fmt: skip
        early = 7 * (number % 2)
        events.append(launch(t + 205, correlation=2 * i + 2))
        events.append(
            kernel("ncclDevKernel_AllReduce", t + 210 - early, 50 + early, stream=21,
                   correlation=2 * i + 2, **reduce)
        )  # fmt: skip
    return kineto(events, rank=number, world=4)


def test_messages_join_ranks_and_bridge_their_clocks(tmp_path: Path) -> None:
    ahead = [0, 40_000, -7_000, 123_456]
    ops = kineto_ranks(tmp_path, *(stage_rank(number, ahead[number]) for number in range(4)))
    members = list(ops.members().values())
    assert sorted(len(same) for same in members) == [2] * 12
    assert not ops.issues.counts["collective_not_simultaneous"]
    for same in members:
        cost = {round(ops.work[o] * 1e6, 3) for o in same}
        assert cost == ({100.0} if ops.type[same[0]] in ("send", "recv") else {50.0})
    result, _ = replay(ops)
    assert result.worst_error < 1e-6


def test_clocks_are_compared_along_the_pairs_that_share_most() -> None:
    truth = np.array([0.0, 3.0, -2.0, 5.5])
    events = np.arange(6.0)
    ends = [events + offset for offset in truth]
    ends[3] = np.where([0, 0, 0, 0, 1, 1], ends[3], np.nan)
    ends[0] = np.where([1, 1, 1, 0, 0, 0], ends[0], np.nan)  # 0 and 3 share nothing
    assert clock_offsets(ends) == pytest.approx(truth)
    alone = [events, np.full(6, np.nan)]
    assert clock_offsets(alone).tolist() == [0.0, 0.0]
    # One message that ended late does not count beside collectives.
    wrong = [events, np.append(events[:5] + 1, 99.0)]
    assert clock_offsets(wrong, np.array([1, 1, 1, 1, 1, 1e-6])) == pytest.approx([0.0, 1.0])


def test_a_host_that_waits_for_the_device_waits_less_for_a_faster_one(tmp_path: Path) -> None:
    t = BASE_TS
    sync = {**launch(t + 20, correlation=0, dur=100), "name": "cudaStreamSynchronize"}
    events = [
        step(1, t, 150),
        launch(t + 10, correlation=1),
        kernel("gemm", t + 15, 100, correlation=1),
        sync,
    ]
    ops = kineto_ranks(tmp_path, kineto(events, world=1))
    assert replay(ops)[0].replayed_step_s == pytest.approx(150e-6)
    faster = replay(ops, ["device=2"])[0]
    assert faster.what_if is not None
    assert faster.what_if["step_s"] == pytest.approx(100e-6)
    assert replay(ops, ["gemm=0.5"])[0].what_if == {**faster.what_if, "edits": ["gemm=0.5"]}


def test_a_kernel_waits_for_another_stream(tmp_path: Path) -> None:
    t = BASE_TS
    events = [
        launch(t, correlation=1),
        launch(t + 5, correlation=2),
        kernel("producer", t + 10, 300, correlation=1),
        kernel("consumer", t + 312, 50, stream=9, correlation=2),
    ]
    ops = kineto_ranks(tmp_path, kineto(events, world=1))
    result, _ = replay(ops, ["producer=0.5"])
    assert result.what_if is not None
    assert result.replayed_step_s - result.what_if["step_s"] == pytest.approx(150e-6)


def test_collectives_whose_ends_disagree_are_not_joined(tmp_path: Path) -> None:
    def rank(number: int, shifts: tuple[int, ...]) -> dict[str, Any]:
        events = []
        for i, shift in enumerate(shifts):
            t = BASE_TS + 100_000 * i
            events.append(launch(t, correlation=i + 1))
            events.append(kernel("ncclDevKernel_AllReduce", t + 10, 500 + shift, correlation=i + 1))
        return kineto(events, rank=number)

    ops = kineto_ranks(tmp_path, rank(0, (0, 0, 0, 0)), rank(1, (0, 0, 0, 50_000)))
    assert len(ops.members()) == 3
    assert ops.issues.counts["collective_not_simultaneous"] == 1


def small() -> Operations:
    ops = Operations((0,), Issues())
    a = ops.add(0, "gpu", DEVICE, "a", 0.0, 1.0)
    b = ops.add(0, "gpu", DEVICE, "a", 1.0, 4.0)
    lag = ops.add(0, "", DELAY, "launch", 4.0, 5.0)
    c = ops.add(0, "host", HOST, "host", 5.0, 7.0)
    ops.after(b, a)
    ops.after(lag, b)
    ops.after(c, lag)
    return ops


def test_typical_times_and_edits() -> None:
    ops = small()
    assert typical(ops) == {"a": 2.0, "host": 2.0}
    assert list(edited(ops, ["a=mean"]).work) == [2.0, 2.0, 1.0, 2.0]
    assert list(edited(ops, ["compute=2", "host=0.5"]).work) == [2.0, 6.0, 1.0, 1.0]
    assert list(edited(ops, ["rank:0=3"]).work) == [3.0, 9.0, 1.0, 2.0]
    assert list(edited(ops, ["no-launch-delays"]).work) == [1.0, 3.0, 0.0, 2.0]
    assert list(ops.work) == [1.0, 3.0, 1.0, 2.0]


@pytest.mark.parametrize("edit", ["b=2", "a=", "a=-1", "a=nan", "a=inf", "nothing", "rank:7=2", "=2"])
def test_edits_that_mean_nothing_are_refused(edit: str) -> None:
    with pytest.raises(InputError, match="--what-if"):
        edited(small(), [edit])


def test_graph_agrees_with_its_operations() -> None:
    ops = small()
    imported = to_graph(ops)
    assert imported.graph.work[imported.task].tolist() == list(ops.work)
    ops.after(0, 3)
    with pytest.raises(InputError, match="without a cycle"):
        to_graph(ops)


def test_traces_without_anything_to_play_are_refused(tmp_path: Path) -> None:
    for document in (
        {"schema": "1.0.1", "nodes": [{"id": 1, "name": "x"}]},
        kineto([{"ph": "M", "name": "x"}]),
    ):
        with pytest.raises(InputError, match="operators of the host"):
            operations_of(read([write(tmp_path, document)], host=True))


def test_rounding_is_no_result() -> None:
    from sim.cli.output import percent, seconds
    from sim.trace.replay import relative

    assert seconds(1.8e-16) == seconds(-3e-17) == "0 s"
    assert seconds(2e-12) == "0.002 ns"
    assert percent(-1e-9, 2) == "0.00 %"
    assert percent(-2e-4, 2) == "-0.02 %"
    assert relative(0.1 + 0.2, 0.3) == 0.0
    assert relative(2.0, 1.0) == 1.0
