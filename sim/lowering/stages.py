"""Cutting the layer chain into pipeline stages and model chunks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from sim.spec.layer import Layer


def split_layers(
    layers: Sequence[Layer],
    costs: Sequence[float],
    parts: int,
    *,
    counts: Sequence[int] | None = None,
    embedding: bool = False,
    head: bool = False,
) -> list[list[int]]:
    """Layer indices of each of ``parts`` consecutive chunks; cuts fall between blocks only.

    A transformer is cut as Megatron does: equal numbers of transformer blocks, the first chunks one more
    where they do not divide, the embedding with the first chunk and the head with the last. Any other chain
    is cut so that the most expensive chunk is cheapest.

    Parameters
    ----------
    layers : sequence of Layer
    costs : sequence of float
        Seconds per layer.
    parts : int
    counts : sequence of int, optional
        Blocks of each chunk, instead.
    embedding, head : bool
        Whether the embedding (the head) counts as a block of its own
        (``account_for_embedding_in_pipeline_split`` and ``account_for_loss_in_pipeline_split`` of Megatron).
    """
    blocks = _blocks(layers, embedding=embedding, head=head)
    repeated = [i for i, block in enumerate(blocks) if any(layers[j].kind == "attention" for j in block)]
    if repeated:
        ends = ({0} if embedding else set()) | ({len(blocks) - 1} if head else set())
        repeated = sorted(ends.union(repeated))
    if counts is not None:
        cuts = list(itertools.accumulate(counts[:-1]))
    elif len(repeated) >= parts > 1:
        cuts = _even_cuts(repeated, parts)
    else:
        cuts = _balanced_cuts([sum(costs[j] for j in block) for block in blocks], parts)
    bounds = [0, *cuts, len(blocks)]
    chunks = [[j for block in blocks[a:b] for j in block] for a, b in itertools.pairwise(bounds)]
    return _with_ends(chunks, layers)


def _with_ends(chunks: list[list[int]], layers: Sequence[Layer]) -> list[list[int]]:
    """Chunks without a block keep the layer in front of the first block, or behind the last."""
    if not chunks[0] and layers[0].kind == "embedding":
        chunks[0].append(chunks[1].pop(0))
    if not chunks[-1] and layers[-1].kind == "head":
        chunks[-1].append(chunks[-2].pop())
    return chunks


def _blocks(layers: Sequence[Layer], *, embedding: bool, head: bool) -> list[list[int]]:
    blocks: list[list[int]] = []
    for index, layer in enumerate(layers):
        if not blocks or layers[blocks[-1][0]].block != layer.block:
            blocks.append([])
        blocks[-1].append(index)
    if embedding and layers[0].kind == "embedding" and len(blocks[0]) > 1:
        blocks[:1] = [blocks[0][:1], blocks[0][1:]]
    if head and layers[-1].kind == "head" and len(blocks[-1]) > 1:
        blocks[-1:] = [blocks[-1][:-1], blocks[-1][-1:]]
    return blocks


def _even_cuts(repeated: list[int], parts: int) -> list[int]:
    pieces = np.array_split(np.array(repeated), parts)
    return [int(piece[0]) for piece in pieces[1:]]


def _balanced_cuts(costs: list[float], parts: int) -> list[int]:
    """Linear partition: minimise the largest part (dynamic programme over prefix sums)."""
    prefix = np.concatenate([[0.0], np.cumsum(costs)])
    count = len(costs)
    best = np.full((parts + 1, count + 1), np.inf)
    choice = np.zeros((parts + 1, count + 1), np.int64)
    best[0, 0] = 0.0
    for part in range(1, parts + 1):
        for end in range(part, count + 1):
            worst = np.maximum(best[part - 1, :end], prefix[end] - prefix[:end])
            choice[part, end] = int(np.argmin(worst))
            best[part, end] = worst[choice[part, end]]
    cuts, end = [], count
    for part in range(parts, 1, -1):
        end = int(choice[part, end])
        cuts.append(end)
    return cuts[::-1]
