"""One seed tree: every random number is a pure function of the seed and a path, on every machine."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def seed_tree(seed: int, *path: str | int) -> np.random.Generator:
    """Generator for the node ``path`` of the tree under ``seed``.

    Siblings are independent; the same seed and path give the same numbers in every process
    (the path is hashed by SHA-256, never by ``hash()``).
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(derive_seed(seed, *path))))


def derive_seed(seed: int, *path: str | int) -> int:
    """A 64-bit seed for the node ``path`` of the tree under ``seed``."""
    # repr tells the string "1" from the integer 1.
    text = "\x1f".join(repr(part) for part in (int(seed), *path))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniform_hash(seed: int, a: npt.ArrayLike, b: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Counter-based uniform numbers in the open interval (0, 1), one per pair ``(a, b)``.

    Parameters
    ----------
    seed : int
        Any integer; taken modulo 2^64.
    a, b : array of int
        Counters, broadcast against each other (for example task and iteration).

    Returns
    -------
    array of float64
        Independent of the order of evaluation, so any schedule draws the same numbers.
    """
    start = np.full((1,), int(seed) % 2**64, dtype=np.uint64)
    first = np.atleast_1d(np.asarray(a)).astype(np.int64).view(np.uint64)
    second = np.atleast_1d(np.asarray(b)).astype(np.int64).view(np.uint64)
    shape = np.broadcast_shapes(np.shape(a), np.shape(b))
    state = _mix(start + _GOLDEN)
    state = _mix(state + first * _GOLDEN + _GOLDEN)
    state = _mix(state + second * _GOLDEN + _GOLDEN)
    values = ((state >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return values.reshape(shape)
