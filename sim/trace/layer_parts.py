"""What one recorded operator does, as the fields of a layer: its op, parameters and activations."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from sim.spec.device import Device
from sim.spec.layer import Attention, Convolution, Embedding, Gemm, LayerTime, MemoryBound
from sim.trace import operators as words
from sim.trace.operators import Operator


def layer_parts(operator: Operator, later: Sequence[Operator], batch: int) -> dict[str, Any] | None:
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
        return _layer("matmul", op, [], sides[0], sides[1], stored)
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


def surrogate_parts(found: dict[str, Any], device: Device | None, samples: int) -> dict[str, Any]:
    """A layer without shapes: an op that would take its forward time on the device it was measured on.

    Parameters
    ----------
    found : dict
        ``name``, ``_word`` (operator) and ``_sums``: forward, backward, forward and backward with the host
        (s), parameters.
    device : Device or None
        Without it the layer has times only, which hold on every device.
    samples : int
        Samples of the pass.
    """
    forward, backward, forward_host, backward_host, parameters = (float(v) for v in found["_sums"])
    measured = LayerTime(
        forward_s=forward,
        backward_s=backward,
        forward_host_s=forward_host if forward_host > forward else 0.0,
        backward_host_s=backward_host if backward_host > backward else 0.0,
        batch=samples,
    )
    embeds = found["_word"] in words.EMBEDDING
    kind = "conv" if found["_word"] in words.CONVOLUTION else ("embedding" if embeds else "linear")
    parts: dict[str, Any] = {"name": found["name"], "kind": kind, "measured": measured}
    if parameters >= 1:
        parts |= {"parameters": round(parameters), "tensors": (float(round(parameters)),)}
    if device is not None and forward > 0:
        if embeds:
            parts["ops"] = (MemoryBound(elements=forward * device.memory_bandwidth / 4 / samples),)
        else:
            # Half of the peak; only ratios between devices and batches matter.
            side = (forward * device.peak("fp32") / 4) ** (1 / 3)
            parts["ops"] = (Gemm(rows=side / samples, n=side, k=side),)
    return parts
