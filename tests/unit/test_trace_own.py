"""What we export can be read again: info, replay and compare on our own Perfetto files."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim import api
from sim.analysis.export import dependencies
from sim.analysis.timeline_from_run import timeline_from_run
from sim.analysis.trace_result import trace_result
from sim.analysis.trace_what_if import is_scenario_edit, scenario_what_if
from sim.cli.main import main
from sim.errors import InputError
from sim.files import write_whole
from sim.spec import Gemm, Layer, Workload
from sim.trace.export import export
from sim.trace.info import trace_info
from sim.trace.operations import DELAY, DEVICE, TRANSFER
from sim.trace.read import read
from sim.trace.replay import replay
from sim.trace.to_graph import operations_of
from tests.trace_samples import two_stream_rank, write


def small() -> Workload:
    layers = tuple(
        Layer(name=f"l{i}", kind="linear", block=i, ops=(Gemm(rows=256, n=2048, k=2048),),
              parameters=2048.0**2, tensors=(2048.0**2,), output_elements=2048 * 256)
        for i in range(4)
    )  # fmt: skip
    return Workload(
        name="s", description="d", source="s", family="mlp", layers=layers, batch_per_device=8, dtype="bf16"
    )


@pytest.fixture(scope="module")
def result() -> Any:
    return api.run(small(), api.cluster("single-gpu", 4), {"dp": 4})


@pytest.fixture(scope="module")
def trace(result: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(result.save_trace(tmp_path_factory.mktemp("own") / "own.json.gz"))


def test_info_of_our_own_export(result: Any, trace: Path) -> None:
    document = trace_info(read([trace]))
    (rank,) = document["ranks"]
    assert (rank["format"], rank["rank"], rank["world_size"]) == ("clusterloom", 0, 4)
    assert rank["steps"][0]["duration_s"] == pytest.approx(result.step_time_s, rel=1e-6)
    assert rank["exposed_comm_s"] == pytest.approx(result.parts["exposed_comm_s"], rel=1e-6, abs=2e-9)
    assert rank["num_comm"] > 0
    assert {c["kind"] for c in rank["collectives"]} == {"all_reduce"}
    assert [w["name"] for w in rank["warnings"]] == ["folded_rank"]


def test_replay_and_breakdown_of_our_own_export(result: Any, trace: Path) -> None:
    measured, _ = replay(operations_of(read([trace], host=True)))
    assert measured.replayed_step_s == pytest.approx(result.step_time_s, rel=1e-6)
    assert measured.unmatched_kernels == 0
    again = trace_result(trace)
    assert again.step_time_s == pytest.approx(result.step_time_s, rel=1e-6)
    for name, value in result.parts.items():
        assert again.parts[name] == pytest.approx(value, abs=1e-8), name


def test_exports_of_exports_and_of_measured_traces(tmp_path: Path, trace: Path) -> None:
    (copy,) = export(read([trace], host=True), tmp_path / "copy.json.gz")
    (rank,) = read([copy]).ranks
    assert len(rank.timeline) == len(read([trace]).ranks[0].timeline)
    measured = read([write(tmp_path, two_stream_rank(0))], host=True)
    (path,) = export(measured, tmp_path / "measured.json")
    (rank,) = read([path]).ranks
    first, second = (trace_info(read([p]))["ranks"][0] for p in (tmp_path / "trace.json", path))
    for key in ("compute_s", "comm_s", "exposed_comm_s", "num_compute", "num_comm"):
        assert second[key] == pytest.approx(first[key]), key


def test_an_export_keeps_the_steps(tmp_path: Path) -> None:
    sample = Path(__file__).parents[2] / "workloads" / "traces" / "transformer_cpu.json.gz"
    (path,) = export(read([sample], host=True), tmp_path / "copy.json")
    (before,), (after,) = (read([p], host=True).ranks for p in (sample, path))
    assert len(before.steps) == 3
    assert [step.name for step in after.steps] == [step.name for step in before.steps]
    assert all(step.name.startswith("ProfilerStep#") for step in after.steps)
    assert [s.duration for s in after.steps] == pytest.approx([s.duration for s in before.steps], abs=2e-9)
    assert "ProfilerStep" not in " ".join(after.timeline.names[i] for i in after.timeline.integer("name"))
    assert trace_result(path).step_time_s == pytest.approx(trace_result(sample).step_time_s, rel=1e-6)
    events = json.loads(path.read_text())["traceEvents"]
    assert min(event["ts"] for event in events if event["ph"] == "X") == 0


def test_compare_takes_traces(
    result: Any, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = result.save(tmp_path / "result.json")
    assert main(["compare", str(saved), str(trace), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert abs(document["difference_s"]) < 1e-8
    assert main(["compare", str(trace), str(write(tmp_path, two_stream_rank(0)))]) == 0


@pytest.mark.parametrize(
    "content", [gzip.compress(b'{"x": 1}', mtime=0), gzip.compress(b"\x9f\x00", mtime=0), b"\xff\xfe\x01"]
)
def test_compare_of_other_files_is_one_line(
    result: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    saved, other = result.save(tmp_path / "result.json"), tmp_path / "x.gz"
    other.write_bytes(content)
    assert main(["compare", str(saved), str(other)]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert "codec" not in error
    with pytest.raises(InputError) as caught:
        api.load_result(other)
    assert "codec" not in str(caught.value)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "x.json"
    target.write_text("before")

    def full(self: Path, data: bytes) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(target, "after")
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
    assert target.read_text() == "before"


def test_trace_onto_a_full_device_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    assert main(["run", "resnet50", "single-gpu", "--num-hosts", "1", "--trace", "/dev/full"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_what_if_by_simulating_the_workload_twice() -> None:
    found = scenario_what_if(small(), "dgx-1", ["dp=8"], world_size=2)
    assert (found.base.num_devices, found.changed.num_devices) == (2, 8)
    assert found.ratio == pytest.approx(
        float(found.changed.step_time_s or 0) / float(found.base.step_time_s or 1)
    )
    split = scenario_what_if(small(), "dgx-1", ["pp=2"], world_size=8)
    assert split.changed.strategy["dp"] == 4
    faster = scenario_what_if(small(), "dgx-1", ["device=a100-80gb"], world_size=8)
    assert faster.ratio < 0.9
    wider = scenario_what_if(small(), "dgx-1", ["cluster=dgx-a100", "dp=16"], world_size=8)
    assert wider.changed.num_devices == 16
    assert wider.to_json()["samples_per_s"] > wider.to_json()["base_samples_per_s"]


@pytest.mark.parametrize(
    ("edits", "match"),
    [
        (["nonsense.x=2"], "--what-if"),
        (["device=v101"], "v101"),
        (["tp=3", "dp=7"], "must"),
        (["pp=99"], "must"),
    ],
)
def test_what_ifs_that_cannot_be(edits: list[str], match: str) -> None:
    with pytest.raises(InputError, match=match):
        scenario_what_if(small(), "dgx-1", edits, world_size=8)


def test_which_edits_act_on_the_graph() -> None:
    for edit in ("tp=2", "bucket_size=50MB", "compression=fp16", "device=a100-80gb", "cluster=dgx-1",
                 "cluster.fabric.oversubscription=2", "workload.batch_per_device=8"):  # fmt: skip
        assert is_scenario_edit(edit), edit
    for edit in ("no-stragglers", "links=2", "device=2", "gemm=mean", "rank:0=2", "forward-compute=0.5"):
        assert not is_scenario_edit(edit), edit


def test_replay_of_a_saved_job_with_edits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, saved = write(tmp_path, two_stream_rank(0)), tmp_path / "job.npz"
    assert main(["trace", "import", str(trace), "--graph", str(saved)]) == 0
    capsys.readouterr()
    assert main(["trace", "replay", str(saved), "--what-if", "host=0.5", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["what_if"]["step_s"] < document["replayed_step_s"]
    assert main(["trace", "replay", str(saved), "--what-if", "dp=2", "--cluster", "dgx-1"]) == 2
    assert "--workload" in capsys.readouterr().err
    assert main(["trace", "replay", str(trace), "--what-if", "dp=2"]) == 2
    assert "--cluster" in capsys.readouterr().err


def _edges(path: Path) -> tuple[dict[Any, int], set[Any]]:
    """Operations of an export (rank, stream, name, ns) with their number, and what waits across streams."""
    ops = operations_of(read([path], host=True))
    delayed = {a: b for a, b in ops.edges if ops.category[a] == DELAY}
    spans = zip(ops.start, ops.end, strict=True)
    times = [(round((end - start) * 1e9), round(start * 1e9)) for start, end in spans]
    place = list(zip(ops.rank, ops.stream, ops.name, times, strict=True))
    shown = {o for o in range(len(ops)) if ops.category[o] in (DEVICE, TRANSFER)}
    pairs = ((a, delayed.get(b, b)) for a, b in ops.edges if a in shown)
    edges = {(place[a], place[b]) for a, b in pairs if b in shown and ops.stream[a] != ops.stream[b]}
    return dict(Counter(place[o] for o in shown)), edges


@pytest.mark.parametrize(
    "strategy",
    [
        {"dp": 4, "bucket_size": "1MB"},
        {"pp": 4, "micro_batch_size": 2},
        {"dp": 4, "state": "zero3"},
    ],
    ids=["dp", "pp", "zero"],
)
def test_what_waited_for_what_survives_an_export(strategy: dict[str, Any], tmp_path: Path) -> None:
    done = api.run(small(), api.cluster("single-gpu", 4), strategy)
    graph, run = done._played()
    first = Path(done.save_trace(tmp_path / "first.json"))
    spans = timeline_from_run(graph, run)
    target, source = dependencies(graph, spans)
    assert len(target) > 3
    tasks, edges = _edges(first)
    # Tasks and durations are those that were played.
    length = np.rint(spans["end"] * 1e9) - np.rint(spans["start"] * 1e9)
    assert sorted(length.astype(int).tolist()) == sorted(
        key[3][0] for key, n in tasks.items() for _ in range(n)
    )
    # Every dependency across streams is read back, and none besides.
    wanted = Counter((spans.names[spans.integer("name")[a]], spans.names[spans.integer("name")[b]])
                     for a, b in zip(target.tolist(), source.tolist(), strict=True))  # fmt: skip
    assert Counter((a[2], b[2]) for a, b in edges) == wanted
    (again,) = export(read([first], host=True), tmp_path / "again.json")
    assert _edges(again) == (tasks, edges)
    measured, _ = replay(operations_of(read([first], host=True)))
    assert abs(measured.error) < 1e-6


def test_flows_of_an_export_are_drawn_between_their_spans(result: Any, trace: Path) -> None:
    document = json.loads(gzip.decompress(trace.read_bytes()))
    spans = {
        e["args"]["span"]: e
        for e in document["traceEvents"]
        if e["ph"] == "X" and "span" in e.get("args", {})
    }
    starts = {e["id"]: e for e in document["traceEvents"] if e["ph"] == "s"}
    ends = [e for e in document["traceEvents"] if e["ph"] == "f"]
    assert ends
    assert len(starts) == len(ends)
    for event in ends:
        source, target = spans[event["args"]["from"]], spans[event["args"]["to"]]
        begin = starts[event["id"]]
        assert (event["ts"], event["tid"], event["bp"]) == (target["ts"], target["tid"], "e")
        assert (begin["tid"], begin["pid"]) == (source["tid"], source["pid"])
        assert source["ts"] <= begin["ts"] < source["ts"] + max(source["dur"], 1e-9)


def test_a_measured_export_keeps_what_waited(tmp_path: Path) -> None:
    document = two_stream_rank(0)
    document["traceEvents"][-1]["ts"] -= 48  # 2 us after the end of the all-reduce, on another stream
    first = write(tmp_path, document)
    (path,) = export(read([first], host=True), tmp_path / "measured.json")
    assert any(e["ph"] == "f" for e in json.loads(path.read_text())["traceEvents"])
    before, after = (replay(operations_of(read([p], host=True)))[0] for p in (first, path))
    assert {k["type"]: k["count"] for k in after.kinds} == {k["type"]: k["count"] for k in before.kinds}
    tasks, edges = _edges(path)
    (again,) = export(read([path], host=True), tmp_path / "again.json")
    assert _edges(again) == (tasks, edges)


def test_edits_of_a_simulated_export_change_its_step(trace: Path) -> None:
    """No host issued what a simulation ran: a step ends with its last task, not when it did."""
    operations = operations_of(read([trace], host=True))
    plain, _ = replay(operations)
    halved, _ = replay(operations, ["compute=0.5"])
    assert plain.replayed_step_s == pytest.approx(plain.measured_step_s, rel=1e-6)
    assert halved.what_if is not None
    assert 0.4 * plain.replayed_step_s < halved.what_if["step_s"] < 0.9 * plain.replayed_step_s
