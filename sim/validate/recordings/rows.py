"""Recorded rows: one CSV per kind, told apart by its columns."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sim.errors import InputError

_KINDS = {
    "collective": {"op", "world", "rate_mbit", "bytes"},
    "server": {"algo", "workers", "params", "compute_us"},
    "pipeline": {"sched", "stages", "microbatches", "stage_fwd_us", "stage_bwd_us"},
    "sharded": {"model", "world", "rate_mbit", "groups"},
    "training": {"algo", "model", "world", "rate_mbit"},
}
"""Columns that tell a kind of table; a row that lacks another one that it needs says so itself."""


MOST_RANKS = 256  # and micro-batches, blocks and local steps: more were never recorded behind one switch
LEAST_RATE, MOST_RATE = 1e-3, 1e9  # Mbit/s
MOST = 1e15  # of any other amount, in the units of the tables
MOST_BYTES = 4 * 2.0**30  # of one collective: gloo cuts it into segments of 1 MiB


@dataclass(frozen=True)
class Row:
    """One recorded configuration.

    Attributes
    ----------
    kind : str
        collective, training (DDP and local SGD), server, pipeline, sharded (FSDP2); empty: not known.
    file : Path
    number : int
        Line of the file, the header being 1.
    cells : dict of str to str
        As they stand in the file.
    """

    kind: str
    file: Path
    number: int
    cells: dict[str, str]

    def text(self, name: str, default: str = "") -> str:
        """A cell; the default where it is absent or empty."""
        return (self.cells.get(name) or "").strip() or default

    def number_of(self, name: str, default: float | None = None) -> float:
        """A cell as a number.

        Raises
        ------
        InputError
            If it is no number, or absent and without default.
        """
        given = self.text(name)
        if not given and default is not None:
            return default
        try:
            value = float(given)
        except ValueError:
            raise InputError(name, "be a number", given or "nothing", where=self.place) from None
        if not abs(value) < float("inf"):
            raise InputError(name, "be finite", given, where=self.place)
        return value

    def count_of(self, name: str, default: float | None = None) -> int:
        """A cell as a positive whole number.

        Raises
        ------
        InputError
            If it is none.
        """
        value = self.number_of(name, default)
        if value != int(value) or not 1 <= value <= MOST_RANKS:
            must = f"be a whole number from 1 to {MOST_RANKS}"
            raise InputError(name, must, self.text(name), where=self.place)
        return int(value)

    def amount_of(self, name: str, default: float | None = None, *, positive: bool = False) -> float:
        """A cell as a number that is not negative, or positive.

        Raises
        ------
        InputError
            If it is none.
        """
        value = self.number_of(name, default)
        if value < 0 or (positive and not value):
            must = "be positive" if positive else "not be negative"
            raise InputError(name, must, self.text(name), where=self.place)
        most = MOST_BYTES if name == "bytes" else MOST
        if value > most:
            raise InputError(name, f"be at most {most:.0f}", self.text(name), where=self.place)
        return value

    def times_of(self, name: str, count: int) -> list[float]:
        """A cell of ``count`` times in us, as seconds.

        Raises
        ------
        InputError
            If it is none.
        """
        given = self.text(name)
        try:
            times = [float(each) * 1e-6 for each in given.split()]
        except ValueError:
            times = []
        if len(times) != count or not all(0 <= each <= MOST * 1e-6 for each in times):
            raise InputError(name, f"have {count} times", given or "nothing", where=self.place)
        return times

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.file.name}:{self.number}"

    @property
    def rate(self) -> float:
        """Bytes/s of a host's cable."""
        value = self.amount_of("rate_mbit", positive=True)
        if not LEAST_RATE <= value <= MOST_RATE:
            must = f"be from {LEAST_RATE:g} to {MOST_RATE:g} Mbit/s"
            raise InputError("rate_mbit", must, self.text("rate_mbit"), where=self.place)
        return value * 1e6 / 8

    @property
    def delay(self) -> float:
        """Seconds one way of a cable."""
        return self.amount_of("delay_us") * 1e-6

    @property
    def queued(self) -> bool:
        """Whether the switch had one queue for everything."""
        return self.text("tag").split("-")[0] == "fifo"

    @property
    def starved(self) -> bool:
        """Whether gloo's threads had no more priority than what computes, from a tag with ``sameprio``."""
        return "sameprio" in self.text("tag").split("-")

    @property
    def slow_links(self) -> dict[int, float]:
        """Host -> its own rate, from a tag such as ``hetero-link3-200``."""
        found = re.search(r"link(\d+)-(\d+)", self.text("tag"))
        if not found:
            return {}
        if not LEAST_RATE <= float(found[2]) <= MOST_RATE:
            raise InputError("tag", "give a slow link a positive rate", self.text("tag"), where=self.place)
        return {int(found[1]): float(found[2]) * 1e6 / 8}

    @property
    def slow_ranks(self) -> dict[int, float]:
        """Rank -> factor on its compute time."""
        given = self.text("slow")
        if given in ("", "none", "-"):
            return {}
        found = re.fullmatch(r"(\d+):(\d+(?:\.\d*)?)", given)
        if not found or not float(found[2]):
            raise InputError("slow", "be RANK:FACTOR", given, where=self.place)
        return {int(found[1]): float(found[2])}

    @property
    def measured(self) -> float | None:
        """Measured seconds, or updates/s of a parameter server; None without a usable one."""
        column = {"collective": "median_us", "server": "updates_per_s"}.get(self.kind, "median_step_us")
        if self.text("algo") == "local":  # most steps of local SGD do not communicate: the mean counts
            column = "mean_step_us"
        try:
            value = self.amount_of(column, positive=True)
        except InputError:
            return None
        return value if self.kind == "server" else value * 1e-6


