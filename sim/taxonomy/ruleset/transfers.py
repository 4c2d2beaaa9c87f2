"""Rules on when and in which pieces gradients are sent (dimension D8)."""

from __future__ import annotations

from sim.spec.workload import kept_bytes
from sim.taxonomy.context import Context
from sim.taxonomy.rule import Finding, Overrides, RuleSet

RULES = RuleSet()

_TO_FIFO: Overrides = {"strategy.order": "fifo"}
_TO_PLAIN: Overrides = {"strategy.order": "fifo", "strategy.partition_size": None, "strategy.credit": None}
_TO_SIZE: Overrides = {"strategy.fusion": "size", "strategy.cycle_time": 0.0}
_NO_TALK: Overrides = {"strategy.negotiation": "none"}
_NO_CYCLE: Overrides = {"strategy.cycle_time": 0.0}


def _sums_gradients(c: Context) -> bool:
    """Whether whole gradients are summed by collectives or servers."""
    strategy = c.strategy
    if strategy.has_servers:
        flat = strategy.topology != "tree" and strategy.synchronization != "group_hybrid"
        return flat and strategy.update_semantics == "gradient_sum"
    plain = strategy.synchronization in ("bsp", "delayed") and not strategy.has_peers
    return plain and strategy.update_semantics == "gradient_sum"


@RULES.refuse(
    "order-barrier",
    "order state synchronization pp update topology",
    "urgency matters only where a layer's next forward waits for its own gradients, not for a common update",
)
def order_crosses_the_barrier(c: Context) -> Finding | None:
    """An order of transfers where all of them are waited for."""
    strategy = c.strategy
    if strategy.order == "fifo":
        return None
    if strategy.pp > 1:
        ways_out: tuple[Overrides, ...] = ({"strategy.pp": 1}, _TO_FIFO, _TO_PLAIN)
        return Finding(
            "strategy.order", "be fifo while pp is more than 1", strategy.order, ways_out, explain=True
        )
    if _sums_gradients(c) and (strategy.has_servers or strategy.state == "replicated"):
        return None
    must = f"be fifo while state is {strategy.state} and synchronization {strategy.synchronization}"
    return Finding("strategy.order", must, strategy.order, (_TO_FIFO, _TO_PLAIN), explain=True)


@RULES.refuse("order-library", "order credit", "gloo runs collectives in the order in which they were issued")
def order_is_the_librarys(c: Context) -> Finding | None:
    """An order of collectives, or several at a time, on a library that decides itself."""
    strategy = c.strategy
    if strategy.has_servers or c.cluster.library != "gloo":
        return None
    if strategy.order != "fifo":
        return Finding(
            "strategy.order", "be fifo with gloo", strategy.order, (_TO_FIFO, _TO_PLAIN), explain=True
        )
    if strategy.credit is None:
        return None
    return Finding(
        "strategy.credit", "be absent with gloo", strategy.credit, ({"strategy.credit": None},), explain=True
    )


@RULES.refuse("credit-pieces", "credit partition_size", "a credit counts pieces of partitioned gradients")
def credit_has_pieces(c: Context) -> Finding | None:
    """A credit without pieces, or smaller than one."""
    strategy = c.strategy
    if strategy.credit is None:
        return None
    if strategy.partition_size is None:
        ways_out: tuple[Overrides, ...] = (
            {"strategy.partition_size": strategy.credit},
            {"strategy.credit": None},
        )
        return Finding("strategy.credit", "go with a partition_size", strategy.credit, ways_out)
    if strategy.credit >= strategy.partition_size:
        return None
    return Finding(
        "strategy.credit",
        f"be at least partition_size ({strategy.partition_size:g})",
        strategy.credit,
        ({"strategy.credit": strategy.partition_size}, {"strategy.credit": None}),
    )


