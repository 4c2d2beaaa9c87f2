"""Rules on the gradient collective (dimensions D5, D6 and D8)."""

from __future__ import annotations

import math

from sim.taxonomy.collectives import COLLECTIVES, facts_of
from sim.taxonomy.context import Context
from sim.taxonomy.rule import Finding, Overrides, RuleSet

RULES = RuleSet()

MAX_DIRECT_RANKS = 4096
_TO_AUTO: Overrides = {"strategy.collective": "auto"}
_PLAIN: tuple[Overrides, ...] = (
    {"strategy.collective": "ring"},
    _TO_AUTO,
    {"strategy.collective": "ring", "strategy.chunks": 1},
)
_SHARDED_WAYS_OUT: tuple[Overrides, ...] = ({"strategy.collective": "ring"}, {"strategy.state": "replicated"})


@RULES.refuse(
    "C2-20",
    "collective tp cp pp dp",
    "a two-level collective works on a grid of ranks: equally many on each host, and two or more hosts",
)
def grid_tiles_the_ranks(c: Context) -> Finding | None:
    """Hierarchical and torus collectives need gradient groups that are (ranks per host) x hosts grids."""
    strategy = c.strategy
    if not facts_of(strategy.collective).grid or c.uses_servers or c.num_ranks is None:
        return None
    if len(set(strategy.placement)) != len(strategy.placement):
        return None
    grid = c.gradient_grid
    if strategy.collective_dims is not None or (grid is not None and len(grid) > 1 and min(grid) > 1):
        return None
    shape = "different numbers of ranks on its hosts"
    if grid is not None:
        shape = (
            f"{grid[0]} on each of {grid[1]} hosts" if len(grid) == 2 else f"{grid[0]} along one dimension"
        )
    return Finding(
        "strategy.collective",
        "be a flat algorithm unless gradient groups have equally many ranks, at least 2, on 2 or more hosts,"
        " or collective_dims says how they are arranged",
        f"{strategy.collective} (group has {shape})",
        _PLAIN,
    )


