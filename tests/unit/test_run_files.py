"""Files of runs that others wrote: odd columns and cells, unknown names, any framework, device and model."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from sim.catalog import Catalog
from sim.errors import InputError
from sim.validate.boards import BOARDS, board_key
from sim.validate.frameworks import framework_of
from sim.validate.report import validate_runs
from sim.validate.rows import Row, read_rows
from sim.validate.runs_loader import load_run, load_runs

JOB = {
    "id": "NEW-1",
    "gpu": "A100",
    "gpus": "8",
    "precision": "bf16",
    "gbs": "64",
    "mbs": "1",
    "seq_len": "2048",
}


def parameters(catalog: Catalog, model: str, **cells: str) -> float:
    """Billions of parameters of the model that a name is read as."""
    return load_run(Row({**JOB, "model": model, **cells}), catalog).workload().num_parameters / 1e9


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("Llama-3-70B", 70.6), ("meta-llama/Llama-3.1-8B-Instruct", 8.03), ("LLAMA2-13B", 13.0),
        ("llama 7b", 6.74), ("Llama-4-Scout 109B", 108), ("Mixtral 8x7B", 46.7), ("Mixtral 8x22B", 141),
        ("Mistral-7B-v0.1", 7.25), ("Qwen2.5-7B", 7.6), ("Qwen3-235B-A22B", 235), ("Qwen/Qwen3-8B", 8.2),
        ("DeepSeek-V3", 671), ("DeepSeek-V2-Lite", 15.7), ("Kimi-K2 1T", 1026), ("Nemotron-4 340B", 341),
        ("Nemotron-H 8B", 8.1), ("GPT-NeoX 20B", 20.6), ("Falcon 40B", 41.3), ("BLOOM-176B", 176.2),
        ("OPT-66B", 65.7), ("GPT-3 175B", 175), ("gpt3-xl", 1.3), ("GPT 22B", 22), ("GPT2-XL", 1.56),
        ("Megatron-Turing NLG 530B", 530), ("gemma-2-9b", 9.24), ("gpt-oss-120b", 117), ("phi-3-mini", 3.8),
        ("T5-11B", 11.1), ("BERT-large", 0.335), ("bert-base-uncased", 0.109), ("ViT-L/16", 0.304),
        ("ViT-Huge", 0.632), ("ResNet-152", 0.0602), ("StarCoder2-15B", 15.9),
    ],
)  # fmt: skip
def test_models_are_known_by_name(catalog: Catalog, model: str, billions: float) -> None:
    assert parameters(catalog, model) == pytest.approx(billions, rel=0.03)


def test_a_size_alone_gives_a_plain_shape(catalog: Catalog) -> None:
    for cells in (
        {"model": "OurLM 9.5B", "family": "dense_lm"},
        {"model": "X", "family": "dense_lm", "params_b": "9.5"},
    ):
        run = load_run(Row({**JOB, **cells}), catalog)
        assert run.workload().num_parameters == pytest.approx(9.5e9, rel=0.15)
        assert {"layers", "hidden", "heads"} <= set(run.assumed)


def test_columns_stand_above_the_name(catalog: Catalog) -> None:
    run = load_run(Row({**JOB, "model": "Llama-3-70B", "layers": "40"}), catalog)
    assert run.params["num_layers"] == 40
    assert run.params["hidden"] == 8192


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("NVIDIA H200", "H200"), ("8x A100-SXM4-80GB", "A100"), ("A100 PCIe", "A100-PCIE"), ("A10G", "A10G"),
        ("NVIDIA A10", "A10"), ("AMD Instinct MI300X", "MI300X"), ("MI250X", "MI250X"), ("L4", "L4"),
        ("GB300 NVL72", "GB300"), ("Tesla V100-SXM2-32GB", "V100"), ("GeForce RTX 4090", "RTX-4090"),
        ("TPU v5p", "TPU-V5P"), ("tpuv4", "TPU-V4"), ("Intel Gaudi 2", "GAUDI2"), ("RTX A6000", "A6000"),
        ("abacus", None), ("", None), ("A1000", None),
    ],
)  # fmt: skip
def test_devices_are_known_by_name(text: str, key: str | None) -> None:
    assert board_key(text) == key


def test_every_board_can_be_built(catalog: Catalog) -> None:
    for name, board in BOARDS.items():
        for size in board.device:
            cells = {"model": "GPT-3 1.3B", "gpu": name, "gpus": "128", "gpu_mem_gb": str(size), "gbs": "128"}
            assert load_run(Row({**JOB, **cells}), catalog).cluster.main_device.name == board.device[size]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("Megatron-DeepSpeed", "megatron-deepspeed"), ("DeepSpeed ZeRO-3", "deepspeed"),
        ("MaxText (JAX)", "maxtext"),
        ("NeMo 24.09", "megatron-core"), ("NeMo Framework 25.02", "megatron-core"),
        ("Colossal-AI", "colossal-ai"),
        ("NeMo Megatron launcher", "nemo-megatron"), ("Megatron-LM", "megatron-lm"),
        ("PyTorch FSDP", "pytorch-fsdp"),
        ("PyTorch 2.1", "pytorch"), ("something else", "default"), ("", "default"),
    ],
)  # fmt: skip
def test_frameworks_are_known_by_name(text: str, key: str) -> None:
    assert framework_of(Row({"framework": text})).key == key


def test_recent_devices_run_recent_versions() -> None:
    assert framework_of(Row({"framework": "Megatron-LM", "gpu": "A100"})).key == "megatron-lm"
    assert framework_of(Row({"framework": "Megatron-LM", "gpu": "H100"})).key == "megatron-core"
    assert not framework_of(Row({"framework": "PyTorch", "gpu": "V100"})).flash
    assert framework_of(Row({"framework": "PyTorch", "gpu": "H200"})).flash


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"tp": "-2"}, "tp: must be a whole number of at least 1. Got -2."),
        ({"gpus": "eight"}, "gpus: must be a whole number"),
        ({"gbs": "2.5"}, "gbs: must be a whole number"),
        ({"layers": "1e7"}, "layers: must be at most 4,096"),
        ({"gpus": ""}, "no GPU count"),
        ({"gpus": "1000000"}, "more than 131,072 GPUs"),
        ({"gpus": "4096", "nodes": "1"}, "more than 256 GPUs in a host"),
        ({"model": ""}, "a model without a name"),
        ({"gpu": ""}, "unknown GPU"),
    ],
)
def test_a_bad_cell_is_a_reason(catalog: Catalog, cells: dict[str, str], reason: str) -> None:
    (skipped,) = load_runs([Row({**JOB, "model": "Llama-3-8B", **cells})], catalog).skipped
    assert reason in skipped.reason


def test_odd_files_give_a_status_for_every_row_in_its_order(catalog: Catalog, tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    lines = [
        "ID , Model,gpu,gpus,mbs,precision,colour,gbs,step_time_s",
        "B-2,ResNet-50,A100,1,64,tf32,red,,nan",
        "B-2,ResNet-50,A100,1,64,tf32,red,64,-1",
        ',ResNet-50,A100,1,"1,024",amp,,none,n/a,too,many,cells',
        "A-1,ResNet-50,Z1,1,64,tf32",
        "A-0,ResNet-50,A100,1,x",
        "A-9",
        "",
        "\0A-5,ResNet-50,A100,1,16,\xff,,,0.2",
    ]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode("latin-1"))
    report = validate_runs(path, catalog=catalog, workers=1)
    report.write(tmp_path / "out.csv")
    found = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text())))
    assert [row["id"] for row in found] == ["B-2", "B-2", "unnamed-0004", "A-1", "A-0", "A-9", "A-5"]
    assert [row["status"] for row in found] == ["ok", "ok", "ok", "skipped", "skipped", "skipped", "ok"]
    assert all(row["message"] for row in found if row["status"] == "skipped")
    assert float(found[2]["predicted_step_time_s"]) > 5 * float(found[6]["predicted_step_time_s"])


def test_a_file_without_any_known_column_is_refused(tmp_path: Path) -> None:
    for text in ("", "a,b\n1,2\n"):
        path = tmp_path / "bad.csv"
        path.write_text(text)
        with pytest.raises(InputError, match="columns such as id, model"):
            read_rows(path)
