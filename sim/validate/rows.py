"""Rows of a file of measured training runs, typed; columns as in ``measurements/training_runs.csv``."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sim.errors import InputError

FILE = "measurements/training_runs.csv"
REQUIRED = ("id", "model", "gpu", "gpus")
"""Columns without which nothing can be simulated; every other one may be missing."""


@dataclass(frozen=True)
class Row:
    """One published run: the texts of its cells, and how to read them."""

    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """Cell as text; empty where the source is silent."""
        return self.cells.get(column, "") or ""

    def number(self, column: str) -> float | None:
        """Cell as a number; None where it is empty or no finite number."""
        try:
            value = float(self.text(column))
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    def whole(self, column: str) -> int | None:
        """Cell as a whole number of at least 1; None otherwise."""
        value = self.number(column)
        return None if value is None or value < 1 or value != int(value) else int(value)

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


def read_rows(path: str | Path) -> list[Row]:
    """Read a file of runs.

    Parameters
    ----------
    path : path
        CSV with a header; columns may be missing, but for :data:`REQUIRED`, and others may be there.

    Raises
    ------
    InputError
        The file cannot be read, lacks a required column, or repeats an identifier.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            header: Sequence[str] = reader.fieldnames or ()
            rows = [
                Row({k: (v or "").strip() for k, v in line.items() if isinstance(k, str)}) for line in reader
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        hint = (getattr(error, "strerror", None) or str(error)).splitlines()[0]
        raise InputError("--measurements", "be a readable CSV file", str(path), hint=hint) from None
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise InputError("--measurements", f"have the columns {', '.join(missing)}", str(path))
    seen: set[str] = set()
    for number, row in enumerate(rows, start=2):
        if not row.id or row.id in seen:
            what = repr(row.id) if row.id else "an empty cell"
            raise InputError("id", "be given and different in every row", what, where=f"{path}:{number}")
        seen.add(row.id)
    return rows
