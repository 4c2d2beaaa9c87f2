"""Rules on parallelism degrees and where ranks lie (dimension D1)."""

from __future__ import annotations

from sim.spec.strategy import Strategy
from sim.taxonomy.context import Context
from sim.taxonomy.rule import Finding, Overrides, RuleSet, near_divisors, ways

RULES = RuleSet()

_AXES = Strategy.model_fields["placement"].default
_ALL_DEGREES = "tp cp ep pp dp"


@RULES.refuse("placement-axes", "placement", "every rank has one place, found by walking each axis once")
def placement_names_every_axis(c: Context) -> Finding | None:
    """Placement is a permutation of the four axes."""
    placement = c.strategy.placement
    if sorted(placement) == sorted(_AXES):
        return None
    return Finding(
        "strategy.placement",
        f"name each of {', '.join(_AXES)} once",
        ", ".join(placement),
        ({"strategy.placement": _AXES},),
    )


@RULES.refuse(
    "tp-splits",
    "tp",
    "tensor parallelism divides weight matrices, and this model states none that it can divide",
)
def tensor_parallelism_has_matrices(c: Context) -> Finding | None:
    """Tensor parallelism needs layers it can divide."""
    if c.strategy.tp == 1 or c.workload_facts.has_tensor_split:
        return None
    return Finding(
        "strategy.tp",
        f"be 1, as no layer of {c.workload.name} divides by tensor parallelism",
        c.strategy.tp,
        _without_tensor_parallelism(c),
    )


def _without_tensor_parallelism(c: Context) -> tuple[Overrides, ...]:
    return (
        {"strategy.tp": 1},
        {"strategy.tp": 1, "strategy.sequence_parallel": False},
    )


@RULES.refuse("tp-heads", "tp", "attention is divided by whole heads")
def tensor_parallelism_divides_heads(c: Context) -> Finding | None:
    """Tensor parallel degree divides the attention heads."""
    heads, tp = c.workload.num_heads, c.strategy.tp
    if heads is None or heads % tp == 0:
        return None
    return Finding(
        "strategy.tp", f"divide num_heads ({heads})", tp, ways("strategy.tp", near_divisors(tp, heads))
    )


@RULES.refuse(
    "tp-kv-heads",
    "tp",
    "key and value heads are divided whole, or copied when there are fewer of them than ranks",
)
def tensor_parallelism_divides_kv_heads(c: Context) -> Finding | None:
    """Tensor parallel degree divides the key/value heads, or is a multiple of them."""
    heads, tp = c.workload.num_kv_heads, c.strategy.tp
    if heads is None or heads % tp == 0 or tp % heads == 0:
        return None
    return Finding(
        "strategy.tp",
        f"divide num_kv_heads ({heads}) or be a multiple of it",
        tp,
        ways("strategy.tp", near_divisors(tp, heads)),
    )


@RULES.refuse("tp-hidden", "tp", "column and row parallel matrices are cut into equal parts")
def tensor_parallelism_divides_widths(c: Context) -> Finding | None:
    """Tensor parallel degree divides the hidden size and every matrix width it cuts."""
    tp, hidden = c.strategy.tp, c.workload.hidden
    if hidden is not None and hidden % tp:
        return Finding(
            "strategy.tp", f"divide hidden ({hidden})", tp, ways("strategy.tp", near_divisors(tp, hidden))
        )
    for width in sorted(c.workload_facts.tensor_widths):
        if width % tp:
            near = ways("strategy.tp", near_divisors(tp, width))
            return Finding("strategy.tp", f"divide the layer width {width}", tp, near)
    return None


@RULES.warn("C2-25", "tp", "tensor parallel collectives cross the slow network")
def tensor_parallelism_stays_on_nvlink(c: Context) -> Finding | None:
    """Tensor parallelism beyond an NVLink domain."""
    domain, tp = c.cluster.nvlink_domain, c.strategy.tp
    if tp <= domain:
        return None
    where = "there is no NVLink between devices" if domain == 1 else f"an NVLink domain has {domain} devices"
    return Finding(
        "strategy.tp",
        f"tp is {tp} but {where}: two all-reduces per layer and direction go over a slower link",
    )


@RULES.warn("idle-devices", "dp", "devices without a rank are paid for but do nothing")
def devices_are_used(c: Context) -> Finding | None:
    """Fewer ranks than devices."""
    if c.num_ranks is None or c.num_ranks == c.cluster.num_devices:
        return None
    return Finding(
        "strategy.dp",
        f"{c.cluster.num_devices - c.num_ranks} of {c.cluster.num_devices} devices carry no rank",
    )


