"""The search for the best: same winners as computing everything, with fewer points played."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.errors import InputError
from sim.sweep.best import Search, search
from sim.sweep.columns import direction
from sim.sweep.engines import SerialEngine
from sim.sweep.plan import Plan, plan_axes
from sim.sweep.runner import run
from sim.sweep.table import ranked
from sim.sweep.where import Where

AXES = {"strategy.tp": [1, 2, 3, 4, 6, 8], "seed": list(range(8))}


def fake_plan(axes: dict[str, list[int]] | None = None) -> Plan:
    base = {"workload": "bert-base", "cluster": "v100-dlperf"}
    return plan_axes(base, axes or AXES, simulate="tests.fakes:simulate", optimist="tests.fakes:optimist")


@pytest.mark.parametrize(
    "objective", ["step_time_s", "samples_per_s", "price_per_sample", "peak_memory_bytes"]
)
@pytest.mark.parametrize("where", ["", "peak_memory_bytes<30GB", "seed>2 and samples_per_s<9"])
@pytest.mark.parametrize("count", [1, 4])
def test_the_search_finds_what_the_full_sweep_ranks_first(objective: str, where: str, count: int):
    table = run(fake_plan(), engine=SerialEngine()).table
    if where:
        condition = Where.parse(where)
        table = table[[condition.matches(row) for row in table.to_dict("records")]]
    expected = ranked(table, objective, direction(objective))[objective].head(count).tolist()

    found = search(fake_plan(), Search(count, objective, where=where), engine=SerialEngine(), num_workers=1)
    assert found.best_table[objective].tolist() == expected
    assert found.computed + found.pruned + found.unfit == len(fake_plan().points)
    assert found.pruned > 0


def test_a_point_that_fails_cannot_win():
    found = search(fake_plan({"seed": [0, 666]}), Search(2, "step_time_s"), engine=SerialEngine())
    assert found.best_table["seed"].tolist() == [0]
    assert found.num_failed == 1


def test_an_objective_without_a_bound_plays_everything():
    found = search(fake_plan(), Search(1, "exposed_comm_s"), engine=SerialEngine())
    assert (found.pruned, found.computed) == (0, len(fake_plan().points))


def test_a_store_serves_the_search_too(tmp_path: Path):
    run(fake_plan(), engine=SerialEngine(), store=tmp_path)
    found = search(fake_plan(), Search(2, "step_time_s"), engine=SerialEngine(), store=tmp_path)
    assert (found.computed, found.resumed) == (0, len(fake_plan().points))
    assert len(found.best) == 2


@pytest.mark.parametrize(
    "wanted", [Search(0, "step_time_s"), Search(1, "step_tim_s"), Search(1, "mfu", where="mfuu<3")]
)
def test_a_search_for_nonsense_is_an_input_error(wanted: Search):
    with pytest.raises(InputError):
        search(fake_plan(), wanted, engine=SerialEngine())


def test_real_bounds_hold_and_the_winner_is_the_same():
    base = {"workload": "vgg16", "cluster": "v100-dlperf", "cluster.num_hosts": 2}
    axes = {
        "strategy.collective": ["ring", "tree", "hierarchical"],
        "strategy.overlap": [True, False],
        "strategy.compression": ["none", "fp16"],
    }
    plan = plan_axes(base, axes)
    table = run(plan, engine=SerialEngine()).table
    for row, result in zip(table.to_dict("records"), run(plan, engine=SerialEngine()).results, strict=True):
        assert result is not None
        assert result["bound_s"] <= row["step_time_s"] * (1 + 1e-9)
    found = search(plan, Search(1, "price_per_sample"), engine=SerialEngine(), num_workers=1)
    assert found.best_table["price_per_sample"].iloc[0] == table["price_per_sample"].min()
    assert found.pruned > 0
