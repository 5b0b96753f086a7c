"""Column types with values at their edges, for MODIFY from each type to each other one on a real server."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal

import pymysql
from typing_extensions import Buffer

from cdc.binlog.sql.changes import Unknown
from cdc.binlog.sql.conversions import Same, ValueEffect, Widened, value_effect
from cdc.binlog.sql.schemas import ColumnSchema, TableSchema
from cdc.config import SourceConfig, TablesConfig
from cdc.source.connection import connect
from cdc.source.schemas import read_schemas
from cdc.testing.servers import HOST, PASSWORD, USER, Server
from tests.support.versions import with_types

_TEXTS = ("''", "'a'", "'a  '", "'B b'", "'12'")
_WIDE = ("CONCAT(REPEAT('x', 10), '  ')", "'é'", "'ü€'")

VALUES: dict[str, tuple[str, ...]] = {
    "TINYINT": ("-128", "127", "0"),
    "TINYINT UNSIGNED": ("0", "255"),
    "TINYINT(1)": ("0", "1", "-5"),
    "SMALLINT": ("-32768", "32767", "5"),
    "MEDIUMINT": ("-8388608", "8388607"),
    "MEDIUMINT UNSIGNED": ("0", "16777215"),
    "INT": ("-2147483648", "2147483647", "7"),
    "INT UNSIGNED": ("0", "4294967295"),
    "INT(5) ZEROFILL": ("0", "42"),
    "BIGINT": ("-9223372036854775808", "9223372036854775807", "3"),
    "BIGINT UNSIGNED": ("0", "18446744073709551615"),
    "DECIMAL(5,0)": ("-99999", "99999", "7"),
    "DECIMAL(10,2)": ("-99999999.99", "99999999.99", "1.50", "0.01"),
    "DECIMAL(12,4)": ("-99999999.9999", "1.2345", "2"),
    "DECIMAL(20,2)": ("123456789012345678.25",),
    "DECIMAL(30,5)": ("-1.5", "0", "-0.00001", "9999999999999999999999999.99999"),
    "DECIMAL(38,10)": ("1.5", "0", "-9999999999999999999999999999.9999999999"),
    "DECIMAL(45,10)": ("1.5", "-0.5", "0", "12345678901234567890123456789012345.0123456789"),
    "DECIMAL(40,0)": ("7", "-5", "0", "1234567890123456789012345678901234567890"),
    "DECIMAL(45,2) UNSIGNED": ("1.5", "0", "9999999999999999999999999999999999999999999.99"),
    "DECIMAL(45,2) ZEROFILL": ("1.5", "0"),
    "DECIMAL(50,25)": ("-465.4943454794681871753479057", "0"),
    "DECIMAL(65,30)": ("1.000000000000000000000000000001",),
    "DECIMAL(10,2) UNSIGNED": ("0", "99999999.99"),
    "FLOAT": ("0.1", "-3.4e38", "16777217", "0"),
    "FLOAT(7,2)": ("0.1", "12345.67"),
    "FLOAT UNSIGNED": ("0.3",),
    "DOUBLE": ("0.1", "1.7976931348623157e308", "-1e-300", "4503599627370497.5"),
    "DOUBLE(10,2)": ("0.1", "12345678.91"),
    "BIT(1)": ("b'0'", "b'1'"),
    "BIT(12)": ("b'101'", "b'111111111111'"),
    "CHAR(5)": ("''", "'a'", "'ab  '", "'abcde'", "'éü'"),
    "CHAR(20)": (*_TEXTS, *_WIDE),
    "VARCHAR(3)": ("''", "'a'", "'a  '", "'é'"),
    "VARCHAR(20)": (*_TEXTS, *_WIDE),
    "VARCHAR(300)": (*_TEXTS, *_WIDE, "REPEAT('é', 300)"),
    "VARCHAR(20) CHARACTER SET latin1": ("'a '", "'é'", "'x€'"),
    "VARCHAR(20) CHARACTER SET utf8": ("'a '", "'é€'"),
    "VARCHAR(20) CHARACTER SET utf8mb4": ("'a '", "'é€'", "_utf8mb4 x'F09F9880'"),
    "VARCHAR(20) CHARACTER SET ascii": ("'a '", "'z'"),
    "VARCHAR(20) CHARACTER SET cp1251": ("'a '", "_utf8mb4 x'D0B6'"),
    "VARCHAR(20) CHARACTER SET gbk": ("'a '", "_utf8mb4 x'E4BDA0'"),
    "VARCHAR(20) CHARACTER SET ucs2": ("'a '", "'é€'"),
    "VARCHAR(20) CHARACTER SET utf16": ("'a '", "_utf8mb4 x'F09F9880'"),
    "TINYTEXT": (*_TEXTS, "REPEAT('x', 255)", "CONCAT(REPEAT('x', 250), '     ')"),
    "TEXT": (*_TEXTS, *_WIDE, "REPEAT('é', 300)", "REPEAT('x', 65535)"),
    "TEXT CHARACTER SET latin1": ("'é'", "REPEAT('é', 65535)"),
    "MEDIUMTEXT": (*_TEXTS, "REPEAT('x', 70000)"),
    "LONGTEXT": (*_TEXTS, "REPEAT('x', 70000)"),
    "BINARY(4)": ("'a'", "x'61620000'", "x'00FF'"),
    "BINARY(8)": ("'a'", "x'00FF'"),
    "VARBINARY(4)": ("''", "'a'", "x'6100'", "'ab  '"),
    "VARBINARY(20)": ("''", "'a  '", "x'00'", "x'6162636465000000'", "'abcdefghij    '", "x'FF'"),
    "BLOB": ("''", "'a  '", "x'00FF'", "REPEAT(x'00', 300)", "REPEAT('x', 65535)"),
    "LONGBLOB": ("''", "x'00FF'", "REPEAT('x', 70000)"),
    "ENUM('a','b','c d')": ("'a'", "'b'", "'c d'"),
    "ENUM('a','b','c d','e')": ("'a'", "'e'"),
    "ENUM('c d','a','b')": ("'a'", "'b'", "'c d'"),
    "ENUM('a','b')": ("'a'", "'b'", "'neither'"),
    "ENUM('B','a')": ("'a'", "'B'"),
    "ENUM('1','2','a')": ("'1'", "'2'", "'a'"),
    "ENUM('2','1','a')": ("'1'", "'2'", "'a'"),
    "ENUM('a','b') CHARACTER SET latin1": ("'a'", "'b'"),
    "SET('a','b')": ("''", "'a'", "'a,b'"),
    "SET('a','b','c')": ("''", "'c'", "'a,b,c'"),
    "SET('b','a')": ("''", "'a'", "'a,b'"),
    "DATE": ("'2024-02-29'", "'1000-01-01'", "'9999-12-31'"),
    "DATETIME": ("'2024-02-29 23:59:59'", "'9999-12-31 23:59:59'"),
    "DATETIME(3)": ("'2024-02-29 23:59:59.999'", "'2024-01-01 00:00:00'"),
    "DATETIME(6)": ("'2024-02-29 23:59:59.999999'",),
    "TIMESTAMP NULL": ("'2024-02-28 23:59:59'",),
    "TIMESTAMP(6) NULL": ("'2024-02-28 23:59:59.5'",),
    "TIME": ("'-838:59:59'", "'12:34:56'"),
    "TIME(3)": ("'12:34:56.789'", "'-00:00:00.001'"),
    "TIME(6)": ("'-12:34:56.000001'",),
    "YEAR": ("2024", "1901", "0"),
    "GEOMETRY": ("ST_GeomFromText('POINT(1 2)')",),
    "POINT": ("ST_GeomFromText('POINT(1 2)')",),
}
"""Values by type, as SQL."""

ON_MYSQL9: dict[str, tuple[str, ...]] = {
    "JSON": ("""'{"b": [1, 2.50, "x"], "a": null}'""", "'3'"),
    "VECTOR(2)": ("TO_VECTOR('[1,2]')",),
    "VECTOR(3)": ("TO_VECTOR('[1,2,3]')",),
}
ON_MARIADB: dict[str, tuple[str, ...]] = {
    "UUID": ("'123e4567-e89b-12d3-a456-426655440000'",),
    "INET6": ("'::1'", "'2001:db8::ff00:42:8329'", "'::ffff:1.2.3.4'"),
    "INET4": ("'1.2.3.4'",),
    "JSON": ("""'{"b": 1}'""",),
    "VARCHAR(20) COMPRESSED": ("'a '", "'é'"),
}


def values_of(server: Server) -> dict[str, tuple[str, ...]]:
    """The types that a server has, with values."""
    name = server.kind.name
    if name == "mysql56":
        return VALUES
    return with_types(server, VALUES | (ON_MYSQL9 if name == "mysql9" else ON_MARIADB))


def _decode(data: Buffer, errors: str = "strict", /) -> tuple[str, int]:
    return bytes(data).decode("utf-8", "replace"), len(bytes(data))


REPLACED = codecs.CodecInfo(codecs.utf_8_encode, _decode, name="utf8_replaced")
"""UTF-8 whose reader puts question marks for bytes that are none."""
codecs.register(lambda name: REPLACED if name == REPLACED.name else None)

STRICT = "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION"
LENIENT = "NO_ENGINE_SUBSTITUTION"
MODES = {STRICT: 1 << 21, LENIENT: 0}


@dataclass(frozen=True)
class Claim:
    """The answer of ``value_effect`` about MODIFY from one type to another."""

    old: str
    new: str
    effect: ValueEffect


@dataclass(frozen=True)
class Outcome:
    """One value before and after a statement on a server, as SELECT shows it."""

    claim: Claim
    old: str | bytes | None
    new: str | bytes | None

    @property
    def wrong(self) -> str:
        """Returns the contradiction between claim and server; empty if there is none."""
        claim = self.claim
        if agrees(claim.effect, self.old, self.new):
            return ""
        return f"{claim.old} to {claim.new}: {self.old!r} became {self.new!r}, claimed {claim.effect}"


class Conversions:
    """Claims about one server, and their trial on it."""

    def __init__(self, server: Server, database: str) -> None:
        self._values = values_of(server)
        self._connection = pymysql.connect(
            host=HOST, port=server.port, user=USER, password=PASSWORD, database=database, charset="utf8mb4",
            autocommit=True, conv={},
        )  # fmt: skip
        self._connection.encoding = REPLACED.name  # a text may have been cut inside a character
        types = list(self._values)
        self._run(f"CREATE TABLE kinds ({', '.join(f'c{n} {kind}' for n, kind in enumerate(types))})")
        with server_schema(server, database, "kinds") as schema:
            self._columns = dict(zip(types, schema.columns, strict=True))

    def close(self) -> None:
        self._connection.close()

    def claims(self, mode: str) -> list[Claim]:
        """All claims that every value stays, in this sql_mode."""
        return [
            claim
            for claim in self.all_claims(mode)
            if isinstance(claim.effect, Same | Widened) and not claim.effect.unless
        ]

    def all_claims(self, mode: str) -> list[Claim]:
        """All claims about values, in this sql_mode."""
        # MariaDB's JSON is a LONGTEXT with a check that other texts do not pass.
        pairs = ((old, new) for old in self._values for new in self._values if new not in (old, "JSON"))
        claims = (
            Claim(old, new, value_effect(self._columns[old], self._columns[new], MODES[mode])) for old, new in pairs
        )
        return [claim for claim in claims if not isinstance(claim.effect, Unknown)]

    def column(self, kind: str) -> ColumnSchema:
        """The column of a type."""
        return self._columns[kind]

    def try_together(self, claims: list[Claim]) -> list[str]:
        """Tries claims with one ALTER, outside strict mode. Returns those that are wrong."""
        return [outcome.wrong for outcome in self.outcomes_together(claims) if outcome.wrong]

    def outcomes_together(self, claims: list[Claim]) -> list[Outcome]:
        """Runs claims with one ALTER, outside strict mode."""
        self._run(f"SET sql_mode = '{LENIENT}'")
        names = [f"c{n}" for n in range(len(claims))]
        self._run(f"CREATE TABLE t ({', '.join(f'{n} {c.old} NULL' for n, c in zip(names, claims, strict=True))})")
        count = max(len(self._values[claim.old]) for claim in claims)
        for row in range(count):
            values = (self._values[claim.old] for claim in claims)
            self._run(
                f"INSERT INTO t VALUES ({', '.join(values_of_claim[row % len(values_of_claim)] for values_of_claim in values)})"
            )
        self._run(f"INSERT INTO t VALUES ({', '.join('NULL' for _ in claims)})")
        before = self._rows(names, [claim.old for claim in claims])
        self._run("ALTER TABLE t " + ", ".join(f"MODIFY {n} {c.new} NULL" for n, c in zip(names, claims, strict=True)))
        after = self._rows(names, [claim.new for claim in claims])
        self._run("DROP TABLE t")
        return [
            Outcome(claim, old, new)
            for old_row, new_row in zip(before, after, strict=True)
            for claim, old, new in zip(claims, old_row, new_row, strict=True)
        ]

    def try_strictly(self, claim: Claim) -> list[str]:
        """Tries one claim in strict mode, value by value: the server keeps a value, or refuses the statement."""
        return [f"strict {outcome.wrong}" for outcome in self.outcomes_strictly(claim) if outcome.wrong]

    def outcomes_strictly(self, claim: Claim) -> list[Outcome]:
        """Runs one claim in strict mode, value by value. Values that the server refuses are left out."""
        self._run(f"SET sql_mode = '{LENIENT}'")
        self._run(f"CREATE TABLE t (c {claim.old} NULL)")
        outcomes, is_new = [], False
        for value in self._values[claim.old]:
            if is_new:
                self._run("DROP TABLE t")
                self._run(f"CREATE TABLE t (c {claim.old} NULL)")
            else:
                self._run("DELETE FROM t")
            self._run(f"INSERT INTO t VALUES ({value})")
            ((old,),) = self._rows(["c"], [claim.old])
            self._run(f"SET sql_mode = '{STRICT}'")
            try:
                self._run(f"ALTER TABLE t MODIFY c {claim.new} NULL")
                is_new = True
                ((new,),) = self._rows(["c"], [claim.new])
                outcomes.append(Outcome(claim, old, new))
            except pymysql.MySQLError:
                is_new = False
            self._run(f"SET sql_mode = '{LENIENT}'")
        self._run("DROP TABLE t")
        return outcomes

    def _rows(self, names: list[str], kinds: list[str]) -> list[tuple[str | bytes | None, ...]]:
        shown = [_number(n, kind) for n, kind in zip(names, kinds, strict=True)]
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(shown)} FROM t")
            return list(cursor.fetchall())

    def _run(self, sql: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)


def _number(name: str, kind: str) -> str:
    """The expression that shows a column's value: all digits of a float, none of the zeros of ZEROFILL."""
    if kind.startswith(("FLOAT", "DOUBLE")):
        return f"{name} + 0e0"
    return f"{name} + 0" if "ZEROFILL" in kind else name


