"""How long a user waits: for `--help`, for `import sim`, for a point of the demo sweep."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

TRIES = 5


def cpu_seconds(program: str, bytecode: Path) -> float:
    """CPU seconds (user and system) of the fastest of several fresh interpreters: other jobs do not count.

    The first one writes its bytecode to a folder of its own, as any interpreter does when it is used for the
    first time: an environment in which nothing may be written would time Python's compiler.
    """
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(bytecode)

    def children() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    taken = []
    for _ in range(TRIES):
        before = children()
        subprocess.run(
            [sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL, env=environment
        )
        taken.append(children() - before)
    return min(taken)


def test_help_takes_less_than_0_3_s(tmp_path: Path):
    assert cpu_seconds("from sim.cli.main import main; main(['--help'])", tmp_path) < 0.3


def test_import_takes_less_than_0_2_s(tmp_path: Path):
    assert cpu_seconds("import sim", tmp_path) < 0.2


@pytest.mark.slow
def test_the_demo_sweep_does_3_points_per_second_and_core(capsys: pytest.CaptureFixture[str]):
    """Every 8th point of the demo, cold and one after the other, in CPU seconds of this process."""
    from sim.catalog import Catalog
    from sim.sweep.engines import SerialEngine
    from sim.sweep.plan import build_plan, plan_sweep
    from sim.sweep.runner import run

    demo = plan_sweep(Catalog().sweep("demo"))
    points = [point.overrides for point in demo.points[::8]]
    start = time.process_time()
    plan = build_plan("sample", demo.context, points)
    result = run(plan, engine=SerialEngine())
    rate = len(plan.points) / (time.process_time() - start)
    with capsys.disabled():
        print(f"\ndemo sweep: {rate:.1f} points per second and core ({result.counts})")
    assert result.num_failed == 0, result.refusals()
    assert {data["fidelity"] for data in result.results if data is not None} == {"fluid"}
    assert rate >= 3
