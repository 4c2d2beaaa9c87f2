"""The model that a trace shows -> a Workload whose strategy, cluster, batch and size can change.

Shapes come from recorded operators (Kineto with ``record_shapes``, or the execution trace of the same rank),
times from the kernels that they launched. Where there are no shapes the layers are described by what their
kernels' times mean on the device they ran on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from sim.errors import InputError
from sim.spec.device import Device
from sim.spec.layer import Layer, LayerTime
from sim.spec.workload import DType, Workload
from sim.trace import operators as words
from sim.trace.devices import catalogue_device
from sim.trace.issues import Issues
from sim.trace.job_workload import job_workload
from sim.trace.join import join_execution_traces
from sim.trace.layer_parts import layer_parts
from sim.trace.layer_times import LayerTimes, layer_times
from sim.trace.model import RankTrace, Trace
from sim.trace.operators import Operator
from sim.trace.simai import simai_workload
from sim.trace.timed_layers import kernel_operators, kernel_times, timed_groups
from sim.trace.transformer_structure import Group, Structure, annotate, merge_attention

_DTYPES: dict[str, DType] = {
    "float": "fp32", "c10::half": "fp16", "half": "fp16", "c10::bfloat16": "bf16", "bfloat16": "bf16",
}  # fmt: skip


@dataclass(frozen=True)
class ImportedWorkload:
    """A workload and what it was made from.

    Attributes
    ----------
    workload : Workload
    rank : RankTrace
        The rank it shows.
    times : LayerTimes or None
        Measured times; None if the trace has none and the model's are used.
    device : Device or None
        The device they were measured on, if the catalogue has it.
    issues : Issues
        What could not be had.
    """

    workload: Workload
    rank: RankTrace
    times: LayerTimes | None
    device: Device | None
    issues: Issues = field(default_factory=Issues)

    @property
    def measured_step_s(self) -> float | None:
        """Mean step of the trace without exposed communication (s)."""
        return None if self.times is None else self.times.step_s - self.times.exposed_s


def to_workload(
    trace: Trace, *, name: str, batch: int | None = None, device: Device | None = None
) -> Workload:
    """The workload alone, of any trace that has one; see :func:`import_workload`."""
    stated = stated_workload(trace, name)
    if stated is not None:
        return stated[0]
    return import_workload(trace, name=name, batch=batch, device=device).workload


def stated_workload(trace: Trace, name: str) -> tuple[Workload, dict[str, Any], Issues] | None:
    """Workload, strategy and findings of files that describe a whole job: SimAI's text, op tables."""
    if trace.simai is not None:
        return simai_workload(trace.simai, name)
    rank = next((rank for rank in trace.ranks if rank.job is not None), None)
    return None if rank is None else job_workload(rank, name)


def import_workload(
    trace: Trace, *, name: str, batch: int | None = None, device: Device | None = None
) -> ImportedWorkload:
    """A workload of the model that one rank of the trace runs.

    Parameters
    ----------
    trace : Trace
        Read with ``host=True``; the first rank that recorded shapes and times is used, else shapes, else
        times.
    name : str
        Name of the workload.
    batch : int, optional
        Samples of one forward pass and rank; by default the first dimension of the first operator's input.
    device : Device, optional
        What it ran on; by default the catalogue's device of the name in the trace.

    Returns
    -------
    ImportedWorkload
        One layer per operator (attention cores are one); pipelines may be cut before every layer with
        weights, in transformers before every block.

    Raises
    ------
    InputError
        If no rank recorded operators with shapes or with times.
    """
    join_execution_traces(trace)
    rank, times = _choose(trace)
    issues = Issues()
    issues.add("all_to_all_not_imported", sum(one.kind.startswith("all_to_all") for one in rank.collectives))
    found = device or catalogue_device(rank.device, rank.device_memory)
    if times is not None and not len(rank.timeline) and device is None:
        found = None  # the host's speed says nothing about the device
        issues.add("host_times")
    issues.add("device_not_in_catalogue", int(bool(times and len(rank.timeline)) and found is None))
    if times is None or any(_weighted(operator) for operator in rank.operators):
        built = _Shaped(rank, times, batch)
        groups, structure, samples = built.groups, built.structure, built.samples
    else:
        issues.add("shapes_unknown")
        issues.add("gradients_unknown", int(not times.gradient_bytes.sum()))
        issues.add("batch_unknown", int(batch is None))
        samples, structure = batch or 1, None
        operators = rank.operators
        if len(operators) != len(times.forward_s):
            issues.add("kernels_as_layers")
            operators = kernel_operators(rank)
        groups = timed_groups(operators, times, found, samples)
    workload = _workload(rank, groups, structure, times, found, name, samples)
    return ImportedWorkload(workload, rank, times, found, issues)


