"""How much memory a big trace takes: bytes of the process per byte of the file."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

KERNELS_PER_STEP = 900
#: MB of peak memory per MB of Kineto, at most: 1 GB stays below 1 GB.
LIMITS = {"info": 0.15, "import": 0.7, "replay": 0.85}
_PEAK = """
import resource, sys
from sim.cli.main import main
code = main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, file=sys.stderr)
sys.exit(code)
"""


def _event(category: str, name: str, ts: float, dur: float, place: int, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": place, "tid": place,
        "ts": round(ts, 3), "dur": dur, "args": args,
    }  # fmt: skip


def _step(number: int, rank: int) -> Iterator[dict[str, Any]]:
    """A step in the proportions of a recorded one: five operators and three runtime calls to a kernel."""
    begin = number * 20e3
    yield _event("user_annotation", f"ProfilerStep#{number}", begin, 19.9e3, 11)
    for k in range(KERNELS_PER_STEP):
        at, mark = begin + 20 * k, (number * KERNELS_PER_STEP + k) * 8
        for depth, name in enumerate(("linear", "matmul", "mm", "empty", "view")):
            yield _event(
                "cpu_op", f"aten::{name}", at + depth, 18.0 - 2 * depth, 11,
                **{"External id": mark + depth, "Ev Idx": mark + depth, "Sequence number": mark},
                **{"Input Dims": [[8, 1024], [1024, 1024]], "Input type": ["float", "float"]},
            )  # fmt: skip
        for call, name in enumerate(("cudaEventQuery", "cudaStreamIsCapturing", "cudaLaunchKernel")):
            yield _event(
                "cuda_runtime", name, at + 6 + call, 1.0, 11,
                **{"External id": mark + 4, "cbid": 211, "correlation": mark + call},
            )  # fmt: skip
        for phase, place in (("s", 11), ("f", 7)):
            yield {
                "ph": phase,
                "id": mark,
                "pid": place,
                "tid": place,
                "ts": at + 8,
                "cat": "ac2g",
                "name": "",
            }
        yield _event(
            "kernel", f"sgemm_{k % 40}", at + 10 + rank, 15.0, 7,
            **{"External id": mark + 4, "correlation": mark + 2, "stream": 7, "device": 0},
            **{"registers per thread": 32, "shared memory": 0, "grid": [80, 1, 1], "block": [128, 1, 1]},
        )  # fmt: skip


def _ranks(folder: Path, steps: int) -> tuple[Path, float]:
    """An archive of two ranks, and its MB."""
    archive = folder / f"{steps}.tar"
    with tarfile.open(archive, "w") as packed:
        for rank in range(2):
            file = folder / f"rank{rank}.json"
            with file.open("w") as out:
                info = json.dumps({"rank": rank, "world_size": 2, "backend": "nccl"})
                out.write(f'{{"schemaVersion": 1, "distributedInfo": {info}, "traceEvents": [\n')
                for number in range(steps):
                    out.write(",\n" if number else "")
                    out.write(",\n".join(json.dumps(event) for event in _step(number, rank)))
                out.write("\n]}\n")
            packed.add(file, file.name)
            file.unlink()
    return archive, archive.stat().st_size / 1e6


def _peak(*arguments: str) -> float:
    """MB that the command took at most. Blocks of the reader have their full size from 10 MB a rank on."""
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, *arguments], capture_output=True, text=True, check=True
    )
    return float(done.stderr.split()[-1]) * 1.048576


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has another unit elsewhere")
@pytest.mark.parametrize("command", LIMITS)
def test_memory_grows_less_than_the_file(command: str, tmp_path: Path) -> None:
    more = {"import": ["-o", str(tmp_path / "w.yaml")]}.get(command, [])
    (small, small_mb), (big, big_mb) = _ranks(tmp_path, 6), _ranks(tmp_path, 20)
    least, most = (_peak("trace", command, str(path), *more) for path in (small, big))
    assert big_mb - small_mb > 30
    assert (most - least) / (big_mb - small_mb) < LIMITS[command]
