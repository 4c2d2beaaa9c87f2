"""Where ranks sit, and which of them form a group."""

from __future__ import annotations

import numpy as np

from sim.lowering.layout import Layout
from sim.spec import Strategy


def layout(**fields: object) -> Layout:
    return Layout.of(Strategy.model_validate(fields))


def test_megatron_order_tp_fastest_then_dp_then_pp() -> None:
    ranks = layout(tp=2, dp=3, pp=2)
    assert ranks.num_ranks == 12
    assert ranks.groups("tp").tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    assert ranks.groups("cp", "dp").tolist() == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]
    assert ranks.groups("pp").tolist() == [[r, r + 6] for r in range(6)]


def test_placement_changes_the_order() -> None:
    ranks = layout(tp=2, dp=3, placement=("dp", "cp", "tp", "pp"))
    assert ranks.groups("cp", "dp").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert ranks.groups("tp").tolist() == [[0, 3], [1, 4], [2, 5]]


def test_experts_are_spread_over_neighbours_and_repeated_along_dp() -> None:
    ranks = layout(tp=2, dp=4, ep=2)
    assert ranks.expert_groups(2, 2).tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert ranks.expert_replicas(2, 2).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert ranks.expert_replicas(4, 2).tolist() == [[r] for r in range(8)]
    assert ranks.expert_replicas(1, 2).tolist() == ranks.groups("cp", "dp").tolist()


def test_experts_lie_across_tensor_and_context_parallel_ranks() -> None:
    """Whole experts on the ranks of a stage, tensor parallel ones first, then context, then data parallel."""
    ranks = layout(tp=2, cp=2, dp=2, pp=2)
    assert ranks.expert_groups(4, 1).tolist() == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        *_shifted([[0, 1, 2, 3], [4, 5, 6, 7]]),
    ]
    assert ranks.expert_replicas(4, 1).tolist()[:4] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert ranks.expert_groups(2, 2).tolist()[:4] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert ranks.expert_tensor_groups(2, 2).tolist() == ranks.groups("tp").tolist()


def _shifted(groups: list[list[int]]) -> list[list[int]]:
    return [[rank + 8 for rank in group] for group in groups]


def test_every_axis_partitions_the_ranks() -> None:
    ranks = layout(tp=2, cp=2, dp=4, pp=3)
    for axes in (("tp",), ("cp", "dp"), ("pp",), ("tp", "pp"), ("tp", "cp", "dp", "pp")):
        assert np.sort(ranks.groups(*axes).ravel()).tolist() == list(range(48))
    replicas = ranks.expert_replicas(2, 2)
    assert replicas.shape == (12, 4)
    assert np.sort(replicas.ravel()).tolist() == list(range(48))
