"""The catalogue of update semantics (dimension D4): what workers exchange, and what merging it costs.

Which exchange is due when is the synchronisation's; the tasks are emitted in ``sim.lowering.state``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class UpdateFacts:
    """One kind of update.

    Parameters
    ----------
    description : str
        For the table of dimensions.
    rules, server_rules : tuple of str
        Synchronisation rules it goes with among replicas, with parameter servers; empty: all, or as replicas.
    fields : tuple of str
        Strategy fields a user chooses beside it.
    models : bool
        Whether models travel instead of gradients.
    peers : bool
        Whether it is an average with the peers of a graph.
    lowering : str
        ``module:class`` of replicas where it needs tasks of its own under a rule that has none.
    centre_bytes : float
        fp32 bytes per parameter that a replica keeps beside its model.
    mixing : float
        Elements read or written per parameter when an exchanged model is worked into the own one.
    serving : float or None
        The same when a server takes a pushed model; None: an optimiser step on a gradient.
    """

    description: str
    rules: tuple[str, ...] = ()
    server_rules: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    models: bool = True
    peers: bool = False
    lowering: str = ""
    centre_bytes: float = 0.0
    mixing: float = 0.0
    serving: float | None = None


_AMONG_PEERS = ("bsp", "ssp", "asp", "group_hybrid")
_OF_CLOCKS = ("local", "asp", "ssp")

UPDATES: Mapping[str, UpdateFacts] = {
    "gradient_sum": UpdateFacts("gradients; default of every synchronisation but local", models=False),
    "model_average": UpdateFacts(
        "models, every tau steps; default of local", ("local", "partial_allreduce"), _OF_CLOCKS,
        ("local_steps", "exchange_bits"), serving=3.0,
    ),
    # Zhang et al., NIPS 2015: a centre; read model, centre and sum, write model and centre.
    "elastic_average": UpdateFacts(
        "models against a centre, which both move towards (EASGD)", _OF_CLOCKS, _OF_CLOCKS, ("moving_rate",),
        centre_bytes=4.0, mixing=5.0, serving=3.0,
    ),
    # Koliousis et al., Crossbow, VLDB 2019: the centre and its momentum.
    "sma": UpdateFacts(
        "corrections towards the average model, beside every step (Crossbow)", ("bsp",),
        lowering="sim.lowering.state.periodic:ModelAverageState", centre_bytes=8.0, mixing=5.0,
    ),
    "gossip_average": UpdateFacts("models, averaged with the peers of a graph", _AMONG_PEERS, peers=True),
    # Assran et al., ICML 2019: beside the model the one divided by its weight.
    "push_sum": UpdateFacts(
        "models and weights, pushed to the peers of a directed graph (SGP)", _AMONG_PEERS, peers=True,
        centre_bytes=4.0,
    ),
    # Douillard et al., DiLoCo, 2023: read average, centre and momentum; write centre, momentum and model.
    "outer_optimizer": UpdateFacts(
        "what tau steps gained, as the gradient of a second optimiser (BMUF, DiLoCo)", ("local",), _OF_CLOCKS,
        ("fragments", "exchange_overlap"), centre_bytes=8.0, mixing=6.0, serving=5.0,
    ),
}  # fmt: skip
