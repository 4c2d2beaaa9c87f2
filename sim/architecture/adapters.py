"""Low-rank adapters (LoRA, Hu et al. 2022, arXiv:2106.09685): weights are frozen, small ones beside train.

Beside each targeted product x W lies x A B with ``rank`` columns between. Backward computes gradients of
activations through W, but none of W: two thirds of the products of full training. What only the gradient of a
frozen weight would need, its input, is not kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from sim.spec.base import Spec
from sim.spec.layer import Attention, Convolution, Gemm, Layer, MemoryBound, Op


class Adapters(Spec):
    """How the weights of a network are frozen; any generator takes these fields."""

    adapter_rank: int | None = Field(
        None, ge=1, description="columns of low-rank adapters; all other weights are frozen. None: all train"
    )
    adapter_targets: Literal["attention", "all"] = Field(
        "all", description="products with an adapter: those of attention, or of feed-forward networks, too"
    )
    frozen_bits: float | None = Field(
        None, gt=0, description="bits of a frozen weight, e.g. 4.127 for QLoRA; the compute type's if absent"
    )


def frozen(layers: Iterable[Layer]) -> list[Layer]:
    """Layers of which nothing is trained and, in front of all that is, nothing is kept."""
    return [
        layer.replace(
            ops=tuple(_fixed(op) for op in layer.ops), parameters=0.0, tensors=(), tensor_parameters=0.0,
            frozen_parameters=layer.parameters, frozen_tensor_parameters=layer.tensor_parameters,
            stored_elements=0.0, stored_tensor_elements=0.0, stored_selective_elements=0.0, kind="frozen",
        )
        for layer in layers
    ]  # fmt: skip


def _fixed(op: Op) -> Op:
    """An operation whose weights are not trained."""
    return op.replace(frozen=True) if isinstance(op, Gemm | Convolution) else op


ATTENTION = ("attention", "cross_attention")


def adapted(layers: tuple[Layer, ...], adapters: Adapters) -> tuple[Layer, ...]:
    """The chain with adapters, if there are any."""
    if adapters.adapter_rank is None:
        return layers
    kinds = ATTENTION if adapters.adapter_targets == "attention" else (*ATTENTION, "mlp", "moe")
    return tuple(_adapted(layer, adapters, layer.kind in kinds) for layer in layers)


def _adapted(layer: Layer, adapters: Adapters, targeted: bool) -> Layer:
    """A layer with frozen weights and, if it is a target, with adapters beside its products."""
    rank = adapters.adapter_rank or 1
    ops: list[Op] = []
    tensors: list[float] = []
    divided = kept = 0.0
    for op in layer.ops:
        ops.append(_fixed(op))
        if (
            not targeted
            or not isinstance(op, Gemm)
            or op.expert
            or (layer.num_experts and op.split == "none")
        ):
            continue
        ops += _adapter(op, rank)
        tensors += [rank * op.k, rank * op.n]
        divided += rank * (op.n if op.split == "column" else op.k if op.split == "row" else 0.0)
        kept += op.rows * rank
    whole, split = (0.0, 0.0) if targeted else _unneeded(layer)
    return layer.replace(
        ops=tuple(ops), parameters=sum(tensors), tensors=tuple(tensors), tensor_parameters=divided,
        expert_parameters=0.0, shared_parameters=0.0, frozen_parameters=layer.parameters,
        frozen_tensor_parameters=layer.tensor_parameters, frozen_expert_parameters=layer.expert_parameters,
        frozen_bits=adapters.frozen_bits, stored_elements=layer.stored_elements + kept - whole - split,
        stored_tensor_elements=layer.stored_tensor_elements - split,
    )  # fmt: skip


def _adapter(op: Gemm, rank: int) -> tuple[Op, ...]:
    """Both small products, divided as the large one is, and the addition of what they give."""
    return (
        Gemm(rows=op.rows, n=rank, k=op.k, split="row" if op.split == "row" else "none"),
        Gemm(rows=op.rows, n=op.n, k=rank, split="column" if op.split == "column" else "none"),
        MemoryBound(
            elements=3.0 * op.rows * op.n, backward_elements=3.0 * op.rows * op.k,
            split="tensor" if op.split == "column" else "sequence",
        ),
    )  # fmt: skip


def _unneeded(layer: Layer) -> tuple[float, float]:
    """Kept elements that only gradients of weights read: inputs of products, whole and divided ones.

    What attention gives is kept by its core all the same.
    """
    attends = any(isinstance(op, Attention) for op in layer.ops)
    whole = split = 0.0
    for op in layer.ops:
        if isinstance(op, Gemm) and not op.expert:
            if op.split == "row":
                split += 0.0 if attends else op.rows * op.k
            else:
                whole += op.rows * op.k
    whole = min(whole, layer.stored_elements - layer.stored_tensor_elements)
    return whole, min(split, layer.stored_tensor_elements - layer.stored_selective_elements)
