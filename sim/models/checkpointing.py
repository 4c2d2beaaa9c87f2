"""What recomputation policies that look at single operations run again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from sim.spec.layer import Attention, Gemm, Layer

KEPT_KINDS = ("embedding", "head")
"""Layers outside the checkpointed blocks: they do not run again (Megatron-LM, torchtitan)."""


def alternate_shares(layers: Sequence[Layer]) -> list[tuple[float, ...]]:
    """Share of each operation's forward that the ``alternate`` policy runs again, by layer.

    Outputs of fused attention and of every second matrix product of a block are kept, all else is computed
    again as far as the backward needs it: nothing behind the block's last product. Products that are one here
    count as the released models have them: three in front of attention (query, key, value), two where a unit
    is gated. Source: pytorch/torchtitan, ``_apply_ac_to_transformer_block``, selective option ``op``.
    """
    shares: list[tuple[float, ...]] = []
    for block, last in _blocks(layers):
        count = 0
        for position, layer in enumerate(block):
            if layer.kind in KEPT_KINDS:
                shares.append((0.0,) * len(layer.ops))
                continue
            found, count = _layer_shares(layer, count, final=position == last)
            shares.append(found)
    return shares


def unneeded_shares(layers: Sequence[Layer]) -> list[tuple[float, ...]]:
    """Share of each operation's forward that a block's backward does not need, by layer: 1 or 0.

    No gradient needs the output of a block's last product, nor what follows it; outputs of experts are needed
    to weight their gradients. PyTorch's checkpoint without reentrance stops there
    (``torch.utils.checkpoint``, ``set_checkpoint_early_stop``, since 2.1).
    """
    shares = []
    for block, last in _blocks(layers):
        for position, layer in enumerate(block):
            final = position == last and not layer.expert_elements
            behind = _products(layer)[-1] if final else len(layer.ops)
            shares.append(tuple(float(op >= behind) for op in range(len(layer.ops))))
    return shares


def _blocks(layers: Sequence[Layer]) -> Iterator[tuple[list[Layer], int]]:
    """Layers of each block, and which of them has its last product; -1 if none has any."""
    for _, members in groupby(layers, key=lambda layer: layer.block):
        block = list(members)
        yield block, max((i for i, each in enumerate(block) if _products(each)), default=-1)


def _products(layer: Layer) -> list[int]:
    return (
        [i for i, op in enumerate(layer.ops) if isinstance(op, Gemm)] if layer.kind not in KEPT_KINDS else []
    )


def _layer_shares(layer: Layer, count: int, *, final: bool) -> tuple[tuple[float, ...], int]:
    """Shares of a layer whose block has had ``count`` products before; and the products after it."""
    products, result = _products(layer), []
    for position, op in enumerate(layer.ops):
        behind = final and bool(products) and position >= products[-1]
        if isinstance(op, Gemm):
            widths, again = _widths(layer, position), 0.0
            for width in widths:
                count += 1
                again += width * (count % 2 == 0)
            result.append(0.0 if behind else again / sum(widths))
        else:
            result.append(0.0 if behind or isinstance(op, Attention) else 1.0)
    return tuple(result), count


def _widths(layer: Layer, position: int) -> tuple[float, ...]:
    """Columns of the products that one product of a layer stands for."""
    product, rest = layer.ops[position], layer.ops[position + 1 :]
    assert isinstance(product, Gemm)
    for op in rest:
        if isinstance(op, Attention):
            query, key = op.heads * op.head_dim, op.kv_heads * op.head_dim
            return (query, key, key) if query + 2 * key == product.n else (product.n,)
        if isinstance(op, Gemm):
            return (product.n / 2, product.n / 2) if product.n == 2 * op.k else (product.n,)
    return (product.n,)


def alternate_elements(layer: Layer, shares: Sequence[float]) -> tuple[float, float]:
    """Elements of one sample that a layer keeps under that policy: those tp divides, and the others.

    Kept are outputs of products that do not run again (a last one's is the next block's input) and of
    attention.
    """
    divided = whole = 0.0
    for op, share in zip(layer.ops, shares, strict=True):
        if isinstance(op, Attention):
            divided += op.query_length * op.head_dim * op.heads
        elif isinstance(op, Gemm):
            kept = (1 - share) * op.rows * op.n * op.batch
            divided += kept if op.split in ("column", "heads") else 0.0
            whole += kept if op.split not in ("column", "heads") else 0.0
    return divided, whole
