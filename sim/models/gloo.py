"""What the gloo library makes of a collective: messages of segments, each a rendezvous.

gloo moves a collective as messages between pairs of ranks. A message may leave only when the receiver's
note that it is ready has come the other way: two one-way latencies. Rings cut each rank's part into segments
of at most 1 MiB and keep two of them on the way: segment i is sent when segment i - 2 has arrived (and has
been added up). There is no other algorithm for small or large sizes.

Notes pass bulk data on other connections, but not on their own: between two ranks that send to each other a
note waits behind the segment that its sender is sending. A network that queues everything in one line
(``queued``) makes all notes wait. There, rings of more than two ranks lose their step: a rank's line out of
the switch is kept for the acknowledgements of one neighbour, which wait behind that neighbour's bulk data,
and data of the other neighbour that came later must wait as well: a segment of up to about 400 KiB for as
long as it takes itself, a longer one less and less.

An all-gather posts its sends before its receives. Where two ranks do not begin at one moment (``apart``), the
later one finds the other's notes, sends at once, and its own notes leave behind its data: of the two halves
each way only one overlaps with the other direction, and the exchange takes three halves' time. The rank that
is served later is behind afterwards, so the ranks of a training job stay apart. Rings of more ranks send
notes and data of one connection in different directions, and reductions post receives first: neither suffers.

Source: gloo, allreduce.cc (ring), allgather.cc, broadcast.cc, reduce.cc, alltoall.cc, barrier.cc; checked
by the bytes of each connection and by stretched delays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from sim.errors import InputError
from sim.models.phase import IntArray, Phase, Plan, equal_flows

SEGMENT_BYTES = 2.0**20
NOTE_BYTES = 48.0
LINE_BYTES, HELD = 2.0**19, 0.65
"""What a host has in a switch's line at once where one line serves everything, and the part of it that a
longer segment is held up by."""
WIDTH = 2
"""Collectives of one process group under way at once (``ProcessGroupGloo`` has two worker threads)."""


@dataclass(frozen=True)
class Message:
    """Messages that all senders of a phase send at once.

    Attributes
    ----------
    phase : int
        Index into :func:`message_plan`.
    size_bytes : float
        Bytes of an elementary flow.
    after : tuple of int
        Messages of this collective that have to arrive first.
    reduced_bytes : float
        Bytes that every sender adds up before it can post this message.
    behind_bytes : float
        Bytes that the receiver sends before its note.
    """

    phase: int
    size_bytes: float
    after: tuple[int, ...] = ()
    reduced_bytes: float = 0.0
    behind_bytes: float = 0.0


def message_plan(op: str, n: int, *, queued: bool = False, apart: bool = False) -> Plan:
    """The phases that the messages of ``op`` on ``n`` ranks refer to; ``fraction`` is 1 throughout.

    Raises
    ------
    InputError
        If gloo has no such operation.
    """
    return _build(op, n, 0.0, queued, apart)[0] if n > 1 else ()


def messages(
    op: str, n: int, size_bytes: float, *, queued: bool = False, apart: bool = False
) -> tuple[Message, ...]:
    """Messages of a collective of ``size_bytes`` (nccl-tests' size) in an order in which they can be sent."""
    return _build(op, n, size_bytes, queued, apart)[1] if n > 1 else ()


@lru_cache(maxsize=4096)
def _build(op: str, n: int, size_bytes: float, queued: bool, apart: bool) -> tuple[Plan, tuple[Message, ...]]:
    if op not in _BUILDERS:
        raise InputError("collective.operation", f"be one of {', '.join(_BUILDERS)} for gloo", op)
    if apart and n == 2 and op == "all_gather":
        phases, sent = _late_gather(size_bytes)
        return phases, tuple(sent)
    phases, sent = _BUILDERS[op](n, size_bytes)
    if not queued and not (n == 2 and op in _TWO_WAY):
        return phases, tuple(sent)
    return _with_notes(phases, sent, held=n if queued and n > 2 and op in _TWO_WAY else 0)


def _held_bytes(segment: float) -> float:
    """Bytes that a segment of a ring waits for where one line serves data and control messages."""
    return min(segment, HELD * LINE_BYTES**2 / segment) if segment else 0.0


def _with_notes(phases: Plan, sent: list[Message], *, held: int = 0) -> tuple[Plan, tuple[Message, ...]]:
    """Make every note a message of its own, against the data's direction, that queues on the links.

    The segments of a ring of ``held`` ranks are held up besides.
    """
    # A note waits where it leaves; both latencies come after that and are the data's.
    notes = tuple(replace(phase, src=phase.dst, dst=phase.src, steps=0) for phase in phases)
    result: list[Message] = []
    for message in sent:
        after = tuple(2 * index + 1 for index in message.after)
        result.append(Message(len(phases) + message.phase, NOTE_BYTES, after, message.reduced_bytes))
        ring = len(phases[message.phase].src) == held
        behind = _held_bytes(message.size_bytes) if ring else 0.0
        result.append(Message(message.phase, message.size_bytes, (len(result) - 1,), behind_bytes=behind))
    return phases + notes, tuple(result)


def _ring(n: int, step: int) -> Phase:
    ranks = np.arange(n)
    return _phase(ranks, (ranks + step) % n)


def _phase(src: IntArray, dst: IntArray, steps: int = 2) -> Phase:
    return equal_flows(src, dst, 1.0, steps)


def _segments(n: int, size: float) -> tuple[int, float]:
    """Segments that each rank's part is cut into, and the bytes of one."""
    total = max(math.ceil(size / SEGMENT_BYTES), 2 * n)
    per_rank = -(-total // n)
    return per_rank, size / (per_rank * n)


def _scatter(n: int, size: float) -> list[Message]:
    """Reduce-scatter along the ring."""
    per_rank, segment = _segments(n, size)
    rounds = per_rank * (n - 1)
    return [Message(0, segment, (i - 2,) if i > 1 else (), segment if i > 1 else 0.0) for i in range(rounds)]


def _all_reduce(n: int, size: float) -> tuple[Plan, list[Message]]:
    sent = _scatter(n, size)
    rounds, segment = len(sent), sent[0].size_bytes
    for i in range(rounds, 2 * rounds):
        first = i < rounds + 2
        after = (rounds - 2, rounds - 1) if first else (i - 2,)
        sent.append(Message(0, segment, after, segment if first else 0.0))
    return (_ring(n, -1),), sent


def _all_gather(n: int, size: float) -> tuple[Plan, list[Message]]:
    sent = [Message(0, size / n / 2, (i - 2,) if i > 1 else ()) for i in range(2 * (n - 1))]
    return (_ring(n, 1),), sent


def _late_gather(size: float) -> tuple[Plan, list[Message]]:
    """All-gather of two ranks of which one comes later: its data leaves before its notes."""
    half = size / 4
    ring = _ring(2, 1)
    return (replace(ring, steps=1), ring), [Message(0, half), Message(1, half, (0,), behind_bytes=half)]


def _broadcast(n: int, size: float) -> tuple[Plan, list[Message]]:
    """Binomial tree; receivers are ready from the start, so only the first message waits for a note."""
    phases: list[Phase] = []
    sent: list[Message] = []
    arrival: dict[int, int] = {}
    mask = 1
    while mask < n:
        for sender in range(min(mask, n - mask)):
            known = arrival.get(sender)
            phases.append(_phase(np.array([sender]), np.array([sender + mask]), 2 if known is None else 1))
            arrival[sender + mask] = len(sent)
            sent.append(Message(len(sent), size, () if known is None else (known,)))
        mask *= 2
    return tuple(phases), sent


def _reduce(n: int, size: float) -> tuple[Plan, list[Message]]:
    """Reduce-scatter, then every rank sends its part to the root."""
    sent = _scatter(n, size)
    last = tuple(range(max(len(sent) - 2, 0), len(sent)))
    gather = _phase(np.arange(1, n), np.zeros(n - 1, np.int64))
    return (_ring(n, -1), gather), [*sent, Message(1, size / n, last, sent[0].size_bytes)]


def _all_to_all(n: int, size: float) -> tuple[Plan, list[Message]]:
    source = np.repeat(np.arange(n), n - 1)
    target = (source + np.tile(np.arange(1, n), n)) % n
    return (_phase(source, target),), [Message(0, size / n)]


def _gather(n: int, size: float) -> tuple[Plan, list[Message]]:
    return (_phase(np.arange(1, n), np.zeros(n - 1, np.int64)),), [Message(0, size / n)]


def _spread(n: int, size: float) -> tuple[Plan, list[Message]]:
    return (_phase(np.zeros(n - 1, np.int64), np.arange(1, n)),), [Message(0, size / n)]


def _send(n: int, size: float) -> tuple[Plan, list[Message]]:
    return (_phase(np.array([0]), np.array([1])),), [Message(0, size)]


def _neighbours(n: int, size: float) -> tuple[Plan, list[Message]]:
    return (_ring(n, 1),), [Message(0, size)]


def _barrier(n: int, size: float) -> tuple[Plan, list[Message]]:
    """Dissemination: in round s rank i signals rank i + 2^s."""
    rounds = (n - 1).bit_length()
    phases = tuple(_ring(n, 1 << s) for s in range(rounds))
    return phases, [Message(s, NOTE_BYTES, (s - 1,) if s else ()) for s in range(rounds)]


_TWO_WAY = ("all_reduce", "reduce_scatter", "all_gather", "reduce")
_BUILDERS: dict[str, Callable[[int, float], tuple[Plan, list[Message]]]] = {
    "all_reduce": _all_reduce,
    # ProcessGroupGloo reduces everything everywhere and copies a part.
    "reduce_scatter": _all_reduce,
    "all_gather": _all_gather,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _spread,
    "send": _send,
    "neighbour_exchange": _neighbours,
    "barrier": _barrier,
}
OPERATIONS = tuple(_BUILDERS)
