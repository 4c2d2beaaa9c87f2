"""Where the ranks of a strategy sit: rank coordinates and process groups as integer arrays."""

from __future__ import annotations

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

    @property
    def num_ranks(self) -> int:
        """Product of all degrees."""
        return int(np.prod(list(self.degrees.values())))

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

    def expert_groups(self, size: int) -> IntArray:
        """Expert parallel groups: ``size`` neighbours along dp, which hold different experts."""
        return self.groups("dp").reshape(-1, size)

    def expert_replicas(self, size: int) -> IntArray:
        """Groups of ranks that hold the same experts: every ``size``-th along dp, all along cp."""
        groups = self.groups("cp", "dp")
        order = np.argsort(self.coordinates["dp"][groups] % size, axis=1, kind="stable")
        same = np.take_along_axis(groups, order, axis=1).reshape(-1, groups.shape[1] // size)
        return same[np.argsort(same[:, 0])]
