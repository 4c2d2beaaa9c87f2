"""Rules on the wire format of gradients (dimension D7)."""

from __future__ import annotations

from functools import lru_cache

from sim.spec.workload import DTYPE_BYTES, Workload, kept_bytes
from sim.taxonomy.collectives import facts_of
from sim.taxonomy.context import Context
from sim.taxonomy.rule import Finding, Overrides, RuleSet
from sim.taxonomy.ruleset.collective import MAX_DIRECT_RANKS
from sim.taxonomy.ruleset.state import TO_REPLICATED, TO_SERVERS
from sim.wire.compressor import Compressor, Options
from sim.wire.compressors import COMPRESSORS, compressor_of, options_of
from sim.wire.compressors.casts import Cast
from sim.wire.tensors import Content, layer_tensors

RULES = RuleSet()

_PLAIN: Overrides = {"strategy.compression": "none"}
_UNENCODED: tuple[Overrides, ...] = ({"strategy.compression": "fp16"}, _PLAIN)
_PLAIN_ACTIVATIONS: Overrides = {"strategy.activation_compression": "none"}
_AUTO_EXCHANGE: Overrides = {"strategy.compression_exchange": "auto"}
_DEFAULTS: Overrides = {
    "strategy.compression_ratio": None,
    "strategy.compression_levels": None,
    **_AUTO_EXCHANGE,
    "strategy.compression_engine": "device",
    "strategy.compress_pull": False,
}


def _options(c: Context) -> tuple[Compressor, Options]:
    return compressor_of(c.strategy), options_of(c.strategy)


@lru_cache(maxsize=256)
def _sizes(workload: Workload, compression: str, options: Options) -> tuple[float, float, float]:
    """Bytes of all gradients as they are; encoded; and of these what cannot be summed on the way."""
    tensors = [tensor for layer in workload.layers for tensor, _ in layer_tensors(layer)]
    content = Content.of(tensors)
    element = kept_bytes(workload.dtype)
    messages = COMPRESSORS[compression].messages(content, element, options)
    gathered = sum(message.size for message in messages if not message.reducible)
    return content.elements * element, sum(message.size for message in messages), gathered


@RULES.refuse(
    "compression-ratio", "compression_ratio compression", "the compressor does not choose among elements"
)
def ratio_has_a_meaning(c: Context) -> Finding | None:
    """A ratio for a compressor that has none."""
    strategy = c.strategy
    if strategy.compression_ratio is None or compressor_of(strategy).parameter == "ratio":
        return None
    sparse: Overrides = {"strategy.compression": "topk"}
    return Finding(
        "strategy.compression_ratio",
        f"be absent while compression is {strategy.compression}",
        strategy.compression_ratio,
        ({"strategy.compression_ratio": None}, sparse, {**sparse, "strategy.collective": "auto"}),
        explain=True,
    )


@RULES.refuse(
    "compression-levels", "compression_levels compression", "only qsgd has a number of magnitudes to choose"
)
def levels_have_a_meaning(c: Context) -> Finding | None:
    """A number of levels for a compressor that has none."""
    strategy = c.strategy
    if strategy.compression_levels is None or compressor_of(strategy).parameter == "levels":
        return None
    return Finding(
        "strategy.compression_levels",
        f"be absent while compression is {strategy.compression}",
        strategy.compression_levels,
        ({"strategy.compression_levels": None}, {"strategy.compression": "qsgd"}),
        explain=True,
    )


@RULES.refuse(
    "C2-6",
    "compression collective state compression_exchange",
    "partial sums of encoded gradients cannot be encoded alike",
)
def sums_have_a_code(c: Context) -> Finding | None:
    """A non-reducible compressor with a collective that sums on the way."""
    strategy, compressor = c.strategy, compressor_of(c.strategy)
    if compressor.reducible or c.uses_servers or strategy.compression_exchange != "auto":
        return None
    if strategy.collective == "auto" or (c.is_sharded and strategy.collective == "direct"):
        return None
    return Finding(
        "strategy.collective",
        f"be auto for {compressor.name} unless compression_exchange is requantize",
        strategy.collective,
        (
            {"strategy.collective": "auto"},
            {"strategy.compression_exchange": "requantize"},
            {"strategy.collective": "auto", "strategy.chunks": 1},
            {**TO_SERVERS, "strategy.collective": "auto"},
        ),
        explain=True,
    )


@RULES.refuse(
    "compression-exchange",
    "compression_exchange compression state",
    "gradients that can be summed while encoded, or go to a server, are not exchanged in another way",
)
def exchange_has_a_choice(c: Context) -> Finding | None:
    """An explicit way of exchange for a compressor or state that knows one way only."""
    strategy, compressor = c.strategy, compressor_of(c.strategy)
    exchange = strategy.compression_exchange
    if exchange == "auto":
        return None
    possible = (
        compressor.recodes if exchange == "requantize" else not compressor.reducible and not c.is_sharded
    )
    if possible and not c.uses_servers:
        return None
    got = f"{exchange} with compression {compressor.name} and state {strategy.state}"
    auto = {**_AUTO_EXCHANGE, "strategy.collective": "auto"}
    return Finding("strategy.compression_exchange", "be auto", got, (_AUTO_EXCHANGE, auto), explain=True)


