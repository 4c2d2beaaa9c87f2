"""A worker process of the local engine: ``python -m sim.sweep.worker``.

Speaks length-prefixed pickles over its standard input and output: first the context, then tasks, one
reply each. It is a program of its own (not a fork, not ``multiprocessing``), so a sweep can be started
from a thread, a notebook or a script without a ``__main__`` guard, and a worker that dies takes only
its own point with it.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
from typing import Any, BinaryIO

_LENGTH = struct.Struct("<Q")


def send(stream: BinaryIO, value: Any) -> None:
    """Write one framed message."""
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read one framed message; raise `EOFError` when the other side is gone."""
    head = _read(stream, _LENGTH.size)
    return pickle.loads(_read(stream, _LENGTH.unpack(head)[0]))


def _read(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if data is None or len(data) < count:
        raise EOFError
    return data


def main() -> None:
    """Serve tasks until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    incoming = os.fdopen(os.dup(0), "rb")
    outgoing = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not break the frames
    sys.path[:] = receive(incoming)
    from sim.sweep.evaluate import evaluate

    try:
        context = receive(incoming)
        while True:
            send(outgoing, evaluate(context, receive(incoming)))
    except (EOFError, BrokenPipeError):
        os._exit(0)  # the parent ended or was killed


if __name__ == "__main__":
    main()
