"""The Timeline: a columnar table of spans that engines write and traces are read into.

One row per participant of a task: a transfer between two devices has a row on each. Simulated and measured
timelines have the same columns, so comparing them is a join. This module is NumPy only; tables and files
live in the layers above.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]

#: Column name -> dtype, in canonical order. Times in seconds; ``bytes``: on the wire of this participant.
COLUMNS: dict[str, str] = {
    "task": "int64",
    "iteration": "int64",
    "device": "int64",
    "stream": "int64",
    "ready": "float64",
    "posted": "float64",
    "start": "float64",
    "end": "float64",
    "bytes": "float64",
    "kind": "int64",
    "cause": "int64",
    "step": "int64",
    "micro_batch": "int64",
    "rank_class": "int64",
    "multiplicity": "int64",
    "dropped": "bool",
    "name": "int64",
}

_DEFAULTS: dict[str, float] = {
    "stream": -1,
    "bytes": 0,
    "kind": 0,
    "cause": -1,
    "step": 0,
    "micro_batch": -1,
    "rank_class": -1,
    "multiplicity": 1,
    "dropped": 0,
    "iteration": 0,
}


@dataclass(frozen=True)
class Timeline:
    """Spans as columns.

    Parameters
    ----------
    columns : dict of str to ndarray
        One array per name in :data:`COLUMNS`, all of the same length.
    names : tuple of str
        Task names; column ``name`` indexes it.
    devices : tuple of str
        Device (rank) names; column ``device`` indexes it.
    streams : tuple of str
        Stream names; column ``stream`` indexes it, -1 means none.
    causes, kinds : tuple of str
        Names of the values of the columns ``cause`` (-1: unknown) and ``kind``.
    window : tuple of float
        Start and end (s) of the part of the run that averages are taken over.
    """

    columns: dict[str, Array]
    names: tuple[str, ...]
    devices: tuple[str, ...]
    streams: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("compute", "transfer", "counter")
    window: tuple[float, float] = (0.0, 0.0)
    metadata: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        missing = sorted(set(COLUMNS) - set(self.columns))
        if missing:
            raise ValueError(f"timeline lacks the columns {', '.join(missing)}")
        lengths = {len(column) for column in self.columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"timeline columns have different lengths: {sorted(lengths)}")

    @classmethod
    def build(
        cls,
        *,
        names: tuple[str, ...],
        devices: tuple[str, ...],
        streams: tuple[str, ...] = (),
        causes: tuple[str, ...] = (),
        window: tuple[float, float] | None = None,
        metadata: dict[str, object] | None = None,
        **columns: npt.ArrayLike,
    ) -> Timeline:
        """Make a timeline from the columns at hand; absent ones take neutral values.

        ``start``, ``end``, ``device`` and ``name`` are required. ``ready`` and ``posted`` default to the
        start, ``task`` to the row number, ``window`` to the extent of the rows.
        """
        unknown = sorted(set(columns) - set(COLUMNS))
        if unknown:
            raise ValueError(f"unknown timeline columns {', '.join(unknown)}; known: {', '.join(COLUMNS)}")
        start = np.asarray(columns["start"], np.float64)
        full: dict[str, Array] = {}
        for column, dtype in COLUMNS.items():
            if column in columns:
                full[column] = np.asarray(columns[column], np.dtype(dtype))
            elif column in ("ready", "posted"):
                full[column] = start.copy()
            elif column == "task":
                full[column] = np.arange(len(start), dtype=np.int64)
            elif column in _DEFAULTS:
                full[column] = np.full(len(start), _DEFAULTS[column], np.dtype(dtype))
            else:
                raise ValueError(f"timeline lacks the column {column}")
        if window is None:
            end = np.asarray(full["end"], np.float64)
            window = (float(start.min()), float(end.max())) if len(start) else (0.0, 0.0)
        return cls(full, names, devices, streams, causes, window=window, metadata=metadata or {})

    def __len__(self) -> int:
        return len(self.columns["start"])

    def __getitem__(self, column: str) -> npt.NDArray[np.float64]:
        """A numeric column as float64 (a view where the column is already float64)."""
        return np.asarray(self.columns[column], np.float64)

    def integer(self, column: str) -> npt.NDArray[np.int64]:
        """An integer column."""
        return np.asarray(self.columns[column], np.int64)

    def select(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Timeline:
        """The rows of a mask or an index array, in that order."""
        picked = {name: column[rows] for name, column in self.columns.items()}
        return self._with(picked)

    def sorted(self) -> Timeline:
        """Rows ordered by (start, end, device, stream, task)."""
        keys = [self.columns[name] for name in ("task", "stream", "device", "end", "start")]
        return self.select(np.lexsort(keys).astype(np.int64))

    def _with(self, columns: dict[str, Array]) -> Timeline:
        return Timeline(
            columns,
            self.names,
            self.devices,
            self.streams,
            self.causes,
            self.kinds,
            self.window,
            self.metadata,
        )
