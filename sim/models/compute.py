"""Compute time of layers on one device, forward and backward, under tensor and expert parallelism.

time(kernel) = max(FLOPs / (peak * e(shape)), bytes / (bandwidth * e_mem)) + latency, see
:mod:`sim.models.roofline`; a layer's time is the larger of the sum over its kernels and the time the host
needs to launch them, which is what bounds models of many small kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from sim.errors import InputError
from sim.models.kernels import (
    BACKWARD_INPUT,
    FORWARD,
    MEASURED,
    Kernels,
    compile_chain,
    operation_flops,
)
from sim.models.measured import Measurement as Measurement
from sim.models.measured import replace_measured
from sim.models.roofline import Roof, kernel_times, roof
from sim.spec.calibration import Calibration
from sim.spec.device import Device
from sim.spec.layer import Layer
from sim.spec.workload import Workload, kept_bytes

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LayerCost:
    """Cost of one layer for one micro-batch on one device, in seconds.

    ``backward_input_s`` holds everything the backward pass needs before the previous layer can go on:
    input gradients of products, attention and memory-bound operations. ``backward_weight_s`` holds the
    weight gradients, which a schedule may defer. ``recompute_selective_s`` runs the attention core again,
    ``recompute_alternate_s`` all but attention and every second product; ``unneeded_s`` is the part of the
    forward that the block's backward does not need; ``attention_forward_s`` and ``attention_backward_s`` are
    the core's part of the two passes.
    ``forward_flops`` are those of this device, two per multiply-add.
    """

    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    recompute_selective_s: float
    recompute_alternate_s: float
    unneeded_s: float
    attention_forward_s: float
    attention_backward_s: float
    forward_flops: float
    num_kernels: int

    @property
    def backward_s(self) -> float:
        """Whole backward pass."""
        return self.backward_input_s + self.backward_weight_s


@dataclass(frozen=True)
class LayerCosts:
    """Costs of a chain, one array entry per layer; see :class:`LayerCost`. The arrays are read-only."""

    forward_s: FloatArray
    backward_input_s: FloatArray
    backward_weight_s: FloatArray
    recompute_selective_s: FloatArray
    recompute_alternate_s: FloatArray
    unneeded_s: FloatArray
    attention_forward_s: FloatArray
    attention_backward_s: FloatArray
    forward_flops: FloatArray
    num_kernels: npt.NDArray[np.int64]

    @property
    def backward_s(self) -> FloatArray:
        """Whole backward pass of every layer."""
        return np.asarray(self.backward_input_s + self.backward_weight_s)

    def __len__(self) -> int:
        return len(self.forward_s)

    def __getitem__(self, index: int) -> LayerCost:
        return LayerCost(
            float(self.forward_s[index]),
            float(self.backward_input_s[index]),
            float(self.backward_weight_s[index]),
            float(self.recompute_selective_s[index]),
            float(self.recompute_alternate_s[index]),
            float(self.unneeded_s[index]),
            float(self.attention_forward_s[index]),
            float(self.attention_backward_s[index]),
            float(self.forward_flops[index]),
            int(self.num_kernels[index]),
        )

    def __iter__(self) -> Iterator[LayerCost]:
        return (self[index] for index in range(len(self)))


def chain_cost(
    layers: Sequence[Layer],
    *,
    device: Device,
    dtype: str,
    micro_batch: float,
    calibration: Calibration,
    tp: int = 1,
    sequence_parallel: bool = False,
    ep: int = 1,
    expert_tp: int | None = None,
    expert_load: float = 1.0,
    first: bool = True,
    slowest_of: int = 1,
    measured: Measurement | None = None,
) -> LayerCosts:
    """Cost of every layer of a chain for one micro-batch on one device.

    Parameters
    ----------
    layers : sequence of Layer
        The chain, in forward order. Pass a workload's own tuple whole and slice the result: it is cached.
    device, dtype, calibration
        Where and in which precision; efficiencies come from the calibration.
    micro_batch : float
        Samples per micro-batch (divide by the context-parallel degree before).
    tp : int
        Tensor-parallel degree: columns, rows, heads and vocabulary are divided by it.
    sequence_parallel : bool
        Norms, dropout and residual additions are divided by ``tp`` too.
    ep : int
        Expert-parallel degree.
    expert_tp : int, optional
        Tensor-parallel degree inside an expert; ``tp`` if absent. A rank's experts see ``expert_tp / tp`` of
        the tokens of a tensor-parallel group.
    expert_load : float
        Tokens of the rank that is looked at over the mean of the expert-parallel ranks.
    first : bool
        Whether the chain's first layer is the model's first, which needs no input gradient.
    slowest_of : int
        Devices that wait for each other: equal devices differ a little in speed, and the slowest counts.
    measured : Measurement, optional
        Where the layers' measured times hold; on ``device`` itself if absent.

    Returns
    -------
    LayerCosts
        Arrays in the order of ``layers``.
    """
    if micro_batch <= 0:
        raise InputError("strategy.micro_batch_size", "be greater than 0", got=micro_batch)
    chain = tuple(layers)
    timed = any(layer.measured is not None for layer in chain)
    return _chain_cost(
        chain,
        device,
        dtype,
        float(micro_batch),
        tp,
        sequence_parallel,
        (ep, (expert_tp or tp) / tp, expert_load),
        first,
        slowest_of,
        calibration,
        (measured or Measurement(device, dtype)) if timed else None,
    )


def layer_cost(
    layer: Layer,
    *,
    device: Device,
    dtype: str,
    micro_batch: float,
    calibration: Calibration,
    tp: int = 1,
    sequence_parallel: bool = False,
    ep: int = 1,
    first: bool = False,
) -> LayerCost:
    """Cost of one layer; see :func:`chain_cost`."""
    return chain_cost(
        (layer,),
        device=device,
        dtype=dtype,
        micro_batch=micro_batch,
        calibration=calibration,
        tp=tp,
        sequence_parallel=sequence_parallel,
        ep=ep,
        first=first,
    )[0]


@lru_cache(maxsize=1024)
def _chain_cost(
    layers: tuple[Layer, ...],
    device: Device,
    dtype: str,
    micro_batch: float,
    tp: int,
    sequence_parallel: bool,
    experts: tuple[float, float, float],
    first: bool,
    slowest_of: int,
    calibration: Calibration,
    measured: Measurement | None,
) -> LayerCosts:
    kernels = compile_chain(layers, first)
    rates = roof(device, dtype, calibration)
    dims = kernels.scaled((micro_batch, float(tp), float(tp) if sequence_parallel else 1.0, *experts))
    exchanges = np.array([float(layer.tensor_all_reduce and tp > 1) for layer in layers])
    slowdown = slowest_device(slowest_of, calibration.value("device", device.name, "speed_variation"))
    costs = evaluate(kernels, dims, rates, micro_batch, exchanges, slowdown)
    if measured is None:
        return costs
    now = phase_seconds(kernels, dims, rates) * slowdown
    there = roof(measured.device, measured.dtype, calibration)
    reference = np.zeros_like(now)
    batches = np.array([layer.measured.batch if layer.measured else 0.0 for layer in layers])
    for batch in np.unique(batches[batches > 0]):
        seconds = phase_seconds(kernels, kernels.scaled((float(batch), 1.0, 1.0, 1.0)), there)
        reference[:, batches == batch] = seconds[:, batches == batch]
    return replace_measured(costs, layers, now, reference, micro_batch)


def phase_seconds(kernels: Kernels, dims: FloatArray, rates: Roof) -> FloatArray:
    """Device seconds of every layer in the three phases, without the host's limit: float[3, L]."""
    times = kernel_times(kernels, dims, rates)
    return np.stack([_to_layers(kernels, _to_operations(kernels, times, phase)) for phase in range(3)])


