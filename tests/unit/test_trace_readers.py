from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.errors import InputError
from sim.trace.info import trace_info
from sim.trace.issues import Issues
from sim.trace.model import Trace
from sim.trace.read import read
from sim.trace.readers import wire
from sim.trace.readers.json_stream import JsonStream
from tests.trace_samples import (
    BASE_TS,
    kernel,
    kineto,
    launch,
    operator,
    step,
    tar_of,
    two_stream_rank,
    write,
)


def counts(trace: Trace, rank: int = 0) -> dict[str, int]:
    return dict(trace.ranks[rank].issues.counts)


def info_of(path: Path) -> dict[str, Any]:
    document = trace_info(read([path]))
    json.dumps(document, allow_nan=False)
    return document


def test_unions_and_sums_of_one_rank(tmp_path: Path) -> None:
    (rank,) = info_of(write(tmp_path, two_stream_rank(1)))["ranks"]
    assert (rank["rank"], rank["world_size"], rank["device"]) == (1, 2, "Test GPU")
    assert (rank["num_compute"], rank["num_comm"]) == (2, 1)
    assert rank["compute_sum_s"] == pytest.approx(150e-6)
    assert rank["comm_sum_s"] == pytest.approx(140e-6)
    assert rank["exposed_comm_s"] == pytest.approx(90e-6)  # 110..200 of the all-reduce at 60..200
    assert rank["idle_s"] == pytest.approx(50e-6)  # 200..250
    assert rank["span_s"] == pytest.approx(290e-6)
    assert rank["steps"] == [{"name": "ProfilerStep#1", "duration_s": pytest.approx(400e-6)}]
    (collective,) = rank["collectives"]
    assert (collective["kind"], collective["size_bytes"], collective["group"]) == ("all_reduce", 4096.0, "0")


def test_gpu_twin_of_a_step_is_not_a_step(tmp_path: Path) -> None:
    events = [
        step(3, BASE_TS, 100),
        step(3, BASE_TS + 5, 90, "gpu_user_annotation"),
        step(4, BASE_TS + 100, 80),
    ]
    (rank,) = info_of(write(tmp_path, kineto(events)))["ranks"]
    assert [s["name"] for s in rank["steps"]] == ["ProfilerStep#3", "ProfilerStep#4"]


def test_old_categories(tmp_path: Path) -> None:
    events = [
        operator("ProfilerStep#2", BASE_TS, 50, cat="Operator"),
        {**launch(BASE_TS + 1, correlation=9), "cat": "Runtime"},
        {**kernel("sgemm", BASE_TS + 4, 10, correlation=9), "cat": "Kernel", "tid": "stream 7"},
        {**kernel("Memcpy HtoD", BASE_TS + 20, 2, correlation=10), "cat": "Memcpy"},
    ]
    (rank,) = info_of(write(tmp_path, {"traceEvents": events}))["ranks"]
    assert (rank["num_compute"], rank["num_memory"], len(rank["steps"])) == (1, 1, 1)


