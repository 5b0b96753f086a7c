"""MariaDB's COMPRESSED columns."""

from __future__ import annotations

import zlib

import pyarrow as pa

from cdc.decode.conversion import by_distinct


def uncompressed(raw: pa.Array) -> pa.Array:
    """Stored values (``binary``) to the bytes that they stand for (``binary``).

    A value begins with a byte: 0, and the bytes follow as they are; else in its upper half the method (8: zlib), in bit
    3 whether zlib's own header is left out, in the lower three bits how many bytes of the length follow, big-endian;
    then the stream. An empty value has no byte at all. Each distinct value is inflated once. Source: MariaDB's
    ``Field_longstr::compress`` and ``uncompress``. Raises BadValueError.
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
        raise ValueError("its first byte is of no known method")
    length = int.from_bytes(value[1 : 1 + size], "big")
    inflater = zlib.decompressobj(-zlib.MAX_WBITS if raw_deflate else zlib.MAX_WBITS)
    # The length is the limit: a damaged value must not unfold into more memory than it says.
    text = inflater.decompress(value[1 + size :], length) if length else b""
    if len(text) != length:
        raise ValueError("it is shorter than it says")
    # To the end of the stream, where zlib's own checksum stands.
    if length and (inflater.decompress(inflater.unconsumed_tail, 1) or not inflater.eof):
        raise ValueError("it is longer than it says, or cut")
    return text
