# ruff: noqa: E501 -- messages are compared whole
"""Strict YAML: what is refused, where the message points, and what values mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim import yamlio
from sim.errors import InputError
from sim.spec import Calibration, Fabric, Host, Strategy, Sweep, Workload


def refusal(model: type, text: str, prefix: str = "") -> str:
    with pytest.raises(InputError) as caught:
        yamlio.validate(model, yamlio.loads(text, "job.yaml"), field_prefix=prefix)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp: 8\ntpp: 4", "strategy.tpp: must be a known field. Try tp. (job.yaml:2)"),
        ("tp: -1", "strategy.tp: must be at least 1. Got -1. (job.yaml:1)"),
        ("tp: 1.5", "strategy.tp: must be a whole number. Got 1.5. (job.yaml:1)"),
        ("tp: true", "strategy.tp: must not be true or false. Got true. (job.yaml:1)"),
        ("overlap: yes", "strategy.overlap: must be true or false. Got 'yes'. (job.yaml:1)"),
        (
            "\n\nbucket_size: 25",
            "strategy.bucket_size: must have a unit. Got 25. Try 80GB or 16GiB. (job.yaml:3)",
        ),
        (
            "bucket_size: 25Mb/s",
            "strategy.bucket_size: must have a unit of bytes. Got '25Mb/s'. Try 25Mb. (job.yaml:1)",
        ),
        ("bucket_size: 0B", "strategy.bucket_size: must be greater than 0. Got '0B'. (job.yaml:1)"),
        (
            "bucket_size: .inf",
            "strategy.bucket_size: must be a number with a unit, such as 80GB or 16GiB. Got inf.",
        ),
        (
            "placement:\n  - tp\n  - xp",
            "strategy.placement[1]: must be one of tp, cp, dp, pp. Got 'xp'. Try tp. (job.yaml:3)",
        ),
        ("schedule: 1f1", "Try 1f1b. (job.yaml:1)"),
    ],
)
def test_one_line_with_field_value_and_place(text: str, message: str) -> None:
    assert message in refusal(Strategy, text, "strategy")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "a: must be given once; it is also on line 1. (x.yaml:3)"),
        ("a: &x 1\nb: *x", "b: must not use YAML anchors and aliases. (x.yaml:2)"),
        ("a: !!python/object:os.system x", "a: must not use YAML tags."),
        ("a: [1, 2", "x.yaml: must be valid YAML"),
        ("a: b: c", "(x.yaml:1)"),
        ("- 1", "x.yaml: must be a mapping of fields at the top. Got list. (x.yaml:1)"),
        ("", "x.yaml: must not be empty. (x.yaml)"),
        ("a: 1\n---\nb: 2", "x.yaml: must be valid YAML"),
        ("? [1, 2]\n: 3", "must have plain text or numbers as keys"),
        ("a: \x00", "x.yaml: must be valid YAML"),
        ("[" * 5000, "x.yaml: must"),
    ],
)
def test_broken_yaml_is_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        yamlio.loads(text, "x.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_scalars_mean_what_they_look_like() -> None:
    text = "a: yes\nb: true\nc: 010\nd: 1e5\ne: 12:30\nf: 2024-01-31\ng: ~\nh: '8'\ni: 1_000\nj: .5\nk: on\nl: 0x10"
    assert yamlio.loads(text).data == {
        "a": "yes", "b": True, "c": 10, "d": 1e5, "e": "12:30", "f": "2024-01-31", "g": None, "h": "8",
        "i": 1000, "j": 0.5, "k": "on", "l": "0x10",
    }  # fmt: skip


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="readable file: no such file"):
        yamlio.load(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="readable file: is a directory"):
        yamlio.load(tmp_path)
    (tmp_path / "latin.yaml").write_bytes("name: Zürich".encode("latin-1"))
    with pytest.raises(InputError, match="UTF-8"):
        yamlio.load(tmp_path / "latin.yaml")


def test_nested_places() -> None:
    text = "name: x\nfamily: cnn\nlayers:\n  - name: a\n    kind: linear\n    block: 0\n    ops:\n      - {op: gemm, rows: 1, n: 2, kk: 3}"
    assert refusal(Workload, text) == "layers[0].ops[0].kk: must be a known field. Try k. (job.yaml:8)"
    assert refusal(Workload, text.replace("gemm", "gem")).startswith(
        "layers[0].ops[0].op: must be one of gemm, conv"
    )
    assert refusal(Workload, text.replace(", kk: 3", "")) == "layers[0].ops[0].k: must be given. (job.yaml:8)"


def test_overrides_win_and_are_not_blamed_on_the_file() -> None:
    document = yamlio.loads("tp: 8\nbucket_size: 25MB", "job.yaml")
    changed = yamlio.validate(Strategy, document, overrides={"tp": "4", "placement": "[pp, dp, cp, tp]"})
    assert (changed.tp, changed.placement, changed.bucket_size) == (4, ("pp", "dp", "cp", "tp"), 25e6)
    assert document.data["tp"] == 8
    with pytest.raises(InputError) as caught:
        yamlio.validate(Strategy, document, field_prefix="strategy", overrides={"tp": "x"})
    assert str(caught.value) == "strategy.tp: must be a whole number. Got 'x'."


def test_numbers_from_python_are_si_but_text_needs_units() -> None:
    document = yamlio.loads("tp: 8")
    assert yamlio.validate(Strategy, document, overrides={"bucket_size": 1e6}).bucket_size == 1e6
    assert yamlio.validate(Strategy, {"bucket_size": 1e6}).bucket_size == 1e6
    with pytest.raises(InputError, match="have a unit"):
        yamlio.validate(Strategy, document, overrides={"bucket_size": "1e6"})


@pytest.mark.parametrize(
    ("model", "text", "message"),
    [
        (Fabric, "kind: torus\nk: 4", "k: must not be given for kind torus. (job.yaml:2)"),
        (Fabric, "kind: fat_tree\nk: 5", "k: must be even. Got 5. Try 6. (job.yaml:2)"),
        (Fabric, "kind: graph", "edges: must have at least one entry for kind graph."),
        (Calibration, "name: x\ndevice: {default: {kernel_latency: {value: 5, source: x}}}", "device.default.kernel_latency.value: must have a unit. Got '5'. Try 5us."),
        (Calibration, "name: x\nlink:\n  nvlink:\n    latency: {value: 5us, low: 6us, source: x}", "link.nvlink.latency.low: must be at most value"),
        (Calibration, "name: x\ndevice: {default: {e: {value: 0.5}}}", "device.default.e.source: must be given."),
        (Sweep, "name: x\naxes:\n  strategi.tp: [1]", "axes.strategi.tp: must start with one of"),
        (Host, "name: x\ncpu_cores: 2\nmemory_bytes: 1GB\nnics: [{name: nic0, bandwidth: 1GB/s}]\nlinks: [{a: gpu0, b: cpu0, bandwidth: 1GB/s, kind: pcie}]", "links[0]: must name a device or NIC of this host. Got 'gpu0'. (job.yaml:5)"),
        (Fabric, "kind: single_switch\n1: 3", "[1]: must be the name of a field. (job.yaml:2)"),
    ],
)  # fmt: skip
def test_messages_of_model_wide_rules(model: type, text: str, message: str) -> None:
    assert message in refusal(model, text)


def test_dump_and_load() -> None:
    data = {
        "name": "x",
        "tp": 8,
        "list": [1, 2.5, "a: b"],
        "flag": True,
        "text": "yes",
        "number": "010",
        "none": None,
    }
    assert yamlio.loads(yamlio.dumps(data)).data["list"] == data["list"]
    strategy = Strategy(tp=8, bucket_size=2.0**20 * 25, overlap=False)
    text = yamlio.dumps(strategy.to_data())
    assert yamlio.validate(Strategy, yamlio.loads(text)) == strategy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"tp: {'9' * 5000}", "tp: must be finite. Got inf. (job.yaml:1)"),
        (f"tp: -{'9' * 5000}", "tp: must be finite. Got -inf. (job.yaml:1)"),
        ("gather_bits: 5", "gather_bits: must be one of 4, 8. Got 5. (job.yaml:1)"),
        ("gather_bits: '8'", "gather_bits: must be one of 4, 8. Got '8'. Try 8. (job.yaml:1)"),
    ],
)
def test_numbers_no_field_takes(text: str, message: str) -> None:
    """Integers of more digits than Python reads, and the choices of a field of numbers."""
    assert refusal(Strategy, text) == message


def test_a_message_does_not_repeat_values_of_any_length() -> None:
    assert len(str(InputError("name", "be known", "x" * 10_000))) < 500
