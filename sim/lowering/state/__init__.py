"""Placement of parameters and optimiser state (taxonomy D2 to D5): one file per family."""

from __future__ import annotations

from functools import cache
from pkgutil import resolve_name

from sim.lowering.state.base import StateLowering
from sim.lowering.state.layerwise import LayerwiseState
from sim.lowering.state.table_servers import MixedState
from sim.spec.strategy import Strategy
from sim.taxonomy.states import STATES
from sim.taxonomy.synchronizations import SYNCHRONIZATIONS
from sim.taxonomy.topologies import TOPOLOGIES
from sim.taxonomy.updates import UPDATES


@cache
def _named(place: str) -> type[StateLowering]:
    found: type[StateLowering] = resolve_name(place)
    return found


def state_lowering(strategy: Strategy) -> type[StateLowering]:
    """The lowering of a resolved strategy's state placement, update semantics and logical topology.

    The first of topology, synchronisation and update whose catalogue entry names one of its own; else the
    state's, which transfers in another order and tables on servers vary.
    """
    rule = SYNCHRONIZATIONS[strategy.synchronization]
    of_rule = rule.server_lowering if strategy.has_servers else rule.lowering
    own = TOPOLOGIES[strategy.topology].lowering or of_rule or UPDATES[strategy.update_semantics].lowering
    if own:
        return _named(own)
    if strategy.serves_tables:
        return MixedState
    if strategy.order != "fifo" and not strategy.has_servers:
        return LayerwiseState
    return _named(STATES[strategy.state].lowering)
