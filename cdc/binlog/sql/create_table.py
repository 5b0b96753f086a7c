"""CREATE TABLE: the definition of a new table."""

from __future__ import annotations

from dataclasses import dataclass, field

from cdc.binlog.sql.changes import Change, CreateTable, SetTableCharset, TableName, UnknownEffect, Unsupported
from cdc.binlog.sql.columns import Dialect, take_definition
from cdc.binlog.sql.partitions import Partitions, take_partitions
from cdc.binlog.sql.schemas import ColumnSchema, TableSchema
from cdc.binlog.sql.table_options import merged, take_option, take_partitioning
from cdc.binlog.sql.tokens import Cursor, Token, outer_words, split_commas
from cdc.binlog.sql.types import with_table_charset

_QUERY_WORDS = ("SELECT", "VALUES", "WITH", "TABLE")
INDEX_WORDS = ("INDEX", "KEY", "FULLTEXT", "SPATIAL", "UNIQUE", "CHECK", "FOREIGN")


@dataclass(slots=True)
class _Elements:
    """The content of the parentheses of CREATE TABLE."""

    columns: list[ColumnSchema] = field(default_factory=list)
    key: tuple[str, ...] = ()


def create_changes(
    c: Cursor, table: TableName, dialect: Dialect, *, replaces: bool, if_not_exists: bool
) -> list[Change]:
    """The changes of a CREATE TABLE, from behind its name."""
    clause = f"CREATE {'OR REPLACE ' if replaces else ''}TABLE `{table[0]}`.`{table[1]}`"
    rest = c.rest
    words = outer_words(rest)
    like = _like(rest, c.default_db)
    if like is not None:
        return [CreateTable(table, None, like, replaces=replaces, if_not_exists=if_not_exists, clause=clause)]
    if _opens_query(rest) or any(w in _QUERY_WORDS and not _is_option(words, i) for i, w in enumerate(words)):
        return [
            CreateTable(
                table,
                None,
                has_rows=True,
                selects=True,
                replaces=replaces,
                if_not_exists=if_not_exists,
                clause=clause,
            )
        ]
    elements = _elements(c, dialect)
    changes, partitions, unknown = _options(c, table, dialect)
    rows = c.take_words("START", "TRANSACTION")
    schema = None
    effects = [change for change in changes if isinstance(change, UnknownEffect | Unsupported)]
    if elements is not None and c.at_end() and not unknown:
        charset = next((change for change in changes if isinstance(change, SetTableCharset)), None)
        schema = _schema(elements, charset)
    else:
        rows = rows or "TRANSACTION" in words[-1:]
    create = CreateTable(
        table,
        schema,
        has_rows=rows,
        replaces=replaces,
        if_not_exists=if_not_exists,
        partitions=partitions,
        clause=clause,
    )
    return [create, *effects]


def _opens_query(tokens: list[Token]) -> bool:
    """Whether a query stands in parentheses that are not within others."""
    depth, opens = 0, False
    for token in tokens:
        punct = token.text if token.kind == "punct" else ""
        if punct == "(":
            opens = opens or depth == 0
            depth += 1
        elif punct == ")":
            depth, opens = depth - 1, False
        elif opens and token.is_word(*_QUERY_WORDS):
            return True
        else:
            opens = False
    return False


def _is_option(words: list[str], at: int) -> bool:
    """Whether a word is part of ``WITH SYSTEM VERSIONING`` of a table, or ``VALUES LESS THAN`` or ``VALUES IN`` of a
    partition, which bring no rows."""
    following = words[at + 1 : at + 2]
    return following in (["SYSTEM"], ["LESS"], ["IN"])


def _like(rest: list[Token], default_db: str) -> TableName | None:
    """The table of ``LIKE t`` or ``(LIKE t)``."""
    c = Cursor(rest, default_db)
    opened = c.take_punct("(")
    if not c.take_words("LIKE"):
        return None
    table = c.take_table()
    if opened:
        c.take_punct(")")
    return table if c.at_end() else None