#: What a format lacks for a workload, and what to give instead.
_LACKING = {
    "": (
        "hold operators with their shapes, or compute kernels with times",
        "Record a Kineto trace with record_shapes=True, or give the execution trace of the rank too.",
    ),
    "chrome-timeline": (
        "say which spans compute, and what; a timeline of unknown origin does not",
        "Give a Kineto trace of a rank.",
    ),
    "goal": (
        "hold layers; a schedule has computation and messages without their meaning",
        "Give a Kineto trace of a rank.",
    ),
    "clusterloom": (
        "be a measured trace; this is a simulated timeline",
        "Use the workload that was simulated.",
    ),
    "tensor-timeline": (
        "hold compute times of layers and sizes of gradients; a tensor timeline has neither",
        "Give a Kineto trace of a rank.",
    ),
    "aicb-csv": (
        "hold layers with compute times and parameters; AICB's list has operations in a row",
        "Give the SimAI workload text that AICB writes with compute times.",
    ),
}


def _choose(trace: Trace) -> tuple[RankTrace, LayerTimes | None]:
    """The rank that says most, and its times."""
    shaped = [r for r in trace.ranks if any(_weighted(o) for o in r.operators)]
    for rank in shaped:
        times = layer_times(rank)
        if times is not None:
            return rank, times
    if shaped:
        return shaped[0], None
    timed = [(rank, times) for rank in trace.ranks if (times := layer_times(rank)) is not None]
    sending = [found for found in timed if found[1].gradient_bytes.sum() > 0]
    if sending or timed:
        return (sending or timed)[0]
    for rank in trace.ranks:
        if any(operator.inputs for operator in rank.operators):
            return rank, None
    for rank in trace.ranks:
        times = kernel_times(rank)
        if times is not None:
            return rank, times
    formats = sorted({r.format for r in trace.ranks})
    must, hint = _LACKING.get(formats[0] if len(formats) == 1 else "", _LACKING[""])
    raise InputError("trace", must, ", ".join(formats) or "none", hint=hint)


class _Shaped:
    """Groups of operators whose shapes are known."""

    def __init__(self, rank: RankTrace, times: LayerTimes | None, batch: int | None) -> None:
        operators = rank.operators
        found = one_pass(operators)
        # What comes before the first weights prepares the batch or the buffers, not the activations.
        first = next((i for i, o in enumerate(found) if _weighted(o)), 0)
        self.operators = found[first:]
        self.passes = _passes(operators, found)
        self.per_pass = batch or _batch(self.operators)
        self.samples = self.per_pass * self.passes
        groups = _groups(self.operators, self.per_pass)
        if not groups:
            got = ", ".join(sorted({o.name for o in self.operators})[:4])
            raise InputError("trace", "hold operators whose shapes make a layer", got)
        self.groups = merge_attention(groups, self.operators, self.per_pass)
        self.structure = annotate(self.groups)
        if self.structure is None:
            _cut_everywhere(self.groups)
        if times is not None:
            self._measure(operators, times, first, len(found))

    def _measure(self, operators: Sequence[Operator], times: LayerTimes, first: int, length: int) -> None:
        """Mean times of a pass; operators that are no layers count with the layer before them."""
        owner = np.zeros(length - first, np.int64)
        for number, group in enumerate(self.groups):
            owner[group.members] = number
        place = _places(operators, length)
        sums = np.zeros((4, len(self.groups)))
        columns = (times.forward_s, times.backward_s, times.forward_host_s, times.backward_host_s)
        # A layer is as slow as its device part or its host part; parts of operators add up one by one.
        forward, backward = (np.maximum(columns[i], columns[i + 2]) for i in (0, 1))
        for index, at in enumerate(place):
            mine = int(owner[max(at - first, 0)])
            sums[:, mine] += (columns[0][index], columns[1][index], forward[index], backward[index])
        sums /= self.passes
        for number, group in enumerate(self.groups):
            device_f, device_b, host_f, host_b = (float(v) for v in sums[:, number])
            group.parts["measured"] = LayerTime(
                forward_s=device_f,
                backward_s=device_b,
                forward_host_s=host_f if host_f > device_f else 0.0,
                backward_host_s=host_b if host_b > device_b else 0.0,
                batch=self.per_pass,
            )


def _places(operators: Sequence[Operator], length: int) -> list[int]:
    """Place of every operator of the step within one pass of ``length`` operators."""
    places, segment, at = [], operators[0].segment, 0
    for index, operator in enumerate(operators):
        if operator.segment != segment or (at >= length and index % length == 0):
            segment, at = operator.segment, 0
        places.append(min(at, length - 1))
        at += 1
    return places


