"""The catalogue of logical topologies (dimension D5), and of the graphs that peers can form.

Who sends to whom in a graph is computed in ``sim.lowering.state.peer_graph``, under the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TopologyFacts:
    """One logical topology.

    Parameters
    ----------
    description : str
        For the table of dimensions.
    label : str
        Its name there, with the number it takes; its plain name if empty.
    fields : tuple of str
        Strategy fields a user chooses beside it.
    lowering : str
        ``module:class`` where the state's own knows it not.
    peers : bool
        Whether replicas exchange with each other, without collective or server.
    chosen_peers : bool
        Whether they do so with a few of all only.
    centre : bool
        Whether there must be parameter servers.
    servers : tuple of int or None
        Least and most of them; None: any number.
    grouped : bool
        Whether workers reduce in groups first.
    """

    description: str
    label: str = ""
    fields: tuple[str, ...] = ()
    lowering: str = ""
    peers: bool = False
    chosen_peers: bool = False
    centre: bool = False
    servers: tuple[int, int | None] = (1, None)
    grouped: bool = False


_PEERS = "sim.lowering.state.peers:PeerState"

TOPOLOGIES: Mapping[str, TopologyFacts] = {
    "auto": TopologyFacts("as the state implies: a collective's, or a star of servers"),
    "star": TopologyFacts("all workers with one server", centre=True, servers=(1, 1)),
    "sharded_star": TopologyFacts(
        "all workers with every one of several servers", centre=True, servers=(2, None)
    ),
    "tree": TopologyFacts(
        "groups of f workers reduce first; one of each talks to the servers",
        "tree(f)",
        ("group_size", "tree_levels"),
        "sim.lowering.state.server_tree:ServerTreeState",
        centre=True,
        grouped=True,
    ),
    "full_mesh": TopologyFacts("every replica with every other (Strom, Ako)", lowering=_PEERS, peers=True),
    "graph": TopologyFacts(
        "every replica with a few peers: fixed, random or 2^k away",
        "graph(degree, kind)",
        ("graph", "graph_degree", "push_probability", "graph_draws"),
        _PEERS,
        peers=True,
        chosen_peers=True,
    ),
}


@dataclass(frozen=True)
class GraphFacts:
    """How the peers of topology ``graph`` are found.

    Parameters
    ----------
    description : str
        For the table of dimensions.
    drawn : bool
        Whether every exchange draws its peers.
    """

    description: str
    drawn: bool = False


GRAPHS: Mapping[str, GraphFacts] = {
    "fixed": GraphFacts("always the same neighbours: a ring, or a circulant graph of more than two"),
    "random": GraphFacts("drawn in every exchange: pairs in step, any peer without a barrier", drawn=True),
    "exponential": GraphFacts("the peers 1, 2, 4, ... away, going round"),
}
