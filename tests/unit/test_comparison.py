"""Comparisons over the taxonomy: values by name, points, labels, main effects."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from sim import plot
from sim.errors import InputError
from sim.spec import Sweep
from sim.sweep.comparison import dimensions_of, main_effects
from sim.sweep.plan import plan_sweep
from sim.sweep.runner import run
from sim.taxonomy import DIMENSIONS
from sim.taxonomy.select import choices, choose


def test_values_are_found_by_name_and_parameter() -> None:
    assert choose("D3", "ssp(3)").settings == {"strategy.synchronization": "ssp", "strategy.staleness": 3}
    assert choose("synchronization", "bsp").settings == {"strategy.synchronization": "bsp"}
    assert choose("parallelism", "tp(8)").settings == {"strategy.tp": 8}
    assert choose("transfer_scheduling", "wfbp").settings == {"strategy.overlap": True}


@pytest.mark.parametrize(
    ("dimension", "text", "part"),
    [
        ("D3", "spp(3)", "Try ssp"),
        ("D3", "bsp(1)", "parameters"),
        ("parallelism", "tp", "parameters"),
        ("D3", "ring", "collective algorithm"),
        ("D99", "ring", "dimension"),
        ("tp", "pp(2)", "be tp with its parameters, or default"),
    ],
)
def test_unknown_values_are_one_line(dimension: str, text: str, part: str) -> None:
    with pytest.raises(InputError, match=part):
        choose(dimension, text)


def test_all_of_every_dimension_can_be_chosen() -> None:
    for each in DIMENSIONS:
        plain = [value for value in each.values if value.settings and "(" not in value.name]
        if plain:
            assert len(choices({each.name: ["all"]})[each.name]) == len(plain)


def test_a_value_may_be_an_axis_of_its_own() -> None:
    axes = choices({"tp": ["tp(1)", "tp(8)"], "pp": ["default", "pp(4)"], "D3": ["bsp", "default"]})
    assert [[dict(choice.settings) for choice in values] for values in axes.values()] == [
        [{"strategy.tp": 1}, {"strategy.tp": 8}],
        [{}, {"strategy.pp": 4}],
        [{"strategy.synchronization": "bsp"}, {}],
    ]
    assert list(axes) == ["tp", "pp", "synchronization"]


def comparison(**dimensions: list[str]) -> Sweep:
    fields = {"name": "c", "workload": "alexnet", "cluster": "v100-dlperf", "set": {"strategy.dp": 16}}
    return Sweep(
        **fields, axes="taxonomy", dimensions={k.replace("_", " "): v for k, v in dimensions.items()}
    )


def test_a_comparison_ranks_and_attributes() -> None:
    sweep = comparison(
        state_placement=["replicated", "ps_colocated"],
        collective_algorithm=["auto", "ring"],
        D7=["none", "fp16"],
    )
    plan = plan_sweep(sweep)
    result = run(plan, engine="local", num_workers=1)
    table = result.table
    assert dimensions_of(table) == ["state placement", "collective algorithm", "compression"]
    assert len(table) == 8
    assert sum(map(len, result.refusals().values())) == 2  # a server has no collective among workers
    effects = main_effects(table).set_index(["dimension", "value"])
    assert effects.loc[("compression", "fp16"), "effect"] > 0 > effects.loc[("compression", "none"), "effect"]
    assert effects["points"].groupby("dimension").sum().eq(6).all()
    plot.main_effects(effects.reset_index())


def test_dimensions_need_the_taxonomy() -> None:
    with pytest.raises(ValueError, match="axes: taxonomy"):
        Sweep(name="c", workload="alexnet", cluster="dgx-1", dimensions={"D3": ["bsp"]})


def test_main_effects_are_recovered_from_an_incomplete_product() -> None:
    """Effects that multiply come back whatever combinations are missing: plain means would not do that."""
    gain = {"a": {"x": 1.0, "y": 1.5, "z": 3.0}, "b": {"p": 1.0, "q": 0.5}}
    rows = [
        {"dimension.a": a, "dimension.b": b, "samples_per_s": 7 * gain["a"][a] * gain["b"][b], "status": "ok",
         "workload": "w", "cluster": "c", "num_devices": 4}
        for a, b in itertools.product(gain["a"], gain["b"]) if (a, b) not in (("z", "p"), ("y", "q"))
    ]  # fmt: skip
    found = main_effects(pd.DataFrame(rows)).set_index(["dimension", "value"])
    for name, values in gain.items():
        counts = {v: found.loc[(name, v), "points"] for v in values}
        centre = sum(np.log(g) * counts[v] for v, g in values.items()) / sum(counts.values())
        for value, factor in values.items():
            assert found.loc[(name, value), "effect"] == pytest.approx(factor / np.exp(centre) - 1)
    assert found["r_squared"].to_numpy() == pytest.approx(1.0)
