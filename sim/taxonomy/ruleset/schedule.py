"""Rules on what pipeline schedules ask of stages, weights and updates (dimension D12)."""

from __future__ import annotations

from sim.taxonomy.context import Context
from sim.taxonomy.rule import Finding, Overrides, RuleSet, ways
from sim.taxonomy.schedules import SCHEDULES, ScheduleFacts

RULES = RuleSet()
TO_1F1B: Overrides = {"strategy.schedule": "1f1b"}
TO_PLAIN_1F1B: Overrides = {"strategy.schedule": "1f1b", "strategy.virtual_stages": 1}


def schedule_facts(c: Context) -> ScheduleFacts:
    """What is known of the strategy's schedule."""
    return SCHEDULES[c.strategy.schedule]


@RULES.refuse(
    "schedule-even", "schedule pp", "stages s and p - 1 - s share a rank, so none may be its own partner"
)
def both_ways_need_even_stages(c: Context) -> Finding | None:
    """An odd number of stages that are run through both ways."""
    strategy = c.strategy
    if not schedule_facts(c).even_stages or strategy.pp % 2 == 0:
        return None
    return Finding(
        "strategy.pp",
        f"be even for the {strategy.schedule} schedule",
        strategy.pp,
        (*ways("strategy.pp", [degree for degree in (strategy.pp - 1, strategy.pp + 1) if degree]), TO_1F1B),
        explain=True,
    )


@RULES.refuse(
    "schedule-replicas",
    "schedule state synchronization update topology",
    "the two replicas that run in opposite directions need a layer's parameters at different times and sum "
    "one gradient",
)
def both_ways_keep_whole_weights(c: Context) -> Finding | None:
    """Gathered or pulled parameters, local steps or peers in a pipeline that runs both ways."""
    if not schedule_facts(c).bidirectional:
        return None
    return _own_gradients(c, ("replicated", "zero1"), ("bsp", "delayed"))


@RULES.refuse(
    "schedule-flush",
    "schedule state synchronization update topology",
    "a pipeline without a flush has several versions of the weights in use, and every stage updates its own",
)
def no_flush_updates_own_weights(c: Context) -> Finding | None:
    """Sharded state, servers, peers or another synchronisation rule with a pipeline that never flushes."""
    if schedule_facts(c).flushes or c.strategy.pp == 1:
        return None
    return _own_gradients(c, ("replicated",), ("bsp",))


def _own_gradients(c: Context, states: tuple[str, ...], synchronization: tuple[str, ...]) -> Finding | None:
    """Hold a strategy against what a schedule allows of where weights are and of what is exchanged."""
    strategy = c.strategy
    for field, allowed, got in (
        ("synchronization", synchronization, strategy.synchronization),
        ("state", states, strategy.state),
        ("update", ("gradient_sum",), strategy.update_semantics),
    ):
        if got not in allowed:
            plain: Overrides = {f"strategy.{field}": None if field == "update" else allowed[0]}
            return Finding(
                f"strategy.{field}",
                f"be {' or '.join(allowed)} for the {strategy.schedule} schedule",
                got,
                (
                    *(ways(f"strategy.{field}", allowed) if field != "update" else (plain,)),
                    {**plain, "strategy.num_servers": None},
                    {**plain, "strategy.local_steps": 1},
                    {**plain, "strategy.topology": "auto", "strategy.update": None},
                    TO_1F1B,
                    {"strategy.schedule": "1f1b", "strategy.weight_stash": False},
                ),
                explain=True,
            )
    return None


@RULES.warn("C2-22", "schedule synchronization", "weights are stale where a pipeline is never flushed")
def no_flush_is_stale(c: Context) -> Finding | None:
    """An asynchronous pipeline, which is synchronous among replicas only."""
    if schedule_facts(c).flushes or c.strategy.pp == 1:
        return None
    return Finding(
        "strategy.schedule",
        f"{c.strategy.schedule} computes gradients on old weights; the result is classified as delayed",
    )


@RULES.warn("C2-37", "weight_stash schedule pp", "there is only one version of the weights to keep")
def stash_has_versions(c: Context) -> Finding | None:
    """A weight stash without a schedule that works with several versions."""
    strategy = c.strategy
    if not strategy.weight_stash or (strategy.schedule == "pipedream_async" and strategy.pp > 1):
        return None
    return Finding("strategy.weight_stash", f"weight_stash changes nothing with schedule {strategy.schedule}")


@RULES.warn(
    "C2-24", "schedule recompute", "published bubbles of zero-bubble schedules assume no recomputation"
)
def zero_bubble_recomputes(c: Context) -> Finding | None:
    """Full recomputation where only the input gradient of a backward is urgent."""
    if not c.strategy.schedule.startswith("zb_") or c.strategy.recompute != "full":
        return None
    return Finding(
        "strategy.recompute",
        "the repeated forward precedes the gradient of the input, and its activations are held until that "
        "of the weights",
    )