@RULES.refuse(
    "compression-gather",
    "compression_exchange collective dp",
    "encoded gradients of all ranks have to be gathered by everybody",
)
def gather_has_an_algorithm(c: Context) -> Finding | None:
    """An all-gather by an algorithm that has no such form."""
    strategy = c.strategy
    if strategy.compression_exchange != "all_gather" or c.uses_servers or c.is_sharded:
        return None
    facts = facts_of(strategy.collective)
    odd = facts.power_of_two and c.gradient_ranks & (c.gradient_ranks - 1)
    if facts.scatters and not odd:
        return None
    return Finding(
        "strategy.collective",
        "have an all-gather form while compression_exchange is all_gather",
        strategy.collective,
        ({"strategy.collective": "ring"}, {"strategy.collective": "auto"}, _AUTO_EXCHANGE),
        explain=True,
    )


@RULES.refuse("compression-direct", "compression state dp", "every rank sends each owner its encoded part")
def owners_are_few(c: Context) -> Finding | None:
    """Encoded parts of gradients straight to more owners than flows can be kept for."""
    strategy = c.strategy
    if compressor_of(strategy).reducible or not c.is_sharded or strategy.compression_exchange != "auto":
        return None
    if c.gradient_ranks <= MAX_DIRECT_RANKS:
        return None
    must = f"be one that can be summed on the way for more than {MAX_DIRECT_RANKS} ranks that share state"
    ways = ({"strategy.compression_exchange": "requantize"}, *_UNENCODED)
    return Finding("strategy.compression", must, strategy.compression, ways, explain=True)


def _not_with_this_state(c: Context, when: str) -> Finding:
    """A compressor that the placement of state cannot use."""
    got = f"{c.strategy.compression} with state {c.strategy.state}"
    ways = (*_UNENCODED, *({**way, **_DEFAULTS} for way in _UNENCODED), TO_REPLICATED)
    must = f"not be {c.strategy.compression} while state is {when}"
    return Finding("strategy.compression", must, got, ways, explain=True)


@RULES.refuse("compression-scatter", "compression state", "a rank cannot decode its part of the sum alone")
def shards_can_be_decoded(c: Context) -> Finding | None:
    """A compressor whose sums only decode as a whole, with sharded state."""
    if not c.is_sharded or compressor_of(c.strategy).scatters:
        return None
    return _not_with_this_state(c, "sharded")


@RULES.refuse("compression-server", "compression state", "workers agree by all-reduces on what they send")
def servers_can_decode(c: Context) -> Finding | None:
    """A compressor whose ranks depend on each other, with a parameter server."""
    if not c.uses_servers or compressor_of(c.strategy).served:
        return None
    return _not_with_this_state(c, c.strategy.state)


@RULES.refuse(
    "compression-peers",
    "compression update topology synchronization state exchange_bits shard_ranks",
    "models, messages among peers and sums inside a group of workers are numbers, which can be cast only",
)
def peers_exchange_numbers(c: Context) -> Finding | None:
    """More than a cast where workers exchange something else than gradients with everybody or a server."""
    strategy = c.strategy
    if isinstance(compressor_of(strategy), Cast):
        return None
    in_groups = c.uses_servers and (strategy.topology == "tree" or strategy.synchronization == "group_hybrid")
    of_models = c.uses_servers and strategy.update_semantics != "gradient_sum"
    of_copies = c.is_sharded and strategy.shard_ranks is not None
    partial = strategy.synchronization == "partial_allreduce"
    # Everybody decodes what each of the others says.
    mesh = strategy.topology == "full_mesh" and compressor_of(strategy).served
    peers = strategy.has_peers and not mesh
    if not (in_groups or of_models or partial or peers or of_copies or strategy.exchange_bits):
        return None
    must = "be a cast unless gradients are summed over all workers or by one level of servers"
    ways = (*_UNENCODED, *({**way, **_DEFAULTS} for way in _UNENCODED))
    return Finding("strategy.compression", must, strategy.compression, ways, explain=True)


@RULES.refuse(
    "C2-9",
    "compression state",
    "zero3 gathers weights, which need an exact or quantise-only path, and keeps no whole array of residuals",
)
def residuals_have_room(c: Context) -> Finding | None:
    """Error feedback where every array is sharded."""
    if c.strategy.state != "zero3" or not compressor_of(c.strategy).error_feedback:
        return None
    ways = (
        *_UNENCODED,
        *({**way, **_DEFAULTS} for way in _UNENCODED),
        {"strategy.state": "zero2"},
        TO_REPLICATED,
    )
    must = "have no error feedback while state is zero3"
    return Finding("strategy.compression", must, c.strategy.compression, ways, explain=True)


