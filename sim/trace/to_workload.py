"""The forward pass that a trace shows -> a Workload whose strategy, cluster and batch can change."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from sim.errors import InputError
from sim.spec.layer import Attention, Convolution, Embedding, Gemm, Layer, MemoryBound
from sim.spec.workload import DType, Workload
from sim.trace import operators as words
from sim.trace.model import Trace
from sim.trace.operators import Operator

_DTYPES: dict[str, DType] = {
    "float": "fp32", "c10::half": "fp16", "half": "fp16", "c10::bfloat16": "bf16", "bfloat16": "bf16",
}  # fmt: skip


def to_workload(trace: Trace, *, name: str, batch: int | None = None) -> Workload:
    """A workload of the model that one rank of the trace runs, from the shapes of its forward operators.

    Parameters
    ----------
    trace : Trace
        Read with ``host=True``; the first rank that recorded shapes is used.
    name : str
        Name of the workload.
    batch : int, optional
        Samples per step and rank; by default the first dimension of the first operator's input.

    Returns
    -------
    Workload
        One layer per operator; pipelines may be cut before every layer with weights.

    Raises
    ------
    InputError
        If no rank recorded operators with shapes.
    """
    rank = next((r for r in trace.ranks if any(_weighted(o) for o in r.operators)), None)
    if rank is None:
        raise InputError(
            "trace",
            "hold forward operators with their shapes",
            ", ".join(sorted({r.format for r in trace.ranks})) or "none",
            hint="Record with record_shapes=True, or give the execution trace.",
        )
    found = one_pass(rank.operators)
    # What comes before the first weights prepares the batch or the buffers, not the activations.
    found = found[next(i for i, o in enumerate(found) if _weighted(o)) :]
    samples = batch or _batch(found)
    layers = _layers(found, samples)
    kinds = {layer.kind for layer in layers}
    family = "cnn" if "conv" in kinds else ("transformer" if "attention" in kinds else "mlp")
    first = found[0]
    return Workload(
        name=name,
        description=f"Imported from a trace of one rank with {samples} samples per step.",
        source="imported trace",
        layers=tuple(layers),
        family=family,
        dtype=_DTYPES.get(first.dtype.lower(), "fp32"),
        optimizer=rank.optimizer or "momentum",
        batch_per_device=samples,
    )


def workload_data(workload: Workload) -> dict[str, Any]:
    """The workload as YAML data: what is not default, and what each operation is."""
    data = workload.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    for layer, spec in zip(data["layers"], workload.layers, strict=True):
        if spec.ops:
            layer["ops"] = [
                {"op": op.op, **fields} for op, fields in zip(spec.ops, layer["ops"], strict=True)
            ]
    return {"schema": 1, **data}


def one_pass(operators: Sequence[Operator]) -> Sequence[Operator]:
    """The first of several equal passes through the model (accumulation, several iterations in one step)."""
    at = [i for i, operator in enumerate(operators) if _weighted(operator)]
    keys = [(operators[i].name, operators[i].inputs) for i in at]
    for passes in range(min(len(at) // 2, 64), 1, -1):
        length, rest = divmod(len(at), passes)
        if not rest and length > 1 and keys == keys[:length] * passes:
            return operators[: at[length]]
    return operators


def _weighted(operator: Operator) -> bool:
    return operator.name in words.CONVOLUTION | words.PRODUCT | words.EMBEDDING


def _batch(operators: Sequence[Operator]) -> int:
    first = operators[0]
    at = 1 if first.name in words.EMBEDDING or first.name == "aten::addmm" else 0
    given = first.inputs[at] if len(first.inputs) > at else ()
    return given[0] if given and given[0] > 0 else 1


def _layers(operators: Sequence[Operator], batch: int) -> list[Layer]:
    layers: list[Layer] = []
    block = -1
    seen: set[int] = set()
    for index, operator in enumerate(operators):
        parts = _parts(operator, operators[index + 1 :], batch)
        if parts is None:
            continue
        _share(parts, operator, seen)
        if parts["kind"] in ("conv", "linear", "attention", "embedding"):
            block += 1
        layers.append(Layer(name=f"{operator.name.removeprefix('aten::')} {index}", block=block, **parts))
    return layers


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


def _parts(operator: Operator, later: Sequence[Operator], batch: int) -> dict[str, Any] | None:
    """Fields of the layer of one operator; None where its shapes do not say what it does."""
    given = operator.inputs
    if not given or (not given[0] and operator.name != "aten::addmm"):
        return None
    if operator.name in words.CONVOLUTION:
        return _convolution(operator, later, batch)
    if operator.name in words.PRODUCT:
        return _product(operator, batch)
    if operator.name in words.EMBEDDING:
        return _embedding(given, batch)
    if operator.name in words.ATTENTION:
        return _attention(given, batch)
    return _memory_bound(operator, batch)


def _convolution(operator: Operator, later: Sequence[Operator], batch: int) -> dict[str, Any] | None:
    image, weight = operator.inputs[0], operator.inputs[1] if len(operator.inputs) > 1 else ()
    if len(image) != 4 or len(weight) != 4 or not weight[1]:
        return None
    output = operator.output or _next_image(later, weight[0]) or (image[0], weight[0], image[2], image[3])
    if len(output) != 4:
        return None
    bias = weight[0] if len(operator.inputs) > 2 and operator.inputs[2] == (weight[0],) else 0
    op = Convolution(
        in_channels=image[1],
        out_channels=weight[0],
        kernel=(weight[2], weight[3]),
        out_height=output[2],
        out_width=output[3],
        stride=max(1, round(image[2] / output[2])) if output[2] else 1,
        groups=max(1, image[1] // weight[1]),
    )
    tensors = [float(prod(weight))] + ([float(bias)] if bias else [])
    return _layer("conv", op, tensors, prod(image) / batch, prod(output) / batch, prod(image) / batch)


def _next_image(later: Sequence[Operator], channels: int) -> tuple[int, ...] | None:
    """What the next operator reads, if it can be this one's result."""
    for operator in later[:2]:
        if operator.inputs and len(operator.inputs[0]) == 4 and operator.inputs[0][1] == channels:
            return operator.inputs[0]
    return None


