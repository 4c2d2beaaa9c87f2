"""Text with units to SI floats and back. No bare numbers, no guessing; letter case tells bits from bytes.

GB is 10^9 bytes, GiB is 2^30 bytes (IEC 80000-13); a rate in bits (``400Gbps``) becomes bytes per second.
"""

from __future__ import annotations

import difflib
import math
import re
from functools import lru_cache

from sim.errors import InputError

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_NUMBER = re.compile(r"\s*([-+]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)\s*(.*?)\s*")
_DOLLARS = re.compile(r"\s*\$\s*([^/\s]+)\s*/\s*(\S+)\s*")


def _byte_units() -> dict[str, float]:
    units = {f"{prefix}B": factor for prefix, factor in (_DECIMAL | _BINARY).items()}
    for prefix, factor in (_DECIMAL | _BINARY).items():
        units[f"{prefix}b"] = units[f"{prefix}bit"] = factor / 8
    return units


def _byte_rate_units() -> dict[str, float]:
    units = {f"{unit}/s": factor for unit, factor in _byte_units().items()}
    for prefix, factor in _DECIMAL.items():
        units[f"{prefix}bps"] = factor / 8
    return units


def _flop_units(suffix: str) -> dict[str, float]:
    # Integer formats are quoted in OP/s; one operation counts as one FLOP.
    return {f"{prefix}{word}{suffix}": f for prefix, f in _DECIMAL.items() for word in ("FLOP", "OP")}


_TIME = {
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "ns": 1e-9,
    "ps": 1e-12,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}

_UNITS: dict[str, dict[str, float]] = {
    "bytes": _byte_units(),
    "seconds": _TIME,
    "bytes_per_second": _byte_rate_units(),
    "flops": _flop_units(""),
    "flops_per_second": _flop_units("/s"),
    "watts": {"mW": 1e-3, "W": 1.0, "kW": 1e3, "MW": 1e6},
    "joules": {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "GJ": 1e9, "Wh": 3600.0, "kWh": 3.6e6},
    "dollars_per_hour": {"$/h": 1.0},
    "fraction": {"%": 0.01, "": 1.0},
}

_EXAMPLE = {
    "bytes": "80GB or 16GiB",
    "seconds": "5us",
    "bytes_per_second": "50GB/s or 400Gbps",
    "flops": "3GFLOP",
    "flops_per_second": "312TFLOP/s",
    "watts": "400W",
    "joules": "5kJ",
    "dollars_per_hour": "$2.5/h",
    "fraction": "85%",
}

_OUTPUT: dict[str, tuple[str, ...]] = {
    "bytes": ("B", "kB", "MB", "GB", "TB", "PB"),
    "seconds": ("ns", "us", "ms", "s"),
    "bytes_per_second": ("B/s", "kB/s", "MB/s", "GB/s", "TB/s"),
    "flops": ("FLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"),
    "flops_per_second": ("FLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s", "EFLOP/s"),
    "watts": ("W", "kW", "MW"),
    "joules": ("J", "kJ", "MJ", "GJ"),
}

DIMENSIONS: tuple[str, ...] = tuple(_UNITS)


class SIValue(float):
    """A number that is known to be SI, such as one given from Python; YAML numbers are plain floats."""


def nearest(name: str, candidates: list[str]) -> str | None:
    """The candidate that looks most like ``name``, ignoring letter case; None if nothing is close."""
    lowered: dict[str, str] = {}
    for candidate in candidates:
        lowered.setdefault(candidate.lower(), candidate)
    found = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.5)
    return lowered[found[0]] if found else None


def _split(text: str, dimension: str, field: str) -> tuple[str, str]:
    """Number and unit of ``text``; raises if there is no number."""
    if dimension == "dollars_per_hour" and (match := _DOLLARS.fullmatch(text)):
        return match[1], f"$/{match[2]}"
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise InputError(field, f"be a number with a unit, such as {_EXAMPLE[dimension]}", repr(text))
    return match[1], match[2]


@lru_cache(maxsize=4096)
def parse_quantity(text: str, dimension: str, field: str = "quantity") -> float:
    """Read text with a unit as an SI value.

    Parameters
    ----------
    text : str
        For example ``"400Gbps"``, ``"80GB"``, ``"5us"``, ``"312TFLOP/s"``, ``"$2.5/h"``, ``"85%"``.
    dimension : str
        One of ``DIMENSIONS``.
    field : str
        What an error names.

    Returns
    -------
    float
        Bytes, seconds, bytes/s, FLOP, FLOP/s, watts, joules, dollars per hour, or a fraction of 1.

    Raises
    ------
    InputError
        If the number cannot be read, or the unit is missing or does not belong to the dimension.
    """
    units = _UNITS[dimension]
    number, unit = _split(text, dimension, field)
    try:
        value = float(number)
    except ValueError:
        raise InputError(
            field, f"be a number with a unit, such as {_EXAMPLE[dimension]}", repr(text)
        ) from None
    if not math.isfinite(value):
        raise InputError(field, "be finite", repr(text))
    if unit in units:
        return value * units[unit]
    if unit == "":
        if value == 0:
            return 0.0
        raise InputError(field, "have a unit", repr(text), hint=f"Try {_EXAMPLE[dimension]}.")
    # A rate for an amount, or the other way round, is the commonest slip.
    slips = [name for name in (f"{unit}/s", unit.removesuffix("/s")) if name in units]
    close = slips[0] if slips else nearest(unit, list(units))
    example = _write(number, close) if close else _EXAMPLE[dimension]
    raise InputError(
        field, f"have a unit of {dimension.replace('_', ' ')}", repr(text), hint=f"Try {example}."
    )


def _write(number: str, unit: str) -> str:
    return f"${number}/h" if unit == "$/h" else f"{number}{unit}"


def format_quantity(value: float, dimension: str, digits: int = 6) -> str:
    """Write an SI value as text that ``parse_quantity`` reads back.

    Parameters
    ----------
    value : float
        SI value.
    dimension : str
        One of ``DIMENSIONS``.
    digits : int
        Significant digits; 17 keeps every bit of the value.
    """
    if dimension == "dollars_per_hour":
        return f"${value:.{digits}g}/h"
    if dimension == "fraction":
        # Percent is exact for short fractions only; with full precision the plain number is the safe text.
        return f"{value * 100:.{digits}g}%" if digits < 17 else repr(value)
    units = _OUTPUT[dimension]
    table = _UNITS[dimension]
    chosen = units[0]
    for unit in units:
        if abs(value) >= table[unit] * (1 - 0.5 * 10.0**-digits):
            chosen = unit
    if value == 0:
        chosen = next(unit for unit in units if table[unit] == 1.0)
    if digits >= 17:
        # The shortest text that gives back every bit: the prefixed unit if it does, else the base unit.
        text = f"{value / table[chosen]!r}{chosen}"
        base = next(unit for unit in units if table[unit] == 1.0)
        return text if parse_quantity(text, dimension) == value else f"{value!r}{base}"
    return f"{value / table[chosen]:.{digits}g}{chosen}"
