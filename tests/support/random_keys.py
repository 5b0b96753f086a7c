"""Random tables with keys of every type that a server accepts in a key, and random changes of them.

For tests of the whole merge path: rows with different keys in the source must be different rows in Delta, and equal keys
one row.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from cdc.testing.servers import Server

_FRAGMENTS = (
    "'", '"', "\\", "`", "${env:HOME}", "${spark.app.name}", "${a}", "$", "{", "}", "{}", "\0", "\n", "\t", "%", "_",
    "?", ":a", "--", "/*", ";", " ", "  ", "a", "A", "ä", "Ä", "ß", "ss", "é", "e\u0301", "\u200b", "\u00a0", "日本",
    "\uffff", "😀", "𝔘", "\U0010fffd", "0", "00", "NULL", "true",
)  # fmt: skip


def text(rng: random.Random, longest: int) -> str:
    """Returns a text of such fragments, of at most ``longest`` characters."""
    fragments = "".join(rng.choice(_FRAGMENTS) for _ in range(rng.randrange(6)))
    if rng.random() < 0.3:  # a reference that Spark would replace
        fragments = "${env:HOME}" + fragments
    return fragments[:longest]


def _latin(rng: random.Random) -> str:
    return "".join(c for c in text(rng, 20) if ord(c) < 256 and not 0x7F < ord(c) < 0xA0)


def _bmp(rng: random.Random) -> str:
    return "".join(c for c in text(rng, 20) if ord(c) < 0xFFFF)


def _wide(rng: random.Random) -> str:
    return text(rng, 20)


def _ascii(rng: random.Random) -> str:
    return text(rng, 20).encode("ascii", "ignore").decode()


_TEXTS: dict[str, Callable[[random.Random], str]] = {
    "utf8mb4": _wide, "utf16": _wide, "utf8mb3": _bmp, "latin1": _latin, "ascii": _ascii, "cp1251": _ascii,
}  # fmt: skip


def _bits(rng: random.Random, bits: int) -> int:
    edges: list[int] = [0, 1, (1 << bits) - 1, 1 << (bits - 1), rng.randrange(1 << bits)]
    return rng.choice(edges)


def _signed(rng: random.Random, bits: int) -> int:
    return _bits(rng, bits) - (1 << (bits - 1))


def _digits(rng: random.Random, whole: int, part: int) -> str:
    sign = rng.choice(("", "-"))
    number = rng.choice((0, 1, 10 ** (whole + part) - 1, rng.randrange(10 ** (whole + part))))
    return f"{sign}{number // 10**part}.{number % 10**part:0{part}}" if part else f"{sign}{number}"


def _date(rng: random.Random) -> str:
    year = rng.choice((1, 999, 1582, 1969, 1970, 2024, 9999, rng.randrange(1, 10000)))
    return f"{year:04}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"


def _clock(rng: random.Random, digits: int) -> str:
    fraction = f".{rng.randrange(10**digits):0{digits}}" if digits else ""
    return f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}{fraction}"


def _stamp(rng: random.Random, digits: int) -> str:
    year = rng.choice((1971, 1999, 2024, 2037))
    return f"{year}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02} {_clock(rng, digits)}"


def _float(rng: random.Random) -> float:
    return rng.choice((0.0, -0.0, 0.1, 1e-30, 1.5, 16777216.0, rng.uniform(-1e6, 1e6), rng.uniform(-1, 1)))


MEMBERS = ("a", "A b", "it''s", '"q"', "${env:HOME}", "é", "{}", "x\\\\y")
"""Members of ENUM, as a statement writes them."""


@dataclass(frozen=True)
class KeyType:
    """A type of a key column, and its random values."""

    sql: str
    value: Callable[[random.Random], Any]
    prefix: str = ""
    """The prefix of the column in the key: ``(20)``."""
    select: str = "{}"
    """The expression with which SELECT shows the value as Delta does."""


def key_types(flavor: str) -> list[KeyType]:
    """Returns the types that a server of this flavor (``mysql`` or ``mariadb``) accepts in a key."""
    types = [
        *(
            KeyType(f"{name}{sign}", partial(_bits if sign else _signed, bits=bits))
            for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("MEDIUMINT", 24), ("INT", 32), ("BIGINT", 64))
            for sign in ("", " UNSIGNED")
        ),
        KeyType("DECIMAL(10,0)", lambda rng: _digits(rng, 10, 0)),
        KeyType("DECIMAL(12,4)", lambda rng: _digits(rng, 8, 4)),
        KeyType("DECIMAL(38,10)", lambda rng: _digits(rng, 28, 10)),
        KeyType("DECIMAL(65,30)", lambda rng: _digits(rng, 35, 30), select="CAST({} AS CHAR)"),
        KeyType("FLOAT", _float, select="{} + 0e0"),
        KeyType("DOUBLE", _float),
        KeyType("BIT(1)", lambda rng: _bits(rng, 1), select="CAST({} AS UNSIGNED)"),
        KeyType("BIT(33)", lambda rng: _bits(rng, 33), select="CAST({} AS UNSIGNED)"),
        KeyType("BIT(64)", lambda rng: _bits(rng, 64), select="CAST({} AS UNSIGNED)"),
        KeyType("DATE", _date),
        KeyType("DATETIME", lambda rng: f"{_date(rng)} {_clock(rng, 0)}"),
        KeyType("DATETIME(6)", lambda rng: f"{_date(rng)} {_clock(rng, 6)}"),
        KeyType("TIMESTAMP(3)", lambda rng: _stamp(rng, 3)),
        KeyType("TIME", lambda rng: rng.choice(("", "-")) + _clock(rng, 0), select="CAST({} AS CHAR)"),
        KeyType("TIME(2)", lambda rng: rng.choice(("", "-")) + _clock(rng, 2), select="CAST({} AS CHAR)"),
        KeyType("YEAR", lambda rng: rng.choice((0, 1901, 2155, rng.randrange(1901, 2156)))),
        KeyType(f"ENUM({', '.join(repr_member(m) for m in MEMBERS)})", lambda rng: rng.randrange(1, len(MEMBERS) + 1)),
        KeyType(f"SET({', '.join(repr_member(m) for m in MEMBERS)})", lambda rng: rng.randrange(2 ** len(MEMBERS))),
        KeyType("BINARY(7)", lambda rng: rng.randbytes(rng.randrange(8))),
        KeyType("VARBINARY(30)", lambda rng: rng.choice((rng.randbytes(rng.randrange(9)), text(rng, 7).encode()))),
        KeyType("BLOB", lambda rng: text(rng, 30).encode(), "(40)"),
        KeyType("TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", lambda rng: text(rng, 60), "(10)"),
    ]
    collations = [
        "utf8mb4_bin", "utf8mb4_general_ci", "utf8mb4_unicode_ci", "latin1_swedish_ci", "latin1_bin",
        "latin1_general_cs", "utf8mb3_general_ci", "utf16_bin", "ascii_bin", "cp1251_general_ci",
        *(("utf8mb4_0900_ai_ci", "utf8mb4_0900_bin") if flavor == "mysql" else ("utf8mb4_nopad_bin", "uca1400_ai_ci")),
    ]  # fmt: skip
    for collation in collations:
        charset = "utf8mb4" if collation.startswith("uca") else collation.partition("_")[0]
        value = _TEXTS[charset]
        types += [
            KeyType(f"{kind} CHARACTER SET {charset} COLLATE {collation}", value)
            for kind in ("VARCHAR(20)", "CHAR(20)")
        ]
    if flavor == "mariadb":
        types += [
            KeyType("UUID", lambda rng: "-".join(rng.randbytes(n).hex() for n in (4, 2, 2, 2, 6))),
            KeyType("INET6", lambda rng: rng.choice(("::1", "::ffff:1.2.3.4", f"fe80::{rng.randrange(65536):x}"))),
            KeyType("INET4", lambda rng: ".".join(str(rng.randrange(256)) for _ in range(4))),
        ]
    return types


def repr_member(member: str) -> str:
    return f"'{member}'"


@dataclass(frozen=True)
class KeyTable:
    """A table with a key of these types; its other column counts its changes."""

    name: str
    types: tuple[KeyType, ...]

    @property
    def select(self) -> dict[str, str]:
        """The expression for SELECT by column."""
        return {key: kind.select.format(key) for key, kind in zip(self.keys, self.types, strict=True)}

    @property
    def keys(self) -> list[str]:
        return [f"k{i}" for i in range(len(self.types))]

    def create(self) -> str:
        columns = [f"{key} {kind.sql} NOT NULL" for key, kind in zip(self.keys, self.types, strict=True)]
        parts = [f"{key}{kind.prefix}" for key, kind in zip(self.keys, self.types, strict=True)]
        return f"CREATE TABLE {self.name} ({', '.join(columns)}, v INT, PRIMARY KEY ({', '.join(parts)}))"

    def key(self, rng: random.Random) -> tuple[Any, ...]:
        return tuple(kind.value(rng) for kind in self.types)


def make_tables(rng: random.Random, flavor: str, width: int) -> list[KeyTable]:
    """Returns tables that together have each type in a key, of at most ``width`` columns."""
    types = key_types(flavor)
    rng.shuffle(types)
    return [KeyTable(f"t{i}", tuple(types[i : i + width])) for i in range(0, len(types), width)]


class RandomChanges:
    """Changes tables at random, and records the keys that may exist."""

    def __init__(self, server: Server, database: str, rng: random.Random) -> None:
        self._server, self._database, self._rng = server, database, rng
        self._known: dict[str, list[tuple[Any, ...]]] = {}

    def run(self, tables: list[KeyTable], changes: int) -> None:
        """Changes each table this often, all in one transaction: inserts, deletes, updates, also of keys. Statements that the
        server refuses (a duplicate key, a value outside the character set) change nothing."""
        with self._server.connect() as connection, connection.cursor() as cursor:
            connection.autocommit(False)
            cursor.execute(f"USE `{self._database}`")
            cursor.execute("SET sql_mode = 'STRICT_ALL_TABLES', time_zone = '+00:00'")
            for table in tables:
                for number in range(changes):
                    _try(cursor, *self._change(table, number))
            connection.commit()

    def _change(self, table: KeyTable, number: int) -> tuple[str, tuple[Any, ...]]:
        """Returns a statement and its values."""
        rng, keys_so_far = self._rng, self._known.setdefault(table.name, [])
        kind = rng.choice(("insert", "insert", "insert", "replace", "update", "move", "move", "delete"))
        new = table.key(rng)
        old = rng.choice(keys_so_far) if keys_so_far and kind != "insert" else new
        where = " AND ".join(f"{key} = %s" for key in table.keys)
        marks = ", ".join(["%s"] * len(table.keys))
        if kind in ("insert", "replace"):
            keys_so_far.append(old)
            return f"{kind.upper()} INTO {table.name} VALUES ({marks}, %s)", (*old, number)
        if kind == "update":
            return f"UPDATE {table.name} SET v = %s WHERE {where}", (number, *old)
        if kind == "delete":
            return f"DELETE FROM {table.name} WHERE {where}", old
        if rng.random() < 0.3:  # equal in many collations, with other bytes
            new = tuple(part.swapcase() if isinstance(part, str) else part for part in old)
        keys_so_far.append(new)
        assign = ", ".join(f"{key} = %s" for key in table.keys)
        return f"UPDATE {table.name} SET {assign} WHERE {where}", (*new, *old)


def _try(cursor: Any, statement: str, values: tuple[Any, ...]) -> None:
    import pymysql

    try:
        cursor.execute(statement, values)
    except (pymysql.err.IntegrityError, pymysql.err.DataError, pymysql.err.OperationalError) as error:
        # Duplicate key, data too long or out of range, a value that is not of the type or the character set.
        if error.args[0] not in (1062, 1264, 1265, 1292, 1366, 1406, 1267, 1300, 3988, 4092):
            raise
