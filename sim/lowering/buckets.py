"""Gradient buckets: tensors in reverse order, closed when they reach their capacity (PyTorch DDP)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Bucket:
    """A bucket of gradients: ``elements`` numbers, complete once ``last_layer`` has run its backward.

    It is also the layer that needs these parameters first in the next forward. ``expert`` buckets belong to
    the experts of a rank and are shared by fewer ranks. ``tensors`` are its (layer, position) pairs. With
    ``factors`` (numbers per rank) every rank sends those to all others instead of the gradient. Once complete
    a bucket waits for ``wait`` seconds, for a cycle to end; a piece of a partitioned bucket is a ``share`` of
    it. ``frozen`` elements have no gradients, but are gathered with the others.
    """

    index: int
    elements: float
    last_layer: int
    expert: bool = False
    tensors: tuple[tuple[int, int], ...] = ()
    factors: float = 0.0
    wait: float = 0.0
    share: float = 1.0
    frozen: float = 0.0


def make_buckets(
    layer_indices: Sequence[int],
    tensors: Sequence[Sequence[float]],
    *,
    bucket_bytes: float,
    first_bucket_bytes: float,
    element_bytes: float,
    expert: bool = False,
) -> list[Bucket]:
    """Buckets of one model chunk.

    Parameters
    ----------
    layer_indices : sequence of int
        Layers of the chunk in forward order.
    tensors : sequence of sequences of float
        Elements of each parameter tensor of each of these layers, in forward order.
    bucket_bytes, first_bucket_bytes : float
        Capacities in bytes; a bucket is closed by the tensor that reaches it, as
        ``torch._compute_bucket_assignment_by_size`` does (Li et al., VLDB 2020, section 4.2).
    element_bytes : float
        Bytes of one gradient element in the bucket.
    expert : bool
        Whether these are parameters of experts.
    """
    buckets: list[Bucket] = []
    filled = 0.0
    last = -1
    held: list[tuple[int, int]] = []
    for layer, sizes in zip(reversed(layer_indices), reversed(tensors), strict=True):
        for position in reversed(range(len(sizes))):
            filled += sizes[position]
            held.append((layer, position))
            last = layer
            capacity = first_bucket_bytes if not buckets else bucket_bytes
            if filled * element_bytes >= capacity:
                buckets.append(Bucket(len(buckets), filled, layer, expert, tuple(held)))
                filled, held = 0.0, []
    if filled:
        buckets.append(Bucket(len(buckets), filled, last, expert, tuple(held)))
    return buckets
