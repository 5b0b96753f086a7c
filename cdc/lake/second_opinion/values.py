"""Compares a value with the library's, and lists what it cannot read or is known to read wrongly.

Each entry of the list was seen on real servers: ``tests/servers/decode/test_mysql_replication.py`` shows the values,
and fails when a newer version of the library is right. Where the right value follows from the library's wrong one (YEAR
0 is 1900, the zero TIMESTAMP is 1970, BINARY loses trailing zeros), the value is compared.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import eq
from typing import Any, Literal

from pymysqlreplication.constants import NONE_SOURCE

from cdc.binlog.table_map import ColumnType
from cdc.decode.columns import BINARY, COMPRESSED, TEXTS, Column
from cdc.lake.second_opinion.library import BYTES, Json, LibraryColumn

Servers = Literal["MySQL", "MariaDB", "all"]
Scope = Literal["table", "row event", "column", "value"]


@dataclass(frozen=True)
class NotCompared:
    """Something that is not compared. ``table``: the library loses its place in the row, so that no column of such a
    table can be compared."""

    what: str
    servers: Servers
    scope: Scope
    reason: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


VECTOR = NotCompared("VECTOR", "MySQL", "table", "the library knows neither the type nor its metadata")
COMPRESSED_COLUMNS = NotCompared("COMPRESSED columns", "MariaDB", "table", "the library knows no such type")
HIRES_TIMES = NotCompared(
    "times in the storage of MariaDB 5.3", "MariaDB", "table", "the library reads them in another size"
)
OLD_TIMES = NotCompared(
    "TIMESTAMP, DATETIME and TIME in the storage before MySQL 5.6 and MariaDB 10.1",
    "all",
    "column",
    "the library does not read all values of that storage",
)
CHARSETS = NotCompared(
    "texts in big5, cp866, cp932, euckr, gb18030, sjis and other character sets",
    "all",
    "column",
    "Python's codec of that name, if there is one, differs from the server's character set",
)
FAULT = NotCompared(
    "rows that the library cannot read",
    "all",
    "row event",
    "it raises an error, as at the DATE 2024-02-30, which servers store if they are told to",
)
MEMBERS = NotCompared(
    "ENUM and SET whose members are not in UTF-8 or ASCII", "all", "column", "the library reads all members as UTF-8"
)
UNKNOWN_TYPE = NotCompared("other types", "all", "column", "no comparison is known for the type")
UNDECODABLE = NotCompared("columns that Towpath cannot decode", "all", "column", "there is no value of ours")
GENERATED = NotCompared(
    "generated columns", "MariaDB", "column", "11.8.9 does not log them in the rows of updates and deletes"
)
HIDDEN = NotCompared("columns that no statement shows", "all", "column", "Towpath does not deliver them")
JSON_VALUES = NotCompared(
    "JSON documents that hold decimals, dates, times, bits or bytes",
    "MySQL",
    "value",
    "the library does not tell such a value from a text, or loses a part of it",
)
JSON_FAULT = NotCompared("JSON documents that the library cannot read", "MySQL", "value", "it raises an error")
PARTIAL_JSON = NotCompared(
    "JSON documents in partial updates", "MySQL", "value", "the event has changes, of which the library reads the first"
)
NEGATIVE_TIME = NotCompared(
    "negative TIME with digits of a fraction", "all", "value", "the library gives the fraction the wrong sign"
)
LATE_TIMESTAMP = NotCompared(
    "TIMESTAMP after 2038-01-19", "MariaDB", "value", "the library reads the seconds with a sign"
)
BAD_BYTES = NotCompared(
    "texts with bytes that have no meaning in their character set", "all", "value", "Python's codec refuses them"
)

LEFT_OUT = (
    VECTOR, COMPRESSED_COLUMNS, HIRES_TIMES, FAULT, OLD_TIMES, CHARSETS, MEMBERS, UNKNOWN_TYPE,
    UNDECODABLE, GENERATED, HIDDEN, JSON_VALUES, JSON_FAULT, PARTIAL_JSON, NEGATIVE_TIME, LATE_TIMESTAMP, BAD_BYTES,
)  # fmt: skip
"""Everything that is left out; docs/how-to/verify.md shows it as a table."""

Outcome = Literal["different"] | NotCompared | None
"""``different``, the reason why the value is left out, or None if both are equal."""
Compare = Callable[[Any, Any], Outcome]

_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - the library's times have no zone
_UTF8 = ("utf8", "utf8mb3", "utf8mb4", "ascii")
_CODECS = {
    **dict.fromkeys(("utf8", "utf8mb3", "utf8mb4"), "utf-8"),
    **dict.fromkeys(("latin1", "cp1252"), "cp1252"),
    **dict.fromkeys(("koi8r", "koi8_r"), "koi8_r"),
    **dict.fromkeys(("ucs2", "utf16"), "utf-16-be"),
    "ascii": "ascii", "latin2": "iso8859-2", "latin5": "iso8859-9", "latin7": "iso8859-13", "utf16le": "utf-16-le",
    "utf32": "utf-32-be", "cp1250": "cp1250", "cp1251": "cp1251", "cp1257": "cp1257", "cp850": "cp850",
    "cp852": "cp852", "gbk": "gbk",
}  # fmt: skip
"""Python's codecs by the library's or the server's name of a character set, where both have the same characters."""
_OLD = frozenset({ColumnType.TIMESTAMP, ColumnType.DATETIME, ColumnType.TIME, ColumnType.NEWDATE})


