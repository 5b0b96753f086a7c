"""Short texts, such as names and ENUM members, in any of the servers' character sets; a character at a time."""

from __future__ import annotations

from collections.abc import Iterator

from cdc.decode.charsets.multi_byte import (
    DEEPER,
    GB18030_ABOVE,
    MEANINGLESS,
    MULTI_BYTE,
    MultiByteTables,
    quad_number,
    tables,
)
from cdc.decode.charsets.single_byte import SINGLE_BYTE, characters

UTF8 = frozenset({"utf8mb4", "utf8mb3", "binary"})
WIDE = frozenset({"ucs2", "utf16", "utf16le", "utf32"})

LATIN1: tuple[str, ...] = characters("latin1")
"""The servers' latin1: cp1252, where the bytes that cp1252 leaves out (81, 8D, 8F, 90, 9D) are U+0081 and so on."""


def decode_text(raw: bytes, charset: str | None) -> str:
    """Decode a text as the server does for a client in utf8mb4; what has no meaning becomes ``?``.

    ``charset``: a name as :func:`~cdc.decode.charsets.collations.charset_of` gives it; ``binary`` is read as UTF-8.
    Raises LookupError for a character set that no server has, and UnicodeDecodeError for utf8mb4, utf8mb3 and binary
    that are not UTF-8, since a server refuses such names.
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
    """Each character of a text in an East Asian character set, and its bytes."""
    made = tables(charset)
    p = 0
    while p < len(raw):
        entry = int(made.pairs[int.from_bytes(raw[p : p + 2].ljust(2, b"\0"), "big")])
        character, taken = MEANINGLESS, 1
        if entry == DEEPER and len(made.quads) and len(raw) >= p + 4 and (number := quad_number(raw[p : p + 4])) >= 0:
            character, taken = _quad(number, made), 4
        elif entry == DEEPER and len(made.triples) and len(raw) >= p + 3:
            entry = int(made.triples[int.from_bytes(raw[p + 1 : p + 3], "big")])
        if entry != DEEPER:
            size, taken = entry >> 24 & 15, entry >> 28
            character = (entry & 0xFFFFFF).to_bytes(3, "little")[:size].decode()
        yield character, raw[p : p + taken]
        p += taken


def _quad(number: int, made: MultiByteTables) -> str:
    if number < len(made.quads):
        return chr(made.quads[number])
    above = number - GB18030_ABOVE
    return chr(0x10000 + above) if 0 <= above < 0x100000 else MEANINGLESS


def wide_units(raw: bytes, charset: str) -> Iterator[tuple[str, bytes]]:
    """Each character of a text in ucs2, utf16, utf16le or utf32, and its bytes."""
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
    """Half of a pair, which these two character sets do not have: a unit by itself."""
    return 0xD800 <= int.from_bytes(unit, "big") < 0xE000
