"""Op tables of pipeline-parallel jobs -> a Workload: one layer per stage and model chunk, with times.

The tables say how long a micro-batch's forward and backward took on every rank, not what was computed. The
times are those of one tensor-parallel rank; sizes of parameters and activations are unknown.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.errors import InputError
from sim.spec.device import Device
from sim.spec.layer import Layer
from sim.spec.workload import Workload
from sim.trace.issues import Issues
from sim.trace.layer_parts import surrogate_parts
from sim.trace.model import JobTable, RankTrace

BoolArray = npt.NDArray[np.bool_]


def job_workload(
    rank: RankTrace, name: str, *, device: Device | None = None, parameters: float = 0.0
) -> tuple[Workload, dict[str, Any], Issues]:
    """Workload, the strategy that the table shows, and findings.

    Parameters
    ----------
    rank : RankTrace
        Any rank of the job, with ``job``.
    name : str
        Name of the workload.
    device : Device, optional
        What it ran on; without it times hold on every device.
    parameters : float
        Of each stage, if known from elsewhere: the table has none.

    Returns
    -------
    Workload
        A sample is a micro-batch; a layer takes its mean over replicas, steps and micro-batches, the
        convention of the job's ideal step without stragglers.
    dict
        Fields of a strategy.

    Raises
    ------
    InputError
        If the table holds no forward and backward times.
    """
    job, issues = rank.job, Issues()
    assert job is not None
    stages = np.unique(job.stage[_rows(job, "forward-compute")]).tolist()
    chunks = np.unique(np.maximum(job.chunk[_rows(job, "forward-compute")], 0)).tolist()
    layers: list[Layer] = []
    for chunk, stage in itertools.product(chunks, stages):  # a micro-batch passes all stages, chunk by chunk
        forward, backward = (
            _mean(job, word, stage, chunk) for word in ("forward-compute", "backward-compute")
        )
        if forward or backward:
            label = f"stage {stage}" + (f" chunk {chunk}" if len(chunks) > 1 else "")
            sums = (forward, backward, 0.0, 0.0, parameters / len(chunks))
            parts = surrogate_parts({"name": label, "_word": "", "_sums": sums}, device, 1)
            layers.append(Layer(block=len(layers), **{**parts, "kind": "mlp"}))
    if not layers:
        raise InputError(
            "op table", "hold forward-compute and backward-compute with times", ", ".join(job.optypes)
        )
    issues.add("shapes_unknown")
    issues.add("gradients_unknown", int(not parameters))
    replicas, micro_batches = len(np.unique(job.dp_rank)), _micro_batches(job)
    strategy: dict[str, Any] = {"pp": len(stages), "dp": replicas, "micro_batch_size": 1}
    if len(chunks) > 1:
        strategy["virtual_stages"] = len(chunks)
    updating = _mean(job, "optimizer") * _per_step(job, "optimizer")
    workload = Workload(
        name=name,
        description=f"Imported from the op table of a job, {len(stages)} stages; a sample is a micro-batch.",
        source="imported trace",
        layers=tuple(layers),
        family="mlp",
        dtype="bf16",
        optimizer="adam",
        batch_per_device=micro_batches,
        measured_on=device,
        # Where there are parameters, their update is a task of its own.
        **{"optimizer_time" if parameters else "step_overhead": updating},
    )
    return (
        workload,
        {key: value for key, value in strategy.items() if value != 1 or key == "micro_batch_size"},
        issues,
    )


def _rows(job: JobTable, word: str) -> BoolArray:
    return np.asarray(job.optype == (job.optypes.index(word) if word in job.optypes else -1), np.bool_)


def _mean(job: JobTable, word: str, stage: int | None = None, chunk: int = 0) -> float:
    """Mean seconds of an op type, of one stage and chunk or of all; 0 without any."""
    mine = _rows(job, word)
    if stage is not None:
        mine &= (job.stage == stage) & (np.maximum(job.chunk, 0) == chunk)
    return float(job.duration[mine].mean()) if mine.any() else 0.0


def _per_step(job: JobTable, word: str) -> float:
    """How often a rank runs an op type in a step."""
    mine = _rows(job, word)
    pairs = len(np.unique(np.stack([job.rank[mine], job.step[mine]], axis=1), axis=0))
    return float(mine.sum() / pairs) if pairs else 0.0


def _micro_batches(job: JobTable) -> int:
    """Micro-batches of a replica and step."""
    mine = _rows(job, "forward-compute") & (job.stage == job.stage.min()) & (job.chunk <= 0)
    pairs = len(np.unique(np.stack([job.rank[mine], job.step[mine]], axis=1), axis=0))
    return max(1, round(mine.sum() / pairs)) if pairs else 1
