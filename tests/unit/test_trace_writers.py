from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import InputError
from sim.trace.export import export
from sim.trace.issues import Issues
from sim.trace.operations import DEVICE, HOST, TRANSFER, Operations
from sim.trace.read import read
from sim.trace.readers import chakra, wire
from sim.trace.readers.container import members
from sim.trace.replay import play_operations
from sim.trace.to_graph import operations_of
from sim.trace.writers import chakra as chakra_writer
from sim.trace.writers import goal
from tests.trace_samples import BASE_TS, kernel, kineto, operator, two_stream_rank, write

NAMES = st.text(st.characters(codec="utf-8"), max_size=20)
ATTRIBUTES = st.dictionaries(
    st.sampled_from(["is_cpu_op", "comm_size", "comm_type", "comm_src", "pg_name", "num_ops", "stream"]),
    st.booleans() | st.integers(-(2**31), 2**31 - 1) | NAMES | st.floats(allow_nan=False),
)
NODES = st.builds(
    chakra.Node,
    st.integers(0, 2**64 - 1),
    NAMES,
    st.integers(0, 7),
    st.lists(st.integers(0, 2**40), max_size=4),
    st.lists(st.integers(0, 2**40), max_size=4),
    st.integers(0, 2**50).map(float),
    st.integers(0, 2**50).map(float),
    ATTRIBUTES,
    NAMES,
)


@given(st.lists(NODES, max_size=4))
def test_chakra_nodes_survive_writing_and_reading(nodes: list[chakra.Node]) -> None:
    for node in nodes:
        assert chakra.decode_node(memoryview(chakra_writer.encode_node(node))) == node


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_survive_the_wire(value: int) -> None:
    data = wire.encode_varint(value)
    found, end = wire.varint(data, 0)
    assert (wire.signed(found), end) == (value, len(data))


def _nodes(path: Path) -> list[chakra.Node]:
    return [node for member in members(path, Issues()) for node in chakra.read_protobuf(member, Issues())[0]]


def test_chakra_export_of_two_ranks(tmp_path: Path) -> None:
    paths = [write(tmp_path, two_stream_rank(rank), f"rank{rank}.json") for rank in (0, 1)]
    written = export(read(paths, host=True), tmp_path / "job")
    assert [p.name for p in written] == ["job.0.et", "job.1.et", "job.json"]
    assert json.loads(written[2].read_text()) == {"1": [0, 1]}
    for path in written[:2]:
        nodes = _nodes(path)
        known = {node.id for node in nodes}
        assert all(
            d in known and d < node.id for node in nodes for d in node.data_deps if node.type == chakra.COMP
        )
        (collective,) = [node for node in nodes if node.type == chakra.COMM_COLL]
        assert (collective.attributes["comm_type"], collective.attributes["comm_size"]) == (0, 4096)
        assert collective.attributes["pg_name"] == "1"
        assert collective.seconds == pytest.approx(140e-6)
        kernels = [n.seconds for n in nodes if n.type == chakra.COMP and not n.on_host]
        assert kernels == pytest.approx([100e-6, 50e-6])
    again = read(written[:2])
    assert [len(rank.timeline) for rank in again.ranks] == [3, 3]


def pipeline() -> Operations:
    """Rank 0 computes and sends 1000 bytes to rank 1; then both all-reduce 800 bytes."""
    ops = Operations((0, 1), Issues())
    work = ops.add(0, "gpu", DEVICE, "gemm", 0.0, 1e-6)
    send = ops.add(
        0, "send", TRANSFER, "forward-send", 1e-6, 2e-6, type="forward-transfer", size=1000.0, join=0
    )
    receive = ops.add(
        1, "recv", TRANSFER, "forward-recv", 0.0, 2e-6, type="forward-transfer", size=1000.0, join=0
    )
    ops.after(send, work)
    for rank, source in ((0, send), (1, receive)):
        moved = ops.add(rank, "dp", TRANSFER, "grads", 2e-6, 3e-6, type="all_reduce", size=800.0, join=1)
        ops.after(moved, source)
        end = ops.add(rank, "host", HOST, "host", 3e-6, 4e-6)
        ops.after(end, moved)
    ops.resolve_joins()
    return ops