def _options(c: Cursor, table: TableName, dialect: Dialect) -> tuple[list[Change], Partitions | None, bool]:
    """The changes of the table's options, its partitions, and whether the options leave the definition open."""
    changes: list[Change] = []
    partitions: Partitions | None = None
    while not c.at_end() and not c.at_words("START", "TRANSACTION"):
        clause = take_partitioning(c)
        if clause is not None:
            partitions = take_partitions(Cursor(clause, c.default_db))
            continue
        option_changes = take_option(c, table, dialect)
        if option_changes is None:
            return merged(changes, table), None, True
        changes += option_changes
        c.take_punct(",")
    return merged(changes, table), partitions, any(isinstance(change, Unsupported) for change in changes)


def _elements(c: Cursor, dialect: Dialect) -> _Elements | None:
    group = c.take_group()
    if group is None:
        return None
    elements = _Elements()
    for part in split_commas(group):
        if not _element(Cursor(part, c.default_db), elements, dialect):
            return None
    return elements


def _element(c: Cursor, elements: _Elements, dialect: Dialect) -> bool:
    """Adds one element. Returns whether it is understood."""
    if is_constraint(c):
        constraint = take_constraint(c)
        if constraint is None:
            return False
        elements.key = constraint or elements.key
        return True
    if c.at_words("PERIOD", "FOR"):
        return False
    name = c.take_name()
    definition = take_definition(c, name, dialect) if name is not None else None
    if definition is None or definition.first or definition.after is not None:
        return False
    elements.columns.append(definition.column)
    if definition.primary:
        elements.key = (definition.column.name,)
    return True


def _schema(elements: _Elements, charset: SetTableCharset | None) -> TableSchema:
    names = {column.name.lower(): column.name for column in elements.columns}
    key = tuple(names.get(name.lower(), name) for name in elements.key)
    columns = []
    for column in elements.columns:
        if charset is not None:
            column = with_table_charset(column, charset.charset, charset.collation)
        columns.append(column.model_copy(update={"nullable": False}) if column.name in key else column)
    return TableSchema(
        columns=tuple(columns),
        primary_key=key,
        charset=charset.charset if charset is not None else None,
        collation=charset.collation if charset is not None else None,
    )


# --- constraints, of CREATE TABLE and of ALTER TABLE … ADD


def is_constraint(c: Cursor) -> bool:
    """Whether a key, an index or a constraint comes next, and no column."""
    token = c.peek()
    if token is None:
        return False
    if token.is_word("CONSTRAINT", "PRIMARY", *INDEX_WORDS):
        return True
    return token.is_word("VECTOR") and (c.at_words("VECTOR", "INDEX") or c.at_words("VECTOR", "KEY"))


def take_constraint(c: Cursor) -> tuple[str, ...] | None:
    """Takes a constraint to the end. Returns the columns of a primary key, ``()`` for another constraint, None if it is
    not understood."""
    if c.take_words("CONSTRAINT"):
        c.take_words("IF", "NOT", "EXISTS")
        token = c.peek()
        if token is not None and not token.is_word("PRIMARY", *INDEX_WORDS):
            c.at += 1  # its name
    if not c.take_words("PRIMARY", "KEY"):
        token = c.peek()
        if token is None or not token.is_word("VECTOR", *INDEX_WORDS):
            return None
        c.at = len(c.tokens)
        return ()
    c.take_words("IF", "NOT", "EXISTS")
    if (token := c.peek()) is not None and token.kind in ("word", "quoted") and not token.is_word("USING"):
        c.at += 1  # a name, which the server ignores
    if c.take_words("USING"):
        c.take_name()
    group = c.take_group()
    names = [_key_part(part) for part in split_commas(group)] if group is not None else []
    if not names or None in names:
        return None
    return tuple(name for name in names if name is not None)


def _key_part(part: list[Token]) -> str | None:
    """The column of ``name``, ``name(10)`` or ``name DESC``; None for an expression."""
    c = Cursor(part, "")
    name = c.take_name()
    c.take_group()
    c.take_any("ASC", "DESC")
    return name if c.at_end() else None
