"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> Path:
    """Write a file beside its target first, then move it there: a full disk leaves nothing half-written.

    Parameters
    ----------
    path : Path
        Replaced if it exists; a device or a pipe is written to directly.
    content : str or bytes
        Text is written as UTF-8.

    Raises
    ------
    OSError
        If it cannot be written; what was there before is untouched.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return path
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    return path