def test_goal_export(tmp_path: Path) -> None:
    path = goal.write_operations(tmp_path / "job.goal", pipeline())
    trace = read([path])
    sent = [(c.kind, c.size_bytes, c.peer) for c in trace.ranks[0].collectives]
    # The message, then a ring all-reduce of two ranks: two steps of half the buffer, each way.
    assert sent == [("send", 1000.0, 1)] + [("send", 400.0, 1), ("recv", 400.0, 1)] * 2
    assert [len(rank.timeline) for rank in trace.ranks] == [2, 1]
    assert not any(rank.issues.counts["dependency_missing"] for rank in trace.ranks)
    text = path.read_text()
    assert "l1: calc 1000" in text
    assert "l2 requires l1" in text
    assert not any(rank.issues.counts["bad_row"] for rank in trace.ranks)


def test_perfetto_export_keeps_every_span(tmp_path: Path) -> None:
    paths = [write(tmp_path, two_stream_rank(rank, late=50 * rank), f"rank{rank}.json") for rank in (0, 1)]
    (written,) = export(read(paths), tmp_path / "out.json")
    events: list[dict[str, Any]] = json.loads(written.read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) == 6 + 2
    assert {e["cat"] for e in spans} == {"compute", "communication", "step"}
    starts = sorted(e["ts"] for e in spans if e["name"].startswith("nccl"))
    assert np.diff(starts)[0] == pytest.approx(50.0)  # on one clock


@pytest.mark.parametrize(("name", "form"), [("x.txt", ""), ("x.json", "vhs"), ("no/where.json", "")])
def test_exports_that_cannot_be(tmp_path: Path, name: str, form: str) -> None:
    path = write(tmp_path, two_stream_rank(0))
    with pytest.raises(InputError):
        export(read([path], host=True), tmp_path / name, form)


def test_a_chakra_export_replays_like_its_source(tmp_path: Path) -> None:
    paths = [write(tmp_path, two_stream_rank(number), f"rank{number}.json") for number in (0, 1)]
    source = operations_of(read(paths, host=True))
    written = export(read(paths, host=True), tmp_path / "job.et")
    again = operations_of(read([path for path in written if path.suffix == ".et"], host=True))
    assert again.ranks == source.ranks
    assert len(again.members()) == len(source.members()) == 1
    before, after = play_operations(source), play_operations(again)
    assert float(after.end.max()) == pytest.approx(float(before.end.max()), abs=1e-8)
    kinds = {"all_reduce"}
    assert {again.type[o] for same in again.members().values() for o in same} == kinds


def test_control_dependencies_in_a_circle_give_way(tmp_path: Path) -> None:
    nodes = [
        chakra.Node(1, "op", chakra.COMP, [2], [], 0.0, 10.0, {"is_cpu_op": True}),
        chakra.Node(2, "kernel", chakra.COMP, [1], [1], 0.0, 20.0, {"is_cpu_op": False, "stream": 7}),
        chakra.Node(3, "last", chakra.COMP, [2, 99], [], 0.0, 30.0, {"is_cpu_op": False, "stream": 7}),
    ]
    path = chakra_writer.write_nodes(tmp_path / "job.0.et", nodes)
    operations = operations_of(read([path], host=True))
    assert operations.issues.counts["dependency_in_a_circle"] == 2
    assert operations.issues.counts["dependency_missing"] == 1
    assert float(play_operations(operations).end.max()) == pytest.approx(60e-6)


def viewer_rules(path: Path) -> list[dict[str, Any]]:
    """Spans of a file that obeys the rules of Chrome's trace format; in a track none overlap."""
    spans = []
    ends: dict[tuple[int, int], int] = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        assert event["ph"] in ("X", "M", "C")
        assert {type(event["pid"]), type(event["tid"])} == {int}
        assert isinstance(event["name"], str)
        if event["ph"] == "X":
            first, last = (round(1000 * t) for t in (event["ts"], event["ts"] + event["dur"]))
            assert 0 <= first <= last
            assert first >= ends.get((event["pid"], event["tid"]), 0)
            ends[event["pid"], event["tid"]] = last
            spans.append(event)
    return spans