@RULES.refuse(
    "compression-pull",
    "compress_pull compression state synchronization",
    "an encoded sum stands for an update only if every worker applies all of them",
)
def answers_are_sums(c: Context) -> Finding | None:
    """Encoded answers without a synchronous server, or without a compressor."""
    strategy = c.strategy
    if not strategy.compress_pull:
        return None
    synchronous = strategy.synchronization in ("bsp", "backup")
    if c.uses_servers and synchronous and strategy.compression != "none":
        return None
    got = (
        f"true with state {strategy.state}, {strategy.synchronization} and compression {strategy.compression}"
    )
    must = "be false unless a synchronous parameter server gets compressed gradients"
    return Finding("strategy.compress_pull", must, got, ({"strategy.compress_pull": False},), explain=True)


@RULES.refuse("compression-engine", "compression_engine compression", "there is nothing to encode")
def engine_has_work(c: Context) -> Finding | None:
    """Network cards that encode, without a compressor."""
    if c.strategy.compression_engine == "device" or c.strategy.compression != "none":
        return None
    ways: tuple[Overrides, ...] = (
        {"strategy.compression_engine": "device"},
        {"strategy.compression": "fp16"},
    )
    must = "be device while compression is none"
    return Finding("strategy.compression_engine", must, c.strategy.compression_engine, ways, explain=True)


@RULES.warn("C2-7", "compression dp", "the bytes that everybody gathers grow with the number of ranks")
def gathered_bytes_stay_below_dense(c: Context) -> Finding | None:
    """An all-gather that moves more than a plain all-reduce: from n r = 1 on for entries of 8 bytes."""
    strategy, (compressor, options) = c.strategy, _options(c)
    exchange = strategy.compression_exchange
    if compressor.reducible or c.uses_servers or c.is_sharded or exchange == "requantize":
        return None
    ranks = c.gradient_ranks
    dense, _, gathered = _sizes(c.workload, compressor.name, options)
    if ranks < 2 or dense <= 0 or ranks * gathered < 2 * dense:
        return None
    return Finding(
        "strategy.compression",
        f"gathering {compressor.name} gradients of {ranks} ranks moves "
        f"{ranks * gathered / (2 * dense):.1f} times the bytes of a plain all-reduce",
    )


@RULES.warn("compression-dtype", "compression", "gradients already have that width")
def compression_narrows(c: Context) -> Finding | None:
    """A wire format that is no smaller than the gradients."""
    compressor, options = _options(c)
    if compressor.name == "none":
        return None
    dense, encoded, _ = _sizes(c.workload, compressor.name, options)
    if encoded < dense * (1 - 1e-12):
        return None
    width = "16 bits or fewer" if DTYPE_BYTES[c.workload.dtype] <= 2 else "32 bits"
    return Finding(
        "strategy.compression", f"{compressor.name} saves nothing: {c.workload.dtype} gradients have {width}"
    )


@RULES.warn("C2-32", "compression synchronization", "no gradient is sent in a local step")
def compression_has_gradients(c: Context) -> Finding | None:
    """Gradient compression under local SGD."""
    if c.strategy.compression == "none" or c.strategy.synchronization != "local":
        return None
    return Finding(
        "strategy.compression", "local SGD sends no gradients; compression applies to the averaged change"
    )


@RULES.refuse(
    "activation-compression",
    "activation_compression tp pp",
    "only tensor parallel ranks and pipeline stages exchange activations",
)
def activations_are_exchanged(c: Context) -> Finding | None:
    """A wire format of activations that stay where they are."""
    strategy = c.strategy
    if strategy.activation_compression == "none" or strategy.tp > 1 or strategy.pp > 1:
        return None
    must = "be none while tp and pp are 1"
    ways = (_PLAIN_ACTIVATIONS, {"strategy.tp": 2}, {"strategy.pp": 2})
    return Finding(
        "strategy.activation_compression", must, strategy.activation_compression, ways, explain=True
    )


@RULES.refuse(
    "activation-sums", "activation_compression tp", "tensor parallel ranks sum activations on the way"
)
def activations_can_be_summed(c: Context) -> Finding | None:
    """Codes that cannot be added, among tensor parallel ranks."""
    strategy = c.strategy
    if strategy.tp == 1 or COMPRESSORS[strategy.activation_compression].reducible:
        return None
    ways = ({"strategy.activation_compression": "fp8"}, _PLAIN_ACTIVATIONS, {"strategy.tp": 1})
    must = "be a cast while tp is more than 1"
    return Finding(
        "strategy.activation_compression", must, strategy.activation_compression, ways, explain=True
    )


@RULES.warn(
    "C2-8", "activation_compression", "no error feedback applies to activations, and convergence is unknown"
)
def activations_lose_precision(c: Context) -> Finding | None:
    """Activations in fewer bits than they are computed in; or no fewer."""
    name, element = c.strategy.activation_compression, kept_bytes(c.workload.dtype)
    if name == "none":
        return None
    content = Content(1e6)
    if COMPRESSORS[name].size(content, element, Options()) >= content.elements * element:
        text = f"{name} saves nothing: {c.workload.dtype} activations are no wider"
    else:
        text = f"{name} on activations has no error feedback; whether training converges is not modelled"
    return Finding("strategy.activation_compression", text)
