"""Laws of units: writing and reading are inverse to each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sim.units import DIMENSIONS, format_quantity, parse_quantity

values = st.floats(min_value=1e-15, max_value=1e21)
dimensions = st.sampled_from(DIMENSIONS)


@given(values, dimensions)
def test_round_trip_to_six_digits(value: float, dimension: str) -> None:
    back = parse_quantity(format_quantity(value, dimension), dimension)
    assert abs(back - value) <= 5.1e-6 * value


@given(values, dimensions)
def test_round_trip_of_every_bit(value: float, dimension: str) -> None:
    assert parse_quantity(format_quantity(value, dimension, digits=17), dimension) == value


@given(
    st.floats(min_value=1e-3, max_value=1e6), st.sampled_from(["B", "kB", "MB", "GB", "KiB", "MiB", "GiB"])
)
def test_a_byte_is_eight_bits(number: float, unit: str) -> None:
    in_bytes = parse_quantity(f"{number!r}{unit}", "bytes")
    in_bits = parse_quantity(f"{number!r}{unit[:-1]}b", "bytes")
    assert abs(in_bytes - 8 * in_bits) <= 1e-12 * in_bytes
