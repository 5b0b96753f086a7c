"""The types that a server supports, and the characters of each of its character sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pymysql

CANDIDATES = (
    "TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT", "DECIMAL", "FLOAT", "DOUBLE", "BIT", "YEAR",
    "DATE", "TIME", "DATETIME", "TIMESTAMP", "CHAR", "VARCHAR", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT",
    "BINARY", "VARBINARY", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB", "ENUM", "SET", "JSON",
    "GEOMETRY", "POINT", "LINESTRING", "POLYGON", "MULTIPOINT", "GEOMETRYCOLLECTION",
    "VECTOR", "UUID", "INET4", "INET6", "VARCHAR COMPRESSED", "TEXT COMPRESSED", "BLOB COMPRESSED",
)  # fmt: skip
"""The type names of all servers; each server is asked which of them it supports."""

_ARGUMENTS = {"VARCHAR": "(9)", "VARBINARY": "(9)", "VECTOR": "(3)", "ENUM": "('a')", "SET": "('a')"}

# Every script that a character set was made for, and the places where they differ.
_SAMPLE = [
    *range(1, 0x460), *range(0x531, 0x58A), *range(0x5D0, 0x5EB), *range(0x60C, 0x6D4, 2), *range(0xE01, 0xE5C),
    *range(0x10D0, 0x10F6), *range(0x1E00, 0x1E80, 7), *range(0x2010, 0x2040), 0x20AC, *range(0x2100, 0x2200, 3),
    *range(0x2200, 0x2300, 5), *range(0x2500, 0x25A0, 3), *range(0x3001, 0x3018), *range(0x3041, 0x3094, 3),
    *range(0x30A1, 0x30F7, 3), *range(0x4E00, 0x9FA0, 61), *range(0xAC00, 0xD7A0, 97), 0xE000, 0xE3AC, 0xE757, 0xF8FF,
    *range(0xFA0E, 0xFA2A), *range(0xFF01, 0xFFA0, 2), 0xFFE5, 0xFFFD, 0x10000, 0x1F600, 0x20000, 0x2A6D6, 0x10FFFF,
]  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """A server, for :func:`tests.support.random_tables.random_table`."""

    kind: str
    types: tuple[str, ...]
    """The types of CANDIDATES that it supports."""
    charsets: dict[str, tuple[str, int]]
    """The characters of each character set (a sample, and NUL) and the maximal bytes of one."""

    @property
    def is_mariadb(self) -> bool:
        return self.kind.startswith("mariadb")


def ask(connection: pymysql.connections.Connection[Any], kind: str) -> Facts:
    """Asks a server of a kind ("mysql9", …), without changing it."""
    with connection.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute("CREATE DATABASE towpath_facts")
        try:
            cursor.execute("USE towpath_facts")
            types = tuple(name for name in CANDIDATES if _has(cursor, name))
            charsets = _charsets(cursor)
        finally:
            cursor.execute("DROP DATABASE towpath_facts")
            cursor.execute("SET sql_log_bin = 1")
    return Facts(kind, types, charsets)


def _has(cursor: Any, name: str) -> bool:
    plain, *more = name.split()
    try:
        cursor.execute(f"CREATE TABLE t (v {plain}{_ARGUMENTS.get(plain, '')} {' '.join(more)})")
    except pymysql.MySQLError as error:
        if error.args[0] in (1064, 4161):  # a syntax error, an unknown type
            return False
        raise
    cursor.execute("DROP TABLE t")
    return True


def _charsets(cursor: Any) -> dict[str, tuple[str, int]]:
    cursor.execute(
        "SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS WHERE CHARACTER_SET_NAME <> 'binary'"
    )
    widths = {str(name): int(size) for name, size in cursor.fetchall()}
    cursor.execute("CREATE TABLE c (id INT PRIMARY KEY, v VARBINARY(4))")
    rows = ", ".join(f"({code}, 0x{chr(code).encode().hex()})" for code in _SAMPLE)
    cursor.execute(f"INSERT INTO c VALUES {rows}")
    same = ", ".join(
        f"CONVERT(CONVERT(CONVERT(v USING utf8mb4) USING {name}) USING utf8mb4) = BINARY CONVERT(v USING utf8mb4)"
        for name in widths
    )
    cursor.execute(f"SELECT id, {same} FROM c ORDER BY id")
    characters = dict.fromkeys(widths, "\0")
    for code, *has in cursor.fetchall():
        for name, yes in zip(widths, has, strict=True):
            if yes:
                characters[name] += chr(code)
    return {name: (characters[name], size) for name, size in widths.items()}
