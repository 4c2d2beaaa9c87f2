"""Where expressions: what they mean, and that nothing else gets in."""

from __future__ import annotations

import math

import pytest

from sim.errors import InputError
from sim.sweep.where import Where, column_dimension

ROW = {
    "peak_memory_bytes": 70e9,
    "step_time_s": 0.5,
    "samples_per_s": 1000.0,
    "mfu": 0.42,
    "num_devices": 16,
    "workload": "bert-base",
    "strategy.overlap": True,
    "strategy.state": "zero1",
    "missing": None,
    "nan": math.nan,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("peak_memory_bytes<80GB", True),
        ("peak_memory_bytes < 64GiB", False),
        ("peak_memory_bytes<6.9e10", False),
        ("step_time_s <= 500ms", True),
        ("step_time_s<0.4", False),
        ("mfu >= 42%", True),
        ("mfu > 0.42", False),
        ("samples_per_s>=1e3", True),
        ("num_devices == 16 and mfu<0.5", True),
        ("num_devices = 8 or num_devices = 16", True),
        ("8 < num_devices <= 16", True),
        ("not (num_devices == 16)", False),
        ("not num_devices == 8 and mfu < 10%", False),
        ("num_devices in (8, 16)", True),
        ("strategy.state in (zero1, zero3)", True),
        ("workload == bert-base", True),
        ("workload != 'bert-base'", False),
        ("strategy.overlap", True),
        ("strategy.overlap == false", False),
        ("peak_memory_bytes<80GB, mfu>10% && num_devices<32", True),
        ("missing < 3", False),
        ("nan < 3 or nan >= 3", False),
        ("80GB > peak_memory_bytes", True),
    ],
)
def test_meaning(text: str, expected: bool):
    where = Where.parse(text)
    where.check(ROW)
    assert where.matches(ROW) is expected


def test_and_binds_tighter_than_or():
    assert Where.parse("num_devices==16 or mfu<0 and mfu>1").matches(ROW)
    assert not Where.parse("(num_devices==16 or mfu<0) and mfu>1").matches(ROW)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mfu <",
        "(mfu<1",
        "mfu<1)",
        "mfu < 1 mfu > 2",
        "__import__('os').system('true')",
        "mfu < 1; mfu > 2",
        "and",
        "num_devices in 8",
        "mfu ~ 3",
        "[x for x in y]",
    ],
)
def test_nonsense_is_an_input_error(text: str):
    with pytest.raises(InputError) as caught:
        Where.parse(text).check(ROW)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("peak_memory_bytes<80GBB", "unit"),
        ("peak_memory_bytes<80W", "unit"),
        ("num_devices<3GB", "plain number"),
        ("workload<3", "compare a number"),
    ],
)
def test_wrong_units_and_types_are_named(text: str, part: str):
    with pytest.raises(InputError, match=part):
        Where.parse(text).matches(ROW)


def test_an_unknown_column_names_the_nearest():
    with pytest.raises(InputError, match="peak_memory_bytes"):
        Where.parse("peak_mem_bytes<80GB").check(ROW)


def test_what_can_be_decided_before_a_run():
    parameters = {"num_devices": 1, "strategy.tp": 8}
    assert Where.parse("strategy.tp<4").decidable_by(parameters)
    assert not Where.parse("strategy.tp<4 or mfu>10%").decidable_by(parameters)
    assert not Where.parse("strategy.tp < step_time_s").decidable_by(parameters)


@pytest.mark.parametrize(
    ("column", "dimension"),
    [
        ("peak_memory_bytes", "bytes"),
        ("samples_per_s", ""),
        ("compute_s", "seconds"),
        ("mfu", "fraction"),
        ("strategy.bucket_size", "bytes"),
        ("workload", ""),
    ],
)
def test_the_suffix_names_the_dimension(column: str, dimension: str):
    assert column_dimension(column) == dimension