@RULES.refuse(
    "cycle-time", "cycle_time fusion negotiation", "a cycle is how often ready gradients are looked for"
)
def cycles_have_a_time(c: Context) -> Finding | None:
    """Fusion by cycles without a cycle, or a cycle that nobody keeps."""
    strategy = c.strategy
    if strategy.fusion == "time" and strategy.cycle_time <= 0:
        ways_out: tuple[Overrides, ...] = ({"strategy.cycle_time": 1e-3}, {"strategy.fusion": "size"})
        return Finding(
            "strategy.cycle_time", "be greater than 0 for fusion time", strategy.cycle_time, ways_out
        )
    if strategy.cycle_time > 0 and strategy.fusion != "time" and strategy.negotiation == "none":
        return Finding(
            "strategy.cycle_time",
            "be 0 without fusion time or a negotiation",
            strategy.cycle_time,
            (_NO_CYCLE, {"strategy.fusion": "time"}, {"strategy.negotiation": "coordinator"}),
        )
    return None


def _sums_buckets(c: Context) -> bool:
    """Whether gradients are summed bucket by bucket by collectives."""
    return _sums_gradients(c) and not c.strategy.has_servers and c.strategy.state != "zero3"


@RULES.refuse(
    "negotiation-collective",
    "negotiation state synchronization topology",
    "ranks agree on what they reduce together; a server takes gradients as they come",
)
def negotiation_precedes_a_collective(c: Context) -> Finding | None:
    """A negotiation without gradient collectives."""
    strategy = c.strategy
    if strategy.negotiation == "none" or _sums_buckets(c):
        return None
    return Finding(
        "strategy.negotiation",
        f"be none while state is {strategy.state} and synchronization {strategy.synchronization}",
        strategy.negotiation,
        (_NO_TALK, {**_NO_TALK, **_NO_CYCLE}),
        explain=True,
    )


@RULES.refuse(
    "fusion-collective",
    "fusion state synchronization topology",
    "cycles and merge plans weigh when gradients are ready against what starting a collective costs",
)
def fusion_precedes_a_collective(c: Context) -> Finding | None:
    """Fusion by time or plan without gradient collectives."""
    strategy = c.strategy
    if strategy.fusion in ("size", "none") or _sums_buckets(c):
        return None
    return Finding(
        "strategy.fusion",
        f"be size or none while state is {strategy.state} and synchronization {strategy.synchronization}",
        strategy.fusion,
        ({"strategy.fusion": "size"}, {"strategy.fusion": "none"}, _TO_SIZE),
        explain=True,
    )


@RULES.warn("C2-33", "order fusion bucket_size partition_size", "of one message none can go first")
def order_has_several_messages(c: Context) -> Finding | None:
    """An order while all gradients fit one bucket."""
    strategy = c.strategy
    if strategy.order == "fifo" or strategy.partition_size is not None or strategy.fusion != "size":
        return None
    size = c.workload.num_parameters / strategy.tp * kept_bytes(c.workload.dtype)
    if size > strategy.bucket_size:
        return None
    return Finding(
        "strategy.order", f"{strategy.order} has nothing to reorder: one bucket holds all gradients"
    )


@RULES.warn("order-overlap", "order overlap", "gradients that are all sent at the end compete for less")
def order_meets_overlap(c: Context) -> Finding | None:
    """An order without wait-free backpropagation."""
    if c.strategy.order == "fifo" or c.strategy.overlap:
        return None
    return Finding("strategy.order", f"{c.strategy.order} without overlap helps the next forward only")


@RULES.warn(
    "buckets-unused", "fusion partition_size state", "ZeRO-3 exchanges block by block, not by buckets"
)
def zero3_has_no_buckets(c: Context) -> Finding | None:
    """Fusion or partition where no buckets are exchanged."""
    strategy = c.strategy
    if strategy.state != "zero3" or (strategy.fusion == "size" and strategy.partition_size is None):
        return None
    field = "partition_size" if strategy.partition_size is not None else "fusion"
    return Finding(f"strategy.{field}", f"{field} has no effect while state is zero3")
