"""Rules on pipeline schedules and activation memory (dimensions D12 and D13)."""

from __future__ import annotations

import numpy as np

from sim.taxonomy.context import Context
from sim.taxonomy.rule import Finding, Overrides, RuleSet, near_divisors, ways
from sim.taxonomy.ruleset.schedule import TO_1F1B, TO_PLAIN_1F1B, schedule_facts

RULES = RuleSet()


@RULES.refuse(
    "C2-21",
    "schedule pp virtual_stages micro_batch_size",
    "a pipeline schedule orders the work of several stages",
)
def schedule_has_a_pipeline(c: Context) -> Finding | None:
    """A schedule other than the default needs pp > 1, and the micro-batches that it is made of."""
    strategy, known = c.strategy, schedule_facts(c)
    if strategy.pp == 1:
        if strategy.schedule == "1f1b":
            return None
        return Finding(
            "strategy.schedule",
            "be left at 1f1b while pp is 1",
            strategy.schedule,
            (TO_1F1B, TO_PLAIN_1F1B, {"strategy.schedule": "1f1b", "strategy.weight_stash": False}),
        )
    if known.chunks is None and strategy.virtual_stages == 1:
        return Finding(
            "strategy.virtual_stages",
            f"be at least 2 for the {strategy.schedule} schedule",
            1,
            ({"strategy.virtual_stages": 2}, TO_1F1B),
        )
    if c.num_micro_batches is None:
        return None
    multiple = strategy.pp if known.whole_rounds else 2 if known.even_micro_batches else 1
    least = known.micro_batches_of_stages * strategy.pp
    if c.num_micro_batches % multiple == 0 and c.num_micro_batches >= least:
        return None
    if c.num_micro_batches % multiple:
        wanted = f"a multiple of pp ({strategy.pp})" if known.whole_rounds else "an even number of"
    else:
        wanted = f"at least {least} (for pp {strategy.pp})"
    return Finding(
        "strategy.micro_batch_size",
        f"give {wanted} micro-batches for the {strategy.schedule} schedule",
        f"{strategy.micro_batch_size or c.replica_batch} ({c.num_micro_batches} micro-batches)",
        (*_micro_batch_sizes(c, multiple_of=multiple, least=least), TO_1F1B, TO_PLAIN_1F1B),
    )