def slowest_device(count: int, variation: float) -> float:
    """Time of the slowest of ``count`` devices over that of the mean one.

    Speeds are normal with standard deviation ``variation``; the expected largest of n deviations is about
    sqrt(2 ln n) minus a correction (Cramér 1946, Mathematical methods of statistics, section 28.6). Devices
    of one kind differ by several percent (Sinha et al., SC 2022, arXiv:2208.11035).
    """
    if count < 2 or not variation:
        return 1.0
    root = math.sqrt(2 * math.log(count))
    expected = root - (math.log(math.log(count)) + math.log(4 * math.pi)) / (2 * root) + 0.5772 / root
    return 1.0 + variation * max(expected, 0.56)


def evaluate(
    kernels: Kernels,
    dims: FloatArray,
    rates: Roof,
    micro_batch: float,
    exchanges: FloatArray,
    slowdown: float = 1.0,
) -> LayerCosts:
    """Costs of a compiled chain at given rates; see :func:`chain_cost`.

    Parameters
    ----------
    kernels, dims
        Compiled chain and the dimensions of its kernels on one device.
    rates : Roof
    micro_batch : float
    exchanges : float[L]
        Collectives that the host launches in each direction of a layer.
    slowdown : float
        Factor on device time.
    """
    times = kernel_times(kernels, dims, rates) * slowdown
    grouped = np.maximum(dims[:, 3], 1.0)
    launches = np.where(kernels.grouped, grouped, kernels.launches * (kernels.kind != MEASURED))
    seconds, counts = zip(*(_sum_phase(kernels, times, launches, phase) for phase in range(3)), strict=True)
    collectives = exchanges * rates.collective_issue_time
    exposed, body = rates.exposed_launches, kernels.body
    forward = _host_bound(seconds[:1], counts[FORWARD] * rates.issue_time + collectives, exposed, body)[0]
    backward_input, backward_weight = _host_bound(
        seconds[1:3], (counts[1] + counts[2]) * rates.issue_time + collectives, exposed, body
    )
    cores = [_to_operations(kernels, times, phase) for phase in (FORWARD, BACKWARD_INPUT)]
    selective = _to_layers(kernels, kernels.selective * cores[0])
    alternate = _to_layers(kernels, cores[0], kernels.alternate)
    attend, attend_back = (_to_layers(kernels, kernels.attention * core) for core in cores)
    flops = _to_layers(kernels, kernels.flops * micro_batch / _flop_division(kernels, dims, micro_batch))
    costs = LayerCosts(
        forward_s=forward,
        backward_input_s=backward_input,
        backward_weight_s=backward_weight,
        recompute_selective_s=selective,
        recompute_alternate_s=alternate,
        unneeded_s=_to_layers(kernels, cores[0], kernels.unneeded),
        attention_forward_s=attend,
        attention_backward_s=attend_back,
        forward_flops=flops,
        num_kernels=sum(counts).astype(np.int64),
    )
    for array in vars(costs).values():
        array.flags.writeable = False
    return costs


