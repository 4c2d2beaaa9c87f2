"""Finds the transformer in a chain of recorded operators: attention cores, Megatron's splits, blocks.

A block is recognised by its arithmetic: products that read the hidden width, an attention core, a product
that gives the hidden width back; then products into a wider space and one back. Everything else keeps its
place and is not divided by tensor parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from sim.spec.layer import Attention, Embedding, Gemm, MemoryBound
from sim.trace.operators import Operator

_SOFTMAX = ("aten::softmax", "aten::_softmax")
#: Operators between the two products of an unfused attention core, at most.
_CORE_LENGTH = 12


@dataclass
class Group:
    """Operators that become one layer: its fields, and the operators' indices."""

    parts: dict[str, Any]
    members: list[int] = field(default_factory=list)
    block: int = 0

    @property
    def gemm(self) -> Gemm | None:
        """The product with weights, if it is one."""
        op = self.parts["ops"][0]
        weighs = bool(self.parts["tensors"]) or bool(self.parts.get("shared_parameters"))
        return op if isinstance(op, Gemm) and weighs else None


@dataclass(frozen=True)
class Structure:
    """What the whole transformer is like."""

    num_heads: int
    num_kv_heads: int
    hidden: int
    vocabulary: int | None
    sequence_length: int


def merge_attention(groups: list[Group], operators: Sequence[Operator], batch: int) -> list[Group]:
    """Two batched products with a softmax between them become one attention core."""
    result: list[Group] = []
    at = 0
    while at < len(groups):
        end = _core_end(groups, operators, at)
        if end is None:
            result.append(groups[at])
            at += 1
            continue
        members = groups[at : end + 1]
        result.append(_core(members, operators, batch))
        at = end + 1
    return result


def _core_end(groups: list[Group], operators: Sequence[Operator], at: int) -> int | None:
    if not _batched(groups[at]):
        return None
    seen = False
    for end in range(at + 1, min(at + _CORE_LENGTH, len(groups))):
        seen = seen or operators[groups[end].members[0]].name in _SOFTMAX
        if groups[end].gemm is not None:
            return None
        if _batched(groups[end]):
            return end if seen else None
    return None


def _batched(group: Group) -> bool:
    """Whether it is a product of two activations."""
    return isinstance(group.parts["ops"][0], Gemm) and group.gemm is None


def _core(members: list[Group], operators: Sequence[Operator], batch: int) -> Group:
    first, last = operators[members[0].members[0]], operators[members[-1].members[0]]
    left, right = [s for s in first.inputs if len(s) > 2][-2:]
    value = [s for s in last.inputs if len(s) > 2][-1]
    heads = max(1, round(prod(left[:-2]) / batch))
    op = Attention(
        query_length=left[-2], key_length=right[-1], heads=heads, kv_heads=heads, head_dim=left[-1]
    )
    kept = (prod(left) + prod(right) + prod(value)) / batch
    stored = sum(float(group.parts["stored_elements"]) for group in members)
    parts = {
        **members[0].parts,
        "kind": "attention",
        "ops": (op,),
        "output_elements": members[-1].parts["output_elements"],
        "stored_elements": max(stored, kept),
        "stored_tensor_elements": max(stored, kept),
        "stored_selective_elements": max(stored - kept, 0.0),
    }
    return Group(parts, [index for group in members for index in group.members])


def annotate(groups: list[Group]) -> Structure | None:
    """Mark splits and blocks of a transformer in place; None, and nothing changed, if it is none."""
    cores = [i for i, group in enumerate(groups) if isinstance(group.parts["ops"][0], Attention)]
    if not cores:
        return None
    products = [i for i, group in enumerate(groups) if group.gemm is not None]
    before = [i for i in products if i < cores[0]]
    if not before:
        return None
    hidden = int(_gemm(groups, before[-1]).k)
    splits = _splits(groups, cores, products, hidden)
    if splits is None:
        return None
    columns, rows, starts = splits
    for i in columns:
        _split_column(groups[i])
    for i in rows:
        _split_row(groups[i])
    _split_between(groups, cores, columns, rows)
    vocabulary = _vocabulary(groups, products, columns | rows, hidden)
    _number_blocks(groups, starts)
    core = groups[cores[0]].parts["ops"][0]
    return Structure(core.heads, core.kv_heads, hidden, vocabulary, core.query_length)


def _gemm(groups: list[Group], index: int) -> Gemm:
    found = groups[index].gemm
    assert found is not None
    return found