def _product(operator: Operator, batch: int) -> dict[str, Any] | None:
    given = list(operator.inputs)
    bias: tuple[int, ...] = ()
    if operator.name in ("aten::addmm", "aten::baddbmm"):
        bias = given.pop(0)
    elif operator.name == "aten::linear" and len(given) > 2:
        bias = given[2]
    if len(given) < 2 or len(given[0]) < 2 or len(given[1]) < 2:
        return None
    left, right = given[0], given[1]
    k, n = left[-1], (right[0] if operator.name == "aten::linear" else right[-1])
    if 0 in (k, n, prod(left)):
        return None
    rows = prod(left[:-1])
    sides = (prod(left) / batch, rows * n / batch, prod(left) / batch)
    if len(right) > 2:  # both sides are activations
        many = prod(left[:-2])
        op = Gemm(rows=left[-2], n=n, k=k, batch=many / batch)
        stored = (prod(left) + prod(right)) / batch
        return _layer("attention", op, [], sides[0], sides[1], stored)
    tensors = [float(n * k)] + ([float(n)] if bias == (n,) else [])
    return _layer("linear", Gemm(rows=rows / batch, n=n, k=k), tensors, *sides)


def _embedding(given: tuple[tuple[int, ...], ...], batch: int) -> dict[str, Any] | None:
    if len(given) < 2 or len(given[0]) != 2 or not given[1]:
        return None
    (vocabulary, width), rows = given[0], prod(given[1]) / batch
    if not vocabulary or not width or not rows:
        return None
    out = rows * width
    return _layer(
        "embedding", Embedding(rows=rows, width=width), [float(vocabulary * width)], rows, out, rows
    )


def _attention(given: tuple[tuple[int, ...], ...], batch: int) -> dict[str, Any] | None:
    if len(given) < 2 or len(given[0]) != 4 or len(given[1]) != 4 or not all(given[0] + given[1]):
        return None
    (_, heads, queries, width), (_, kv_heads, keys, _) = given[0], given[1]
    op = Attention(
        query_length=queries, key_length=keys, heads=heads, kv_heads=kv_heads, head_dim=width, flash=True
    )
    moved = prod(given[0]) / batch
    stored = (2 * prod(given[0]) + 2 * prod(given[1])) / batch
    return _layer("attention", op, [], moved, moved, stored)


def _memory_bound(operator: Operator, batch: int) -> dict[str, Any]:
    """Norms, pools, element-wise operators: the activation in and out; a norm's vectors are parameters."""
    given = operator.inputs
    inside = prod(given[0])
    outside = prod(operator.output) if operator.output else inside
    tensors: list[float] = []
    kind = "pool" if operator.name in words.POOL else "elementwise"
    if operator.name in words.NORM:
        kind = "norm"
        vectors = [s for s in given[1:] if len(s) == 1]
        # Batch norm also lists its running mean and variance, which are not trained.
        tensors = [float(s[0]) for s in vectors[:2]]
    others = sum(prod(s) for s in given[1:] if s and prod(s) >= inside)
    elements = (inside + others + outside) / batch
    in_place = operator.name.endswith("_")
    op = MemoryBound(elements=elements)
    return _layer(kind, op, tensors, inside / batch, outside / batch, 0.0 if in_place else inside / batch)


def _layer(
    kind: str, op: Any, tensors: list[float], inside: float, outside: float, stored: float
) -> dict[str, Any]:
    return {
        "kind": kind,
        "ops": (op,),
        "parameters": sum(tensors),
        "tensors": tuple(tensors),
        "input_elements": inside,
        "output_elements": outside,
        "stored_elements": stored,
    }