def unreadable(columns: Sequence[Column]) -> tuple[str, NotCompared] | None:
    """Returns the first column for which no column of its table can be compared, with the reason; None if the library
    can read the table."""
    for column in columns:
        if column.type == ColumnType.VECTOR:
            return column.name, VECTOR
        if column.type in COMPRESSED:
            return column.name, COMPRESSED_COLUMNS
        if column.type in _OLD and "mariadb-5.3" in column.column_type:
            return column.name, HIRES_TIMES
    return None


def comparison(column: Column, theirs: LibraryColumn) -> Compare | NotCompared:
    """Returns how the values of a column are compared, or why they are left out. ``column`` is as our decoder knows
    it."""
    if column.type in _OLD:
        return OLD_TIMES
    if column.type in TEXTS:
        return _text_comparison(column, theirs)
    if column.type in (ColumnType.ENUM, ColumnType.SET):
        charset = _charset(column, theirs)
        if charset not in _UTF8 and not (charset in _CODECS and _are_ascii(theirs)):
            return MEMBERS
        return _same if column.type == ColumnType.ENUM else lambda ours, value: _set(ours, value, theirs.members)
    if column.type == ColumnType.TIME2:
        return lambda ours, value: _time(ours, value, theirs.digits)
    return _BY_TYPE.get(column.type, UNKNOWN_TYPE)


def _charset(column: Column, theirs: LibraryColumn) -> str:
    """The character set; ours for a collation that the library does not know, as MariaDB's newer ones."""
    return theirs.charset or column.charset or ""


def outcome(compare: Compare, ours: Any, theirs: Any, none: str | None) -> Outcome:
    """Compares two values. ``none`` is the library's reason for None, if its value is None."""
    if theirs is not None:
        return compare(ours, theirs)
    if none == NONE_SOURCE.EMPTY_SET:
        return None if ours == "" else "different"
    return None if ours is None else "different"


def _equal(is_equal: bool) -> Outcome:
    return None if is_equal else "different"


def _same(ours: Any, theirs: Any) -> Outcome:
    return None if ours == theirs else "different"


def _float(ours: Any, theirs: Any) -> Outcome:
    return _equal(repr(ours) == repr(theirs))  # -0.0 is not 0.0, and nan is nan


def _decimal(ours: Any, theirs: Any) -> Outcome:
    if ours is None:
        return "different"
    value = Decimal(ours)
    return _equal(value == theirs and value.as_tuple().exponent == theirs.as_tuple().exponent)


def _bit(ours: Any, theirs: Any) -> Outcome:
    return _equal(ours is not None and int(ours) == int(theirs, 2))


def _year(ours: Any, theirs: Any) -> Outcome:
    return _equal(ours == (0 if theirs == 1900 else theirs))


def _timestamp(ours: Any, theirs: Any) -> Outcome:
    if theirs < _EPOCH:
        return LATE_TIMESTAMP
    if theirs == _EPOCH:
        return _equal(ours is None)
    return _equal(ours is not None and ours.replace(tzinfo=None) == theirs)