def _micro_batch_sizes(c: Context, *, multiple_of: int, least: int = 0) -> tuple[Overrides, ...]:
    """Micro-batch sizes that give a multiple of some number of micro-batches, largest first."""
    batch = c.replica_batch or 0
    if batch % multiple_of:
        return ()
    most = batch // multiple_of
    sizes = [size for size in near_divisors(most + 1, most) if batch // size >= least]
    return ways("strategy.micro_batch_size", sizes)


@RULES.refuse(
    "virtual-stages",
    "virtual_stages schedule",
    "the schedule fixes how many different model chunks a rank has",
)
def chunks_are_the_schedules(c: Context) -> Finding | None:
    """Virtual stages only with the interleaved schedule, and two with zb_v."""
    strategy, chunks = c.strategy, schedule_facts(c).chunks
    if chunks is None or strategy.virtual_stages == chunks or (strategy.pp == 1 and chunks > 1):
        return None
    return Finding(
        "strategy.virtual_stages",
        f"be {chunks} for the {strategy.schedule} schedule",
        strategy.virtual_stages,
        ({"strategy.virtual_stages": chunks}, {"strategy.schedule": "interleaved"}, TO_PLAIN_1F1B),
    )


@RULES.refuse(
    "stage-blocks",
    "stage_blocks pp virtual_stages",
    "every block of the model belongs to one chunk, and a chunk without a block needs the embedding or head",
)
def chunks_hold_all_blocks(c: Context) -> Finding | None:
    """Stated chunk sizes: one per chunk, adding up to the model, none empty."""
    strategy, facts, given = c.strategy, c.workload_facts, c.strategy.stage_blocks
    if given is None:
        return None
    chunks, without = strategy.pp * strategy.virtual_stages, {"strategy.stage_blocks": None}
    even = tuple(len(part) for part in np.array_split(np.arange(facts.num_blocks), chunks))
    instead: tuple[Overrides, ...] = ({"strategy.stage_blocks": even}, without) if chunks > 1 else (without,)
    shown = ", ".join(map(str, given))
    if len(given) != chunks or chunks == 1:
        must = f"give pp x virtual_stages ({chunks}) numbers" if chunks > 1 else "be absent while pp is 1"
        return Finding("strategy.stage_blocks", must, shown, instead)
    if sum(given) != facts.num_blocks:
        must = f"add up to the blocks of {c.workload.name} ({facts.num_blocks})"
        return Finding("strategy.stage_blocks", must, f"{shown} = {sum(given)}", instead)
    least = [1] * chunks
    least[0] -= facts.has_embedding
    least[-1] -= facts.has_head
    if any(count < low for count, low in zip(given, least, strict=True)):
        return Finding("strategy.stage_blocks", "leave no chunk without a layer", shown, instead)
    if strategy.embedding_in_split or strategy.head_in_split:
        plain: Overrides = {"strategy.embedding_in_split": False, "strategy.head_in_split": False}
        must = "be absent while the embedding or the head counts as a block"
        return Finding("strategy.stage_blocks", must, shown, (without, plain))
    return None


@RULES.warn("split-ends", "embedding_in_split head_in_split pp", "there is nothing to divide differently")
def split_ends_exist(c: Context) -> Finding | None:
    """Embedding or head counted as a block where there is no pipeline, or no such layer in a block."""
    strategy, facts = c.strategy, c.workload_facts
    for name, exists in (("embedding", facts.has_embedding), ("head", facts.has_head)):
        if getattr(strategy, f"{name}_in_split") and (strategy.pp == 1 or not exists):
            why = "while pp is 1" if strategy.pp == 1 else f"as no {name} shares a block of {c.workload.name}"
            return Finding(f"strategy.{name}_in_split", f"{name}_in_split has no effect {why}")
    return None


@RULES.refuse(
    "pp-blocks", "pp virtual_stages", "a pipeline is cut only between blocks, and no chunk may be empty"
)
def stages_have_blocks(c: Context) -> Finding | None:
    """No more stages than blocks."""
    strategy, facts = c.strategy, c.workload_facts
    if strategy.pp > 1 and strategy.stage_blocks is not None:
        return None  # told how many each
    blocks = facts.num_blocks + (strategy.embedding_in_split and facts.has_embedding)
    blocks += strategy.head_in_split and facts.has_head
    if strategy.pp * strategy.virtual_stages <= blocks:
        return None
    most = blocks // strategy.virtual_stages
    if strategy.virtual_stages > 1 and strategy.pp <= blocks:
        fewer: tuple[Overrides, ...] = ways(
            "strategy.virtual_stages", list(range(blocks // strategy.pp, 1, -1))
        )
        return Finding(
            "strategy.virtual_stages",
            f"leave pp x virtual_stages no more than the {blocks} blocks of {c.workload.name}",
            f"{strategy.virtual_stages} (pp {strategy.pp})",
            (
                *fewer,
                TO_PLAIN_1F1B,
                *ways("strategy.pp", list(range(most, 1, -1))),
            ),
        )
    return Finding(
        "strategy.pp",
        f"be at most the number of blocks of {c.workload.name} ({blocks})",
        strategy.pp,
        (
            *ways("strategy.pp", list(range(most, 0, -1))),
            {"strategy.pp": 1, "strategy.schedule": "1f1b"},
            {"strategy.pp": 1, **TO_PLAIN_1F1B},
        ),
    )


@RULES.warn(
    "few-micro-batches",
    "pp micro_batch_size",
    "a pipeline fills only with at least as many micro-batches as stages",
)
def pipeline_is_filled(c: Context) -> Finding | None:
    """Fewer micro-batches than stages."""
    p, m = c.strategy.pp, c.num_micro_batches
    m = None if m is None else m * c.strategy.token_slices
    if p == 1 or m is None or m >= p or c.strategy.schedule == "naive" or not schedule_facts(c).flushes:
        return None
    bubble = (p - 1) / (m + p - 1)
    return Finding(
        "strategy.micro_batch_size",
        f"{m} micro-batch{'es' if m > 1 else ''} for {p} stages: at least {bubble:.0%} of a step is bubble; "
        "a smaller micro_batch_size fills the pipeline",
    )


@RULES.warn("C2-23", "pp state", "gathers and scatters repeat for every micro-batch")
def sharding_meets_pipeline(c: Context) -> Finding | None:
    """ZeRO-2/3 together with a pipeline."""
    if c.strategy.pp == 1 or c.strategy.state not in ("zero2", "zero3"):
        return None
    return Finding(
        "strategy.state",
        f"{c.strategy.state} with pp {c.strategy.pp} repeats its collectives per micro-batch; zero1 does not",
    )


@RULES.warn(
    "selective-recompute", "recompute", "selective recomputation drops the activations of the attention core"
)
def selective_recompute_has_attention(c: Context) -> Finding | None:
    """Selective recomputation on a model that stores nothing it drops."""
    if c.strategy.recompute != "selective" or c.workload_facts.has_selective:
        return None
    return Finding(
        "strategy.recompute",
        f"selective recomputation changes nothing: {c.workload.name} has no attention to drop",
    )


@RULES.refuse(
    "token-slices",
    "token_slices schedule pp cp",
    "a slice of a sequence needs the keys of earlier slices only, and the backward takes them in reverse",
)
def slices_follow_each_other(c: Context) -> Finding | None:
    """Slices of sequences without causal attention, or without all forwards before all backwards."""
    strategy, facts = c.strategy, c.workload_facts
    if strategy.token_slices == 1:
        return None
    one = ways("strategy.token_slices", [1])
    if strategy.pp == 1 or strategy.cp > 1 or strategy.schedule != "gpipe":
        must = "be 1 unless pp is above 1, cp is 1 and the schedule gpipe"
        gpipe: Overrides = {"strategy.schedule": "gpipe"}
        return Finding("strategy.token_slices", must, strategy.token_slices, (*one, gpipe), explain=True)
    length = c.workload.sequence_length
    if not facts.is_causal or length is None:
        must = f"be 1, as {c.workload.name} has no causal attention"
        return Finding("strategy.token_slices", must, strategy.token_slices, one, explain=True)
    if length % strategy.token_slices == 0:
        return None
    near = ways("strategy.token_slices", near_divisors(strategy.token_slices, length))
    return Finding("strategy.token_slices", f"divide sequence_length ({length})", strategy.token_slices, near)


@RULES.refuse(
    "recompute-layers",
    "recompute_layers recompute offload_activations",
    "layers run forward again one by one, from inputs that are on the device",
)
def recomputed_layers_are_some(c: Context) -> Finding | None:
    """Kinds of layers that the model has none of, or that another policy recomputes or moves anyway."""
    strategy, field = c.strategy, "strategy.recompute_layers"
    if not strategy.recompute_layers:
        return None
    none = ways(field, [()])
    shown = ", ".join(strategy.recompute_layers)
    unknown = [kind for kind in strategy.recompute_layers if kind not in c.workload_facts.kinds]
    if unknown:
        kinds = ", ".join(sorted(c.workload_facts.kinds))
        return Finding(field, f"name kinds of layers of {c.workload.name}: {kinds}", shown, none)
    if strategy.recompute == "none" and not strategy.offload_activations:
        return None
    must = "be empty unless recompute is none and activations stay on the device"
    instead: Overrides = {"strategy.recompute": "none", "strategy.offload_activations": False}
    return Finding(field, must, shown, (instead, *none), explain=True)
