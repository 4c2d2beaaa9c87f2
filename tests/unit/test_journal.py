"""The journal: what survives what."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sim.errors import InputError
from sim.sweep.journal import FILE_NAME, Journal, read_entries


def entry(number: int) -> dict[str, object]:
    return {"result": {"status": "ok", "step_time_s": float(number)}, "wall_s": 0.1}


def fill(folder: Path, count: int) -> Path:
    with Journal(folder, "1.0") as journal:
        for number in range(count):
            journal.append(f"k{number}", entry(number))
    return folder / FILE_NAME


def test_what_was_written_is_read_back(tmp_path: Path):
    fill(tmp_path, 3)
    with Journal(tmp_path, "1.0") as journal:
        assert list(journal.entries) == ["k0", "k1", "k2"]
        assert journal.entries["k2"]["result"] == {"status": "ok", "step_time_s": 2.0}
        assert not journal.notices
    assert dict(read_entries(tmp_path)).keys() == {"k0", "k1", "k2"}


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_half_written_last_line_is_reported_and_costs_only_itself(tmp_path: Path, cut: int):
    path = fill(tmp_path, 3)
    path.write_bytes(path.read_bytes()[:-cut])
    with Journal(tmp_path, "1.0") as journal:
        assert list(journal.entries) == ["k0", "k1"]
        assert "half-written" in journal.notices[0]
        journal.append("k9", entry(9))
    with Journal(tmp_path, "1.0") as journal:
        assert list(journal.entries) == ["k0", "k1", "k9"]
        assert not journal.notices


@pytest.mark.parametrize("left", [0, 5, 30])
def test_a_half_written_first_line_is_a_new_store(tmp_path: Path, left: int):
    path = fill(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:left])
    with Journal(tmp_path, "1.0") as journal:
        journal.append("k0", entry(0))
    with Journal(tmp_path, "1.0") as journal:
        assert list(journal.entries) == ["k0"]


def test_a_damaged_line_in_the_middle_is_computed_again(tmp_path: Path):
    path = fill(tmp_path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = b"\x00garbage\n"
    path.write_bytes(b"".join(lines))
    with Journal(tmp_path, "1.0") as journal:
        assert list(journal.entries) == ["k0", "k2"]
        assert ":3: damaged line" in journal.notices[0]


def test_a_store_of_another_version_is_refused_and_left_alone(tmp_path: Path):
    path = fill(tmp_path, 2)
    before = path.read_bytes()
    with pytest.raises(
        InputError, match=r"written by clusterloom 2\.0.*written by 1\.0.*Nothing was changed"
    ):
        Journal(tmp_path, "2.0")
    assert path.read_bytes() == before
    with Journal(tmp_path, "1.0") as journal:
        assert len(journal.entries) == 2


def test_a_file_that_is_no_store_is_left_alone(tmp_path: Path):
    (tmp_path / FILE_NAME).write_text("my notes\n")
    with pytest.raises(InputError, match="be a clusterloom store"):
        Journal(tmp_path, "1.0")
    (tmp_path / FILE_NAME).write_text("my notes without newline")
    with pytest.raises(InputError, match="be a clusterloom store"):
        Journal(tmp_path, "1.0")
    assert (tmp_path / FILE_NAME).read_text() == "my notes without newline"


def test_two_writers_are_refused(tmp_path: Path):
    with Journal(tmp_path, "1.0"), pytest.raises(InputError, match="in use by another sweep"):
        Journal(tmp_path, "1.0")
    Journal(tmp_path, "1.0").close()


def test_a_full_disk_keeps_the_finished_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        if b'"k2"' in data:
            return real(descriptor, data[:10])  # a nearly full disk takes a part
        if len(data) < 60 and data[:1] != b"{":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    def nothing(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Journal(tmp_path, "1.0") as journal:
        journal.append("k0", entry(0))
        journal.append("k1", entry(1))
        monkeypatch.setattr(os, "write", nothing)
        with pytest.raises(InputError, match=r"No space left on device.*2 finished points kept"):
            journal.append("k2", entry(2))
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(InputError, match="No space left"):
            journal.append("k2", {"x": 1})
        monkeypatch.setattr(os, "write", real)
    with Journal(tmp_path, "1.0") as journal:
        assert list(journal.entries) == ["k0", "k1"]
        assert not journal.notices


def test_a_really_full_file_system(tmp_path: Path):
    """A file size limit makes the kernel refuse bytes in the middle of a line, as a full disk does."""
    program = (
        "import resource, sys\n"
        "from sim.errors import InputError\n"
        "from sim.sweep.journal import Journal\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "journal = Journal(sys.argv[1], '1.0')\n"
        "try:\n"
        "    for n in range(1000): journal.append(f'k{n}', {'result': {'status': 'ok'}})\n"
        "except InputError as error: print(len(journal.entries)); print(error, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    count = int(done.stdout)
    assert 5 < count < 40
    assert f"{count} finished points kept" in done.stderr
    with Journal(tmp_path, "1.0") as journal:
        assert len(journal.entries) == count
        assert not journal.notices


_CHILD = """
import os, sys
from sim.sweep.plan import plan_axes
from sim.sweep.runner import run
from sim.sweep.table import write_parquet
axes = {"strategy.tp": [1, 2, 3, 4], "seed": list(range(10))}
plan = plan_axes({"workload": "bert-base", "cluster": "v100-dlperf"}, axes, simulate="tests.fakes:simulate")
result = run(plan, num_workers=2, store=sys.argv[1])
write_parquet(result.table, sys.argv[2])
print(result.computed, result.resumed, len(result.table), result.table["step_time_s"].sum())
"""


def test_killed_with_signal_9_and_resumed(tmp_path: Path):
    """A real sweep process with worker processes is killed; the next run computes only what is missing."""
    log = tmp_path / "log"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]),
        "CLUSTERLOOM_TEST_LOG": str(log),
        "CLUSTERLOOM_TEST_SLEEP": "0.05",
    }
    command = [sys.executable, "-c", _CHILD, str(tmp_path / "store"), str(tmp_path / "resumed")]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    journal = tmp_path / "store" / FILE_NAME
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if journal.exists() and journal.read_bytes().count(b"\n") > 8:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = dict(read_entries(tmp_path / "store"))
    assert 8 <= len(kept) < 40
    with journal.open("ab") as file:  # what a kill in the middle of a write leaves
        file.write(b'{"key":"half')
    time.sleep(0.3)  # workers of the killed process end by themselves
    log.unlink()

    environment["CLUSTERLOOM_TEST_SLEEP"] = "0"
    second = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    computed, resumed, rows, total = second.stdout.split()
    assert (int(computed), int(resumed), int(rows)) == (40 - len(kept), len(kept), 40)
    assert float(total) == pytest.approx(
        sum(1 / tp + 0.1 * seed for tp in (1, 2, 3, 4) for seed in range(10))
    )
    assert len(log.read_text().splitlines()) == 40 - len(kept)
    lines = journal.read_text().splitlines()
    assert all(json.loads(line) for line in lines)
    assert len(lines) == 41
    whole = [*command[:3], str(tmp_path / "other store"), str(tmp_path / "whole")]
    subprocess.run(whole, env=environment, check=True, capture_output=True)
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "resumed").read_bytes()
