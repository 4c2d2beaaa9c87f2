"""Collective algorithms as few phases of flows, and the choice a library makes.

A collective on ``n`` ranks is a tuple of :class:`Phase`. A phase merges consecutive steps whose flows are
proportional (all steps of a ring are one phase) and lasts, on a network that gives its elementary flow the
rate ``x``, ``steps * latency + fraction * size_bytes / x``. Phases follow one another.

``size_bytes`` has the meaning of nccl-tests throughout: all-reduce, broadcast, reduce: the buffer;
all-gather: the gathered result; reduce-scatter: the full input; gather and scatter: the root's full buffer;
all-to-all: the per-rank send buffer; send: the message.

Sources: P. Patarasuk, X. Yuan, JPDC 69 (2009) 117 (ring); R. Thakur, R. Rabenseifner, W. Gropp, IJHPCA 19
(2005) 49 (halving-doubling, recursive doubling); P. Sanders, J. Speck, J. Traeff, Parallel Computing 35
(2009) 581 (double binary tree, as used by NCCL since 2.4); M. Cho et al., BlueConnect, SysML 2019
(hierarchical over any number of dimensions); H. Mikami et al., arXiv:1811.05233 (2-D torus).
:mod:`sim.models.exchanges` has the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from sim.errors import InputError
from sim.models import exchanges
from sim.models.in_network import collnet, in_fabric, in_switch, switch_tree
from sim.models.phase import FloatArray, IntArray, Phase, Plan
from sim.models.phase import equal_flows as _phase
from sim.models.tree_packing import Matrix

__all__ = [
    "ALGORITHMS",
    "GRID_ALGORITHMS",
    "OPERATIONS",
    "PAIRS",
    "Phase",
    "Plan",
    "bus_factor",
    "choose",
    "flows",
    "plan",
    "square_dims",
]

OPERATIONS = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "all_to_allv", "send",
    "gather", "scatter", "barrier",
)  # fmt: skip
IN_NETWORK_ALGORITHMS = ("nvls", "nvls_tree", "collnet", "in_network")

GRID_ALGORITHMS = ("hierarchical", "torus2d", "blueconnect", "leaders")
"""Rings along the dimensions of a grid of ranks."""

# A direct phase has n (n - 1) flows; above so many ranks they are counted and not written down.
MAX_LISTED_RANKS = 256


def plan(
    op: str,
    algorithm: str,
    n: int,
    *,
    dims: tuple[int, ...] | None = None,
    radix: int | None = None,
    links: Matrix | None = None,
    matrix: FloatArray | None = None,
) -> Plan:
    """Phases of one collective.

    Parameters
    ----------
    op : str
        One of :data:`OPERATIONS`. Rooted operations have root 0; ``send`` goes from rank 0 to rank 1.
    algorithm : str
        One of :data:`ALGORITHMS`.
    n : int
        Number of ranks; one rank needs no communication and gives no phases.
    dims : tuple of int, optional
        Extent of each dimension, innermost first, product ``n``; rank = i0 + dims[0] * (i1 + dims[1] * ...).
        ``hierarchical``, ``torus2d``, ``blueconnect`` and ``leaders`` (groups of ``dims[0]``) use it (the
        most square two factors by default),
        and ``bcube`` (its digits; by default those of ``radix``); ``tree`` with ``dims=(k, m)`` is NCCL's: a
        chain through the ``k`` ranks of a host, double binary trees over ``m`` hosts; ``packed_trees``: trees
        in hosts of ``k``, rings over ``m`` hosts.
    radix : int, optional
        Base of ``bcube``, children of a rank of ``kary_tree`` (2 by default).
    links : tuple of tuple of int, optional
        Links between ranks, for ``packed_trees``; see :mod:`sim.models.tree_packing`.
    matrix : float[n, n], optional
        Bytes from rank to rank of ``all_to_allv``, to scale; all equal if absent.

    Raises
    ------
    InputError
        For a pair of operation and algorithm that does not exist, or dims that do not tile the ranks.
    """
    if op not in OPERATIONS:
        raise InputError("collective.operation", f"be one of {', '.join(OPERATIONS)}", op)
    if algorithm not in ALGORITHMS:
        raise InputError("collective.algorithm", f"be one of {', '.join(ALGORITHMS)}", algorithm)
    if n < 1:
        raise InputError("collective.num_ranks", "be at least 1", n)
    if (op, algorithm) not in PAIRS:
        possible = [a for a in ALGORITHMS if (op, a) in PAIRS]
        raise InputError(
            "collective.algorithm", f"support {op}", algorithm, hint=f"Try {' or '.join(possible)}."
        )
    if dims is not None and math.prod(dims) != n:
        raise InputError("collective.dims", f"multiply to the number of ranks ({n})", list(dims))
    if n == 1:
        return ()
    if matrix is not None and op == "all_to_allv":
        return exchanges.uneven_exchange(op, exchanges.traffic_matrix(matrix, n))
    return _cached_plan(op, algorithm, n, dims, radix, links)


@lru_cache(maxsize=64)
def _cached_plan(
    op: str, algorithm: str, n: int, dims: tuple[int, ...] | None, radix: int | None, links: Matrix | None
) -> Plan:
    if algorithm == "bcube":
        return exchanges.bcube(op, n, dims or exchanges.digit_dims(n, radix))
    if algorithm == "kary_tree":
        return exchanges.kary_tree(op, n, 2 if radix is None else radix)
    if algorithm == "packed_trees":
        return exchanges.packed_trees(op, n, dims, links)
    return _BUILDERS[op, algorithm](op, n, dims)


def flows(phase: Phase, orders: Sequence[IntArray]) -> tuple[IntArray, IntArray, FloatArray]:
    """Flows of a phase between endpoints, spread over several rank orders by equal shares.

    A library runs one copy of the algorithm per channel, each on its own order of the same devices and its
    own part of the data. Copies on link-disjoint orders add up their bandwidths; on a shared link they do
    not.

    Parameters
    ----------
    phase : Phase
        Phase over local ranks.
    orders : sequence of int[n]
        ``orders[r][i]`` is the endpoint that plays local rank ``i`` in copy ``r``
        (``Network.orders``).

    Returns
    -------
    src, dst, relative
        Endpoints and relative bytes of all ``len(orders) * len(phase.src)`` flows; the relative bytes of
        each copy are divided by the number of copies, ``phase.fraction`` stays.
    """
    src = np.concatenate([np.asarray(order)[phase.src] for order in orders])
    dst = np.concatenate([np.asarray(order)[phase.dst] for order in orders])
    return src, dst, np.tile(phase.relative / len(orders), len(orders))


def wire_bytes(phases: Plan, n: int, size_bytes: float) -> FloatArray:
    """Bytes each of the ``n`` ranks sends over all phases, float[n]."""
    sent = np.zeros(n)
    for phase in phases:
        flows = np.full(n, n - 1.0) if phase.everyone else np.bincount(phase.src, phase.relative, n)
        sent += flows * (phase.fraction * size_bytes)
    return sent


def bus_factor(op: str, n: int, *, in_network: bool = False) -> float:
    """Bus bandwidth over algorithm bandwidth (size / time), as nccl-tests defines it.

    It is also the least number of bytes, per byte of ``size_bytes``, that the busiest rank has to send or
    receive; with reduction ``in_network``, where the partial sums need not visit the ranks, an all-reduce
    sends and receives the buffer once.
    """
    if n <= 1 or op == "barrier":
        return 0.0
    if op == "all_reduce" and in_network:
        return 1.0
    if op == "all_reduce":
        return 2 * (n - 1) / n
    return 1.0 if op in ("broadcast", "reduce", "send") else (n - 1) / n


# --- ring -----------------------------------------------------------------------------------------------


def _ring(op: str, n: int, dims: tuple[int, ...] | None) -> Plan:
    ranks = np.arange(n)
    passes = 2 if op == "all_reduce" else 1
    return (_phase(ranks, (ranks + 1) % n, passes * (n - 1) / n, passes * (n - 1), operation=op),)


def _chain(op: str, n: int, dims: tuple[int, ...] | None) -> Plan:
    """Pipelined chain, NCCL's "ring" for rooted operations: every hop carries all bytes."""
    ranks = np.arange(n)
    src, dst = (ranks[:-1], ranks[1:]) if op == "broadcast" else (ranks[1:], ranks[:-1])
    return (_phase(src, dst, 1.0, n - 1, operation=op),)


