"""Published measurements stand only beside points of the cluster and workload that were measured."""

from __future__ import annotations

import pytest

from sim.sweep.engines import SerialEngine
from sim.sweep.measured import as_named
from sim.sweep.plan import plan_axes
from sim.sweep.runner import run


@pytest.mark.parametrize(
    ("name", "value", "same"),
    [
        ("cluster.num_hosts", 2, True),
        ("strategy.overlap", False, True),
        ("cluster.fabric.bandwidth", "10Gbps", False),
        ("cluster.fabric.latency", "1ms", False),
        ("perturbation.jitter", 0.05, False),
        ("calibration", "ideal", False),
    ],
)
@pytest.mark.parametrize("where", ["base", "axis"])
def test_only_points_as_named_stand_beside_measurements(name: str, value: object, same: bool, where: str):
    base = {"workload": "bert-base", "cluster": "v100-dlperf"}
    changed = {name: value} if where == "base" else {}
    axes = {"seed": [0]} if changed else {name: [value]}
    plan = plan_axes({**base, **changed}, axes, simulate="tests.fakes:simulate")
    result = run(plan, engine=SerialEngine())
    assert as_named(result) == [same]
    assert len(result.table) == 1