@RULES.refuse(
    "grid-shape",
    "collective_dims collective dp cp",
    "each rank has one place in the grid, and each place one rank (C2-20)",
)
def dims_tile_the_ranks(c: Context) -> Finding | None:
    """Extents that do not fit the algorithm, or do not multiply to the ranks of a gradient group."""
    strategy, dims = c.strategy, c.strategy.collective_dims
    if dims is None:
        return None
    automatic: Overrides = {"strategy.collective_dims": None}
    got = list(dims)
    if not facts_of(strategy.collective).shaped:
        names = ", ".join(sorted(name for name, facts in COLLECTIVES.items() if facts.shaped))
        return Finding("strategy.collective_dims", f"be given for {names} only", got, (automatic,))
    if min(dims) < 2 or (strategy.collective == "torus2d" and len(dims) != 2):
        must = "be two extents of at least 2" if strategy.collective == "torus2d" else "be at least 2 each"
        return Finding("strategy.collective_dims", must, got, (automatic, *_PLAIN))
    if facts_of(strategy.collective).grid and len(dims) < 2:
        return Finding("strategy.collective_dims", "be two or more extents", got, (automatic, *_PLAIN))
    ranks = c.gradient_ranks
    if not ranks or c.uses_servers or math.prod(dims) == ranks:
        return None
    must = f"multiply to the {ranks} ranks of a gradient group"
    ways = tuple(
        {"strategy.collective_dims": (part, ranks // part)}
        for part in sorted(range(2, math.isqrt(ranks) + 1), key=lambda p: abs(p - dims[0]))
        if ranks % part == 0
    )
    return Finding("strategy.collective_dims", must, got, (*ways[:3], automatic, *_PLAIN))


@RULES.refuse(
    "radix-collective",
    "collective_radix collective dp cp",
    "only an exchange by digits has a base, and only one tree a number of children",
)
def radix_fits(c: Context) -> Finding | None:
    """A radix for an algorithm without one, or a base of which the ranks are no power."""
    strategy, radix = c.strategy, c.strategy.collective_radix
    if radix is None:
        return None
    automatic: Overrides = {"strategy.collective_radix": None}
    if not facts_of(strategy.collective).radix or strategy.collective_dims is not None:
        names = " and ".join(sorted(name for name, facts in COLLECTIVES.items() if facts.radix))
        must = f"be given for {names} without collective_dims only"
        return Finding("strategy.collective_radix", must, radix, (automatic,))
    ranks = 0 if c.uses_servers else c.gradient_ranks
    if strategy.collective != "bcube" or ranks < 1:
        return None
    while ranks % radix == 0:
        ranks //= radix
    if ranks == 1:
        return None
    must = f"be a base of which the {c.gradient_ranks} ranks of a gradient group are a power"
    return Finding("strategy.collective_radix", must, radix, (automatic, *_PLAIN))


@RULES.refuse(
    "grid-experts",
    "collective ep",
    "expert gradients are summed over another, smaller group, which is no such grid",
)
def grid_has_one_group(c: Context) -> Finding | None:
    """Hierarchical and torus collectives, or a shape given, with expert parallelism."""
    shaped = c.strategy.collective_dims is not None or (
        c.strategy.collective == "bcube" and c.strategy.collective_radix is not None
    )
    if not (facts_of(c.strategy.collective).grid or shaped) or not c.strategy.folds_experts:
        return None
    must = "be a flat algorithm while ep is above 1"
    plain: Overrides = {
        "strategy.collective": "ring",
        "strategy.collective_dims": None,
        "strategy.collective_radix": None,
    }
    ways: tuple[Overrides, ...] = (*_PLAIN, plain, {**plain, "strategy.chunks": 1})
    return Finding("strategy.collective", must, c.strategy.collective, ways, explain=True)


@RULES.refuse(
    "chunks-collective",
    "chunks collective",
    "only a collective of several levels can work on one chunk per level at a time",
)
def chunks_have_levels(c: Context) -> Finding | None:
    """Chunks only with hierarchical and torus collectives."""
    strategy = c.strategy
    if strategy.chunks == 1 or facts_of(strategy.collective).shaped:
        return None
    return Finding(
        "strategy.chunks",
        f"be 1 while collective is {strategy.collective}",
        strategy.chunks,
        ({"strategy.chunks": 1}, {"strategy.collective": "hierarchical"}),
    )


@RULES.refuse(
    "sharding-algorithm",
    "collective state dp",
    "sharded state needs a reduce-scatter, which leaves every rank its own part of the sum",
)
def sharded_state_scatters(c: Context) -> Finding | None:
    """ZeRO with an algorithm that has no reduce-scatter form, or none for this many ranks."""
    strategy = c.strategy
    if not c.is_sharded:
        return None
    facts = facts_of(strategy.collective)
    if not facts.scatters:
        must = f"have a reduce-scatter form while state is {strategy.state}"
        return Finding("strategy.collective", must, strategy.collective, _SHARDED_WAYS_OUT, explain=True)
    ranks = c.gradient_ranks
    if not facts.power_of_two or ranks & (ranks - 1) == 0:
        return None
    return Finding(
        "strategy.collective",
        f"have a reduce-scatter form for {ranks} ranks, no power of two, while state is {strategy.state}",
        strategy.collective,
        _SHARDED_WAYS_OUT,
    )


@RULES.refuse(
    "gloo-algorithm", "collective state", "gloo all-reduces, gathers and scatters by rings, whatever is asked"
)
def algorithm_is_the_librarys(c: Context) -> Finding | None:
    """An algorithm for a library that has one of its own."""
    strategy = c.strategy
    if c.cluster.library != "gloo" or c.uses_servers or strategy.collective in ("auto", "ring"):
        return None
    plain: Overrides = {
        "strategy.collective": "auto",
        "strategy.collective_dims": None,
        "strategy.collective_radix": None,
        "strategy.chunks": 1,
    }
    ways: tuple[Overrides, ...] = (_TO_AUTO, {"strategy.collective": "ring"}, plain)
    must = "be auto or ring with gloo"
    return Finding("strategy.collective", must, strategy.collective, ways, explain=True)


@RULES.refuse(
    "nvls-switches",
    "collective tp cp pp dp compression_exchange",
    "only NVSwitches of NVLink 4 and later add up, numbers as they are, what their own host's ranks send",
)
def nvls_has_switches(c: Context) -> Finding | None:
    """NVLink SHARP on hosts that cannot, or for codes that nobody can add."""
    strategy = c.strategy
    if strategy.collective != "nvls" or c.uses_servers or c.num_ranks is None or c.gradient_ranks < 2:
        return None
    if strategy.compression_exchange != "auto":
        ways: tuple[Overrides, ...] = ({"strategy.collective": "ring"}, _TO_AUTO)
        return Finding(
            "strategy.collective", "be another one for codes that are added hop by hop", "nvls", ways
        )
    grid = c.gradient_grid
    if c.cluster.nvswitch_reduces and grid is not None and grid[0] > 1:
        return None
    must = "be another one on hosts without NVSwitches that add up or with a single rank of a group"
    return Finding("strategy.collective", must, "nvls", _PLAIN, explain=True)


@RULES.refuse("direct-ranks", "collective dp", "a direct exchange has a flow between every two ranks")
def direct_has_few_ranks(c: Context) -> Finding | None:
    """A direct exchange among more ranks than its flows can be kept for."""
    if c.strategy.collective != "direct" or c.gradient_ranks <= MAX_DIRECT_RANKS:
        return None
    if c.cluster.counts_exchanges:
        return None
    must = f"be another algorithm for a gradient group of more than {MAX_DIRECT_RANKS} ranks on this fabric"
    return Finding("strategy.collective", must, f"direct ({c.gradient_ranks} ranks)", _PLAIN)


@RULES.warn("C2-19", "collective dp", "the ranks beyond the power of two fold in before and out after")
def doubling_has_a_power_of_two(c: Context) -> Finding | None:
    """Doubling algorithms on a rank count that is no power of two."""
    if not facts_of(c.strategy.collective).power_of_two or c.dp is None:
        return None
    ranks = c.gradient_ranks
    if ranks & (ranks - 1) == 0:
        return None
    return Finding(
        "strategy.collective",
        f"{c.strategy.collective} on {ranks} ranks, no power of two, costs two extra steps",
    )


@RULES.warn("no-peers", "collective dp", "one rank has nobody to exchange gradients with")
def collective_has_peers(c: Context) -> Finding | None:
    """An explicit flat collective with a single rank per gradient group."""
    if c.strategy.collective == "auto" or c.uses_servers or c.gradient_ranks != 1:
        return None
    return Finding(
        "strategy.collective", f"dp is 1: no gradient is exchanged, and {c.strategy.collective} has no effect"
    )
