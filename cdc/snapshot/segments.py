"""Borders: splits a table into ranges of keys of similar size, by a few quick questions to the server.

A border is found by bisection. A candidate between two keys is computed, the server gives the next key that exists, and
EXPLAIN estimates the rows on either side; each is one dive into the index. Borders need not be good for a snapshot to
be right: they only decide how evenly connections are busy. What cannot be computed (addresses, odd character sets) just
gives fewer of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise

from cdc.decode.charsets.convert import decode_text
from cdc.decode.charsets.tables import charset_by_name
from cdc.schemas import ColumnSchema
from cdc.snapshot.keys import Key, PagingKey, literal
from cdc.snapshot.records import Segment
from cdc.snapshot.result_set import ResultSet
from cdc.snapshot.table import where
from cdc.source.connection import query, quoted
from cdc.source.server import Connection, server_version

_MOST_PROBES = 256
_LARGEST_CHARACTER = 0xFFFD


@dataclass
class _Range:
    """A range of keys ``(after, upto]``; the outer ones are open, since rows may come before and behind them."""

    after: Key
    upto: Key
    rows: int
    tries: int = 0
    """How often no border was found in it."""


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
            largest = max((one for one in ranges if one.tries < 3), key=lambda one: one.rows, default=None)
            if largest is None or largest.rows < 2:
                break
            border = self._between(largest)
            if border is None:
                largest.tries += 1
                continue
            at = ranges.index(largest)
            ranges[at : at + 1] = [
                _Range(largest.after, border, self._rows(largest.after, border)),
                _Range(border, largest.upto, self._rows(border, largest.upto)),
            ]
        ranges = _joined(ranges, count)
        ends: list[Key | None] = [None, *(one.upto for one in ranges[:-1]), None]
        return tuple(Segment(after=a, upto=b) for a, b in pairwise(ends))

    def _edge(self, direction: str) -> Key | None:
        order = ", ".join(f"{quoted(name)}{direction}" for name in self._paging.names)
        return self._key(f"ORDER BY {order} LIMIT 1")

    def _key(self, rest: str) -> Key | None:
        names = ", ".join(map(quoted, self._paging.names))
        text = f"SELECT {names} FROM {self._table} {rest}"  # noqa: S608 - quoted names and literals
        found = [
            tuple((block.value(column, 0) or b"").hex() for column in range(len(self._paging.names)))
            for block in ResultSet(self._conn, text)
        ]
        return found[0] if found else None

    def _rows(self, after: Key, upto: Key) -> int:
        self._probes += 1
        condition = where(self._paging, after, upto)
        text = f"{self._explain} SELECT 1 FROM {self._counted}{condition}"  # noqa: S608 - quoted names and literals
        return int(query(self._conn, text)[0].get("rows") or 0)

    def _between(self, one: _Range) -> Key | None:
        """Returns a key that exists and splits the range, or None."""
        self._probes += 1
        at = next((i for i, (a, b) in enumerate(zip(one.after, one.upto, strict=True)) if a != b), None)
        if at is None:
            return None
        share = (0.5, 0.25, 0.75)[one.tries]
        guess = candidate(self._paging.columns[at], bytes.fromhex(one.after[at]), bytes.fromhex(one.upto[at]), share)
        if guess is None:
            return None
        # The candidate is a text of this program's making, so it is compared in the column's own collation.
        conditions = [f"{quoted(c.name)} = {value}" for c, value in _literals(self._paging, one.after, at)]
        conditions.append(f"{quoted(self._paging.names[at])} >= {guess}")
        found = self._key(
            f"{where(self._paging, one.after, one.upto)} AND {' AND '.join(conditions)} "
            f"ORDER BY {self._paging.order} LIMIT 1"
        )
        return None if found in (None, one.after, one.upto) else found


def _literals(paging: PagingKey, key: Key, count: int) -> list[tuple[ColumnSchema, str]]:
    return [(c, literal(c, value)) for c, value in list(zip(paging.columns, key, strict=True))[:count]]


def _joined(ranges: list[_Range], count: int) -> list[_Range]:
    """Joins neighbours while together they are no larger than a fair share: bisection leaves slivers."""
    fair = sum(one.rows for one in ranges) / count
    found: list[_Range] = []
    for one in ranges:
        if found and found[-1].rows + one.rows <= fair:
            found[-1] = _Range(found[-1].after, one.upto, found[-1].rows + one.rows)
        else:
            found.append(one)
    return found


# ---------------------------------------------------------------- candidates


def candidate(column: ColumnSchema, low: bytes, high: bytes, share: float) -> str | None:
    """Returns a literal at about ``share`` of the way from one value to another; None if none can be computed. Nothing
    depends on whether it lies between them."""
    kind = column.data_type
    try:
        if kind in ("char", "varchar") and column.charset not in (None, "binary"):
            charset = charset_by_name(column.charset or "")
            text = _text_between(decode_text(low, charset), decode_text(high, charset), share)
            raw = text.encode().hex()
            return (
                None if text == "" else f"CONVERT(_utf8mb4 x'{raw}' USING {column.charset}) COLLATE {column.collation}"
            )
        if kind in ("char", "varchar", "binary", "varbinary"):
            return f"x'{_bytes_between(low, high, share).hex()}'"
        if kind in ("date", "datetime", "timestamp"):
            return f"'{_moment_between(low.decode(), high.decode(), share)}'"
        if kind in ("uuid", "inet4", "inet6", "time"):
            return None
        a, b = Decimal(low.decode()), Decimal(high.decode())
        return str((a + (b - a) * Decimal(share)).to_integral_value())
    except (ValueError, ArithmeticError, LookupError):
        return None


def _bytes_between(low: bytes, high: bytes, share: float) -> bytes:
    size = max(len(low), len(high)) + 1
    a, b = int.from_bytes(low.ljust(size, b"\0"), "big"), int.from_bytes(high.ljust(size, b"\0"), "big")
    return (a + int((b - a) * share)).to_bytes(size, "big") if b > a else b""


def _text_between(low: str, high: str, share: float) -> str:
    shared = 0
    while shared < min(len(low), len(high)) and low[shared] == high[shared]:
        shared += 1
    a = ord(low[shared]) if shared < len(low) else 0x20
    b = ord(high[shared]) if shared < len(high) else 0x20
    a, b = min(a, b), max(a, b)
    if b - a > 1:
        return low[:shared] + _character(a + max(1, int((b - a) * share)))
    # Neighbouring characters: the border lies in the second one.
    follow = ord(low[shared + 1]) if shared + 1 < len(low) else 0x20
    return low[: shared + 1] + _character(follow + max(1, int((0x7B - follow) * share)))


def _character(code: int) -> str:
    return chr(min(code, 0xD7FF if code < 0xE000 else _LARGEST_CHARACTER))


def _moment_between(low: str, high: str, share: float) -> str:
    a, b = (datetime.fromisoformat(text.replace("0000-00-00", "0001-01-01")) for text in (low, high))
    middle = a + timedelta(seconds=int((b - a).total_seconds() * share))
    return middle.strftime("%Y-%m-%d %H:%M:%S") if len(high) > 10 else middle.strftime("%Y-%m-%d")
