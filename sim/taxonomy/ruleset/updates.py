"""Rules on update semantics and logical topology (dimensions D4 and D5)."""

from __future__ import annotations

from sim.taxonomy.context import Context
from sim.taxonomy.rule import Finding, Overrides, RuleSet, near_divisors, ways
from sim.taxonomy.ruleset.collective import MAX_DIRECT_RANKS
from sim.taxonomy.ruleset.state import TO_REPLICATED, TO_SERVERS
from sim.taxonomy.topologies import GRAPHS, TOPOLOGIES
from sim.taxonomy.updates import UPDATES

RULES = RuleSet()

_DEFAULT_UPDATE: Overrides = {"strategy.update": None}
_AUTO: Overrides = {"strategy.topology": "auto"}
_TO_LOCAL: Overrides = {"strategy.synchronization": "local"}
_GOSSIP = tuple(name for name, facts in UPDATES.items() if facts.peers)


@RULES.refuse("C2-17", "topology state", "peers of a graph know no centre")
def graphs_have_no_servers(c: Context) -> Finding | None:
    """A logical graph of peers with parameter servers or sharded state."""
    if not c.strategy.has_peers or c.strategy.state == "replicated":
        return None
    return Finding(
        "strategy.state",
        f"be replicated while topology is {c.strategy.topology}",
        c.strategy.state,
        (TO_REPLICATED, {**TO_REPLICATED, "strategy.num_servers": None}, _AUTO, {**_AUTO, **_DEFAULT_UPDATE}),
        explain=True,
    )


@RULES.refuse("topology-servers", "topology state", "only parameter servers are the centre of a star or tree")
def stars_have_servers(c: Context) -> Finding | None:
    """A star or tree without parameter servers."""
    if not TOPOLOGIES[c.strategy.topology].centre or c.uses_servers:
        return None
    *others, last = (name for name, facts in TOPOLOGIES.items() if not facts.centre)
    among = f"{', '.join(others)} or {last}"
    return Finding(
        "strategy.topology",
        f"be {among} while state is {c.strategy.state}",
        c.strategy.topology,
        (_AUTO, {**_AUTO, "strategy.group_size": None}, TO_SERVERS),
        explain=True,
    )


@RULES.refuse("star-servers", "topology num_servers", "a star has one centre, a sharded star several")
def stars_have_their_number_of_servers(c: Context) -> Finding | None:
    """A star of several servers, or a sharded star of one."""
    if not c.uses_servers:
        return None
    servers = c.strategy.num_servers or (1 if c.strategy.has_server_hosts else c.used_hosts)
    least, most = TOPOLOGIES[c.strategy.topology].servers
    if least <= servers and (most is None or servers <= most):
        return None
    asked = f"{least} or more" if most is None else str(most)
    other: tuple[Overrides, ...] = tuple(
        {"strategy.topology": name}
        for name, facts in TOPOLOGIES.items()
        if facts.centre and not facts.grouped and name != c.strategy.topology
    )
    return Finding(
        "strategy.num_servers", f"be {asked} while topology is {c.strategy.topology}", servers,
        ({"strategy.num_servers": least if servers < least else most}, *other),
    )  # fmt: skip


@RULES.refuse("gossip-graph", "update topology", "gossip averages with the peers of a graph")
def gossip_has_a_graph(c: Context) -> Finding | None:
    """Gossip or push-sum without a graph; a graph with any other update."""
    update, topology = c.strategy.update_semantics, c.strategy.topology
    few = TOPOLOGIES[topology].chosen_peers
    if UPDATES[update].peers == few:
        return None
    if few:
        return Finding(
            "strategy.update", f"be {' or '.join(_GOSSIP)} while topology is {topology}", update,
            ({"strategy.update": "gossip_average"}, _AUTO),
        )  # fmt: skip
    return Finding(
        "strategy.topology", f"be graph for {update}", topology,
        ({"strategy.topology": "graph"}, _DEFAULT_UPDATE, {**_DEFAULT_UPDATE, **_AUTO}), explain=True,
    )  # fmt: skip


