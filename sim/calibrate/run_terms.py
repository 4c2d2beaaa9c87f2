"""How the step time of a measured run depends on the calibration, cheaply enough to fit it.

A run is simulated once; what a changed parameter does to its time is taken from the compute model alone: each
micro-batch, and each stage that fills the pipeline, costs its change of computation once, and the optimiser
and the fixed overhead cost theirs. Communication keeps the time it had. A fit is checked by simulating again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.models.checkpointing import KEPT_KINDS
from sim.models.compute import evaluate, optimizer_time, slowest_device, step_overhead
from sim.models.kernels import Kernels, compile_chain
from sim.models.memory import local_parameters
from sim.models.roofline import roof
from sim.spec import Calibration, Device
from sim.validate.runs_loader import Run, framework_calibration

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Shape:
    """What the compute time of a run depends on, beside the calibration.

    Attributes
    ----------
    kernels, dims : Kernels, float[K, 4]
        Compiled chain and its dimensions on one device.
    device, dtype, framework : Device, str, str
    micro_batch, slowest_of : float, int
    exchanges : float[L]
        Collectives launched in each direction of a layer.
    again : float[L]
        Times a layer's forward is run in a step's pass: 2 with full recomputation, 1 without.
    recompute : str
        Recomputation policy.
    early_stop : bool
        Full recomputation stops at what the backward of a block needs.
    """

    kernels: Kernels
    dims: FloatArray
    device: Device
    dtype: str
    framework: str
    micro_batch: float
    exchanges: FloatArray
    again: FloatArray
    recompute: str
    early_stop: bool
    slowest_of: int

    def seconds(self, calibration: Calibration) -> float:
        """Forward and backward of one micro-batch through all layers."""
        rates = roof.__wrapped__(self.device, self.dtype, calibration)
        variation = calibration.value("device", self.device.name, "speed_variation")
        slowdown = slowest_device(self.slowest_of, variation)
        costs = evaluate(self.kernels, self.dims, rates, self.micro_batch, self.exchanges, slowdown)
        total = float((costs.forward_s * self.again + costs.backward_s).sum())
        parts = {"selective": costs.recompute_selective_s, "alternate": costs.recompute_alternate_s}
        if self.early_stop:
            parts["full"] = -costs.unneeded_s
        return total + (float(parts[self.recompute].sum()) if self.recompute in parts else 0.0)

    @property
    def part(self) -> FloatArray:
        """Share of each entry's forward that policies which look at single operations run again; float[E].

        It is negative where full recomputation, which counts whole layers, stops earlier.
        """
        if self.recompute == "alternate":
            return self.kernels.alternate
        if self.early_stop:
            return -self.kernels.unneeded
        mine = self.kernels.selective[self.kernels.entry_op] * float(self.recompute == "selective")
        return np.asarray(mine, dtype=float)


@dataclass(frozen=True, eq=False)
class Term:
    """A run as a function of the calibration.

    Attributes
    ----------
    run : Run
    shape : Shape
    passes : float
        Micro-batches that follow each other on a device, the filling of the pipeline included, over stages.
    fixed_s : float
        Simulated step time less computation, optimiser and overhead.
    updated : float
        Parameters a device updates.
    """

    run: Run
    shape: Shape
    passes: float
    fixed_s: float
    updated: float

    def seconds(self, calibration: Calibration, compute_s: float) -> float:
        """Step time where one micro-batch takes ``compute_s``."""
        return self.fixed_s + self.passes * compute_s + self.other(calibration)

    def other(self, calibration: Calibration) -> float:
        """Optimiser and fixed overhead."""
        update = optimizer_time(
            self.updated,
            optimizer=str(self.run.params["optimizer"]),
            device=self.shape.device,
            dtype=self.shape.dtype,
            calibration=calibration,
            gradient_bytes=self.run.workload().gradient_bytes,
        )
        return update + step_overhead(calibration)


def make_terms(runs: list[Run], simulated_s: dict[str, float], calibration: Calibration) -> list[Term]:
    """Terms of all runs that were simulated, around the calibration they were simulated with."""
    shapes: dict[tuple[object, ...], Shape] = {}
    terms = []
    for run in runs:
        step = simulated_s.get(run.row.id)
        if step is None or not run.measured_s or "mbs" in run.assumed:  # a guessed batch teaches nothing
            continue
        key = _key(run)
        if key not in shapes:
            shapes[key] = _shape(run)
        shape, strategy = shapes[key], run.strategy
        passes = (run.micro_batches + (strategy.pp - 1) / strategy.virtual_stages) / strategy.pp
        layers = run.architecture
        sharded = strategy.state in ("zero1", "zero2", "zero3")
        updated = sum(local_parameters(layer, strategy) for layer in layers) / strategy.pp
        updated /= (strategy.dp or 1) * strategy.cp if sharded else 1
        draft = Term(run, shape, passes, 0.0, updated)
        own = framework_calibration(calibration, run.framework)
        known = draft.seconds(own, shape.seconds(own))
        terms.append(Term(run, shape, passes, step - known, updated))
    return terms


def _devices(run: Run) -> int:
    strategy = run.strategy
    return strategy.tp * strategy.cp * strategy.pp * (strategy.dp or 1)


def _key(run: Run) -> tuple[object, ...]:
    params = tuple(
        sorted(
            (k, str(v)) for k, v in run.params.items() if k not in ("name", "global_batch_size", "optimizer")
        )
    )
    s = run.strategy
    split = (
        s.tp,
        s.sequence_parallel,
        s.ep,
        s.expert_tp,
        s.expert_load,
        s.micro_batch_size,
        s.recompute,
        s.recompute_early_stop,
        s.cp,
    )
    return run.generator, params, split, run.cluster.main_device.name, run.framework, _devices(run)


def _shape(run: Run) -> Shape:
    layers, strategy = run.architecture, run.strategy
    kernels = compile_chain(layers, True)
    micro_batch = (strategy.micro_batch_size or 1) / strategy.cp
    whole = float(strategy.tp) if strategy.sequence_parallel else 1.0
    dims = kernels.scaled(
        (
            micro_batch,
            float(strategy.tp),
            whole,
            float(strategy.ep),
            strategy.expert_tensor_degree / strategy.tp,
            strategy.expert_load,
        )
    )
    recomputed = np.array([layer.kind not in KEPT_KINDS for layer in layers], float)
    return Shape(
        kernels=kernels,
        dims=dims,
        device=run.cluster.main_device,
        dtype=str(run.params["dtype"]),
        framework=run.framework,
        micro_batch=micro_batch,
        exchanges=np.array([float(layer.tensor_all_reduce and strategy.tp > 1) for layer in layers]),
        again=1.0 + recomputed * (strategy.recompute == "full"),
        recompute=strategy.recompute,
        early_stop=strategy.recompute == "full" and strategy.recompute_early_stop,
        slowest_of=_devices(run),
    )
