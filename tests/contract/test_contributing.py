"""The worked examples of CONTRIBUTING.md run and do what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest

import sim
import sim.models.collectives as collectives
import sim.models.schedules as schedules
import sim.taxonomy.schedules as facts
import sim.wire.compressors as compressors
from sim.analysis.result import Result
from sim.lowering.state.server_rules import SERVER_RULES
from sim.spec import Strategy
from sim.taxonomy.collectives import COLLECTIVES
from sim.taxonomy.synchronizations import SYNCHRONIZATIONS
from sim.wire.compressor import Options
from sim.wire.tensors import Content

TEXT = (Path(__file__).resolve().parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def example(part: str) -> dict[str, Any]:
    """What the one block that mentions ``part`` defines."""
    (block,) = [block for block in BLOCKS if part in block]
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(block, "CONTRIBUTING.md", "exec"), names)
    assert len(block.splitlines()) < 30
    return names


def run(workload: str = "alexnet", slow: dict[int, float] | None = None, **fields: Any) -> Result:
    """A run with a strategy that is checked as any other: the new name is known by now."""
    cluster = sim.cluster("single-gpu", num_hosts=4)
    return sim.run(workload, cluster, Strategy(**fields), fidelity="analytic", slow_ranks=slow)


def test_a_compressor(monkeypatch: pytest.MonkeyPatch) -> None:
    sign = example("BLOCK_SIGN")["BLOCK_SIGN"]
    assert sign.size(Content(2560.0), 4.0, Options()) == pytest.approx(2560 / 8 + 4 * 10)
    monkeypatch.setitem(compressors.COMPRESSORS, sign.name, sign)
    assert run(compression=sign.name).status == "ok"


def test_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    names = example("EAGER")
    for stage in range(4):
        order = [slot[0] for slot in names["eager"](stage, 4, 8, 1)]
        assert sorted(order) == sorted((k, m, 0, 0) for k in "BF" for m in range(8))
    monkeypatch.setitem(schedules.SCHEDULES, "eager", names["EAGER"])
    monkeypatch.setitem(cast(Any, facts.SCHEDULES), "eager", names["EAGER_FACTS"])
    fields = {"pp": 4, "micro_batch_size": 1}
    plain = run("gpt2", **fields)
    eager = run("gpt2", schedule="eager", **fields)
    assert eager.status == plain.status == "ok"
    assert eager.step_time_s <= plain.step_time_s * 1.001  # type: ignore[operator]
    assert eager.peak_memory_bytes > plain.peak_memory_bytes  # type: ignore[operator]


def test_a_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    names = example("_star")
    builders = {**collectives._BUILDERS, **names["BUILDERS"]}
    monkeypatch.setattr(collectives, "_BUILDERS", builders)
    # Both follow from the builders when the module is loaded.
    monkeypatch.setattr(collectives, "PAIRS", collectives.PAIRS | {*builders})
    monkeypatch.setattr(collectives, "ALGORITHMS", (*collectives.ALGORITHMS, "star"))
    monkeypatch.setitem(cast(Any, COLLECTIVES), "star", names["FACTS"]["star"])
    gather, spread = collectives.plan("all_reduce", "star", 5)
    assert len(gather.src) == len(spread.dst) == 4
    assert gather.steps == spread.steps == 1
    assert run(collective="star").step_time_s > run(collective="ring").step_time_s  # type: ignore[operator]
    assert run(collective="star", state="zero1").status == "invalid"  # it does not scatter


def test_a_synchronisation_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    names = example("MAJORITY")
    monkeypatch.setitem(SERVER_RULES, "majority", names["MAJORITY"])
    monkeypatch.setitem(cast(Any, SYNCHRONIZATIONS), "majority", names["MAJORITY_FACTS"])
    assert run(synchronization="majority").status == "invalid"  # a collective needs all
    majority = {"state": "ps_dedicated", "num_servers": 1, "synchronization": "majority"}
    slow = {3: 3.0}
    one_backup = {**majority, "synchronization": "backup", "backup_workers": 1}
    result = run(slow=slow, **majority)
    assert result.step_time_s == pytest.approx(run(slow=slow, **one_backup).step_time_s)  # 3 of 4
    assert result.step_time_s < 0.6 * run(slow=slow, state="ps_dedicated", num_servers=1).step_time_s  # type: ignore[operator]
