"""What fits into memory, by the model and as published: runs that ran, and runs that ran out of memory."""

from __future__ import annotations

from typing import Any

import pytest

import sim
from sim.architecture import generate
from sim.catalog import Catalog
from sim.lowering import memory_by_stage
from sim.spec import Scenario
from sim.validate.rows import FILE, read_rows
from sim.validate.runs_loader import load_runs

GPT: dict[str, Any] = {"vocabulary": 51200, "sequence_length": 2048, "max_positions": 2048, "dtype": "fp16"}


def gpt(layers: int, hidden: int, heads: int, **fields: Any) -> tuple[str, dict[str, Any]]:
    return "transformer", {**GPT, "num_layers": layers, "hidden": hidden, "num_heads": heads, **fields}


KORTHIKANTI = {
    "22B": (gpt(48, 6144, 64), {"tp": 8, "micro_batch_size": 4}, 1),
    "175B": (gpt(96, 12288, 96), {"tp": 8, "pp": 8, "virtual_stages": 3, "micro_batch_size": 1}, 8),
    "530B": (gpt(105, 20480, 128), {"tp": 8, "pp": 35, "virtual_stages": 3, "micro_batch_size": 1}, 35),
    "1T": (gpt(128, 25600, 160), {"tp": 8, "pp": 64, "micro_batch_size": 1}, 64),
}
"""Figure 1 and table 3 of Korthikanti et al. 2022 (arXiv:2205.05198): all four exceed an A100's 80 GB with
tensor parallelism alone; with sequence parallelism and selective recomputation they fit."""
PLAIN, SPARING = {"recompute": "none"}, {"recompute": "selective", "sequence_parallel": True}

T5 = {
    "head_dim": 128, "vocabulary": 32128, "sequence_length": 512, "target_length": 512, "hidden": 1024,
    "norm": "rmsnorm", "bias": False, "dropout": False, "dtype": "bf16", "fused_kernels": False,
}  # fmt: skip
T5_11B = (
    "encoder-decoder",
    {**T5, "encoder_layers": 24, "decoder_layers": 24, "num_heads": 128, "ffn_hidden": 65536},
)

FACTS: list[tuple[str, tuple[str, dict[str, Any]], dict[str, Any], str, int, bool]] = [
    *((f"{name} tensor parallelism alone", model, {**fields, **PLAIN}, "dgx-a100", hosts, False)
      for name, (model, fields, hosts) in KORTHIKANTI.items()),
    *((f"{name} selective, sequence", model, {**fields, **SPARING}, "dgx-a100", hosts, True)
      for name, (model, fields, hosts) in KORTHIKANTI.items()),
    # Rajbhandari et al. 2020 (arXiv:1910.02054), section 10.2 and table: data parallelism alone ends at 1.4
    # billion parameters on V100 32 GB; ZeRO-2 reaches 13 billion on 128 of them.
    ("GPT-2 1.5B on one V100", gpt(48, 1600, 16, sequence_length=1024, max_positions=1024),
     {"micro_batch_size": 1, "recompute": "full"}, "dgx-1-v100-32gb", 1, True),
    ("2.5B replicated", gpt(54, 1920, 16, sequence_length=1024, max_positions=1024),
     {"micro_batch_size": 1, "recompute": "full"}, "dgx-1-v100-32gb", 2, False),
    ("13B ZeRO-2", gpt(62, 4096, 32, sequence_length=1024, max_positions=1024),
     {"micro_batch_size": 2, "recompute": "full", "state": "zero2"}, "dgx-1-v100-32gb", 16, True),
    ("13B ZeRO-1", gpt(62, 4096, 32, sequence_length=1024, max_positions=1024),
     {"micro_batch_size": 2, "recompute": "full", "state": "zero1"}, "dgx-1-v100-32gb", 16, False),
    # Zhao et al. 2023 (arXiv:2304.11277), figure 6: T5-11B runs out of memory with DDP on A100 80 GB, not
    # with FSDP on 8 of them.
    ("T5-11B DDP", T5_11B, {"micro_batch_size": 8, "recompute": "full"}, "dgx-a100", 1, False),
    ("T5-11B FSDP", T5_11B, {"micro_batch_size": 8, "recompute": "full", "state": "zero3"},
     "dgx-a100", 1, True),
    # Narayanan et al. 2021 (arXiv:2104.04473), table 1: ran on A100 80 GB with full recomputation.
    ("175B tp 8 pp 12", gpt(96, 12288, 96), {"tp": 8, "pp": 12, "micro_batch_size": 1, "recompute": "full"},
     "dgx-a100", 12, True),
    ("18B tp 8", gpt(40, 6144, 48), {"tp": 8, "micro_batch_size": 8, "recompute": "full"},
     "dgx-a100", 1, True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "fields", "host", "hosts", "fits"),
    [fact[1:] for fact in FACTS],
    ids=[fact[0] for fact in FACTS],
)
def test_published_fits_and_failures(
    model: tuple[str, dict[str, Any]], fields: dict[str, Any], host: str, hosts: int, fits: bool
) -> None:
    cluster = sim.cluster(host, num_hosts=hosts)
    ranks = fields.get("tp", 1) * fields.get("pp", 1)
    replicas = len(cluster.devices_per_host) * cluster.devices_per_host[0] // ranks
    count = max(1, 2 * fields.get("pp", 1) if fields.get("pp", 1) > 1 else 1)
    batch = replicas * fields["micro_batch_size"] * count
    if fields.get("virtual_stages"):
        fields = {**fields, "schedule": "interleaved"}
    workload = generate(
        model[0], {"name": "published", "optimizer": "adam", "global_batch_size": batch, **model[1]}
    )
    strategy = sim.strategy(**fields)
    calibration = Catalog().calibration("default")
    stages = memory_by_stage(
        Scenario(workload=workload, cluster=cluster, strategy=strategy, calibration=calibration)
    )
    peak = max(sum(stage.values()) for stage in stages)
    assert (peak <= cluster.main_device.capacity) == fits, f"{peak / 1e9:.1f} GB"


@pytest.mark.slow
def test_runs_that_ran_fit(catalog: Catalog) -> None:
    """All but a few of the calibration rows, which take up to 7 % more, and one that says what fits nowhere.

    That is Llama 3 70B whole on every GB300: weights and gradients alone are 282 of 279 GB.
    """
    calibration = catalog.calibration("default")
    rows = [
        row for row in read_rows(catalog.data_file(FILE)) if row.split == "calibration" and row.group != "VTS"
    ]
    over = {}
    runs = load_runs(rows, catalog).runs
    for run in runs:
        stages = memory_by_stage(run.scenario(calibration))
        share = max(sum(stage.values()) for stage in stages) / run.cluster.main_device.capacity
        if share > 1:
            over[run.row.id] = share
    assert over.pop("MBRG-0165") > 1.1
    assert len(over) <= 7, over
    assert max(over.values(), default=0) < 1.08, over
