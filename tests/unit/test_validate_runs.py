"""Published runs: rows to scenarios, small runs for large ones, the board, the fit."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sim.calibrate.calibration_text import calibration_yaml
from sim.calibrate.least_squares import Fit
from sim.calibrate.run_priors import SOURCE, prior_of, without_fits
from sim.calibrate.run_residuals import Residual, fit_spread, own_spread, with_spread
from sim.calibrate.run_rounds import fit_rounds
from sim.calibrate.run_stack import Stack
from sim.calibrate.run_terms import make_terms
from sim.calibrate.runs import RunFit, fit_runs
from sim.catalog import Catalog
from sim.spec.calibration import Parameter
from sim.validate.board import Scored, board, spearman
from sim.validate.report import COLUMNS, validate_runs
from sim.validate.rows import FILE, Row, read_rows
from sim.validate.runs import Prediction, predict, predict_all
from sim.validate.runs_loader import Run, framework_calibration, load_run, load_runs
from sim.validate.spread import TERMS, interval

GPT = {
    "id": "TEST-0001", "split": "calibration", "framework": "Megatron-LM", "model": "GPT 1.3B",
    "family": "dense_lm", "layers": "24", "hidden": "2048", "heads": "16", "vocab": "50257",
    "seq_len": "1024", "gpu": "A100", "gpu_mem_gb": "80", "gpus": "16", "gpus_per_node": "8",
    "intra_link": "NVLink3 600GB/s + NVSwitch", "inter_net": "4x HDR200", "precision": "fp16",
    "gbs": "128", "mbs": "2", "tp": "2", "pp": "4", "shard": "none", "recompute": "full",
}  # fmt: skip


def load(catalog: Catalog, **changes: str) -> Run:
    return load_run(Row({**GPT, **changes}), catalog)


def test_every_published_row_is_loaded_or_counted(catalog: Catalog) -> None:
    rows = read_rows(catalog.data_file(FILE))
    loaded = load_runs(rows, catalog)
    assert len(rows) == 3272
    assert len(loaded.runs) + len(loaded.skipped) == len(rows)
    assert len(loaded.runs) >= 0.95 * len(rows)
    assert all(item.reason for item in loaded.skipped)
    assert all(row.text("source") and row.text("source_rev") for row in rows)


def test_row_to_scenario(catalog: Catalog) -> None:
    run = load(catalog)
    assert (run.strategy.tp, run.strategy.pp, run.strategy.dp) == (2, 4, 2)
    assert run.micro_batches == 32
    assert run.cluster.size == 2
    host = run.cluster.host_types[0]
    assert len(host.nics) == 4
    assert host.nics[0].bandwidth == 25e9
    assert run.params["vocabulary"] % 256 == 0  # padded to 128 x tp
    assert run.framework == "megatron-lm"
    assert not run.strategy.overlap


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu": "abacus"}, "unknown GPU"),
        ({"gbs": "", "mbs": ""}, "batch size unknown"),
        ({"layers": "", "family": "asr", "model": "Whistler"}, "layers, hidden or heads unknown"),
        ({"pp": "3"}, "does not divide"),
        ({"tier": "X"}, "rejected"),
    ],
)
def test_what_cannot_be_simulated_has_a_reason(catalog: Catalog, change: dict[str, str], reason: str) -> None:
    (skipped,) = load_runs([Row({**GPT, **change})], catalog).skipped
    assert reason in skipped.reason


def test_unknown_fields_are_listed(catalog: Catalog) -> None:
    run = load(catalog, recompute="", seq_parallel="", shard="", inter_net="", precision="")
    assert {"recompute", "seq_parallel", "shard", "inter_net", "precision"} <= set(run.assumed)


@pytest.mark.parametrize(
    "changes",
    [
        {"gbs": "512", "tp": "1", "pp": "1", "gpus": "8"},
        {"gbs": "256", "pp": "4", "layers": "32"},
        {"gbs": "64", "pp": "4", "vpp": "2", "mbs": "1", "layers": "24", "gpus": "8"},
    ],
)
def test_small_runs_tell_of_the_large_one(catalog: Catalog, changes: dict[str, str]) -> None:
    from sim.validate.extrapolate import estimate
    from sim.validate.runs import _played, _resized

    run = load(catalog, **changes)
    scenario = run.scenario(catalog.calibration("default"))
    found = estimate(run, lambda size: _played(_resized(run, scenario, size)))
    assert found is not None
    assert found.seconds[0] == pytest.approx(_played(scenario)[0], rel=0.01)
    assert found.seconds[1:].sum() == pytest.approx(found.seconds[0])


def test_predictions_continue_from_the_cache(catalog: Catalog, tmp_path: Path) -> None:
    runs = [load(catalog), load(catalog, id="TEST-0002", step_time_s="3.0")]
    calibration = catalog.calibration("default")
    first = predict_all(runs, calibration, workers=1, cache=tmp_path)
    (file,) = tmp_path.glob("*.jsonl")
    assert len(file.read_text().splitlines()) == 1  # equal but for what was measured
    with file.open("a") as out:
        out.write('{"key": "cut sho')
    assert predict_all(runs, calibration, workers=1, cache=tmp_path) == first
    assert [p.id for p in first] == ["TEST-0001", "TEST-0002"]


def test_a_refused_strategy_is_a_status(catalog: Catalog) -> None:
    found = predict(load(catalog, heads="17", hidden="2040", head_dim="120"), catalog.calibration("default"))
    assert found.status == "invalid"
    assert "num_heads" in found.message


def test_spearman() -> None:
    assert spearman(np.array([1.0, 2, 3]), np.array([10.0, 20, 30])) == pytest.approx(1)
    assert spearman(np.array([1.0, 2, 2, 3]), np.array([4.0, 3, 3, 1])) == pytest.approx(-1)


def test_board(catalog: Catalog) -> None:
    scored = []
    for number, (measured, predicted) in enumerate([(1.0, 1.1), (2.0, 1.8), (4.0, 4.0), (8.0, 12.0)]):
        run = load(catalog, id=f"SRC-{number:04d}", step_time_s=str(measured))
        scored.append(Scored(run, Prediction(run.row.id, "ok", predicted), 0.9 * predicted, 1.1 * predicted))
    refused = load(catalog, id="SRC-0009", step_time_s="1")
    scored.append(Scored(refused, Prediction(refused.row.id, "invalid", message="strategy.tp: no.")))
    (line,) = board(scored, [])
    assert (line.rows, line.scored) == (5, 4)
    assert line.mape == pytest.approx((10 + 10 + 0 + 50) / 4)
    assert line.worst == pytest.approx(50)
    assert line.spearman == pytest.approx(1)
    assert line.regret == pytest.approx(0)
    assert line.coverage == pytest.approx(50)  # 1.0 and 8.0 lie outside
    assert sum(line.skipped.values()) == 1


def test_only_configurations_of_one_job_are_ranked(catalog: Catalog) -> None:
    """More devices or a smaller batch make a step shorter; that says nothing of how to choose a strategy."""
    jobs = {
        "a": {"gpus": "16", "gbs": "128"},
        "b": {"gpus": "32", "gbs": "128"},
        "c": {"gpus": "16", "gbs": "64"},
    }
    scored = []
    for number, (name, mbs) in enumerate((name, mbs) for name in jobs for mbs in ("1", "2", "4", "8")):
        measured = {"a": 9.0, "b": 4.0, "c": 3.0}[name] + number % 4
        predicted = 20.0 - measured if name == "a" else measured  # the order of one job is upside down
        run = load(catalog, id=f"SRC-{number:04d}", mbs=mbs, step_time_s=str(measured), **jobs[name])
        scored.append(Scored(run, Prediction(run.row.id, "ok", predicted)))
    (line,) = board(scored, [])
    assert line.spearman == pytest.approx((-1 + 1 + 1) / 3)
    assert line.regret == pytest.approx(100 * (12.0 / 9.0 - 1) / 3)


def test_files_with_few_columns_are_read(catalog: Catalog, tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("id,model,gpu,gpus,mbs,precision\nA-1,ResNet-50,A100,1,64,tf32\nA-2,Odd,A100,1,64,tf32\n")
    report = validate_runs(path, catalog=catalog, workers=1)
    out = tmp_path / "out.csv"
    report.write(out)
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert tuple(rows[0]) == COLUMNS
    assert [row["status"] for row in rows] == ["ok", "skipped"]
    assert float(rows[0]["low_s"]) < float(rows[0]["predicted_step_time_s"]) < float(rows[0]["high_s"])
    assert "no generator" in rows[1]["message"]


def test_fit_finds_the_parameters_that_made_the_times(catalog: Catalog) -> None:
    prior = catalog.calibration("default")
    device = prior.device["a100-80gb"]
    value = device["gemm_efficiency_matrix"]
    slower = value.model_copy(update={"value": 0.8 * value.value, "low": None, "high": None})
    changed = prior.model_copy(
        update={
            "device": {**prior.device, "a100-80gb": {**device, "gemm_efficiency_matrix": slower}},
        }
    )
    sizes = [(hidden, batch) for hidden in ("2048", "4096", "6144") for batch in ("8", "16", "32", "64")]
    runs = [
        load(catalog, id=f"SRC-{i:04d}", hidden=h, gbs=b, mbs="8", tp="1", pp="1", gpus="1", layers="4")
        for i, (h, b) in enumerate(sizes)
    ]
    truth = {run.row.id: predict(run, changed).step_time_s for run in runs}
    measured = [
        load_run(Row({**run.row.cells, "step_time_s": repr(truth[run.row.id])}), catalog) for run in runs
    ]
    simulated = {run.row.id: float(predict(run, prior).step_time_s or 0) for run in measured}
    fitted = fit_runs(make_terms(measured, simulated, prior), prior)
    found = fitted.calibration.value("device", "a100-80gb", "gemm_efficiency_matrix")
    assert found == pytest.approx(slower.value, rel=0.05)
    found_times = [predict(run, fitted.calibration).step_time_s for run in measured]
    assert found_times == pytest.approx([truth[run.row.id] for run in runs], rel=0.04)


def test_what_nobody_measured_gets_the_middle_of_its_population(catalog: Catalog) -> None:
    """Three frameworks that move 1.5, 2 and 2.5 times the data: a fourth is expected between them."""
    prior = prior_of(catalog.calibration("default"))
    frameworks = {"PyTorch": 1.5, "llm-foundry": 2.0, "OneFlow": 2.5}
    terms = []
    for framework, traffic in frameworks.items():
        made = [
            load(catalog, id=f"{framework}-{i}", framework=framework, hidden="2048", gbs=b, mbs=b, tp="1",
                 pp="1", gpus="1", layers="2", recompute="none", step_time_s="1.0")
            for i, b in enumerate(("4", "6", "8", "10", "12", "14", "16", "18", "20", "24"))
        ]  # fmt: skip
        own = {**prior.framework["default"], "elementwise_traffic": Parameter(value=traffic, source="test")}
        truth = prior.model_copy(update={"framework": {"default": own}})
        for term in make_terms(made, dict.fromkeys((run.row.id for run in made), 1.0), prior):
            seconds = term.shape.seconds(truth) + term.other(truth)
            terms.append(replace(term, fixed_s=0.0, run=replace(term.run, measured_s=seconds)))
    fitted = fit_runs(terms, prior, iterations=30).calibration
    found = {
        key: parameters["elementwise_traffic"].value
        for key, parameters in fitted.framework.items()
        if "elementwise_traffic" in parameters
    }
    assert found["pytorch"] < found["default"] < found["oneflow"]
    assert fitted.framework["default"]["elementwise_traffic"].value > 1.2 * prior.value(
        "framework", "default", "elementwise_traffic"
    )
    low, high = (fitted.framework["default"]["elementwise_traffic"].at(end) for end in ("low", "high"))
    assert high / low > 1.5  # one that nobody has seen may be anywhere among them


def test_interval_widths_follow_the_residuals() -> None:
    generator = np.random.default_rng(1)
    factors = {**dict.fromkeys(TERMS, 0.0), "own": 1.0}
    errors = generator.normal(0.0, 0.1, 4000)
    found = fit_spread([(factors, float(error), 1.0) for error in errors])
    assert found["own"] == pytest.approx(0.1, rel=0.05)
    outliers = [(factors, float(error) * (10 if i < 400 else 1), 1.0) for i, error in enumerate(errors)]
    own = own_spread(outliers, found)  # a quantile: a tenth of wild rows hardly moves it
    assert own == pytest.approx(0.1, rel=0.25)


def test_interval_widens_with_what_is_assumed(catalog: Catalog) -> None:
    calibration = catalog.calibration("default")
    prediction = Prediction("a", "ok", 1.0, {"compute_s": 1.0})
    known, guessed = (interval(prediction, names, calibration) for names in ((), ("mbs", "shard")))
    assert known is not None
    assert guessed is not None
    assert guessed[0] < known[0] < 1.0 < known[1] < guessed[1]


def test_intervals_hold_as_much_on_every_chip(catalog: Catalog) -> None:
    """Rows of one framework scatter more on one chip: its intervals are wider, and each holds 80 %."""
    default = catalog.calibration("default")
    same = {"framework": "Megatron-Bridge", "step_time_s": "1.0"}
    runs = [load(catalog, id=f"A-{i}", gpu=("A100", "H100")[i % 2], **same) for i in range(100)]
    predictions = [Prediction(run.row.id, "ok", 1.0, {"compute_s": 1.0}) for run in runs]
    terms = make_terms(runs, {run.row.id: 1.0 for run in runs}, default)
    generator = np.random.default_rng(2)
    scatter = [0.1 if term.shape.device.name.startswith("h100") else 0.03 for term in terms]
    residuals = [
        Residual(term, float(generator.normal(0, size))) for term, size in zip(terms, scatter, strict=True)
    ]
    bare = default.model_copy(
        update={"device": {"default": default.device["default"]}, "fitted_sources": ("A",)}
    )
    unfitted = RunFit([], Fit(np.zeros(0), np.zeros(0), 0.0), [], bare)
    fitted = with_spread(unfitted, residuals, [], residuals, predictions).calibration
    for gpu in ("h100-80gb", "a100-80gb"):
        inside = []
        for residual, prediction in zip(residuals, predictions, strict=True):
            if residual.term.shape.device.name == gpu:
                mine = framework_calibration(fitted, residual.term.shape.framework)
                assumed = residual.term.run.assumed
                low, high = interval(prediction, assumed, mine, gpu, source="A") or (1.0, 1.0)
                inside.append(low <= math.exp(residual.log_ratio) <= high)
        assert 0.75 <= np.mean(inside) <= 0.85
    factors = [fitted.value("device", gpu, "spread_factor") for gpu in ("h100-80gb", "a100-80gb")]
    assert factors[0] > 2 * factors[1]


def test_intervals_are_wider_for_sources_that_no_fit_saw(catalog: Catalog) -> None:
    """Rows of two sources scatter by 3 % around means 20 % apart: each alone says little of the other."""
    default = catalog.calibration("default")
    same = {"framework": "Megatron-Bridge", "step_time_s": "1.0", "gpu": "H100"}
    runs = [load(catalog, id=f"{'AB'[i % 2]}-{i}", **same) for i in range(200)]
    predictions = [Prediction(run.row.id, "ok", 1.0, {"compute_s": 1.0}) for run in runs]
    terms = make_terms(runs, {run.row.id: 1.0 for run in runs}, default)
    generator = np.random.default_rng(3)
    folds = [Residual(term, float(generator.normal(0, 0.03))) for term in terms]
    means = {"A": 0.1, "B": -0.1}
    sources = [replace(each, log_ratio=each.log_ratio + means[each.group]) for each in folds]
    sections = {"device": {"default": default.device["default"]}, "fitted_sources": ("A", "B")}
    unfitted = RunFit([], Fit(np.zeros(0), np.zeros(0), 0.0), [], default.model_copy(update=sections))
    fitted = with_spread(unfitted, folds, sources, folds, predictions).calibration
    mine = framework_calibration(fitted, terms[0].shape.framework)
    known, new = (
        interval(predictions[0], terms[0].run.assumed, mine, "h100-80gb", source=name) or (1.0, 1.0)
        for name in ("A", "C")
    )
    inside = [
        [low <= math.exp(each.log_ratio) <= high for each in found]
        for found, (low, high) in ((folds, known), (sources, new))
    ]
    assert new[1] > 1.08 > known[1]
    assert all(0.75 <= np.mean(each) <= 0.86 for each in inside)


def test_kernels_of_all_runs_at_once_take_what_each_takes(catalog: Catalog) -> None:
    calibration = catalog.calibration("default")
    runs = [
        load(catalog),
        load(catalog, id="B-1", recompute="selective", tp="4", hidden="1024", framework="PyTorch", mbs="1"),
        load(
            catalog, id="B-2", model="ResNet-50", family="cnn", tp="1", pp="1", gpu="V100", framework="MXNet"
        ),
        load(catalog, id="B-3", precision="fp8", gpu="H100", framework="NeMo 24.07", recompute="none"),
    ]
    runs = [load_run(Row({**run.row.cells, "step_time_s": "1.0"}), catalog) for run in runs]
    terms = make_terms(runs, {run.row.id: 1.0 for run in runs}, calibration)
    own = {t.shape.framework: framework_calibration(calibration, t.shape.framework) for t in terms}
    together = Stack([term.shape for term in terms]).seconds(own)
    alone = [term.shape.seconds(own[term.shape.framework]) for term in terms]
    assert together == pytest.approx(alone, rel=1e-12)


def test_a_fit_from_scratch_forgets_the_one_before_and_reads_back(catalog: Catalog, tmp_path: Path) -> None:
    default = catalog.calibration("default")
    assert any(p.source.startswith(SOURCE) for p in default.device["a100-80gb"].values())
    for bare in (without_fits(default), prior_of(default)):
        assert not any(p.source.startswith(SOURCE) for t in bare.device.values() for p in t.values())
    runs = [
        load(catalog, id=f"{source}-{i}", hidden=h, gbs="16", mbs="2", tp="1", pp="1", gpus="1", layers="2",
             step_time_s=seconds, framework=framework)
        for source, framework in (("ONE", "PyTorch"), ("TWO", "llm-foundry"))
        for i, (h, seconds) in enumerate(
            [("1024", ".1"), ("2048", ".3"), ("3072", ".6"), ("4096", "1."), ("1536", ".2"), ("2560", ".4")]
        )
    ]  # fmt: skip
    found = fit_rounds(runs, default, rounds=1, scratch=True, workers=1)
    again = fit_rounds(runs, found.calibration, rounds=1, scratch=True, workers=1)
    assert calibration_yaml(again.calibration) == calibration_yaml(found.calibration)
    assert set(found.framework_mape) == {"ONE", "TWO"}
    path = tmp_path / "own.yaml"
    path.write_text(calibration_yaml(found.calibration))
    read = Catalog([tmp_path]).calibration(str(path))
    for section in ("device", "framework", "link", "library"):
        for key, parameters in getattr(found.calibration, section).items():
            for name, parameter in parameters.items():
                assert getattr(read, section)[key][name].value == pytest.approx(parameter.value, rel=1e-3)


def test_chunks_are_the_frameworks_where_a_row_leaves_them_open(catalog: Catalog) -> None:
    bridge = {"framework": "Megatron-Bridge, container 26.02", "pp": "4", "layers": "24", "vpp": ""}
    run = load(catalog, **bridge)
    assert (run.strategy.virtual_stages, run.strategy.schedule) == (6, "interleaved")
    assert "vpp" in run.assumed
    assert load(catalog, **bridge | {"vpp": "2"}).strategy.virtual_stages == 2
    assert load(catalog, vpp="").strategy.virtual_stages == 1
