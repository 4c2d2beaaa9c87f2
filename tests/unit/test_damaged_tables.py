"""Damaged tables of measurements end in one line or in counted reasons, never in a traceback."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from sim.calibrate.runs import fit_runs
from sim.catalog import Catalog
from sim.cli.main import main
from sim.validate.rows import read_rows
from sim.validate.runs_loader import load_runs

Rows = list[dict[str, str]]
Damage = Callable[[str], str | bytes]

RUN = {
    "id": "A-1", "split": "calibration", "source": "ours", "framework": "Megatron-LM", "model": "gpt",
    "family": "dense_lm", "layers": "2", "hidden": "256", "heads": "4", "ffn": "1024", "vocab": "1000",
    "seq_len": "128", "gpu": "A100", "gpu_mem_gb": "80", "gpus": "8", "gpus_per_node": "8", "nodes": "1",
    "precision": "bf16", "gbs": "16", "mbs": "2", "tp": "1", "pp": "1", "dp": "8", "step_time_s": "0.1",
}  # fmt: skip
COLLECTIVE = {
    "id": "C-1", "system": "ours", "hardware": "A100-SXM4-40GB", "gpus": "8", "nodes": "1",
    "collective": "all_reduce", "message_bytes": "1048576", "dtype": "float", "time_us": "50",
}  # fmt: skip
TEXTS: dict[str, Damage] = {
    "empty": lambda text: "",
    "blank lines": lambda text: "\n\n\n",
    "binary": lambda text: bytes(range(256)) * 8,
    "a page": lambda text: "<html><body>404, not found</body></html>",
    "JSON": lambda text: '{"id": 1}',
    "header alone": lambda text: text.partition("\n")[0] + "\n",
    "a huge cell": lambda text: text + '"' + "x" * 200_000 + '"\n',
    "an open quote": lambda text: text + '"A-9,',
    "NUL bytes": lambda text: text.replace("a", "\0"),
    "Latin-1": lambda text: text.replace("ours", "wir \xe4").encode("latin-1"),
}
ENDINGS: dict[str, Damage] = {
    "byte order mark": lambda text: "\ufeff" + text,
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "twice": lambda text: text + text.partition("\n")[2],
    "empty lines": lambda text: text + "\n\n",
}
VALUES = [
    "",
    "nan",
    "inf",
    "-inf",
    "-1",
    "0",
    "1e308",
    "1e400",
    "-1e-300",
    "abc",
    "1,5",
    "1.5.2",
    "0x10",
    '"',
    "\n",
]
COMMANDS = {
    "runs": ["validate", "runs", "--fresh", "--workers", "1", "--measurements"],
    "collectives": ["validate", "collectives", "--measurements"],
    "fit": ["calibrate", "collectives", "-o", "out.yaml"],
    "fit runs": ["calibrate", "runs", "-o", "out.yaml", "--workers", "1", "--rounds", "1"],
}


def table(rows: Rows) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def ended(
    command: str, content: str | bytes, folder: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    path = folder / "table.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    code = main([*COMMANDS[command], str(path)])
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert "internal" not in error
    assert "Warning" not in error
    return code, error


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("damage", TEXTS)
def test_what_is_no_table_is_refused_in_one_line(
    command: str,
    damage: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    good = table([RUN if "runs" in command else COLLECTIVE] * 2)
    if damage in ("an open quote", "Latin-1") and "runs" in command:
        pytest.skip("read as far as it goes")
    code, error = ended(command, TEXTS[damage](good), tmp_path, capsys)
    assert code == 2
    assert len(error.splitlines()) == 1
    assert error.startswith("error: ")


@pytest.mark.parametrize("damage", ENDINGS)
def test_other_ways_to_write_a_table_are_read(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, error = ended("collectives", ENDINGS[damage](table([COLLECTIVE])), tmp_path, capsys)
    assert (code, error.count("median over 1 systems")) == (0, 1)
    path = tmp_path / "runs.csv"
    path.write_bytes(str(ENDINGS[damage](table([RUN]))).encode())
    loaded = load_runs(read_rows(path), Catalog())
    assert loaded.runs
    assert not loaded.skipped


@pytest.mark.parametrize("column", [name for name in RUN if name != "id"])
def test_a_run_with_a_bad_cell_is_counted_with_its_reason(column: str, tmp_path: Path) -> None:
    bad = [{**RUN, "id": f"A-{number}", column: value} for number, value in enumerate(VALUES)]
    path = tmp_path / "runs.csv"
    path.write_text(table([*bad, RUN]))
    loaded = load_runs(read_rows(path), Catalog())
    assert len(loaded.runs) + len(loaded.skipped) == len(bad) + 1
    assert loaded.runs[-1].row.id == RUN["id"]
    assert all(item.reason and "\n" not in item.reason for item in loaded.skipped)
    without = [{name: value for name, value in RUN.items() if name != column}]
    path.write_text(table(without))
    missing = load_runs(read_rows(path), Catalog())
    assert len(missing.runs) + len(missing.skipped) == 1


@pytest.mark.parametrize("column", [name for name in COLLECTIVE if name not in ("id", "system")])
def test_a_collective_with_a_bad_cell_is_counted_with_its_reason(
    column: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = [{**COLLECTIVE, "id": f"C-{number}", column: value} for number, value in enumerate(VALUES)]
    code, error = ended("collectives", table([*bad, COLLECTIVE]), tmp_path, capsys)
    assert code == 0
    assert "median over 1 systems" in error
    code, error = ended("collectives", table(bad), tmp_path, capsys)
    assert code == 0 or "rows: " in error


def test_sizes_that_make_no_model_are_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(table([{**RUN, "heads": "7"}, RUN]))
    loaded = load_runs(read_rows(path), Catalog())
    assert [item.reason for item in loaded.skipped] == [
        "workload.num_heads: must divide hidden (256). Got 7. Or give head_dim."
    ]
    assert len(loaded.runs) == 1


def test_a_fit_to_few_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [RUN, {**RUN, "heads": "7"}, {**RUN, "step_time_s": ""}]
    code, error = ended("fit runs", table(rows), tmp_path, capsys)
    assert code == 2
    assert error == (
        "error: DATA: must have at least 10 rows of the calibration split that can be simulated. Got 1. "
        "Left out 2 rows: workload.num_heads: must divide hidden (256). Got 7. Or give head_dim (1); "
        "no step time (1).\n"
    )
    prior = Catalog().calibration()
    assert fit_runs([], prior).calibration is prior
