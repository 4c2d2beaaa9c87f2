"""Who exchanges with whom in a logical graph (D5): neighbours, drawn peers, peers 2^k away, everybody."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from sim.lowering.plan import IntArray
from sim.rng import seed_tree
from sim.spec.strategy import Strategy
from sim.taxonomy.topologies import TOPOLOGIES

DRAWN_PEERS, LEAST_DRAWS = 2048, 2
"""Nodes times exchanges up to which as many exchanges are drawn as asked for: what many nodes draw at once
says as much as what few draw one after the other, and a period has to stay small. Two at least."""

Targets = IntArray
"""Peers of every node in one exchange, shape (nodes, peers); -1 where a node sends nothing."""


def ring_neighbours(nodes: int, degree: int) -> list[Targets]:
    """A circulant graph: one peer to the right, one to the left, the next to the right ..."""
    degree = min(degree, nodes - 1)
    hops = [(1 + i // 2) * (1 if i % 2 == 0 else -1) for i in range(degree)]
    return [(np.arange(nodes)[:, None] + np.array(hops)) % nodes]


def exponential(nodes: int, degree: int) -> list[Targets]:
    """In exchange k the peers 2^k, 2^(k+1) ... away, going round (Assran et al., SGP, ICML 2019)."""
    rounds = max(1, math.ceil(math.log2(nodes)))
    at = np.arange(nodes)[:, None]
    return [
        (at + np.array([2 ** ((k + i) % rounds) for i in range(min(degree, rounds))])) % nodes
        for k in range(rounds)
    ]


def everybody(nodes: int) -> list[Targets]:
    """All others, nearest first, so that senders start with different receivers."""
    return [(np.arange(nodes)[:, None] + np.arange(1, nodes)) % nodes]


def matching(nodes: int, generator: np.random.Generator) -> Targets:
    """A random pairing of all nodes: the peer of each."""
    order = generator.permutation(nodes)
    peer = np.empty(nodes, np.int64)
    peer[order[0::2]], peer[order[1::2]] = order[1::2], order[0::2]
    return peer[:, None]


def bipartite(nodes: int, generator: np.random.Generator) -> Targets:
    """For every node a random one of the other parity: no cycle of nodes can wait for one another."""
    at = np.arange(nodes)
    odd = at % 2 == 1
    drawn = np.where(
        odd,
        2 * generator.integers(0, (nodes + 1) // 2, nodes),
        2 * generator.integers(0, max(1, nodes // 2), nodes) + 1,
    )
    return drawn[:, None]


def anybody(nodes: int, degree: int, generator: np.random.Generator) -> Targets:
    """``degree`` different random others for every node."""
    rows = [generator.choice(nodes - 1, size=min(degree, nodes - 1), replace=False) for _ in range(nodes)]
    drawn = np.array(rows, np.int64).reshape(nodes, -1)
    return drawn + (drawn >= np.arange(nodes)[:, None])


FIXED_GRAPHS: dict[str, Callable[[int, int], list[Targets]]] = {
    "fixed": ring_neighbours,
    "exponential": exponential,
}
"""Graphs that are not drawn: a function from the number of nodes and the degree to the exchanges."""


def exchanges(strategy: Strategy, nodes: int, seed: int) -> list[Targets]:
    """The exchanges of a period: peers of every node, one array per exchange.

    Parameters
    ----------
    strategy : Strategy
        Topology, graph, degree and synchronisation, resolved.
    nodes : int
        Replicas, or groups of them.
    seed : int
        Root of the seed tree for drawn graphs.
    """
    if not TOPOLOGIES[strategy.topology].chosen_peers:
        return everybody(nodes)
    if strategy.graph in FIXED_GRAPHS:
        return FIXED_GRAPHS[strategy.graph](nodes, strategy.graph_degree)
    draw: Callable[[np.random.Generator], Targets]
    if strategy.synchronization in ("bsp", "ssp"):
        draw = lambda generator: matching(nodes, generator)  # noqa: E731
    elif strategy.update_semantics == "gossip_average":
        draw = lambda generator: bipartite(nodes, generator)  # noqa: E731
    else:
        draw = lambda generator: anybody(nodes, strategy.graph_degree, generator)  # noqa: E731
    found = []
    draws = min(strategy.graph_draws, max(LEAST_DRAWS, DRAWN_PEERS // nodes))
    for number in range(draws):
        generator = seed_tree(seed, "peers", number)
        targets = draw(generator)
        if strategy.push_probability < 1:
            silent = generator.random(nodes) >= strategy.push_probability
            targets = np.where(silent[:, None], -1, targets)
        found.append(targets)
    return found
