"""Edge values of texts, ENUM and SET in every character set, built from the set's own characters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa
import pymysql

from tests.support.type_matrix.column import NUMBERED, TEXT, Column

Connection: TypeAlias = "pymysql.connections.Connection[Any]"

_CANDIDATES = "".join(
    chr(point) for point in (*range(0xD800), *range(0xE000, 0x10000), *range(0x10000, 0x110000, 509), 0x1F600, 0x10FFFF)
)
_PIECE = 64000
_TEXT_BYTES = 65535
_SPECIAL = "\t\n\r\x1a\"'\\`%;,\x00 "


@dataclass(frozen=True)
class Repertoire:
    """The characters of a character set, as the server reports them."""

    charset: str
    width: int
    """The maximal bytes per character."""
    text: str
    """Every character of the set below U+10000, and a sample of the others."""
    raw: bytes
    """Every code of one or two bytes, or of three that begin with 8F, that the server accepts, including unassigned
    codes and duplicates. Empty for the Unicode character sets."""

    @property
    def is_wide(self) -> bool:
        """Whether no character takes a single byte."""
        return self.charset in ("ucs2", "utf16", "utf16le", "utf32")

    def literal(self, text: str) -> str:
        """Returns a SQL literal."""
        return f"'{pymysql.converters.escape_string(text)}'"

    def below_10000(self) -> Repertoire:
        """Returns the set without characters above U+FFFF. In members of ENUM and SET, MySQL 5.6 shows those as question
        marks in information_schema, the only source of members."""
        return replace(self, text="".join(c for c in self.text if c <= "\uffff"))

    def spread(self, count: int) -> str:
        """Returns ``count`` characters spread over the set."""
        step = max(1, len(self.text) // count)
        return self.text[::step][:count]

    def upto(self, size_bytes: int) -> str:
        """Returns as many characters as fit, spread over the set."""
        return self.spread(size_bytes // self.width)


def repertoires(connection: Connection, charsets: dict[str, int]) -> list[Repertoire]:
    """Asks the server, for each character set (with its maximal bytes per character), which characters survive the
    conversion to it and back, and which bytes it accepts."""
    with connection.cursor() as cursor:
        _write_codes(cursor)
        repertoires_read = [
            Repertoire(name, width, _text(cursor, name), _codes(cursor, name, width))
            for name, width in charsets.items()
        ]
        cursor.execute("DROP TEMPORARY TABLE codes")
        return repertoires_read


def _text(cursor: Any, charset: str) -> str:
    kept: list[str] = []
    for at in range(0, len(_CANDIDATES), _PIECE):
        piece = _CANDIDATES[at : at + _PIECE]
        cursor.execute(f"SELECT CONVERT(CONVERT(%s USING {charset}) USING utf8mb4)", (piece,))
        back = cursor.fetchall()[0][0]
        kept += [sent for sent, received in zip(piece, back, strict=True) if sent == received]
    return "".join(kept)


def _write_codes(cursor: Any) -> None:
    codes = [bytes([byte]) for byte in range(256)]
    codes += [bytes([lead, trail]) for lead in range(0x80, 256) for trail in range(0x20, 256)]
    codes += [bytes([0x8F, lead, trail]) for lead in range(0xA0, 256) for trail in range(0xA0, 256)]
    cursor.execute("CREATE TEMPORARY TABLE codes (code VARBINARY(3)) ENGINE=MyISAM")
    values = ",".join(f"(x'{code.hex()}')" for code in codes)
    cursor.execute(f"INSERT INTO codes VALUES {values}")


def _codes(cursor: Any, charset: str, width: int) -> bytes:
    if charset.startswith(("utf", "ucs")) or charset == "gb18030":
        return b""
    # Each code twice, since some lead bytes pass if nothing follows. Rejected codes are truncated or become "?".
    cursor.execute(
        f"CREATE TEMPORARY TABLE taken (code VARBINARY(3), v VARCHAR(6) CHARACTER SET {charset}) ENGINE=MyISAM"
    )
    cursor.execute(f"INSERT IGNORE INTO taken SELECT code, CONCAT(code, code) FROM codes WHERE LENGTH(code) <= {width}")
    cursor.execute(
        "SELECT code FROM taken WHERE CAST(v AS BINARY) = CONCAT(code, code) AND CHAR_LENGTH(v) = 2"
        " ORDER BY LENGTH(code), code"
    )
    taken = [bytes(row[0]) for row in cursor.fetchall()]
    cursor.execute("DROP TEMPORARY TABLE taken")
    return b"".join(taken)


def chars(repertoire: Repertoire) -> list[Column]:
    return [_column(repertoire, "CHAR", "CHAR(40)", 40, 40 * repertoire.width)]


def varchars(repertoire: Repertoire) -> list[Column]:
    """Columns whose length takes one byte, and two."""
    return [
        _column(repertoire, "VARCHAR", "VARCHAR(20)", 20, 20 * repertoire.width),
        _column(repertoire, "VARCHAR", "VARCHAR(300)", 300, 300 * repertoire.width),
    ]


def long_texts(repertoire: Repertoire, name: str) -> list[Column]:
    """TINYTEXT, TEXT, MEDIUMTEXT, LONGTEXT. A value of the longer two holds the whole character set."""
    most = {"TINYTEXT": 255, "TEXT": _TEXT_BYTES}.get(name)
    return [_column(repertoire, name, name, None if most is None else most // repertoire.width, 10)]


def _column(repertoire: Repertoire, name: str, sql: str, capacity: int | None, size_bytes: int) -> Column:
    """``capacity`` is in characters; None if the limit does not matter."""
    few = min(capacity or 60, 60)
    special = "".join(character for character in _SPECIAL if character in repertoire.text)
    first = repertoire.spread(1)
    values = [
        repertoire.literal(""),
        repertoire.literal(repertoire.spread(few)),
        repertoire.literal(repertoire.text[-few:]),
        repertoire.literal(repertoire.text[:few]),
    ]
    values += [
        repertoire.literal(f" {repertoire.text[-1:]} "),
        repertoire.literal(special[:few]),
        repertoire.literal(first),
    ]
    # Without a limit: more than 64 KiB.
    values.append(f"REPEAT({repertoire.literal(repertoire.text[-1:])}, {capacity or 140000 // repertoire.width})")
    if capacity is None:
        values += (
            [f"_{repertoire.charset} x'{repertoire.raw.hex()}'"]
            if repertoire.raw
            else [repertoire.literal(repertoire.text)]
        )
    elif capacity >= 255:
        values.append(repertoire.literal(repertoire.spread(capacity)))
        values += (
            [f"_{repertoire.charset} x'{repertoire.raw[-capacity:].hex()}'"]
            if repertoire.raw and repertoire.width == 1
            else []
        )
    return Column(
        name,
        f"{sql} CHARACTER SET {repertoire.charset}",
        tuple(values),
        pa.string(),
        "text",
        select=TEXT,
        charset=repertoire.charset,
        size_bytes=size_bytes,
    )


def enums(repertoire: Repertoire) -> list[Column]:
    """Members built from the character set's own letters; values are chosen by member number."""
    members = _members(repertoire, "enum")
    return [_members_column(repertoire, "ENUM", members, tuple(str(number + 1) for number in range(len(members))))]


