"""Measured collectives from files: tables like ``measurements/collectives.csv``, nccl-tests logs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from sim.catalog import default_catalog
from sim.errors import InputError
from sim.trace.readers.nccl_tests import read_sections
from sim.validate.collectives.rows import Row, read_rows


def published() -> Path:
    """The measurements that come with the package."""
    return default_catalog().data_file("measurements/collectives.csv")


def load_rows(files: Sequence[str | Path], given: Mapping[str, str] | None = None) -> list[Row]:
    """Rows of CSV files and nccl-tests logs, in order.

    Parameters
    ----------
    files : sequence of path
    given : mapping, optional
        Columns that the caller knows (``hardware``, ``nodes``, ``inter_network``, ``collective`` ...); they
        take precedence over what a log says.

    Raises
    ------
    InputError
        If a file does not exist, is no text, or has no row.
    """
    rows: list[Row] = []
    for file in files:
        rows += read_rows(load_table(Path(file), given))
    return rows


def load_table(path: Path, given: Mapping[str, str] | None = None) -> pd.DataFrame:
    """One file as a table."""
    if not path.is_file():
        raise InputError("FILE", "be an existing CSV or nccl-tests log", str(path))
    wide = path.read_bytes()[:2] in (b"\xff\xfe", b"\xfe\xff")  # what Windows shells write
    try:
        text = path.read_text(encoding="utf-16" if wide else "utf-8-sig", errors="strict")
    except UnicodeDecodeError as error:
        raise InputError(
            "FILE", "be text", f"a byte that is no text at {error.start}", where=str(path)
        ) from error
    head = text.partition("\n")[0]
    table = _csv(path, text, head) if "message_bytes" in head else _log(path, text)
    for column, value in (given or {}).items():
        table[column] = value
    return table


def _csv(path: Path, content: str, head: str) -> pd.DataFrame:
    separator = next((mark for mark in ",;\t" if mark in head), ",")
    _require_cells(path, content, separator)
    text = dict.fromkeys(("id", "library_version"), str)
    try:
        table = pd.read_csv(
            io.StringIO(content), sep=separator, dtype=text, skipinitialspace=True, index_col=False
        )
    except (pd.errors.ParserError, ValueError) as error:
        raise InputError("FILE", "be a CSV table", str(error).strip(), where=str(path)) from error
    if not len(table):
        raise InputError("FILE", "have rows", "a header alone", where=str(path))
    return table.rename(columns=lambda name: str(name).strip())


def _require_cells(path: Path, content: str, separator: str) -> None:
    """Refuse a row with more cells than there are columns: its cells cannot be told apart."""
    reader = csv.reader(io.StringIO(content), delimiter=separator, skipinitialspace=True)
    try:
        width = len(next(reader, []))
        for cells in reader:
            if any(cell.strip() for cell in cells[width:]):
                where = f"{path}:{reader.line_num}"
                raise InputError("FILE", f"have at most {width} cells in a row", len(cells), where=where)
    except csv.Error as error:
        raise InputError("FILE", "be a CSV table", str(error), where=f"{path}:{reader.line_num}") from error


def _log(path: Path, text: str) -> pd.DataFrame:
    sections = read_sections(text.splitlines())
    if not any(log.rows for log in sections):
        raise InputError(
            "FILE", "have the column message_bytes, or be a log of nccl-tests with rows", where=str(path)
        )
    return pd.DataFrame(
        {
            "id": f"{path.name}:{number}",
            "source": path.name,
            "system": path.stem,
            "hardware": log.device,
            "gpus": log.num_ranks or None,
            "nodes": log.num_hosts or None,
            "intra_link": "",
            "inter_network": log.network,
            "library_version": log.version,
            "collective": log.collective,
            "message_bytes": row.size_bytes,
            "dtype": row.dtype,
            "in_place": float(row.in_place),
            "time_us": row.time_s * 1e6,
            "algbw_GBs": row.algorithm_bandwidth,
            "busbw_GBs": row.bus_bandwidth,
        }
        for number, (log, row) in enumerate(((log, row) for log in sections for row in log.rows), 1)
    )