# --- direct ---------------------------------------------------------------------------------------------


def _direct(op: str, n: int, dims: tuple[int, ...] | None) -> Plan:
    passes = 2 if op == "all_reduce" else 1  # reduce-scatter then all-gather: the same flows twice
    if n > MAX_LISTED_RANKS:
        nobody = np.zeros(0, np.int64)
        return (replace(_phase(nobody, nobody, passes / n, passes, operation=op), everyone=n),)
    src = np.repeat(np.arange(n), n - 1)
    dst = (src + np.tile(np.arange(1, n), n)) % n
    return (_phase(src, dst, passes / n, passes, operation=op),)


def _direct_rooted(op: str, n: int, dims: tuple[int, ...] | None) -> Plan:
    root, others = np.zeros(n - 1, np.int64), np.arange(1, n)
    src, dst = (root, others) if op in ("broadcast", "scatter") else (others, root)
    return (_phase(src, dst, 1.0 if op in ("broadcast", "reduce") else 1 / n, 1, operation=op),)


def _send(op: str, n: int, dims: tuple[int, ...] | None) -> Plan:
    return (_phase(np.array([0]), np.array([1]), 1.0, 1, operation=op),)


# --- powers of two --------------------------------------------------------------------------------------


def _fold_extra(n: int, core: int, op: str) -> tuple[IntArray, Plan, Plan]:
    """Ranks of the power-of-two core, and the extra phases before and after if n is no power of two.

    The first 2 (n - core) ranks pair up; the odd one of each pair hands its data over and gets the result
    back.
    """
    extra = n - core
    ranks = np.concatenate([np.arange(0, 2 * extra, 2), np.arange(2 * extra, n)])
    if not extra:
        return ranks, (), ()
    even, odd = np.arange(0, 2 * extra, 2), np.arange(1, 2 * extra, 2)
    return ranks, (_phase(odd, even, 1.0, 1, operation=op),), (_phase(even, odd, 1.0, 1, operation=op),)