def agrees(effect: ValueEffect, old: str | bytes | None, new: str | bytes | None) -> bool:
    """Whether a value is what an effect says: the same text, or the same number, date or time."""
    if old == new or isinstance(effect, Same):
        return old == new
    if old is None or new is None:
        return False
    if isinstance(old, bytes) and isinstance(new, str) and new.isdecimal():
        return int.from_bytes(old, "big") == int(new)
    if isinstance(old, bytes) or isinstance(new, bytes):
        return isinstance(old, bytes) and isinstance(new, bytes) and old.lstrip(b"\0") == new.lstrip(b"\0")
    if ("-" in old[1:] and "e" not in old) or ":" in old:
        return new.rstrip("0") in (
            old + " 00:00:",
            old.rstrip("0"),
            old.rstrip("0") + ".",
            old + ".",
            old + " 00:00:00.",
        )
    return Decimal(old) == Decimal(new)


@contextmanager
def server_schema(server: Server, database: str, table: str) -> Iterator[TableSchema]:
    """The definition of a table in information_schema."""
    os.environ.setdefault("TOWPATH_TEST_PASSWORD", PASSWORD)
    settings = SourceConfig(url=server.url, password_env="TOWPATH_TEST_PASSWORD", server_id=77)
    with connect(settings) as connection:
        names = TablesConfig(include=(re.escape(f"{database}.{table}"),))
        yield read_schemas(connection, names).tables[f"{database}.{table}"]
