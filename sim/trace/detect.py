"""Which format a file has, from its first bytes; the name only breaks ties."""

from __future__ import annotations

import io
import re

from sim.errors import InputError
from sim.trace.readers import wire

FORMATS = (
    "json",
    "parquet",
    "sqlite",
    "chakra",
    "xplane",
    "nsys-csv",
    "aicb-csv",
    "simai-text",
    "goal",
    "settings",
)
_SETTINGS = re.compile(r"(?m)\A(?:[A-Za-z_]\w*:[ \t][^\n]*\n?|\s*#[^\n]*\n)+\Z")


def detect(head: bytes, label: str) -> str:
    """Format of a file that begins with ``head``.

    Raises
    ------
    InputError
        If it is none of :data:`FORMATS`.
    """
    if head[:4] == b"PAR1":
        return "parquet"
    if head[:16] == b"SQLite format 3\0":
        return "sqlite"
    text = head.decode("utf-8-sig", "ignore").lstrip() if b"\0" not in head[:4096] else ""
    found = _text_format(text) or _binary_format(head, label)
    if found is None:
        names = (
            "Kineto, execution trace, Chakra, Nsight, XPlane, tensor timeline, AICB, SimAI, op table or GOAL"
        )
        raise InputError("file", f"be a trace ({names})", _shown(text or head.decode("latin-1")), where=label)
    return found


def _text_format(text: str) -> str | None:
    if text[:1] in ("{", "["):
        return "aicb-csv" if re.match(r"\[rank\d+ ~ rank\d+\]", text) else "json"
    lines = [
        line for line in text.split("\n", 40)[:40] if line.strip() and not line.lstrip().startswith("//")
    ]
    first = lines[0] if lines else ""
    if re.match(r"\s*num_ranks\s+\d+", first):
        return "goal"
    if (
        len(lines) > 1
        and re.match(r"(HYBRID|DATA|MODEL|DLRM|TRANSFORMER|MICRO)\w*\b", first)
        and lines[1].strip().isdigit()
    ):
        return "simai-text"
    for line in lines[:12]:
        cells = [cell.strip().strip('"') for cell in line.split(",")]
        if "comm_type" in cells and "msg_size" in cells:
            return "aicb-csv"
        if {"Name", "Event Type", "Timestamp (ns)"} <= set(cells):
            return "nsys-csv"
        starts = any(cell.startswith("Start") for cell in cells) and any(
            c.startswith("Duration") for c in cells
        )
        if starts and "Name" in cells:
            return "nsys-csv"
    if text and _SETTINGS.match(text):
        return "settings"
    return None


def _binary_format(head: bytes, label: str) -> str | None:
    if _is_chakra(head):
        return "chakra"
    if label.split(" > ")[-1].removesuffix(".gz").endswith(".et"):
        return "chakra"  # the reader says what is wrong with it
    return "xplane" if _is_xplane(head) else None


def _is_chakra(head: bytes) -> bool:
    """Length-delimited: a GlobalMetadata{1: version, 2: attributes}, then Nodes{1: id, 2: name ...}."""
    try:
        stream = wire.messages(io.BytesIO(head), limit=len(head))
        first = list(wire.fields(next(stream)))
        if any(number not in (1, 2) or kind != wire.BYTES for number, kind, _ in first):
            return False
        second = list(wire.fields(next(stream)))
        return (
            bool(second) and all(1 <= number <= 10 for number, _, _ in second) and second[0][1] == wire.VARINT
        )
    except StopIteration:
        return bool(first) and len(head) < 4096 if "first" in locals() else False
    except wire.WireError:
        return False


def _is_xplane(head: bytes) -> bool:
    """``XSpace{1: XPlane{1: id, 2: name, ...}}``."""
    if head[:1] != b"\x0a":
        return False
    try:
        _, at = wire.varint(head, 1)
        return head[at : at + 1] in (b"\x08", b"\x12", b"\x1a")
    except wire.WireError:
        return False


def _shown(text: str) -> str:
    """A short printable piece of the beginning."""
    return repr("".join(c if c.isprintable() else "." for c in text[:32]))