def _exchange(ranks: IntArray, distance: int, fraction: float, operation: str, steps: int = 1) -> Phase:
    return _phase(ranks, ranks[np.arange(len(ranks)) ^ distance], fraction, steps, operation=operation)


def _halving_doubling(op: str, n: int, dims: tuple[int, ...] | None) -> Plan:
    """Nearest partners exchange the largest parts; the last halving and first doubling step are one phase."""
    core = 1 << (n.bit_length() - 1)
    ranks, before, after = _fold_extra(n, core, op)
    levels = core.bit_length() - 1
    halving = [_exchange(ranks, 1 << s, 0.5 ** (s + 1), "reduce_scatter") for s in range(levels - 1)]
    middle = _exchange(ranks, core >> 1, 2 * 0.5**levels, op, steps=2)
    doubling = [replace(phase, operation="all_gather") for phase in reversed(halving)]
    return (*before, *halving, middle, *doubling, *after)


def _recursive(op: str, n: int, dims: tuple[int, ...] | None) -> Plan:
    """Recursive halving (reduce-scatter) or doubling (all-gather) for a power of two."""
    levels = n.bit_length() - 1
    if n != 1 << levels:
        hint = f"Try {1 << levels} or {2 << levels} ranks, or ring."
        raise InputError("collective.num_ranks", f"be a power of two for recursive {op}", n, hint=hint)
    phases = [_exchange(np.arange(n), 1 << s, 0.5 ** (s + 1), op) for s in range(levels)]
    return tuple(phases if op == "reduce_scatter" else reversed(phases))


def _recursive_doubling(op: str, n: int, dims: tuple[int, ...] | None) -> Plan:
    core = 1 << (n.bit_length() - 1)
    ranks, before, after = _fold_extra(n, core, op)
    return (*before, *(_exchange(ranks, 1 << s, 1.0, op) for s in range(core.bit_length() - 1)), *after)


def _dissemination(op: str, n: int, dims: tuple[int, ...] | None) -> Plan:
    """Barrier: in round s rank i signals rank i + 2^s; no bytes (Hensgen, Finkel, Manber 1988)."""
    ranks = np.arange(n)
    rounds = (n - 1).bit_length()
    return tuple(_phase(ranks, (ranks + (1 << s)) % n, 0.0, 1, operation=op) for s in range(rounds))


# --- double binary tree ---------------------------------------------------------------------------------


def _binary_tree_parent(n: int) -> IntArray:
    """Parent of each rank in a tree of binary-counting order: odd ranks are leaves, rank 0 the root (-1)."""
    ranks = np.arange(n)
    bit = ranks & -ranks
    parent = (ranks ^ bit) | (bit << 1)
    parent = np.where(parent >= n, ranks ^ bit, parent)
    parent[0] = -1
    return parent


