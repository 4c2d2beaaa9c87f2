"""Quirks of real trace files, by the section of the list of formats they are named in."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import tarfile
from pathlib import Path
from typing import Any

import pytest

from sim.cli.main import main
from sim.errors import InputError
from sim.trace.info import trace_info
from sim.trace.read import read
from sim.trace.replay import replay
from sim.trace.to_graph import operations_of
from sim.trace.to_workload import import_workload
from sim.validate.collectives.load import load_rows
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


def ranks_of(*paths: Path) -> list[dict[str, Any]]:
    document = trace_info(read(list(paths)))
    json.dumps(document, allow_nan=False)
    found: list[dict[str, Any]] = document["ranks"]
    return found


def warned(rank: dict[str, Any]) -> dict[str, int]:
    return {warning["name"]: warning["count"] for warning in rank["warnings"]}


# ---- 1: container and syntax ----------------------------------------------------------------------------

GOAL = "num_ranks 1\nrank 0 {\nl1: calc 1000\nl2: calc 500\nl2 requires l1\n}\n"
REPORT = "Start (ns),Duration (ns),Device,Strm,Name\n100,50,A100 (0),7,gemm\n200,30,A100 (0),7,gemm\n"
SIMAI = "HYBRID_TRANSFORMER_FWD_IN_BCKWD all_gpus: 2\n1\na -1 100 NONE 0 200 NONE 0 300 NONE 0 5\n"
AICB = "comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time\n"
AICB += "CommType.all_reduce,dp,4,1024,init,,,,0.5\n"
TEXTS = [("a.goal", GOAL), ("b.csv", REPORT), ("c.txt", SIMAI), ("d.csv", AICB)]


def _text(kind: str) -> str:
    return json.dumps(two_stream_rank(0), indent=1) if kind == "e.json" else dict(TEXTS)[kind]


@pytest.mark.parametrize("name", [*(name for name, _ in TEXTS), "e.json"])
@pytest.mark.parametrize(
    ("encoding", "end"),
    [("utf-8-sig", "\n"), ("utf-8", "\r\n"), ("utf-16", "\r\n"), ("utf-16-be", "\n")],
    ids=["bom", "crlf", "utf-16", "utf-16-be"],
)
def test_1_text_of_windows_reads_like_any_other(tmp_path: Path, name: str, encoding: str, end: str) -> None:
    plain = write(tmp_path, _text(name), name)
    expected = ranks_of(plain)
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    plain.write_bytes(mark + _text(name).replace("\n", end).encode(encoding))
    found = ranks_of(plain)
    for rank in found:
        rank["warnings"] = [w for w in rank["warnings"] if w["name"] != "text_recoded"]
    assert found == expected


def test_1_utf_16_without_a_mark_and_inside_gzip(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(two_stream_rank(0)).encode("utf-16-le")))
    trace = read([path])
    assert len(trace.ranks[0].timeline) == 3
    assert trace.issues.counts["text_recoded"] == 1


def test_1_pax_headers_and_resource_forks(tmp_path: Path) -> None:
    path = tmp_path / "ranks.tgz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for number in (2, 0, 1):
            for label, data in (
                (f"job/._worker{number}.json", b"\0\5\x16\7"),
                (f"job/worker{number}.json", json.dumps(two_stream_rank(number)).encode()),
            ):
                entry = tarfile.TarInfo(label)
                entry.size, entry.pax_headers = len(data), {"LIBARCHIVE.xattr.com.apple.quarantine": "x"}
                archive.addfile(entry, io.BytesIO(data))
    trace = read([path])
    assert sorted(r.rank for r in trace.ranks if r.rank is not None) == [0, 1, 2]
    assert trace.issues.counts["apple_double_member"] == 3


def test_1_metadata_events_are_events_but_no_spans(tmp_path: Path) -> None:
    names = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": f"t{i}"}} for i in range(50)
    ]
    (rank,) = ranks_of(write(tmp_path, kineto([*names, kernel("a", BASE_TS, 5)])))
    assert (rank["num_events"], rank["num_compute"]) == (51, 1)


@pytest.mark.parametrize(
    "name",
    ["a.json", "a.json.gz", "a.et", "a.tar", "a.tar.gz", "a.parquet", "a.sqlite", "a.csv", "a.xplane.pb",
     "a.goal", "a.txt", "a.zip", "a.npz"],
)  # fmt: skip
@pytest.mark.parametrize("seed", [0, 1])
def test_1_garbage_with_a_known_suffix_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, seed: int
) -> None:
    import random

    path = tmp_path / name
    path.write_bytes(random.Random(seed).randbytes(3000))
    for command in (
        ["info"],
        ["replay"],
        ["import", "-o", str(tmp_path / "w.yaml")],
        ["export", "-o", str(tmp_path / "o.goal")],
    ):
        assert main(["trace", command[0], str(path), *command[1:]]) == 2
        out, err = capsys.readouterr()
        assert not out.strip()
        assert len(err.strip().splitlines()) == 1, err
        assert "Traceback" not in err


def test_1_empty_archives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = tmp_path / "empty.tar"
    with tarfile.open(plain, "w"):
        pass
    packed = tar_of(tmp_path, {}, "empty.tar.gz")
    truncated = tmp_path / "cut.json.gz"
    truncated.write_bytes(gzip.compress(b"x" * 100)[:12])
    for path in (plain, packed, truncated):
        assert main(["trace", "info", str(path), "--json"]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_1_truncated_archive_keeps_the_ranks_before(tmp_path: Path) -> None:
    big = [kernel(f"k{i} {i * 7919 % 10007}", BASE_TS + 10 * i, 5) for i in range(4000)]
    files = {f"worker{r}.json": json.dumps(kineto(big, rank=r)).encode() for r in range(2)}
    path = tar_of(tmp_path, files)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * 0.75)])
    trace = read([path])
    assert trace.issues.counts["truncated_container"] >= 1
    assert len(trace.ranks[0].timeline) == 4000


def test_1_folders_are_read_to_the_bottom_and_what_is_no_trace_is_counted(tmp_path: Path) -> None:
    inside = tmp_path / "run" / "plugins" / "profile"
    inside.mkdir(parents=True)
    (inside / "loop").symlink_to(tmp_path / "run")
    (tmp_path / "run" / "README.md").write_text("# notes\n\n- a\n")
    for rank in range(2):
        write(inside, two_stream_rank(rank), f"rank{rank}.json.gz")
    trace = read([tmp_path / "run"])
    assert [rank.rank for rank in trace.ranks] == [0, 1]
    assert trace.issues.counts["file_not_a_trace"] == 1
    for rank in range(2):
        (inside / f"rank{rank}.json.gz").unlink()
    with pytest.raises(InputError, match="at least one trace"):
        read([tmp_path / "run"])


@pytest.mark.parametrize("at", [4, 14, 26, -70, -40, -18, -10, -6])
def test_1_damaged_zip_archives(tmp_path: Path, at: int) -> None:
    import zipfile

    path = tmp_path / "ranks.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for rank in range(2):
            archive.writestr(f"rank{rank}.json", json.dumps(two_stream_rank(rank)))
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)
    try:
        assert read([path]).ranks
    except InputError as error:
        assert "\n" not in str(error)


# ---- 2: time --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [None, "ms", "ns"])
def test_2_the_display_unit_changes_nothing(tmp_path: Path, unit: str | None) -> None:
    extra = {} if unit is None else {"displayTimeUnit": unit}
    (rank,) = ranks_of(write(tmp_path, kineto([kernel("a", 10, 5), kernel("b", 20.5, 2.25)], **extra)))
    assert rank["compute_sum_s"] == pytest.approx(7.25e-6)


def test_2_fractional_microseconds_after_a_base(tmp_path: Path) -> None:
    events = [kernel("a", 8123456.789, 1.001), kernel("b", 8123458.123, 0.999)]
    trace = read([write(tmp_path, kineto(events, baseTimeNanoseconds=1_700_000_000_123_456_789))])
    assert trace.ranks[0].timeline["start"] == pytest.approx([0.789e-6, 2.123e-6], abs=1e-10)
    assert trace.ranks[0].clock_origin_ns == 1_700_000_000_123_456_789 + 8123456 * 1000


def test_2_nanoseconds_since_1970_are_no_microseconds(tmp_path: Path) -> None:
    late = BASE_TS * 1000
    trace = read([write(tmp_path, kineto([kernel("a", late, 5000), kernel("b", late + 7001, 999)]))])
    spans = trace.ranks[0].timeline
    assert spans["start"] == pytest.approx([0.0, 7.001e-6])
    assert spans["end"] - spans["start"] == pytest.approx([5e-6, 0.999e-6])
    assert trace.ranks[0].clock_origin_ns == late
    assert trace.ranks[0].issues.counts["nanosecond_timestamp"] == 1


@pytest.mark.parametrize("unit", ["ns", "nsec", "us", "ms", "s"])
def test_2_units_of_columns(tmp_path: Path, unit: str) -> None:
    factor = {"ns": 1, "nsec": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[unit]
    text = f"Start({unit}),Duration ({unit}),Device,Strm,Name\n0,{5000 / factor!r},A100 (0),7,gemm\n"
    (rank,) = ranks_of(write(tmp_path, text, "a.csv"))
    assert rank["compute_sum_s"] == pytest.approx(5e-6)


def test_2_units_in_the_second_row_and_words_before_the_header(tmp_path: Path) -> None:
    text = '==1== NVPROF is profiling, process 1, command: x\n"Start","Duration","Device","Stream","Name"\n'
    text += 'ms,us,,,\n1.5,5,"V100 (0)",7,"gemm"\n2.5,10,"V100 (0)",7,"[CUDA memcpy HtoD]"\n'
    (rank,) = ranks_of(write(tmp_path, text, "a.csv"))
    assert (rank["compute_sum_s"], rank["memory_sum_s"]) == (pytest.approx(5e-6), pytest.approx(10e-6))
    assert (rank["num_events"], rank["device"]) == (2, "V100")


def test_2_work_of_a_step_may_end_after_it(tmp_path: Path) -> None:
    t = BASE_TS
    events = [step(1, t, 100), launch(t + 5), kernel("gemm", t + 10, 29_000)]
    path = write(tmp_path, kineto(events, world=1))
    (rank,) = ranks_of(path)
    assert rank["steps"][0]["duration_s"] == pytest.approx(100e-6)
    assert replay(operations_of(read([path], host=True)))[0].replayed_step_s == pytest.approx(100e-6)


# ---- 3: steps -------------------------------------------------------------------------------------------


def test_3_repeated_steps_count_once_and_numbers_may_skip(tmp_path: Path) -> None:
    t = BASE_TS
    events = [
        step(551, t, 90),
        step(551, t, 90),
        step(1009, t + 100, 80),
        step(551, t + 1, 85, "gpu_user_annotation"),
    ]
    (rank,) = ranks_of(write(tmp_path, kineto(events)))
    assert [s["name"] for s in rank["steps"]] == ["ProfilerStep#551", "ProfilerStep#1009"]


def test_3_kernels_launched_before_the_window_are_counted(tmp_path: Path) -> None:
    t = BASE_TS
    events = [
        step(1, t, 200),
        kernel("early", t + 1, 20, correlation=99),
        launch(t + 5),
        kernel("gemm", t + 40, 10),
    ]
    path = write(tmp_path, kineto(events, world=1))
    assert warned(ranks_of(path)[0])["launch_missing"] == 1
    result, _ = replay(operations_of(read([path], host=True)))
    assert result.unmatched_kernels == 1
    assert result.worst_error < 1e-6


def test_3_op_tables_leave_steps_out(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    rows = [(0, 0, 0, n, "forward-compute", 0.0, 0.25, 0, 0, 0) for n in (16, 21, 27)]
    names = ["dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id"]
    pandas.DataFrame(rows, columns=names).to_parquet(tmp_path / "t.parquet")
    document = trace_info(read([tmp_path / "t.parquet"]))
    assert [s["name"] for s in document["steps"]] == ["step 16", "step 21", "step 27"]
    assert [s["duration_s"] for s in document["steps"]] == pytest.approx([0.25] * 3)


# ---- 4: which GPU, which rank ---------------------------------------------------------------------------


def test_4_two_files_of_one_rank_and_two_world_sizes(tmp_path: Path) -> None:
    other = two_stream_rank(0)
    other["distributedInfo"]["world_size"] = 4
    paths = [write(tmp_path, two_stream_rank(0), "a.json"), write(tmp_path, other, "b.json")]
    trace = read(paths, host=True)
    assert trace.issues.counts["duplicate_rank"] == 1
    assert trace.issues.counts["world_size_differs"] == 1
    assert [r["world_size"] for r in trace_info(trace)["ranks"]] == [2, 4]
    replay(operations_of(trace))


def test_4_ranks_without_a_number_get_free_ones(tmp_path: Path) -> None:
    paths = []
    for name, number in (("a", None), ("b", 0), ("c", None), ("d", 60)):
        document = two_stream_rank(0)
        del document["distributedInfo"]
        if number is not None:
            document["distributedInfo"] = {"rank": number}
        paths.append(write(tmp_path, document, f"{name}.json"))
    assert operations_of(read(paths, host=True)).ranks == (1, 0, 2, 60)


def test_4_rank_device_and_file_name_need_not_agree(tmp_path: Path) -> None:
    events = [{**kernel("a", BASE_TS, 5), "pid": 9, "args": {"device": 9, "stream": 0}}]
    document = kineto(events, rank=3, world=8, deviceProperties=[{"id": i, "name": ""} for i in range(8)])
    (rank,) = ranks_of(write(tmp_path, document, "rank-5.json"))
    assert (rank["rank"], rank["world_size"], rank["device"]) == (3, 8, None)
    assert warned(rank)["device_unknown"] == 1


def test_4_string_processes_and_several_devices(tmp_path: Path) -> None:
    events = [kernel("a", BASE_TS, 5), {**kernel("b", BASE_TS, 5), "args": {"device": 1, "stream": 7}}]
    events.append(
        {"ph": "X", "cat": "Trace", "name": "t", "pid": "Spans", "tid": "PyTorch", "ts": BASE_TS, "dur": 9}
    )
    (rank,) = ranks_of(write(tmp_path, kineto(events)))
    assert (rank["num_streams"], warned(rank)["several_devices"]) == (2, 1)


def test_4_a_file_of_another_accelerator_has_no_kernels(tmp_path: Path) -> None:
    events = [
        step(1, BASE_TS, 50),
        {"ph": "X", "cat": "mtia_ccp_events", "name": "e", "ts": BASE_TS, "dur": 5},
    ]
    info = {"backend": "mtia:hccl,cpu:gloo", "rank": 0, "world_size": 1}
    (rank,) = ranks_of(write(tmp_path, kineto(events, distributedInfo=info)))
    assert (rank["num_compute"], rank["backend"]) == (0, "mtia:hccl,cpu:gloo")
    assert rank["categories"]["mtia_ccp_events"] == 1
    assert warned(rank)["no_device_events"] == 1
    assert warned(rank)["unknown_category"] == 1


def test_4_a_report_of_a_node_is_one_rank_per_device(tmp_path: Path) -> None:
    text = "Start (ns),Duration (ns),Device,Strm,Name\n"
    text += "".join(f"{100 * i},50,NVIDIA A100 ({i % 2}),7,gemm\n" for i in range(5))
    ranks = ranks_of(write(tmp_path, text, "node.csv"))
    assert [(r["rank"], r["num_compute"], r["device"]) for r in ranks] == [
        (0, 3, "NVIDIA A100"), (1, 2, "NVIDIA A100")]  # fmt: skip
    assert warned(ranks[0])["rank_of_device"] == 2
    path = tmp_path / "node.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        database.execute("INSERT INTO StringIds VALUES (1, 'gemm')")
        database.execute("CREATE TABLE TARGET_INFO_GPU (cuDevice INT, name TEXT)")
        database.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'H100'), (1, 'H100'), (2, 'T4')")
        database.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL"
            " (start INT, end INT, streamId INT, deviceId INT, shortName INT)"
        )
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10, 60, 7, 2, 1), (20, 50, 7, 0, 1)")
    database.close()
    assert [(r["rank"], r["compute_sum_s"], r["device"]) for r in ranks_of(path)] == [
        (0, pytest.approx(30e-9), "H100"), (2, pytest.approx(50e-9), "T4")]  # fmt: skip


# ---- 5: categories and names ----------------------------------------------------------------------------


def test_5_flows_without_their_other_end_and_kinds_without_a_meaning(tmp_path: Path) -> None:
    kinds = ("async", "async_cpu_to_gpu", "ac2g", "fwdbwd")
    events = [
        {"ph": phase, "cat": cat, "id": i, "ts": BASE_TS} for i, cat in enumerate(kinds) for phase in "sf"
    ][1:]
    events += [
        operator("f", BASE_TS, 9, cat=cat)
        for cat in ("cuda_sync", "overhead", "python_function", "cpu_instant_event")
    ]
    (rank,) = ranks_of(write(tmp_path, kineto([*events, kernel("a", BASE_TS, 5)])))
    assert (rank["num_compute"], rank["span_s"]) == (1, pytest.approx(5e-6))
    assert rank["num_events"] == len(events) + 1


def test_5_one_graph_launch_and_many_kernels(tmp_path: Path) -> None:
    t = BASE_TS
    kernels = [kernel(f"k{i}", t + 50 + 10 * i, 8) for i in range(20)]
    path = write(tmp_path, kineto([{**launch(t, dur=40), "name": "cudaGraphLaunch"}, *kernels], world=1))
    assert "launch_missing" not in warned(ranks_of(path)[0])
    result, _ = replay(operations_of(read([path], host=True)))
    assert (result.unmatched_kernels, result.worst_error) == (0, pytest.approx(0.0, abs=1e-9))


# ---- 6: collectives -------------------------------------------------------------------------------------


def test_6_call_and_wait_are_one_collective(tmp_path: Path) -> None:
    named = {"Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8, "dtype": "BFloat16"}
    events: list[Any] = []
    for i in range(3):
        t = BASE_TS + 100 * i
        events += [operator("record_param_comms", t, 9, **named), launch(t + 2, correlation=i)]
        events += [operator("record_param_comms", t + 30, 3, **{"Collective name": "wait"})]
        if i < 2:  # the device ran one fewer than the host issued
            events.append(kernel("ncclKernel_AllReduce_RING_LL_Sum_int8_t", t + 20, 5, correlation=i))
    (rank,) = ranks_of(write(tmp_path, kineto(events)))
    (row,) = rank["collectives"]
    assert (row["count"], row["num_kernels"], row["size_bytes"]) == (3, 2, 16.0)
    assert warned(rank)["collective_without_kernel"] == 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void multimem_all_reduce_kernel<2>", "all_reduce"),
        ("void vllm::cross_device_reduce_1stage<half>", "all_reduce"),
        ("deep_ep::internode::dispatch", "unknown"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16", "reduce_scatter"),
        ("mscclKernel_Sum_half", "unknown"),
    ],
)
def test_6_custom_kernels_communicate_too(tmp_path: Path, name: str, kind: str) -> None:
    (rank,) = ranks_of(write(tmp_path, kineto([kernel(name, BASE_TS, 5)])))
    assert rank["num_comm"] == 1
    assert rank["collectives"][0]["kind"] == kind


def test_6_lengths_of_input_and_output_differ(tmp_path: Path) -> None:
    args = {
        "Collective name": "_allgather_base", "dtype": "Half", "In msg nelems": "25136",
        "Out msg nelems": "201088", "Group size": "8", "Process Group Name": "0",
        "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
    }  # fmt: skip
    (rank,) = ranks_of(
        write(tmp_path, kineto([kernel("ncclDevKernel_Generic", BASE_TS, 5, **args)], world=8))
    )
    (row,) = rank["collectives"]
    assert (row["kind"], row["size_bytes"], row["group_size"]) == ("all_gather", 402176.0, 8)


def test_6_waiting_is_no_cost_of_a_collective(tmp_path: Path) -> None:
    def rank(number: int, dur: int) -> Path:
        t = BASE_TS + 500 - dur
        events = [launch(t - 5), kernel("ncclDevKernel_AllReduce", t, dur)]
        return write(tmp_path, kineto(events, rank=number), f"r{number}.json")

    ops = operations_of(read([rank(0, 495), rank(1, 50)], host=True))
    assert {round(w * 1e6) for w, join in zip(ops.work, ops.join, strict=True) if join >= 0} == {50}


# ---- 7: execution traces --------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["dur", "inclusive_dur"])
@pytest.mark.parametrize("parent", ["parent", "ctrl_deps"])
def test_7_an_execution_trace_that_kineto_was_joined_into(tmp_path: Path, word: str, parent: str) -> None:
    t = BASE_TS

    def node(number: int, name: str, above: int, start: int, length: int, **more: Any) -> dict[str, Any]:
        return {"id": number, "name": name, parent: above, "ts": start, word: length, **more}

    attrs = [{"name": k, "value": v} for k, v in (("collective_name", "allreduce"), ("dtype", "Float"),
             ("in_msg_nelems", 256), ("out_msg_nelems", 256), ("pg_name", "0"), ("pg_size", 2))]  # fmt: skip
    nodes = [
        {"id": 1, "name": "[process]", parent: 1},
        node(2, "aten::mm", 1, t, 20),
        node(3, "gemm", 2, t + 10, 100, cat="kernel", stream=7),
        node(4, "record_param_comms", 1, t + 25, 9, attrs=attrs),
        node(5, "nccl:all_reduce", 4, t + 26, 7),
        node(6, "ncclKernel_AllReduce", 5, t + 110, 40, cat="Kernel", stream=20),
        node(7, "Memcpy HtoD", 2, t + 5, 3, cat="gpu_memcpy", stream=7),
    ]
    path = write(tmp_path, {"schema": "1.0.1", "nodes": nodes}, "eg_1.json")
    (rank,) = ranks_of(path)
    assert (rank["rank"], rank["num_compute"], rank["num_comm"], rank["num_memory"]) == (1, 1, 1, 1)
    assert rank["compute_sum_s"] == pytest.approx(100e-6)
    (row,) = rank["collectives"]
    assert (row["size_bytes"], row["num_kernels"], row["sum_s"]) == (1024.0, 1, pytest.approx(40e-6))
    result, _ = replay(operations_of(read([path], host=True)))
    assert result.measured_step_s == pytest.approx(145e-6)
    assert result.worst_error < 1e-6


@pytest.mark.parametrize("name", ["aten::conv2d", "aten::mm", "aten::embedding"])
@pytest.mark.parametrize("kernels", [0, 1])
def test_7_shapes_that_make_no_layer_are_refused(tmp_path: Path, name: str, kernels: int) -> None:
    events = [operator(name, BASE_TS, 5, **{"Input Dims": [[4], [8]]})]
    events += [launch(BASE_TS + 1), kernel("a", BASE_TS + 3, 5)] * kernels
    trace = read([write(tmp_path, kineto(events, world=1))], host=True)
    with pytest.raises(InputError, match="shapes make a layer"):
        import_workload(trace, name="x")


# ---- 8: nccl-tests --------------------------------------------------------------------------------------


def test_8_messages_of_the_library_between_rows(tmp_path: Path) -> None:
    row = " 1073741824 268435456 float sum -1 10000.0 107.37 201.33 0 9000.0 119.30 223.70 N/A"
    lines = ["0: # all_reduce_perf", f"0: {row}", "0: node-a:41:60 [0] NCCL INFO Channel 00 : 0 -> 1", "..."]
    path = tmp_path / "a.log"
    path.write_text("\n".join([*lines, f"[1,0]<stdout>:{row.replace('1073741824', '1_073_741_824')}"]))
    rows = load_rows([path])
    assert {r.size_bytes for r in rows} == {1 << 30}
    assert {r.case.num_ranks for r in rows if r.case is not None} <= {16}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_8_logs_of_windows_shells(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.log"
    text = "# all_reduce_perf\r\n 1073741824 268435456 float sum -1 10000.0 107.37 201.33 0\r\n"
    path.write_bytes(text.encode(encoding))
    (row,) = load_rows([path])
    assert (row.size_bytes, row.operation) == (1 << 30, "all_reduce")
    table = tmp_path / "t.csv"
    table.write_bytes(
        "hardware,gpus,nodes,collective,message_bytes,time_us\r\nH100,8,1,all_reduce,1MiB,30\r\n".encode(
            encoding
        )
    )
    assert load_rows([table])[0].size_bytes == 1 << 20


# ---- sizes ----------------------------------------------------------------------------------------------


def test_many_events_of_one_name(tmp_path: Path) -> None:
    one = json.dumps(kernel("gemm", 111, 5)).replace("111", "%d")
    text = '{"schemaVersion": 1, "traceEvents": [' + ",".join(one % (10 * i) for i in range(30_000)) + "]}"
    (rank,) = ranks_of(write(tmp_path, text))
    assert rank["num_compute"] == 30_000
    assert rank["compute_sum_s"] == pytest.approx(0.15)


def test_nothing_but_notes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="trace"):
        read([write(tmp_path, "# notes\n\n- a\n", "README.md")])
