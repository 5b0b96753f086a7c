"""Protobuf's encoding of single fields, from which entries are put together: kernels write the parts between them."""

from __future__ import annotations

_WORD = (1 << 64) - 1


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
