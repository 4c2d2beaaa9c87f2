"""Packed trees: disjoint, spanning, and as many as Edmonds' theorem promises."""

from __future__ import annotations

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from sim.models.tree_packing import max_flow, pack_trees


@st.composite
def matrices(draw: st.DrawFn) -> tuple[tuple[int, ...], ...]:
    n = draw(st.integers(2, 7))
    units = draw(st.lists(st.integers(0, 3), min_size=n * n, max_size=n * n))
    return tuple(tuple(0 if i == j else units[i * n + j] for j in range(n)) for i in range(n))


@given(matrices(), st.integers(0, 6))
def test_trees_are_disjoint_spanning_and_as_many_as_the_smallest_cut(
    links: tuple[tuple[int, ...], ...], root: int
) -> None:
    n = len(links)
    root %= n
    graph = nx.DiGraph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from((i, j, {"capacity": links[i][j]}) for i in range(n) for j in range(n) if links[i][j])
    others = [node for node in range(n) if node != root]
    flows = {node: nx.maximum_flow_value(graph, root, node) for node in others}
    assert all(max_flow(links, root, node) == flows[node] for node in others)
    trees = pack_trees(links, root)
    assert len(trees) == min(flows.values())
    used: dict[tuple[int, int], int] = {}
    for tree in trees:
        assert sorted(child for _, child in tree.edges) == others
        reached = {root}
        for parent, child in tree.edges:
            assert parent in reached
            reached.add(child)
            used[parent, child] = used.get((parent, child), 0) + 1
    assert all(count <= links[a][b] for (a, b), count in used.items())
