"""The included tables as ``information_schema`` describes them: the file ``schemas/SEQ.json``.

Table maps in the binlog hold a column's type, but not ``tinyint(1)``, defaults, generated columns, or MariaDB's UUID
and INET; these tables do. ``cdc.source.schemas`` reads them from the server.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Self, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError

from cdc.base.documents import require_version
from cdc.base.errors import DamagedError, StorageError
from cdc.base.patterns import exclusion
from cdc.base.validation import first_fault
from cdc.disk.durable import make_folder, replace_file

FORMAT_VERSION = 1
INVISIBLE = "INVISIBLE"
"""The word of ``ColumnSchema.extra`` for a column that ``SELECT *`` does not show."""
HIDDEN_COLUMN = re.compile(r"DB_ROW_HASH_\d+")
"""The names of columns that MariaDB adds behind those of a definition, and that no statement shows."""
VERSIONED = "is system-versioned: its row events do not tell old rows, which SELECT does not show, from the others"
"""Why a system-versioned table is refused."""


def versioned_remedy(table: str) -> str:
    """Returns the way out for a system-versioned table."""
    return f"Exclude the table ({exclusion(table)}), or end it at the source by ALTER TABLE … DROP SYSTEM VERSIONING."


Offsets: TypeAlias = tuple[tuple[int, int], ...]
"""A time zone over some years: seconds since 1970, and the offset from UTC in seconds from then on. The first one is
valid from 0 on if the zone had the same offset in all years before."""


class ColumnSchema(BaseModel):
    """A column, in the server's own words."""

    model_config = ConfigDict(frozen=True)

    name: str
    data_type: str
    """``int``, ``varchar``, … in lower case."""
    column_type: str
    """``int(10) unsigned``, ``enum('a','b')``, …"""
    nullable: bool
    default: str | None
    """The default in information_schema; MariaDB quotes texts and writes NULL as text, MySQL does not."""
    extra: str
    """``auto_increment``, ``VIRTUAL GENERATED``, ``INVISIBLE``, …"""
    charset: str | None
    collation: str | None

    @property
    def attributes(self) -> tuple[str, ...]:
        """The words of ``extra`` without ``INVISIBLE``, which says nothing about values."""
        return tuple(word for word in self.extra.replace(",", " ").split() if word.upper() != INVISIBLE)

    @property
    def is_generated(self) -> bool:
        """Whether the server computes the column, ``VIRTUAL`` or ``STORED``. A default that is an expression is none
        (MySQL's ``DEFAULT_GENERATED``)."""
        return "GENERATED" in self.extra.upper().replace("DEFAULT_GENERATED", "")


class TableSchema(BaseModel):
    """A base table, with its columns in their order."""

    model_config = ConfigDict(frozen=True)

    columns: tuple[ColumnSchema, ...]
    primary_key: tuple[str, ...]
    """Column names in the key's order; empty without a primary key."""
    charset: str | None = None
    """The default character set for texts that are added later; None if it is not known, as in files of Towpath 0.1."""
    collation: str | None = None
    """Its collation; None if it is not known."""
    system_versioned: bool = False
    """Whether the server keeps old rows in the table (``WITH SYSTEM VERSIONING``), which its row events do not tell
    from the rows that SELECT shows. Missing in files of Towpath 0.1."""

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def are_generated(self, columns: Collection[str | int]) -> bool:
        """Whether all of these are names or ordinals of generated columns, or names of hidden ones."""
        generated: set[str | int] = {name for name in columns if isinstance(name, str) and self.is_hidden(name)}
        for ordinal, column in enumerate(self.columns):
            if column.is_generated:
                generated.update((ordinal, column.name))
        return all(column in generated for column in columns)

    def is_hidden(self, name: str) -> bool:
        """Whether MariaDB has added a column of this name without a definition: the hash of a unique key over a whole
        TEXT or BLOB."""
        return HIDDEN_COLUMN.fullmatch(name) is not None and all(name != column.name for column in self.columns)


class TableComments(BaseModel):
    """The comments of a table and of its columns."""

    model_config = ConfigDict(frozen=True)

    table: str = ""
    columns: dict[str, str] = {}
    """Comments by the names of columns; columns without a comment are missing."""


class ForeignKey(BaseModel):
    """A foreign key of an included table, with actions on its rows that the server writes no row events for."""

    model_config = ConfigDict(frozen=True)

    name: str
    """The constraint's name."""
    columns: tuple[str, ...]
    parent: str
    """The referenced table as ``db.table``, included or not."""
    parent_columns: tuple[str, ...]
    on_delete: str
    """``CASCADE``, ``SET NULL``, ``SET DEFAULT``, ``RESTRICT`` or ``NO ACTION``."""
    on_update: str

    @property
    def actions(self) -> str:
        """The actions that change rows, for messages: ``ON DELETE CASCADE, ON UPDATE SET NULL``; empty without any."""
        rules = (("ON DELETE", self.on_delete), ("ON UPDATE", self.on_update))
        return ", ".join(f"{event} {rule}" for event, rule in rules if rule in CHANGES_ROWS)


CHANGES_ROWS = frozenset({"CASCADE", "SET NULL", "SET DEFAULT"})
"""The actions of foreign keys that change rows of the table with the key."""


