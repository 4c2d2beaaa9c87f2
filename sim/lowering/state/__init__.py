"""Placement of parameters and optimiser state (taxonomy D2 to D5): one file per family."""

from __future__ import annotations

from sim.lowering.state.base import StateLowering
from sim.lowering.state.layerwise import LayerwiseState
from sim.lowering.state.parameter_server import ParameterServerState
from sim.lowering.state.partial import PartialAllReduceState
from sim.lowering.state.peers import PeerState
from sim.lowering.state.periodic import LocalSgdState, ModelAverageState
from sim.lowering.state.replicated import ReplicatedState
from sim.lowering.state.server_tree import ServerTreeState
from sim.lowering.state.sharded import FullyShardedState, ShardedOptimizerState
from sim.lowering.state.table_servers import MixedState
from sim.spec.strategy import Strategy

STATES: dict[str, type[StateLowering]] = {
    "replicated": ReplicatedState,
    "zero1": ShardedOptimizerState,
    "zero2": ShardedOptimizerState,
    "zero3": FullyShardedState,
    "ps_dedicated": ParameterServerState,
    "ps_colocated": ParameterServerState,
    "ps_mixed": ParameterServerState,
}


BY_SYNCHRONIZATION: dict[str, type[StateLowering]] = {
    "partial_allreduce": PartialAllReduceState,
    "local": LocalSgdState,
}
"""Synchronisation rules of replicated state that need a lowering of their own."""


def state_lowering(strategy: Strategy) -> type[StateLowering]:
    """The lowering of a resolved strategy's state placement, update semantics and logical topology."""
    if strategy.has_servers:
        grouped = strategy.topology == "tree" or strategy.synchronization == "group_hybrid"
        return ServerTreeState if grouped else STATES[strategy.state]
    if strategy.has_peers:
        return PeerState
    if strategy.synchronization in BY_SYNCHRONIZATION:
        return BY_SYNCHRONIZATION[strategy.synchronization]
    if strategy.update_semantics == "sma":
        return ModelAverageState
    if strategy.serves_tables:
        return MixedState
    if strategy.order != "fifo":
        return LayerwiseState
    return STATES[strategy.state]
