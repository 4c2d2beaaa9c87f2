"""The commands `calibrate collectives` and `validate collectives`, from files to exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sim.catalog import default_catalog
from sim.cli.main import main
from sim.validate.collectives.load import published

SMALL = ("dgxc-h100x8", "aws-p5x8")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    whole = pd.read_csv(published())
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    whole[whole["system"].isin(SMALL)].to_csv(path, index=False)
    return path


def test_calibrate_then_validate_other_sizes(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every second size is kept from the fit; the median error over systems stays within 8 %."""
    rows = pd.read_csv(table)
    second = rows["message_bytes"].rank(method="dense").astype(int) % 2 == 0
    train, test, cal, out = (tmp_path / name for name in ("train.csv", "test.csv", "cal.yaml", "pred.csv"))
    rows[~second].to_csv(train, index=False)
    rows[second].to_csv(test, index=False)
    assert main(["calibrate", "collectives", str(train), "-o", str(cal), "--json"]) == 0
    fitted = json.loads(capsys.readouterr().out)
    assert set(fitted["held_out"]) == set(SMALL)
    assert all(entry["low"] <= entry["value"] <= entry["high"] for entry in fitted["parameters"])
    arguments = ["validate", "collectives", "--measurements", str(test), "--calibration", str(cal)]
    assert main([*arguments, "--out", str(out), "--json"]) == 0
    board = json.loads(capsys.readouterr().out)
    assert board["summary"]["median_mape"] < 0.08
    assert board["summary"]["median_baseline"] > 0.3
    predicted = pd.read_csv(out)
    assert list(predicted.columns[:7]) == [
        "id", "measured_time_us", "predicted_time_us", "low_us", "high_us", "status", "message",
    ]  # fmt: skip
    assert predicted["id"].tolist() == rows.loc[second, "id"].tolist()
    assert (predicted["low_us"] < predicted["predicted_time_us"]).all()


def test_validate_prints_the_board(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "collectives", "--measurements", str(table)]) == 0
    captured = capsys.readouterr()
    assert all(system in captured.out for system in SMALL)
    assert "median over 2 systems" in captured.err


def test_rows_that_say_too_little_are_counted(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pd.read_csv(table).head(4)
    rows.loc[0, "hardware"] = "Abacus"
    rows.loc[1, "time_us"] = np.nan
    path = tmp_path / "odd.csv"
    rows.to_csv(path, index=False)
    assert main(["validate", "collectives", "--measurements", str(path), "--json"]) == 0
    board = json.loads(capsys.readouterr().out)
    assert board["skipped"] == {"device not known: Abacus": 1, "no time to compare with": 1}
    assert board["summary"]["rows"] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["validate", "collectives", "--measurements", "no-such-file.csv"],
        ["validate", "collectives", "--hold-out", "weekdays"],
        ["calibrate", "collectives", "no-such-file.log", "-o", "x.yaml"],
        ["collective", "all_to_allv", "dgx-a100", "--matrix", "no-such-file.csv"],
    ],
)
def test_bad_input_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_shipped_calibration_is_pooled_and_cited() -> None:
    """What ships knows kinds of links and libraries, nothing of single systems."""
    calibration = default_catalog().calibration("collectives")
    assert not any("@" in key for key in calibration.library)
    assert {"nvlink3", "nvlink4", "pcie4", "verbs", "efa"} <= set(calibration.link)
    for section in (calibration.link, calibration.library):
        assert all(parameter.source for entries in section.values() for parameter in entries.values())


def test_odd_rows_of_a_users_own_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Units, repeated rows, sizes without sense, unknown machines: each has a status."""
    path, cal, out = tmp_path / "mine.csv", tmp_path / "cal.yaml", tmp_path / "pred.csv"
    rows = [
        "H100 SXM,16,2,8x NDR InfiniBand,all_reduce,1MiB,150us",
        "H100 SXM,16,2,8x NDR InfiniBand,all_reduce,1MiB,150us",
        "H100 SXM,16,2,8x NDR InfiniBand,all_reduce,4194304,90",
        "Gaudi3,16,2,RoCE,all_reduce,1MiB,400", "H100,16,2,?,all_reduce,1MiB,400",
        "H100,,2,IB,all_reduce,1,4",
        "H100,16,2,IB,frobnicate,1,4", "H100,16,2,IB,all_reduce,inf,4", "H100,16,2,IB,all_reduce,0,4",
        "H100,16,2,IB,all_reduce,1e6,-3",
    ]  # fmt: skip
    path.write_text("\n".join(["hardware,gpus,nodes,inter_network,collective,message_bytes,time_us", *rows]))
    assert main(["calibrate", "collectives", str(path), "-o", str(cal), "--json"]) == 0
    fitted = json.loads(capsys.readouterr().out)["parameters"]
    assert {entry["key"].split("/")[0] for entry in fitted} <= {"link", "library"}
    assert not any("rccl" in entry["key"] for entry in fitted)  # only what these rows touch
    arguments = ["validate", "collectives", "--measurements", str(path), "--calibration", str(cal)]
    assert main([*arguments, "--out", str(out), "--json"]) == 0
    found = pd.read_csv(out)
    assert found["status"].tolist() == ["ok"] * 3 + ["skipped"] * 5 + ["ok"] * 2
    assert found.loc[found["status"] == "skipped", "message"].str.len().gt(5).all()
    good = found[found["status"] == "ok"]
    assert (good["low_us"] < good["predicted_time_us"]).all()
    assert (good["predicted_time_us"] < good["high_us"]).all()


def test_what_a_log_does_not_say_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log that begins after its first line names no collective."""
    path, out = tmp_path / "cut.log", tmp_path / "pred.csv"
    path.write_text(
        "#  Rank  0 Pid 1 on node-a device  0 [0x0f] NVIDIA A100-SXM4-80GB\n"
        "#  Rank  1 Pid 2 on node-a device  1 [0x15] NVIDIA A100-SXM4-80GB\n"
        "0: 1_048_576 262144 float sum -1 25.10 41.78 41.78 0 25.00 41.94 41.94 N/A\n"
        "   ...\n"
        "   67108864 16777216 float sum -1 400.10 167.73 167.73 0 399.00 168.19 168.19 N/A\n"
    )
    assert main(["calibrate", "collectives", str(path), "-o", str(tmp_path / "cal.yaml")]) == 2
    error = capsys.readouterr().err
    assert "collective not known: none given. Use --set collective=all_reduce." in error
    arguments = ["validate", "collectives", "--measurements", str(path), "--out", str(out)]
    assert main([*arguments, "--set", "collective=all_reduce"]) == 0
    assert pd.read_csv(out)["status"].tolist() == ["ok"] * 4
    assert main([*arguments, "--set", "collective"]) == 2
