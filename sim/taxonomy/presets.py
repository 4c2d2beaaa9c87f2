"""Named systems as points of the taxonomy, and the six archetypes they fall into.

A preset is a YAML file in ``workloads/strategies/``: the strategy fields it sets, beside ``schema, name,
description, source``. It has no code of its own.
"""

from __future__ import annotations

from typing import Literal

from sim.spec.strategy import Strategy
from sim.taxonomy.synchronizations import SYNCHRONIZATIONS, Pace

Locus = Literal["centralized", "decentralized"]
Archetype = tuple[Locus, Pace]

ARCHETYPES: dict[Archetype, tuple[str, ...]] = {
    ("centralized", "synchronous"): ("tf_ps_sync", "sparknet"),
    ("centralized", "bounded"): ("petuum_bosen", "rudra"),
    ("centralized", "asynchronous"): ("distbelief_downpour", "easgd"),
    ("decentralized", "synchronous"): ("horovod", "pytorch_ddp"),
    ("decentralized", "bounded"): ("local_sgd", "hop"),
    ("decentralized", "asynchronous"): ("ad_psgd", "gosgd"),
}
"""Presets that stand for each archetype of Langer et al. 2020."""


def archetype(strategy: Strategy) -> Archetype:
    """Which archetype a strategy belongs to: where the optimiser runs, and how far replicas may drift apart.

    Source: Langer, He, Rahayu, Xue, IEEE TPDS 31(12), 2020.
    """
    locus: Locus = "centralized" if strategy.has_servers else "decentralized"
    if locus == "centralized" and strategy.synchronization == "local":
        return locus, "synchronous"  # every worker's model is waited for, if not in every step
    return locus, SYNCHRONIZATIONS[strategy.synchronization].pace
