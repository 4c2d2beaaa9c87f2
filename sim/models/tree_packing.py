"""Packing spanning trees into the links between ranks: Blink's collectives.

Edmonds' theorem (J. Edmonds, in *Combinatorial Algorithms*, 1973): a directed graph with whole capacities
holds as many edge-disjoint spanning trees from a root as the smallest maximum flow from the root to any other
node. They are found by growing one tree after another, taking only edges without which every node can still
be reached by the trees that are to come; one maximum flow decides on an edge (L. Lovasz, J. Combin. Theory B
21 (1976) 96). Blink (G. Wang et al., MLSys 2020) sends an equal part of the data over each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

Matrix = tuple[tuple[int, ...], ...]
"""Links from rank i to rank j, counted in units of the narrowest: ``matrix[i][j]``."""

MAX_UNITS = 64  # links of the busiest rank; wider ones are counted in larger units


@dataclass(frozen=True)
class Tree:
    """One spanning tree: edges (parent, child) in the order in which they were reached, and its depth."""

    root: int
    edges: tuple[tuple[int, int], ...]
    depth: int


def is_uniform(links: Matrix) -> bool:
    """Whether every two ranks are joined, all equally."""
    return len({links[i][j] for i in range(len(links)) for j in range(len(links)) if i != j} - {0}) == 1 and (
        all(links[i][j] for i in range(len(links)) for j in range(len(links)) if i != j)
    )


@lru_cache(maxsize=256)
def pack_trees(links: Matrix, root: int = 0) -> tuple[Tree, ...]:
    """As many edge-disjoint spanning trees from a root as there can be; none if some rank is out of reach.

    Parameters
    ----------
    links : Matrix
        Capacities in whole units, at most :data:`MAX_UNITS` out of each rank.
    root : int
        Where all trees start.
    """
    left = [list(row) for row in links]
    count = min((_flow(left, root, node) for node in range(len(left)) if node != root), default=0)
    trees = []
    for remaining in range(count - 1, -1, -1):
        trees.append(_grow(left, root, remaining))
    return tuple(trees)


def max_flow(links: Matrix, source: int, sink: int) -> int:
    """Units that can flow from one rank to another over all ways."""
    return _flow([list(row) for row in links], source, sink)


def _grow(left: list[list[int]], root: int, remaining: int) -> Tree:
    """Take one spanning tree out of ``left`` so that ``remaining`` more can follow; shallow ones first."""
    depth = {root: 0}
    edges: list[tuple[int, int]] = []
    while len(depth) < len(left):
        for parent, child in _candidates(left, depth):
            left[parent][child] -= 1
            if remaining == 0 or _flow([list(row) for row in left], root, child) >= remaining:
                depth[child] = depth[parent] + 1
                edges.append((parent, child))
                break
            left[parent][child] += 1
    return Tree(root, tuple(edges), max(depth.values()))


def _candidates(left: list[list[int]], depth: dict[int, int]) -> list[tuple[int, int]]:
    """Edges out of the tree, from its shallowest nodes, over the widest links first."""
    found = [(p, c) for p in depth for c in range(len(left)) if c not in depth and left[p][c] > 0]
    return sorted(found, key=lambda edge: (depth[edge[0]], -left[edge[0]][edge[1]], edge))


def _flow(residual: list[list[int]], source: int, sink: int) -> int:
    """Maximum flow by shortest augmenting paths (Edmonds, Karp 1972); changes ``residual``'s copy."""
    residual = [list(row) for row in residual]
    total, nodes = 0, range(len(residual))
    while True:
        before = {source: source}
        queue = [source]
        for node in queue:
            for other in nodes:
                if residual[node][other] > 0 and other not in before:
                    before[other] = node
                    queue.append(other)
        if sink not in before:
            return total
        path, node = [], sink
        while node != source:
            path.append((before[node], node))
            node = before[node]
        amount = min(residual[a][b] for a, b in path)
        for a, b in path:
            residual[a][b] -= amount
            residual[b][a] += amount
        total += amount
