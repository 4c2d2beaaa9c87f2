"""Measured operations in one file: what ``trace import`` keeps of a job as it happened.

The file is a NumPy archive (``.npz``, no pickles) with one array per column of
:class:`~sim.trace.operations.Operations`; texts are numbered, their tables are UTF-8 JSON. The graph
follows from it by :func:`~sim.trace.to_graph.to_graph`.
"""

from __future__ import annotations

import io
import json
import zipfile
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from sim.errors import InputError
from sim.graph.execution import Cause
from sim.trace.issues import MEANING, Issues
from sim.trace.operations import Edges, Operations

FORMAT = "clusterloom-operations"
VERSION = 1
SUFFIX = ".npz"
_TEXTS = ("stream", "name", "type")
_INTEGERS = ("rank", "category", "step", "micro_batch", "join")
_FLOATS = ("work", "start", "end", "size")


def save_operations(path: Path, operations: Operations) -> Path:
    """Write operations; equal operations give byte-identical files.

    Parameters
    ----------
    path : Path
        Ends in ``.npz``.
    operations : Operations
    """
    if path.suffix != SUFFIX:
        raise InputError("graph", f"end in {SUFFIX}", str(path))
    path.write_bytes(saved_operations(operations))
    return path


def saved_operations(operations: Operations) -> bytes:
    """The content of the file that :func:`save_operations` writes."""
    tables: dict[str, list[str]] = {}
    arrays: dict[str, Any] = {}
    for name in _TEXTS:
        values = getattr(operations, name)
        tables[name] = sorted(set(values))
        index = {text: i for i, text in enumerate(tables[name])}
        arrays[name] = np.array([index[text] for text in values], np.int32)
    for name in _INTEGERS:
        arrays[name] = np.array(getattr(operations, name), np.int64)
    for name in _FLOATS:
        arrays[name] = np.array(getattr(operations, name), np.float64)
    arrays["cause"] = np.array([int(cause) for cause in operations.cause], np.int64)
    arrays["edges"] = np.stack(operations.edges.arrays(), axis=1)
    arrays["marks"] = np.array([m[1:4] for m in operations.marks], np.int64).reshape(-1, 3)
    arrays["mark_seconds"] = np.array([m[4] for m in operations.marks], np.float64)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "ranks": list(operations.ranks),
        "stages": list(operations.stages),
        "marks": [m[0] for m in operations.marks],
        "issues": dict(operations.issues.counts),
        "tables": tables,
    }
    arrays["header"] = np.frombuffer(json.dumps(header, sort_keys=True).encode(), np.uint8)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(arrays):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, arrays[name], allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), buffer.getvalue())
    return packed.getvalue()


def load_operations(path: str | Path) -> Operations:
    """Read operations that :func:`save_operations` wrote.

    Raises
    ------
    InputError
        If the file is none, or damaged.
    """
    source = Path(path)
    try:
        # From memory: NumPy leaves a damaged file open.
        with np.load(io.BytesIO(source.read_bytes()), allow_pickle=False) as data:
            arrays = {name: data[name] for name in data.files}
        header = json.loads(arrays["header"].tobytes())
        if header["format"] != FORMAT or header["version"] != VERSION:
            raise ValueError("another format or version")
        return _operations(arrays, header)
    except OSError as error:
        raise InputError("file", "be readable", source.name, hint=str(error.strerror or "")) from None
    except (
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        OverflowError,
        EOFError,
        zipfile.BadZipFile,
    ) as error:
        reason = " ".join(str(error).split())[:80] or type(error).__name__
        raise InputError("file", f"be written by trace import ({FORMAT} {VERSION})", reason) from None


def _operations(arrays: dict[str, Any], header: dict[str, Any]) -> Operations:
    issues = Issues()
    for name, count in header["issues"].items():
        issues.add(name, int(count)) if name in MEANING else None
    columns: dict[str, Any] = {}
    count = len(arrays["rank"])
    for name in _TEXTS:
        table = [str(text) for text in header["tables"][name]]
        columns[name] = [table[i] for i in arrays[name].tolist()]
    for name, code in (*((name, "i") for name in _INTEGERS), *((name, "d") for name in _FLOATS)):
        columns[name] = array(code, arrays[name].tolist())
    columns["cause"] = [Cause(value) for value in arrays["cause"].tolist()]
    if any(len(values) != count for values in columns.values()):
        raise ValueError("columns of different length")
    if not all(np.isfinite(arrays[name]).all() for name in _FLOATS):
        raise ValueError("times that are not finite")
    edges, marks = arrays["edges"].reshape(-1, 2), arrays["marks"].reshape(-1, 3)
    ranks = tuple(int(rank) for rank in header["ranks"])
    within = (edges >= 0).all() and (edges < count).all() and (marks[:, 1:] >= 0).all()
    if not (within and (marks[:, 1:] < count).all()) or not set(columns["rank"]) <= set(range(len(ranks))):
        raise ValueError("references to what is not there")
    names = zip(header["marks"], marks.tolist(), arrays["mark_seconds"].tolist(), strict=True)
    return Operations(
        ranks,
        issues,
        **columns,
        row=array("i", [-1]) * count,  # the spans stayed with the trace
        edges=Edges((int(a), int(b)) for a, b in edges),
        marks=[(str(name), rank, first, last, seconds) for name, (rank, first, last), seconds in names],
        stages=tuple(int(stage) for stage in header["stages"]),
    )
