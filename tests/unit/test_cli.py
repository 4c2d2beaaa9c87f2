"""The command line: exit codes, JSON, one-line errors, laziness."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sim.cli.main import COMMANDS, main

SCENARIO = """
schema: 1
name: job
workload: resnet50
cluster: v100-dlperf
strategy: {dp: 8, collective: ring}
overrides: {cluster.num_hosts: 1}
"""
SWEEP = """
schema: 1
name: small
workload: resnet50
cluster: v100-dlperf
axes:
  strategy.dp: [1, 8]
  strategy.overlap: [true, false]
"""


class Outcome:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Outcome:
        code = main(list(arguments))
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


def write(path: str, text: str) -> str:
    Path(path).write_text(text)
    return path


# -- the frame -------------------------------------------------------------------------------------


def test_help_names_the_commands_and_loads_nothing_heavy():
    program = (
        "import sys\nfrom sim.cli.main import main\ncode = main(['--help'])\n"
        "heavy = {'numpy', 'pandas', 'pydantic', 'simpy', 'networkx', 'matplotlib', 'rich', 'yaml'}\n"
        "print(sorted(heavy & set(sys.modules)))\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    *text, loaded = done.stdout.splitlines()
    assert loaded == "[]"
    for command in COMMANDS:
        assert any(line.strip().startswith(command) for line in text)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_has_json(cli, command: str):
    done = cli(command, "--help")
    assert done.code == 0
    assert "--json" in done.out or "Commands:" in done.out


def test_version_and_no_arguments(cli):
    assert cli("--version").out.startswith("clusterloom ")
    assert "Usage" in cli().out


# -- bad input: one line, the right code, no traceback ----------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["runn"], 2, "Try run."),
        (["--bogus"], 2, "--bogus"),
        (["run"], 2, "workload"),
        (["run", "resnet50"], 2, "CLUSTER: must be given"),
        (["run", "resnet5", "dgx-1"], 2, "Try resnet50."),
        (["run", "resnet50", "dgx1"], 2, "Try dgx-1."),
        (["run", "resnet50", "dgx-1", "--strategy", "pytorch_dpp"], 2, "Try pytorch_ddp."),
        (["run", "resnet50", "dgx-1", "--set", "strategy.tpp=2"], 2, "strategy.tpp"),
        (["run", "resnet50", "dgx-1", "--set", "strategy.tp=0"], 2, "at least 1"),
        (["run", "resnet50", "dgx-1", "--set", "strategy.tp=-3"], 2, "at least 1"),
        (["run", "resnet50", "dgx-1", "--set", "strategy.bucket_size=25Mibs"], 2, "strategy.bucket_size"),
        (["run", "resnet50", "dgx-1", "--set", "strategy.bucket_size=25"], 2, "strategy.bucket_size"),
        (["run", "resnet50", "dgx-1", "--set", "strategy.tp"], 2, "FIELD=VALUE"),
        (["run", "resnet50", "dgx-1", "--set", "workload.batch_per_device=0"], 2, "batch_per_device"),
        (["run", "resnet50", "dgx-1", "--num-hosts", "0"], 2, "--num-hosts"),
        (["run", "resnet50", "dgx-1", "--jitter", "-1"], 2, "jitter"),
        (["run", "resnet50", "dgx-1", "--fidelity", "exact"], 2, "fidelity"),
        (["run", "resnet50", "dgx-1", "--slow-rank", "3:1.2"], 2, "RANK=FACTOR"),
        (["run", "resnet50", "dgx-1", "--calibration", "nope"], 2, "calibration"),
        (["run", "resnet50", "dgx-1", "--set", "tp=2"], 2, "Try strategy.tp."),
        (
            ["run", "resnet50", "dgx-1", "--set", "workload.layers.0.weight_bytes=3"],
            2,
            "generator cnn:resnet50",
        ),
        (["run", "resnet50", "dgx-1", "--set", "cluster.host_types=[]"], 2, "cluster.host_types"),
        (["run", "resnet50", "dgx-1", "--set", "cluster.host.nics.0.latency=1e30s"], 2, "latency"),
        (["run", "missing.yaml"], 2, "missing.yaml"),
        (["run", "gpt3-175b", "dgx-a100", "--set", "strategy.tp=7"], 3, "strategy.tp"),
        (["run", "resnet50", "dgx-1", "--set", "strategy.dp=1000"], 3, "strategy.dp"),
        (["run", "gpt3-175b", "dgx-a100", "--set", "strategy.dp=1"], 3, "missing"),
        (["show", "resnet5"], 2, "Try resnet50."),
        (["list", "devises"], 2, "Try devices."),
        (["show", "dimension"], 2, "D3 (synchronization)"),
        (["show", "dimension", "syncronization"], 2, "synchronization"),
        (["show", "resnet50", "bert"], 2, "one name"),
        (["sweep", "demoo"], 2, "Try demo."),
        (["sweep", "demo", "--engine", "spark"], 2, "local, dask, ray"),
        (["sweep", "demo", "--where", "mfuu<3"], 2, "mfu"),
        (["compare", "a.json", "b.json"], 2, "a.json"),
        (["check", "nothing.yaml"], 2, ""),
    ],
)
def test_bad_input(cli, arguments: list[str], code: int, part: str):
    done = cli(*arguments)
    assert done.code == code
    assert "Traceback" not in done.err + done.out
    lines = done.err.splitlines()
    assert len(lines) == (0 if arguments[0] == "check" else 1)
    assert part in done.err


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("schema: 1\nname: x\nworkload: [a\n", "x.yaml:"),
        ("schema: 1\nname: x\nname: y\n", "x.yaml:3"),
        ("schema: 1\nname: x\nworkload: resnet50\n", "cluster"),
        ("schema: 1\nname: x\nworkload: resnet50\ncluster: v100-dlperf\nstrategi: {}\n", "x.yaml:5"),
        ("", "empty"),
    ],
)
def test_broken_files_name_file_and_line(cli, text: str, part: str):
    write("x.yaml", text)
    done = cli("run", "x.yaml")
    assert done.code == 2
    assert part in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--num-hosts", "0"], "--num-hosts: must be greater than or equal to 1. Got 0."),
        (["--num-hosts=x"], "--num-hosts: must be a valid integer. Got x."),
        (["--strategy", ""], "strategy: must be the name of a known strategy"),
        (["--num-hosts"], "requires an argument"),
        (["--set", "strategy.tp=2", "strategy.pp=2"], "Repeat --set before each FIELD=VALUE"),
    ],
)
def test_wrong_options_are_named_with_what_was_given(cli, option: list[str], said: str):
    done = cli("run", "resnet50", "v100-dlperf", *option)
    assert done.code == 2
    assert said in done.err
    assert len(done.err.splitlines()) == 1


def test_check_reports_every_file(cli):
    good = write("good.yaml", SCENARIO)
    bad = write("bad.yaml", SCENARIO.replace("dp: 8", "dp: eight"))
    sweep = write("sweep.yaml", SWEEP)
    done = cli("check", good, bad, sweep, "--json")
    assert done.code == 2
    reports = {report["file"]: report for report in done.json["files"]}
    assert [reports[name]["ok"] for name in (good, bad, sweep)] == [True, False, True]
    assert reports[sweep]["kind"] == "sweep"
    assert "strategy.dp" in reports[bad]["messages"][0]
    assert cli("check", good, sweep).code == 0


def test_check_accepts_the_whole_catalogue(cli, catalog):
    files = [
        str(catalog.find_file(kind, name))
        for kind in ("device", "host", "cluster", "strategy", "calibration", "sweep")
        for name in catalog.names(kind)
    ]
    files += [str(catalog.find_file("workload", name)) for name in ("resnet50", "gpt3-175b", "mixtral-8x7b")]
    done = cli("check", *files, "--json")
    bad = [report for report in done.json["files"] if not report["ok"]]
    assert not bad
    kinds = {Path(r["file"]).parent.name: r["kind"] for r in done.json["files"]}
    assert kinds == {
        "devices": "device", "hosts": "host", "clusters": "cluster", "strategies": "strategy",
        "calibrations": "calibration", "sweeps": "sweep", "models": "workload",
    }  # fmt: skip


# -- commands ----------------------------------------------------------------------------------------


def test_list(cli):
    listing = cli("list", "--json").json
    assert {"device", "host", "cluster", "workload", "strategy", "sweep", "calibration"} == set(listing)
    assert "demo" in [entry["name"] for entry in listing["sweep"]]
    assert set(cli("list", "devices", "--json").json) == {"device"}
    assert "v100-16gb" in cli("list", "devices").out


def test_show(cli):
    data = cli("show", "resnet50", "--json").json
    assert data["derived"]["num_parameters"] == pytest.approx(25.56e6, rel=0.01)
    assert data["spec"]["source"]
    text = cli("show", "a100-80gb").out
    assert "312TFLOP/s" in text.replace(" ", "")
    assert "source" in text
    cluster = cli("show", "v100-dlperf", "--num-hosts", "2", "--json")
    assert cluster.json["derived"]["num_devices"] == 16
    assert "--kind" in cluster.err
    assert "Ho et al." in cli("show", "ps_ssp").out


def test_dimensions_are_listed_and_explained(cli):
    listed = json.loads(cli("list", "dimensions", "--json").out)["dimensions"]
    for each in listed:
        shown = json.loads(cli("show", "dimension", each["id"], "--json").out)
        assert [value["name"] for value in shown["values"]] == each["values"]
    text = cli("show", "dimension", "D3").out
    assert "strategy.synchronization=ssp strategy.staleness=..." in text
    assert "a collective is a barrier" in text


def test_run_json_has_the_promised_fields_and_adds_up(cli):
    done = cli("run", "resnet50", "v100-dlperf", "--num-hosts", "1", "--set", "strategy.dp=8", "--json")
    assert done.code == 0
    data = done.json
    for name in [
        "status",
        "step_time_s",
        "samples_per_s",
        "tokens_per_s_per_device",
        "mfu",
        "num_devices",
        "peak_memory_bytes",
        "breakdown",
        "bottlenecks",
        "memory",
        "price_per_sample",
        "energy_joules_per_step",
    ]:
        assert name in data
    assert (data["status"], data["num_devices"]) == ("ok", 8)
    assert sum(data["breakdown"].values()) == pytest.approx(data["step_time_s"], rel=1e-9)
    assert sum(data["memory"].values()) == pytest.approx(data["peak_memory_bytes"])


def test_run_options_do_something(cli):
    base = ("run", "resnet50", "v100-dlperf", "--num-hosts", "1", "--json")
    plain = cli(*base).json["step_time_s"]
    assert cli(*base, "--slow-rank", "3=1.2").json["step_time_s"] > 1.1 * plain
    jittered = [cli(*base, "--jitter", "5%", "--seed", seed).json["step_time_s"] for seed in ("1", "1", "2")]
    assert jittered[0] == jittered[1] != jittered[2]
    assert cli(*base, "--fidelity", "analytic").json["fidelity"] == "analytic"
    assert cli(*base, "--strategy", "ps_bsp").json["strategy"]["state"] == "ps_dedicated"


def test_run_prints_a_card(cli):
    done = cli("run", "resnet50", "v100-dlperf", "--num-hosts", "2")
    for part in (
        "step time",
        "throughput",
        "MFU",
        "price",
        "memory",
        "critical path",
        "busiest links",
        "compute",
    ):
        assert part in done.out
    assert "16 devices" in done.out


def test_run_of_a_scenario_file_and_its_trace(cli):
    import gzip

    write("job.yaml", SCENARIO)
    done = cli("run", "job.yaml", "--trace", "out.json.gz", "--json")
    assert (done.code, done.json["num_devices"]) == (0, 8)
    trace = json.loads(gzip.decompress(Path("out.json.gz").read_bytes()))
    assert len(trace["traceEvents"]) > 100
    failed = cli("run", "job.yaml", "--trace", "no/such/folder/out.json")
    assert failed.code == 2
    assert "trace" in failed.err
    assert len(failed.err.splitlines()) == 1


def test_an_infeasible_run_still_prints_json(cli):
    done = cli("run", "gpt3-175b", "dgx-a100", "--set", "strategy.dp=1", "--json")
    assert done.code == 3
    assert done.json["status"] == "infeasible"
    assert done.json["missing_bytes"] > 0


def test_compare_adds_up(cli):
    write("ring.yaml", SCENARIO)
    write("slow.yaml", SCENARIO.replace("collective: ring", "state: ps_dedicated"))
    Path("a.json").write_text(cli("run", "ring.yaml", "--json").out)
    done = cli("compare", "a.json", "slow.yaml", "--json")
    assert done.code == 0
    data = done.json
    assert data["difference_s"] > 0
    assert sum(data["parts"].values()) == pytest.approx(data["difference_s"], rel=1e-9)
    text = cli("compare", "a.json", "slow.yaml").out
    assert "exposed_comm" in text


def test_sweep_writes_resumes_and_prints(cli):
    write("small.yaml", SWEEP)
    first = cli("sweep", "small.yaml", "--workers", "1", "--out", "out")
    assert first.code == 0
    assert "resnet50 on 8 devices of v100-dlperf" in first.out
    assert "published measurements" in first.out
    assert "4 simulated" in first.err
    for name in ("results.parquet", "pareto.png", "scaling.png", "breakdown.png", "timeline.json.gz"):
        assert (Path("out") / name).stat().st_size > 500
    table = (Path("out") / "results.parquet").read_bytes()
    again = cli("sweep", "small.yaml", "--workers", "1", "--out", "out", "--no-plots", "--json")
    assert (again.json["computed"], again.json["resumed"]) == (0, 4)
    assert len(again.json["rows"]) == 4
    assert (Path("out") / "results.parquet").read_bytes() == table


def test_sweep_exit_codes(cli):
    write("bad.yaml", SWEEP.replace("strategy.overlap: [true, false]", "strategy.tp: [0, 1]"))
    done = cli("sweep", "bad.yaml", "--workers", "1", "--no-plots")
    assert done.code == 4
    assert "strategy.tp: must be at least 1" in done.out
    write("small.yaml", SWEEP)
    found = cli("sweep", "small.yaml", "--best", "1", "--where", "peak_memory_bytes<80GB", "--workers", "1")
    assert found.code == 0
    nothing = cli("sweep", "small.yaml", "--best", "1", "--where", "peak_memory_bytes<1GB", "--workers", "1")
    assert nothing.code == 3


def test_sweep_best_json_names_the_winner_and_what_was_pruned(cli):
    write("small.yaml", SWEEP)
    data = cli(
        "sweep", "small.yaml", "--best", "1", "--objective", "samples_per_s", "--workers", "1", "--json"
    ).json
    assert len(data["rows"]) == 1
    assert data["rows"][0]["num_devices"] == 8
    assert data["pruned"] + data["computed"] == 4
    assert data["pruned"] >= 1


def test_a_store_of_another_version_is_one_line_and_kept(cli, monkeypatch: pytest.MonkeyPatch):
    import sim

    write("small.yaml", SWEEP)
    cli("sweep", "small.yaml", "--workers", "1", "--no-plots", "--store", "s")
    before = Path("s/journal.jsonl").read_bytes()
    monkeypatch.setattr(sim, "__version__", "9.9.9")
    done = cli("sweep", "small.yaml", "--workers", "1", "--no-plots", "--store", "s")
    assert done.code == 2
    assert len(done.err.splitlines()) == 1
    assert "written by clusterloom 9.9.9" in done.err
    assert Path("s/journal.jsonl").read_bytes() == before


def test_a_full_disk_is_one_line_and_keeps_what_is_done(tmp_path: Path):
    """The kernel refuses to grow files beyond a limit, as a full disk would."""
    write(str(tmp_path / "small.yaml"), SWEEP)
    program = (
        "import resource, sys\nfrom sim.cli.main import main\n"
        "if sys.argv[1] == 'full': resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))\n"
        "sys.exit(main(['sweep', 'small.yaml', '--workers', '1', '--no-plots', '--store', 's']))"
    )
    full, freed = (
        subprocess.run([sys.executable, "-c", program, mode], cwd=tmp_path, capture_output=True, text=True)
        for mode in ("full", "freed")
    )
    assert full.returncode == 2
    *progress, last = full.stderr.splitlines()
    assert all(line.startswith("small: ") for line in progress)
    assert last.startswith("error: ")
    assert "finished point" in last
    assert freed.returncode == 0
    assert "taken from the store" in freed.stderr


def test_sigterm_leaves_one_line_and_its_own_code(tmp_path: Path):
    arguments = ["sweep", "demo", "--out", str(tmp_path / "out"), "--workers", "1", "--no-plots"]
    command = [sys.executable, "-m", "sim.cli.main", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
        journal = tmp_path / "out/store/journal.jsonl"
        while not journal.is_file() or journal.read_text().count("\n") < 3:
            assert child.poll() is None
            time.sleep(0.05)
        child.terminate()
        _, errors = child.communicate(timeout=60)
    assert child.returncode == 143
    assert "finished points are kept" in errors
    assert "Traceback" not in errors


def test_an_internal_error_is_one_line_with_code_1(cli, monkeypatch: pytest.MonkeyPatch):
    import sim.analysis.simulate as module

    def broken(*_: object) -> None:
        raise RuntimeError("oops\nsecond line")

    monkeypatch.setattr(
        sys.modules[module.__name__] if hasattr(module, "__name__") else module, "simulate", broken
    )
    done = cli("run", "resnet50", "v100-dlperf")
    assert done.code == 1
    assert done.err.startswith("error: internal error: RuntimeError: oops second line")
    assert len(done.err.splitlines()) == 1