def read_rows(path: Path) -> tuple[list[str], list[Row]]:
    """Columns and rows of a CSV file of one kind."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = columns
            kind = next((name for name, needed in _KINDS.items() if needed <= set(columns)), "")
            rows = [
                Row(kind, path, i, {key: cell or "" for key, cell in cells.items() if key is not None})
                for i, cells in enumerate(reader, 2)
            ]
    except OSError as error:
        raise InputError("recordings", "be readable", f"{path} ({error.strerror})") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError("recordings", "be a CSV file", f"{path} ({error})") from None
    return columns, rows


def find_files(given: Iterable[str]) -> list[Path]:
    """CSV files of known kinds: those given, and those of the folders given.

    Raises
    ------
    InputError
        If there is none, or a file given by name is of no known kind.
    """
    found: list[Path] = []
    for name in given:
        path = Path(name)
        if not path.exists():
            raise InputError("recordings", "exist", name)
        if path.is_dir():
            found += [file for file in sorted(path.glob("*.csv")) if _is_known(file)]
        elif _is_known(path):
            found.append(path)
        else:
            kinds = "; ".join(f"{kind}: {' '.join(sorted(needed))}" for kind, needed in _KINDS.items())
            raise InputError("recordings", f"have the columns of one kind ({kinds})", name)
    if not found:
        raise InputError("recordings", "hold at least one CSV file of a known kind", " ".join(given))
    return found


def _is_known(path: Path) -> bool:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            columns = {name.strip() for name in next(csv.reader(file), [])}
    except (OSError, UnicodeDecodeError, csv.Error):
        return False
    return any(needed <= columns for needed in _KINDS.values())


def trace_folders(given: Sequence[str], files: Iterable[Path], named: str | None) -> list[Path]:
    """Where the layer traces of these recordings may lie."""
    if named and not Path(named).is_dir():
        raise InputError("--traces", "be a folder", named)
    bases = [Path(named)] if named else []
    for path in [*map(Path, given), *files]:
        folder = path if path.is_dir() else path.parent
        bases += [folder / "traces", folder, folder.parent / "traces"]
    return [base for base in dict.fromkeys(bases) if base.is_dir()]


def power_rank(hook: str) -> int | None:
    """Rank of a ``powersgdR`` hook; None of another hook."""
    rank = hook.removeprefix("powersgd")
    return int(rank) if rank != hook and rank.isdecimal() else None
