"""Which types, character sets and collations a server has, by its own account.

No server has one list of its types: MySQL's help pages lack JSON, MariaDB's lack VECTOR and GEOMETRY. So every word
that the server knows (keywords, help topics, the words in capitals of the help pages, plugins) is tried as the type of
a column; what the server takes is a type, and SHOW COLUMNS says which one. What the help pages put among the data types
must be one, or stand in :data:`NO_TYPES`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

import pymysql

from cdc.errors import UsageError

Connection: TypeAlias = "pymysql.connections.Connection[Any]"

NO_TYPES = frozenset({
    "AUTO_INCREMENT",  # an attribute
    "BLOB AND TEXT DATA TYPES",  # these three: chapters
    "NUMERIC DATA TYPE OVERVIEW",
    "FLOATING-POINT ACCURACY",
    "ROW",  # of variables in stored routines
})  # fmt: skip
"""What the help pages list under "Data Types", and is not the type of a column."""

_FORMS = ("{}", "{}(1)", "{}('a')")
_TOO_SHORT = 1  # a word of one letter is none
_CAPITALS = re.compile(r"\b[A-Z][A-Z0-9_]+\b")
_BASE = re.compile(r"[a-z0-9_]+")


@dataclass(frozen=True)
class Catalog:
    """A server's types and character sets."""

    version: str
    types: dict[str, tuple[str, ...]]
    """For each data type, as information_schema calls it, the words that make a column of it."""
    charsets: dict[str, int]
    """The most bytes of a character, by name."""
    collations: dict[int, str]
    """The character set of each collation's number."""

    @property
    def is_mariadb(self) -> bool:
        return "MariaDB" in self.version

    @property
    def number(self) -> tuple[int, int]:
        """(11, 8) of 11.8.6-MariaDB."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


def ask(connection: Connection, database: str) -> Catalog:
    """Ask a server; ``database`` is a place for temporary tables. Raises UsageError where the help pages list a data
    type that no column can have."""
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
        found: dict[str, str] = {}
        for form in _FORMS:
            name = _tried(cursor, form.format(word))
            if name:  # TEXT is TEXT, and TEXT(1) is TINYTEXT
                found.setdefault(name, form.format(word) if found else word)
        for name, spelled in found.items():
            types.setdefault(name, []).append(spelled)
        if not found and word in listed and word not in NO_TYPES:
            missing.append(word)
    if missing:
        raise UsageError(f"the server lists data types that no column can have: {', '.join(missing)}")
    return {name: tuple(words) for name, words in sorted(types.items())}


def _words(cursor: Any) -> tuple[set[str], set[str]]:
    """What the help pages list as data types, and every other word that might be one."""
    cursor.execute(
        "SELECT t.name, c.name, t.description FROM mysql.help_topic t JOIN mysql.help_category c USING (help_category_id)"
    )
    topics = _all(cursor)
    listed = {_topic(name) for name, category, _ in topics if category == "Data Types"}
    if not listed:
        raise UsageError("the server's help pages are empty: nothing lists its types")
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
    """The data type of such a column; None where the server does not take it."""
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
    found = {int(number): str(name) for number, name in _all(cursor) if number is not None and name is not None}
    cursor.execute("SHOW COLUMNS FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY LIKE 'ID'")
    if _all(cursor):  # MariaDB: collations such as uca1400_ai_ci, which serve several character sets
        cursor.execute("SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY")
        found |= {int(number): str(name) for number, name in _all(cursor)}
    return found


def _all(cursor: Any) -> list[tuple[Any, ...]]:
    return [tuple(_text(value) if isinstance(value, bytes) else value for value in row) for row in cursor.fetchall()]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