@RULES.refuse(
    "C2-16",
    "update state synchronization topology",
    "elastic averaging needs a centre: on servers, or the all-reduced average of local SGD",
)
def elastic_averages_have_a_centre(c: Context) -> Finding | None:
    """Elastic averaging without a centre variable."""
    strategy = c.strategy
    if strategy.update_semantics != "elastic_average" or c.uses_servers:
        return None
    if strategy.state == "replicated" and strategy.synchronization == "local" and not strategy.has_peers:
        return None
    return Finding(
        "strategy.update", "go with parameter servers or with local on replicated state", "elastic_average",
        ({**TO_SERVERS, **_AUTO}, {**TO_REPLICATED, **_TO_LOCAL, **_AUTO}, _TO_LOCAL, TO_SERVERS),
        explain=True,
    )  # fmt: skip


@RULES.refuse("update-rule", "update synchronization", "each update fits the rules that say when it is due")
def updates_have_their_rule(c: Context) -> Finding | None:
    """Models under a rule that exchanges gradients, and the other way round."""
    strategy = c.strategy
    update, rule = strategy.update_semantics, strategy.synchronization
    facts = UPDATES[update]
    if not facts.models:
        if rule == "local" and not c.uses_servers:
            return Finding(
                "strategy.update", "exchange models for local SGD without servers", update,
                ({"strategy.update": "model_average"}, TO_SERVERS), explain=True,
            )  # fmt: skip
        return None
    allowed = (c.uses_servers and facts.server_rules) or facts.rules
    if rule in allowed or not allowed:
        return None
    instead = tuple({"strategy.synchronization": value} for value in allowed)
    return Finding(
        "strategy.update", f"go with {' or '.join(allowed)}, not {rule}", update,
        (*instead, _DEFAULT_UPDATE), explain=True,
    )  # fmt: skip


@RULES.refuse("sma-collective", "update state", "corrections are summed by a collective among replicas")
def corrections_are_reduced(c: Context) -> Finding | None:
    """Synchronous model averaging with servers, sharded state or a mesh."""
    strategy = c.strategy
    if strategy.update_semantics != "sma" or (strategy.state == "replicated" and not strategy.has_peers):
        return None
    return Finding(
        "strategy.state", "be replicated for sma", strategy.state, (TO_REPLICATED, _DEFAULT_UPDATE)
    )


@RULES.refuse(
    "models-replica", "update synchronization topology ep cp pp tp", "a replica shares nothing within a step"
)
def models_belong_to_replicas(c: Context) -> Finding | None:
    """Experts or context shards spread over replicas that exchange models or go ahead of each other."""
    strategy = c.strategy
    own = strategy.has_peers or strategy.exchanges_models
    own = own or strategy.synchronization == "partial_allreduce"
    for axis in ("ep", "cp"):
        degree: int = getattr(strategy, axis)
        if own and degree > 1:
            return Finding(
                f"strategy.{axis}", "be 1 for replicas with models of their own", degree,
                ({f"strategy.{axis}": 1}, {**_AUTO, **_DEFAULT_UPDATE}), explain=True,
            )  # fmt: skip
    return None


@RULES.refuse(
    "partial-replica", "synchronization tp pp", "a group forms rank by rank, not replica by replica"
)
def partial_groups_are_of_whole_replicas(c: Context) -> Finding | None:
    """A partial all-reduce of replicas of several ranks."""
    strategy = c.strategy
    if strategy.synchronization != "partial_allreduce" or strategy.tp * strategy.pp == 1:
        return None
    axis = "tp" if strategy.tp > 1 else "pp"
    return Finding(
        f"strategy.{axis}", "be 1 for a partial all-reduce", getattr(strategy, axis),
        ({f"strategy.{axis}": 1}, {"strategy.tp": 1, "strategy.pp": 1}, {"strategy.synchronization": "bsp"}),
        explain=True,
    )  # fmt: skip


@RULES.refuse(
    "partial-servers", "synchronization state", "servers know no groups of whoever is ready but soft_sync"
)
def partial_groups_have_no_servers(c: Context) -> Finding | None:
    """A partial all-reduce with parameter servers or a logical graph."""
    if c.strategy.synchronization != "partial_allreduce" or not c.uses_servers:
        return None
    soft: Overrides = {"strategy.synchronization": "soft_sync", "strategy.group_size": None}
    return Finding(
        "strategy.state", "be replicated for a partial all-reduce", c.strategy.state,
        (TO_REPLICATED, {**TO_REPLICATED, "strategy.num_servers": None}, soft), explain=True,
    )  # fmt: skip


