"""Follows a table's definition through the changes of DDL statements.

``plan_columns`` combines the clauses of one ALTER TABLE, which act at once, into the columns afterwards, each with the
one that it comes from. ``apply_changes`` gives the definition afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cdc.base.errors import UnsupportedDdlError
from cdc.binlog.sql import defaults
from cdc.binlog.sql.changes import (
    AddColumn,
    Change,
    ChangeColumn,
    Constant,
    ConvertCharset,
    CreateTable,
    DropColumn,
    DropDatabase,
    DropPrimaryKey,
    DropTable,
    Null,
    OldRows,
    RenameColumn,
    SetDefault,
    SetPrimaryKey,
    SetTableCharset,
    SetVisible,
    Unknown,
    UnknownEffect,
    Unsupported,
)
from cdc.binlog.sql.schemas import INVISIBLE, ColumnSchema, TableSchema, charset_of_collation
from cdc.binlog.sql.types import TEXTS, converted, with_table_charset

WAY_OUT = "Fill the table anew with `cdc snapshot`, which reads its definition from the source."


@dataclass(frozen=True, slots=True)
class TrackedColumn:
    """A column after a statement."""

    column: ColumnSchema
    old: ColumnSchema | None
    """The column that it was before; None if it is new."""
    old_rows: OldRows | None = None
    """For a new column: its value in old rows."""
    defined: bool = False
    """Whether the statement gives its definition."""


@dataclass(frozen=True, slots=True)
class TrackedTable:
    """A table after a statement, and what becomes of its columns."""

    schema: TableSchema
    columns: tuple[TrackedColumn, ...]
    dropped: tuple[ColumnSchema, ...]
    """The columns that are gone."""


def apply_changes(schema: TableSchema | None, changes: Sequence[Change]) -> TableSchema | None:
    """The definition after one statement. ``changes`` are the statement's that concern this table, in their order;
    ``schema`` is None if there is no table, and so is the result.

    Renaming a table does not change its definition. CREATE TABLE … LIKE and … SELECT do not tell it, so they raise, as
    do all statements that contradict ``schema`` (an unknown column, a column that is there already) or have a clause
    that is not understood: UnsupportedDdlError.
    """
    result = schema
    alter: list[Change] = []
    for change in changes:
        match change:
            case CreateTable():
                result = _created(result, change)
            case DropTable() | DropDatabase():
                result = None
            case Unsupported():
                raise _contradiction(
                    change, f"is not supported: {change.reason}" if change.reason else "is not understood"
                )
            case UnknownEffect():
                pass
            case _:
                alter.append(change)
    if result is None or not alter:
        return result
    return plan_columns(result, alter).schema


def _created(before: TableSchema | None, change: CreateTable) -> TableSchema | None:
    if before is not None and change.if_not_exists:
        return before
    if before is not None and not change.replaces:
        raise _contradiction(change, "creates a table that is there already")
    if change.schema is None:
        raise _contradiction(change, "does not tell the table's columns")
    return change.schema


def plan_columns(schema: TableSchema, changes: Iterable[Change]) -> TrackedTable:
    """Returns a table's columns after one ALTER TABLE. Raises UnsupportedDdlError for changes that contradict
    ``schema``."""
    draft = _Draft(schema)
    later = [change for change in changes if not draft.take_old(change)]
    for change in later:
        draft.take_new(change)
    return draft.plan()


@dataclass(slots=True)
class _Column:
    column: ColumnSchema
    old: ColumnSchema | None
    old_rows: OldRows | None = None
    defined: bool = False
    """Whether the statement gives its definition."""


class _Draft:
    """The columns of a table while the clauses of a statement are combined, as the server does it: first the columns
    that are there are dropped, changed and renamed, then new and moved ones are put in their places."""

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._columns = [_Column(column, column) for column in schema.columns]
        self._before = {column.name.lower(): slot for column, slot in zip(schema.columns, self._columns, strict=True)}
        self._generated_key = self._columns[0] if _has_generated_key(schema) else None
        self._dropped: list[ColumnSchema] = []
        self._key: tuple[str, ...] | None = None
        """The columns of a new primary key, by their new names."""
        self._last: list[Change] = []
        self._drops_key = False
        self._charset, self._collation = schema.charset, schema.collation
        self._convert: ConvertCharset | None = None

    def take_old(self, change: Change) -> bool:
        """Applies a change to the columns that are there. Returns False if it has to wait for the others."""
        match change:
            case DropColumn():
                slot = self._find(change, change.name, change.if_exists)
                if slot is not None:
                    self._columns.remove(slot)
                    del self._before[change.name.lower()]
                    self._dropped.append(slot.column)
            case RenameColumn():
                slot = self._find(change, change.name, change.if_exists)
                if slot is not None:
                    slot.column = slot.column.model_copy(update={"name": change.to})
            case ChangeColumn():
                slot = self._before.get(change.name.lower())
                if slot is None:
                    return change.if_exists
                slot.column, slot.defined = change.column, True
                return not change.first and change.after is None
            case SetDefault() | SetVisible():
                slot = self._before.get(change.name.lower())
                if slot is None:
                    self._last.append(change)
                else:
                    slot.column = _with_attribute(slot.column, change)
            case SetPrimaryKey():
                self._last.append(change)
            case DropPrimaryKey():
                if not self._schema.primary_key and not change.if_exists:
                    raise _contradiction(change, "drops a primary key, and there is none")
                self._drops_key = True
            case SetTableCharset():
                self._charset = change.charset or charset_of_collation(change.collation) or self._charset
                self._collation = change.collation
            case ConvertCharset():
                self._convert = change
            case _:
                return False
        return True

    def take_new(self, change: Change) -> None:
        """Applies a change that puts columns in their places."""
        match change:
            case AddColumn():
                present = self._at(change.column.name)
                if present is not None:
                    if change.if_not_exists:
                        return
                    raise _contradiction(change, f"adds the column {change.column.name}, which is there already")
                slot = _Column(change.column, None, change.old_rows, defined=True)
                self._columns.append(slot)
                self._move(change, slot, change.first, change.after)
            case ChangeColumn():
                slot = self._before.get(change.name.lower()) or self._added(change)
                self._move(change, slot, change.first, change.after)
            case _:
                return

    def plan(self) -> TrackedTable:
        """The columns after the statement. Raises UnsupportedDdlError if two have one name."""
        for change in self._last:
            self._take_last(change)
        names = [slot.column.name.lower() for slot in self._columns]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UnsupportedDdlError(f"the statement gives two columns the name {twice}", remedy=WAY_OUT)
        key = self._key or self._old_key()
        charset, collation = self._charset, self._collation
        if self._convert is not None:
            charset, collation = self._convert.charset or charset, self._convert.collation
        planned = [self._planned(slot, self._finished(slot, key, charset, collation)) for slot in self._columns]
        schema = TableSchema(
            columns=tuple(column.column for column in planned), primary_key=key, charset=charset, collation=collation
        )
        return TrackedTable(schema, tuple(planned), tuple(self._dropped))

    def _planned(self, slot: _Column, column: ColumnSchema) -> TrackedColumn:
        old_rows = slot.old_rows
        if isinstance(old_rows, Null) and not column.nullable:
            old_rows = Unknown("it becomes a part of the primary key")
        elif isinstance(old_rows, Constant):
            old_rows = defaults.in_type(column, old_rows)
        return TrackedColumn(column, slot.old, old_rows, slot.defined)

    def _take_last(self, change: Change) -> None:
        """Applies a change that may name any column there is afterwards."""
        match change:
            case SetDefault() | SetVisible():
                slot = self._at(change.name)
                if slot is None and not change.if_exists:
                    raise _contradiction(change, f"names the column {change.name}, which is not there")
                if slot is not None:
                    slot.column = _with_attribute(slot.column, change)
            case SetPrimaryKey():
                if self._key is not None or self._old_key():
                    if change.if_not_exists:
                        return
                    raise _contradiction(change, "adds a primary key, and there is one")
                self._key = tuple(self._named(change, name).column.name for name in change.columns)
            case _:
                return

    def _old_key(self) -> tuple[str, ...]:
        """The columns that are left of the primary key, which goes with the last of them."""
        if self._drops_key:
            return ()
        left = {slot.old.name.lower(): slot.column.name for slot in self._columns if slot.old is not None}
        # A new column takes the place of the one of its name that the statement drops.
        added = {slot.column.name.lower(): slot.column.name for slot in self._columns if slot.old is None}
        names = (left.get(name.lower()) or added.get(name.lower()) for name in self._schema.primary_key)
        return tuple(name for name in names if name is not None)

    def _finished(
        self, slot: _Column, key: tuple[str, ...], charset: str | None, collation: str | None
    ) -> ColumnSchema:
        column = slot.column
        if slot.defined:
            column = with_table_charset(column, charset, collation)
        if self._convert is not None and (column.data_type in TEXTS):
            column = converted(column, charset, collation)
        return column.model_copy(update={"nullable": False}) if column.name in key and column.nullable else column

    # --- finding columns

    def _find(self, change: Change, name: str, if_exists: bool) -> _Column | None:
        slot = self._before.get(name.lower())
        if slot is None and not if_exists:
            raise _contradiction(change, f"names the column {name}, which is not there")
        return slot

    def _at(self, name: str) -> _Column | None:
        return next((slot for slot in self._columns if slot.column.name.lower() == name.lower()), None)

    def _named(self, change: Change, name: str) -> _Column:
        slot = self._at(name)
        if slot is None:
            raise _contradiction(change, f"names the column {name}, which is not there")
        return slot

    def _added(self, change: ChangeColumn) -> _Column:
        """The column that a clause before has added, and that ``change`` defines anew: it goes to the end."""
        slot = self._at(change.column.name)
        if slot is None or slot.old is not None:
            raise _contradiction(change, f"names the column {change.name}, which is not there")
        self._columns.remove(slot)
        slot = _Column(change.column, None, Unknown("one statement adds and changes it"), defined=True)
        self._columns.append(slot)
        return slot

    def _move(self, change: Change, slot: _Column, first: bool, after: str | None) -> None:
        if not first and after is None:
            return
        self._columns.remove(slot)
        if first or after is None:
            index = 1 if self._columns[:1] == [self._generated_key] else 0
        else:
            index = self._columns.index(self._named(change, after)) + 1
        self._columns.insert(index, slot)


def _has_generated_key(schema: TableSchema) -> bool:
    """Whether the first column is the primary key that MySQL generates (``sql_generate_invisible_primary_key``). The
    server knows it by its definition alone, and keeps it in front of columns that are put FIRST. MariaDB, which has no
    such key, shows the type as ``bigint(20) unsigned``."""
    column = schema.columns[0] if schema.columns else None
    return (
        column is not None
        and schema.primary_key == (column.name,)
        and column.name.lower() == "my_row_id"
        and column.column_type == "bigint unsigned"
        and column.attributes == ("auto_increment",)
        and INVISIBLE in column.extra
    )


def _with_attribute(column: ColumnSchema, change: SetDefault | SetVisible) -> ColumnSchema:
    if isinstance(change, SetDefault):
        return column.model_copy(update={"default": change.default})
    words = column.attributes if change.visible else (*column.attributes, INVISIBLE)
    return column.model_copy(update={"extra": " ".join(words)})


def _contradiction(change: Change, what: str) -> UnsupportedDdlError:
    table = None if isinstance(change, DropDatabase) else change.table
    place = "a database" if table is None else f"table {table[0]}.{table[1]}"
    return UnsupportedDdlError(f"the statement's clause {change.clause} {what}", place=place, remedy=WAY_OUT)