def _double_tree_edges(n: int) -> tuple[IntArray, IntArray]:
    """Child and parent of all 2 (n - 1) edges of two trees; a rank inside one tree is a leaf of the other."""
    parent = _binary_tree_parent(n)
    child, up = np.arange(1, n), parent[1:]
    if n % 2:  # shift by one
        return np.concatenate([child, (child + 1) % n]), np.concatenate([up, (up + 1) % n])
    return np.concatenate([child, n - 1 - child]), np.concatenate([up, n - 1 - up])


def _tree_depth(n: int) -> int:
    """Edges on the longest way from a leaf to the root of :func:`_binary_tree_parent`."""
    return (n - 1).bit_length()


def _tree(op: str, n: int, dims: tuple[int, ...] | None) -> Plan:
    """Each tree reduces one half to its root and broadcasts it back, both directions pipelined.

    With ``dims=(k, m)`` the trees connect the first ranks of ``m`` hosts, and a chain the ``k`` ranks of a
    host.
    """
    per_host, hosts = (1, n) if dims is None else (dims[0], n // dims[0])
    child, parent = _double_tree_edges(hosts) if hosts > 1 else (np.zeros(0, np.int64),) * 2
    inside = np.arange(n)[np.arange(n) % per_host != 0]
    links = np.concatenate([np.stack([child, parent], 1) * per_host, np.stack([inside, inside - 1], 1)])
    src, dst = np.concatenate([links[:, 0], links[:, 1]]), np.concatenate([links[:, 1], links[:, 0]])
    half = np.concatenate([np.full(len(child), 0.5), np.ones(len(inside))])  # the chain carries both halves
    scale = half.max()
    steps = 2 * (_tree_depth(hosts) + per_host - 1)
    return (Phase(src, dst, np.tile(half / scale, 2), float(scale), steps, 0, op),)


def _tree_rooted(op: str, n: int, dims: tuple[int, ...] | None) -> Plan:
    """Rank 0 feeds (or drains) two complementary trees over the other ranks, one half each."""
    others = n - 1
    child, parent = _double_tree_edges(others) if others > 1 else (np.zeros(0, np.int64),) * 2
    tree_roots = np.array([0, 1 % others if others % 2 else others - 1]) + 1
    src = np.concatenate([np.zeros(2, np.int64), parent + 1])
    dst = np.concatenate([tree_roots, child + 1])
    if op == "reduce":
        src, dst = dst, src
    return (_phase(src, dst, 0.5, 1 + _tree_depth(others), operation=op),)


# --- hierarchical ---------------------------------------------------------------------------------------


def square_dims(n: int) -> tuple[int, int]:
    """The most square factorisation of n, smaller factor first."""
    first = next(k for k in range(math.isqrt(n), 0, -1) if n % k == 0)
    return first, n // first


def _along(n: int, dims: tuple[int, ...], dimension: int) -> tuple[IntArray, IntArray]:
    """Each rank and its successor in the ring along one dimension."""
    ranks = np.arange(n)
    stride = math.prod(dims[:dimension])
    position = ranks // stride % dims[dimension]
    return ranks, ranks + stride * ((position + 1) % dims[dimension] - position)


def _hierarchical(op: str, n: int, dims: tuple[int, ...] | None) -> Plan:
    """Rings per dimension: reduce-scatter from inside out, all-reduce on the last, all-gather back."""
    dims = dims or square_dims(n)
    active = [d for d, extent in enumerate(dims) if extent > 1]
    shard = {d: 1 / math.prod(dims[:d]) for d in active}  # what is left of the buffer when dimension d begins

    def ring(dimension: int, operation: str, passes: int = 1) -> Phase:
        extent = dims[dimension]
        fraction, steps = passes * (extent - 1) / extent * shard[dimension], passes * (extent - 1)
        return _phase(*_along(n, dims, dimension), fraction, steps, dimension, operation)

    scatter = [ring(d, "reduce_scatter") for d in active]
    if op == "reduce_scatter":
        return tuple(scatter)
    gather = [ring(d, "all_gather") for d in reversed(active)]
    if op == "all_gather":
        return tuple(gather)
    return (*scatter[:-1], ring(active[-1], "all_reduce", passes=2), *gather[1:])


def _leaders(op: str, n: int, dims: tuple[int, ...] | None) -> Plan:
    """Groups of ``dims[0]`` all-reduce, the first of each all-reduce in a ring, each spreads the sum.

    4 (k - 1) + 2 (n / k - 1) steps (Jia et al., arXiv:1807.11205, section 3.2): a broadcast is a scatter and
    an all-gather. Only leaders use the network, and with all bytes.
    """
    extents = dims or square_dims(n)
    per_group, groups = extents[0], n // extents[0]
    phases = []
    inside, steps = _along(n, (per_group, groups), 0), 2 * (per_group - 1)
    if groups > 1:
        heads = np.arange(0, n, per_group)
        share = 2 * (groups - 1) / groups
        phases.append(_phase(heads, np.roll(heads, -1), share, 2 * (groups - 1), 1, "all_reduce"))
    if per_group > 1:
        share = 2 * (per_group - 1) / per_group
        phases.insert(0, _phase(*inside, share, steps, 0, "all_reduce"))
        if groups > 1:
            phases.append(_phase(*inside, share, steps, 0, "broadcast"))
    return tuple(phases)


def _hierarchical_rooted(op: str, n: int, dims: tuple[int, ...] | None) -> Plan:
    """Chains: over the first ranks of the outermost dimension, then inwards; reversed for reduce."""
    dims = dims or square_dims(n)
    phases = []
    for dimension in reversed(range(len(dims))):
        stride = math.prod(dims[:dimension])
        heads = np.arange(0, n, stride)
        src = heads[heads // stride % dims[dimension] < dims[dimension] - 1]
        if len(src):
            phases.append(_phase(src, src + stride, 1.0, dims[dimension] - 1, dimension, op))
    if op == "broadcast":
        return tuple(phases)
    return tuple(replace(phase, src=phase.dst, dst=phase.src) for phase in reversed(phases))


def _binomial_tree(op: str, n: int, dims: tuple[int, ...] | None) -> Plan:
    return exchanges.binomial_tree(op, n)


def _torus2d(op: str, n: int, dims: tuple[int, ...] | None) -> Plan:
    if dims is not None and len(dims) != 2:
        raise InputError("collective.dims", "have two dimensions for torus2d", list(dims))
    return _hierarchical(op, n, dims)


def _nvls_tree(op: str, n: int, dims: tuple[int, ...] | None) -> Plan:
    per_host, hosts = dims[:2] if dims else (n, 1)
    if hosts == 1:
        return in_switch(op, n, dims)
    return switch_tree(op, (per_host, hosts), *_double_tree_edges(hosts), _tree_depth(hosts))


_Builder = Callable[[str, int, "tuple[int, ...] | None"], Plan]
_SHARDED = ("all_reduce", "all_gather", "reduce_scatter")
_BUILDERS: dict[tuple[str, str], _Builder] = {
    **{(op, "ring"): _ring for op in _SHARDED},
    **{(op, "ring"): _chain for op in ("broadcast", "reduce")},
    **{(op, "direct"): _direct for op in (*_SHARDED, "all_to_all", "all_to_allv")},
    **{(op, "direct"): _direct_rooted for op in ("broadcast", "reduce", "gather", "scatter")},
    ("send", "direct"): _send,
    ("all_reduce", "halving_doubling"): _halving_doubling,
    ("all_gather", "halving_doubling"): _recursive,
    ("reduce_scatter", "halving_doubling"): _recursive,
    ("all_reduce", "recursive_doubling"): _recursive_doubling,
    ("all_gather", "recursive_doubling"): _recursive,
    ("barrier", "recursive_doubling"): _dissemination,
    ("all_reduce", "tree"): _tree,
    **{(op, "tree"): _tree_rooted for op in ("broadcast", "reduce")},
    **{(op, "hierarchical"): _hierarchical for op in _SHARDED},
    **{(op, "torus2d"): _torus2d for op in _SHARDED},
    **{(op, "blueconnect"): _hierarchical for op in _SHARDED},
    ("all_reduce", "leaders"): _leaders,
    **{(op, "binomial_tree"): _binomial_tree for op in ("all_reduce", "broadcast", "reduce")},
    **{(op, "hierarchical"): _hierarchical_rooted for op in ("broadcast", "reduce")},
    **{(op, "nvls"): in_switch for op in _SHARDED},
    ("all_reduce", "nvls_tree"): _nvls_tree,
    ("all_reduce", "collnet"): collnet,
    ("all_reduce", "in_network"): in_fabric,
}


PAIRS = frozenset(_BUILDERS) | frozenset(
    {(op, "bcube") for op in _SHARDED}
    | {(op, name) for op in ("all_reduce", "broadcast", "reduce") for name in ("kary_tree", "packed_trees")}
)
"""Every (operation, algorithm) there is."""
ALGORITHMS = tuple(dict.fromkeys(algorithm for _, algorithm in (*_BUILDERS, *sorted(PAIRS))))
"""Every algorithm there is."""


# --- choice ---------------------------------------------------------------------------------------------

# NCCL's tuning model compares latencies and bandwidths of its algorithms; these are the orders of magnitude
# of its tables for one step inside a host and over the network, and for a reduction in the NVSwitches (NCCL
# 2.x src/graph/tuning.cc).
_STEP_INSIDE, _STEP_NETWORK, _STEP_SWITCH = 1.0e-6, 5.0e-6, 20e-6
_NETWORK_BANDWIDTH, _INSIDE_BANDWIDTH = 10e9, 300e9
_SWITCH_EFFICIENCY = 0.75  # of what a ring reaches on the same links


def choose(
    op: str,
    size_bytes: float,
    n: int,
    num_hosts: int,
    *,
    in_switch: bool = False,
    in_fabric: bool = False,
    library: str = "nccl",
) -> str:
    """Algorithm that a library picks.

    NCCL: an all-reduce inside a host is a ring, or a reduction in the NVSwitches where they can do that and
    the message is large; over several hosts a double binary tree while latency dominates, then a ring; with
    switches that reduce, trees over hosts of which they do the inner part; where the switches between hosts
    reduce (SHARP), CollNet as well. All-gather, reduce-scatter, broadcast and reduce are rings,
    point-to-point patterns are direct. gloo: rings, and binomial trees for
    rooted operations (gloo/allreduce.cc, broadcast.cc, reduce.cc).

    Parameters
    ----------
    op : str
        Operation.
    size_bytes : float
        Size in the sense of nccl-tests.
    n, num_hosts : int
        Ranks, and hosts they live on.
    in_switch : bool
        Whether the NVSwitches of a host reduce (NVLink SHARP, from Hopper on).
    in_fabric : bool
        Whether the switches between hosts reduce (InfiniBand SHARP).
    library : str
        ``nccl`` (RCCL picks alike) or ``gloo``.
    """
    if op not in OPERATIONS:
        raise InputError("collective.operation", f"be one of {', '.join(OPERATIONS)}", op)
    if op == "barrier":
        return "recursive_doubling"
    if op in ("all_to_all", "all_to_allv", "send", "gather", "scatter"):
        return "direct"
    if library == "gloo":
        return "tree" if op in ("broadcast", "reduce") else "ring"
    if op != "all_reduce" or n <= 2:
        return "ring"
    times = _nccl_times(size_bytes, n, num_hosts)
    if num_hosts > 1:
        names = ["tree", "ring", *(["nvls_tree"] if in_switch and n // num_hosts > 2 else [])]
        names += ["collnet"] if in_fabric else []
    else:
        names = ["ring", *(["nvls"] if in_switch else [])]
    return min(names, key=times.__getitem__)


def _nccl_times(size_bytes: float, n: int, num_hosts: int) -> dict[str, float]:
    """Rough seconds of each all-reduce, as the tuner sees them."""
    per_host = max(1, n // num_hosts)
    levels = math.log2(num_hosts)
    passes = 2 * (n - 1) / n
    bandwidth = _NETWORK_BANDWIDTH if num_hosts > 1 else _INSIDE_BANDWIDTH
    return {
        "ring": 2 * ((n - num_hosts) * _STEP_INSIDE + (num_hosts - 1) * _STEP_NETWORK)
        + passes * size_bytes / bandwidth,
        "tree": 2 * ((per_host - 1) * _STEP_INSIDE + levels * _STEP_NETWORK) + 2 * size_bytes / bandwidth,
        "collnet": 2 * min(1, per_host - 1) * _STEP_INSIDE + _STEP_NETWORK + size_bytes / bandwidth,
        "nvls": _STEP_SWITCH + size_bytes / (_SWITCH_EFFICIENCY * bandwidth),
        "nvls_tree": _STEP_SWITCH
        + 2 * levels * _STEP_NETWORK
        + (1 if num_hosts == 2 else 2) * size_bytes / (_SWITCH_EFFICIENCY * bandwidth),
    }