@RULES.refuse("group-size", "group_size synchronization topology dp", "every replica belongs to one group")
def groups_tile_the_replicas(c: Context) -> Finding | None:
    """Groups that are larger than the job, or do not divide it."""
    if not c.uses_groups or c.dp is None:
        return None
    size = c.group_size
    if c.strategy.synchronization == "partial_allreduce":
        if size <= c.dp:
            return None
        return Finding(
            "strategy.group_size", f"be at most dp ({c.dp})", size, ways("strategy.group_size", [c.dp])
        )
    levels = c.strategy.tree_levels
    if levels > 1 and c.dp % size**levels:
        must = f"be 1, as {size}^{levels} replicas of a group of the highest level do not divide dp ({c.dp})"
        return Finding("strategy.tree_levels", must, levels, ways("strategy.tree_levels", [1]))
    if c.dp % size == 0:
        return None
    near = near_divisors(size, c.dp)
    return Finding("strategy.group_size", f"divide dp ({c.dp})", size, ways("strategy.group_size", near))


def _nodes(c: Context) -> int | None:
    """Replicas, or groups of them, that exchange with peers."""
    if c.dp is None:
        return None
    size = c.group_size if c.strategy.synchronization == "group_hybrid" else 1
    return c.dp // size if c.dp % size == 0 else None


@RULES.refuse("peers-number", "topology dp group_size", "an exchange takes two")
def peers_are_several(c: Context) -> Finding | None:
    """A logical graph of one node."""
    nodes = _nodes(c)
    if not c.strategy.has_peers or nodes is None or nodes > 1:
        return None
    size = c.group_size if c.strategy.synchronization == "group_hybrid" else 1
    return Finding(
        "strategy.topology", "be auto for a single replica or group", c.strategy.topology,
        (
            _AUTO, {**_AUTO, **_DEFAULT_UPDATE}, {"strategy.group_size": 1}, {"strategy.dp": 2 * size},
            *c.cluster.hosts_for(2 * c.model_parallel * size),
        ),
    )  # fmt: skip


@RULES.refuse("graph-degree", "graph_degree topology dp", "a replica has no more peers than there are others")
def degrees_are_possible(c: Context) -> Finding | None:
    """More peers than other replicas, or several where peers are paired."""
    nodes, degree = _nodes(c), c.strategy.graph_degree
    if c.strategy.topology != "graph" or nodes is None or nodes < 2 or _paired(c):
        return None
    if c.strategy.graph != "fixed" or degree < nodes or degree == 2:
        return None
    most = nodes - 1
    return Finding(
        "strategy.graph_degree", f"be at most {most}", degree, ways("strategy.graph_degree", [most])
    )


def _paired(c: Context) -> bool:
    return GRAPHS[c.strategy.graph].drawn and (
        c.strategy.update_semantics == "gossip_average" or c.strategy.synchronization in ("bsp", "ssp")
    )


@RULES.refuse(
    "C2-18",
    "graph synchronization dp",
    "random pairs need a matching, and one of an odd number of replicas would wait for nobody",
)
def random_pairs_match(c: Context) -> Finding | None:
    """Random pairs in step with an odd number of replicas."""
    strategy, nodes = c.strategy, _nodes(c)
    drawn = TOPOLOGIES[strategy.topology].chosen_peers and GRAPHS[strategy.graph].drawn
    if not drawn or strategy.synchronization not in ("bsp", "ssp") or nodes is None or nodes % 2 == 0:
        return None
    return Finding(
        "strategy.graph", f"be fixed or exponential for an odd number of replicas ({nodes})", "random",
        ({"strategy.graph": "exponential"}, {"strategy.graph": "fixed"}, {"strategy.synchronization": "asp"}),
        explain=True,
    )  # fmt: skip


@RULES.refuse("peers-rule", "topology synchronization", "peers exchange in step, bounded, or without waiting")
def peers_know_their_rules(c: Context) -> Finding | None:
    """A logical graph under a rule that needs a server or a collective."""
    rule = c.strategy.synchronization
    if not c.strategy.has_peers or rule in ("bsp", "ssp", "asp"):
        return None
    if rule == "group_hybrid":
        return None
    return Finding(
        "strategy.synchronization", f"be bsp, ssp or asp while topology is {c.strategy.topology}", rule,
        ({"strategy.synchronization": "asp"}, {"strategy.synchronization": "bsp"}, _AUTO),
    )  # fmt: skip


