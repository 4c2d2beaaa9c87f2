"""A change of the compute or memory model shows here: update the numbers knowingly, and say why.

Seconds of one micro-batch (forward, backward), optimiser seconds and total bytes, to 1e-6 relative.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.catalog import Catalog
from sim.models.compute import chain_cost, optimizer_time
from sim.models.memory import stage_memory
from sim.spec import Strategy

GOLDEN = Path(__file__).with_name("costs.json")
CASES = {
    "resnet50-v100-fp32": ("resnet50", "v100-16gb", "fp32", 128, {}),
    "resnet50-v100-fp16": ("resnet50", "v100-16gb", "fp16", 256, {}),
    "bert-base-v100-fp16": ("bert-base", "v100-16gb", "fp16", 96, {}),
    "gpt3-175b-a100-tp8": ("gpt3-175b", "a100-80gb", "fp16", 1, {"tp": 8, "sequence_parallel": True}),
    "llama3-8b-h100": ("llama3-8b", "h100-80gb", "bf16", 1, {}),
    "mixtral-h100-ep8": ("mixtral-8x7b", "h100-80gb", "bf16", 1, {"ep": 8}),
}


def costs(catalog: Catalog, case: str) -> dict[str, float]:
    name, device_name, dtype, batch, degrees = CASES[case]
    workload, device = catalog.workload(name, dtype=dtype), catalog.device(device_name)
    calibration = catalog.calibration("default")
    chain = chain_cost(
        workload.layers, device=device, dtype=dtype, micro_batch=batch, calibration=calibration, **degrees
    )
    strategy = Strategy(**degrees)
    sizes = stage_memory(
        workload.layers,
        strategy=strategy,
        workload=workload,
        micro_batch=batch,
        dp=8,
        calibration=calibration,
    )
    return {
        "forward_s": float(chain.forward_s.sum()),
        "backward_s": float(chain.backward_s.sum()),
        "optimizer_s": optimizer_time(
            workload.num_parameters,
            optimizer=workload.optimizer,
            device=device,
            dtype=dtype,
            calibration=calibration,
        ),
        "memory_bytes": sum(sizes.values()),
    }


@pytest.mark.parametrize("case", CASES)
def test_costs(catalog: Catalog, case: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    assert costs(catalog, case) == pytest.approx(golden[case], rel=1e-6)
