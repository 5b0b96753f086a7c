"""Protobuf's encoding, as far as Canal's packets and entries need it."""

from __future__ import annotations

from collections.abc import Iterator

_MOST_VARINT_BYTES = 10
_WORD = (1 << 64) - 1


class MalformedError(Exception):
    """Bytes that are no message."""


def varint(value: int) -> bytes:
    """Encodes a number; a negative one as 64 bits, as protobuf does with int32 and int64."""
    value &= _WORD
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int, *, always: bool = False) -> bytes:
    """A field with a number; nothing for zero, unless ``always`` (fields in a oneof)."""
    return varint(field << 3) + varint(value) if value or always else b""


def data(field: int, value: bytes | str, *, always: bool = False) -> bytes:
    """A field with bytes, a text or a message; nothing if it is empty, unless ``always``."""
    raw = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(raw)) + raw if raw or always else b""


def pair(field: int, key: str, value: str) -> bytes:
    """A field with one of Canal's pairs."""
    return data(field, data(1, key) + data(2, value))


def signed(value: int) -> int:
    """The int64 of a varint."""
    return value - (1 << 64) if value >> 63 else value


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields the fields of a message: number, and a number or bytes. Raises MalformedError."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        field, kind = tag >> 3, tag & 7
        if field == 0:
            raise MalformedError("a field has number 0")
        if kind == 0:
            value, at = _varint(message, at)
            yield field, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, at = _varint(message, at)
        if size is None:
            raise MalformedError(f"a field has wire type {kind}")
        if size > len(message) - at:
            raise MalformedError("a field reaches beyond the end of its message")
        yield field, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for count in range(_MOST_VARINT_BYTES):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value & _WORD, at
    raise MalformedError("a number does not end")
