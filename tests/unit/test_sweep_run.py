"""Running plans: bad points, dying workers, resuming, determinism, engines, the table."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from sim.errors import InputError
from sim.sweep.engines import SerialEngine, engine
from sim.sweep.plan import Plan, plan_axes
from sim.sweep.runner import run
from sim.sweep.table import read_parquet, write_parquet

BASE = {"workload": "bert-base", "cluster": "v100-dlperf"}


def plan_of(axes: dict[str, list[object]], **options: str) -> Plan:
    return plan_axes(BASE, axes, simulate="tests.fakes:simulate", optimist="tests.fakes:optimist", **options)


def test_bad_points_are_rows_and_the_others_are_computed():
    result = run(plan_of({"seed": [0, 666, 668, 669, 670, 1]}), engine=SerialEngine())
    table = result.table.set_index("seed")
    assert table["status"].to_dict() == {
        0: "ok", 666: "failed", 668: "failed", 669: "infeasible", 670: "invalid", 1: "ok",
    }  # fmt: skip
    assert "ZeroDivisionError: a bug" in table.loc[666, "message"]
    assert "rank0 waits for rank1" in table.loc[668, "message"]
    assert table.loc[669, "missing_bytes"] == 3e9
    assert table.loc[670, "message"].startswith("strategy.tp: must divide num_heads (12)")
    assert result.num_failed == 2
    assert result.counts == {"ok": 2, "failed": 2, "infeasible": 1, "invalid": 1}


def test_a_worker_that_is_killed_costs_one_point():
    result = run(plan_of({"seed": [0, 1, 667, 2, 3, 4]}), num_workers=2)
    table = result.table.set_index("seed")
    assert table.loc[667, "status"] == "failed"
    assert "signal 9" in table.loc[667, "message"]
    assert (table.drop(index=667)["status"] == "ok").all()


def test_a_finished_sweep_is_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = tmp_path / "log"
    monkeypatch.setenv("CLUSTERLOOM_TEST_LOG", str(log))
    axes = {"strategy.tp": [1, 2, 4]}
    first = run(plan_of(axes), engine=SerialEngine(), store=tmp_path / "store")
    second = run(plan_of({**axes, "seed": [0, 1]}), engine=SerialEngine(), store=tmp_path / "store")
    assert (first.computed, first.resumed) == (3, 0)
    assert (second.computed, second.resumed) == (3, 3)
    assert len(log.read_text().splitlines()) == 6
    third = run(plan_of({**axes, "seed": [0, 1]}), engine=SerialEngine(), store=tmp_path / "store")
    assert third.computed == 0
    assert third.table.equals(second.table)


def test_the_same_sweep_twice_writes_identical_files(tmp_path: Path):
    axes = {"strategy.tp": [1, 2, 3, 4], "seed": [0, 1, 666]}
    for name, workers in (("a", 1), ("b", 3)):
        write_parquet(run(plan_of(axes), num_workers=workers).table, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_table_keeps_types_and_order_whatever_failed(tmp_path: Path):
    good = run(plan_of({"seed": [0, 1]}), engine=SerialEngine()).table
    bad = run(plan_of({"seed": [666, 668]}), engine=SerialEngine()).table
    assert list(good.columns) == list(bad.columns)
    numbers = ["step_time_s", "num_devices", "mfu", "status", "compute_s"]
    assert good[numbers].dtypes.to_dict() == bad[numbers].dtypes.to_dict()
    write_parquet(good, tmp_path / "t.parquet")
    assert read_parquet(tmp_path / "t.parquet").equals(good)
    assert not [name for name in good.columns if "wall" in name]


def test_scaling_efficiency_is_relative_to_the_fewest_devices():
    table = run(plan_of({"strategy.tp": [1, 2, 4], "seed": [0, 1]}), engine=SerialEngine()).table
    alone = table[(table["strategy.tp"] == 1) & (table["seed"] == 0)].iloc[0]
    assert alone["scaling_efficiency"] == 1.0
    four = table[(table["strategy.tp"] == 4) & (table["seed"] == 1)].iloc[0]
    assert four["scaling_efficiency"] == pytest.approx(four["samples_per_s"] / 4 / alone["samples_per_s"])


def test_progress_counts_up_to_all_points():
    seen: list[tuple[int, int]] = []
    run(plan_of({"seed": [0, 1, 2]}), engine=SerialEngine(), progress=lambda *state: seen.append(state))
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_an_interrupted_sweep_keeps_its_points_and_ends_its_workers(tmp_path: Path):
    def stop(finished: int, total: int) -> None:
        if finished == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(plan_of({"seed": [0, 1, 2, 671, 672]}), num_workers=2, store=tmp_path, progress=stop)
    feeders = [thread for thread in threading.enumerate() if "_serve" in thread.name]
    assert not feeders
    again = run(plan_of({"seed": [0, 1, 2]}), engine=SerialEngine(), store=tmp_path)
    assert (again.resumed, again.computed) == (3, 0)


@pytest.mark.parametrize("name", ["dask", "ray"])
def test_a_missing_engine_says_how_to_get_it(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=rf"pip install clusterloom\[{name}\]"):
        engine(name)


@pytest.mark.parametrize("name", ["dask", "ray"])
def test_an_installed_engine_gives_the_same_table(name: str):
    pytest.importorskip("distributed" if name == "dask" else "ray")
    axes = {"strategy.tp": [1, 2], "seed": [0, 666]}
    expected = run(plan_of(axes), engine=SerialEngine()).table
    assert run(plan_of(axes), engine=name, num_workers=1).table.equals(expected)


def test_an_unknown_engine_is_refused():
    with pytest.raises(InputError, match="local, dask, ray"):
        engine("spark")


def test_a_table_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import pandas as pd

    table = run(plan_of({"seed": [0]}), engine=SerialEngine()).table
    write_parquet(table, tmp_path / "t.parquet")

    def full(self: pd.DataFrame, path: Path, **_: object) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", full)
    with pytest.raises(InputError, match="No space left on device"):
        write_parquet(table, tmp_path / "t.parquet")
    assert read_parquet(tmp_path / "t.parquet").equals(table)
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]


def test_the_public_function_runs_real_points():
    import sim

    sweep = sim.sweep("resnet50", "v100-dlperf", {"strategy.dp": [1, 8]}, base={"cluster.num_hosts": 1})
    table = sweep.run(num_workers=1)
    assert list(table["num_devices"]) == [1, 8]
    assert (table["status"] == "ok").all()
    assert table["samples_per_s"].is_monotonic_increasing
    assert sim.sweep is not sys.modules["sim.sweep"]


def test_a_point_that_the_machine_lost_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A worker killed for memory says nothing of its point; a deadlock or a bug does."""
    plan = plan_of({"seed": [0, 1, 667, 668]})
    first = run(plan, num_workers=2, store=tmp_path)
    assert first.num_failed == 2
    monkeypatch.setattr("tests.fakes.misbehave", lambda seed: None)
    second = run(plan, engine=SerialEngine(), store=tmp_path)
    assert (second.computed, second.resumed) == (1, 3)
    assert second.table.set_index("seed")["status"].to_dict() == {0: "ok", 1: "ok", 667: "ok", 668: "failed"}