class KnownPartitions(BaseModel):
    """The partitions of a table."""

    model_config = ConfigDict(frozen=True)

    clause: str
    """The clause behind PARTITION BY, as :mod:`cdc.binlog.sql.partitions` writes it."""
    until: int = 0
    """The seq of the source when it was read, if that was ahead of the stream: a later statement that lies up to there
    may be in it already. 0: it is exact."""


class Schemas(BaseModel):
    """All included tables at one moment."""

    model_config = ConfigDict(frozen=True)

    version: int = FORMAT_VERSION
    tables: dict[str, TableSchema]
    """By ``db.table``."""
    unsure: dict[str, int] = {}
    """The tables that were read when the source was at this seq, ahead of the stream. Their definition is right if no
    other DDL statement on them lies before it. If table maps do not name columns, capture checks that."""
    named: bool | None = None
    """Whether capture had no rows without the names of their columns in mind. None in files of Towpath 0.1."""
    comments: dict[str, TableComments] | None = None
    """By ``db.table``, of tables that have any; None in files of Towpath 0.1, which does not read them."""
    engines: dict[str, str] | None = None
    """By ``db.table``, of tables that are not of InnoDB, in lower case; None in files of Towpath 0.1."""
    foreign_keys: dict[str, tuple[ForeignKey, ...]] | None = None
    """By the ``db.table`` that has them, the keys whose actions change its rows without row events; None in files of
    Towpath 0.1, and where no server was asked."""
    read_at: int | None = None
    """The seq of the source's position after the definitions were read. The foreign keys are those of that moment. None
    in files of Towpath 0.1."""
    key_statements: dict[int, tuple[str, ...]] = {}
    """By the seqs of DDL statements from the file's seq on that capture had received, the tables on either end of
    :attr:`foreign_keys` that they name."""
    system_zone: Offsets | None = None
    """The server's own time zone; None in files of Towpath 0.1, and where no server was asked."""

    partitions: dict[str, KnownPartitions] | None = None
    """By ``db.table``, of partitioned tables whose partitions are known; None in files of Towpath 0.1, and where no
    capture has written them."""
    dropped_partitions: dict[int, dict[str, str]] = {}
    """By the seq of a statement that drops, truncates, exchanges or converts partitions, and by ``db.table``: the
    clause of the partitions right before it, as far as it tells which rows went. Of the last few such statements; a
    table whose partitions were not certain is missing."""

    @property
    def key_ends(self) -> frozenset[str]:
        """The tables that have one of :attr:`foreign_keys`, and their parents."""
        keys = self.foreign_keys or {}
        return frozenset(keys) | {key.parent for child_keys in keys.values() for key in child_keys}

    def comments_of(self, table: str) -> TableComments | None:
        """Returns the comments of a table; None if they are not known, or there is no such table."""
        if self.comments is None or table not in self.tables:
            return None
        return self.comments.get(table, TableComments())

    def engine_of(self, table: str) -> str | None:
        """Returns the storage engine of a table; None if it is not known, or there is no such table."""
        if self.engines is None or table not in self.tables:
            return None
        return self.engines.get(table, "innodb")

    def save(self, path: Path) -> None:
        """Writes the file atomically and durably. Raises StorageError, ConfigError."""
        make_folder(path.parent)
        replace_file(path, (self.model_dump_json(indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads the file. Raises DamagedError, VersionError, StorageError."""
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            raise DamagedError(
                "this file of table schemas is missing", place=str(path), remedy="Restore it from a copy of the store."
            ) from None
        except OSError as error:
            raise StorageError(f"cannot be read: {error.strerror}", place=str(path)) from error
        try:
            schemas = cls.model_validate_json(text)
        except ValidationError as error:
            require_version(_version_of(text), FORMAT_VERSION, str(path))
            raise DamagedError(
                f"is not a file of table schemas: {first_fault(error, whole='the file')}",
                place=str(path),
                remedy="Restore it from a copy of the store.",
            ) from None
        require_version(schemas.version, FORMAT_VERSION, str(path))
        return schemas


class _Head(BaseModel):
    version: int


def _version_of(text: bytes) -> int | None:
    try:
        return _Head.model_validate_json(text).version
    except ValidationError:
        return None


def charset_of_collation(collation: str | None) -> str | None:
    """The character set of a collation, which begins with its name: ``utf8mb4_bin`` belongs to ``utf8mb4``."""
    return (collation or "").partition("_")[0] or None


_ESCAPES = {"0": "\0", "n": "\n", "r": "\r"}


def quoted_members(column_type: str) -> tuple[str, ...]:
    """The members of a column type as information_schema quotes them: ``enum('a','it''s')`` has ``a`` and ``it's``."""
    members, at = [], column_type.find("(") + 1
    while at < len(column_type) and column_type[at] == "'":
        at, text = at + 1, []
        while at < len(column_type):
            char, following = column_type[at], column_type[at + 1 : at + 2]
            if char == "'" and following != "'":
                break
            if char == "'" or char == "\\":
                char = _ESCAPES.get(following, following) if char == "\\" else "'"
                at += 1
            text.append(char)
            at += 1
        members.append("".join(text))
        at += 2  # the quote and the comma
    return tuple(members)


def quote_members(kind: str, members: Sequence[str]) -> str:
    """The column type of members, the inverse of :func:`quoted_members`: ``enum('a','it''s')``."""
    texts = ["'" + member.replace("\\", "\\\\").replace("'", "''") + "'" for member in members]
    return f"{kind}({','.join(texts)})"
