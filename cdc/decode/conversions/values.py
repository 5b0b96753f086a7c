"""Conversions of numbers, sets, vectors, addresses and compressed values.

Each takes the column's raw values as an Arrow array and returns the final array; those of dates and times are in
``temporal``, those of texts in ``charsets``, those of JSON in ``binary_json``.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.decode.conversions.base import BadValueError, Conversion, TextBuffers, binary_parts, by_distinct, fixed_width
from cdc.decode.kernels.values import decimal_texts

_FLOAT_BYTES = 4
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_UUID_GROUPS = ((0, 4), (4, 6), (6, 8), (8, 10), (10, 16))


# ---------------------------------------------------------------- numbers, sets, vectors


def decimal_text(precision: int, scale: int) -> Conversion:
    """The conversion of a DECIMAL(precision, scale) that is too wide for Arrow's decimal128 to text, exactly as SELECT
    prints it.

    ``precision`` at most 65, ``scale`` at most 38 (MariaDB's limit) and the precision. The conversion raises
    BadValueError for bytes that are not such a decimal.
    """

    def convert(raw: pa.Array) -> pa.Array:
        parts = binary_parts(raw)
        nothing, no_offsets = np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.int32)
        total, bad = decimal_texts(parts.data, parts.offsets, parts.nulls, precision, scale, nothing, no_offsets, False)
        if bad >= 0:
            raise BadValueError(bad, f"the bytes are not a DECIMAL({precision},{scale})")
        texts = TextBuffers(parts, total)
        decimal_texts(parts.data, parts.offsets, parts.nulls, precision, scale, texts.data, texts.offsets, True)
        return texts.array()

    return convert


def escaped_lines(printed: pa.Array) -> pa.Array:
    """Escapes the line ends in documents that a server has printed. MySQL 5.7 and early versions of 8.0 write them into
    the base64 form of long values, where JSON does not allow them."""
    return pc.replace_substring(printed, "\n", "\\n")


def boolean(raw: pa.Array) -> pa.Array:
    """Converts integers to ``bool``: everything but zero is true, as in MySQL's own conditions."""
    return pc.not_equal(raw, pa.scalar(0, raw.type))


def set_text(members: Sequence[str], raw: pa.Array) -> pa.Array:
    """Converts little-endian bitmaps (``binary``, 1 to 8 bytes) to ``string``: the members in their order, separated by
    commas.

    Raises BadValueError for a bit behind the last member.
    """

    def text(value: bytes) -> str:
        bits = int.from_bytes(value, "little")
        if bits >> len(members):
            raise ValueError("a SET with more members than its column has")
        return ",".join(member for at, member in enumerate(members) if bits >> at & 1)

    return by_distinct(raw, text, pa.string())


def vector_floats(raw: pa.Array) -> pa.Array:
    """Converts little-endian IEEE floats (``binary``) to ``list<float>`` without copying them. Raises BadValueError for
    a value that ends inside a float."""
    _, offset_buffer, data = raw.buffers()
    if len(raw) == 0 or data is None:
        return pa.array([None] * len(raw), pa.list_(pa.float32())) if len(raw) == raw.null_count else _empty(raw)
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)[raw.offset : raw.offset + len(raw) + 1]
    relative = offsets - offsets[0]
    torn = np.flatnonzero(relative % _FLOAT_BYTES)
    if len(torn):
        raise BadValueError(int(torn[0]) - 1, "the length of a VECTOR is not a multiple of four bytes")
    bytes_ = data.slice(int(offsets[0]), int(relative[-1]))
    values = pa.Array.from_buffers(pa.float32(), int(relative[-1]) // _FLOAT_BYTES, [None, bytes_])
    return pa.ListArray.from_arrays(
        pa.array(relative // _FLOAT_BYTES, pa.int32()), values, mask=raw.is_null() if raw.null_count else None
    )


def _empty(raw: pa.Array) -> pa.Array:
    return pa.array([[] if valid else None for valid in raw.is_valid().to_pylist()], pa.list_(pa.float32()))


# ---------------------------------------------------------------- MariaDB's UUID, INET4 and INET6


def uuid_text(raw: pa.Array) -> pa.Array:
    """Converts 16 bytes (``binary``) to ``string``, such as ``6ccd780c-baba-1026-9564-5b8c656024db``."""
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
    """Converts 4 bytes (``binary``) to ``string``, such as ``192.0.2.1``."""
    octets = [pc.cast(pa.array(np.ascontiguousarray(column)), pa.string()) for column in fixed_width(raw, 4).T]
    text = pc.binary_join_element_wise(*octets, ".")
    return pc.if_else(raw.is_valid(), text, None) if raw.null_count else text


def inet6_text(raw: pa.Array) -> pa.Array:
    """Converts 16 bytes (``binary``) to ``string``, as MariaDB prints them. Each distinct value is formatted once."""
    return by_distinct(raw, _inet6, pa.string())


def _inet6(value: bytes) -> str:
    """An address as MariaDB prints it: ``::`` for the first of the longest runs of zero groups, even for one group
    (unlike RFC 5952); the last 32 bits in dotted form in ``::ffff:0:0/96``, and after 96 zero bits unless the next 16
    bits are zero as well."""
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
    """A ``string`` array of texts of one length, null where ``raw`` is null."""
    width = texts.dtype.itemsize
    offsets = pa.py_buffer(np.arange(len(texts) + 1, dtype=np.int32) * width)
    array = pa.Array.from_buffers(pa.string(), len(texts), [None, offsets, pa.py_buffer(texts.tobytes())])
    return pc.if_else(raw.is_valid(), array, None) if raw.null_count else array


# ---------------------------------------------------------------- MariaDB's COMPRESSED columns


def uncompressed(raw: pa.Array) -> pa.Array:
    """Converts stored values (``binary``) to uncompressed bytes (``binary``).

    The first byte of a value is 0 if the bytes follow uncompressed. Otherwise its upper half is the method (8: zlib),
    bit 3 is set if zlib's own header is left out, and the lower three bits are the number of bytes of the length that
    follows, big-endian; then comes the stream. An empty value has no bytes. Each distinct value is inflated once.
    Source: MariaDB's ``Field_longstr::compress`` and ``uncompress``. Raises BadValueError.
    """
    return by_distinct(raw, _bytes_of, pa.binary())


def _bytes_of(value: bytes) -> bytes:
    try:
        return _inflated(value)
    except (zlib.error, ValueError) as error:
        raise ValueError(f"a COMPRESSED value that cannot be inflated ({error})") from None


def _inflated(value: bytes) -> bytes:
    if not value:
        return b""
    method, raw_deflate, size = value[0] >> 4, value[0] & 8, value[0] & 7
    if method == 0:
        return value[1:]
    if method != 8 or not 1 <= size <= 4 or len(value) < 1 + size:
        raise ValueError("its first byte names an unknown method")
    length = int.from_bytes(value[1 : 1 + size], "big")
    inflater = zlib.decompressobj(-zlib.MAX_WBITS if raw_deflate else zlib.MAX_WBITS)
    # The length is the limit: a damaged value must not inflate into more memory than it claims.
    text = inflater.decompress(value[1 + size :], length) if length else b""
    if len(text) != length:
        raise ValueError("it is shorter than its stated length")
    # Read to the end of the stream, which holds zlib's own checksum.
    if length and (inflater.decompress(inflater.unconsumed_tail, 1) or not inflater.eof):
        raise ValueError("it is longer than its stated length, or cut")
    return text
