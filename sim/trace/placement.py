"""Which ranks form the groups that a list of operations (AICB, SimAI) only names, in Megatron's order."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sim.trace.model import RankTrace
from sim.trace.operations import Groups


def group_sizes(rank: RankTrace) -> dict[str, int]:
    """Ranks of each kind of group, by the collectives and the header that state them."""
    sizes: dict[str, int] = {}
    for one in rank.collectives:
        word = _word(one.group)
        if one.group_size:
            sizes[word] = max(sizes.get(word, 1), one.group_size)
    if rank.simai is not None:
        table = rank.simai
        stated = {"tp": ("model_parallel_NPU_group",), "ep": ("ep",), "pp": ("pp", "PP")}
        sizes |= {word: table.degree(*names) for word, names in stated.items()}
        left = (rank.world_size or 1) // (sizes["tp"] * sizes["pp"])
        sizes["dp"], sizes["dp_ep"] = max(1, left), max(1, left // sizes["ep"])
    return sizes


def placed(kind: str, group: str, sizes: Mapping[str, int], world: int | None) -> Groups:
    """All groups that run an operation at once; empty where their ranks cannot be told.

    Parameters
    ----------
    kind : str
        A collective; of ``send`` and ``recv`` the ranks of one pipeline stage send to the next.
    group : str
        ``tp``, ``dp``, ``pp``, ``ep``, ``ep_dp``, ``dp_ep``, ``ep_tp`` or ``all``; ``_group`` may follow.
    sizes : mapping of str to int
        From :func:`group_sizes`.
    world : int, optional
        Ranks of the job; the product of the degrees if absent.

    Notes
    -----
    Ranks count tensor parallelism fastest, then experts (within data parallelism), data, pipeline stages.
    """
    tensor, experts = sizes.get("tp", 1), sizes.get("ep", 1)
    total = world or math.prod(sizes.get(word, 1) for word in ("tp", "dp", "pp"))
    stage = total // max(1, sizes.get("pp", 1))
    word = _word(group)
    if kind in ("send", "recv", "send_recv"):
        return tuple((r, r + stage) for r in range(stage)) if stage and 2 * stage <= total else ()
    strides = {"tp": 1, "ep_tp": 1, "all": 1, "ep": tensor, "dp": tensor, "pp": stage}
    strides |= dict.fromkeys(("ep_dp", "dp_ep"), tensor * experts)
    members = sizes.get(word, total if word == "all" else 0)
    if word not in strides or members < 2 or total % (members * strides[word]):
        return ()
    step = strides[word]
    bases = (rank for rank in range(total) if rank // step % members == 0)
    return tuple(tuple(base + place * step for place in range(members)) for base in bases)


def _word(group: str) -> str:
    return group.lower().removesuffix("_group")
