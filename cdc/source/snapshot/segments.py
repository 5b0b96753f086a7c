"""Borders: splits a table into ranges of keys of similar size, by a few quick questions to the server.

A border is found by bisection. A candidate between two keys is computed, the server gives the next key that exists, and
EXPLAIN estimates the rows on either side; each is one dive into the index. Borders need not be good for a snapshot to
be right: they only decide how evenly connections are busy. What cannot be computed (addresses, odd character sets) just
gives fewer of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_FLOOR, Decimal
from itertools import pairwise

from cdc.binlog.sql.schemas import ColumnSchema
from cdc.decode.charsets.convert import decode_text
from cdc.decode.charsets.tables import charset_by_name
from cdc.source.connection import query, quoted
from cdc.source.server import Connection, server_version
from cdc.source.snapshot.keys import Key, PagingKey, literal
from cdc.source.snapshot.records import Segment
from cdc.source.snapshot.result_set import ResultSet
from cdc.source.snapshot.table import where

_MOST_PROBES = 512
_MOST_STEPS = 70
_LARGEST_CHARACTER = 0xFFFD


@dataclass
class _Range:
    """A range of keys ``(after, upto]``; the outer ones are open, since rows may come before and behind them."""

    after: Key
    upto: Key
    rows: int
    is_final: bool = False
    """Whether no border was found in it."""


class Borders:
    """Finds the borders of one table."""

    def __init__(self, conn: Connection, quoted_table: str, paging: PagingKey) -> None:
        self._conn = conn
        self._table = f"{quoted_table} FORCE INDEX ({quoted(paging.index)})"
        # MySQL does not look into an index that it is forced to use: it would estimate one row.
        self._counted = f"{quoted_table} USE INDEX ({quoted(paging.index)})"
        self._paging = paging
        self._probes = 0
        mariadb = "mariadb" in server_version(conn).lower()
        self._explain = "EXPLAIN" if mariadb else "EXPLAIN FORMAT=TRADITIONAL"

    def segments(self, count: int) -> tuple[Segment, ...]:
        """Returns at most ``count`` segments that cover the whole table."""
        first, last = self._edge(""), self._edge(" DESC")
        if count < 2 or first is None or last is None or first == last:
            return (Segment(),)
        ranges = [_Range(first, last, self._rows(first, last))]
        while len(ranges) < count and self._probes < _MOST_PROBES:
            largest = max(
                (candidate for candidate in ranges if not candidate.is_final),
                key=lambda key_range: key_range.rows,
                default=None,
            )
            if largest is None or largest.rows < 2:
                break
            border = self._between(largest)
            if border is None:
                largest.is_final = True
                continue
            at = ranges.index(largest)
            ranges[at : at + 1] = [
                _Range(largest.after, border, self._rows(largest.after, border)),
                _Range(border, largest.upto, self._rows(border, largest.upto)),
            ]
        ranges = _joined(ranges, count)
        ends: list[Key | None] = [None, *(key_range.upto for key_range in ranges[:-1]), None]
        return tuple(Segment(after=a, upto=b) for a, b in pairwise(ends))

    def _edge(self, direction: str) -> Key | None:
        order = ", ".join(f"{quoted(name)}{direction}" for name in self._paging.names)
        return self._key(f"ORDER BY {order} LIMIT 1")

    def _key(self, rest: str) -> Key | None:
        names = ", ".join(map(quoted, self._paging.names))
        text = f"SELECT {names} FROM {self._table} {rest}"  # noqa: S608 - quoted names and literals
        rows = [
            tuple((block.value(column, 0) or b"").hex() for column in range(len(self._paging.names)))
            for block in ResultSet(self._conn, text)
        ]
        return rows[0] if rows else None

    def _rows(self, after: Key, upto: Key) -> int:
        self._probes += 1
        condition = where(self._paging, after, upto)
        text = f"{self._explain} SELECT 1 FROM {self._counted}{condition}"  # noqa: S608 - quoted names and literals
        return int(query(self._conn, text)[0].get("rows") or 0)

    def _between(self, key_range: _Range) -> Key | None:
        """Returns a key that exists and splits the range, or None."""
        at = next((i for i, (a, b) in enumerate(zip(key_range.after, key_range.upto, strict=True)) if a != b), None)
        if at is None:
            return None
        column = self._paging.columns[at]
        low, high = value_of(column, key_range.after[at]), value_of(column, key_range.upto[at])
        for _ in range(_MOST_STEPS):
            guess = middle(low, high)
            if guess is None or guess in (low, high):
                return self._inside(key_range, at)
            border = self._inner(key_range, at, key_range.after, f"{quoted(column.name)} >= {text_of(column, guess)}")
            if border is not None:
                return border
            high = guess  # no key lies between the guess and the range's end
        return None

    def _inside(self, key_range: _Range, at: int) -> Key | None:
        """Returns a border in a range that no value of column ``at`` splits: by the columns behind it."""
        if at + 1 == len(self._paging.columns):
            return None
        end = self._inner(key_range, at + 1, key_range.after, "TRUE", " DESC")
        if end is not None:
            return self._between(_Range(key_range.after, end, 0)) or end
        begin = self._inner(key_range, at + 1, key_range.upto, "TRUE")
        return None if begin is None else self._between(_Range(begin, key_range.upto, 0)) or begin

    def _inner(self, key_range: _Range, count: int, like: Key, condition: str, direction: str = "") -> Key | None:
        """Returns the first (or last) key of a range that has the first ``count`` values of ``like`` and fulfils a
        condition; None if that is an end of the range."""
        self._probes += 1
        same = "".join(f"{quoted(c.name)} = {value} AND " for c, value in _literals(self._paging, like, count))
        order = ", ".join(f"{quoted(name)}{direction}" for name in self._paging.names)
        rest = f"{where(self._paging, key_range.after, key_range.upto)} AND {same}{condition} ORDER BY {order} LIMIT 1"
        border = self._key(rest)
        return None if border in (key_range.after, key_range.upto) else border


def _literals(paging: PagingKey, key: Key, count: int) -> list[tuple[ColumnSchema, str]]:
    return [(c, literal(c, value)) for c, value in list(zip(paging.columns, key, strict=True))[:count]]


def _joined(ranges: list[_Range], count: int) -> list[_Range]:
    """Joins neighbours while together they are no larger than a fair share: bisection leaves slivers."""
    fair = sum(key_range.rows for key_range in ranges) / count
    joined: list[_Range] = []
    for byte_range in ranges:
        if joined and joined[-1].rows + byte_range.rows <= fair:
            joined[-1] = _Range(joined[-1].after, byte_range.upto, joined[-1].rows + byte_range.rows)
        else:
            joined.append(byte_range)
    return joined


# ---------------------------------------------------------------- candidates

_Value = Decimal | str | bytes | datetime


def value_of(column: ColumnSchema, key: str) -> _Value | None:
    """Returns a key's value as something to compute with; None if nothing can be computed."""
    raw, kind = bytes.fromhex(key), column.data_type
    try:
        if kind in ("char", "varchar") and column.charset not in (None, "binary"):
            return decode_text(raw, charset_by_name(column.charset or ""))
        if kind in ("char", "varchar", "binary", "varbinary"):
            return raw
        if kind in ("date", "datetime", "timestamp"):
            return datetime.fromisoformat(raw.decode().replace("0000-00-00", "0001-01-01"))
        return None if kind in ("uuid", "inet4", "inet6", "time") else Decimal(raw.decode())
    except (ValueError, ArithmeticError, LookupError):
        return None


