"""The compiled loops from the servers' character sets to UTF-8.

All take the texts as Arrow has them: ``data`` (bytes) and ``offsets`` (rows + 1). They write UTF-8 to ``out`` and the
offset of each text to ``starts`` (rows + 1), and return the size of all texts in bytes. If it exceeds what an Arrow
array can hold, the offsets have wrapped around and are invalid. The output needs :data:`GROWTH` times as many bytes as
the input and :data:`SLACK` more, because four bytes are stored at a time. There is no pass that measures: it would take
as long as the conversion, while memory that is never written to costs nothing. The entries are those of
:class:`~cdc.decode.charsets.tables.MultiByteTables`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.kernels.jit import inlined, njit

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int32]
Entries = npt.NDArray[np.uint32]

Offset = np.uint64
"""The type of indices. For signed ones Numba checks whether they are negative and count from the end, which would be
most of the work of such small steps."""

GROWTH = 3
"""A character has at most three times as many bytes in UTF-8 as in its character set."""
SLACK = 4

UCS2 = 0
UTF16 = 1
UTF16LE = 2
UTF32 = 3

_QUESTION = 0x3F
_MEANINGLESS = _QUESTION | 1 << 24 | 1 << 28
_TWO_TO_THREE = 2 << 4 | 3
_GB18030_ABOVE = 189000


@inlined
def put_word(out: Bytes, at: int, word: int) -> None:
    """Writes four bytes, the lowest first; they are compiled into one store."""
    out[Offset(at)] = np.uint8(word & 0xFF)
    out[Offset(at + 1)] = np.uint8(word >> 8 & 0xFF)
    out[Offset(at + 2)] = np.uint8(word >> 16 & 0xFF)
    out[Offset(at + 3)] = np.uint8(word >> 24 & 0xFF)


@inlined
def put_utf8(out: Bytes, at: int, code: int) -> int:
    """Writes a code point and up to three unused bytes after it. Returns the offset behind the code point."""
    if code < 0x80:
        out[Offset(at)] = code
        return at + 1
    if code < 0x800:
        put_word(out, at, 0x80C0 | code >> 6 | (code & 0x3F) << 8)
        return at + 2
    if code < 0x10000:
        put_word(out, at, 0x8080E0 | code >> 12 | (code >> 6 & 0x3F) << 8 | (code & 0x3F) << 16)
        return at + 3
    low = code >> 18 | (code >> 12 & 0x3F) << 8
    put_word(out, at, 0x808080F0 | low | (code >> 6 & 0x3F) << 16 | (code & 0x3F) << 24)
    return at + 4


# ---------------------------------------------------------------- a byte is a character


@njit
def convert_single(data: Bytes, offsets: Offsets, entries: Entries, starts: Offsets, out: Bytes) -> int:
    """Converts texts in a character set of one byte a character; ``entries`` (256,)."""
    at = np.int64(0)
    for row in range(offsets.shape[0] - 1):
        starts[row] = at
        for p in range(offsets[row], offsets[row + 1]):
            entry = np.int64(entries[Offset(data[Offset(p)])])
            put_word(out, at, entry)
            at += entry >> 24 & 15
    starts[offsets.shape[0] - 1] = at
    return at


# ---------------------------------------------------------------- East Asian


@inlined
def next_multi(data: Bytes, p: int, end: int, pairs: Entries, triples: Entries, quads: Entries) -> int:
    """The entry of the character at ``p``, or the negative code point of a four-byte sequence. No byte from ``end`` on
    is read: a sequence that is cut there has no meaning."""
    after = np.int64(data[Offset(p + 1)]) if p + 1 < end else 0
    entry = np.int64(pairs[Offset(np.int64(data[Offset(p)]) << 8 | after)])
    if entry != 0:
        return entry
    if triples.shape[0] != 0:
        if p + 2 < end:
            return np.int64(triples[Offset(np.int64(data[Offset(p + 1)]) << 8 | np.int64(data[Offset(p + 2)]))])
        return _MEANINGLESS
    if p + 3 < end and quads.shape[0] != 0:
        c = np.int64(data[Offset(p + 2)]) - 0x81
        d = np.int64(data[Offset(p + 3)]) - 0x30
        if 0 <= c < 126 and 0 <= d < 10:
            number = (np.int64(data[Offset(p)]) - 0x81) * 12600 + (after - 0x30) * 1260 + c * 10 + d
            if number < quads.shape[0]:
                return -np.int64(quads[Offset(number)])
            if _GB18030_ABOVE <= number < _GB18030_ABOVE + 0x100000:
                return -(number - _GB18030_ABOVE + 0x10000)
            return -_QUESTION
    return _MEANINGLESS


@njit
def convert_multi(
    data: Bytes, offsets: Offsets, pairs: Entries, triples: Entries, quads: Entries, starts: Offsets, out: Bytes
) -> int:
    """Converts texts in an East Asian character set, by its :class:`~cdc.decode.charsets.tables.MultiByteTables`."""
    at = np.int64(0)
    for row in range(offsets.shape[0] - 1):
        starts[row] = at
        p = np.int64(offsets[row])
        end = np.int64(offsets[row + 1])
        while p < end:
            if data[Offset(p)] < 0x80:
                out[Offset(at)] = data[Offset(p)]
                p += 1
                at += 1
                continue
            entry = next_multi(data, p, end, pairs, triples, quads)
            if entry >= 0:
                put_word(out, at, entry)
                if entry >> 24 == _TWO_TO_THREE:  # the most frequent: the next character need not wait for the table
                    p += 2
                    at += 3
                else:
                    p += entry >> 28
                    at += entry >> 24 & 15
            else:
                p += 4
                at = put_utf8(out, at, -entry)
    starts[offsets.shape[0] - 1] = at
    return at


# ---------------------------------------------------------------- UCS-2, UTF-16, UTF-32


@inlined
def unit(data: Bytes, p: int, kind: int) -> int:
    """The code unit of two bytes at ``p``."""
    if kind == UTF16LE:
        return np.int64(data[Offset(p)]) | np.int64(data[Offset(p + 1)]) << 8
    return np.int64(data[Offset(p)]) << 8 | np.int64(data[Offset(p + 1)])


@inlined
def next_wide(data: Bytes, p: int, end: int, kind: int) -> int:
    """The code point at ``p``, with the number of its bytes from bit 24 on; ``?`` for a surrogate without its partner,
    for an invalid code point, and for each byte of a cut one."""
    if kind == UTF32:
        if p + 4 > end or data[Offset(p)] != 0 or data[Offset(p + 1)] > 0x10:
            return _QUESTION | 1 << 24
        code = np.int64(data[Offset(p + 1)]) << 16 | np.int64(data[Offset(p + 2)]) << 8 | np.int64(data[Offset(p + 3)])
        return (_QUESTION if 0xD800 <= code < 0xE000 else code) | 4 << 24
    if p + 2 > end:
        return _QUESTION | 1 << 24
    code = unit(data, p, kind)
    if not 0xD800 <= code < 0xE000:
        return code | 2 << 24
    if kind == UCS2:
        return _QUESTION | 2 << 24
    if code < 0xDC00 and p + 4 <= end:
        low = unit(data, p + 2, kind)
        if 0xDC00 <= low < 0xE000:
            return (0x10000 + ((code - 0xD800) << 10) + low - 0xDC00) | 4 << 24
    return _QUESTION | 1 << 24


@njit
def convert_wide(data: Bytes, offsets: Offsets, kind: int, starts: Offsets, out: Bytes) -> int:
    """Converts texts in UCS2, UTF16, UTF16LE or UTF32; ``kind`` is one of these constants."""
    at = np.int64(0)
    for row in range(offsets.shape[0] - 1):
        starts[row] = at
        p = np.int64(offsets[row])
        end = np.int64(offsets[row + 1])
        while p < end:
            character = next_wide(data, p, end, kind)
            p += character >> 24
            at = put_utf8(out, at, character & 0xFFFFFF)
    starts[offsets.shape[0] - 1] = at
    return at
