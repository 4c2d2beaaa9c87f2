"""One small real recording, and the prediction of it. Needs torch (``make test-record``)."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sim.cli.main import main  # noqa: E402
from sim.errors import InputError  # noqa: E402
from sim.record.launch import RecordingFailed, _free_port, run_ranks  # noqa: E402
from sim.record.network import _ALLOWED as ALLOWED  # noqa: E402
from sim.record.network import EmulatedHosts, remove_stale, require_emulation  # noqa: E402
from sim.record.recorder import Request  # noqa: E402


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
    assert main(["record", "--workload", "magic", "-o", str(tmp_path)]) == 2
    assert "--workload: must be one of mlp, cnn, transformer" in capsys.readouterr().err.splitlines()[-1]


def test_a_failing_rank_says_why_in_one_line() -> None:
    def fail(rank: int, ranks: int) -> None:
        if rank == 1:
            raise RuntimeError("no more beans\nand a long story")

    def end(rank: int, ranks: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RecordingFailed, match=r"^rank 1: RuntimeError: no more beans$"):
        run_ranks(fail, 2)
    with pytest.raises(RecordingFailed, match="was ended by SIGKILL"):
        run_ranks(end, 2)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"rules": ("bsp",)}, "--rule"),
        ({"hooks": ("powersgd0",)}, "--hook"),
        ({"rate_mbit": 0.0}, "--link"),
        ({"buckets": (float("nan"),)}, "--bucket"),
        ({"slow_link": (1, 100.0)}, "--slow-link"),
        ({"slow_rank": (1, 2.0)}, "--slow-rank"),
        ({"slow_rank": (1, -2.0), "emulate": True}, "--slow-rank"),
        ({"slow_rank": (1, 2.0), "emulate": True, "strategies": ("fsdp",)}, "--slow-rank"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=rf"^{named}: must"):
        Request(**({"workload": "mlp", "ranks": 2, "strategies": ("ddp",)} | options))


@pytest.mark.skipif(not can_emulate(), reason="hosts cannot be emulated here")
def test_emulated_hosts_use_cubic_and_leave_the_machine_as_it_was() -> None:
    before = ALLOWED.read_text()
    with EmulatedHosts(2, 100, 100) as hosts:
        command = ["ip", "netns", "exec", hosts.name(0), "cat", "/proc/sys/net/ipv4/tcp_congestion_control"]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "cubic"
    assert ALLOWED.read_text() == before


def test_hosts_that_cannot_be_emulated_are_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["record", "--ranks", "2", "--hosts", "2", "-o", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "error: --hosts: must run where hosts can be emulated. Got no root. Leave out --hosts."
    assert not list(tmp_path.iterdir())


def test_ranks_meet_at_a_port_that_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        drawn = iter([taken.getsockname()[1], 0])
        monkeypatch.setattr(random.SystemRandom, "randint", lambda *_: next(drawn))
        assert _free_port() == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_emulate(), reason="hosts cannot be emulated here")
def test_the_commands_of_the_page_run_as_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "how-to" / "record_and_calibrate.md"
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    commands = [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]
    assert [command[0] for command in commands] == ["record", "calibrate", "validate"] * 2
    for command in commands:
        assert main(command) == 0
    assert (tmp_path / "emulated-predicted" / "ddp.csv").exists()


def test_a_real_time_rank_on_one_core_ends() -> None:
    """Ending the group once left its store's thread spinning before the rank that it waited for."""
    core = max(os.sched_getaffinity(0))
    assert run_ranks(lambda rank, ranks: rank + ranks, 1, cores=(core,), real_time=True, timeout=60) == 1


HOSTS = """
import time
from sim.record.clock import ending_orderly
from sim.record.network import EmulatedHosts
with ending_orderly(), EmulatedHosts(2, 100, 100):
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(not can_emulate(), reason="hosts cannot be emulated here")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_ended_recording_leaves_no_hosts_behind(number: signal.Signals) -> None:
    """What a killed one could not put away goes with the next recording."""
    command = [sys.executable, "-c", HOSTS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        mine = [path for path in Path("/run/netns").iterdir() if f"clusterloom{running.pid}h" in path.name]
        assert len(mine) == 2
        running.send_signal(number)
        running.wait(30)
    if number == signal.SIGKILL:
        remove_stale()
    assert not any(path.exists() for path in mine)
