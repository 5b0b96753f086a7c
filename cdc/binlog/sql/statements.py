"""Classifies the statement of a QUERY event: its kind, the tables that it names, and what it changes in them.

MySQL's and MariaDB's SQL is read conservatively: a statement that is not certainly harmless is reported as
``unknown``, and a clause that is not understood as ``Unsupported``, so that it stops capture or apply instead of
passing silently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cdc.base.patterns import lower_name
from cdc.binlog.sql.alter_table import alter_changes
from cdc.binlog.sql.changes import (
    Change,
    CreateTable,
    DropDatabase,
    DropPrimaryKey,
    DropTable,
    NoEffect,
    RenameTable,
    SetDefault,
    TableName,
    TruncateTable,
    Unsupported,
)
from cdc.binlog.sql.columns import Dialect
from cdc.binlog.sql.create_table import create_changes
from cdc.binlog.sql.moment import Moment
from cdc.binlog.sql.server import LATEST, ServerVersion
from cdc.binlog.sql.tokens import Cursor, Token, shown, tokenize, word_set

StatementKind = Literal["ddl", "dml", "transaction", "other", "unknown"]

__all__ = ["Statement", "StatementKind", "classify"]


@dataclass(frozen=True, slots=True)
class Statement:
    """A classified statement.

    ``ddl``: defines tables or databases. ``dml``: changes rows by its text. ``transaction``: BEGIN, COMMIT,
    SAVEPOINT, XA…. ``other``: no effect on tables (GRANT, CREATE VIEW, FLUSH…). ``unknown``: none of these.
    """

    kind: StatementKind
    verb: str
    """Its first words in capitals: ``ALTER TABLE``, ``DROP DATABASE``, ``XA START``."""
    tables: tuple[TableName, ...] = ()
    """Every (database, table) that it may touch, except temporary tables."""
    databases: tuple[str, ...] = ()
    """For CREATE, ALTER and DROP DATABASE: the database."""
    changes: tuple[Change, ...] = ()
    """For ``ddl``: what it changes, clause by clause."""
    objects: tuple[TableName, ...] = ()
    """For CREATE and DROP of temporary tables and of sequences: their names."""
    savepoint: str | None = None
    """For SAVEPOINT and ROLLBACK TO: the savepoint's name."""
    any_table: bool = False
    """Whether it may change tables that its text does not name (SELECT of a function, CALL, an unknown statement)."""

    @property
    def leaves_rows_alone(self) -> bool:
        """Whether no row and no column of an existing table changes: a new table without rows, an index, a comment."""
        if self.kind == "other":
            return True
        return self.kind == "ddl" and all(map(_leaves_rows_alone, self.changes))


def _leaves_rows_alone(change: Change) -> bool:
    if isinstance(change, CreateTable):
        return not change.has_rows and not change.replaces
    return isinstance(change, NoEffect | SetDefault)


