"""What PyTorch writes beside a collective, in four generations, as one record.

(a) only a host annotation ``nccl:all_reduce`` with ``Input Dims``; (b) ``record_param_comms`` with positional
inputs; (c) named arguments on ``record_param_comms``; (d) named arguments on the kernel too. Sizes are
element counts with a dtype word; lists are text that may be cut with ``...``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from sim.trace.model import ProcessGroup, collective_kind, element_bytes, nccl_size
from sim.trace.readers.columns import as_list


@dataclass(frozen=True)
class CommRecord:
    """One collective as the host described it. Bytes are those of one rank."""

    kind: str
    input_bytes: float | None
    output_bytes: float | None
    dtype: str
    group: str
    group_ranks: tuple[int, ...]
    group_size: int | None
    description: str = ""
    sequence: int | None = None
    peer: int | None = None

    def size(self, world_size: int | None) -> float | None:
        """Size in the meaning of nccl-tests; an unstated group is taken to be the world."""
        return nccl_size(self.kind, self.input_bytes, self.output_bytes, self.group_size or world_size)


def from_named(args: dict[str, Any]) -> CommRecord | None:
    """Generations (c) and (d); None for waits and for arguments without a collective name."""
    name = args.get("Collective name", args.get("collective_name"))
    if not isinstance(name, str) or not name or name.lower() == "wait":
        return None
    kind = collective_kind(name)
    dtype = _text(_either(args, "dtype"))
    width = element_bytes(dtype)
    ranks, listed = parse_ranks(args.get("Process Group Ranks", args.get("process_group_ranks")))
    stated = _integer(_either(args, "Group size", "pg_size"))
    size = stated if stated else (listed or None)
    start, stride = (
        _integer(_either(args, f"Global rank {word}", f"global_rank_{word}")) for word in ("start", "stride")
    )
    if not ranks and size and start is not None and stride:
        ranks = tuple(range(start, start + size * stride, stride))
    group = _either(args, "Process Group Name", "pg_name", "Process Group ID")
    peer = _integer(_either(args, "Dst Rank" if kind == "send" else "Src Rank"))
    return CommRecord(
        kind,
        _bytes(_either(args, "In msg nelems", "in_msg_nelems"), width),
        _bytes(_either(args, "Out msg nelems", "out_msg_nelems"), width),
        dtype,
        "" if group is None else str(group),
        ranks,
        size,
        _text(_either(args, "Process Group Description", "pg_desc")),
        _integer(_either(args, "Seq", "seq")),
        peer if kind in ("send", "recv") else None,
    )


_POSITIONAL_NAMES = re.compile(
    r"^_?(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|reduce|gather|scatter|send|recv|barrier)"
)


def from_positional(values: Sequence[Any], dims: Sequence[Any], types: Sequence[Any]) -> CommRecord | None:
    """Generation (b): ``[tensors], sequence, group, rank, name, in split, out split[, start, stride, size]``.

    Returns None for waits and for lists in which no collective name stands.
    """
    at = next(
        (i for i, v in enumerate(values) if isinstance(v, str) and _POSITIONAL_NAMES.match(v.strip("\"'"))),
        None,
    )
    if at is None:
        return None
    name = str(values[at]).strip("\"'")
    kind = collective_kind(name)
    group, description = _group(values[at - 2] if at >= 2 else None)
    input_bytes, dtype = tensor_bytes(dims[:1], types[:1])
    if input_bytes is None:
        input_bytes, dtype = tuple_bytes(values[:1])
    size = _integer(values[at + 5]) if len(values) > at + 5 else None
    start, stride = (_integer(values[at + i]) if len(values) > at + i else None for i in (3, 4))
    ranks = (
        tuple(range(start, start + size * stride, stride)) if size and stride and start is not None else ()
    )
    peer = _integer(values[at - 1]) if at >= 1 and kind in ("send", "recv") else None
    sequence = _integer(values[at - 3]) if at >= 3 else None
    return CommRecord(kind, input_bytes, None, dtype, group, ranks, size or None, description, sequence, peer)


def from_annotation(name: str, args: dict[str, Any]) -> CommRecord:
    """Generation (a): ``nccl:all_to_all`` with the shapes of its input tensors."""
    size, dtype = tensor_bytes(as_list(args.get("Input Dims")), as_list(args.get("Input type")))
    return CommRecord(collective_kind(name), size, None, dtype, "", (), None)


def tensor_bytes(dims: Sequence[Any], types: Sequence[Any]) -> tuple[float | None, str]:
    """Bytes of the tensors with these shapes and C++ type words; None if no type is known."""
    total, dtype = 0.0, ""
    for shape, word in zip(dims, types, strict=False):
        inner = re.findall(r"\(([^()]*)\)", word)[-1:] if isinstance(word, str) else []
        text = inner[0] if inner else word
        width = element_bytes(text) if isinstance(text, str) else None
        if width and isinstance(shape, list) and shape:
            total += width * _elements(shape)
            dtype = dtype or str(text)
    return (total, dtype) if dtype else (None, "")


def _elements(shape: list[Any]) -> int:
    if any(isinstance(entry, list) for entry in shape):
        return sum(_elements(entry) for entry in shape if isinstance(entry, list) and entry)
    return prod(entry for entry in shape if isinstance(entry, int))


def tuple_bytes(values: Sequence[Any]) -> tuple[float | None, str]:
    """Bytes of tensors written as ``[id, storage, offset, elements, bytes of one, device]``."""
    total, found, stack = 0, False, list(values)
    while stack:
        value = stack.pop()
        if not isinstance(value, list):
            continue
        if (
            len(value) == 6
            and isinstance(value[5], str)
            and isinstance(value[3], int)
            and isinstance(value[4], int)
        ):
            total, found = total + value[3] * value[4], True
        else:
            stack.extend(value)
    return (float(total), "") if found else (None, "")


def _group(value: Any) -> tuple[str, str]:
    """Name and description of a group given as ``[name, description]``, as their text, or as an address."""
    if isinstance(value, list | tuple) and value:
        return str(value[0]), str(value[1]) if len(value) > 1 else ""
    if isinstance(value, str):
        parts = re.findall(r"[^\s,()\[\]'\"]+", value)
        return (parts[0], " ".join(parts[1:])) if parts else ("", "")
    return ("" if value is None else str(value)), ""


def parse_ranks(value: Any) -> tuple[tuple[int, ...], int]:
    """Ranks of a list or of its text, and how many; cut lists (``...``) have no ranks."""
    if isinstance(value, str):
        if "..." in value:
            return (), 0
        value = [int(word) for word in re.findall(r"\d+", value)[:1_000_000] if len(word) < 19]
    if isinstance(value, list | tuple):
        ranks = tuple(int(entry) for entry in value if isinstance(entry, int) and 0 <= entry < 2**31)
        return ranks, len(ranks)
    return (), 0


def parse_groups(config: Any, world_size: int | None) -> tuple[ProcessGroup, ...]:
    """Process groups of ``pg_config`` or of a ``process_group:init`` node; ``ranks: []`` means the world."""
    groups = []
    for entry in as_list(config):
        if not isinstance(entry, dict):
            continue
        ranks, count = parse_ranks(entry.get("ranks"))
        size = _integer(_either(entry, "pg_size", "group_size")) or count or world_size
        if not ranks and size is not None and size == world_size:
            ranks = tuple(range(size)) if size <= 1_000_000 else ()
        groups.append(
            ProcessGroup(
                str(entry.get("pg_name", "")),
                _text(entry.get("pg_desc")),
                _text(entry.get("backend_config")),
                ranks,
                size,
            )
        )
    return tuple(groups)


def _either(args: dict[str, Any], *keys: str) -> Any:
    return next((args[key] for key in keys if args.get(key) is not None), None)


def _integer(value: Any) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value.strip()):
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _bytes(elements: Any, width: int | None) -> float | None:
    count = _integer(elements)
    return None if count is None or width is None or count < 0 else float(count * width)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