def test_perfetto_files_begin_at_zero_and_keep_to_the_rules(tmp_path: Path) -> None:
    events = [
        kernel("late", BASE_TS, 10),
        kernel("early", BASE_TS - 500, 10),
        kernel("beside", BASE_TS + 5, 10),
    ]
    path = write(tmp_path, kineto(events, world=1))
    (written,) = export(read([path], host=True), tmp_path / "out.json")
    assert [(s["name"], s["ts"]) for s in viewer_rules(written)] == [
        ("early", 0.0), ("late", 500.0), ("beside", 505.0)]  # fmt: skip


def test_perfetto_shows_the_operators_of_a_host_without_device(tmp_path: Path) -> None:
    events = [operator("aten::linear", BASE_TS, 90), operator("aten::addmm", BASE_TS + 10, 50)]
    path = write(tmp_path, kineto(events, world=1))
    (written,) = export(read([path], host=True), tmp_path / "out.json")
    assert {s["name"] for s in viewer_rules(written)} == {"aten::linear", "aten::addmm"}


def test_files_that_claim_one_rank_are_written_side_by_side(tmp_path: Path) -> None:
    paths = [write(tmp_path, two_stream_rank(0), name) for name in ("a.json", "b.json")]
    written = export(read(paths, host=True), tmp_path / "job.et")
    assert {path.name for path in written} == {"job.0.et", "job.1.et", "job.json"}


def test_steps_that_restart_the_clock_follow_each_other_in_an_export(tmp_path: Path) -> None:
    names = ["dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id"]
    rows = [
        (0, stage, stage, number, "forward-compute", float(mb + stage), 1.0, mb, 0, mb)
        for number in (4, 5)
        for stage in range(2)
        for mb in range(3)
    ]
    pd.DataFrame(rows, columns=names).to_parquet(tmp_path / "job.parquet")
    source = operations_of(read([tmp_path / "job.parquet"]))
    written = export(read([tmp_path / "job.parquet"]), tmp_path / "job.et")
    back = operations_of(read([path for path in written if path.suffix == ".et"]))
    assert max(back.start) == pytest.approx(max(source.start) + 4.0)  # the step before lasts 4 s
    assert play_operations(back).end.max() == pytest.approx(play_operations(source).end.max())


def test_goal_keeps_the_order_of_streams(tmp_path: Path) -> None:
    """The second task of a stream waits behind its first, though it could run before."""
    ops = Operations((0,), Issues())
    long = ops.add(0, "other", DEVICE, "long", 0.0, 50e-6)
    first = ops.add(0, "s", DEVICE, "first", 50e-6, 60e-6)
    ops.after(first, long)
    ops.add(0, "s", DEVICE, "second", 60e-6, 90e-6)
    back = operations_of(read([goal.write_operations(tmp_path / "x.goal", ops)]))
    assert (
        play_operations(back).end.max()
        == pytest.approx(play_operations(ops).end.max())
        == pytest.approx(90e-6)
    )


def test_nodes_without_durations_play_in_no_time(tmp_path: Path) -> None:
    nodes = [
        chakra.Node(1, "gemm", chakra.COMP, [], [], 0.0, 0.0, {}),
        chakra.Node(2, "x", chakra.COMP, [1], [], 0, 0, {}),
    ]
    ops = operations_of(read([chakra_writer.write_nodes(tmp_path / "job.0.et", nodes)]))
    assert (len(ops), sum(ops.work), ops.issues.counts["no_times"]) == (2, 0.0, 1)


@pytest.mark.parametrize("name", ["job.goal", "job.et"])
def test_ranks_that_wait_for_each_other_still_do_after_an_export(tmp_path: Path, name: str) -> None:
    text = (
        "num_ranks 2\nrank 0 {\nl1: calc 5000\nl2: send 64b to 1 tag 1\nl2 requires l1\n}\n"
        "rank 1 {\nl1: recv 64b from 0 tag 1\nl2: calc 3000\nl2 requires l1\n}\n"
    )
    trace = read([write(tmp_path, text, "source.goal")])
    written = export(trace, tmp_path / name)
    back = operations_of(read([path for path in written if path.suffix != ".json"]))
    assert play_operations(operations_of(trace)).end.max() == pytest.approx(8e-6)
    assert play_operations(back).end.max() == pytest.approx(8e-6)
