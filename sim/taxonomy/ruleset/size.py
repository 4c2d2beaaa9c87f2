"""Rules on the size of a simulation: what would play for hours says so at once."""

from __future__ import annotations

from sim.spec.workload import kept_bytes
from sim.taxonomy.context import Context
from sim.taxonomy.rule import Finding, RuleSet, ways
from sim.taxonomy.synchronizations import BARRIER_FREE

RULES = RuleSet()

MAX_TASKS = 10_000_000
"""Computations of a period; an execution graph of so many tasks fits the memory of a workstation."""
MAX_PIECES = 1_000_000
MAX_PUSHES = 10_000_000
MAX_SERVERS = 10_000


def _period(c: Context) -> int:
    """Steps of the period that is simulated."""
    return c.strategy.local_steps + c.strategy.synchronous_steps


@RULES.refuse("size-period", "local_steps synchronous_steps", "every step of a period is simulated")
def periods_are_finite(c: Context) -> Finding | None:
    """A period of so many steps that even one micro-batch each is too much."""
    most = max(2, MAX_TASKS // c.workload_facts.num_layers)
    for field in ("local_steps", "synchronous_steps"):
        steps: int = getattr(c.strategy, field)
        if steps > most:
            must = f"be at most {most} for the {c.workload_facts.num_layers} layers of {c.workload.name}"
            return Finding(f"strategy.{field}", must, steps, ways(f"strategy.{field}", [most]), explain=True)
    return None


@RULES.refuse(
    "size-micro-batches", "micro_batch_size local_steps", "every layer of each of them is a computation"
)
def micro_batches_can_be_simulated(c: Context) -> Finding | None:
    """More micro-batches than a simulation of all layers can hold."""
    count, batch = c.num_micro_batches, c.replica_batch
    tasks = c.workload_facts.num_layers * _period(c) * c.strategy.token_slices
    most = max(1, MAX_TASKS // tasks)
    if count is None or batch is None or count <= most:
        return None
    least = -(-batch // most)
    sizes = [size for size in range(least, least + 1000) if batch % size == 0]
    what = f"the {c.workload_facts.num_layers} layers of {c.workload.name}"
    steps = f" in a period of {_period(c)} steps" if _period(c) > 1 else ""
    must = f"give at most {most} micro-batches for {what}{steps}"
    got = f"{c.strategy.micro_batch_size or batch} ({count} micro-batches)"
    return Finding(
        "strategy.micro_batch_size", must, got, ways("strategy.micro_batch_size", [*sizes[:1], batch]),
        explain=True,
    )  # fmt: skip


@RULES.refuse("size-pieces", "partition_size", "every piece is a message of its own")
def pieces_can_be_simulated(c: Context) -> Finding | None:
    """Pieces so small that there are millions."""
    size = c.strategy.partition_size
    if size is None:
        return None
    gradients = c.workload.num_parameters / c.strategy.tp / c.strategy.pp
    gradients *= kept_bytes(c.workload.dtype)
    if gradients / size <= MAX_PIECES:
        return None
    least = gradients / MAX_PIECES
    must = f"be at least {least:.0f} bytes, so that gradients are at most {MAX_PIECES} pieces"
    instead = ways("strategy.partition_size", [2.0 ** int(least).bit_length(), None])
    return Finding("strategy.partition_size", must, f"{size:g}", instead)


@RULES.refuse("size-servers", "num_servers state dp", "every worker talks to every server")
def pushes_can_be_simulated(c: Context) -> Finding | None:
    """Servers times workers beyond what a simulation holds."""
    servers, ranks = c.strategy.num_servers, c.num_ranks
    if servers is None or ranks is None:
        return None
    most = min(MAX_SERVERS, MAX_PUSHES // ranks)
    if c.strategy.synchronization in BARRIER_FREE:
        most //= 10  # every worker of its own
    if servers <= max(1, most):
        return None
    return Finding(
        "strategy.num_servers", f"be at most {max(1, most)} for {ranks} ranks", servers,
        ways("strategy.num_servers", [max(1, most)]), explain=True,
    )  # fmt: skip