_OTHER = word_set(
    """GRANT REVOKE SET FLUSH RESET INSTALL UNINSTALL OPTIMIZE REPAIR CHECK CHECKSUM LOCK UNLOCK USE SHOW HELP KILL
    CACHE PREPARE DEALLOCATE SIGNAL RESIGNAL GET PURGE STOP CLONE RESTART SHUTDOWN DESCRIBE DESC EXPLAIN BACKUP CHANGE
    """
)
_OBJECTS = word_set(
    """USER ROLE VIEW TRIGGER PROCEDURE FUNCTION EVENT SERVER TABLESPACE LOGFILE RESOURCE SPATIAL PACKAGE SEQUENCE
    INSTANCE LIBRARY CATALOG MASKING"""
)
_TRANSACTION = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "XA")
_MODIFIERS = ("LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "QUICK", "IGNORE", "CONCURRENT", "LOCAL")


def classify(
    sql: str,
    default_db: str,
    sql_mode: int = 0,
    server: ServerVersion | None = None,
    *,
    ignores_case: bool = False,
    moment: Moment | None = None,
) -> Statement:
    """Classifies one statement. ``default_db`` is the session's database (``""``: none), ``sql_mode`` is the event's.

    ``server`` is the one that wrote the statement. Kind and tables do not depend on it, only how ``changes`` write
    columns: a JSON is a ``longtext`` on MariaDB. Without it, columns are written as MySQL writes them. With
    ``ignores_case`` (``lower_case_table_names`` 1 and 2) the names of databases and tables are in lower case. With
    ``moment`` the value of CURRENT_TIMESTAMP in old rows is known.

    Never raises: a text that cannot be read is ``unknown``.
    """
    written_by = server or LATEST
    tokens = tokenize(sql, sql_mode, mysql=server is not None and not server.mariadb)
    statement = _statement(_Statement(tokens, default_db, Dialect(written_by, sql_mode, moment)))
    return _in_lower_case(statement) if ignores_case else statement


def _in_lower_case(statement: Statement) -> Statement:
    return replace(
        statement,
        tables=tuple(dict.fromkeys(map(_lower, statement.tables))),
        databases=tuple(map(lower_name, statement.databases)),
        changes=tuple(map(_lower_change, statement.changes)),
        objects=tuple(map(_lower, statement.objects)),
    )


def _lower(table: TableName) -> TableName:
    return lower_name(table[0]), lower_name(table[1])


def _lower_change(change: Change) -> Change:
    if isinstance(change, DropDatabase):
        return replace(change, db=lower_name(change.db))
    if change.table is None:
        return change
    table = _lower(change.table)
    if isinstance(change, RenameTable):
        to = _lower(change.to)
        # A new name that differs in its letters only is the old one.
        return NoEffect(table, clause=change.clause) if to == table else replace(change, table=table, to=to)
    if isinstance(change, CreateTable):
        return replace(change, table=table, like=None if change.like is None else _lower(change.like))
    return replace(change, table=table)


class _Statement(Cursor):
    """The tokens of a statement, and what their meaning depends on."""

    def __init__(self, tokens: list[Token], default_db: str, dialect: Dialect) -> None:
        super().__init__(tokens, default_db)
        self.dialect = dialect


def _statement(c: _Statement) -> Statement:
    while c.take_punct("(") or c.take_punct(";"):
        pass
    first = c.peek()
    if first is None:
        return Statement("other", "")
    if first.kind != "word":
        return Statement("unknown", first.text, any_table=True)
    c.at += 1
    verb = first.text.upper()
    if verb in _TRANSACTION:
        second = c.peek()
        name = f"XA {second.text.upper()}" if verb == "XA" and second is not None else verb
        if verb == "SAVEPOINT":
            return Statement("transaction", name, savepoint=c.take_name())
        if verb == "ROLLBACK":
            c.take_any("WORK")
            if c.take_words("TO"):
                c.take_words("SAVEPOINT")
                return Statement("transaction", "ROLLBACK TO", savepoint=c.take_name())
        return Statement("transaction", name)
    if verb == "START":
        return Statement("transaction" if c.at_words("TRANSACTION") else "other", "START")
    if verb == "SET" and c.take_words("STATEMENT"):  # MariaDB: SET STATEMENT variable = value FOR statement
        while (token := c.peek()) is not None:
            c.at += 1
            if token.is_word("FOR"):
                return _statement(c)
        return Statement("other", "SET")
    if verb in _OTHER:
        return Statement("other", verb)
    if verb == "ANALYZE":
        c.take_any("NO_WRITE_TO_BINLOG", "LOCAL")
        if c.at_words("TABLE") or c.at_words("TABLES"):
            return Statement("other", verb)
        while (token := c.peek()) is not None and not token.is_word(
            *_DML
        ):  # MariaDB executes the statement that it analyses
            c.at += 1
        return _statement(c)
    if verb in _DDL:
        return _DDL[verb](c)
    if verb in _DML:
        return _dml(verb, c)
    return Statement("unknown", verb, any_table=True)


# --- DDL ---------------------------------------------------------------------------------------------------------


def _create(c: _Statement) -> Statement:
    replace = c.take_words("OR", "REPLACE")
    temporary = c.take_words("TEMPORARY")
    if c.take_any("TABLE", "TABLES") is not None:
        return _create_table(c, replace, temporary)
    if c.take_any("DATABASE", "SCHEMA") is not None:
        c.take_words("IF", "NOT", "EXISTS")
        name = c.take_name() or c.default_db
        clause = f"CREATE DATABASE `{name}`"
        drop = (DropDatabase(name, True, clause=f"CREATE OR REPLACE DATABASE `{name}`"),) if replace else ()
        return Statement("ddl", "CREATE DATABASE", (), (name,), (*drop, NoEffect(None, clause=clause)))
    return _create_other(c)


def _create_table(c: _Statement, replace: bool, temporary: bool) -> Statement:
    if_not_exists = c.take_words("IF", "NOT", "EXISTS")
    table = c.take_table()
    if table is None:
        return Statement("unknown", "CREATE TABLE", any_table=True)
    if temporary:
        return Statement("other", "CREATE TEMPORARY TABLE", objects=(table,))
    if _is_sequence(c.rest):
        return Statement("other", "CREATE SEQUENCE", objects=(table,))
    rest = Cursor(_without_semicolon(c.rest), c.default_db)
    changes = create_changes(rest, table, c.dialect, replaces=replace, if_not_exists=if_not_exists)
    return Statement("ddl", "CREATE TABLE", (table,), (), tuple(changes))


def _is_sequence(tokens: list[Token]) -> bool:
    """Whether the options of CREATE TABLE make a sequence (MariaDB: ``SEQUENCE=1``), as SHOW CREATE TABLE prints it."""
    options = Cursor(tokens, "")
    while options.peek() is not None:
        if options.take_any("SEQUENCE") is not None:
            options.take_punct("=")
            return options.take_number() == 1
        if options.take_group() is None:
            options.at += 1
    return False


def _without_semicolon(tokens: list[Token]) -> list[Token]:
    end = len(tokens)
    while end and tokens[end - 1].kind == "punct" and tokens[end - 1].text == ";":
        end -= 1
    return tokens[:end]


def _create_other(c: Cursor) -> Statement:
    """Classifies CREATE INDEX … ON table, and CREATE of objects that are not tables."""
    while (token := c.peek()) is not None:
        c.at += 1
        if token.is_word("INDEX", "KEY"):
            return _index(c, "CREATE INDEX")
        if token.is_word("SEQUENCE"):
            c.take_words("IF", "NOT", "EXISTS")
            name = c.take_table()
            return Statement("other", "CREATE SEQUENCE", objects=() if name is None else (name,))
        if token.is_word(*_OBJECTS):
            return Statement("other", f"CREATE {token.text.upper()}")
        if not _passes(token, c):
            break
    return Statement("unknown", "CREATE", any_table=True)


def _passes(token: Token, c: Cursor) -> bool:
    """Words between CREATE or DROP or ALTER and what it is about: DEFINER = user, ALGORITHM = …, UNIQUE, AGGREGATE."""
    if token.is_word("DEFINER", "ALGORITHM"):
        if c.take_punct("="):  # not so in SQL SECURITY DEFINER
            c.at += 1
            if c.take_punct("@"):
                c.at += 1
            c.skip_group()
        return True
    return token.is_word(
        "ONLINE", "OFFLINE", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR", "AGGREGATE", "SQL", "SECURITY", "DEFINER",
        "INVOKER", "UNDO", "BODY", "PUBLIC", "DEFAULT", "JSON", "RELATIONAL", "DUALITY", "NO", "FORCE", "EXTERNAL",
    )  # fmt: skip


def _index(c: Cursor, verb: str) -> Statement:
    c.take_words("IF", "NOT", "EXISTS")
    c.take_words("IF", "EXISTS")
    name = c.take_name()
    while (token := c.peek()) is not None:
        c.at += 1
        if token.is_word("ON"):
            table = c.take_table()
            if table is None:
                break
            primary = verb == "DROP INDEX" and name is not None and name.upper() == "PRIMARY"
            clause = f"{verb} `{name}`"
            change = DropPrimaryKey(table, clause=clause) if primary else NoEffect(table, clause=clause)
            return Statement("ddl", verb, (table,), (), (change,))
    return Statement("unknown", verb, any_table=True)


def _drop(c: _Statement) -> Statement:
    temporary = c.take_words("TEMPORARY")
    if c.take_any("TABLE", "TABLES") is not None:
        if_exists = c.take_words("IF", "EXISTS")
        tables = _table_list(c)
        if temporary:
            return Statement("other", "DROP TEMPORARY TABLE", objects=tuple(tables))
        c.take_any("RESTRICT", "CASCADE")
        return _over(c, "DROP TABLE", tables, [DropTable(t, if_exists, clause=_named("DROP TABLE", t)) for t in tables])
    if c.take_any("DATABASE", "SCHEMA") is not None:
        if_exists = c.take_words("IF", "EXISTS")
        name = c.take_name() or c.default_db
        change = DropDatabase(name, if_exists, clause=f"DROP DATABASE `{name}`")
        return Statement("ddl", "DROP DATABASE", (), (name,), (change,))
    if c.take_any("PREPARE") is not None:
        return Statement("other", "DROP PREPARE")
    while (token := c.peek()) is not None:
        c.at += 1
        if token.is_word("INDEX"):
            return _index(c, "DROP INDEX")
        if token.is_word("SEQUENCE"):
            c.take_words("IF", "EXISTS")
            return Statement("other", "DROP SEQUENCE", objects=tuple(_table_list(c)))
        if token.is_word(*_OBJECTS):
            return Statement("other", f"DROP {token.text.upper()}")
        if not _passes(token, c):
            break
    return Statement("unknown", "DROP", any_table=True)


def _alter(c: _Statement) -> Statement:
    ignore = False
    while (word := c.take_any("ONLINE", "OFFLINE", "IGNORE")) is not None:
        ignore = ignore or word == "IGNORE"
    if c.take_words("TABLE"):
        c.take_words("IF", "EXISTS")
        table = c.take_table()
        if table is None:
            return Statement("unknown", "ALTER TABLE", any_table=True)
        if c.take_any("WAIT") is not None:
            c.at += 1
        c.take_any("NOWAIT")
        changes, others = alter_changes(table, _without_semicolon(c.rest), c.dialect, ignore=ignore)
        return Statement("ddl", "ALTER TABLE", (table, *others), (), tuple(changes))
    if c.take_any("DATABASE", "SCHEMA") is not None:
        token = c.peek()
        options = ("DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "COMMENT", "READ", "ENCRYPTION", "UPGRADE")
        named = token is not None and not token.is_word(*options)
        name = (c.take_name() if named else None) or c.default_db
        return Statement("ddl", "ALTER DATABASE", (), (name,), (NoEffect(None, clause=f"ALTER DATABASE `{name}`"),))
    while (token := c.peek()) is not None:
        c.at += 1
        if token.is_word(*_OBJECTS):
            return Statement("other", f"ALTER {token.text.upper()}")
        if not _passes(token, c):
            break
    return Statement("unknown", "ALTER", any_table=True)


def _rename(c: _Statement) -> Statement:
    if c.take_any("TABLE", "TABLES") is None:
        return Statement("other" if c.at_words("USER") else "unknown", "RENAME", any_table=not c.at_words("USER"))
    if_exists = c.take_words("IF", "EXISTS")
    names = _table_list(c, "TO")
    changes = [
        RenameTable(old, new, if_exists, clause=f"{_named('RENAME TABLE', old)} TO `{new[0]}`.`{new[1]}`")
        for old, new in zip(names[::2], names[1::2], strict=False)
    ]
    return _over(c, "RENAME TABLE", names, changes, whole=len(names) % 2 == 0)


def _truncate(c: _Statement) -> Statement:
    c.take_words("TABLE")
    tables = _table_list(c)
    changes = [TruncateTable(table, clause=_named("TRUNCATE TABLE", table)) for table in tables]
    return _over(c, "TRUNCATE TABLE", tables, changes)


def _named(verb: str, table: TableName) -> str:
    return f"{verb} `{table[0]}`.`{table[1]}`"


def _over(
    c: _Statement, verb: str, tables: list[TableName], changes: Sequence[Change], *, whole: bool = True
) -> Statement:
    """A statement about a list of tables. What follows the list makes it unsupported, and so does half a pair."""
    if not tables:
        return Statement("unknown", verb, any_table=True)
    rest = _without_semicolon(c.rest)
    if rest or not whole:
        changes = [Unsupported(table, clause=f"{_named(verb, table)} {shown(rest)}".rstrip()) for table in tables]
    return Statement("ddl", verb, tuple(dict.fromkeys(tables)), (), tuple(changes))


def _table_list(c: _Statement, between: str = "") -> list[TableName]:
    """Takes ``a, b.c``; with TO between the names of a pair: ``a TO b, c TO d``."""
    tables: list[TableName] = []
    while (table := c.take_table()) is not None:
        tables.append(table)
        if c.take_any("WAIT") is not None:
            c.at += 1
        c.take_any("NOWAIT")
        separated = c.take_words(between) if between and len(tables) % 2 else c.take_punct(",")
        if not separated:
            break
    return tables


def _import(c: _Statement) -> Statement:
    return Statement("ddl", "IMPORT TABLE", any_table=True, changes=(Unsupported(None, clause="IMPORT TABLE"),))


_DDL = {
    "CREATE": _create,
    "DROP": _drop,
    "ALTER": _alter,
    "RENAME": _rename,
    "TRUNCATE": _truncate,
    "IMPORT": _import,
}


# --- DML ---------------------------------------------------------------------------------------------------------

_DML = ("INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD", "WITH", "SELECT", "DO", "CALL", "HANDLER", "EXECUTE")


def _dml(verb: str, c: Cursor) -> Statement:
    if verb in ("SELECT", "DO", "CALL", "HANDLER", "EXECUTE"):
        # Servers log it when a function or procedure in it changed rows; its text does not name the tables.
        return Statement("dml", verb, any_table=True)
    if verb == "WITH":
        while (token := c.peek()) is not None:
            if token.is_word("SELECT", "UPDATE", "DELETE"):
                c.at += 1
                return _dml(token.text.upper(), c)
            if token.kind == "punct" and token.text == "(":
                c.skip_group()
            else:
                c.at += 1
        return Statement("unknown", verb, any_table=True)
    while c.take_any(*_MODIFIERS) is not None:
        pass
    if verb in ("INSERT", "REPLACE"):
        c.take_words("INTO")
        table = c.take_table()
        return Statement("dml", verb, (table,) if table is not None else (), any_table=table is None)
    if verb == "LOAD":
        while (token := c.peek()) is not None:
            c.at += 1
            if token.is_word("TABLE"):
                table = c.take_table()
                return Statement("dml", verb, (table,) if table is not None else (), any_table=table is None)
        return Statement("unknown", verb, any_table=True)
    if verb == "DELETE" and (emptied := _emptied_by_server(c)) is not None:
        change = TruncateTable(emptied, clause=_named("DELETE FROM", emptied))
        return Statement("ddl", verb, (emptied,), (), (change,))
    stop = ("SET",) if verb == "UPDATE" else ("WHERE", "ORDER", "LIMIT", "RETURNING")
    tables = _references(c, stop)
    return Statement("dml", verb, tuple(tables), any_table=not tables)


def _emptied_by_server(c: Cursor) -> TableName | None:
    """Returns the table that MySQL before 8.0 empties by this DELETE, as it does for a MEMORY table after a restart:
    ``DELETE FROM `db`.`table``` and no more. None for any other DELETE."""
    tokens = c.rest
    if len(tokens) != 4 or not tokens[0].is_word("FROM") or tokens[2].text != ".":
        return None
    db, table = tokens[1], tokens[3]
    return (db.text, table.text) if db.quote == table.quote == "`" else None


_JOIN_WORDS = word_set(
    """FROM USING AS JOIN INNER LEFT RIGHT CROSS OUTER NATURAL STRAIGHT_JOIN LATERAL PARTITION USE FORCE IGNORE INDEX
    KEY FOR PORTION OF SELECT AND OR NOT"""
)


def _references(c: Cursor, stop: tuple[str, ...]) -> list[TableName]:
    """Every name in the table references up to one of the words: tables, and aliases, which are taken for tables."""
    tables: dict[TableName, None] = {}
    while (token := c.peek()) is not None and not token.is_word(*stop):
        if token.is_word("ON"):  # a join's condition names columns
            c.at += 1
            while (token := c.peek()) is not None and not token.is_word("JOIN", "LEFT", "RIGHT", "INNER", *stop):
                if token.kind == "punct" and token.text == ",":
                    break
                c.at += 1
        elif token.is_word(*_JOIN_WORDS) or token.kind in ("punct", "string"):
            c.at += 1
        else:
            table = c.take_table()
            if table is not None:
                tables[table] = None
            if c.take_punct("."):  # DELETE t.* FROM …
                c.take_punct("*")
    return list(tables)
