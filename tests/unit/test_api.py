from __future__ import annotations

import subprocess
import sys

import pytest

import sim
from sim.errors import InputError


def test_every_public_name_is_there():
    from sim import api

    for name in api.__all__:
        assert getattr(sim, name) is not None
    assert set(api.__all__) <= set(dir(sim))
    assert len(api.__all__) <= 25


def test_import_loads_nothing_heavy():
    code = (
        "import sys, sim; "
        "heavy = {'numpy', 'pandas', 'pydantic', 'networkx', 'simpy', 'matplotlib', 'scipy', 'yaml'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_sweep_stays_the_function_after_its_package_is_imported():
    import sim.sweep.plan

    assert callable(sim.sweep)


def test_strategy_from_a_preset_or_from_fields():
    assert sim.strategy(tp=2, pp=4).tp == 2
    assert sim.strategy().synchronization == "bsp"
    name = sim.list_names("strategies")[0]
    assert sim.strategy(name) == sim.show(name, "strategy")
    with pytest.raises(InputError, match=r"strategy\.tpp"):
        sim.strategy(tpp=2)
    with pytest.raises(InputError, match=r"strategy\.tp: must"):
        sim.strategy(tp=0)


def test_show_finds_the_kind():
    assert type(sim.show("resnet50")).__name__ == "Workload"
    assert type(sim.show("v100-dlperf")).__name__ == "Cluster"
    with pytest.raises(InputError, match="be in the catalogue"):
        sim.show("no-such-thing")


def test_scenario_of_names_equals_scenario_of_specs():
    named = sim.scenario("resnet50", "v100-dlperf", {"overlap": False}, seed=3, jitter=0.1)
    built = sim.scenario(
        sim.workload("resnet50"), sim.cluster("v100-dlperf"), sim.strategy(overlap=False), seed=3, jitter=0.1
    )
    assert named.key() == built.key()
    assert (
        named.key() != sim.scenario("resnet50", "v100-dlperf", {"overlap": False}, seed=4, jitter=0.1).key()
    )


def test_bad_arguments_are_one_line():
    with pytest.raises(InputError, match="workload") as caught:
        sim.run("resnet5", "v100-dlperf")
    assert "resnet50" in str(caught.value)
    with pytest.raises(InputError, match="fidelity"):
        sim.run("resnet50", "v100-dlperf", fidelity="exact")
    with pytest.raises(InputError, match="jitter"):
        sim.run("resnet50", "v100-dlperf", jitter=-1)


def test_check_says_why():
    refusals = sim.check("resnet50", "v100-dlperf", {"tp": 2})
    assert refusals
    assert sim.check("resnet50", "v100-dlperf") == []


def test_enumeration_counts_everything():
    found = sim.enumerate_strategies("resnet50", "v100-dlperf", {"tp": [1, 2], "overlap": [True, False]})
    assert len(found.valid) + found.refused.total() == 4
    assert found.valid
