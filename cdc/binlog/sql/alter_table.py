"""ALTER TABLE: the changes of its clauses."""

from __future__ import annotations

from collections.abc import Callable

from cdc.binlog.sql.changes import (
    AddColumn,
    Change,
    ChangeColumn,
    ChangePartitions,
    ConvertCharset,
    CreateTable,
    DropColumn,
    DropPartitions,
    DropPrimaryKey,
    DropTable,
    MovePartition,
    NoEffect,
    RenameColumn,
    RenameTable,
    SetDefault,
    SetPrimaryKey,
    SetVisible,
    TableName,
    UnknownEffect,
    Unsupported,
)
from cdc.binlog.sql.columns import Definition, Dialect, default_text, take_default, take_definition
from cdc.binlog.sql.create_table import is_constraint, take_constraint
from cdc.binlog.sql.partitions import take_listed, take_partition, take_partitions
from cdc.binlog.sql.table_options import VERSIONING, merged, take_option, take_partitioning
from cdc.binlog.sql.tokens import UNREADABLE, Cursor, Token, shown, split_commas
from cdc.binlog.sql.types import take_charset, take_collation

_KEEPS_PARTITIONS = ["ANALYZE", "CHECK", "OPTIMIZE", "REBUILD", "REPAIR"]
"""Commands about partitions that keep every row where it is."""
_PARTITION_VERBS = [
    "DROP", "TRUNCATE", "EXCHANGE", "DISCARD", "IMPORT", "ADD", "CONVERT", "COALESCE", "REORGANIZE", *_KEEPS_PARTITIONS,
]  # fmt: skip
_IGNORE = "IGNORE drops rows and cuts values that do not fit"
_FOREIGN_PARTITION = "the rows of a partition come from or go to another table"


def alter_changes(
    table: TableName, tokens: list[Token], dialect: Dialect, *, ignore: bool = False
) -> tuple[list[Change], list[TableName]]:
    """The changes of the clauses behind ``ALTER TABLE name``, and the other tables that they name (``RENAME TO other``,
    ``EXCHANGE PARTITION … WITH TABLE other``). ``ignore``: ALTER IGNORE TABLE."""
    reader = _Reader(table, dialect)
    changes: list[Change] = []
    if ignore:
        changes.append(UnknownEffect(table, _IGNORE, keeps_empty=True, clause="IGNORE"))
    whole = reader.partition_command(tokens)
    if whole is not None:
        return changes + whole, reader.others
    for part in split_commas(tokens):
        changes += reader.clause(part)
    return changes or [NoEffect(table)], reader.others


