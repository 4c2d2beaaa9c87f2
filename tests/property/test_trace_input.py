"""Malformed input: one clear line (InputError), never another exception, and nothing lost without a count."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from sim.errors import InputError
from sim.trace.info import trace_info
from sim.trace.issues import Issues
from sim.trace.read import read
from sim.trace.readers.json_stream import JsonStream
from tests.trace_samples import kineto, two_stream_rank

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["kernel", "nccl", "NaN", "", "[0, 1, ...]", "12", "-3", "1e400"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
CATEGORIES = [
    "kernel",
    "Kernel",
    "cpu_op",
    "cuda_runtime",
    "gpu_memcpy",
    "user_annotation",
    "Operator",
    "forward-compute",
    "x",
]
NAMES = [
    "record_param_comms",
    "nccl:all_reduce",
    "ncclDevKernel_AllReduce",
    "ProfilerStep#1",
    "gemm",
    "thread_name",
]
ARGS = st.dictionaries(
    st.sampled_from(
        ["Collective name", "dtype", "In msg nelems", "Out msg nelems", "Group size", "Process Group Ranks",
         "stream",         "device", "correlation", "External id", "Input Dims", "Input type",
         "Concrete Inputs", "step",
         "mb_id", "Seq",         "Process Group Name", "Global rank start", "Global rank stride"]
    ),
    VALUES,
)  # fmt: skip
EVENTS = st.fixed_dictionaries(
    {"ph": st.sampled_from(["X", "B", "E", "M", "i", "s"]) | VALUES},
    optional={
        "cat": st.sampled_from(CATEGORIES) | VALUES,
        "name": st.sampled_from(NAMES) | VALUES,
        "ts": st.integers(0, 1000) | VALUES,
        "dur": st.integers(0, 50) | VALUES,
        "pid": VALUES,
        "tid": VALUES,
        "args": ARGS | VALUES,
    },
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "distributedInfo": st.fixed_dictionaries(
            {},
            optional={
                "rank": VALUES,
                "world_size": VALUES,
                "backend": VALUES,
                "pg_config": VALUES,
                "pg_count": VALUES,
            },
        )
        | VALUES,
        "deviceProperties": VALUES,
        "baseTimeNanoseconds": VALUES,
    },
)


def _info(data: bytes, name: str = "trace.json") -> dict[str, Any] | None:
    """Statistics of a file with these bytes; None if it was refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        try:
            document = trace_info(read([path], host=True))
        except InputError as error:
            assert "\n" not in str(error)
            return None
        json.dumps(document, allow_nan=False)
        return document


@given(st.lists(EVENTS | VALUES, max_size=8), HEADERS)
def test_any_events_give_statistics_or_one_line(events: list[Any], header: dict[str, Any]) -> None:
    document = _info(json.dumps({**header, "traceEvents": events}).encode())
    if document is not None and document["ranks"] and document["ranks"][0]["format"] == "kineto":
        assert document["ranks"][0]["num_events"] == len(events)


@given(st.binary(max_size=300), st.sampled_from(["a.json", "a.et", "a.csv", "a.goal", "a.json.gz"]))
def test_any_bytes(data: bytes, name: str) -> None:
    _info(data, name)


GOOD = json.dumps(two_stream_rank(0)).encode()


@given(st.integers(0, len(GOOD)), st.binary(max_size=4), st.integers(0, 30), st.booleans())
def test_damaged_good_file(at: int, insert: bytes, remove: int, packed: bool) -> None:
    data = GOOD[:at] + insert + GOOD[at + remove :]
    _info(gzip.compress(data) if packed else data)


@given(st.integers(0, 400), st.binary(max_size=3), st.integers(0, 5))
def test_damaged_gzip(at: int, insert: bytes, remove: int) -> None:
    data = gzip.compress(GOOD)
    _info(data[:at] + insert + data[at + remove :], "trace.json.gz")


CHAKRA = bytes.fromhex("070a05302e302e340e0801120467656d6d18042a01003878")