def middle(low: _Value | None, high: _Value | None) -> _Value | None:
    """Returns a value about halfway from one to the other. The server's order may be another one; then it lies
    elsewhere, and serves as well or not at all."""
    if isinstance(low, Decimal) and isinstance(high, Decimal):
        return ((low + high) / 2).to_integral_value(ROUND_FLOOR)
    if isinstance(low, str) and isinstance(high, str):
        return _text_between(low, high)
    if isinstance(low, bytes) and isinstance(high, bytes):
        return _bytes_between(low, high)
    if isinstance(low, datetime) and isinstance(high, datetime):
        return low + timedelta(seconds=int((high - low).total_seconds() / 2))
    return None


def text_of(column: ColumnSchema, value: _Value) -> str:
    """Returns a value of :func:`middle` as SQL, in the column's type and collation."""
    if isinstance(value, str):
        text = f"CONVERT(_utf8mb4 x'{value.encode().hex()}' USING {column.charset})"
        return f"{text} COLLATE {column.collation}"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, datetime):
        return f"'{value:%Y-%m-%d}'" if column.data_type == "date" else f"'{value.isoformat(' ', 'seconds')}'"
    return format(value, "f")


def _bytes_between(low: bytes, high: bytes) -> bytes:
    size = max(len(low), len(high)) + 1
    a, b = int.from_bytes(low.ljust(size, b"\0"), "big"), int.from_bytes(high.ljust(size, b"\0"), "big")
    return ((a + b) // 2).to_bytes(size, "big").rstrip(b"\0")


def _text_between(low: str, high: str) -> str:
    shared = 0
    while shared < min(len(low), len(high)) and low[shared] == high[shared]:
        shared += 1
    a = ord(low[shared]) if shared < len(low) else 0x20
    b = ord(high[shared]) if shared < len(high) else 0x20
    a, b = min(a, b), max(a, b)
    if b - a > 1:
        return low[:shared] + _character((a + b) // 2)
    # Neighbouring characters: the border lies behind the first one.
    follow = ord(low[shared + 1]) if shared + 1 < len(low) else 0x20
    return low[: shared + 1] + _character(follow + max(1, (0x7B - follow) // 2))


def _character(code: int) -> str:
    return chr(min(code, 0xD7FF if code < 0xE000 else _LARGEST_CHARACTER))
