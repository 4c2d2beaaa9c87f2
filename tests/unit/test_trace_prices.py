"""Lists and schedules (AICB, SimAI, GOAL) on a cluster's network, and what edits of a trace say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim import api
from sim.cli.main import main
from sim.trace.placement import placed
from tests.trace_samples import two_stream_rank, write

BUNDLED = Path(__file__).parents[2] / "workloads" / "traces" / "transformer_cpu.json.gz"
HEAD = (
    "comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time,algbw,busbw,count\n"
)
ROWS = [
    ("all_reduce", "tp_group", 4, 1 << 20),
    ("all_gather", "dp_group", 2, 1 << 24),
    ("reduce_scatter", "dp_group", 2, 1 << 24),
]


def listed(folder: Path, milliseconds: float | None = None) -> str:
    text = "[rank0 ~ rank7]\n" + HEAD
    for kind, group, size, moved in ROWS:
        text += f"CommType.{kind},CommGroup.{group},{size},{moved},step,None,None,,{milliseconds},0,0\n"
    return str(write(folder, text, "list.csv"))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["trace", *arguments, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def alone() -> list[float]:
    groups = {"tp_group": [[0, 1, 2, 3], [4, 5, 6, 7]], "dp_group": [[0, 4], [1, 5], [2, 6], [3, 7]]}
    done = [
        api.collective(kind, "dgx-a100", float(size), num_hosts=1, ranks=groups[group])
        for kind, group, _, size in ROWS
    ]
    return [float(result.rows[0]["time_s"]) for result in done]


def test_a_list_takes_what_its_collectives_take_on_the_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(capsys, "replay", listed(tmp_path), "--cluster", "dgx-a100")
    assert found["replayed_step_s"] == pytest.approx(sum(alone()), rel=1e-9)
    assert "transfer_not_priced" not in {w["name"] for w in found["warnings"]}
    without = run(capsys, "replay", listed(tmp_path))
    assert without["replayed_step_s"] == 0
    assert {w["name"] for w in without["warnings"]} >= {"no_times"}
    slower = run(capsys, "replay", listed(tmp_path), "--cluster", "single-gpu")
    assert slower["replayed_step_s"] > 2 * found["replayed_step_s"]


def test_a_measured_list_is_compared_with_the_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(capsys, "replay", listed(tmp_path, 2.0), "--cluster", "dgx-a100", "--what-if", "all_reduce=2")
    assert found["measured_step_s"] == found["replayed_step_s"] == pytest.approx(6e-3)
    reduce, gather, scatter = alone()
    assert found["what_if"]["edits"] == ["cluster=dgx-a100", "all_reduce=2"]
    assert found["what_if"]["step_s"] == pytest.approx(2 * reduce + gather + scatter)
    row = next(kind for kind in found["kinds"] if kind["type"] == "all_reduce")
    assert (row["work_s"], row["edited_work_s"]) == (pytest.approx(2e-3), pytest.approx(2 * reduce))


SCHEDULE = """num_ranks 2
rank 0 {
l1: send 1000000b to 1 tag 0
}
rank 1 {
l1: recv 1000000b from 0 tag 0
l2: calc 1000
l2 requires l1
}
"""


def test_messages_of_a_schedule_cross_the_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = str(write(tmp_path, SCHEDULE, "s.goal"))
    send = api.collective("send", "dgx-a100", 1e6, num_hosts=1, ranks=[[0, 1]])
    expected = float(send.rows[0]["time_s"]) + 1e-6
    found = run(capsys, "replay", schedule, "--cluster", "dgx-a100")
    assert found["replayed_step_s"] == pytest.approx(expected, rel=1e-9)
    kept = str(tmp_path / "s.npz")
    run(capsys, "import", schedule, "--graph", kept, "--cluster", "dgx-a100")
    assert run(capsys, "replay", kept)["replayed_step_s"] == pytest.approx(expected, rel=1e-9)
    assert main(["trace", "replay", schedule, "--cluster", "dgx-a100", "--what-if", "tp=2"]) == 2
    assert "--what-if" in capsys.readouterr().err


def test_what_has_no_list_is_not_priced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(write(tmp_path, two_stream_rank(0)))
    assert main(["trace", "import", trace, "--graph", str(tmp_path / "g.npz"), "--cluster", "dgx-a100"]) == 2
    assert "--cluster: must be given for a list" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "group", "first"),
    [
        ("all_reduce", "tp", (0, 1)),
        ("all_reduce", "dp_group", (0, 2, 4, 6)),
        ("all_to_all", "ep", (0, 2)),
        ("all_reduce", "ep_dp", (0, 4)),
        ("all_gather", "pp", (0, 8)),
        ("barrier", "all", tuple(range(16))),
        ("send", "pp", (0, 8)),
    ],
)
def test_groups_by_megatrons_order(kind: str, group: str, first: tuple[int, ...]) -> None:
    sizes = {"tp": 2, "dp": 4, "pp": 2, "ep": 2, "ep_dp": 2}
    groups = placed(kind, group, sizes, 16)
    assert groups[0] == first
    ranks = [rank for members in groups for rank in members]
    assert len(ranks) == len(set(ranks)) == 16


def test_groups_that_do_not_fill_the_job_are_not_placed() -> None:
    assert placed("all_reduce", "tp", {"tp": 3}, 16) == ()
    assert placed("all_reduce", "unheard of", {"tp": 2}, 16) == ()


# ---- edits ----------------------------------------------------------------------------------------------


def test_tables_show_operations_as_they_ran_and_as_edited(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "replay", str(BUNDLED), "--what-if", "*mm*=2")
    rows = {row["type"]: row for row in found["kinds"]}
    assert rows["aten::mm"]["edited_work_s"] == pytest.approx(2 * rows["aten::mm"]["work_s"])
    assert rows["aten::add_"]["edited_work_s"] == pytest.approx(rows["aten::add_"]["work_s"])
    assert found["what_if"]["speedup"] < 1
    assert main(["trace", "replay", str(BUNDLED), "--what-if", "*mm*=2"]) == 0
    assert "its work" in capsys.readouterr().out


def test_the_pattern_of_the_guide_matches_the_bundled_trace() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / "use_your_traces.md").read_text()
    assert "`*mm*`" in guide


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--what-if", "*gemm*=2"], "Near: aten::"),
        (["--what-if", "*softmax_fwd*=2"], "Near: "),
        (["--strategy", "tp=8"], "--strategy: must be given with --cluster"),
        (["--cluster", "dgx-a100", "--strategy", "tp=7"], "error: --strategy: "),
    ],
)
def test_refusals_name_the_option_and_what_to_do(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "replay", str(BUNDLED), *arguments]) in (2, 3)
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("edit", "low", "high"),
    [
        ("device=v100-32gb", 0.1, 0.98),
        ("tp=2", 1.01, 2.0),
        ("pp=2", 1.0, 2.0),
        ("dp=16", 0.5, 1.0),
        ("compression=fp16", 0.999, 1.2),
        ("overlap=false", 0.5, 1.0001),
        ("bucket_size=1MB", 0.5, 1.1),
        ("cluster.host.nics.0.bandwidth=1Gbps", 0.01, 1.0),
    ],
)
def test_edits_of_the_scenario_move_the_bundled_trace(
    edit: str, low: float, high: float, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(
        capsys, "replay", str(BUNDLED), "--cluster", "dgx-a100", "--strategy", "dp=8", "--what-if", edit
    )
    assert low < found["what_if"]["speedup"] <= high


def test_an_edit_without_effect_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "replay", str(BUNDLED), "--cluster", "single-gpu", "--what-if", "compression=fp16")
    assert "changes nothing" in found["what_if"]["note"]
