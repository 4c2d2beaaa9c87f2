"""Real traces against the numbers published or counted beside them; skipped where they are absent."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from sim import api
from sim.errors import InputError
from sim.models.compute import model_flops
from sim.trace.info import trace_info
from sim.trace.read import read
from sim.trace.replay import replay, straggler_slowdowns
from sim.trace.to_graph import operations_of
from sim.trace.to_workload import import_workload, to_workload

ROOT = Path(os.environ.get("CLUSTERLOOM_TRACES", Path(__file__).parents[3] / "shared" / "data" / "traces"))
INDEX = ROOT / "INDEX.md"
pytestmark = pytest.mark.skipif(not INDEX.is_file(), reason="the trace collection is not here")

_SUMS = re.compile(r"([\d.]+) / ([\d.]+) \((\d+)\) / ([\d.]+)")
_STEPS = re.compile(r"\(\d+\): ([\d./]+) ms; mean")
#: Notes of the collection, not traces.
_NOTES = {"INDEX.md"}


def _table() -> dict[str, str]:
    """File (or archive member) name -> its row of the index."""
    if not INDEX.is_file():
        return {}
    rows = {}
    for line in INDEX.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) > 7 and cells[0] != "file":
            rows[cells[0].split(" > ")[-1]] = line
    return rows


def _files() -> list[Path]:
    return (
        sorted(p for p in ROOT.rglob("*") if p.is_file() and p.name not in _NOTES) if INDEX.is_file() else []
    )


def _check(rank: dict[str, Any], line: str) -> None:
    sums = _SUMS.search(line)
    if sums:
        compute, communication, count, exposed = (float(text) for text in sums.groups())
        assert rank["num_comm"] == count
        for key, value in (
            ("compute_sum_s", compute),
            ("comm_sum_s", communication),
            ("exposed_comm_s", exposed),
        ):
            assert rank[key] * 1e3 == pytest.approx(value, rel=1e-3, abs=0.0051), key
    steps = _STEPS.search(line)
    if steps:
        assert [round(s["duration_s"] * 1e3, 1) for s in rank["steps"]] == [
            float(text) for text in steps.group(1).split("/")
        ]
    events = re.search(r"Kineto JSON, (\d+) events", line)
    if events:
        assert rank["num_events"] == int(events.group(1))


@pytest.mark.parametrize("path", _files(), ids=lambda path: path.name)
def test_every_file(path: Path) -> None:
    table = _table()
    document = trace_info(read([path]))
    checked = 0
    for rank in document["ranks"]:
        name = rank["file"].split(" > ")[-1]
        line = table.get(name) or table.get(path.name)
        if line is not None:
            _check(rank, line)
            checked += 1
    assert checked == len(document["ranks"])


def test_notes_are_refused_in_one_line() -> None:
    with pytest.raises(InputError, match=r"INDEX\.md"):
        read([INDEX])


def test_straggler_job() -> None:
    """Published: measured 2.2144 s, without launch delays 2.1727 s, ideal 1.8433 s, 1.0875 and 1.0742."""
    ops = operations_of(read([ROOT / "straggler-bytedance" / "trace-ST.parquet"]))
    result, _ = replay(ops)
    assert result.measured_step_s == pytest.approx(2.2144, abs=5e-5)
    assert result.replayed_step_s == pytest.approx(2.2144, rel=0.002)
    rows, undelayed, ideal = straggler_slowdowns(ops)
    slowdown = {row["type"]: row["slowdown"] for row in rows}
    assert undelayed == pytest.approx(2.1727, rel=0.002)
    assert ideal == pytest.approx(1.8433, rel=0.001)
    assert slowdown["all"] == pytest.approx(1.1787, abs=0.002)
    assert slowdown["forward-compute"] == pytest.approx(1.0875, abs=0.002)
    assert slowdown["backward-compute"] == pytest.approx(1.0742, abs=0.002)


def test_dlrm_on_8_gpus() -> None:
    result, _ = replay(operations_of(read([ROOT / "param" / "dlrm_kineto.tar.gz"], host=True)))
    assert (len(result.ranks), result.joined_collectives) == (8, 8)
    assert result.worst_error < 0.005
    work = sum(k["work_s"] for k in result.kinds if k["type"].startswith("all_"))
    assert work / 8 == pytest.approx(0.2e-3, abs=0.05e-3)  # fastest rank of each of the 8 collectives


@pytest.mark.parametrize(
    ("name", "parameters", "forward_macs"),
    [
        # torchvision's ResNet-50 and GPT-2 large; parameters as published.
        ("param/1.1.0-chakra.0.0.4__resnet_2gpu_et.json.gz", 25_557_032, 4.09e9),
        (
            "kineto/samples__resnet50_num_workers_0__worker0.1623143089861.pt.trace.json.gz",
            25_557_032,
            4.09e9,
        ),
        ("param/hf_GPT2_et.json.tar.gz", 774_030_080, None),
    ],
)
def test_imported_models(name: str, parameters: int, forward_macs: float | None) -> None:
    workload = to_workload(read([ROOT / name], host=True), name="imported")
    assert workload.num_parameters == parameters
    if forward_macs is not None:
        assert model_flops(workload) / 2 == pytest.approx(forward_macs, rel=0.001)


@pytest.mark.parametrize(
    ("names", "limit"),
    [
        (["kineto/samples__resnet50_num_workers_4__worker0.1623212756351.pt.trace.json.gz"], 0.02),
        (["hta/nccl_parser_config__nccl_data.json.gz"], 0.02),  # no shapes: times and gradients only
        (["tracelens/mi300__ddp_resnet18_no_pool__train_resnet18.json.gz"], 0.02),
        (["param/linear_kineto.json.gz", "param/linear_et.json.gz"], 0.01),  # shapes of the execution trace
        (["param/dlrm_kineto.tar.gz"], 0.02),
        (["hta/amd_trace__mi250_minitoy_train_ROCm6_2_kineto.json.gz"], 0.02),
    ],
    ids=lambda value: str(value[0]).rsplit("/", 1)[-1][:30] if isinstance(value, list) else "",
)
def test_imported_steps(names: list[str], limit: float) -> None:
    """Simulated on the traced device, an import takes the traced step without exposed communication."""
    imported = import_workload(read([ROOT / name for name in names], host=True), name="imported")
    device = imported.device.name if imported.device is not None else "a100-80gb"
    host = api.host("single-gpu", devices=[[device, 1]])
    result = api.run(imported.workload, api.cluster("single-gpu", 1, host=host))
    assert result.ok, result.message
    assert imported.measured_step_s is not None
    assert result.step_time_s == pytest.approx(imported.measured_step_s, rel=limit)
