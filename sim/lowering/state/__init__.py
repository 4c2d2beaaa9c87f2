"""Placement of parameters and optimiser state (taxonomy D2 to D4): one file per family."""

from __future__ import annotations

from sim.lowering.state.base import StateLowering
from sim.lowering.state.parameter_server import ParameterServerState
from sim.lowering.state.replicated import LocalSgdState, ReplicatedState
from sim.lowering.state.sharded import FullyShardedState, ShardedOptimizerState
from sim.spec.strategy import Strategy

STATES: dict[str, type[StateLowering]] = {
    "replicated": ReplicatedState,
    "zero1": ShardedOptimizerState,
    "zero2": ShardedOptimizerState,
    "zero3": FullyShardedState,
    "ps_dedicated": ParameterServerState,
    "ps_colocated": ParameterServerState,
}


def state_lowering(strategy: Strategy) -> type[StateLowering]:
    """The lowering of a strategy's state placement."""
    if strategy.synchronization == "local":
        return LocalSgdState
    return STATES[strategy.state]
