"""The journal of a sweep: one JSON line per finished point, appended and synced; survives ``kill -9``.

The first line names the store's format and the clusterloom version that wrote it. A line is valid only
if it is complete (ends with a newline and parses), so a half-written last line is noticed, reported and
cut off before anything is appended.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from sim.errors import InputError

FORMAT = 1
FILE_NAME = "journal.jsonl"
SYNC_INTERVAL = 0.5  # seconds between two fsyncs: bounds what a power cut can lose, not what kill -9 can


class Journal:
    """Append-only record of finished points, one writer at a time.

    Parameters
    ----------
    folder : path
        The store; created if it does not exist.
    version : str
        Version of clusterloom; a store of another version is refused and left as it is.

    Attributes
    ----------
    entries : dict
        Finished points by key, as read at opening and appended since.
    notices : list of str
        What the user should know about the store (a half-written line, a damaged line).
    """

    def __init__(self, folder: str | Path, version: str) -> None:
        self.folder, self.version = Path(folder), version
        self.path = self.folder / FILE_NAME
        self.entries: dict[str, dict[str, Any]] = {}
        self.notices: list[str] = []
        self._descriptor = -1
        self._synced_at = 0.0
        self._open()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, key: str, entry: dict[str, Any]) -> None:
        """Write one finished point; raise `InputError` if the disk does not take it."""
        self._write({"key": key, **entry})
        self.entries[key] = entry
        now = time.monotonic()
        if now - self._synced_at >= SYNC_INTERVAL:
            self._sync()
            self._synced_at = now

    def close(self) -> None:
        """Sync and release the store."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise self._failure(error) from error
        try:
            _lock(self._descriptor, self.path)
            self._read()
        except BaseException:
            os.close(self._descriptor)
            self._descriptor = -1
            raise

    def _read(self) -> None:
        content = self.path.read_bytes()
        end = content.rfind(b"\n") + 1
        lines = content[:end].splitlines()
        if lines:
            self._check_header(lines[0])
        elif content and not content.startswith(b'{"clusterloom_store"'[: len(content)]):
            raise InputError("--store", "be a clusterloom store", self.path, hint="Choose another --store.")
        if end < len(content):
            os.ftruncate(self._descriptor, end)
            self.notices.append(f"{self.path}: dropped a half-written last line ({len(content) - end} bytes)")
        if not lines:
            self._write({"clusterloom_store": FORMAT, "version": self.version})
        for number, line in enumerate(lines[1:], start=2):
            self._take(number, line)

    def _check_header(self, line: bytes) -> None:
        header = _parse(line)
        if header is None or "clusterloom_store" not in header:
            raise InputError("--store", "be a clusterloom store", self.path, hint="Choose another --store.")
        if header["clusterloom_store"] != FORMAT or header.get("version") != self.version:
            written = f"{header.get('version')} (format {header['clusterloom_store']})"
            raise InputError(
                "--store",
                f"be written by clusterloom {self.version} (format {FORMAT})",
                f"one written by {written}",
                hint=f"Nothing was changed. Choose another --store, or delete {self.path} to recompute.",
            )

    def _take(self, number: int, line: bytes) -> None:
        entry = _parse(line)
        if entry is None or "key" not in entry:
            self.notices.append(f"{self.path}:{number}: damaged line ignored; its point is computed again")
            return
        self.entries[str(entry.pop("key"))] = entry

    def _write(self, entry: dict[str, Any]) -> None:
        data = json.dumps(entry, separators=(",", ":"), allow_nan=True).encode() + b"\n"
        start = os.fstat(self._descriptor).st_size
        try:
            written = 0
            while written < len(data):  # a nearly full disk takes part of a line first
                written += os.write(self._descriptor, data[written:])
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._descriptor, start)
            raise self._failure(error) from error

    def _sync(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> InputError:
        reason = error.strerror or str(error)
        count = len(self.entries)
        kept = f"{count} finished point{'' if count == 1 else 's'} kept; run again to continue."
        return InputError("--store", f"be writable ({reason})", self.path, hint=kept)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _lock(descriptor: int, path: Path) -> None:
    """Refuse a second writer; a platform without ``fcntl`` does without the lock."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        hint = "Wait for it, or choose another --store."
        raise InputError("--store", "not be in use by another sweep", path, hint=hint) from None


def read_entries(folder: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Finished points of a store, without opening it for writing."""
    for line in (Path(folder) / FILE_NAME).read_bytes().splitlines():
        entry = _parse(line)
        if entry is not None and "key" in entry:
            yield str(entry.pop("key")), entry
