"""The wheel in a clean environment, away from the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.packaging


def run(*command: str | Path, cwd: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the wheel; dependencies are borrowed from this one.

    A path line in a .pth file lends the libraries but not their own .pth files, so the editable install
    of this repository stays out.
    """
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin" / "python"
    site = Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    )
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "--disable-pip-version-check",
        "install",
        "--no-deps",
    ]
    run(*pip, "--force-reinstall", "--quiet", wheel, cwd=folder)
    return folder


def test_wheel_holds_one_package_with_its_data(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"sim"}
    for expected in (
        "sim/_catalog/topologies/devices/a100-80gb.yaml",
        "sim/_catalog/topologies/calibrations/default.yaml",
        "sim/_catalog/workloads/models/resnet50.yaml",
        "sim/_catalog/workloads/strategies/horovod.yaml",
    ):
        assert expected in names
    assert not [name for name in names if name.startswith("sim/_catalog/") and name.endswith(".py")]


def test_console_script_runs_from_another_folder(environment: Path, tmp_path: Path) -> None:
    where = run(environment / "bin" / "python", "-c", "import sim; print(sim.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(environment)
    command = environment / "bin" / "clusterloom"
    assert "sweep" in run(command, "--help", cwd=tmp_path)
    assert "dgx-a100" in run(command, "list", "clusters", cwd=tmp_path)


def test_a_simulation_runs_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    command = environment / "bin" / "clusterloom"
    text = run(
        command, "run", "resnet50", "v100-dlperf", "--set", "cluster.num_hosts=2", "--json", cwd=tmp_path
    )
    result = json.loads(text)
    assert result["status"] == "ok"
    assert result["num_devices"] == 16
    assert result["step_time_s"] > 0