def _passes(operators: Sequence[Operator], found: Sequence[Operator]) -> int:
    """How often the step runs the operators of one pass."""
    if operators[-1].segment:
        one = [(o.name, o.inputs) for o in found if _weighted(o)]
        segments = {o.segment for o in operators}
        same = [
            [(o.name, o.inputs) for o in operators if o.segment == number and _weighted(o)]
            for number in segments
        ]
        return max(1, sum(keys == one for keys in same))
    return max(1, len(operators) // len(found))


def one_pass(operators: Sequence[Operator]) -> Sequence[Operator]:
    """The first of several equal passes through the model (accumulation, several iterations in one step)."""
    if operators and operators[-1].segment:
        return [operator for operator in operators if operator.segment == operators[0].segment]
    at = [i for i, operator in enumerate(operators) if _weighted(operator)]
    keys = [(operators[i].name, operators[i].inputs) for i in at]
    for passes in range(min(len(at) // 2, 64), 1, -1):
        length, rest = divmod(len(at), passes)
        if not rest and length > 1 and len(set(keys[:length])) > 1 and keys == keys[:length] * passes:
            return operators[: at[length]]
    return operators


def _weighted(operator: Operator) -> bool:
    return bool(operator.inputs) and operator.name in words.CONVOLUTION | words.PRODUCT | words.EMBEDDING


def _batch(operators: Sequence[Operator]) -> int:
    first = operators[0]
    at = 1 if first.name in words.EMBEDDING or first.name == "aten::addmm" else 0
    given = first.inputs[at] if len(first.inputs) > at else ()
    return given[0] if given and given[0] > 0 else 1


def _groups(operators: Sequence[Operator], batch: int) -> list[Group]:
    """One group per operator whose shapes say what it does; the others join the one before."""
    groups: list[Group] = []
    seen: set[int] = set()
    for index, operator in enumerate(operators):
        parts = layer_parts(operator, operators[index + 1 :], batch)
        if parts is None:
            if groups:
                groups[-1].members.append(index)
            continue
        _share(parts, operator, seen)
        parts["name"] = f"{operator.name.removeprefix('aten::')} {index}"
        groups.append(Group(parts, [index]))
    return groups


def _cut_everywhere(groups: list[Group]) -> None:
    """Without blocks a pipeline may be cut before every layer with weights."""
    block = -1
    for group in groups:
        block += group.parts["kind"] in ("conv", "linear", "attention", "matmul", "embedding")
        group.block = max(block, 0)


def _share(parts: dict[str, Any], operator: Operator, seen: set[int]) -> None:
    """Weights that an earlier layer owns (a tied embedding) are shared, not counted again."""
    if not parts["tensors"] or not operator.storages:
        return
    weight = parts["tensors"][0]
    pairs = zip(operator.inputs, operator.storages, strict=False)
    storages = {storage for given, storage in pairs if storage and prod(given) == weight and len(given) > 1}
    if storages & seen:
        parts["tensors"] = parts["tensors"][1:]
        parts["parameters"] = sum(parts["tensors"])
        parts["shared_parameters"] = weight
    seen |= storages


def _workload(
    rank: RankTrace,
    groups: list[Group],
    structure: Structure | None,
    times: LayerTimes | None,
    device: Device | None,
    name: str,
    samples: int,
) -> Workload:
    layers = tuple(Layer(block=group.block, **group.parts) for group in groups)
    kinds = {layer.kind for layer in layers}
    family = "cnn" if "conv" in kinds else ("transformer" if structure is not None else "mlp")
    first = next((o for o in rank.operators if _weighted(o)), None)
    how = "from its shapes" if times is None else f"with times of {rank.device or 'an unnamed device'}"
    extra: dict[str, Any] = {}
    if times is not None:
        extra = {"optimizer_time": times.update_s, "step_overhead": times.rest_s}
        if not any(layer.parameters for layer in layers):  # nothing that an update could be a part of
            extra = {"optimizer_time": 0.0, "step_overhead": times.update_s + times.rest_s}
        if device is not None:
            extra["measured_on"] = device
    if structure is not None:
        extra |= vars(structure)
    return Workload(
        name=name,
        description=f"Imported from a trace of one rank, {samples} samples per step, {how}.",
        source="imported trace",
        layers=layers,
        family=family,
        dtype="fp32" if first is None else _DTYPES.get(first.dtype.lower(), "fp32"),
        optimizer=rank.optimizer or "momentum",
        batch_per_device=samples,
        **extra,
    )


def workload_data(workload: Workload) -> dict[str, Any]:
    """The workload as YAML data: what is not default, what each operation is, quantities with units."""
    data = workload.to_data()
    if isinstance(workload.measured_on, Device):
        data["measured_on"] = workload.measured_on.name
    for layer, spec in zip(data["layers"], workload.layers, strict=True):
        if spec.ops:
            layer["ops"] = [
                {"op": op.op, **fields} for op, fields in zip(spec.ops, layer["ops"], strict=True)
            ]
    return {"schema": 1, **data}
