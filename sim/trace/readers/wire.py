"""The protobuf wire format, as far as traces need it: fields of a message, streams of messages."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """Bytes that are no protobuf message."""


def varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Unsigned number at ``at`` and the position behind it."""
    result = shift = 0
    try:
        while True:
            byte = data[at]
            at += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result & 0xFFFFFFFFFFFFFFFF, at
            shift += 7
            if shift > 63:
                raise WireError("a number is longer than 10 bytes")
    except IndexError:
        raise WireError("the message ends inside a number") from None


def fields(data: memoryview) -> Iterator[tuple[int, int, Any]]:
    """(field number, wire type, value) in order; lengths as memoryviews, numbers unsigned."""
    if not isinstance(data, memoryview):
        raise WireError("a message field holds a number")
    at, end = 0, len(data)
    while at < end:
        tag, at = varint(data, at)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise WireError("a field has the number 0")
        if wire == VARINT:
            value: Any
            value, at = varint(data, at)
        elif wire == BYTES:
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
            value, at = int.from_bytes(data[at : at + size], "little"), at + size
        else:
            raise WireError(f"wire type {wire} is not in use")
        if at > end:
            raise WireError("a field is longer than its message")
        yield number, wire, value


def signed(value: int) -> int:
    """An int32/int64 field from its unsigned form."""
    return value - (1 << 64) if value >= 1 << 63 else value


def zigzag(value: int) -> int:
    """A sint32/sint64 field from its unsigned form."""
    return (value >> 1) ^ -(value & 1)


def double(value: int) -> float:
    """A double field from its 64 bits."""
    return float(struct.unpack("<d", value.to_bytes(8, "little"))[0])


def single(value: int) -> float:
    """A float field from its 32 bits."""
    return float(struct.unpack("<f", value.to_bytes(4, "little"))[0])


def numbers(value: Any, wire: int) -> list[int]:
    """A repeated varint field, packed or not."""
    if wire == VARINT:
        return [value]
    result, at = [], 0
    while at < len(value):
        number, at = varint(value, at)
        result.append(number)
    return result


def text(value: Any) -> str:
    """A string field; bytes that are no UTF-8 are replaced."""
    if not isinstance(value, memoryview):  # bytes(number) would be that many zeros
        raise WireError("a text field holds a number")
    return bytes(value).decode("utf-8", "replace")


def messages(stream: BinaryIO, limit: int = 1 << 28) -> Iterator[memoryview]:
    """Messages with a varint length before each.

    Raises
    ------
    WireError
        Where the stream ends inside a message or a length is absurd.
    """
    while True:
        size = shift = 0
        first = True
        while True:
            byte = stream.read(1)
            if not byte:
                if first:
                    return
                raise WireError("the stream ends inside a length")
            first = False
            size |= (byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                break
            shift += 7
            if shift > 35:
                raise WireError("a message length is longer than 32 bits")
        if size > limit:
            raise WireError("a message is longer than 256 MiB")
        data = stream.read(size)
        if len(data) < size:
            raise WireError("the stream ends inside a message")
        yield memoryview(data)


def encode_varint(value: int) -> bytes:
    """Wire form of a number; negative ones take 10 bytes."""
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value >= 0x80:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_field(number: int, value: int | float | bool | str | bytes) -> bytes:
    """One field: integers and booleans as varint, floats as double, text and bytes with their length."""
    if isinstance(value, float):
        return encode_varint(number << 3 | FIXED64) + struct.pack("<d", value)
    if isinstance(value, int):
        return encode_varint(number << 3 | VARINT) + encode_varint(int(value))
    data = value.encode() if isinstance(value, str) else value
    return encode_varint(number << 3 | BYTES) + encode_varint(len(data)) + data
