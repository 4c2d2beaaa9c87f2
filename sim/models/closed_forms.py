"""Closed forms of collectives on an idle, non-blocking switch.

Written from the textbook formulas, not from :func:`sim.models.collectives.plan`, so that the two check each
other. Sources: see :mod:`sim.models.collectives` and :mod:`sim.models.exchanges`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.errors import InputError
from sim.models.collectives import GRID_ALGORITHMS, PAIRS, square_dims
from sim.models.exchanges import digit_dims, kary_depth, kary_port_load, traffic_matrix, uneven_port_load
from sim.models.phase import FloatArray


def closed_form(
    op: str,
    algorithm: str,
    n: int,
    size_bytes: float,
    bandwidth: float | Sequence[float],
    alpha: float | Sequence[float] = 0.0,
    *,
    dims: tuple[int, ...] | None = None,
    radix: int | None = None,
    matrix: FloatArray | None = None,
) -> float:
    """Seconds of a collective alone on a non-blocking switch with one full-duplex port per rank.

    Parameters
    ----------
    op, algorithm, n, dims, radix, matrix
        As in :func:`sim.models.collectives.plan`.
    size_bytes : float
        Size in the sense of nccl-tests.
    bandwidth : float or sequence of float
        Bytes/s of a port, per direction; for hierarchical algorithms one per dimension if they differ.
    alpha : float or sequence of float
        Seconds of latency per step; likewise.
    """
    if (op, algorithm) not in PAIRS:
        raise InputError("collective.algorithm", f"support {op}", algorithm)
    if n == 1:
        return 0.0
    if algorithm in GRID_ALGORITHMS:
        extents = dims or square_dims(n)
        if algorithm == "leaders":
            extents = extents[0], n // extents[0]
            inner = _closed_form_hierarchical(op, extents[:1], size_bytes, bandwidth, alpha)
            ring = _closed_form_hierarchical(op, (1, *extents[1:]), size_bytes, bandwidth, alpha)
            return (1 + (extents[1] > 1)) * inner + ring
        return _closed_form_hierarchical(op, extents, size_bytes, bandwidth, alpha)
    if not isinstance(bandwidth, int | float) or not isinstance(alpha, int | float):
        raise InputError("bandwidth", f"be one number for {algorithm}", bandwidth)
    if algorithm == "bcube":
        bytes_factor, steps = _bcube_terms(op, n, dims or digit_dims(n, radix))
    elif algorithm == "kary_tree":
        depth = kary_depth(n, radix or 2)
        bytes_factor = kary_port_load(op, n, radix or 2)
        steps = 2 * depth if op == "all_reduce" else depth
    elif matrix is not None:
        bytes_factor, steps = uneven_port_load(traffic_matrix(matrix, n)), 1
    else:
        bytes_factor, steps = _closed_form_terms(op, algorithm, n)
    return steps * alpha + bytes_factor * size_bytes / bandwidth


def _closed_form_terms(op: str, algorithm: str, n: int) -> tuple[float, int]:
    """Multiples of size/bandwidth and of alpha."""
    levels = n.bit_length() - 1
    core, odd = 1 << levels, n != 1 << levels
    if op == "barrier":
        return 0.0, (n - 1).bit_length()
    if op == "all_reduce":
        return {
            "ring": (2 * (n - 1) / n, 2 * (n - 1)),
            "direct": (2 * (n - 1) / n, 2),
            "halving_doubling": (2 * (core - 1) / core + 2 * odd, 2 * levels + 2 * odd),
            "recursive_doubling": (levels + 2 * odd, levels + 2 * odd),
            "tree": (_tree_port_load(n), 2 * (n - 1).bit_length()),
            "binomial_tree": (2 * (n - 1).bit_length(), 2 * (n - 1).bit_length()),
            "packed_trees": (2 * (n - 1) / n, 2),  # a star from every rank
            "nvls": (1.0, 2),
            "nvls_tree": (1.0, 2),
            "collnet": (1.0, 4),
            "in_network": (1.0, 4),
        }[algorithm]
    if algorithm == "nvls":
        return (n - 1) / n, 1
    if algorithm == "binomial_tree":
        return (n - 1).bit_length(), (n - 1).bit_length()
    if algorithm == "packed_trees":  # n - 1 trees of depth 2, the root's port full
        return 1.0, min(n - 1, 2)
    if algorithm == "ring":
        return (1.0 if op in ("broadcast", "reduce") else (n - 1) / n), n - 1
    if algorithm == "tree":
        return 1.0, 1 + (n - 2).bit_length()
    if algorithm == "direct":
        return (n - 1.0 if op in ("broadcast", "reduce") else 1.0 if op == "send" else (n - 1) / n), 1
    return (n - 1) / n, levels


def _tree_port_load(n: int) -> float:
    """Half buffers through the busiest port: inside one tree 2 children + 1 parent, leaf of the other 1."""
    if n == 2:
        return 1.0
    return 1.5 if n == 3 else 2.0


def _closed_form_hierarchical(
    op: str,
    dims: tuple[int, ...],
    size_bytes: float,
    bandwidth: float | Sequence[float],
    alpha: float | Sequence[float],
) -> float:
    bandwidths = [bandwidth] * len(dims) if isinstance(bandwidth, int | float) else bandwidth[: len(dims)]
    alphas = [alpha] * len(dims) if isinstance(alpha, int | float) else alpha[: len(dims)]
    passes = 2 if op == "all_reduce" else 1
    total, shard = 0.0, 1.0
    for extent, width, latency in zip(dims, bandwidths, alphas, strict=True):
        factor = (
            float(extent > 1) if op in ("broadcast", "reduce") else passes * (extent - 1) / extent * shard
        )
        total += factor * size_bytes / width + passes * (extent - 1) * latency
        shard /= extent
    return total


def _bcube_terms(op: str, n: int, dims: tuple[int, ...]) -> tuple[float, int]:
    """All bytes but the rank's own part, once each way; a step per digit and way."""
    passes = 2 if op == "all_reduce" else 1
    return passes * (n - 1) / n, passes * sum(extent > 1 for extent in dims)
