"""The changes that a DDL statement makes to tables, one for each clause, in the statement's order.

The clauses of one ALTER TABLE act at once, as on the server. Columns that are dropped, changed or renamed have the
names from before the statement; ``after`` and the columns of a new primary key have the names afterwards. So ``RENAME
COLUMN a TO b, RENAME COLUMN b TO a`` swaps two names. :mod:`cdc.binlog.sql.track` combines them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cdc.binlog.sql.partitions import Partition, Partitions
from cdc.binlog.sql.schemas import ColumnSchema, TableSchema

TableName = tuple[str, str]
"""Database and table."""


# --- what an added column holds in the rows that were there


@dataclass(frozen=True, slots=True)
class Null:
    """NULL in every old row."""


@dataclass(frozen=True, slots=True)
class Constant:
    """One value in every old row."""

    value: str | bytes
    """The value as SELECT shows it in the column's type: a DECIMAL has all digits of its scale, a DATETIME(3) has three
    digits of its fraction. FLOAT and DOUBLE: the shortest text that reads as the same number. Bytes for BIT, BINARY,
    VARBINARY and BLOB."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that only the server knows."""

    reason: str
    """A clause for messages: ``its default is an expression``."""


OldRows = Null | Constant | Unknown


# --- changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """The base of all changes."""

    clause: str = field(default="", compare=False)
    """The clause's text for messages, shortened: ``DROP COLUMN `note```."""


@dataclass(frozen=True, slots=True)
class CreateTable(Clause):
    """A new table."""

    table: TableName
    schema: TableSchema | None
    """The table's definition; None if the text does not give it (LIKE, SELECT). Its ``charset`` is None if the table
    takes the default of its database, and so is that of its texts, ENUMs and SETs without a character set of their
    own."""
    like: TableName | None = None
    """The table whose definition it copies."""
    has_rows: bool = False
    """Whether the table is filled by the statement (CREATE TABLE … SELECT)."""
    selects: bool = False
    """Whether its rows come from a query of the text, as in a binlog of the format STATEMENT. In the format ROW the
    statement has no query, and the rows follow it."""
    replaces: bool = False
    """OR REPLACE: a table of this name is dropped first."""
    if_not_exists: bool = False
    partitions: Partitions | None = None
    """Its partitions; None without any, and if the text does not give them or is not understood."""


@dataclass(frozen=True, slots=True)
class DropTable(Clause):
    table: TableName
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropDatabase(Clause):
    """Every table of a database is dropped."""

    db: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameTable(Clause):
    """``table`` is called ``to`` from here on. The changes of a RENAME TABLE take effect one after the other."""

    table: TableName
    to: TableName
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class TruncateTable(Clause):
    table: TableName


@dataclass(frozen=True, slots=True)
class AddColumn(Clause):
    table: TableName
    column: ColumnSchema
    """Its ``charset`` and ``collation`` are None for a text that takes the table's."""
    first: bool
    after: str | None
    """The column that comes before it; None with ``first``, and for the end of the table."""
    old_rows: OldRows
    """The value that it has in old rows, if the table's character set has every character and is not ``binary``. The
    tracker's plan, which knows the table, has the final answer."""
    if_not_exists: bool = False
    unsure_null: bool = False
    """Whether a server variable decides if the column is nullable (TIMESTAMP and explicit_defaults_for_timestamp)."""


@dataclass(frozen=True, slots=True)
class DropColumn(Clause):
    table: TableName
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameColumn(Clause):
    table: TableName
    name: str
    to: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ChangeColumn(Clause):
    """CHANGE or MODIFY: a new definition, and perhaps a new name and place.
    :func:`cdc.binlog.sql.conversions.value_effect` says what becomes of old values."""

    table: TableName
    name: str
    column: ColumnSchema
    """The new definition with the new name; MODIFY keeps the name."""
    first: bool
    after: str | None
    if_exists: bool = False
    unsure_null: bool = False
    """As for :class:`AddColumn`."""


