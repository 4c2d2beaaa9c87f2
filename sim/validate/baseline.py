"""What a prediction has to beat: one constant utilisation per device and precision, and published figures.

The baseline knows no parallelism, no communication and no shapes: a step takes its floating-point work
(forward and backward, recomputation included) over a constant rate per device. The rate of a device and
precision is fitted on calibration rows, sources weighted alike; other rows use it unchanged.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache

from sim.models.kernels import operation_flops
from sim.spec.layer import Layer
from sim.validate.runs_loader import Run

PUBLISHED: dict[str, tuple[float, str]] = {
    "VTM": (11.1, "Calculon out of the box, 103 of 109 rows (11.1 to 15.4)"),
    "VTS": (8.37, "vTrain, claimed by its authors"),
    "MBRG": (5.62, "SimuMax v1.2, B200 rows of its own table"),
    "INTERN": (4.98, "Zhang et al., arXiv:2509.22832, other A100 runs"),
    "NFL": (4.98, "Zhang et al., arXiv:2509.22832, other A100 runs"),
}
"""Best published error of another tool: MAPE of step time in percent, by source."""


def work(run: Run) -> float:
    """FLOPs of one device in a step: three forward passes, four with full recomputation."""
    strategy = run.strategy
    devices = strategy.tp * strategy.cp * strategy.pp * (strategy.dp or 1)
    passes = 4.0 if strategy.recompute == "full" else 3.0
    return passes * _forward_flops(run.architecture) * float(run.params["global_batch_size"]) / devices


@lru_cache(maxsize=2048)
def _forward_flops(layers: tuple[Layer, ...]) -> float:
    """FLOPs of one sample, two per multiply-add, causal attention counted full."""
    return float(sum(operation_flops(op) for layer in layers for op in layer.ops))


def key(run: Run) -> tuple[str, str]:
    """(Device, precision) of a run."""
    return run.cluster.main_device.name, str(run.params["dtype"])


def constant_rates(runs: Iterable[Run]) -> dict[tuple[str, str], float]:
    """FLOP/s per device and precision: the geometric mean over calibration rows, sources weighted alike."""
    logs: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.row.split == "calibration" and run.measured_s:
            logs[key(run)][run.row.group].append(math.log(work(run) / run.measured_s))
    return {
        name: math.exp(sum(sum(values) / len(values) for values in sources.values()) / len(sources))
        for name, sources in logs.items()
    }


def constant_prediction(run: Run, rates: dict[tuple[str, str], float]) -> float | None:
    """Step time in seconds by the baseline; None if no calibration row has the device and precision."""
    rate = rates.get(key(run))
    if rate is None:  # the same chip with other memory, or the utilisation of another device
        device, dtype = key(run)
        chip = device.split("-")[0]
        alike = [r for (name, kind), r in rates.items() if kind == dtype and name.split("-")[0] == chip]
        rate = alike[0] if alike else None
    return None if rate is None else work(run) / rate
