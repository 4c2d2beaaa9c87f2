"""One small real recording, and the prediction of it. Needs torch (``make test-record``)."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from sim.cli.main import main  # noqa: E402
from sim.errors import InputError  # noqa: E402
from sim.record.network import require_emulation  # noqa: E402


def can_emulate() -> bool:
    try:
        require_emulation()
    except InputError:
        return False
    return True


def predictions(path: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    assert main(["validate", "recordings", str(path), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == []
    with open(out, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.skipif(not can_emulate(), reason="hosts cannot be emulated here")
def test_two_emulated_hosts_take_what_is_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--ranks", "2", "--hosts", "2", "--link", "100Mbps", "--delay", "200us", "--emulate-compute"]
    assert main(["record", "--workload", "mlp", *options, "--steps", "4", "-o", str(tmp_path)]) == 0
    capsys.readouterr()
    found = predictions(tmp_path / "ddp.csv", tmp_path / "pred.csv", capsys)
    (row,) = found
    # A busy machine adds to what was measured, not to what is sent.
    assert float(row["predicted_us"]) == pytest.approx(float(row["median_step_us"]), rel=0.15)


def test_real_compute_on_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--workload", "mlp", "--ranks", "2", "--steps", "4", "--json"]
    assert main(["record", *options, "-o", str(tmp_path)]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert [Path(file).name for file in files] == ["mlp.json", "coll.csv", "ddp.csv"]
    (row,) = predictions(tmp_path / "ddp.csv", tmp_path / "pred.csv", capsys)
    # Two ranks that compute share the machine's memory with each other and with everything else.
    assert 0.3 < float(row["predicted_us"]) / float(row["median_step_us"]) < 3


def test_unknown_workload_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "--workload", "magic", "-o", str(tmp_path)]) == 1
    assert "magic" in capsys.readouterr().err
