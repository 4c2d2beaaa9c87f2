"""The algorithm that a measured row says it ran: "NVLS", "Ring (NVLS off)", "RING LL <=1MiB; NVLS >=2MiB"."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sim.errors import InputError
from sim.models.library import Path
from sim.units import parse_quantity

_NAMES: tuple[tuple[str, str], ...] = (
    (r"nvls[ _-]?tree", "nvls_tree"), (r"nvls", "nvls"), (r"collnet|sharp", "collnet"), (r"ring", "ring"),
    (r"tree", "tree"),
)  # fmt: skip
# What NCCL calls NVLS inside a host is, over several, trees whose inner part the NVSwitches do.
_SAME = {"nvls": ("nvls", "nvls_tree")}
_LIMIT = re.compile(r"([<>]=?)\s*(\d+(?:\.\d+)?\s*[KMGT]?i?B)", re.IGNORECASE)


def stated_algorithm(text: str, size_bytes: float) -> str:
    """Algorithm that a cell names for a message of this size; nothing where it names none that is known.

    Parameters
    ----------
    text : str
        Parts between semicolons may each be limited to sizes (``<=1MiB``); remarks in brackets are ignored.
    size_bytes : float
    """
    for part in re.sub(r"\(.*?\)", "", text).split(";"):
        if all(_holds(sign, limit, size_bytes) for sign, limit in _LIMIT.findall(part)):
            found = next((name for pattern, name in _NAMES if re.search(pattern, part, re.IGNORECASE)), "")
            if found:
                return found
    return ""


def _holds(sign: str, limit: str, size_bytes: float) -> bool:
    try:
        bound = parse_quantity(limit, "bytes")
    except InputError:
        return False
    below = size_bytes < bound if sign.startswith("<") else size_bytes > bound
    return below or (sign.endswith("=") and size_bytes == bound)


def among(paths: Sequence[Path], algorithm: str) -> tuple[Path, ...]:
    """Of the algorithms a library could run those that were; all where that says nothing possible."""
    wanted = _SAME.get(algorithm, (algorithm,))
    return tuple(path for path in paths if path.algorithm in wanted) or tuple(paths)
