"""Small made trace files for the reader tests."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

BASE_TS = 1_700_000_000_000_000


def kernel(
    name: str, ts: Any, dur: Any, *, stream: int = 7, correlation: int = 1, **args: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": ts,
        "dur": dur,
        "args": {"device": 0, "stream": stream, "correlation": correlation, **args},
    }


def launch(ts: Any, *, correlation: int = 1, thread: int = 11, dur: int = 3) -> dict[str, Any]:
    args = {"correlation": correlation}
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 1,
        "tid": thread,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def operator(
    name: str, ts: Any, dur: Any, *, cat: str = "cpu_op", thread: int = 11, **args: Any
) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "ts": ts, "dur": dur, "args": args}


def step(number: int, ts: int, dur: int, cat: str = "user_annotation") -> dict[str, Any]:
    return operator(f"ProfilerStep#{number}", ts, dur, cat=cat)


def kineto(
    events: list[Any], *, rank: int | None = 0, world: int | None = 2, **header: Any
) -> dict[str, Any]:
    info: dict[str, Any] = {"backend": "nccl"}
    if rank is not None:
        info["rank"] = rank
    if world is not None:
        info["world_size"] = world
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "Test GPU"}],
        "distributedInfo": info,
        **header,
        "traceEvents": events,
    }


def write(folder: Path, document: Any, name: str = "trace.json") -> Path:
    path = folder / name
    text = document if isinstance(document, str) else json.dumps(document)
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def tar_of(folder: Path, files: dict[str, bytes], name: str = "ranks.tar.gz") -> Path:
    path = folder / name
    with tarfile.open(path, "w:gz") as archive:
        for label, data in files.items():
            entry = tarfile.TarInfo(label)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


def two_stream_rank(rank: int, *, late: int = 0) -> dict[str, Any]:
    """100 us compute, an all-reduce that overlaps its second half, then 50 us compute."""
    t = BASE_TS + late
    return kineto(
        [
            step(1, t, 400),
            launch(t + 5, correlation=1),
            operator(
                "record_param_comms",
                t + 20,
                30,
                **{
                    "Collective name": "allreduce",
                    "In msg nelems": 1024,
                    "Out msg nelems": 1024,
                    "dtype": "Float",
                    "Group size": 2,
                    "Process Group Name": "0",
                    "Process Group Ranks": "[0, 1]",
                },
            ),
            launch(t + 30, correlation=2),
            launch(t + 60, correlation=3),
            kernel("gemm", t + 10, 100, correlation=1),
            kernel("ncclDevKernel_AllReduce_Sum_f32", t + 60, 140, stream=20, correlation=2),
            kernel("gemm", t + 250, 50, correlation=3),
        ],
        rank=rank,
    )