def sets(repertoire: Repertoire) -> list[Column]:
    members = _members(repertoire, "set")
    count = len(members)
    numbers = sorted({0, (1 << count) - 1, 5, 1 << (count - 1), *(1 << number for number in range(count))})
    return [_members_column(repertoire, "SET", members, tuple(str(number) for number in numbers))]


def garbled(column: Column) -> Column:
    """A SET in a character set whose comma has several bytes. MySQL 5.6 writes a comma of one byte between members, so
    that SELECT prints invalid text. The members are compared as SELECT prints each alone."""
    note = "MySQL 5.6 prints SETs in ucs2, utf16, utf16le and utf32 with broken commas: compared there member by member"
    return replace(column, select=NUMBERED, form="members", note=note)


def _members_column(repertoire: Repertoire, name: str, members: list[str], values: tuple[str, ...]) -> Column:
    listed = ",".join(repertoire.literal(member) for member in members)
    return Column(
        name, f"{name}({listed}) CHARACTER SET {repertoire.charset}", values, pa.string(), "text", select=TEXT,
        charset=repertoire.charset,
    )  # fmt: skip


def _members(repertoire: Repertoire, name: str) -> list[str]:
    """Returns members that differ in every collation, because they begin with different digits."""
    letters = [c for c in repertoire.spread(400) if c.isprintable() and c.isalpha()]
    letters += [c for c in reversed(repertoire.text) if c.isprintable() and c.isalpha()][:8]
    members = [f"{number}{''.join(letters[number * 5 : number * 5 + 5])}" for number in range(6)]
    return [*members, f"7{''.join(letters[-8:])}", "8 it''s" if name == "enum" else "8 (a)"]


def sizes_of_enum(repertoire: Repertoire) -> list[Column]:
    """ENUMs stored in one and two bytes, with the empty string that stands for an invalid value."""
    columns = []
    for count in (1, 2, 255, 256, 300):
        members = [f"m{number}" for number in range(count)]
        values = tuple(
            str(number) for number in sorted({1, 2, count // 2 + 1, min(count, 255), count}) if number <= count
        )
        columns.append(_members_column(repertoire, "ENUM", members, values))
    refused = _members_column(repertoire, "ENUM", ["a", "b"], ("1", "'nothing like it'", "2"))
    return [*columns, replace(refused, group=FEATURES)]


def sizes_of_set(repertoire: Repertoire) -> list[Column]:
    """SETs stored in one to four bytes, and eight."""
    columns = []
    for count in (1, 2, 7, 8, 9, 16, 17, 24, 25, 32, 33, 63, 64):
        members = [f"m{number}" for number in range(count)]
        every = (1 << count) - 1
        numbers = sorted({0, 1, every, 1 << (count - 1), every & 0xAAAAAAAAAAAAAAAA})
        columns.append(_members_column(repertoire, "SET", members, tuple(str(number) for number in numbers)))
    return columns


FEATURES = "features"
"""Columns of this group are written without strict mode, and an update changes the key."""


def longest(repertoire: Repertoire) -> list[Column]:
    """The longest CHAR, whose length in bytes exceeds one byte in most character sets; and the longest VARCHAR, for a
    few character sets only, because it needs a table for itself."""
    columns = [_column(repertoire, "CHAR", "CHAR(255)", 255, 255 * repertoire.width)]
    if repertoire.charset in ("latin1", "utf8mb4", "sjis", "utf16le"):
        most = (_TEXT_BYTES - 100) // repertoire.width
        columns.append(_column(repertoire, "VARCHAR", f"VARCHAR({most})", most, most * repertoire.width))
    return columns


BY_CHARSET: dict[str, Callable[[Repertoire], list[Column]]] = {
    "char": chars,
    "varchar": varchars,
    "tinytext": lambda repertoire: long_texts(repertoire, "TINYTEXT"),
    "text": lambda repertoire: long_texts(repertoire, "TEXT"),
    "mediumtext": lambda repertoire: long_texts(repertoire, "MEDIUMTEXT"),
    "longtext": lambda repertoire: long_texts(repertoire, "LONGTEXT"),
    "enum": enums,
    "set": sets,
}
