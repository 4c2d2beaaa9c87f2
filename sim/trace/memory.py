"""What the process does with memory that it no longer needs."""

from __future__ import annotations

import ctypes
import sys

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h
_ARRAY_BYTES = 1 << 18


def return_memory() -> None:
    """Give arrays back to the system as soon as they are dropped.

    glibc raises the size from which it does so with every array that is freed, up to 32 MiB, and keeps
    the columns of a big trace that were only needed for a moment. A fixed threshold stops that. Elsewhere
    nothing happens.
    """
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _ARRAY_BYTES)
    except (AttributeError, OSError):  # another C library
        return
