"""Text with units to SI values: known conversions, and what is refused."""

from __future__ import annotations

import pytest

from sim.errors import InputError
from sim.units import format_quantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("80GB", "bytes", 80e9),
        ("16GiB", "bytes", 16 * 2**30),
        ("8Gb", "bytes", 1e9),
        ("400Gbps", "bytes_per_second", 50e9),
        ("400 Gb/s", "bytes_per_second", 50e9),
        ("50GB/s", "bytes_per_second", 50e9),
        ("50GiB/s", "bytes_per_second", 50 * 2**30),
        ("5us", "seconds", 5e-6),
        ("5µs", "seconds", 5e-6),
        ("2min", "seconds", 120.0),
        ("312TFLOP/s", "flops_per_second", 312e12),
        ("624TOP/s", "flops_per_second", 624e12),
        ("3GFLOP", "flops", 3e9),
        ("400W", "watts", 400.0),
        ("1.5kW", "watts", 1500.0),
        ("$2.5/h", "dollars_per_hour", 2.5),
        ("85%", "fraction", 0.85),
        ("0.85", "fraction", 0.85),
        ("1e3kB", "bytes", 1e6),
        (" 1_000 B ", "bytes", 1000.0),
        ("0", "seconds", 0.0),
    ],
)
def test_known_conversions(text: str, dimension: str, value: float) -> None:
    assert parse_quantity(text, dimension) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "dimension", "hint"),
    [
        ("80", "bytes", "Try 80GB or 16GiB."),
        ("80gb", "bytes", "Try 80GB."),
        ("80 GBB", "bytes", "Try 80GB."),
        ("400Gbs", "bytes_per_second", "Try 400Gbps."),
        ("5usec", "seconds", "Try 5us."),
        ("80GB", "seconds", "Try 5us."),
        ("50GB", "bytes_per_second", "Try 50GB/s."),
        ("$2/day", "dollars_per_hour", "Try $2/h."),
    ],
)
def test_a_wrong_or_missing_unit_names_the_nearest(text: str, dimension: str, hint: str) -> None:
    with pytest.raises(InputError, match="must have a unit") as caught:
        parse_quantity(text, dimension)
    assert caught.value.hint == hint


@pytest.mark.parametrize("text", ["", "GB", "--3GB", "1.2.3GB", "1e400GB", "nan GB", "inf"])
def test_what_is_no_finite_number_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_quantity(text, "bytes")


def test_letter_case_tells_bits_from_bytes() -> None:
    assert parse_quantity("1GB/s", "bytes_per_second") == 8 * parse_quantity("1Gb/s", "bytes_per_second")


@pytest.mark.parametrize(
    ("value", "dimension", "text"),
    [
        (80e9, "bytes", "80GB"),
        (50e9, "bytes_per_second", "50GB/s"),
        (5e-6, "seconds", "5us"),
        (0.0, "seconds", "0s"),
        (312e12, "flops_per_second", "312TFLOP/s"),
        (2.5, "dollars_per_hour", "$2.5/h"),
        (0.85, "fraction", "85%"),
        (999.9999999, "bytes", "1kB"),
    ],
)
def test_text_for_humans(value: float, dimension: str, text: str) -> None:
    assert format_quantity(value, dimension) == text