def _time(ours: Any, theirs: Any, digits: int) -> Outcome:
    negative = theirs < datetime.timedelta(0)
    if negative and digits:
        return NEGATIVE_TIME
    size = abs(theirs)
    seconds = size.days * 86400 + size.seconds
    fraction = f".{size.microseconds:06d}"[: digits + 1] if digits else ""
    text = f"{'-' if negative else ''}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}"
    return _equal(ours == text)


def _set(ours: Any, theirs: Any, members: Sequence[str]) -> Outcome:
    return _equal(ours == ",".join(member for member in members if member in theirs))


def _are_ascii(theirs: LibraryColumn) -> bool:
    """Whether each member is a text of ASCII characters; the library gives one that is not UTF-8 as an empty text."""
    members = theirs.members[1:] if theirs.members[:1] == ("",) else theirs.members
    return all(member and member.isascii() and "\0" not in member for member in members)


# --- texts and bytes


def _text_comparison(column: Column, theirs: LibraryColumn) -> Compare | NotCompared:
    if theirs.charset == "binary" or column.charset == BINARY:
        size, equal = _DECLARED.get(column.declared, (theirs.length if column.type == ColumnType.STRING else 0, eq))
        return lambda ours, value: _equal(ours is not None and equal(ours, _bytes(value).ljust(size, b"\0")))
    codec = _CODECS.get(_charset(column, theirs))
    return CHARSETS if codec is None else lambda ours, value: _text(ours, value, codec)


def _bytes(value: Any) -> bytes:
    """The bytes of a text, which the library hands over one character each."""
    return value.encode(BYTES) if isinstance(value, str) else bytes(value)


def _text(ours: Any, theirs: Any, codec: str) -> Outcome:
    try:
        return _equal(ours == _bytes(theirs).decode(codec))
    except UnicodeDecodeError:
        return BAD_BYTES


def _is_vector(ours: Any, value: bytes) -> bool:
    return bool(list(struct.unpack(f"<{len(value) // 4}f", value)) == ours)


_DECLARED: dict[str | None, tuple[int, Callable[[Any, bytes], bool]]] = {
    "uuid": (16, lambda ours, value: uuid.UUID(bytes=value) == uuid.UUID(ours)),
    "inet4": (4, lambda ours, value: ipaddress.IPv4Address(value) == ipaddress.IPv4Address(ours)),
    "inet6": (16, lambda ours, value: ipaddress.IPv6Address(value) == ipaddress.IPv6Address(ours)),
    "vector": (0, _is_vector),
}
"""MariaDB's types that are bytes in the binlog: their size, and the comparison of our value with the bytes."""


# --- JSON


def _json(ours: Any, theirs: Json) -> Outcome:
    if theirs.is_partial:
        return PARTIAL_JSON
    if theirs.fault is not None:
        return JSON_FAULT
    try:
        document = _plain(theirs.value)
    except (TypeError, UnicodeDecodeError):
        return JSON_VALUES
    if ours is None:
        return "different"
    return _equal(_alike(json.loads(ours), document))


def _plain(value: Any) -> Any:
    """The library's document with texts in place of bytes. Raises TypeError for values that are lossy, and for texts
    that it may have made of bits or bytes."""
    if isinstance(value, dict):
        return {key.decode(): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode()
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise TypeError(type(value).__name__)


def _alike(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, dict):
        return isinstance(ours, dict) and ours.keys() == theirs.keys() and all(_alike(ours[k], theirs[k]) for k in ours)
    if isinstance(theirs, list):
        return isinstance(ours, list) and len(ours) == len(theirs) and all(map(_alike, ours, theirs))
    return isinstance(ours, bool) == isinstance(theirs, bool) and bool(ours == theirs)


_BY_TYPE: dict[int, Compare] = {
    **dict.fromkeys((ColumnType.TINY, ColumnType.SHORT, ColumnType.INT24, ColumnType.LONG), _same),
    ColumnType.LONGLONG: _same,
    ColumnType.FLOAT: _float,
    ColumnType.DOUBLE: _float,
    ColumnType.NEWDECIMAL: _decimal,
    ColumnType.BIT: _bit,
    ColumnType.YEAR: _year,
    ColumnType.TIMESTAMP2: _timestamp,
    ColumnType.DATE: _same,
    ColumnType.DATETIME2: _same,
    ColumnType.JSON: _json,
    ColumnType.GEOMETRY: _same,
}
