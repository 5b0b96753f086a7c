"""Buckets: the parts of a table whose sums are compared, and that are read again if these differ.

A large table whose primary key is one integer has ranges of keys as buckets: the server sums up one range after
another, without a temporary table. The rows of all other tables are distributed by the remainder of an integer key, or
by the CRC32 of the key's canonical text, because ranges of texts depend on collations, which Spark does not have. This
includes tables of engines that keep rows apart from the key, such as MyISAM: a range would be as many random reads as
it has rows, or a scan of the whole table.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc.lake.verify.columns import TableColumns, is_plain_key
from cdc.source.connection import query, quoted
from cdc.source.snapshot.keys import paging_key
from cdc.source.snapshot.segments import Borders

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import TableSchema
    from cdc.source.server import Connection

ROWS_A_RANGE = 200_000
_ROWS_A_BUCKET = 2000
_MOST_RANGES = 100
_MOST_BUCKETS = 16384
_FEWEST_BUCKETS = 16
_CLUSTERED = frozenset({"innodb", "rocksdb", "tokudb"})
"""Engines that keep rows in the order of the primary key."""


@dataclass(frozen=True)
class Buckets:
    """The distribution of a table's rows over buckets, which is the same on both sides."""

    count: int
    is_plain: bool
    """Whether the key is one integer."""
    borders: tuple[int, ...] = ()
    """The largest keys of all ranges but the last one; empty: remainders or checksums."""

    @property
    def is_ranges(self) -> bool:
        return bool(self.borders)

    def of(self, key: str) -> int:
        """Returns the bucket of a canonical key."""
        if not self.is_plain:
            return zlib.crc32(key.encode()) % self.count
        text = key.rstrip(",")
        if not text:
            return self.count - 1 if self.borders else 0
        number = int(text)
        if self.borders:
            return bisect_left(self.borders, number)
        return int(math.copysign(abs(number) % self.count, number))

    def number(self, columns: TableColumns) -> str:
        """SQL of the bucket's number, for buckets that are no ranges."""
        if self.is_plain:
            return f"IFNULL({columns.keys[0].value} MOD {self.count}, 0)"
        return f"(CRC32({columns.key}) MOD {self.count})"

    def condition(self, columns: TableColumns, numbers: Iterable[int]) -> str:
        """SQL that is true for the rows in these buckets."""
        if not self.borders:
            return f"{self.number(columns)} IN ({', '.join(map(str, numbers))})"
        return " OR ".join(f"({self._range(columns.keys[0].value, number)})" for number in numbers)

    def _range(self, key: str, number: int) -> str:
        low = [f"{key} > {self.borders[number - 1]}"] if number else []
        high = [f"{key} <= {self.borders[number]}"] if number < len(self.borders) else []
        return " AND ".join([*low, *high])


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Returns the first and the last number of each run of neighbours. ``numbers``: in order."""
    neighbours: list[tuple[int, int]] = []
    for number in numbers:
        if neighbours and neighbours[-1][1] + 1 == number:
            neighbours[-1] = (neighbours[-1][0], number)
        else:
            neighbours.append((number, number))
    return neighbours


def find_buckets(
    conn: Connection, table: tuple[str, str], schema: TableSchema, columns: TableColumns, rows_a_range: int | None
) -> Buckets:
    """Returns the buckets of a table. The server is asked for its estimates only; no row is read. ``rows_a_range``: of
    ranges; None: :data:`ROWS_A_RANGE`."""
    rows, engine = _estimate(conn, table)
    is_plain = is_plain_key(columns.keys)
    is_in_order = engine in _CLUSTERED and not columns.read
    ranges = min(_MOST_RANGES, rows // (rows_a_range or ROWS_A_RANGE)) if is_in_order else 0
    if is_plain and ranges > 1 and _lower(schema.primary_key) == [columns.keys[0].source.lower()]:
        paging = paging_key(conn, table, schema, schema.primary_key)
        if paging is not None and paging.index == "PRIMARY":
            segments = Borders(conn, ".".join(map(quoted, table)), paging).segments(ranges)
            borders = tuple(int(bytes.fromhex(segment.upto[0])) for segment in segments if segment.upto is not None)
            if borders:
                return Buckets(len(borders) + 1, is_plain, borders)
    return Buckets(max(_FEWEST_BUCKETS, min(_MOST_BUCKETS, rows // _ROWS_A_BUCKET)), is_plain)


def _estimate(conn: Connection, table: tuple[str, str]) -> tuple[int, str]:
    """Returns the server's estimate of a table's rows, 0 if there is none, and the table's engine."""
    facts = query(
        conn,
        "SELECT TABLE_ROWS AS n, ENGINE AS engine FROM information_schema.TABLES "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        table,
    )
    return (int(facts[0]["n"] or 0), str(facts[0]["engine"]).lower()) if facts else (0, "")


def _lower(names: Sequence[str]) -> list[str]:
    return [name.lower() for name in names]