class _Reader:
    """Reads the clauses of one statement."""

    def __init__(self, table: TableName, dialect: Dialect) -> None:
        self._table = table
        self._dialect = dialect
        self._ordered = False
        """Whether the clause before was ORDER BY, whose columns are separated by commas, too."""
        self.others: list[TableName] = []

    def clause(self, part: list[Token]) -> list[Change]:
        """The changes of one clause."""
        text = shown(part)
        c = Cursor(part, self._table[0])
        if self._ordered and _is_order(part):
            return []
        self._ordered = False
        verb = c.take_any(*_VERBS)
        changes = _VERBS[verb](self, c, text) if verb is not None else self._options(c)
        return [Unsupported(self._table, clause=text)] if changes is None else changes

    # --- partitions

    def partition_command(self, tokens: list[Token]) -> list[Change] | None:
        """The change of a statement that is one command about partitions, whose names are separated by commas."""
        c = Cursor(tokens, self._table[0])
        while take_option(c, self._table, self._dialect) == [] and c.take_punct(","):  # ALGORITHM, LOCK
            pass
        start = c.at
        verb = c.take_any(*_PARTITION_VERBS)
        if verb is None:
            return None
        text = shown(c.tokens[start:])
        if verb == "CONVERT" and c.take_words("TABLE"):
            return self._from_table(c, text)
        if not c.take_words("PARTITION"):
            if verb in ("DISCARD", "IMPORT") and c.take_words("TABLESPACE"):
                return [UnknownEffect(self._table, "the rows come from a file, or go", clause=text)]
            return None
        if verb in _KEEPS_PARTITIONS:
            return [NoEffect(self._table, clause=text)]
        if verb in ("ADD", "COALESCE", "REORGANIZE"):
            return [self._changed_partitions(c, verb, text)]
        if verb in ("EXCHANGE", "CONVERT"):
            return self._exchange(c, text) if verb == "EXCHANGE" else self._to_table(c, text)
        if verb in ("DROP", "TRUNCATE"):
            if_exists, names = c.take_words("IF", "EXISTS"), _take_names(c)
            is_all = c.take_words("ALL") if not names else False
            if c.at_end() and (names or is_all):
                truncates = verb == "TRUNCATE"
                return [DropPartitions(self._table, names, truncates, if_exists, clause=text)]
        reason = "only the server knows the rows of a partition"
        return [UnknownEffect(self._table, reason, keeps_empty=verb != "IMPORT", clause=text)]

    def _changed_partitions(self, c: Cursor, verb: str, text: str) -> ChangePartitions:
        """ADD PARTITION, COALESCE PARTITION, REORGANIZE PARTITION. Text that is not understood leaves fields empty."""
        if_not_exists = c.take_words("IF", "NOT", "EXISTS")
        c.take_any("NO_WRITE_TO_BINLOG", "LOCAL")
        if verb == "COALESCE":
            return ChangePartitions(self._table, "coalesce", count=c.take_number() or 0, clause=text)
        if verb == "REORGANIZE":
            names = _take_names(c)
            listed = take_listed(c) if c.take_words("INTO") else None
            return ChangePartitions(self._table, "reorganize", names=names, listed=listed or (), clause=text)
        count = c.take_number() or 0 if c.take_words("PARTITIONS") else 0
        listed = take_listed(c)
        return ChangePartitions(
            self._table, "add", listed=listed or (), count=count, if_not_exists=if_not_exists, clause=text
        )

    def _exchange(self, c: Cursor, text: str) -> list[Change]:
        """EXCHANGE PARTITION p WITH TABLE t."""
        partition = c.take_name()
        other = c.take_table() if c.take_words("WITH", "TABLE") else None
        validates = _take_validation(c)
        if partition is None or other is None or not c.at_end():
            return self._between(other, text)
        self.others.append(other)
        return [
            MovePartition(self._table, other, partition, is_partitioned=True, validates=validates, clause=text),
            MovePartition(other, self._table, partition, is_partitioned=False, validates=validates, clause=text),
        ]

    def _to_table(self, c: Cursor, text: str) -> list[Change]:
        """CONVERT PARTITION p TO TABLE t: MariaDB makes the table like the other one, but for the partitions."""
        partition = c.take_name()
        other = c.take_table() if c.take_words("TO", "TABLE") else None
        if partition is None or other is None or not c.at_end():
            return self._between(other, text)
        self.others.append(other)
        return [
            DropPartitions(self._table, (partition,), clause=text),
            CreateTable(other, None, like=self._table, clause=text),
            ChangePartitions(other, "set", clause=text),
            MovePartition(other, self._table, partition, is_partitioned=False, clause=text),
        ]

    def _from_table(self, c: Cursor, text: str) -> list[Change]:
        """CONVERT TABLE t TO PARTITION p VALUES …, of MariaDB."""
        other = c.take_table()
        if_not_exists = c.take_words("IF", "NOT", "EXISTS")
        validation = [at for at, token in enumerate(c.rest) if token.is_word("WITH") or token.is_word("WITHOUT")]
        end = c.at + validation[0] if validation else len(c.tokens)
        added = take_partition(c.tokens[c.at : end]) if c.take_words("TO") else None
        c.at = end
        # Without validation the rows of any other partition may come.
        if other is None or added is None or if_not_exists or not _take_validation(c) or not c.at_end():
            return self._between(other, text)
        self.others.append(other)
        return [
            ChangePartitions(self._table, "add", listed=(added,), clause=text),
            MovePartition(self._table, other, None, is_partitioned=True, clause=text),
            DropTable(other, clause=text),
        ]

    def _between(self, other: TableName | None, text: str) -> list[Change]:
        """A statement that moves rows between two tables in a way that is not understood."""
        tables = [self._table]
        if other is not None:
            self.others.append(other)
            tables.append(other)
        return [UnknownEffect(table, _FOREIGN_PARTITION, clause=text) for table in tables]

    # --- clauses; each returns None for what it does not understand

    def _add(self, c: Cursor, text: str) -> list[Change] | None:
        if is_constraint(c):
            return self._constraint(c, text)
        if c.at_words("PERIOD", "FOR") or c.at_words("SYSTEM", "VERSIONING"):
            return [Unsupported(self._table, VERSIONING, clause=text)]
        c.take_words("COLUMN")
        if_not_exists = c.take_words("IF", "NOT", "EXISTS")
        group = c.take_group()
        if group is None:
            return self._new_column(c, text, if_not_exists)
        if not c.at_end():
            return None
        changes: list[Change] = []
        for part in split_commas(group):
            inner = Cursor(part, c.default_db)
            text = f"ADD {shown(part)}"
            if is_constraint(inner):
                added = self._constraint(inner, text)
            else:
                added = self._new_column(inner, text, if_not_exists)
            if added is None:
                return None
            changes += added
        return changes

    def _new_column(self, c: Cursor, text: str, if_not_exists: bool) -> list[Change] | None:
        definition = self._definition(c)
        if definition is None:
            return None
        column = AddColumn(
            self._table,
            definition.column,
            definition.first,
            definition.after,
            definition.old_rows,
            if_not_exists,
            definition.unsure_null,
            clause=text,
        )
        return [column, *self._inline_key(definition, text)]

    def _definition(self, c: Cursor) -> Definition | None:
        name = c.take_name()
        return None if name is None else take_definition(c, name, self._dialect)

    def _inline_key(self, definition: Definition, text: str) -> list[Change]:
        return [SetPrimaryKey(self._table, (definition.column.name,), clause=text)] if definition.primary else []

    def _constraint(self, c: Cursor, text: str) -> list[Change] | None:
        names = take_constraint(c)
        if names is None:
            return None
        if not names:
            return [NoEffect(self._table, clause=text)]
        return [SetPrimaryKey(self._table, names, "IF NOT EXISTS" in text, clause=text)]

    def _drop(self, c: Cursor, text: str) -> list[Change] | None:
        table = self._table
        if c.take_words("PRIMARY", "KEY"):
            if_exists = c.take_words("IF", "EXISTS")
            return [DropPrimaryKey(table, if_exists, clause=text)] if c.at_end() else None
        if c.take_any("INDEX", "KEY", "CONSTRAINT") is not None:
            if_exists = c.take_words("IF", "EXISTS")
            name = c.take_name()
            if name is None or not c.at_end():
                return None
            return [
                DropPrimaryKey(table, if_exists, clause=text)
                if name.upper() == "PRIMARY"
                else NoEffect(table, clause=text)
            ]
        if c.at_words("FOREIGN", "KEY") or c.at_words("CHECK"):
            return [NoEffect(table, clause=text)]
        if c.at_words("SYSTEM", "VERSIONING") or c.at_words("PERIOD", "FOR"):
            return [Unsupported(table, VERSIONING, clause=text)]
        c.take_words("COLUMN")
        if_exists = c.take_words("IF", "EXISTS")
        name = c.take_name()
        c.take_any("RESTRICT", "CASCADE")
        if name is None or not c.at_end() or UNREADABLE in name:
            return None
        return [DropColumn(table, name, if_exists, clause=text)]

    def _rename(self, c: Cursor, text: str) -> list[Change] | None:
        if c.take_any("INDEX", "KEY") is not None:
            return [NoEffect(self._table, clause=text)]
        if c.take_words("COLUMN"):
            if_exists = c.take_words("IF", "EXISTS")
            name = c.take_name()
            to = c.take_name() if c.take_words("TO") else None
            if name is None or to is None or not c.at_end() or UNREADABLE in name + to:
                return None
            return [RenameColumn(self._table, name, to, if_exists, clause=text)]
        _ = c.take_any("TO", "AS") or c.take_punct("=")
        other = c.take_table()
        if other is None or not c.at_end():
            return None
        self.others.append(other)
        return [RenameTable(self._table, other, clause=text)]

    def _change(self, c: Cursor, text: str) -> list[Change] | None:
        c.take_words("COLUMN")
        if_exists = c.take_words("IF", "EXISTS")
        name = c.take_name()
        return None if name is None or UNREADABLE in name else self._changed(c, name, if_exists, text)

    def _modify(self, c: Cursor, text: str) -> list[Change] | None:
        c.take_words("COLUMN")
        if_exists = c.take_words("IF", "EXISTS")
        token = c.peek()
        return None if token is None else self._changed(c, token.text, if_exists, text)

    def _changed(self, c: Cursor, name: str, if_exists: bool, text: str) -> list[Change] | None:
        definition = self._definition(c)
        if definition is None:
            return None
        change = ChangeColumn(
            self._table,
            name,
            definition.column,
            definition.first,
            definition.after,
            if_exists,
            definition.unsure_null,
            clause=text,
        )
        return [change, *self._inline_key(definition, text)]

    def _alter(self, c: Cursor, text: str) -> list[Change] | None:
        if c.take_any("INDEX", "KEY", "CHECK", "CONSTRAINT") is not None:
            return [NoEffect(self._table, clause=text)]
        c.take_words("COLUMN")
        if_exists = c.take_words("IF", "EXISTS")
        name = c.take_name()
        if name is None:
            return None
        visible = c.take_words("SET", "VISIBLE")
        if visible or c.take_words("SET", "INVISIBLE"):
            return [SetVisible(self._table, name, visible, if_exists, clause=text)] if c.at_end() else None
        if c.take_words("DROP", "DEFAULT"):
            return [SetDefault(self._table, name, None, if_exists, clause=text)] if c.at_end() else None
        if not c.take_words("SET", "DEFAULT"):
            return None
        default = take_default(c)
        if default is None or not c.at_end():
            return None
        literal, expression = default
        shown_default = default_text(None, literal, expression, self._dialect.server)
        return [SetDefault(self._table, name, shown_default, if_exists, clause=text)]

    def _convert(self, c: Cursor, text: str) -> list[Change] | None:
        if not c.take_words("TO"):
            return None
        if c.take_words("CHARACTER", "SET", "DEFAULT") or c.take_words("CHARSET", "DEFAULT"):
            charset = None
        else:
            charset = take_charset(c, self._dialect.server)
            if charset is None:
                return None
        collation = take_collation(c, self._dialect.server)
        return [ConvertCharset(self._table, charset, collation, clause=text)] if c.at_end() else None

    def _remove(self, c: Cursor, text: str) -> list[Change] | None:
        return [ChangePartitions(self._table, clause=text)] if c.take_words("PARTITIONING") and c.at_end() else None

    def _order(self, c: Cursor, text: str) -> list[Change] | None:
        if not c.take_words("BY"):
            return None
        self._ordered = True
        return [NoEffect(self._table, clause=text)] if _is_order(c.rest) else None

    def _options(self, c: Cursor) -> list[Change] | None:
        """Options that may follow one another without commas, and PARTITION BY or REMOVE PARTITIONING at their end."""
        changes: list[Change] = []
        partitioning: list[Change] = []
        text = shown(c.rest)
        while not c.at_end():
            clause = take_partitioning(c)
            if clause is not None or c.take_words("REMOVE", "PARTITIONING"):
                if not c.at_end():
                    return None
                partitions = None if clause is None else take_partitions(Cursor(clause, c.default_db))
                partitioning.append(ChangePartitions(self._table, partitions=partitions, clause=text))
                break
            option_changes = take_option(c, self._table, self._dialect)
            if option_changes is None:
                return None
            changes += option_changes
        return [*merged(changes, self._table), *partitioning] or [NoEffect(self._table, clause=text)]


