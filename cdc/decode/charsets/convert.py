"""Columns of text, from the bytes of the row images to UTF-8."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.decode.arrow_text import MAX_TEXT_BYTES
from cdc.decode.charsets import kernels
from cdc.decode.charsets.multi_byte import MULTI_BYTE, entry, tables
from cdc.decode.charsets.single_byte import SINGLE_BYTE, characters
from cdc.decode.conversion import Conversion
from cdc.errors import UnsupportedError

_COPIED = frozenset({"utf8mb4", "utf8mb3"})
_NOT_ASCII = frozenset({"swe7"})
_KINDS = {"ucs2": kernels.UCS2, "utf16": kernels.UTF16, "utf16le": kernels.UTF16LE, "utf32": kernels.UTF32}


def text_conversion(charset: str) -> Conversion | None:
    """The conversion from ``binary`` to ``string`` for a character set; None for utf8mb4 and utf8mb3, whose bytes are
    UTF-8 as they are.

    The conversion gives the characters that the server sends to a client in utf8mb4, and ``?`` where it sends that or
    something that is not UTF-8. (ascii is no exception: servers store its bytes from 80 on, and show them as ``?``.)
    It raises UnsupportedError where the result is more than an array can hold.

    ``charset``: a name as :func:`~cdc.decode.charsets.collations.charset_of` gives it. Raises LookupError for another.
    """
    if charset in _COPIED:
        return None
    if charset not in SINGLE_BYTE | MULTI_BYTE | _KINDS.keys():
        raise LookupError(charset)

    def convert(array: pa.Array) -> pa.Array:
        return _convert(array, charset)

    return convert


def warm_up() -> None:
    """Load or compile all kernels of this package."""
    for charset in ("latin1", "gbk", "utf16"):
        _convert(pa.array([b"\x80"], pa.binary()), charset)


@cache
def single_entries(charset: str) -> npt.NDArray[np.uint32]:
    """(256,): the entries of a character set's bytes, for the kernels."""
    return np.array([entry(character, 1) for character in characters(charset)], dtype=np.uint32)


def _convert(array: pa.Array, charset: str) -> pa.Array:
    if array.type != pa.binary():
        raise TypeError(f"an array of binary is converted, not of {array.type}")
    validity, offset_buffer, data_buffer = array.buffers()
    if len(array) == 0 or data_buffer is None:
        return pa.array([None if value is None else "" for value in array.to_pylist()], pa.string())
    offsets = np.frombuffer(offset_buffer, dtype=np.int32, count=len(array) + 1, offset=4 * array.offset)
    data = np.frombuffer(data_buffer, dtype=np.uint8)
    first, last = int(offsets[0]), int(offsets[-1])
    if charset not in _NOT_ASCII | _KINDS.keys() and (first == last or data[first:last].max() < 0x80):
        return array.view(pa.string())  # ASCII, as most columns are: the same bytes
    # The bitmap is kept as it is, from the byte on in which it begins; so a few texts go before the first.
    ahead = array.offset % 8
    starts = np.zeros(ahead + len(array) + 1, dtype=np.int32)
    out = np.empty(kernels.GROWTH * (last - first) + kernels.SLACK, dtype=np.uint8)
    if charset in SINGLE_BYTE:
        size = kernels.convert_single(data, offsets, single_entries(charset), starts[ahead:], out)
    elif charset in MULTI_BYTE:
        made = tables(charset)
        size = kernels.convert_multi(data, offsets, made.pairs, made.triples, made.quads, starts[ahead:], out)
    else:
        size = kernels.convert_wide(data, offsets, _KINDS[charset], starts[ahead:], out)
    if size > MAX_TEXT_BYTES:
        raise UnsupportedError(
            f"the texts of a column in {charset} have {size} bytes in UTF-8, more than the 2 GiB of an Arrow array",
            remedy="Decode it in smaller batches.",
        )
    out.resize(size, refcheck=False)
    if validity is not None:
        validity = validity.slice(array.offset // 8)
    buffers = [validity, pa.py_buffer(starts), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.string(), len(array), buffers, array.null_count, ahead)
