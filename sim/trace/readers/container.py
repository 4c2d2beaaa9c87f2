"""Open what traces come in: plain files, gzip, bzip2, xz, tar and zip archives, nested, damaged or not."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from sim.errors import InputError
from sim.trace.issues import Issues

#: Called with (bytes read, total bytes) of the file on disk.
Progress = Callable[[int, int], None]

HEAD_BYTES = 1 << 16
_DAMAGE = (zlib.error, gzip.BadGzipFile, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile)
_MAX_NESTING = 4


@dataclass
class Member:
    """One file inside a container (or the file itself).

    Attributes
    ----------
    label : str
        Base name of the file, or ``archive > member``.
    head : bytes
        The first bytes, still to be read from ``stream``.
    stream : BinaryIO
        The whole decompressed content.
    path : Path or None
        The file on disk if it is not inside a container.
    """

    label: str
    head: bytes
    stream: BinaryIO
    path: Path | None


class _Tolerant(io.RawIOBase):
    """Reads until the source ends or breaks; a break is counted and then looks like the end."""

    def __init__(self, source: BinaryIO, head: bytes, issues: Issues) -> None:
        self._source, self._head, self._issues, self._ended = source, head, issues, False

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, target: object) -> int:
        """Fill ``target``; 0 at the end or at the first damage."""
        view = memoryview(target).cast("B")  # type: ignore[arg-type]
        data = self._head[: len(view)]
        if data:
            self._head = self._head[len(data) :]
        elif not self._ended:
            data = guarded_read(self._source, len(view), self._issues)
            self._ended = not data
        view[: len(data)] = data
        return len(data)


class _Recoded(io.RawIOBase):
    """UTF-16 text (what Windows shells write) as UTF-8."""

    def __init__(self, source: BinaryIO, encoding: str) -> None:
        self._source, self._ready, self._ended = source, b"", False
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, target: object) -> int:
        """Fill ``target``; 0 at the end."""
        view = memoryview(target).cast("B")  # type: ignore[arg-type]
        while not self._ready and not self._ended:
            data = self._source.read(HEAD_BYTES)
            self._ended = not data
            self._ready = self._decoder.decode(data, final=self._ended).encode("utf-8", "replace")
        data = self._ready[: len(view)]
        self._ready = self._ready[len(data) :]
        view[: len(data)] = data
        return len(data)


class _Counted(io.RawIOBase):
    """A file on disk that reports how far it has been read."""

    def __init__(self, path: Path, progress: Progress | None) -> None:
        self._file, self._total = path.open("rb"), path.stat().st_size
        self._read, self._progress = 0, progress

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, target: object) -> int:
        """Read from disk and report."""
        count = self._file.readinto(target)  # type: ignore[arg-type]
        self._read += count
        if self._progress is not None:
            self._progress(self._read, self._total)
        return count

    def close(self) -> None:
        """Close the file on disk."""
        self._file.close()
        super().close()


def guarded_read(source: BinaryIO, size: int, issues: Issues) -> bytes:
    """Read once; damage of the container is counted and ends the data."""
    try:
        # One read of the layer below: a longer one would lose what it had when the damage is met.
        return bytes(source.read1(size)) if hasattr(source, "read1") else source.read(size)
    except EOFError:
        issues.add("truncated_container")
    except _DAMAGE as error:
        truncated = "end of" in str(error) or "truncated" in str(error)
        issues.add("truncated_container" if truncated else "corrupt_container")
    except OSError as error:
        if error.errno is not None:  # the disk's, not the decompressor's
            raise
        issues.add("corrupt_container")
    return b""


def members(path: Path, issues: Issues, progress: Progress | None = None) -> Iterator[Member]:
    """The files inside ``path``, one after the other; each must be read before the next is asked for."""
    if not path.exists():
        raise InputError("file", "exist", path.name)
    if not path.is_file():
        raise InputError("file", "be a regular file", path.name)
    if path.stat().st_size == 0:
        raise InputError("file", "not be empty", path.name)
    with _Counted(path, progress) as counted:
        source = cast(BinaryIO, io.BufferedReader(counted, HEAD_BYTES))
        yield from _unwrap(path.name, source, path, issues, 0)


def _unwrap(label: str, source: BinaryIO, path: Path | None, issues: Issues, depth: int) -> Iterator[Member]:
    head = _read_head(source, issues)
    stream = cast(BinaryIO, io.BufferedReader(_Tolerant(source, head, issues), HEAD_BYTES))
    inner = _decompressor(head, stream, label)
    if depth >= _MAX_NESTING and (inner is not None or _is_tar(head)):
        raise InputError("file", f"nest at most {_MAX_NESTING} containers", label)
    if inner is not None:
        yield from _unwrap(label, inner, None, issues, depth + 1)
    elif head[:4] == b"PK\x03\x04":
        yield from _zip_members(label, stream, issues, depth)
    elif _is_tar(head):
        yield from _tar_members(label, stream, issues, depth)
    elif (encoding := _wide_text(head)) is not None:
        issues.add("text_recoded")
        recoded = io.BufferedReader(_Recoded(stream, encoding), HEAD_BYTES)
        yield Member(label, head.decode(encoding, "ignore").encode(), cast(BinaryIO, recoded), None)
    else:
        yield Member(label, head, stream, path)


def _wide_text(head: bytes) -> str | None:
    """Encoding of text in two bytes a character that begins with ASCII; None if it is none."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff") and 0 in head[2:4] and head[2:4] != b"\0\0":
        return "utf-16"
    if head[:1] in (b"{", b"[") and head[1:2] == b"\0" and head[3:4] == b"\0":
        return "utf-16-le"
    return None


