"""SimAI and ASTRA-sim workload text -> a Workload: times of layers on one device of a tensor-parallel group.

The text states what one device of a fixed layout does. Unsharded times are those times the tensor-parallel
degree; parameters follow from the gradients that the text exchanges, spread over the layers by the time of
their weight gradients where it states only their sum.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from sim.errors import InputError
from sim.spec.layer import Layer, Measured
from sim.spec.workload import Workload
from sim.trace.issues import Issues
from sim.trace.model import collective_kind

#: Rows that are no layers: what happens once per step.
_ONCE = re.compile(r"^(grad_|norm$|layernorm$|optimizer|cross_entropy|embedding_norm|train_iter|param)")
_ELEMENT_BYTES = 2  # activations are exchanged in 16 bits
_MASTER_BYTES = 4  # gradients of mixed precision are reduced in fp32


@dataclass(frozen=True)
class SimaiRow:
    """A line: seconds of the three passes, and the collective (word, bytes) after each."""

    name: str
    forward_s: float
    input_gradient_s: float
    weight_gradient_s: float
    forward: tuple[str, float]
    input_gradient: tuple[str, float]
    weight_gradient: tuple[str, float]

    @property
    def compute_s(self) -> float:
        """All three passes."""
        return self.forward_s + self.input_gradient_s + self.weight_gradient_s


@dataclass
class SimaiTable:
    """All of a workload text; ``header``: its words (``model_parallel_NPU_group``, ``ep``, ``pp`` ...)."""

    header: dict[str, str]
    rows: list[SimaiRow] = field(default_factory=list)

    def degree(self, *names: str) -> int:
        """A degree of the header; 1 if it is not stated."""
        for name in names:
            text = self.header.get(name, "")
            if text.isdigit() and int(text[:9]) > 0:
                return int(text[:9])
        return 1

    def strategy(self, world_size: int | None = None) -> dict[str, int]:
        """The strategy that the text describes; with ``world_size``, data parallel over the rest."""
        found = {"tp": self.degree("model_parallel_NPU_group"), "pp": self.degree("pp", "PP")}
        if world_size:
            found["dp"] = max(1, world_size // (found["tp"] * found["pp"]))
        found["ep"] = self.degree("ep")
        return {**{key: value for key, value in found.items() if value != 1}, "micro_batch_size": 1}


def simai_workload(table: SimaiTable, name: str) -> tuple[Workload, dict[str, int], Issues]:
    """Workload, the strategy that the text describes, and findings.

    Raises
    ------
    InputError
        If no row has a time.
    """
    issues, tensor = Issues(), table.degree("model_parallel_NPU_group")
    layers = [row for row in table.rows if not _ONCE.match(row.name)]
    once = [row for row in table.rows if _ONCE.match(row.name)]
    if not any(row.compute_s > 1e-6 for row in layers):
        raise InputError("workload text", "hold layers with compute times", name)
    parameters = _parameters(layers, once, tensor, issues)
    workload = Workload(
        name=name,
        description=f"Imported from a workload text of a device in a tensor-parallel group of {tensor}.",
        source="imported trace",
        layers=tuple(
            _layer(row, number, block, elements, tensor)
            for number, (row, block, elements) in enumerate(
                zip(layers, _blocks(layers), parameters, strict=True)
            )
        ),
        family="transformer" if any("attention" in row.name for row in layers) else "mlp",
        dtype="bf16",
        optimizer="adam",
        batch_per_device=table.degree("ga"),
        step_overhead=sum(row.compute_s for row in once),
        num_experts=table.degree("ep") if table.degree("ep") > 1 else None,
    )
    return workload, table.strategy(), issues


def _kind(collective: tuple[str, float]) -> str:
    return collective_kind(collective[0].partition("_")[0])


def _parameters(layers: list[SimaiRow], once: list[SimaiRow], tensor: int, issues: Issues) -> list[float]:
    """Parameters of each layer, unsharded."""
    own = [
        row.weight_gradient[1] / _ELEMENT_BYTES * tensor if row.weight_gradient[1] > 0 else 0.0
        for row in layers
    ]
    if sum(own) > 0:
        return own
    sent = max(
        (
            row.weight_gradient[1]
            for row in once
            if _kind(row.weight_gradient) in ("reduce_scatter", "all_reduce")
        ),
        default=0.0,
    )
    if not sent:
        issues.add("gradients_unknown")
        return [0.0] * len(layers)
    weight = [row.weight_gradient_s for row in layers]
    total = sum(weight)
    return [sent / _MASTER_BYTES * tensor * (w / total if total else 1 / len(weight)) for w in weight]


def _blocks(layers: list[SimaiRow]) -> list[int]:
    """A transformer may be cut before each attention part, anything else before every layer."""
    attention = ["attention" in row.name for row in layers]
    if not any(attention):
        return list(range(len(layers)))
    starts = [now and not before for before, now in zip([False, *attention], attention, strict=False)]
    return [max(sum(starts[: i + 1]) - 1, 0) for i in range(len(layers))]


def _layer(row: SimaiRow, number: int, block: int, parameters: float, tensor: int) -> Layer:
    reduces = _kind(row.forward) in ("reduce_scatter", "all_reduce")
    experts = "all_to_all" in (_kind(row.forward), _kind(row.input_gradient))
    elements = round(parameters)
    moved = max(row.forward[1], row.input_gradient[1]) / _ELEMENT_BYTES
    op = Measured(
        forward_s=row.forward_s * tensor,
        backward_s=(row.input_gradient_s + row.weight_gradient_s) * tensor,
    )
    return Layer(
        name=f"{row.name} {number}",
        kind="attention" if "attention" in row.name else ("embedding" if "embed" in row.name else "mlp"),
        block=block,
        ops=(op,),
        parameters=0 if experts else elements,
        tensor_parameters=0 if experts else elements,
        expert_parameters=elements if experts else 0,
        tensors=(float(elements),) if elements else (),
        input_elements=moved,
        output_elements=moved,
        stored_elements=moved,
        tensor_all_reduce=reduces and not experts,
        expert_elements=moved if experts else 0,
    )