@given(st.integers(0, len(CHAKRA)), st.binary(max_size=6), st.integers(0, 6))
def test_damaged_chakra(at: int, insert: bytes, remove: int) -> None:
    _info(CHAKRA[:at] + insert + CHAKRA[at + remove :], "job.0.et")


XPLANE = bytes.fromhex("0a2312082f6465766963653a1a0c12015322080805100318022205080512010a2a00")


@given(st.integers(0, len(XPLANE)), st.binary(max_size=6), st.integers(0, 6))
def test_damaged_xplane(at: int, insert: bytes, remove: int) -> None:
    _info(XPLANE[:at] + insert + XPLANE[at + remove :], "x.xplane.pb")


@given(st.binary(max_size=60))
def test_any_message(data: bytes) -> None:
    header = bytes.fromhex("070a05302e302e34")
    _info(header + bytes([len(data)]) + data, "job.0.et")


NODES = st.fixed_dictionaries(
    {},
    optional={
        "id": VALUES,
        "Id": VALUES,
        "name": st.sampled_from([*NAMES, "## process_group:init ##"]) | VALUES,
        "NodeType": VALUES,
        "inputs": st.fixed_dictionaries({"values": VALUES}) | VALUES,
        "input_shapes": VALUES,
        "input_types": VALUES,
        "outputs": VALUES,
        "attrs": st.lists(st.fixed_dictionaries({"name": VALUES, "value": VALUES}), max_size=3) | VALUES,
        "ctrl_deps": VALUES,
        "data_deps": VALUES,
        "runtime": VALUES,
        "ts": VALUES,
        "dur": VALUES,
    },
)


@given(st.lists(NODES | VALUES, max_size=6), st.sampled_from(["nodes", "workload_graph"]), VALUES)
@example(nodes=[{"name": "record_param_comms", "attrs": True}], key="nodes", extra=None)
def test_any_nodes(nodes: list[Any], key: str, extra: Any) -> None:
    document = _info(json.dumps({"schema": extra, key: nodes, "ngpus": extra}).encode())
    assert document is not None


@given(
    st.lists(
        st.sampled_from(
            [
                "num_ranks 2",
                "rank 0 {",
                "}",
                "l1: send 8b to 1 tag 0",
                "l2: calc 99999999999999999999",
                "l2 requires l1",
                "l1",
                "calc",
            ]
        ),
        max_size=12,
    )
)
def test_any_goal(lines: list[str]) -> None:
    _info("\n".join(["num_ranks 2", *lines]).encode(), "a.goal")


@given(st.text(alphabet="0123456789,.-NaNe abc\n", max_size=200))
def test_any_table_rows(rows: str) -> None:
    for header in (
        "comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time",
        "Name,streamId,Event Type,Timestamp (ns)",
        "Start (ns),Duration (ns),Strm,Name",
        "HYBRID_X\n3",
    ):
        _info(f"{header}\n{rows}".encode(), "a.csv")


JSON_TEXT = st.recursive(
    st.integers(-(2**66), 2**66) | st.text(max_size=20) | st.floats(allow_nan=False) | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(JSON_TEXT, max_size=12), st.integers(1, 60), st.sampled_from([None, 1]), JSON_TEXT)
def test_streaming_equals_loading(entries: list[Any], block: int, indent: int | None, other: Any) -> None:
    import io

    text = json.dumps({"a": other, "traceEvents": entries, "z": other}, indent=indent, ensure_ascii=False)
    issues = Issues()
    stream = JsonStream(
        io.BytesIO(text.encode("utf-8", "surrogatepass")), "x", issues, ("traceEvents",), block=block
    )
    found = [entry for part in stream.blocks() for entry in part]
    if not issues.counts:  # lone surrogates are no UTF-8
        assert found == entries
        assert stream.header == {"a": other, "z": other}


def test_the_good_file_is_good() -> None:
    document = _info(GOOD)
    assert document is not None
    assert document["ranks"][0]["num_compute"] == 2
    assert _info(json.dumps(kineto([])).encode()) is not None