def _read_head(source: BinaryIO, issues: Issues) -> bytes:
    head = b""
    while len(head) < HEAD_BYTES:
        data = guarded_read(source, HEAD_BYTES - len(head), issues)
        if not data:
            break
        head += data
    return head


def _decompressor(head: bytes, stream: BinaryIO, label: str) -> BinaryIO | None:
    if head[:2] == b"\x1f\x8b":
        return cast(BinaryIO, gzip.GzipFile(fileobj=stream))
    if head[:3] == b"BZh":
        return cast(BinaryIO, bz2.BZ2File(stream))
    if head[:6] == b"\xfd7zXZ\x00":
        return cast(BinaryIO, lzma.LZMAFile(stream))
    if head[:4] == b"\x28\xb5\x2f\xfd":
        raise InputError("file", "be compressed with gzip, bzip2 or xz", f"zstandard ({label})")
    return None


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


def _skipped(name: str, issues: Issues) -> bool:
    """Members that are no data: macOS resource forks and folder settings."""
    parts = name.split("/")
    apple = parts[-1].startswith("._") or "__MACOSX" in parts or parts[-1] == ".DS_Store"
    if apple:
        issues.add("apple_double_member")
    return apple


def _tar_members(label: str, stream: BinaryIO, issues: Issues, depth: int) -> Iterator[Member]:
    try:
        # Stream mode: the archive is read once, front to back, and never unpacked to disk.
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for entry in archive:
                if entry.isdir() or _skipped(entry.name, issues):
                    continue
                content = archive.extractfile(entry) if entry.isfile() else None
                if content is None:
                    issues.add("archive_member_not_a_file")
                    continue
                name = f"{label} > {entry.name.split('/')[-1]}"
                yield from _unwrap(name, cast(BinaryIO, content), None, issues, depth + 1)
    except tarfile.TarError:
        issues.add("truncated_container")


#: What zipfile raises on archives that are damaged, encrypted or of an unknown kind.
_ZIP_DAMAGE = (*_DAMAGE, ValueError, OSError, RuntimeError, NotImplementedError, EOFError, OverflowError)


def _zip_members(label: str, stream: BinaryIO, issues: Issues, depth: int) -> Iterator[Member]:
    try:
        archive = zipfile.ZipFile(io.BytesIO(stream.read()))
    except _ZIP_DAMAGE as error:
        raise InputError("file", "be a readable zip archive", f"{label} ({type(error).__name__})") from None
    with archive:
        for entry in archive.infolist():
            if entry.is_dir() or _skipped(entry.filename, issues):
                continue
            try:
                content = archive.open(entry)
            except _ZIP_DAMAGE:
                issues.add("corrupt_container")
                continue
            with content:
                name = f"{label} > {entry.filename.split('/')[-1]}"
                yield from _unwrap(name, cast(BinaryIO, content), None, issues, depth + 1)