@RULES.refuse(
    "sequence-parallel-tp",
    "sequence_parallel tp",
    "sequence parallelism splits activations over the tensor parallel ranks",
)
def sequence_parallelism_needs_tensor_parallelism(c: Context) -> Finding | None:
    """Sequence parallelism needs tp > 1."""
    if not c.strategy.sequence_parallel or c.strategy.tp > 1:
        return None
    return Finding(
        "strategy.sequence_parallel",
        "be false while tp is 1",
        "true",
        ({"strategy.sequence_parallel": False}, {"strategy.tp": 2}),
    )


@RULES.refuse("sequence-parallel-length", "sequence_parallel tp", "sequences are cut into equal parts")
def sequence_parallelism_divides_sequence(c: Context) -> Finding | None:
    """Each rank's sequence divides by tp under sequence parallelism."""
    strategy, length = c.strategy, c.workload.sequence_length
    if not strategy.sequence_parallel or strategy.tp == 1:
        return None
    off: Overrides = {"strategy.sequence_parallel": False}
    if length is None:
        return Finding(
            "strategy.sequence_parallel", "be false, as the workload has no sequence", "true", (off,)
        )
    local = length // strategy.cp
    if local % strategy.tp == 0:
        return None
    near = ways("strategy.tp", near_divisors(strategy.tp, local))
    of = f"({length})" if strategy.cp == 1 else f"per context parallel rank ({local})"
    return Finding(
        "strategy.tp",
        f"divide sequence_length {of} under sequence parallelism",
        strategy.tp,
        (*near[:2], off),
    )


@RULES.refuse(
    "cp-sequence",
    "cp context_parallelism context_balance",
    "context parallel ranks take equal parts of a sequence, two each to balance causal attention",
)
def context_parallelism_divides_sequence(c: Context) -> Finding | None:
    """Context parallelism needs attention and a sequence that divides by cp, by 2 cp where it balances."""
    cp, length = c.strategy.cp, c.workload.sequence_length
    if cp == 1 or c.strategy.is_spatial:
        return None
    if length is None or not c.workload_facts.has_attention:
        return Finding(
            "strategy.cp",
            f"be 1, as {c.workload.name} has no attention over a sequence",
            cp,
            ({"strategy.cp": 1},),
        )
    parts = 2 if c.strategy.context_balance and c.strategy.context_parallelism != "ulysses" else 1
    if length % (parts * cp) == 0:
        return None
    near = [degree for degree in near_divisors(cp, length) if length % (parts * degree) == 0]
    of = "half of sequence_length" if parts == 2 else "sequence_length"
    return Finding("strategy.cp", f"divide {of} ({length})", cp, ways("strategy.cp", [*near[:2], 1]))


