"""Stage cuts: contiguous, between blocks, even for transformers, balanced for other chains."""

from __future__ import annotations

from itertools import chain

import pytest

from sim.lowering.stages import split_layers
from sim.spec.layer import Layer


def layers_of(kinds: list[tuple[str, int]]) -> list[Layer]:
    return [Layer(name=f"l{i}", kind=kind, block=block) for i, (kind, block) in enumerate(kinds)]


def test_transformer_blocks_are_split_evenly_with_embedding_first_and_head_last() -> None:
    kinds = [("embedding", 0)] + [(k, b) for b in range(1, 9) for k in ("attention", "mlp")] + [("head", 9)]
    parts = split_layers(layers_of(kinds), [1.0] * len(kinds), 4)
    assert [len(p) for p in parts] == [5, 4, 4, 5]
    assert list(chain.from_iterable(parts)) == list(range(18))


def test_other_chains_minimise_the_largest_part() -> None:
    layers = layers_of([("conv", i) for i in range(5)])
    assert split_layers(layers, [1.0, 1.0, 1.0, 1.0, 4.0], 2) == [[0, 1, 2, 3], [4]]


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_cuts_never_split_a_block(parts: int) -> None:
    layers = layers_of([("conv", i // 3) for i in range(15)])
    pieces = split_layers(layers, [1.0 + i % 4 for i in range(15)], parts)
    assert list(chain.from_iterable(pieces)) == list(range(15))
    assert all(len(p) % 3 == 0 and p for p in pieces)


def gpt_like(blocks: int) -> list[Layer]:
    """Blocks of attention and mlp; the embedding is in the first, the head in the last."""
    kinds = [("embedding", 0)] + [(k, b) for b in range(blocks) for k in ("attention", "mlp")]
    return layers_of([*kinds, ("head", blocks - 1)])


def test_embedding_and_head_count_as_blocks() -> None:
    """Llama 3 405B: 126 blocks, embedding and head over 16 stages x 8 chunks, one each."""
    layers = gpt_like(126)
    parts = split_layers(layers, [1.0] * len(layers), 128, embedding=True, head=True)
    assert parts[0] == [0]
    assert parts[-1] == [len(layers) - 1]
    assert {len(p) for p in parts[1:-1]} == {2}


@pytest.mark.parametrize(
    ("embedding", "head", "blocks"), [(True, False, [4, 6, 6]), (False, True, [6, 6, 4])]
)
def test_one_end_counts(embedding: bool, head: bool, blocks: list[int]) -> None:
    layers = gpt_like(8)
    parts = split_layers(layers, [1.0] * len(layers), 3, embedding=embedding, head=head)
    found = [len([j for j in p if layers[j].kind in ("attention", "mlp")]) for p in parts]
    assert found == blocks
    assert [len(p) for p in parts] == [blocks[0] + 1, blocks[1], blocks[2] + 1]


def test_stated_chunks() -> None:
    layers = gpt_like(6)
    parts = split_layers(layers, [1.0] * len(layers), 4, counts=(0, 1, 5, 0))
    assert parts == [[0], [1, 2], list(range(3, 13)), [13]]
    assert [len(p) for p in split_layers(layers, [1.0] * len(layers), 2, counts=(1, 5))] == [3, 11]
