"""Read one long JSON array of a big file in blocks, without holding the file.

The standard library decoder works on a block cut between two objects: if the text up to the cut, closed
with a bracket, decodes, then the cut was at the array's own depth, so the cut never has to be *known* to be
right. That keeps C speed, a few blocks of memory, and, unlike stricter decoders, NaN, Infinity and
integers of any size, all of which real traces contain. Damaged places fall back to one object at a time.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from sim.errors import InputError
from sim.trace.issues import Issues

BLOCK_CHARACTERS = 1 << 22
_BETWEEN = re.compile(r"\}\s*,\s*\{")
_SPACE = re.compile(r"[\s,]*")
_DECODER = json.JSONDecoder(strict=False)
_WHITE = re.compile(r"\s*")
_FAILURES = (ValueError, RecursionError)


class JsonStream:
    """A JSON document with at most one long array, read front to back.

    Parameters
    ----------
    stream : BinaryIO
        The document.
    label : str
        Name for messages.
    issues : Issues
        Where findings are counted.
    arrays : tuple of str
        Keys whose arrays are streamed instead of kept.

    Attributes
    ----------
    header : dict
        All other top-level values; those behind the array are there once it has been read.
    key : str or None
        Key of the array; ``""`` for a bare array; ``None`` if the document has none.
    """

    def __init__(
        self,
        stream: BinaryIO,
        label: str,
        issues: Issues,
        arrays: tuple[str, ...],
        *,
        block: int = BLOCK_CHARACTERS,
    ) -> None:
        self._stream, self._label, self._issues, self._arrays, self._block = (
            stream,
            label,
            issues,
            arrays,
            block,
        )
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="strict")
        self._text, self._ended = "", False
        self.header: dict[str, Any] = {}
        self.key: str | None = None
        self._open()

    def blocks(self) -> Iterator[list[Any]]:
        """The entries of the array, some thousand at a time."""
        while self.key is not None:
            yield from self._array()
            if self.key == "" or not self._next_key():
                return

    # ---- text -------------------------------------------------------------------------------------------

    def _fill(self, size: int) -> bool:
        """Have at least ``size`` characters if there are so many; False when nothing could be added."""
        before = len(self._text)
        parts = [self._text]
        have = before
        while have < size and not self._ended:
            data = self._stream.read(max(1 << 16, size - have))
            if not data:
                self._ended = True
            part = self._decoded(data)
            parts.append(part)
            have += len(part)
        self._text = "".join(parts)
        return len(self._text) > before

    def _decoded(self, data: bytes) -> str:
        try:
            return self._decode.decode(data, final=not data)
        except UnicodeDecodeError:
            self._issues.add("invalid_utf8")
            state = self._decode.getstate()[0]
            self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
            return self._decode.decode(state + data, final=not data)

    def _truncated(self) -> None:
        if not self._issues.counts["truncated_file"]:
            self._issues.add("truncated_file")

    def _drop(self, count: int) -> None:
        self._text = self._text[count:]

    def _peek(self) -> str:
        """The next character that is no white space; empty at the end."""
        while True:
            self._drop(_end(_WHITE, self._text, 0))
            if self._text or not self._fill(1 << 16):
                return self._text[:1]

    # ---- the document around the array ------------------------------------------------------------------

    def _open(self) -> None:
        first = self._peek()
        if first == "[":
            self._drop(1)
            self.key = ""
        elif first == "{":
            self._drop(1)
            self._next_key()
        else:
            raise InputError("file", "be a JSON object or array", repr(first), where=self._label)

    def _next_key(self) -> bool:
        """Read members up to the next streamed array; False at the end of the object."""
        self.key = None
        while True:
            character = self._peek()
            if character == ",":
                self._drop(1)
                continue
            if character != '"':
                if character != "}":
                    self._truncated()
                return False
            name = self._value()
            if name is None or self._peek() != ":":
                self._truncated()
                return False
            self._drop(1)
            if name in self._arrays and self._peek() == "[":
                self._drop(1)
                self.key = str(name)
                return True
            self.header[str(name)] = self._value()

    def _value(self) -> Any:
        """Decode the value at hand, reading on while it is incomplete; None if it never ends."""
        self._peek()
        size = 1 << 16
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text)
            except _FAILURES:
                end = len(self._text)
                value = None
            # A number that touches the end of the text may go on.
            if end < len(self._text):
                self._drop(end)
                return value
            size = max(2 * len(self._text), size)
            if not self._fill(size):
                self._drop(end)
                return value

    # ---- the array --------------------------------------------------------------------------------------

    def _array(self) -> Iterator[list[Any]]:
        while True:
            self._fill(self._block)
            cut = len(self._text) if self._ended else _last_boundary(self._text)
            entries, ended = None, False
            if cut is not None:
                entries, ended = self._whole(self._text[: cut + 1])
            if entries is None:
                entries, ended = self._one_by_one(self._block if cut is None else cut + 1)
            if entries:
                yield entries
            if ended:
                return

    def _whole(self, body: str) -> tuple[list[Any] | None, bool]:
        """Entries of ``body`` decoded at once (None if that fails); True if the array ends inside it."""
        try:
            # At the end of the file nothing is closed for it: a bracket that is missing shall be noticed.
            entries, end = _DECODER.raw_decode(f"[{body}" if self._ended else f"[{body}]")
        except _FAILURES:
            return None, False
        if end <= len(body) + 1:
            self._drop(end - 1)
            return entries, True
        self._drop(len(body))
        self._drop(_end(_SPACE, self._text, 0))
        return entries, False

    def _one_by_one(self, limit: int) -> tuple[list[Any], bool]:
        """Entries up to ``limit`` decoded singly; True with them when the array has ended."""
        entries: list[Any] = []
        at, limit = 0, max(limit, 1)
        while at < limit:
            at = _end(_SPACE, self._text, at)
            if at >= len(self._text):
                if not self._fill(len(self._text) + self._block):
                    self._truncated()
                    self._text = ""
                    return entries, True
                continue
            if self._text[at] == "]":
                self._drop(at + 1)
                return entries, True
            try:
                entry, end = _DECODER.raw_decode(self._text, at)
                # A number that touches the end of the text may go on.
                if end < len(self._text) or self._ended or not self._fill(len(self._text) + self._block):
                    entries.append(entry)
                    at = end
            except _FAILURES:
                if len(self._text) - at < 2 * self._block and self._fill(len(self._text) + self._block):
                    continue
                found = _BETWEEN.search(self._text, at + 1)
                if found is None:
                    # Nothing that could start another entry: the file broke off inside this one.
                    self._truncated()
                    self._text = ""
                    return entries, True
                self._issues.add("malformed_event")
                at = found.end() - 1
        self._drop(at)
        return entries, False


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _last_boundary(text: str) -> int | None:
    """Position of the last ``}`` that is followed by ``, {``: probably the end of an entry."""
    size = 1 << 14
    while True:
        start = max(0, len(text) - size)
        found = None
        for match in _BETWEEN.finditer(text, start):
            found = match.start()
        if found is not None or start == 0:
            return found
        size *= 8
