"""Workloads of other traces: CPU training, transformers by their arithmetic, SimAI text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim import api
from sim.catalog import default_catalog
from sim.cli.main import main
from sim.spec import Attention, Gemm, MemoryBound
from sim.trace.operators import Operator
from sim.trace.read import read
from sim.trace.to_workload import import_workload, to_workload
from tests.trace_samples import write


def shipped() -> Any:
    return read([default_catalog().data_file("workloads/traces/transformer_cpu.json.gz")], host=True)


def test_a_real_recording_of_a_cpu_becomes_its_own_step() -> None:
    imported = import_workload(shipped(), name="mine")
    workload, times = imported.workload, imported.times
    hidden, vocabulary, blocks = 192, 2000, 4
    per_block = 12 * hidden**2 + 13 * hidden
    assert workload.num_parameters == 2 * vocabulary * hidden + blocks * per_block + 2 * hidden
    assert (workload.num_heads, workload.hidden, workload.vocabulary) == (6, hidden, vocabulary)
    assert (workload.num_blocks, workload.batch_per_device, workload.sequence_length) == (blocks, 4, 64)
    assert times is not None
    result = api.run(workload, api.cluster("single-gpu", 1))
    assert result.step_time_s == pytest.approx(times.step_s, rel=1e-9)
    timed = [(layer.measured.forward_s, bool(layer.tensors)) for layer in workload.layers if layer.measured]
    with_weights = sum(seconds for seconds, weighted in timed if weighted)
    assert with_weights > 0.5 * sum(seconds for seconds, _ in timed)


def test_an_imported_transformer_runs_with_other_strategies() -> None:
    workload = to_workload(shipped(), name="mine")
    cluster = api.cluster("dgx-1", 1)
    base = api.run(workload, cluster, {"dp": 8})
    for fields in ({"tp": 2, "dp": 4}, {"pp": 4, "dp": 2}, {"tp": 2, "pp": 2, "dp": 2}):
        other = api.run(workload, cluster, fields)
        assert other.ok, other.message
        assert other.step_time_s < base.step_time_s  # fewer samples in all, and each is split
    assert not api.run(workload, cluster, {"tp": 4, "dp": 2}).ok  # 6 heads


def transformer(layers: int, *, heads: int = 4, gated: bool = False) -> list[Operator]:
    b, s, h, f, v = 2, 16, 32, 64, 100
    d = h // heads

    def op(name: str, *inputs: tuple[int, ...], out: tuple[int, ...] | None = None) -> Operator:
        return Operator(f"aten::{name}", inputs, out, "c10::BFloat16")

    found = [op("embedding", (v, h), (b, s), out=(b, s, h))]
    for _ in range(layers):
        found += [
            op("layer_norm", (b, s, h), (), (h,), (h,)),
            op("linear", (b, s, h), (3 * h, h), (3 * h,)),
            op("matmul", (b, heads, s, d), (b, heads, d, s)),
            op("softmax", (b, heads, s, s)),
            op("matmul", (b, heads, s, s), (b, heads, s, d)),
            op("linear", (b, s, h), (h, h), (h,)),
            op("layer_norm", (b, s, h), (), (h,), (h,)),
            op("linear", (b, s, h), (f, h)),
            *([op("linear", (b, s, h), (f, h))] if gated else []),
            op("gelu", (b, s, f)),
            op("linear", (b, s, f), (h, f)),
        ]
    return [*found, op("layer_norm", (b, s, h), (), (h,), (h,)), op("linear", (b, s, h), (v, h))]


@pytest.mark.parametrize("gated", [False, True])
def test_blocks_splits_and_attention_are_recognised(gated: bool) -> None:
    trace = shipped()
    trace.ranks[0].host = None  # shapes only
    trace.ranks[0].operators = tuple(transformer(3, gated=gated))
    workload = to_workload(trace, name="t")
    cores = [layer for layer in workload.layers if isinstance(layer.ops[0], Attention)]
    assert len(cores) == 3
    core = cores[0].ops[0]
    assert isinstance(core, Attention)
    assert (core.heads, core.query_length, core.head_dim) == (4, 16, 8)
    assert cores[0].stored_selective_elements == 4 * 16 * 16 * 2  # softmax's input, and the second product's
    splits = [op.split for layer in workload.layers for op in layer.ops if isinstance(op, Gemm)]
    block = ["column", "row", "column", *(["column"] if gated else []), "row"]
    assert splits == [*block * 3, "vocabulary"]
    assert [layer.tensor_all_reduce for layer in workload.layers].count(True) == 2 * 3 + 1
    assert workload.num_blocks == 3
    first = next(layer.kind for layer in workload.layers if layer.block == 1)
    assert first == "norm"
    gelu = next(layer for layer in workload.layers if layer.name.startswith("gelu")).ops[0]
    assert isinstance(gelu, MemoryBound)
    assert gelu.split == "tensor"
    assert (workload.family, workload.num_heads, workload.vocabulary) == ("transformer", 4, 100)


def test_what_is_no_transformer_stays_as_it_is() -> None:
    trace = shipped()
    trace.ranks[0].host = None
    odd = transformer(2)
    odd[6] = Operator("aten::linear", ((2, 16, 32), (48, 32)), None, "float")  # does not give hidden back
    trace.ranks[0].operators = tuple(odd)
    workload = to_workload(trace, name="t")
    assert workload.num_heads is None
    splits = {op.split for layer in workload.layers for op in layer.ops if isinstance(op, Gemm)}
    assert splits == {"none"}


SIMAI = """HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 4 ep: 1 pp: 1 ga: 2 all_gpus: 16
5
grad_norm -1 1000 ALLGATHER 4000000 1000 NONE 0 1 REDUCESCATTER 8000000 100
attention_column -1 300000 ALLGATHER 65536 300000 REDUCESCATTER 65536 300000 NONE 0 100
attention_row -1 100000 REDUCESCATTER 65536 100000 ALLGATHER 65536 100000 NONE 0 100
mlp_column -1 400000 ALLGATHER 65536 400000 REDUCESCATTER 65536 400000 NONE 0 100
mlp_row -1 200000 REDUCESCATTER 65536 200000 ALLGATHER 65536 200000 NONE 0 100
"""


def test_simai_text_becomes_a_workload_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "w.txt", tmp_path / "w.yaml"
    source.write_text(SIMAI)
    assert main(["trace", "import", str(source), "-o", str(target), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["strategy"] == {"tp": 4, "micro_batch_size": 1}
    assert summary["parameters"] == 8_000_000
    workload = api.workload(str(target))
    result = api.run(workload, api.cluster("dgx-a100", 1), {"tp": 4, "dp": 2, "micro_batch_size": 1})
    assert result.ok, result.message
    # Two micro-batches of the stated times, on one device of a group of 4; the slowest counts.
    assert result.parts["compute_s"] == pytest.approx(2 * 3e-3, rel=0.06)
    alone = api.run(workload, api.cluster("dgx-a100", 1), {"tp": 1, "dp": 8, "micro_batch_size": 1})
    assert alone.parts["compute_s"] == pytest.approx(4 * 2 * 3e-3, rel=0.04)


def test_simai_text_without_times_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "w.txt"
    rows = SIMAI.splitlines()
    zero = [" ".join([*(["x", "-1", "0", "NONE", "0", "0", "NONE", "0", "0", "NONE", "0", "0"])])]
    source.write_text("\n".join([rows[0], "1", *zero]) + "\n")
    assert main(["trace", "import", str(source), "-o", str(tmp_path / "w.yaml")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_cut_trace_still_imports(tmp_path: Path) -> None:
    import gzip

    path = default_catalog().data_file("workloads/traces/transformer_cpu.json.gz")
    text = gzip.decompress(path.read_bytes()).decode()
    cut = write(tmp_path, text[: int(len(text) * 0.8)])
    imported = import_workload(read([cut], host=True), name="cut")
    whole = import_workload(shipped(), name="cut")
    assert len(imported.workload.layers) == len(whole.workload.layers)
