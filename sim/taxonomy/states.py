"""The catalogue of state placements (dimension D2): what rules, memory and the table know of each.

How a placement's gradients become parameters is in ``sim.lowering.state``, in the class that an entry names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_SERVER = "sim.lowering.state.parameter_server:ParameterServerState"


@dataclass(frozen=True)
class StateFacts:
    """One placement of parameters and optimiser state.

    Parameters
    ----------
    description : str
        For the table of dimensions: who holds and updates what.
    lowering : str
        ``module:class`` that turns it into tasks.
    fields : tuple of str
        Strategy fields a user chooses beside it.
    label : str
        How tables and plots name it; empty: by its collective.
    sharding : int
        What ranks divide among them: 1 optimiser state, 2 gradients as well, 3 parameters as well.
    server_hosts, worker_hosts : bool
        Whether parameter servers run on hosts of their own, on hosts of workers.
    only_sums : bool
        Whether servers add gradients up and every worker updates its own parameters.
    """

    description: str
    lowering: str
    fields: tuple[str, ...] = ()
    label: str = ""
    sharding: int = 0
    server_hosts: bool = False
    worker_hosts: bool = False
    only_sums: bool = False

    @property
    def servers(self) -> bool:
        """Whether there are parameter servers."""
        return self.server_hosts or self.worker_hosts


STATES: Mapping[str, StateFacts] = {
    "replicated": StateFacts(
        "every rank holds and updates everything", "sim.lowering.state.replicated:ReplicatedState"
    ),
    "zero1": StateFacts(
        "optimiser state is sharded over dp: reduce-scatter, update, all-gather",
        "sim.lowering.state.sharded:ShardedOptimizerState", label="ZeRO-1", sharding=1,
    ),
    "zero2": StateFacts(
        "gradients are sharded as well",
        "sim.lowering.state.sharded:ShardedOptimizerState", label="ZeRO-2", sharding=2,
    ),
    "zero3": StateFacts(
        "parameters are sharded as well and gathered layer by layer",
        "sim.lowering.state.sharded:FullyShardedState", ("prefetch", "reshard_after_forward"),
        label="ZeRO-3", sharding=3,
    ),
    "ps_dedicated": StateFacts(
        "parameter servers on hosts of their own; workers push and pull", _SERVER, ("num_servers",),
        label="PS", server_hosts=True,
    ),
    "ps_colocated": StateFacts(
        "parameter servers share hosts and network ports with workers", _SERVER, ("num_servers",),
        label="PS co-located", worker_hosts=True,
    ),
    "ps_mixed": StateFacts(
        "hosts of their own and the workers' hosts sum gradients in the shares that load all ports alike;"
        " workers update (BytePS)",
        _SERVER, ("num_servers",), label="PS mixed", server_hosts=True, worker_hosts=True, only_sums=True,
    ),
}  # fmt: skip


def states(*, servers: bool | None = None, sharding: int = 0) -> tuple[str, ...]:
    """Names of placements, with or without servers, that shard at least so much."""
    return tuple(
        name
        for name, facts in STATES.items()
        if facts.sharding >= sharding and (servers is None or facts.servers == servers)
    )