def _host_bound(
    device_s: Sequence[FloatArray], host_s: FloatArray, exposed: float, body: npt.NDArray[np.bool_]
) -> list[FloatArray]:
    """Device seconds of the parts of a pass and of its launches by the host, as far as they show.

    The host runs ahead of the device (CUDA queues about a thousand launches), so what bounds is the whole
    pass and not each layer: long kernels of one layer hide the launches of another. The pass is that of the
    model's body: the head does not hide the launches of the many layers in front of it. Where a framework
    waits for the device (random states saved for recomputation, counts of routed tokens), the ``exposed``
    share of the launches adds to the device time of each layer.
    """
    busy = np.sum(device_s, axis=0)
    whole = busy + exposed * host_s
    if host_s[body].sum() > whole[body].sum():
        whole = np.where(body, host_s, whole)
    parts = len(device_s)
    return [
        np.where(busy > 0, part * whole / np.where(busy > 0, busy, 1.0), whole / parts) for part in device_s
    ]


def _to_operations(kernels: Kernels, values: FloatArray, phase: int) -> FloatArray:
    mine = kernels.phase == phase
    sums = np.bincount(kernels.owner[mine], weights=values[mine], minlength=kernels.num_operations)
    return sums.astype(float)


def _to_layers(kernels: Kernels, values: FloatArray, shares: FloatArray | float = 1.0) -> FloatArray:
    if not len(values):
        return np.zeros(kernels.num_layers)
    weights = values[kernels.entry_op] * shares
    sums = np.bincount(kernels.entry_layer, weights=weights, minlength=kernels.num_layers)
    return sums.astype(float)


def _sum_phase(
    kernels: Kernels, times: FloatArray, launches: FloatArray, phase: int
) -> tuple[FloatArray, FloatArray]:
    """Seconds and launches of every layer in one phase."""
    seconds = _to_layers(kernels, _to_operations(kernels, times, phase))
    counts = _to_layers(kernels, _to_operations(kernels, launches, phase))
    return seconds, counts