def _splits(
    groups: list[Group], cores: list[int], products: list[int], hidden: int
) -> tuple[set[int], set[int], list[int]] | None:
    """Column and row products and the first product of every block; None if a block is not as expected."""
    columns: set[int] = set()
    rows: set[int] = set()
    starts: list[int] = []
    at = 0
    for number, core in enumerate(cores):
        mine = [i for i in products[at:] if i < core]
        following = next((i for i in products if i > core), None)
        if number == 0:  # what comes before the first block reads something else, or does not feed it
            mine = _last_run(groups, mine, hidden)
        if not mine or following is None or any(_gemm(groups, i).k != hidden for i in mine):
            return None
        if _gemm(groups, following).n != hidden:
            return None
        columns |= set(mine)
        rows.add(following)
        starts.append(mine[0])
        at = products.index(following) + 1
        inner = _feed_forward(groups, products[at:], hidden, cores[number + 1 : number + 2])
        columns |= set(inner[:-1])
        rows |= set(inner[-1:])
        at += len(inner)
    return columns, rows, starts


def _last_run(groups: list[Group], found: list[int], hidden: int) -> list[int]:
    kept: list[int] = []
    for i in reversed(found):
        if _gemm(groups, i).k != hidden:
            break
        kept.insert(0, i)
    return kept


def _feed_forward(groups: list[Group], products: list[int], hidden: int, after: list[int]) -> list[int]:
    """Products of the feed-forward part: into a wider space and back; empty if the next core comes first."""
    found: list[int] = []
    for i in products:
        if after and i > after[0]:
            return []
        gemm = _gemm(groups, i)
        found.append(i)
        if gemm.k != hidden:
            return found if gemm.n == hidden and len(found) > 1 else []
    return []


def _split_column(group: Group) -> None:
    parts = group.parts
    parts["ops"] = (parts["ops"][0].replace(split="column"), *parts["ops"][1:])
    parts["tensor_parameters"] = parts["parameters"]


def _split_row(group: Group) -> None:
    parts = group.parts
    parts["ops"] = (parts["ops"][0].replace(split="row"), *parts["ops"][1:])
    parts["tensor_parameters"] = parts["tensors"][0] if parts["tensors"] else 0.0
    parts["stored_tensor_elements"] = parts["stored_elements"]
    parts["tensor_all_reduce"] = True


def _split_between(groups: list[Group], cores: list[int], columns: set[int], rows: set[int]) -> None:
    """What lies between a column and its row product is divided; the rest only by sequence parallelism."""
    divided = False
    for i, group in enumerate(groups):
        op = group.parts["ops"][0]
        if i in columns:
            divided = True
        elif i in rows:
            divided = False
        elif isinstance(op, MemoryBound):
            group.parts["ops"] = (op.replace(split="tensor" if divided else "sequence"),)
            if divided:
                group.parts["stored_tensor_elements"] = group.parts["stored_elements"]
        if i in cores:
            group.parts["stored_tensor_elements"] = group.parts["stored_elements"]


def _vocabulary(groups: list[Group], products: list[int], used: set[int], hidden: int) -> int | None:
    """Rows of the token table; its look-up and the output projection are vocabulary-parallel."""
    tables = [
        g for g in groups if isinstance(g.parts["ops"][0], Embedding) and g.parts["ops"][0].width == hidden
    ]
    largest = max(tables, key=lambda g: g.parts["parameters"], default=None)
    if largest is None or not largest.parts["parameters"]:
        return None
    vocabulary: int = round(largest.parts["parameters"] / hidden)
    largest.parts["tensor_parameters"] = largest.parts["parameters"]
    largest.parts["tensor_all_reduce"] = True
    for i in products:
        gemm = _gemm(groups, i)
        if i not in used and gemm.k == hidden and gemm.n == vocabulary:
            parts = groups[i].parts
            parts["kind"] = "head"
            parts["ops"] = (gemm.replace(split="vocabulary"),)
            parts["tensor_parameters"] = parts["parameters"]
    return vocabulary


def _number_blocks(groups: list[Group], starts: list[int]) -> None:
    """A block begins with the norm before its first product."""
    begins = [i - 1 if i and groups[i - 1].parts["kind"] == "norm" else i for i in starts]
    for i, group in enumerate(groups):
        group.block = max(sum(i >= begin for begin in begins) - 1, 0)
