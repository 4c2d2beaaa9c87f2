"""Collectives beside rings, double trees and hierarchies: by digits, by one tree, by packed trees, uneven.

Sources: gloo, allreduce_bcube.h (exchange by digits of a base); R. Thakur et al., IJHPCA 19 (2005) 49
(binomial trees); F. Iandola et al., FireCaffe, CVPR 2016 (reduction trees); G. Wang et al., Blink, MLSys 2020
(packed trees).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from sim.errors import InputError
from sim.models.phase import FloatArray, Phase, Plan, equal_flows
from sim.models.tree_packing import Matrix, Tree, is_uniform, pack_trees

# --- by digits ------------------------------------------------------------------------------------------


def prime_factors(n: int) -> tuple[int, ...]:
    """Prime factors, ascending."""
    found, factor = [], 2
    while factor * factor <= n:
        while n % factor == 0:
            found.append(factor)
            n //= factor
        factor += 1
    return (*found, n) if n > 1 else tuple(found)


def digit_dims(n: int, base: int | None) -> tuple[int, ...]:
    """The ``k`` digits of ``n = base ** k`` ranks; the prime factors of ``n`` without a base."""
    if base is None:
        return prime_factors(n)
    digits = round(math.log(n, base)) if base > 1 else 0
    if base < 2 or base**digits != n:
        near = base ** max(digits, 1) if base > 1 else n
        raise InputError(
            "collective.radix", f"be a base of which {n} ranks are a power", base, hint=f"Try {near} ranks."
        )
    return (base,) * digits


def bcube(op: str, n: int, dims: tuple[int, ...]) -> Plan:
    """One digit of the rank's number after another: all ranks that differ in it only exchange directly.

    Reduce-scatter from the first digit on, all-gather back: 2 log_base(n) steps that use all ports of a rank
    at once, 2 (n - 1) / n of the bytes.
    """

    def exchange(digit: int, operation: str, passes: int = 1) -> Phase:
        extent, stride = dims[digit], math.prod(dims[:digit])
        src = np.repeat(np.arange(n), extent - 1)
        position = src // stride % extent
        target = (position + np.tile(np.arange(1, extent), n)) % extent
        shard = 1 / math.prod(dims[: digit + 1])
        return equal_flows(src, src + stride * (target - position), passes * shard, passes, digit, operation)

    active = [d for d, extent in enumerate(dims) if extent > 1]
    scatter = [exchange(d, "reduce_scatter") for d in active]
    gather = [exchange(d, "all_gather") for d in reversed(active)]
    if op != "all_reduce":
        return tuple(scatter if op == "reduce_scatter" else gather)
    return (*scatter[:-1], exchange(active[-1], "all_reduce", passes=2), *gather[1:])


# --- one tree -------------------------------------------------------------------------------------------


def kary_tree(op: str, n: int, fanout: int) -> Plan:
    """One tree in which every rank has up to ``fanout`` children: up to the root, down again, pipelined."""
    if fanout < 1:
        raise InputError("collective.radix", "be at least 1", fanout)
    child = np.arange(1, n)
    parent = (child - 1) // fanout
    depth = kary_depth(n, fanout)
    up, down = (child, parent), (parent, child)
    if op == "all_reduce":
        src, dst = (np.concatenate(pair) for pair in zip(up, down, strict=True))
        return (equal_flows(src, dst, 1.0, 2 * depth, operation=op),)
    return (equal_flows(*(up if op == "reduce" else down), 1.0, depth, operation=op),)


def kary_depth(n: int, fanout: int) -> int:
    """Edges from the last rank to the root."""
    depth, rank = 0, n - 1
    while rank > 0:
        rank, depth = (rank - 1) // fanout, depth + 1
    return depth


def kary_port_load(op: str, n: int, fanout: int) -> float:
    """Buffers through the busiest port: the root has its children, another rank its parent as well."""
    root = min(fanout, n - 1)
    below = min(fanout, max(n - 1 - fanout, 0))  # children of the root's first child
    return float(max(root, below + 1)) if op == "all_reduce" else float(max(root, below, 1))


def binomial_tree(op: str, n: int) -> Plan:
    """Whole buffers over a binomial tree, one level after another: reduce, then broadcast."""
    reduce: list[Phase] = []
    for level in range((n - 1).bit_length()):
        distance = 1 << level
        src = np.arange(distance, n, 2 * distance)
        reduce.append(equal_flows(src, src - distance, 1.0, 1, operation="reduce"))
    spread = [replace(p, src=p.dst, dst=p.src, operation="broadcast") for p in reversed(reduce)]
    if op == "all_reduce":
        return (*reduce, *spread)
    return tuple(reduce if op == "reduce" else spread)


# --- packed trees ---------------------------------------------------------------------------------------


def packed_trees(op: str, n: int, dims: tuple[int, ...] | None, links: Matrix | None) -> Plan:
    """As many spanning trees as the links between ranks hold, an equal part of the data over each (Blink).

    Ranks that are joined equally (NVSwitch, PCIe) get one tree of depth 1 per rank. Over several hosts,
    ``dims=(k, m)``, each of the ``k`` ranks of a host is the root of one part: reduced in the host along its
    trees, all-reduced in a ring over the equal ranks of the ``m`` hosts, and broadcast in the host.

    Parameters
    ----------
    links : Matrix, optional
        Links between the ranks of a host in units; all equal if absent.
    """
    per_host, hosts = (n, 1) if dims is None or len(dims) < 2 else (dims[0], n // dims[0])
    matrix = links if links is not None and len(links) == per_host else _all_equal(per_host)
    trees = _forest(matrix, every_root=hosts > 1 or (op == "all_reduce" and is_uniform(matrix)))
    if op != "all_reduce":
        return (_along_trees(trees, n, per_host, hosts, up=op == "reduce", down=op == "broadcast"),)
    if hosts == 1:
        return (_along_trees(trees, n, per_host, hosts, up=True, down=True),)
    ranks = np.arange(n)
    share = 2 * (hosts - 1) / hosts / per_host
    ring = equal_flows(ranks, (ranks + per_host) % n, share, 2 * (hosts - 1), 1, "all_reduce")
    if per_host == 1:
        return (ring,)
    return (
        _along_trees(trees, n, per_host, hosts, up=True, down=False),
        ring,
        _along_trees(trees, n, per_host, hosts, up=False, down=True),
    )


def _all_equal(n: int) -> Matrix:
    return tuple(tuple(int(i != j) for j in range(n)) for i in range(n))


def _forest(links: Matrix, *, every_root: bool) -> tuple[tuple[Tree, float], ...]:
    """Trees and the part of the data each carries; parts add up to 1."""
    n = len(links)
    if is_uniform(links) and every_root:
        stars = [Tree(r, tuple((r, c) for c in range(n) if c != r), 1) for r in range(n)]
        return tuple((star, 1 / n) for star in stars)
    if is_uniform(links):  # one tree per other rank: from the root to it, from there to all
        ways = [((0, i), *((i, c) for c in range(1, n) if c != i)) for i in range(1, n)]
        return tuple((Tree(0, way, min(n - 1, 2)), 1 / (n - 1)) for way in ways)
    roots = range(n) if every_root else range(1)
    found = []
    for root in roots:
        trees = pack_trees(links, root) or pack_trees(_all_equal(n), root)
        found += [(tree, 1 / len(roots) / len(trees)) for tree in trees]
    return tuple(found)


def _along_trees(
    trees: tuple[tuple[Tree, float], ...], n: int, per_host: int, hosts: int, *, up: bool, down: bool
) -> Phase:
    """All trees of all hosts at once, towards the roots, from them, or both."""
    total: dict[tuple[int, int], float] = {}
    for tree, part in trees:
        for parent, child in tree.edges:
            for edge in ([(child, parent)] if up else []) + ([(parent, child)] if down else []):
                total[edge] = total.get(edge, 0.0) + part
    depth = max((tree.depth for tree, _ in trees), default=0)
    ends = np.array(list(total), np.int64).reshape(-1, 2)
    amount = np.array(list(total.values()))
    base = np.repeat(np.arange(hosts) * per_host, len(ends))
    scale = float(amount.max())
    operation = "all_reduce" if up and down else "reduce" if up else "broadcast"
    return Phase(
        base + np.tile(ends[:, 0], hosts), base + np.tile(ends[:, 1], hosts), np.tile(amount / scale, hosts),
        scale, (up + down) * depth, 0, operation,
    )  # fmt: skip


# --- uneven all-to-all ----------------------------------------------------------------------------------


def uneven_exchange(op: str, matrix: FloatArray) -> Plan:
    """All-to-allv: rank i sends ``matrix[i, j]`` to rank j, all at once.

    ``size_bytes`` is the mean send buffer of a rank, what stays on it (the diagonal) included, so that equal
    entries are an all-to-all of that size. Pairs that exchange nothing have no flow.

    Parameters
    ----------
    matrix : float[n, n]
        Bytes, or anything in proportion.
    """
    n = len(matrix)
    mean = float(matrix.sum()) / n
    src, dst = np.nonzero(matrix * (1 - np.eye(n)))
    amount: FloatArray = matrix[src, dst].astype(np.float64)
    if not len(src):
        return ()
    largest = float(amount.max())
    return (Phase(src, dst, amount / largest, largest / mean, 1, 0, op),)


def traffic_matrix(values: object, n: int) -> FloatArray:
    """A checked matrix of an all-to-allv.

    Raises
    ------
    InputError
        If it is not n x n, has a negative or non-finite entry, or is all zero.
    """
    try:
        matrix = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise InputError("collective.matrix", "be rows of numbers of equal length") from None
    if matrix.shape != (n, n):
        raise InputError("collective.matrix", f"have {n} rows and columns, one per rank", matrix.shape)
    if not (np.isfinite(matrix) & (matrix >= 0)).all():
        raise InputError(
            "collective.matrix", "have finite entries that are not negative", float(matrix.min())
        )
    if not matrix.any():
        raise InputError("collective.matrix", "have an entry above 0")
    return matrix


def skewed_matrix(n: int, skew: float) -> FloatArray:
    """Rank j receives in proportion to ``(j + 1) ** -skew``, the same from every rank: popular experts.

    A Zipf law, as measured for experts of mixture-of-experts layers; 0 is an even exchange.
    """
    if not 0 <= skew < float("inf"):
        raise InputError("collective.skew", "be finite and not negative", skew)
    popularity = np.arange(1, n + 1, dtype=np.float64) ** -skew
    popularity[popularity < 1e-30] = 0.0  # nothing is sent, instead of numbers that underflow
    return np.tile(popularity / popularity.sum(), (n, 1))


def uneven_port_load(matrix: FloatArray) -> float:
    """Bytes through the busiest port over the mean send buffer."""
    mean = float(matrix.sum()) / len(matrix)
    kept = np.diag(matrix)
    return float(max((matrix.sum(1) - kept).max(), (matrix.sum(0) - kept).max())) / mean