@pytest.mark.parametrize("bad", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_times_that_are_no_numbers_are_counted(tmp_path: Path, bad: str) -> None:
    text = json.dumps(kineto([kernel("a", BASE_TS, 5), kernel("b", BASE_TS + 10, 5)]))
    trace = read([write(tmp_path, text.replace(f'"ts": {BASE_TS + 10}', f'"ts": {bad}'))])
    assert counts(trace)["not_finite_time"] == 1
    assert len(trace.ranks[0].timeline) == 1
    trace = read([write(tmp_path, text.replace('"dur": 5', f'"dur": {bad}', 1))])
    assert counts(trace).get("not_finite_time", 0) + counts(trace).get("negative_duration", 0) == 1


def test_text_timestamps_are_converted(tmp_path: Path) -> None:
    trace = read(
        [write(tmp_path, kineto([kernel("a", str(BASE_TS), "5.5"), kernel("b", f"{BASE_TS + 10}", 5)]))]
    )
    assert counts(trace)["text_timestamp"] == 3
    assert trace.ranks[0].timeline["start"] == pytest.approx([0.0, 10e-6])
    assert trace.ranks[0].timeline["end"][0] == pytest.approx(5.5e-6)


def test_integers_beyond_64_bits_do_not_crash(tmp_path: Path) -> None:
    huge = 15514734831341844875
    events = [
        kernel("a", BASE_TS, 5, correlation=huge, **{"External id": huge * huge}),
        operator("op", BASE_TS, 5, thread=huge, **{"Sequence number": 2**63}),
        kernel("b", BASE_TS + 1, 10**400),
    ]
    trace = read([write(tmp_path, kineto(events, rank=10**30))], host=True)
    assert len(trace.ranks[0].timeline) == 1
    assert trace.ranks[0].rank is None
    assert counts(trace)["not_finite_time"] == 1


def test_integer_timestamps_keep_every_nanosecond(tmp_path: Path) -> None:
    late = 2**53 + 1
    trace = read([write(tmp_path, kineto([kernel("a", late, 1), kernel("b", late + 1, 1)]))])
    assert trace.ranks[0].timeline["start"] == pytest.approx([0.0, 1e-6])
    assert trace.ranks[0].clock_origin_ns == late * 1000


@pytest.mark.parametrize("cut", [0.35, 0.6, 0.93])
def test_truncated_json_keeps_what_came_before(tmp_path: Path, cut: float) -> None:
    events = [kernel(f"k{i}", BASE_TS + 10 * i, 5) for i in range(100)]
    text = json.dumps(kineto(events))
    trace = read([write(tmp_path, text[: int(len(text) * cut)])])
    assert counts(trace)["truncated_file"] == 1
    assert 20 < trace.ranks[0].num_events < 100


def test_bare_array_with_a_trailing_comma(tmp_path: Path) -> None:
    text = json.dumps([kernel("a", 1, 5), kernel("b", 10, 5)])[:-1] + ", "
    trace = read([write(tmp_path, text)])
    assert (counts(trace)["truncated_file"], len(trace.ranks[0].timeline)) == (1, 2)


def test_broken_entry_in_the_middle_costs_one_entry(tmp_path: Path) -> None:
    events = [kernel(f"k{i}", BASE_TS + 10 * i, 5) for i in range(9)]
    text = json.dumps(kineto(events)).replace('"name": "k4"', '"name": k4')
    trace = read([write(tmp_path, text)])
    assert counts(trace)["malformed_event"] == 1
    assert len(trace.ranks[0].timeline) == 8


def test_begin_and_end_events(tmp_path: Path) -> None:
    events = [
        {"ph": "B", "pid": 0, "ts": 10, "name": "PUSHCOMMUNICATION"},
        {"ph": "B", "pid": 0, "ts": 12, "name": "PUSHQUEUE"},
        {"ph": "E", "pid": 0, "ts": 30, "name": "PUSHCOMMUNICATION"},
        {"ph": "E", "pid": 0, "ts": 40, "name": "PUSHQUEUE"},
        {"ph": "B", "pid": 1, "ts": 50, "name": "PULLCOMMUNICATION"},
        {"ph": "E", "pid": 2, "ts": 60, "name": "PULLCOMMUNICATION"},
    ]
    path = write(tmp_path, events)
    trace = read([path])
    assert (counts(trace)["unclosed_begin"], counts(trace)["end_without_begin"]) == (1, 1)
    (rank,) = info_of(path)["ranks"]
    assert (rank["num_comm"], rank["comm_sum_s"]) == (1, pytest.approx(20e-6))


def test_end_without_a_name_closes_the_innermost(tmp_path: Path) -> None:
    events = [
        {"ph": "B", "pid": 0, "tid": 1, "ts": 0, "name": "outer"},
        {"ph": "B", "pid": 0, "tid": 1, "ts": 5, "name": "inner"},
        {"ph": "E", "pid": 0, "tid": 1, "ts": 7},
        {"ph": "E", "pid": 0, "tid": 1, "ts": 20},
    ]
    spans = read([write(tmp_path, events)]).ranks[0].timeline
    lengths = {
        spans.names[n]: e - s
        for n, s, e in zip(spans.integer("name"), spans["start"], spans["end"], strict=True)
    }
    assert lengths == {"outer": pytest.approx(20e-6), "inner": pytest.approx(2e-6)}


def test_findings_on_device_events(tmp_path: Path) -> None:
    events = [
        kernel("a", BASE_TS + 10, 5),
        kernel("a", BASE_TS + 10, 5),
        kernel("b", BASE_TS, 0),
        kernel("c", BASE_TS + 30, -4),
        {"ph": "X", "cat": "kernel", "name": "d", "pid": 0, "tid": 7, "dur": 3},
        {"ph": "X", "cat": "kernel", "name": "e", "pid": 0, "tid": 7, "ts": BASE_TS + 50},
        "no event",
        None,
    ]
    found = counts(read([write(tmp_path, kineto(events))]))
    for name, count in (
        ("duplicate_event", 1),
        ("overlap_on_stream", 1),
        ("zero_length_event", 3),
        ("negative_duration", 1),
        ("missing_timestamp", 1),
        ("missing_duration", 1),
        ("event_not_an_object", 2),
        ("unordered_events", 1),
        ("no_steps", 1),
    ):
        assert found[name] == count, name


@pytest.mark.parametrize(
    ("info", "name", "rank", "world", "finding"),
    [
        (None, "trace.json", None, None, "rank_unknown"),
        (None, "rank-34.pt.trace.json", 34, None, "rank_from_file_name"),
        (None, "num_workers_4__worker2.pt.trace.json", 2, None, "rank_from_file_name"),
        ({"backend": "nccl"}, "trace.json", None, None, "rank_unknown"),
        ({"rank": 5}, "trace.json", 5, None, "world_size_unknown"),
        ({"rank": "7", "world_size": "8"}, "trace.json", 7, 8, "no_steps"),
        ("nccl", "trace.json", None, None, "rank_unknown"),
    ],
)
def test_rank_and_world_size(
    tmp_path: Path, info: Any, name: str, rank: int | None, world: int | None, finding: str
) -> None:
    document = {"schemaVersion": 1, "traceEvents": [kernel("a", 1, 1)]}
    if info is not None:
        document["distributedInfo"] = info
    trace = read([write(tmp_path, document, name)])
    assert (trace.ranks[0].rank, trace.ranks[0].world_size) == (rank, world)
    assert counts(trace)[finding] == 1


def _comm_events(generation: str) -> list[Any]:
    args: dict[str, Any] = {}
    t = BASE_TS
    comms, annotation, on_kernel = {}, None, {}
    if generation == "a":
        annotation = operator(
            "nccl:_all_gather_base", t + 2, 6, cat="user_annotation", **_dims([[64, 8]], ["float"])
        )
    elif generation == "b":
        values = ["", "17", "('4', 'tp')", "0", "_allgather_base", "[]", "[]", "0", "1", "4"]
        comms = {
            **_dims([[512], [], [], [], [], [], [], [], [], []], ["float"] + [""] * 9),
            "Concrete Inputs": values,
        }
    else:
        args = {
            "Collective name": "_allgather_base",
            "dtype": "Float",
            "In msg nelems": 512,
            "Out msg nelems": 2048,
            "Group size": 4,
            "Process Group ID" if generation == "c" else "Process Group Name": "4",
        }
        comms = args
        on_kernel = args if generation == "d" else {}
    events = [
        operator("record_param_comms", t + 1, 9, **comms),
        annotation,
        operator("record_param_comms", t + 20, 2),
    ]
    events += [
        launch(t + 5, correlation=3),
        kernel("ncclKernel_SendRecv_int8_t", t + 8, 30, correlation=3, **on_kernel),
    ]
    return [event for event in events if event is not None]


def _dims(dims: list[Any], types: list[str]) -> dict[str, Any]:
    return {"Input Dims": dims, "Input type": types}


@pytest.mark.parametrize("generation", ["a", "b", "c", "d"])
def test_four_generations_of_collective_metadata(tmp_path: Path, generation: str) -> None:
    trace = read([write(tmp_path, kineto(_comm_events(generation), world=4))])
    (found,) = trace.ranks[0].collectives
    assert (found.kind, found.row) == ("all_gather", 0)
    assert found.size_bytes == 512 * 4 * 4  # the gathered result
    assert found.group == ("" if generation == "a" else "4")
    assert found.end - found.start == pytest.approx(30e-6)


def test_collectives_without_kernels_or_metadata(tmp_path: Path) -> None:
    events = [
        operator(
            "record_param_comms",
            BASE_TS,
            5,
            **{"Collective name": "allreduce", "In msg nelems": 4, "dtype": "Half"},
        ),
        kernel("ncclDevKernel_Generic(ncclDevKernelArgs)", BASE_TS + 50, 5),
        kernel("multimem_all_reduce_kernel", BASE_TS + 60, 5),
    ]
    trace = read([write(tmp_path, kineto(events))])
    found = counts(trace)
    assert (found["collective_without_kernel"], found["collective_without_metadata"]) == (1, 2)
    assert found["collective_kind_unknown"] == 1
    assert [c.kind for c in trace.ranks[0].collectives] == ["all_reduce", "unknown", "all_reduce"]


def test_groups_from_header_and_from_cut_text(tmp_path: Path) -> None:
    info = {"rank": 0, "world_size": 4, "pg_count": 3, "pg_config": [
        {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 4, "ranks": []},
        {"pg_name": "1", "ranks": "[0, 2]"},
    ]}  # fmt: skip
    args = {
        "Collective name": "allreduce",
        "Process Group Name": "9",
        "Process Group Ranks": "[0, 1, ..., 63]",
        "Group size": 64,
    }
    trace = read(
        [write(tmp_path, kineto([operator("record_param_comms", 1, 1, **args)], distributedInfo=info))]
    )
    groups = {group.name: group for group in trace.ranks[0].groups}
    assert groups["0"].ranks == (0, 1, 2, 3)
    assert groups["1"].ranks == (0, 2)
    assert (groups["9"].ranks, groups["9"].size) == ((), 64)
    assert counts(trace)["group_count_mismatch"] == 1


def test_archive_of_ranks_with_apple_double_members(tmp_path: Path) -> None:
    files = {f"jobs/worker{r}.json": json.dumps(two_stream_rank(r)).encode() for r in (2, 0, 1)}
    files["jobs/._worker0.json"] = b"\x00\x05\x16\x07resource"
    files["notes.txt"] = b"hello there, no trace"
    trace = read([tar_of(tmp_path, files)])
    assert sorted(r.rank for r in trace.ranks if r.rank is not None) == [0, 1, 2]
    assert trace.issues.counts["apple_double_member"] == 1
    assert trace.issues.counts["archive_member_not_a_trace"] == 1


def test_truncated_gzip(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    events = [kernel(f"k{i} {rng.random()}", BASE_TS + 10 * i, 5) for i in range(5000)]
    data = gzip.compress(json.dumps(kineto(events)).encode())
    path = tmp_path / "trace.json.gz"
    path.write_bytes(data[: len(data) // 2])
    trace = read([path])
    assert trace.issues.counts["truncated_container"] == 1
    assert 1000 < len(trace.ranks[0].timeline) < 4000


@pytest.mark.parametrize("block", [64, 300, 5000])
def test_streaming_in_small_blocks_equals_one_block(tmp_path: Path, block: int) -> None:
    nested = {"ph": "X", "args": {"list": [{"a": 1}, {"b": '}, {"'}], "text": "x" * 400}}
    document = {
        "first": [1, 2],
        "traceEvents": [nested] * 5 + [{"n": i} for i in range(200)] + [3.25, "s", None],
        "last": {"z": [1, {}]},
    }
    for text in (json.dumps(document), json.dumps(document, indent=2)):
        path = write(tmp_path, text)
        with path.open("rb") as stream:
            reader = JsonStream(stream, "x", Issues(), ("traceEvents",), block=block)
            events = [event for part in reader.blocks() for event in part]
        assert events == document["traceEvents"]
        assert reader.header == {"first": [1, 2], "last": {"z": [1, {}]}}


def test_names_of_users_and_hosts_are_not_copied(tmp_path: Path) -> None:
    document = kineto(
        [kernel("a", 1, 1)], username="alice", hostName="alice-laptop", traceName="/home/alice/x.json"
    )
    text = json.dumps(info_of(write(tmp_path, document)))
    assert "alice" not in text


# ---- other formats --------------------------------------------------------------------------------------


def test_pytorch_execution_traces_of_both_schemas(tmp_path: Path) -> None:
    tensor = [1, 2, 0, 100, 4, "cuda:1"]
    old = {"schema": "1.0.1", "nodes": [
        {"name": "record_param_comms", "id": 5, "parent": 1,
         "inputs": [tensor, 7, 1234, 1, "_allgather_base", [], []],
         "input_shapes": [[100]], "input_types": ["Tensor(float)"], "outputs": [[3, 4, 0, 400, 4, "cuda:1"]]},
        {"name": "record_param_comms", "id": 6, "parent": 1, "inputs": [7, 1234, 1, "wait", [], []]},
    ]}  # fmt: skip
    config = json.dumps([{"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 2}])
    values = [[tensor], 7, ["0", "default_pg"], 1, "allreduce", [], [], 0, 1, 2]
    new = {"schema": "1.1.0-chakra.0.0.4", "nodes": [
        {"id": 2, "name": "## process_group:init ##", "ctrl_deps": 1, "inputs": {"values": [config]}},
        {"id": 3, "name": "ProfilerStep#4", "ctrl_deps": 1},
        {"id": 4, "name": "record_param_comms", "ctrl_deps": 3, "inputs": {
            "values": values, "shapes": [[[100]]], "types": ["GenericList[Tensor(float)]"]}, "attrs": []},
    ]}  # fmt: skip
    first = read([write(tmp_path, old, "eg_1.json")]).ranks[0]
    assert (first.format, first.rank) == ("pytorch-et", 1)
    assert [(c.kind, c.size_bytes) for c in first.collectives] == [("all_gather", 1600.0)]
    second = read([write(tmp_path, new, "rank1_et.json")]).ranks[0]
    assert [(c.kind, c.size_bytes, c.group_size) for c in second.collectives] == [("all_reduce", 400.0, 2)]
    assert (second.world_size, second.groups[0].ranks) == (2, ()) or second.groups[0].size == 2
    assert [s["duration_s"] for s in info_of(tmp_path / "rank1_et.json")["ranks"][0]["steps"]] == [None]


def _attribute(name: str, number: int, value: int | str) -> bytes:
    return wire.encode_field(10, wire.encode_field(1, name) + wire.encode_field(number, value))


def _chakra_file(path: Path, *, size_field: int = 9, cut: int = 0) -> Path:
    nodes = [
        wire.encode_field(1, 1) + wire.encode_field(2, "gemm") + wire.encode_field(3, 4)
        + wire.encode_field(7, 120)
        + _attribute("is_cpu_op", 27, 0),
        wire.encode_field(1, 2) + wire.encode_field(2, "ncclAllGather") + wire.encode_field(3, 7)
        + wire.encode_field(5, wire.encode_varint(1)) + wire.encode_field(6, 120) + wire.encode_field(7, 30)
        + _attribute("comm_type", 9, 2) + _attribute("comm_size", size_field, 1000)
        + _attribute("is_cpu_op", 27, 0),
        wire.encode_field(1, 3) + wire.encode_field(2, "host") + wire.encode_field(3, 4)
        + _attribute("is_cpu_op", 27, 1),
    ]  # fmt: skip
    messages = [wire.encode_field(1, "0.0.4"), *nodes]
    data = b"".join(wire.encode_varint(len(m)) + m for m in messages)
    path.write_bytes(data[: len(data) - cut])
    return path


@pytest.mark.parametrize("size_field", [9, 13])
def test_chakra_protobuf(tmp_path: Path, size_field: int) -> None:
    trace = read([_chakra_file(tmp_path / "job.3.et", size_field=size_field)])
    (rank,) = trace.ranks
    assert (rank.format, rank.rank, rank.num_events) == ("chakra", 3, 3)
    assert rank.timeline["end"] - rank.timeline["start"] == pytest.approx([120e-6, 30e-6])
    assert rank.collectives[0].kind == "all_gather"


def test_truncated_chakra(tmp_path: Path) -> None:
    trace = read([_chakra_file(tmp_path / "job.0.et", cut=5)])
    assert (counts(trace)["truncated_file"], trace.ranks[0].num_events) == (1, 2)


def test_chakra_json(tmp_path: Path) -> None:
    nodes = [
        {"Id": 1, "Name": "gemm", "NodeType": 4, "runtime": 12, "is_cpu_op": False, "data_deps": []},
        {
            "Id": 2,
            "Name": "ncclKernel_Broadcast",
            "NodeType": 7,
            "runtime": 8,
            "is_cpu_op": False,
            "ctrlDeps": [1, 99],
        },
    ]
    trace = read([write(tmp_path, {"workload_graph": nodes, "ngpus": 8}, "chakra.2.json")])
    (rank,) = trace.ranks
    assert (rank.rank, rank.world_size) == (2, 8)
    assert rank.collectives[0].kind == "broadcast"
    assert counts(trace)["dependency_missing"] == 1


def test_nsys_enter_leave_and_report(tmp_path: Path) -> None:
    rows = ["Name,streamId,type,bytes,Trace Type,Event Type,Timestamp (ns)"]
    rows += [
        "k,7,kernel,,gpu_trace,Enter,1000",
        "k,7,kernel,,gpu_trace,Leave,3500",
        "k,7,kernel,,gpu_trace,Enter,9000",
        "x,7",
    ]
    trace = read([write(tmp_path, "\n".join(rows), "a.csv")])
    assert trace.ranks[0].timeline["end"][0] == pytest.approx(2.5e-6)
    assert (counts(trace)["unclosed_begin"], counts(trace)["bad_row"]) == (1, 1)
    report = "Start (ns),Duration (ns),CorrId,Device,Strm,Name\n"
    report += '100,50,1,NVIDIA A100 (0),7,"gemm<a, b>"\n200,30,2,NVIDIA A100 (0),9,ncclDevKernel_AllReduce\n'
    (rank,) = info_of(write(tmp_path, report, "b.csv"))["ranks"]
    assert (rank["device"], rank["num_compute"], rank["num_comm"]) == ("NVIDIA A100", 1, 1)
    assert rank["comm_sum_s"] == pytest.approx(30e-9)


@pytest.mark.parametrize("name", ["report.sqlite", "report.sqlite.gz"])
def test_nsys_sqlite(tmp_path: Path, name: str) -> None:
    plain = tmp_path / "report.sqlite"
    with sqlite3.connect(plain) as database:
        database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        database.execute("INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'ncclDevKernel_SendRecv')")
        database.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, streamId INT, demangledName INT)"
        )
        database.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10, 60, 7, 1), (70, 90, 8, 2), (95, NULL, 8, 2)"
        )
    database.close()
    path = tmp_path / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(plain.read_bytes()))
    (rank,) = info_of(path)["ranks"]
    assert (rank["num_compute"], rank["num_comm"]) == (1, 1)
    assert rank["compute_sum_s"] == pytest.approx(50e-9)


def test_aicb_measured_log(tmp_path: Path) -> None:
    text = "comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time,algbw,busbw"
    text += ",count\n"
    text += "CommType.all_reduce,CommGroup.dp_group,4,1024,init,None,None,,0.5,0.0,0.0,1\n"
    text += "CommType.all_to_all,CommGroup.ep_group,None,2048,fwd,None,None,,None,None,None,1\n"
    trace = read([write(tmp_path, text, "log.csv")])
    found = trace.ranks[0].collectives
    assert [(c.kind, c.size_bytes, c.group_size) for c in found] == [
        ("all_reduce", 1024.0, 4),
        ("all_to_all", 2048.0, None),
    ]
    assert found[0].end - found[0].start == pytest.approx(0.5e-3)
    assert counts(trace)["group_size_unknown"] == 1


def test_simai_workload(tmp_path: Path) -> None:
    text = (
        "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 4 ep: 2 all_gpus: 16 checkpoints: 0\n3\n"
    )
    text += "a -1 100 ALLGATHER 10 200 NONE 0 300 REDUCESCATTER 20 5\n"
    text += "b -1 1 ALLTOALL_EP 7 1 NONE 0 1 NONE 0 5\nshort -1\n"
    trace = read([write(tmp_path, text, "w.txt")])
    (rank,) = trace.ranks
    assert rank.world_size == 16
    assert [(c.kind, c.group, c.size_bytes) for c in rank.collectives] == [
        ("all_gather", "tp", 10.0), ("reduce_scatter", "dp", 20.0), ("all_to_all", "ep", 7.0)]  # fmt: skip
    assert (rank.timeline["end"] - rank.timeline["start"]).sum() == pytest.approx(603e-9)
    assert counts(trace)["bad_row"] == 1


def test_goal_schedule(tmp_path: Path) -> None:
    text = "num_ranks 2\nrank 0 {\nl1: send 4096b to 1 tag 3\nl2: calc 1000 cpu 1\n"
    text += "l2 requires l1\nl2 requires l9\n}\n"
    text += "rank 1 { l1: recv 4096b from 0 tag 3  l2: calc 500  l2 requires l1 }\n"
    trace = read([write(tmp_path, text, "x.goal")])
    assert [r.rank for r in trace.ranks] == [0, 1]
    assert trace.ranks[0].collectives[0].peer == 1
    assert [r.num_events for r in trace.ranks] == [2, 2]
    assert trace.ranks[1].timeline["end"][-1] == pytest.approx(500e-9)
    assert counts(trace)["dependency_missing"] == 1


def test_straggler_parquet(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    rows = []
    for number in (16, 21):
        for rank, slow in ((0, 1.0), (1, 1.5)):
            rows.append((rank, 0, rank, number, "forward-compute", 0.0, 0.1 * slow, 0, 0, 0))
            rows.append(
                (rank, 0, rank, number, "grads-reduce-scatter", 0.1 * slow, 0.2 - 0.1 * slow, 0, 0, -1)
            )
    rows.append((0, 0, 0, 21, "gc", 0.05, -0.01, 0, 0, 0))
    names = ["dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id"]
    path = tmp_path / "trace-X.parquet"
    pandas.DataFrame(rows, columns=names).astype({"start_ts": "float32", "duration": "float32"}).to_parquet(
        path
    )
    document = info_of(path)
    assert [r["rank"] for r in document["ranks"]] == [0, 1]
    assert [s["duration_s"] for s in document["steps"]] == pytest.approx([0.2, 0.2])
    assert document["ranks"][1]["compute_sum_s"] == pytest.approx(0.3)
    assert {w["name"]: w["count"] for w in document["ranks"][0]["warnings"]}["negative_duration"] == 1


def test_xplane(tmp_path: Path) -> None:
    field = wire.encode_field
    meta = field(4, field(1, 5) + field(2, field(1, 5) + field(2, "gemm")))
    event = field(4, field(1, 5) + field(2, 3_000_000) + field(3, 2_000_000))
    line = field(3, field(2, "Stream #7") + field(3, 1_700_000_000_000_000_000) + event)
    derived = field(3, field(2, "XLA Ops") + event)
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(
        field(1, field(2, "/device:GPU:0") + line + derived + meta) + field(1, field(2, "/host:CPU"))
    )
    (rank,) = info_of(path)["ranks"]
    assert (rank["num_compute"], rank["num_events"]) == (1, 2)
    assert rank["compute_sum_s"] == pytest.approx(2e-6)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", "{}"),
        ("b.json", "[1, 2"),
        ("c.json", '{"x": 1'),
        ("d.txt", "hello world, this is prose"),
        ("e.bin", "\x00\x01\x02\x03garbage"),
        ("f.json", " "),
        ("g.parquet", "PAR1 but not really"),
        ("h.sqlite", "SQLite format 3\0 but not really"),
        ("i.json", "[" * 100_000),
        ("j.et", "\xff\xff\xff\xff\xff"),
    ],
)
def test_what_is_no_trace_is_one_clear_line(tmp_path: Path, name: str, content: str) -> None:
    with pytest.raises(InputError) as error:
        read([write(tmp_path, content, name)])
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_missing_and_empty_files(tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_bytes(b"")
    (tmp_path / "none").mkdir()
    for path in (tmp_path / "absent.json", tmp_path / "empty.json", tmp_path / "none"):
        with pytest.raises(InputError):
            read([path])
    with pytest.raises(InputError):
        read([])
