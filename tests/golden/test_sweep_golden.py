"""A small sweep, number by number: a change of any model shows here. Update knowingly, and say why.

``python -m tests.golden.test_sweep_golden`` writes the file anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.sweep.engines import SerialEngine
from sim.sweep.plan import plan_axes
from sim.sweep.runner import run

GOLDEN = Path(__file__).with_name("sweep.json")
COLUMNS = ("step_time_s", "samples_per_s", "mfu", "exposed_comm_s", "peak_memory_bytes", "price_per_sample")
AXES = {
    "workload": ["resnet50", "vgg16"],
    "way": [
        {"strategy.collective": "ring"},
        {"strategy.collective": "hierarchical", "strategy.overlap": False},
        {"strategy.state": "zero3"},
        {"strategy.state": "ps_dedicated", "strategy.num_servers": 4, "strategy.synchronization": "asp"},
        {"strategy.synchronization": "local", "strategy.local_steps": 4},
        {"strategy.synchronization": "asp"},
    ],
}


def rows() -> list[dict[str, Any]]:
    base = {"cluster": "v100-dlperf", "cluster.num_hosts": 2, "strategy.bucket_size": "100MiB"}
    table = run(plan_axes(base, AXES), engine=SerialEngine()).table
    return [
        {
            **{name: str(row[name]) for name in ("workload", "strategy", "status")},
            **{name: None if row[name] != row[name] else float(row[name]) for name in COLUMNS},
        }
        for row in table.to_dict("records")
    ]


def test_the_table_is_as_before():
    expected = json.loads(GOLDEN.read_text())
    found = rows()
    assert [(r["workload"], r["strategy"], r["status"]) for r in found] == [
        (r["workload"], r["strategy"], r["status"]) for r in expected
    ]
    for new, old in zip(found, expected, strict=True):
        for name in COLUMNS:
            expected_value = old[name] if old[name] is None else pytest.approx(old[name], rel=1e-6)
            assert new[name] == expected_value, (new["workload"], new["strategy"], name)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(rows(), indent=1) + "\n")