@RULES.refuse(
    "C2-26", "cp context_parallelism tp", "Ulysses exchanges parts of the sequence for whole attention heads"
)
def ulysses_divides_heads(c: Context) -> Finding | None:
    """Ulysses: tp x cp divides the attention heads."""
    strategy, heads = c.strategy, c.workload.num_heads
    if strategy.cp == 1 or strategy.context_parallelism != "ulysses" or heads is None:
        return None
    if heads % (strategy.tp * strategy.cp) == 0:
        return None
    local = max(1, heads // strategy.tp)
    return Finding(
        "strategy.cp",
        f"divide the heads of a tensor parallel rank ({local}) for ulysses",
        strategy.cp,
        (*ways("strategy.cp", near_divisors(strategy.cp, local)), {"strategy.context_parallelism": "ring"}),
    )


@RULES.refuse(
    "spatial-images",
    "cp context_parallelism tp pp",
    "spatial ranks take rows of an image, at least one of what every convolution makes",
)
def spatial_parallelism_divides_images(c: Context) -> Finding | None:
    """Spatial parallelism needs convolutions, of enough rows, and layers that are whole otherwise."""
    strategy, rows = c.strategy, c.workload_facts.image_rows
    if not strategy.is_spatial:
        return None
    other = {"strategy.context_parallelism": "ring"}
    if rows is None or c.workload_facts.has_attention:
        must = f"not be spatial, as {c.workload.name} is no chain of convolutions"
        return Finding(
            "strategy.context_parallelism", must, "spatial", (other, {**other, "strategy.cp": 1})
        )  # fmt: skip
    if strategy.tp > 1 or strategy.pp > 1:
        return Finding(
            "strategy.cp", "be 1 for spatial unless tp and pp are 1", strategy.cp,
            ({"strategy.cp": 1}, {"strategy.tp": 1, "strategy.pp": 1}),
        )  # fmt: skip
    if strategy.cp <= rows:
        return None
    return Finding(
        "strategy.cp", f"be at most the {rows} rows of the smallest convolution", strategy.cp,
        ways("strategy.cp", [*near_divisors(strategy.cp, strategy.cp // 2)[:1], 1]),
    )  # fmt: skip


@RULES.refuse(
    "C2-5",
    "cp synchronization",
    "the ranks of a context parallel group hold parts of one sample, whose gradients belong together",
)
def context_parallelism_is_synchronous(c: Context) -> Finding | None:
    """Context parallelism with workers that run ahead of each other, or whose gradients are dropped."""
    strategy = c.strategy
    if strategy.cp == 1 or strategy.synchronization in ("bsp", "local"):
        return None
    return Finding(
        "strategy.cp",
        f"be 1 while synchronization is {strategy.synchronization}",
        strategy.cp,
        (
            {"strategy.cp": 1},
            {"strategy.synchronization": "bsp"},
            {"strategy.synchronization": "bsp", "strategy.staleness": 0, "strategy.backup_workers": 0},
        ),
        explain=True,
    )


@RULES.warn("context-cp", "cp context_parallelism context_balance", "only cp > 1 divides a sequence")
def context_parallelism_has_ranks(c: Context) -> Finding | None:
    """A way of context parallelism without any."""
    strategy, fields = c.strategy, type(c.strategy).model_fields
    for name in ("context_parallelism", "context_balance"):
        if strategy.cp == 1 and getattr(strategy, name) != fields[name].default:
            return Finding(f"strategy.{name}", f"{name} has no effect while cp is 1")
    return None


def _lacks_experts(c: Context) -> str:
    """Why there are no experts to place: there are none, or nothing says how many."""
    some = any(layer.expert_parameters for layer in c.workload.layers)
    return "does not state num_experts" if some else "has no experts"


@RULES.refuse("C2-27", "ep", "experts are placed whole, equally many on each rank")
def expert_parallelism_divides_experts(c: Context) -> Finding | None:
    """Expert parallelism needs experts and divides their number."""
    ep, experts = c.strategy.ep, c.workload.experts
    if ep == 1:
        return None
    if not experts:
        must = f"be 1, as {c.workload.name} {_lacks_experts(c)}"
        return Finding("strategy.ep", must, ep, ({"strategy.ep": 1},))
    if experts % ep == 0:
        return None
    return Finding(
        "strategy.ep", f"divide num_experts ({experts})", ep, ways("strategy.ep", near_divisors(ep, experts))
    )


@RULES.refuse(
    "expert-tp",
    "expert_tp tp ep sequence_parallel",
    "tensor parallel ranks divide an expert among fewer of them only if each brings tokens of its own",
)
def experts_are_divided_by_tensor_ranks(c: Context) -> Finding | None:
    """A tensor parallel degree inside experts: divides tp; another than tp needs sequence parallelism."""
    strategy, degree = c.strategy, c.strategy.expert_tp
    if degree is None:
        return None
    if not c.workload.experts:
        without = ways("strategy.expert_tp", [None])
        return Finding(
            "strategy.expert_tp", f"be absent, as {c.workload.name} {_lacks_experts(c)}", degree, without
        )
    if strategy.tp % degree:
        near = ways("strategy.expert_tp", near_divisors(degree, strategy.tp))
        return Finding("strategy.expert_tp", f"divide tp ({strategy.tp})", degree, near)
    if degree == strategy.tp:
        return None
    if c.uses_servers or strategy.synchronization != "bsp":
        must = "be tp for parameter servers and for workers that run ahead"
        return Finding("strategy.expert_tp", must, degree, ({"strategy.expert_tp": None},))
    if strategy.sequence_parallel:
        return None
    return Finding(
        "strategy.expert_tp",
        f"be tp ({strategy.tp}) without sequence_parallel",
        degree,
        ({"strategy.expert_tp": None}, {"strategy.sequence_parallel": True}),
        explain=True,
    )


@RULES.refuse("ep-dp", "ep dp tp cp expert_tp", "expert groups are made of the ranks of a pipeline stage")
def expert_parallelism_divides_replicas(c: Context) -> Finding | None:
    """Expert parallel degree times the tensor degree inside experts divides tp x cp x dp."""
    strategy, inside = c.strategy, c.strategy.expert_tensor_degree
    if strategy.ep == 1 or c.dp is None or strategy.tp % inside:
        return None
    room = c.dp * strategy.cp * strategy.tp // inside
    if room % strategy.ep == 0:
        return None
    of = {(1, True): "dp", (1, False): "tp x dp / expert_tp"}.get((strategy.cp, inside == strategy.tp))
    of = of or ("dp x cp" if inside == strategy.tp else "tp x cp x dp / expert_tp")
    near = ways("strategy.ep", near_divisors(strategy.ep, room))
    folded: Overrides = {"strategy.expert_tp": 1, "strategy.sequence_parallel": True}
    return Finding("strategy.ep", f"divide {of} ({room})", strategy.ep, (*near, folded))


@RULES.warn("expert-load", "expert_imbalance expert_capacity ep", "no experts wait for the busiest one")
def experts_wait_for_each_other(c: Context) -> Finding | None:
    """An imbalance or capacity without experts; an imbalance that a capacity cuts off."""
    strategy = c.strategy
    for name, unused in (("expert_imbalance", 1.0), ("expert_capacity", None)):
        if getattr(strategy, name) != unused and not c.workload.experts:
            return Finding(
                f"strategy.{name}", f"{name} has no effect, as {c.workload.name} {_lacks_experts(c)}"
            )
    if strategy.expert_imbalance != 1 and strategy.expert_capacity is not None:
        return Finding(
            "strategy.expert_imbalance", "expert_imbalance has no effect while expert_capacity pads to it"
        )
    return None


def _largest_degree(c: Context) -> str:
    return max(("tp", "cp", "pp"), key=lambda axis: int(getattr(c.strategy, axis)))


@RULES.refuse("ranks-devices", _ALL_DEGREES, "each rank needs a device of its own")
def ranks_fit_devices(c: Context) -> Finding | None:
    """No more ranks than devices."""
    devices, strategy = c.cluster.num_devices, c.strategy
    ranks = c.model_parallel * (strategy.dp or 1)
    if ranks <= devices:
        return None
    product = (
        f"tp {strategy.tp} x cp {strategy.cp} x pp {strategy.pp} x dp {strategy.dp or 1} = {ranks} ranks"
    )
    must = f"leave no more ranks than devices ({devices})"
    axis = _largest_degree(c)
    degree: int = getattr(strategy, axis)
    room = devices * degree // c.model_parallel
    smaller: tuple[Overrides, ...] = tuple(
        {f"strategy.{axis}": value, "strategy.dp": None}
        for value in near_divisors(degree, devices, most=room)
    )
    if strategy.dp is None or c.model_parallel > devices:
        smaller = ways(f"strategy.{axis}", near_divisors(degree, devices, most=room)) + smaller
        more = c.cluster.hosts_for(ranks)
        return Finding(f"strategy.{axis}", must, f"{degree} ({product})", (*smaller, *more))
    fewer = ways("strategy.dp", near_divisors(strategy.dp, devices // c.model_parallel))
    return Finding("strategy.dp", must, f"{strategy.dp} ({product})", fewer + smaller)


@RULES.refuse(
    "ranks-fill-devices", _ALL_DEGREES, "dp is derived from the device count; state dp to leave devices idle"
)
def replicas_fill_devices(c: Context) -> Finding | None:
    """Without a stated dp, tp x cp x pp divides the number of devices."""
    devices = c.cluster.num_devices
    if c.strategy.dp is not None or c.model_parallel > devices or devices % c.model_parallel == 0:
        return None
    axis = _largest_degree(c)
    degree: int = getattr(c.strategy, axis)
    others = c.model_parallel // degree
    near = near_divisors(degree, devices // others) if devices % others == 0 else []
    return Finding(
        f"strategy.{axis}",
        f"make tp x cp x pp divide the number of devices ({devices})",
        f"{degree} (tp {c.strategy.tp} x cp {c.strategy.cp} x pp {c.strategy.pp} = {c.model_parallel})",
        (*ways(f"strategy.{axis}", near), {"strategy.dp": devices // c.model_parallel}),
    )
