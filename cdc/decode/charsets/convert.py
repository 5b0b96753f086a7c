"""Conversions of text to UTF-8: columns by compiled loops, names and ENUM members a character at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.base.errors import UnsupportedError
from cdc.decode.charsets import kernels
from cdc.decode.charsets.tables import (
    DEEPER,
    GB18030_ABOVE,
    MEANINGLESS,
    MULTI_BYTE,
    SINGLE_BYTE,
    MultiByteTables,
    characters,
    entry,
    quad_number,
    tables,
)
from cdc.decode.conversions.base import MAX_TEXT_BYTES, BadValueError, Conversion

UTF8 = frozenset({"utf8mb4", "utf8mb3", "binary"})
WIDE = frozenset({"ucs2", "utf16", "utf16le", "utf32"})

LATIN1: tuple[str, ...] = characters("latin1")
"""The servers' latin1: cp1252, in which the bytes that cp1252 leaves out (81, 8D, 8F, 90, 9D) are U+0081 and so on."""

_COPIED = frozenset({"utf8mb4", "utf8mb3"})
_NOT_ASCII = frozenset({"swe7"})
_KINDS = {"ucs2": kernels.UCS2, "utf16": kernels.UTF16, "utf16le": kernels.UTF16LE, "utf32": kernels.UTF32}
_STRAY = re.compile("[\udc80-\udcff]")


# ---------------------------------------------------------------- columns


def text_conversion(charset: str) -> Conversion | None:
    """The conversion from ``binary`` to ``string`` for a character set; None for utf8mb4 and utf8mb3, whose bytes are
    UTF-8 as they are.

    The conversion gives the characters that the server sends to a client in utf8mb4, and ``?`` if the server sends
    ``?`` or something that is not UTF-8. This holds for ascii, too: servers store its bytes from 80 on, and show them
    as ``?``. The conversion raises UnsupportedError if the result is larger than an array can be.

    ``charset``: a name that :func:`~cdc.decode.charsets.tables.charset_of` returns. Raises LookupError for another.
    """
    if charset in _COPIED:
        return None
    if charset not in SINGLE_BYTE | MULTI_BYTE | _KINDS.keys():
        raise LookupError(charset)

    def convert(array: pa.Array) -> pa.Array:
        return _convert(array, charset)

    return convert


def warm_up() -> None:
    """Loads or compiles all kernels of this package."""
    for charset in ("latin1", "gbk", "utf16"):
        _convert(pa.array([b"\x80"], pa.binary()), charset)


@cache
def single_entries(charset: str) -> npt.NDArray[np.uint32]:
    """(256,): the entries of a character set's bytes, as in :class:`MultiByteTables`."""
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
        return array.view(pa.string())  # ASCII, as in most columns: the same bytes
    # The validity bitmap is reused from the byte in which it begins, so a few texts come before the first one.
    ahead = array.offset % 8
    starts = np.zeros(ahead + len(array) + 1, dtype=np.int32)
    out = np.empty(kernels.GROWTH * (last - first) + kernels.SLACK, dtype=np.uint8)
    if charset in SINGLE_BYTE:
        size = kernels.convert_single(data, offsets, single_entries(charset), starts[ahead:], out)
    elif charset in MULTI_BYTE:
        multi_byte = tables(charset)
        size = kernels.convert_multi(
            data, offsets, multi_byte.pairs, multi_byte.triples, multi_byte.quads, starts[ahead:], out
        )
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


# ---------------------------------------------------------------- columns in UTF-8 with bytes that are not


def sound_utf8(array: pa.Array) -> pa.Array:
    """Replaces each byte that is not part of a character by ``?`` in a ``string`` array of copied bytes; returns the
    same array if there is none.

    MySQL 5.6 and MariaDB store halves of surrogate pairs in utf8mb3 and utf8mb4 and send them unchanged. That is not
    UTF-8, on which the readers of the array rely. The halves become ``?``, as the servers show bytes without a meaning.
    """
    try:
        array.validate(full=True)
        return array
    except pa.ArrowInvalid:
        return utf8_text(array.cast(pa.binary()))


