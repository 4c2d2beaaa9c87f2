"""Rows of a file of measured training runs, typed; columns as in ``measurements/training_runs.csv``."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sim.errors import InputError

FILE = "measurements/training_runs.csv"
COLUMNS = ("id", "model", "gpu", "gpus")
"""Columns of which a file has one at least; every other one may be missing."""
WHOLE = (
    "gpus", "gpus_per_node", "nodes", "gbs", "mbs", "grad_accum", "tp", "pp", "dp", "cp", "ep", "layers",
    "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "seq_len", "n_experts", "top_k", "moe_ffn",
)  # fmt: skip
"""Columns that hold whole numbers of at least 1."""
LARGEST: dict[str, float] = {
    "layers": 4096, "hidden": 10**6, "heads": 10**5, "vocab": 10**8, "seq_len": 10**8, "n_experts": 10**5,
    "gbs": 10**9, "mbs": 10**9,
}  # fmt: skip
"""Above these a cell is taken for a slip."""
_BLANK = frozenset(("n/a", "na", "-", "--", "none", "null", "nan", "unknown", "?", "not stated", "tbd"))
_LISTED = re.compile(r"\d+(\s*\+\s*\d+)+|interleaved.*")
"""Texts that count as blank: encoder and decoder layers of a named model, a degree that is not told."""


@dataclass(frozen=True)
class Row:
    """One published run: the texts of its cells, the line of the file, and how to read them."""

    cells: Mapping[str, str]
    line: int = 0

    def text(self, column: str) -> str:
        """Cell as text; empty where the source is silent."""
        return self.cells.get(column, "") or ""

    def number(self, column: str) -> float | None:
        """Cell as a number; None where it is empty or no finite number."""
        try:
            value = float(_digits(self.text(column)))
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    def whole(self, column: str) -> int | None:
        """Cell as a whole number of at least 1; None otherwise."""
        value = self.number(column)
        return None if value is None or value < 1 or value != int(value) else int(value)

    def problem(self) -> str:
        """What is wrong with the numbers of the row: the first cell that says none where one is due."""
        for column in (*WHOLE, "vpp"):
            text = self.text(column)
            if not text or _LISTED.fullmatch(text.lower()):
                continue
            value = self.whole(column)
            if value is None:
                return f"{column}: must be a whole number of at least 1. Got {text[:40]}."
            if value > LARGEST.get(column, 10**9):
                return f"{column}: must be at most {LARGEST.get(column, 10**9):,.0f}. Got {text[:40]}."
        return ""

    @property
    def id(self) -> str:
        """Identifier of the row."""
        return self.text("id")

    @property
    def group(self) -> str:
        """Short name of the source: the identifier without its number."""
        return re.sub(r"-\d.*$", "", self.id) or "unnamed"

    @property
    def split(self) -> str:
        """``calibration`` or ``validation``; empty where the file has none."""
        return self.text("split")


def _digits(text: str) -> str:
    """A number's text without the commas between its thousands."""
    return text.replace(",", "") if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?", text) else text


def _cell(text: str | None) -> str:
    """A cell without blanks around it; empty if it says that nothing is known."""
    stripped = (text or "").strip()
    return "" if stripped.lower() in _BLANK else stripped


def read_rows(path: str | Path, field: str = "--measurements") -> list[Row]:
    """Read a file of runs.

    Parameters
    ----------
    path : path
        CSV with a header. Columns may be missing, others may be there, in any order; names are taken without
        regard to case and blanks. A row without an identifier gets that of its line.
    field : str
        What errors call the file.

    Raises
    ------
    InputError
        The file cannot be read, or has none of :data:`COLUMNS`.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
            reader = csv.DictReader(line.replace("\0", "") for line in file)
            header = [name.strip().lower() for name in reader.fieldnames or ()]
            reader.fieldnames = header
            rows = [
                _row({k: _text(k, v) for k, v in line.items() if isinstance(k, str)}, reader.line_num)
                for line in reader
            ]
    except (OSError, csv.Error) as error:
        hint = (getattr(error, "strerror", None) or str(error)).splitlines()[0]
        raise InputError(field, "be a readable CSV file", str(path), hint=hint) from None
    if not set(COLUMNS) & set(header):
        raise InputError(field, f"have a header with columns such as {', '.join(COLUMNS)}", str(path))
    return rows


def _text(column: str, value: str | list[str] | None) -> str:
    """A cell's text. "None" says something in columns of words: no sharding, no recomputation."""
    text = value if isinstance(value, str) else ""
    return (
        _cell(text) if column in WHOLE or column == "vpp" or column.endswith(("_s", "_gb")) else text.strip()
    )


def _row(cells: dict[str, str], line: int) -> Row:
    return Row(cells if cells.get("id") else {**cells, "id": f"unnamed-{line:04d}"}, line)
