"""Slips in files of one's own runs: repeated identifiers, absurd times, odd units, refused precisions."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from sim.calibrate.run_priors import OWN, SOURCE, source_of, without_fits
from sim.calibrate.run_residuals import distinct
from sim.calibrate.run_rounds import fit_rounds
from sim.catalog import Catalog
from sim.cli.main import main
from sim.validate.report import validate_runs
from sim.validate.rows import Row
from sim.validate.runs_loader import Run, load_run, load_runs

JOB = {
    "id": "Q-1", "model": "GPT 1.3B", "family": "dense_lm", "layers": "2", "hidden": "2048", "heads": "16",
    "vocab": "50257", "seq_len": "1024", "gpu": "A100", "gpu_mem_gb": "80", "gpus": "1", "precision": "bf16",
    "gbs": "8", "mbs": "2", "framework": "PyTorch", "recompute": "none",
}  # fmt: skip


def load(catalog: Catalog, **cells: str) -> Run:
    return load_run(Row({**JOB, **cells}), catalog)


def test_rows_that_share_an_identifier_fit_without_intervals(catalog: Catalog) -> None:
    rows = [
        Row({**JOB, "hidden": width, "step_time_s": seconds})
        for width, seconds in (("1024", ".1"), ("2048", ".3"), ("3072", ".6"), ("4096", "1."), ("1536", ".2"),
                               ("2560", ".4"))
    ]  # fmt: skip
    runs = load_runs(distinct(rows * 2), catalog).runs
    assert len({run.row.id for run in runs}) == 12
    assert {run.row.group for run in runs} == {"Q"}
    said: list[str] = []
    source = source_of(["mine/a.csv", "b.csv"])
    default = catalog.calibration("default")
    found = fit_rounds(runs, default, rounds=1, source=source, workers=1, progress=said.append)
    assert any("no intervals" in text for text in said)
    assert found.entries()
    assert all(p.source == f"{OWN}a.csv, b.csv)" for *_, p in found.entries())
    assert not any(name.startswith("spread_") for _, _, name, _ in found.entries())
    for table in (without_fits(found.calibration).device, without_fits(found.calibration).framework):
        assert not any(p.source.startswith((SOURCE, OWN)) for each in table.values() for p in each.values())


def test_a_shared_identifier_without_a_number_keeps_its_source() -> None:
    assert {row.group for row in distinct([Row({"id": "run"})] * 3)} == {"run"}


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"step_time_s": "1e-320"}, "step time: must be from 1e-06 s to 1e+07 s"),
        ({"step_time_s": "1e300"}, "step time: must be from"),
        ({"value_native": "1e-320", "unit_native": "tokens/s"}, "step time: must be from"),
        ({"value_native": "20M", "unit_native": "tokens/s"}, "value_native: must be a number above 0. Got"),
        ({"value_native": "-5", "unit_native": "tokens/s"}, "value_native: must be a number above 0. Got -5"),
        ({"value_native": "nan", "unit_native": "s"}, "value_native: must be a number above 0. Got nan."),
        ({"value_native": "5", "unit_native": "parsecs"}, "unit_native: must be a unit such as"),
        ({"step_time_s": "fast"}, "step_time_s: must be a number above 0. Got fast."),
    ],
)  # fmt: skip
def test_a_measurement_that_is_none_has_a_reason(
    catalog: Catalog, cells: dict[str, str], reason: str
) -> None:
    run = load(catalog, **cells)
    assert run.measured_s is None
    assert reason in run.unmeasured


def test_the_reason_stands_in_board_and_predictions(catalog: Catalog, tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    cells = {**JOB, "step_time_s": "1e-320"}
    path.write_text(f"{','.join(cells)}\n{','.join(cells.values())}\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = validate_runs(path, catalog=catalog, workers=1)
    assert "step time: must be" in report.records()[0]["message"]
    assert [reason[:10] for reason in report.lines[0].skipped] == ["step time:"]


def test_what_the_file_states_well_has_no_reason(catalog: Catalog) -> None:
    assert load(catalog).unmeasured == ""
    run = load(catalog, step_time_s="-1", value_native="8192", unit_native="tokens/s")
    assert (run.measured_s, run.unmeasured) == (1.0, "")


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("no fp8 bf16", "bf16"), ("bf16 (fp8 off)", "bf16"), ("without fp8", "bf16"), ("no bf16", "fp16"),
        ("bf16, fp8 disabled", "bf16"), ("fp8", "fp8"), ("bf16 + fp8", "fp8"), ("no amp", "fp32"),
    ],
)  # fmt: skip
def test_a_precision_that_is_refused_is_not_taken(catalog: Catalog, text: str, dtype: str) -> None:
    assert load(catalog, precision=text, gpu="H100").params["dtype"] == dtype


@pytest.mark.parametrize(
    ("note", "reason"),
    [("LoRA r=-4", "Got -4."), ("LoRA rank 0", "Got 0."), ("LoRA r=4096", "width, 2,048. Got 4096.")],
)
def test_a_rank_that_no_adapter_has_is_a_reason(catalog: Catalog, note: str, reason: str) -> None:
    (skipped,) = load_runs([Row({**JOB, "notes": note})], catalog).skipped
    assert "adapter rank: must be" in skipped.reason
    assert reason in skipped.reason


def test_measurements_are_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.csv"
    path.write_text("id,model\n")
    for line in (
        ["validate", "runs", "--measurements", str(path), "--out", f"{tmp_path}/./m.csv"],
        ["calibrate", "runs", str(path), "-o", str(path)],
    ):
        assert main(line) == 2
        assert "must be another file than" in capsys.readouterr().err
    assert path.read_text() == "id,model\n"
    assert main(["calibrate", "runs", f"{tmp_path}/no.csv", "-o", f"{tmp_path}/z.yaml"]) == 2
    assert "DATA: must be a readable CSV file" in capsys.readouterr().err
