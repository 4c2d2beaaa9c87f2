"""Growing columns and tolerant numbers: what all event readers share."""

from __future__ import annotations

import re
from array import array
from typing import Any

import numpy as np

from sim.trace.issues import Issues
from sim.trace.model import FloatArray, IntArray

_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_INT64 = 1 << 63
_LIMIT = 1e24  # microseconds; what lies beyond is no time
#: Microseconds since 1970 are below this until the year 5138, nanoseconds have been above it since 1973.
_NANOSECONDS = (1e17, 1e19)


class Names:
    """Texts numbered in order of appearance."""

    def __init__(self) -> None:
        self.index: dict[Any, int] = {}

    def __call__(self, key: Any) -> int:
        """Number of a text, new or known."""
        found = self.index.get(key)
        if found is None:
            found = self.index[key] = len(self.index)
        return found

    def texts(self) -> tuple[str, ...]:
        """The texts by number."""
        return tuple(str(key) for key in self.index)


class Columns:
    """Compact growing columns: 8 bytes a value (4 for numbers of names) instead of a Python object."""

    def __init__(
        self, floats: tuple[str, ...], integers: tuple[str, ...], numbers: tuple[str, ...] = ()
    ) -> None:
        self._data = {n: array("d") for n in floats} | {n: array("q") for n in integers}
        self._data |= {n: array("i") for n in numbers}
        self._append = [column.append for column in self._data.values()]

    def add(self, *values: float | int) -> None:
        """One row, in the order of the columns (floats, integers, numbers)."""
        for append, value in zip(self._append, values, strict=True):
            append(value)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(next(iter(self._data.values())))

    def real(self, name: str) -> FloatArray:
        """A float column."""
        return np.array(self._data[name], np.float64)

    def integer(self, name: str) -> IntArray:
        """An integer column."""
        return np.array(self._data[name], np.int64)

    def drop(self) -> None:
        """Forget all rows."""
        for name, column in self._data.items():
            self._data[name] = array(column.typecode)
        self._append = [column.append for column in self._data.values()]


class Clock:
    """Microsecond timestamps of one file relative to its first one, exact for integers of any size.

    A file whose first timestamp would lie after the year 5138 counts in nanoseconds. What
    ``displayTimeUnit`` says is how a viewer shows times; it does not change their unit.
    """

    def __init__(self, issues: Issues) -> None:
        self._issues = issues
        self.origin: int | None = None
        self._unit = 1.0

    def time(self, event: dict[str, Any]) -> float | None:
        """Start of an event in microseconds after the origin; None (counted) if it has none."""
        value = event.get("ts")
        if type(value) is not int and type(value) is not float:
            value = self._number(value, "missing_timestamp")
            if value is None:
                return None
        if not -_LIMIT < value < _LIMIT:  # NaN and infinity too
            self._issues.add("not_finite_time")
            return None
        if self.origin is None:
            self.origin = int(value)
            if _NANOSECONDS[0] < value < _NANOSECONDS[1]:
                self._unit = 1e-3
                self._issues.add("nanosecond_timestamp")
        if type(value) is float and abs(value) > 1e13 and value % 1:
            self._issues.add("coarse_timestamp")
        return float(value - self.origin) * self._unit

    @property
    def origin_ns(self) -> int:
        """The first timestamp in nanoseconds; 0 without any."""
        return (self.origin or 0) * (1000 if self._unit == 1.0 else 1)

    def duration(self, event: dict[str, Any]) -> float | None:
        """Length of an event in microseconds; None (counted) if it cannot be used."""
        value = event.get("dur")
        if type(value) is not int and type(value) is not float:
            if value is None:
                self._issues.add("missing_duration")
                return 0.0
            value = self._number(value, "missing_duration")
            if value is None:
                return 0.0
        if value < 0:
            self._issues.add("negative_duration")
            return 0.0
        if not value < _LIMIT:
            self._issues.add("not_finite_time")
            return None
        return float(value) * self._unit

    def _number(self, value: Any, missing: str) -> int | float | None:
        if isinstance(value, str):
            text = value.strip()
            try:
                number: int | float = int(text) if _WHOLE.fullmatch(text) else float(text)
            except ValueError:
                self._issues.add(missing)
                return None
            self._issues.add("text_timestamp")
            return number
        self._issues.add(missing)
        return None


def integer(value: Any, default: int = -1) -> int:
    """An integer of a JSON field that fits a column: numbers in text are read, others become ``default``."""
    if type(value) is int:
        return value if -_INT64 <= value < _INT64 else default
    if isinstance(value, str) and value.lstrip("-").isdigit() and len(value) < 19:
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return default


def as_list(value: Any) -> list[Any]:
    """A JSON field that should be an array; anything else holds nothing."""
    return value if isinstance(value, list) else []