def utf8_text(raw: pa.Array) -> pa.Array:
    """Does what :func:`sound_utf8` does, as a conversion of ``binary``."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else _repaired(value) for value in raw.to_pylist()]
        return pa.array(texts, pa.string())


def _repaired(value: bytes) -> str:
    return _STRAY.sub("?", value.decode("utf-8", "surrogateescape"))


# ---------------------------------------------------------------- columns of a key: no two values may become one


def exact_text(charset: str, conversion: Conversion | None) -> Conversion:
    """The conversion of a character set for columns of a key. It raises BadValueError for a text with bytes that have
    no meaning in the character set, because they all become ``?``, so that two keys would be equal. ``conversion``: the
    plain one, None for UTF-8."""
    convert = utf8_text if conversion is None else conversion

    def exact(raw: pa.Array) -> pa.Array:
        texts = convert(raw)
        for row in pc.indices_nonzero(pc.match_substring(texts, MEANINGLESS).fill_null(False)).to_pylist():
            if has_meaningless(raw[row].as_py(), charset):
                raise BadValueError(row, "bytes without a meaning", lost_bytes=True)
        return texts

    return exact


def has_meaningless(raw: bytes, charset: str) -> bool:
    """Whether some bytes of the text are not part of a character of the character set."""
    if charset in UTF8:
        try:
            raw.decode()
        except UnicodeDecodeError:
            return True
        return False
    if charset in SINGLE_BYTE:
        table = characters(charset)
        return any(table[byte] == MEANINGLESS and byte != ord(MEANINGLESS) for byte in raw)
    if charset in MULTI_BYTE:
        return any(character == MEANINGLESS and unit != b"?" for character, unit in multi_units(raw, charset))
    return any(character == MEANINGLESS and unit.strip(b"\0") != b"?" for character, unit in wide_units(raw, charset))


# ---------------------------------------------------------------- short texts, such as names and ENUM members


def decode_text(raw: bytes, charset: str | None) -> str:
    """Decodes a text as the server does for a client in utf8mb4; bytes without a meaning become ``?``.

    ``charset``: a name that :func:`~cdc.decode.charsets.tables.charset_of` returns; ``binary`` is read as UTF-8.
    Raises LookupError for an unknown character set, and UnicodeDecodeError for utf8mb4, utf8mb3 and binary that are not
    UTF-8, because servers refuse such names.
    """
    if charset in UTF8:
        return raw.decode()
    if charset in SINGLE_BYTE:
        table = characters(charset)
        return "".join(table[byte] for byte in raw)
    if charset in MULTI_BYTE:
        return "".join(character for character, _ in multi_units(raw, charset))
    if charset in WIDE:
        return "".join(character for character, _ in wide_units(raw, charset))
    raise LookupError(charset)


def multi_units(raw: bytes, charset: str) -> Iterator[tuple[str, bytes]]:
    """Yields each character of a text in an East Asian character set, and its bytes."""
    multi_byte = tables(charset)
    p = 0
    while p < len(raw):
        entry = int(multi_byte.pairs[int.from_bytes(raw[p : p + 2].ljust(2, b"\0"), "big")])
        character, taken = MEANINGLESS, 1
        if (
            entry == DEEPER
            and len(multi_byte.quads)
            and len(raw) >= p + 4
            and (number := quad_number(raw[p : p + 4])) >= 0
        ):
            character, taken = _quad(number, multi_byte), 4
        elif entry == DEEPER and len(multi_byte.triples) and len(raw) >= p + 3:
            entry = int(multi_byte.triples[int.from_bytes(raw[p + 1 : p + 3], "big")])
        if entry != DEEPER:
            size, taken = entry >> 24 & 15, entry >> 28
            character = (entry & 0xFFFFFF).to_bytes(3, "little")[:size].decode()
        yield character, raw[p : p + taken]
        p += taken


def _quad(number: int, multi_byte: MultiByteTables) -> str:
    if number < len(multi_byte.quads):
        return chr(multi_byte.quads[number])
    above = number - GB18030_ABOVE
    return chr(0x10000 + above) if 0 <= above < 0x100000 else MEANINGLESS


def wide_units(raw: bytes, charset: str) -> Iterator[tuple[str, bytes]]:
    """Yields each character of a text in ucs2, utf16, utf16le or utf32, and its bytes."""
    codec = {"utf16le": "utf-16-le", "utf32": "utf-32-be"}.get(charset, "utf-16-be")
    width = 4 if charset == "utf32" else 2
    p = 0
    while p < len(raw):
        for size in (width,) if charset in ("ucs2", "utf32") else (2, 4):
            try:
                character = raw[p : p + size].decode(codec)
            except UnicodeDecodeError:
                continue
            yield character, raw[p : p + size]
            p += size
            break
        else:
            lone = len(raw) >= p + width and charset in ("ucs2", "utf32") and _surrogate(raw[p : p + width])
            taken = width if lone else 1
            yield MEANINGLESS, raw[p : p + taken]
            p += taken


def _surrogate(unit: bytes) -> bool:
    """Whether a unit is half of a surrogate pair, which ucs2 and utf32 do not have."""
    return 0xD800 <= int.from_bytes(unit, "big") < 0xE000