@RULES.refuse("peers-collective", "topology synchronization collective chunks", "no collective is called")
def peers_call_no_collective(c: Context) -> Finding | None:
    """A collective algorithm where replicas exchange with peers or in groups of whoever is ready."""
    strategy = c.strategy
    alone = strategy.has_peers and strategy.synchronization != "group_hybrid"
    if not alone and strategy.synchronization != "partial_allreduce":
        return None
    if strategy.collective == "auto":
        return None
    return Finding(
        "strategy.collective", "be auto where no collective is called", strategy.collective,
        ({"strategy.collective": "auto"}, {"strategy.collective": "auto", "strategy.chunks": 1}),
    )  # fmt: skip


@RULES.refuse(
    "mesh-ranks", "topology synchronization dp", "everybody's messages to everybody would not fit in memory"
)
def meshes_are_small(c: Context) -> Finding | None:
    """A full mesh, or groups of whoever is ready, among thousands of replicas."""
    full = c.strategy.topology == "full_mesh" or c.strategy.synchronization == "partial_allreduce"
    if not full or c.dp is None or c.dp <= MAX_DIRECT_RANKS // 4:
        return None
    return Finding(
        "strategy.dp", f"be at most {MAX_DIRECT_RANKS // 4} for exchanges among all", c.dp,
        ({"strategy.topology": "graph", "strategy.update": "gossip_average"},),
    )  # fmt: skip


@RULES.refuse(
    "fragments-steps", "fragments exchange_overlap local_steps", "each part has its turn once per period"
)
def fragments_fit_the_period(c: Context) -> Finding | None:
    """More fragments than steps, or an exchange that takes longer than the period."""
    strategy = c.strategy
    if strategy.synchronization != "local":
        return None
    if strategy.fragments > strategy.local_steps:
        return Finding(
            "strategy.fragments", f"be at most local_steps ({strategy.local_steps})", strategy.fragments,
            ways("strategy.fragments", [strategy.local_steps]),
        )  # fmt: skip
    if strategy.exchange_overlap and strategy.exchange_overlap >= strategy.local_steps:
        return Finding(
            "strategy.exchange_overlap", f"be less than local_steps ({strategy.local_steps})",
            strategy.exchange_overlap, ways("strategy.exchange_overlap", [strategy.local_steps - 1]),
        )  # fmt: skip
    return None


@RULES.refuse(
    "models-compression", "compression update synchronization", "compressors of gradients keep their errors"
)
def models_are_not_compressed(c: Context) -> Finding | None:
    """A gradient compressor on exchanged models (local SGD only warns)."""
    strategy = c.strategy
    models = strategy.exchanges_models and strategy.synchronization != "local"
    factored = strategy.compression == "powersgd" and (
        strategy.has_peers or strategy.synchronization == "local"
    )
    if strategy.compression == "none" or not (models or factored):
        return None
    return Finding(
        "strategy.compression", f"be none for {strategy.update_semantics}", strategy.compression,
        ({"strategy.compression": "none"}, {"strategy.compression": "none", "strategy.exchange_bits": 16}),
    )  # fmt: skip


@RULES.warn("C2-34", "overlap synchronization", "a layer's weights are final only after its update")
def averages_follow_updates(c: Context) -> Finding | None:
    """Wait-free backpropagation where models are averaged."""
    if not c.strategy.overlap or c.strategy.synchronization != "local" or c.strategy.synchronous_steps:
        return None
    if not c.strategy.exchanges_models or c.uses_servers:
        return None
    return Finding("strategy.overlap", "wait-free backpropagation has no effect where models are averaged")


@RULES.warn("moving-rate", "moving_rate dp", "the centre moves by alpha towards each of n workers")
def centres_do_not_overshoot(c: Context) -> Finding | None:
    """An elastic average whose centre would overshoot: n alpha above 1 (Zhang et al., NIPS 2015)."""
    rate = c.strategy.moving_rate
    if rate is None or c.dp is None or rate * c.dp <= 1:
        return None
    return Finding("strategy.moving_rate", f"{rate:g} times {c.dp} workers is above 1: the centre overshoots")