@dataclass(frozen=True, slots=True)
class SetPrimaryKey(Clause):
    """A table without a primary key gets one."""

    table: TableName
    columns: tuple[str, ...]
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropPrimaryKey(Clause):
    table: TableName
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetDefault(Clause):
    """A new default for later rows; old rows keep their values."""

    table: TableName
    name: str
    default: str | None
    """As in ``ColumnSchema.default``; None without one."""
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetVisible(Clause):
    """``SELECT *`` shows the column from now on, or no longer; its values stay."""

    table: TableName
    name: str
    visible: bool
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ConvertCharset(Clause):
    """CONVERT TO CHARACTER SET: the table's default, and all its texts, ENUMs and SETs."""

    table: TableName
    charset: str | None
    """None for the default of the database."""
    collation: str | None


@dataclass(frozen=True, slots=True)
class SetTableCharset(Clause):
    """A new default character set of the table, for columns that are added later."""

    table: TableName
    charset: str | None
    collation: str | None


@dataclass(frozen=True, slots=True)
class DropPartitions(Clause):
    """DROP PARTITION or TRUNCATE PARTITION: the rows of these partitions go."""

    table: TableName
    names: tuple[str, ...]
    """Partitions, and for TRUNCATE perhaps subpartitions; empty for all of them."""
    truncates: bool = False
    """Whether the partitions stay, without rows."""
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class MovePartition(Clause):
    """Rows of a partition go to another table, or come from there. A statement has one such change for each of the two
    tables whose rows are not told by its other changes:

    - EXCHANGE PARTITION: one for each, as the rows go both ways.
    - CONVERT PARTITION … TO TABLE: one for the new table; the partitioned table loses the partition.
    - CONVERT TABLE … TO PARTITION: one for the partitioned table; the other table is dropped.
    """

    table: TableName
    other: TableName
    partition: str | None
    """The partition or subpartition whose rows leave the partitioned table; None for CONVERT TABLE."""
    is_partitioned: bool
    """Whether ``table`` is the one with partitions."""
    validates: bool = True
    """Whether the server has made sure that rows which come into the partition belong there."""


@dataclass(frozen=True, slots=True)
class UnknownEffect(Clause):
    """Rows change, appear or vanish in a way that only the server knows: IMPORT PARTITION, ENGINE = BLACKHOLE."""

    table: TableName
    reason: str
    keeps_empty: bool = False
    """Whether a table without rows stays without rows."""


@dataclass(frozen=True, slots=True)
class Unsupported(Clause):
    """A clause that is not understood. It may do anything to the table; to any table if ``table`` is None."""

    table: TableName | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NoEffect(Clause):
    """Neither rows nor columns change: an index, a comment, a constraint."""

    table: TableName | None


@dataclass(frozen=True, slots=True)
class ChangePartitions(NoEffect):
    """Rows lie in other partitions from here on, and none goes. The fields that ``kind`` does not name are empty."""

    kind: Literal["set", "add", "reorganize", "coalesce"] = "set"
    partitions: Partitions | None = None
    """``set``: PARTITION BY; None for REMOVE PARTITIONING, and if the clause is not understood."""
    names: tuple[str, ...] = ()
    """``reorganize``: the partitions that others take the place of."""
    listed: tuple[Partition, ...] = ()
    """``add``, ``reorganize``: the new partitions; empty if they are not understood."""
    count: int = 0
    """``add``, ``coalesce``: how many partitions of HASH or KEY come or go."""
    if_not_exists: bool = False


Change = (
    CreateTable
    | DropTable
    | DropDatabase
    | RenameTable
    | TruncateTable
    | AddColumn
    | DropColumn
    | RenameColumn
    | ChangeColumn
    | SetPrimaryKey
    | DropPrimaryKey
    | SetDefault
    | SetVisible
    | ConvertCharset
    | SetTableCharset
    | DropPartitions
    | MovePartition
    | UnknownEffect
    | Unsupported
    | NoEffect
)


KEEPS_COLUMNS = (NoEffect, SetDefault, SetVisible)
"""Changes after which a table has the same columns, types and rows."""


def table_of(change: Change) -> TableName | None:
    """The table that a change concerns; None for a database and for an unknown one."""
    return None if isinstance(change, DropDatabase) else change.table