def _flop_division(kernels: Kernels, dims: FloatArray, micro_batch: float) -> FloatArray:
    """By what each operation's FLOPs are divided on one device: its kernels' volume against the unsharded."""
    mine = kernels.phase == FORWARD
    whole = kernels.dims[mine].prod(axis=1) * micro_batch
    ratio = np.ones(kernels.num_operations)
    ratio[kernels.owner[mine]] = whole / dims[mine].prod(axis=1)
    return ratio


@lru_cache(maxsize=256)
def model_flops(workload: Workload) -> float:
    """Forward FLOPs of one sample: two per multiply-add, causal attention counted full, no recomputation."""
    return float(sum(operation_flops(op) for layer in workload.layers for op in layer.ops))


OPTIMIZER_TRAFFIC: dict[str, float] = {
    "sgd": 8,
    "momentum": 16,
    "adagrad": 16,
    "adam": 24,
    "adamw": 24,
    "lamb": 36,
}
"""Bytes per parameter of fp32 weights and states read and written by a step: the weight (4 + 4) and each
state (4 + 4); LAMB also writes its update, reads it twice for the norms and reads the weight once more."""


def optimizer_time(
    num_parameters: float,
    *,
    optimizer: str,
    device: Device,
    dtype: str,
    calibration: Calibration,
    gradient_bytes: float | None = None,
) -> float:
    """Time of one optimiser step over ``num_parameters`` local parameters, in seconds.

    Memory-bound: fp32 weights and states, the gradient (read, then zeroed; of ``gradient_bytes`` an element,
    by default as wide as the compute copy) and, in mixed precision, the compute copy of the weight, over the
    attainable bandwidth. The framework's fixed ``step_overhead`` is not included; see
    :func:`step_overhead`.
    """
    if optimizer not in OPTIMIZER_TRAFFIC:
        known = ", ".join(OPTIMIZER_TRAFFIC)
        raise InputError("workload.optimizer", f"be one of {known}", got=optimizer)
    element = kept_bytes(dtype)
    copy = element if element < 4 else 0.0
    gradient = element if gradient_bytes is None else gradient_bytes
    traffic = OPTIMIZER_TRAFFIC[optimizer] + 2 * gradient + copy
    efficiency = calibration.value("framework", "default", "optimizer_bandwidth_efficiency")
    latency = calibration.value("device", device.name, "kernel_latency")
    return num_parameters * traffic / (device.memory_bandwidth * efficiency) + latency


def accumulation_bytes(workload: Workload, *, micro_batches: int, sharded: bool) -> float:
    """Bytes that a device moves per parameter and micro-batch to add up gradients, on average over a step.

    Autograd hands the first gradient over, casting it where sums are wider, and adds each further one in a
    pass of its own: the new gradient and the sum are read, the sum is written (PyTorch's AccumulateGrad).
    Fused, the product reads and writes the sum instead of writing a gradient (Megatron-LM,
    ``gradient_accumulation_fusion``). Gradients that are ``sharded`` after every micro-batch are only cast
    whole; what is added up is a shard, too little to count.
    """
    new, total = kept_bytes(workload.dtype), workload.gradient_bytes
    cast = new + total if total > new else 0.0
    if sharded:
        return cast
    if workload.fused_accumulation:
        return 2 * total - new if micro_batches > 1 or total > new else 0.0
    return (cast + (micro_batches - 1) * (new + 2 * total)) / micro_batches


def accumulation_time(
    num_parameters: float, each: float, *, device: Device, calibration: Calibration
) -> float:
    """Seconds to move ``each`` bytes for each of ``num_parameters`` gradients; see ``accumulation_traffic``.

    A calibration without that parameter leaves the addition out.
    """
    if not calibration.has("framework", "default", "accumulation_traffic"):
        return 0.0
    traffic = each * calibration.value("framework", "default", "accumulation_traffic")
    efficiency = calibration.value("device", device.name, "memory_efficiency")
    return num_parameters * traffic / (device.memory_bandwidth * efficiency)


def step_overhead(calibration: Calibration) -> float:
    """Fixed time per step outside kernels: loss scaling, gradient norm, data hand-over, Python (seconds)."""
    return calibration.value("framework", "default", "step_overhead")
