"""MariaDB's UUID, INET4 and INET6 as their texts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.decode.arrow_text import fixed_width
from cdc.decode.conversion import by_distinct

_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_UUID_GROUPS = ((0, 4), (4, 6), (6, 8), (8, 10), (10, 16))


def uuid_text(raw: pa.Array) -> pa.Array:
    """16 bytes (``binary``) to ``string``: ``6ccd780c-baba-1026-9564-5b8c656024db``."""
    source = fixed_width(raw, 16)
    text = np.full((len(source), 36), ord("-"), dtype=np.uint8)
    at = 0
    for start, stop in _UUID_GROUPS:
        group = source[:, start:stop]
        text[:, at : at + 2 * (stop - start) : 2] = _HEX[group >> 4]
        text[:, at + 1 : at + 2 * (stop - start) : 2] = _HEX[group & 15]
        at += 2 * (stop - start) + 1
    return _strings(text.view("S36").ravel(), raw)


def inet4_text(raw: pa.Array) -> pa.Array:
    """4 bytes (``binary``) to ``string``: ``192.0.2.1``."""
    octets = [pc.cast(pa.array(np.ascontiguousarray(column)), pa.string()) for column in fixed_width(raw, 4).T]
    text = pc.binary_join_element_wise(*octets, ".")
    return pc.if_else(raw.is_valid(), text, None) if raw.null_count else text


def inet6_text(raw: pa.Array) -> pa.Array:
    """16 bytes (``binary``) to ``string``, as MariaDB prints them. Each distinct one is formatted once."""
    return by_distinct(raw, _inet6, pa.string())


def _inet6(value: bytes) -> str:
    """The first of the longest runs of zero groups as ``::``, even one group (unlike RFC 5952); the last 32 bits with
    points in ``::ffff:0:0/96``, and after 96 zero bits unless the next 16 are zero as well."""
    if value[:12] == bytes(10) + b"\xff\xff":
        return "::ffff:" + ".".join(map(str, value[12:]))
    if value[:12] == bytes(12) and value[12:14] != b"\0\0":
        return "::" + ".".join(map(str, value[12:]))
    groups = [int.from_bytes(value[at : at + 2], "big") for at in range(0, 16, 2)]
    start, longest = 0, 0
    for at in range(8):
        length = next((n for n, group in enumerate(groups[at:]) if group), 8 - at)
        if length > longest:
            start, longest = at, length
    if not longest:
        return ":".join(f"{group:x}" for group in groups)
    before, after = groups[:start], groups[start + longest :]
    return ":".join(f"{group:x}" for group in before) + "::" + ":".join(f"{group:x}" for group in after)


def _strings(texts: npt.NDArray[np.bytes_], raw: pa.Array) -> pa.Array:
    """Texts of one length, null where ``raw`` is."""
    width = texts.dtype.itemsize
    offsets = pa.py_buffer(np.arange(len(texts) + 1, dtype=np.int32) * width)
    array = pa.Array.from_buffers(pa.string(), len(texts), [None, offsets, pa.py_buffer(texts.tobytes())])
    return pc.if_else(raw.is_valid(), array, None) if raw.null_count else array
