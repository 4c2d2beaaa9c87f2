"""Where the ranks of a strategy sit: rank coordinates and process groups as integer arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sim.spec.strategy import Strategy

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """Ranks ``0 .. num_ranks - 1`` on devices of the same number, hosts filled in order.

    Parameters
    ----------
    degrees : dict of str to int
        Degree of each axis in placement order, fastest axis first (Megatron: tp, cp, dp, pp).
    """

    degrees: dict[str, int]
    _groups: dict[tuple[str, ...], IntArray] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, strategy: Strategy) -> Layout:
        """Layout of a resolved strategy (``dp`` set)."""
        return cls({axis: getattr(strategy, axis) or 1 for axis in strategy.placement})

    @cached_property
    def num_ranks(self) -> int:
        """Product of all degrees."""
        return math.prod(self.degrees.values())

    @cached_property
    def coordinates(self) -> dict[str, IntArray]:
        """Coordinate of every rank on every axis."""
        ranks, out = np.arange(self.num_ranks), {}
        for axis, degree in self.degrees.items():
            out[axis] = ranks % degree
            ranks = ranks // degree
        return out

    def groups(self, *axes: str) -> IntArray:
        """Process groups that vary along ``axes`` only: array (number of groups, group size).

        Groups are ordered by their lowest rank and members by rank, as torch.distributed orders them.
        """
        if axes in self._groups:
            return self._groups[axes]
        size = int(np.prod([self.degrees[axis] for axis in axes]))
        others = [a for a in self.degrees if a not in axes]
        key = np.zeros(self.num_ranks, np.int64)
        for axis in reversed(others):
            key = key * self.degrees[axis] + self.coordinates[axis]
        groups = np.argsort(key, kind="stable").reshape(-1, size)
        self._groups[axes] = groups[np.argsort(groups[:, 0])]
        return self._groups[axes]

    def _expert_grid(self, ep: int, tensor: int) -> IntArray:
        """Ranks as (stage, replica, expert rank, tensor rank): tp fastest, then cp and dp (Megatron)."""
        groups = self.groups("cp", "dp")
        first, tp = groups[:, 0], self.degrees["tp"]
        order = np.lexsort((self.coordinates["tp"][first], self.coordinates["pp"][first]))
        grid = groups[order].reshape(self.degrees["pp"], tp, -1).transpose(0, 2, 1)
        return grid.reshape(self.degrees["pp"], -1, ep, tensor)

    def expert_groups(self, ep: int, tensor: int) -> IntArray:
        """Expert parallel groups: ``ep`` ranks that hold different experts.

        ``tensor`` ranks share each expert's matrices.
        """
        return _by_first(self._expert_grid(ep, tensor).swapaxes(2, 3).reshape(-1, ep))

    def expert_tensor_groups(self, ep: int, tensor: int) -> IntArray:
        """Groups of ranks that share the same experts' matrices."""
        return _by_first(self._expert_grid(ep, tensor).reshape(-1, tensor))

    def expert_replicas(self, ep: int, tensor: int) -> IntArray:
        """Groups of ranks that hold the same part of the same experts."""
        grid = self._expert_grid(ep, tensor)
        return _by_first(np.moveaxis(grid, 1, 3).reshape(-1, grid.shape[1]))


def _by_first(groups: IntArray) -> IntArray:
    """Groups in the order of their lowest rank, members by rank."""
    groups = np.sort(groups, axis=1)
    return groups[np.argsort(groups[:, 0])]