def _take_names(c: Cursor) -> tuple[str, ...]:
    """Takes the names of partitions, between commas; none for ALL."""
    names: list[str] = []
    while not c.at_words("ALL") and (name := c.take_name()) is not None:
        names.append(name)
        if not c.take_punct(","):
            break
    return tuple(names)


def _take_validation(c: Cursor) -> bool:
    """Takes WITH VALIDATION or WITHOUT VALIDATION. Returns whether rows are validated, as they are by default."""
    return c.take_words("WITH", "VALIDATION") or not c.take_words("WITHOUT", "VALIDATION")


def _is_order(part: list[Token]) -> bool:
    """Whether a clause is ``name``, ``t.name`` or ``name DESC``."""
    c = Cursor(part, "")
    if c.take_table() is None:
        return False
    if c.take_punct("."):
        c.take_name()
    c.take_any("ASC", "DESC")
    return c.at_end()


_VERBS: dict[str, Callable[[_Reader, Cursor, str], list[Change] | None]] = {
    "ADD": _Reader._add,
    "DROP": _Reader._drop,
    "RENAME": _Reader._rename,
    "CHANGE": _Reader._change,
    "MODIFY": _Reader._modify,
    "ALTER": _Reader._alter,
    "CONVERT": _Reader._convert,
    "REMOVE": _Reader._remove,
    "ORDER": _Reader._order,
}
