"""Every refusal that concerns a file says where in it; names that are unknown lead to those that are."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim import origin, yamlio
from sim.cli.main import main
from sim.errors import InputError

SCENARIO = "schema: 1\nworkload: resnet50\ncluster: dgx-a100\n"
SWEEP = "schema: 1\nname: s\nworkload: resnet50\ncluster: dgx-a100\n"
CLUSTER = "schema: 1\nname: c\nfabric: {kind: single_switch, latency: 1us}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{SCENARIO}strategy:\n  dp: 8\n  tp: yes\n", "must be a whole number. Got 'yes'. (f.yaml:6)"),
        (f"{SCENARIO}strategy: {{tp: true}}\n", "must not be true or false. Got true. (f.yaml:4)"),
        (f"{SCENARIO}overrides:\n  seed: 1\n  cluster.num_hosts: -4\n", "Got -4. (f.yaml:6)"),
        (f"{SCENARIO}overrides:\n  foo.bar: 3\n", "must be a part of a scenario. Try fold. (f.yaml:5)"),
        (f"{SCENARIO}calibration:\n  - default\n  - nope\n", "(f.yaml:6)"),
        (f"{SCENARIO}convergence: none.csv\n", "(f.yaml:4)"),
        ("schema: 1\ncluster: dgx-a100\nworkload: resnet51\n", "Got 'resnet51'. Try resnet50. (f.yaml:3)"),
        (f"{SCENARIO}strategy:\n  tp: 3\n", "Try 1. (f.yaml:5)"),
        (f"{SWEEP}axes:\n  strategy.tpp:\n    - 1\n", "It stops every point of the sweep. (f.yaml:6)"),
        (f"{SWEEP}axes:\n  strategy.tp:\n    - 1\n    - yes\n", "(f.yaml:8)"),
        (f"{SWEEP}axes: {{strategy.tp: [1]}}\nwhere: foo<3\n", "where: must name a column"),
        (f"{SWEEP}axes: {{strategy.tp: [1]}}\nobjective: foo\n", "and fields that vary. (f.yaml:6)"),
        (f"{CLUSTER}num_hosts: 2\nhost: nope\n", "cluster.host: must be the name of a known host"),
        (f"{CLUSTER}num_hosts: 2\nhost: nope\n", "(f.yaml:5)"),
        (f"{CLUSTER}hosts:\n  - {{host: dgx-a100, count: 1}}\n  - {{host: nope, count: 1}}\n", "(f.yaml:6)"),
    ],
)  # fmt: skip
def test_check_names_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, said: str
):
    monkeypatch.chdir(tmp_path)
    Path("f.yaml").write_text(text)
    assert main(["check", "f.yaml"]) in (2, 3)
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said", "end"),
    [
        (["run", "f.yaml"], "strategy.tp: must be 1", "(f.yaml:5)"),
        (["run", "f.yaml", "--set", "strategy.tp=5"], "strategy.tp: must be 1", "Got 5. Try 1."),
        (["run", "resnet50", "./c.yaml"], "cluster.num_hosts: must be at most", "(c.yaml:4)"),
        (["run", "resnet50", "dgx-a100", "--strategy", "./p.yaml"], "strategy.tp: must be 1", "(p.yaml:3)"),
        (["run", "./w.yaml", "dgx-a100"], "workload.measured_on: must be the name of a known", "(w.yaml:9)"),
    ],
)
def test_run_names_the_line_of_what_a_file_says_and_of_nothing_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
    end: str,
):
    monkeypatch.chdir(tmp_path)
    torus = "{kind: torus, dims: [2, 2], latency: 1us}"
    Path("f.yaml").write_text(f"{SCENARIO}strategy:\n  tp: 3\n")
    Path("c.yaml").write_text(f"schema: 1\nname: c\nhost: dgx-a100\nnum_hosts: 9\nfabric: {torus}\n")
    Path("p.yaml").write_text("schema: 1\nname: p\ntp: 3\n")
    Path("w.yaml").write_text(
        "schema: 1\nname: w\ngenerator: transformer\nnum_layers: 2\nhidden: 64\nnum_heads: 4\n"
        "vocabulary: 100\nsequence_length: 16\nmeasured_on: zzz\nbatch_per_device: 4\n"
    )
    assert main(arguments) in (2, 3)
    error = capsys.readouterr().err.rstrip()
    assert said in error
    assert error.endswith(end)


def test_of_several_places_the_one_with_the_value_is_meant():
    points = "points:\n  - {strategy.tp: 2}\n  - {strategy.tp: 3}\n"
    text = f"{points}grids:\n  - axes:\n      strategy.pp:\n        - 1\n        - 7\n"
    document = yamlio.loads(text, "f")
    assert origin.where_is(document, "strategy.tp", 3) == "f:3"
    assert origin.where_is(document, "strategy.pp", 7) == "f:8"
    assert origin.where_is(document, "strategy.dp") == "f:1"
    assert origin.where_is(document, "strategy.tp", 3, given={"strategy"}) == ""
    assert origin.where_is(document, "--where") == ""


def test_an_error_that_knows_its_place_keeps_it():
    document = yamlio.loads("a: 1\n", "f")
    with pytest.raises(InputError) as caught, origin.located(document):
        raise InputError("a", "be known", where="g:7")
    assert caught.value.where == "g:7"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--strategy", "tp=8"], "--set strategy.tp=8."),
        (["--strategy", "strategy.tp=8"], "--set strategy.tp=8."),
        (["--strategy", "PowerSGD"], "--set strategy.compression=powersgd."),
        (["--strategy", "tp"], "--set strategy.tp=VALUE."),
        (["--strategy", "megatron"], "megatron_3d, megatron_interleaved, megatron_sp or megatron_tp."),
        (["--strategy", "ddp"], "Try ddp_fp16 or pytorch_ddp."),
        (["--strategy", "pytorch_dpp"], "Try pytorch_ddp."),
        (["--strategy", "qqqqq"], "e.g. --set strategy.tp=8."),
    ],
)
def test_a_strategy_that_is_no_preset_says_what_is_accepted(
    capsys: pytest.CaptureFixture[str], arguments: list[str], hint: str
):
    assert main(["run", "resnet50", "dgx-1", *arguments]) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["list", "models"], "Try workloads."),
        (["list", "gpus"], "Try devices."),
        (["list", "presets"], "Try strategies."),
        (["show", "powersgd"], "strategy.compression=powersgd"),
        (["show", "bert"], "Try bert-base, bert-large."),
        (["sweep", "demo", "--objective", "speed"], "samples_per_s, tokens_per_s_per_device, mfu"),
        (["sweep", "demo", "--best", "1", "--objective", "speed"], "samples_per_s, tokens_per_s_per_device"),
    ],
)
def test_other_words_lead_to_ours(capsys: pytest.CaptureFixture[str], arguments: list[str], hint: str):
    assert main(arguments) == 2
    assert hint in capsys.readouterr().err
