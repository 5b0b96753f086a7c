"""Reads from a server which types, character sets and collations it has.

No server has a complete list of its types: MySQL's help pages lack JSON, MariaDB's lack VECTOR and GEOMETRY. So every
word that the server knows (keywords, help topics, capitalised words of the help pages, plugins) is tried as a column
type. If the server accepts it, SHOW COLUMNS names the type. Everything that the help pages list under data types must
be a type, or be in :data:`NO_TYPES`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

import pymysql

from cdc.base.errors import UsageError

Connection: TypeAlias = "pymysql.connections.Connection[Any]"

NO_TYPES = frozenset({
    "AUTO_INCREMENT",  # an attribute
    "BLOB AND TEXT DATA TYPES",  # these three: chapters
    "NUMERIC DATA TYPE OVERVIEW",
    "FLOATING-POINT ACCURACY",
    "ROW",  # of variables in stored routines
})  # fmt: skip
"""Topics that the help pages list under "Data Types" and that are no column types."""

_FORMS = ("{}", "{}(1)", "{}('a')")
_TOO_SHORT = 1  # single letters are ignored
_CAPITALS = re.compile(r"\b[A-Z][A-Z0-9_]+\b")
_BASE = re.compile(r"[a-z0-9_]+")


@dataclass(frozen=True)
class Catalog:
    """A server's types and character sets."""

    version: str
    types: dict[str, tuple[str, ...]]
    """The words that declare a column of each data type, by the type's name in information_schema."""
    charsets: dict[str, int]
    """The maximal bytes per character, by name."""
    collations: dict[int, str]
    """The character set of each collation, by number."""

    @property
    def is_mariadb(self) -> bool:
        return "MariaDB" in self.version

    @property
    def number(self) -> tuple[int, int]:
        """``(11, 8)`` for 11.8.6-MariaDB."""
        major, minor, _ = self.release
        return major, minor

    @property
    def release(self) -> tuple[int, int, int]:
        """``(11, 8, 6)`` for 11.8.6-MariaDB."""
        major, minor, patch = re.findall(r"\d+", self.version)[:3]
        return int(major), int(minor), int(patch)


def read_catalog(connection: Connection, database: str) -> Catalog:
    """Reads a server's catalog. ``database`` is used for temporary tables. Raises UsageError if the help pages list a
    data type that no column can have."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        version = str(_all(cursor)[0][0])
        cursor.execute(f"USE `{database}`")
        cursor.execute("SET sql_mode = ''")
        types = _types(cursor)
        cursor.execute("SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS ORDER BY 1")
        charsets = {str(name): int(width) for name, width in _all(cursor)}
        return Catalog(version, types, charsets, _collations(cursor))


def _types(cursor: Any) -> dict[str, tuple[str, ...]]:
    listed, others = _words(cursor)
    types: dict[str, list[str]] = {}
    missing = []
    for word in sorted(listed | others):
        spellings: dict[str, str] = {}
        for form in _FORMS:
            name = _tried(cursor, form.format(word))
            if name:  # TEXT becomes TEXT, and TEXT(1) becomes TINYTEXT
                spellings.setdefault(name, form.format(word) if spellings else word)
        for name, spelled in spellings.items():
            types.setdefault(name, []).append(spelled)
        if not spellings and word in listed and word not in NO_TYPES:
            missing.append(word)
    if missing:
        raise UsageError(f"the server lists data types that no column can have: {', '.join(missing)}")
    return {name: tuple(words) for name, words in sorted(types.items())}


def _words(cursor: Any) -> tuple[set[str], set[str]]:
    """Returns the words that the help pages list as data types, and all other words that may be one."""
    cursor.execute(
        "SELECT t.name, c.name, t.description FROM mysql.help_topic t JOIN mysql.help_category c USING (help_category_id)"
    )
    topics = _all(cursor)
    listed = {_topic(name) for name, category, _ in topics if category == "Data Types"}
    if not listed:
        raise UsageError("the server's help pages are empty, so its types cannot be listed")
    others = {_topic(name) for name, _, _ in topics}
    others |= {word for _, _, text in topics for word in _CAPITALS.findall(text)}
    cursor.execute("SELECT name FROM mysql.help_keyword")
    others |= {str(name).upper() for (name,) in _all(cursor)}
    cursor.execute("SELECT PLUGIN_NAME, PLUGIN_TYPE FROM information_schema.PLUGINS")
    plugins = _all(cursor)
    listed |= {str(name).upper() for name, kind in plugins if kind == "DATA TYPE"}
    cursor.execute("SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_NAME = 'KEYWORDS'")
    if _all(cursor)[0][0]:  # not on MySQL 5.6
        cursor.execute("SELECT WORD FROM information_schema.KEYWORDS")
        others |= {str(word).upper() for (word,) in _all(cursor)}
    return listed, {word for word in others if len(word) > _TOO_SHORT} - listed


def _topic(name: str) -> str:
    """``SET DATA TYPE`` → ``SET``; MariaDB writes ``SET Data Type``."""
    return name.upper().removesuffix(" DATA TYPE")


def _tried(cursor: Any, column: str) -> str | None:
    """Returns the data type of a column declared so; None if the server rejects it."""
    try:
        cursor.execute(f"CREATE TEMPORARY TABLE tried (v {column})")
    except pymysql.MySQLError:
        return None
    cursor.execute("SHOW COLUMNS FROM tried")
    shown = _text(_all(cursor)[0][1])
    cursor.execute("DROP TEMPORARY TABLE tried")
    match = _BASE.match(shown)
    return match[0] if match else None


def _collations(cursor: Any) -> dict[int, str]:
    cursor.execute("SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATIONS")
    charsets = {int(number): str(name) for number, name in _all(cursor) if number is not None and name is not None}
    cursor.execute("SHOW COLUMNS FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY LIKE 'ID'")
    if _all(cursor):  # MariaDB: collations such as uca1400_ai_ci, which serve several character sets
        cursor.execute("SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY")
        charsets |= {int(number): str(name) for number, name in _all(cursor)}
    return charsets


def _all(cursor: Any) -> list[tuple[Any, ...]]:
    return [tuple(_text(value) if isinstance(value, bytes) else value for value in row) for row in cursor.fetchall()]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
