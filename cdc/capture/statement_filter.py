"""Decides about the statements in the binlog (QUERY events): keep, drop or stop.

DDL of captured tables is kept. Statements that cannot change a captured table's rows or columns are dropped.
Everything else stops capture with an error that names the statement.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from cdc.base.errors import UnsupportedEventError
from cdc.binlog.events import QueryEvent
from cdc.binlog.framer import Decision
from cdc.binlog.sql.changes import DropPartitions, MovePartition, NoEffect, RenameTable, SetDefault, TableName, table_of
from cdc.binlog.sql.statements import Statement, classify
from cdc.binlog.sql.table_options import union_of
from cdc.binlog.sql.tokens import tokenize
from cdc.binlog.table_map import may_be_sequence
from cdc.config import TablesConfig

if TYPE_CHECKING:
    from cdc.source.statement_targets import StatementTargets

_ON_ONE_TABLE = ("ALTER TABLE", "TRUNCATE TABLE", "CREATE INDEX", "DROP INDEX")
_MERGE = re.compile(r"\b(?:MERGE|MRG_MYISAM)\b", re.IGNORECASE)
_ROW_FORMAT = "Set binlog_format=ROW for every session of the source, and rebuild the table after this statement."


class Numbers(Protocol):
    """Gives each captured table a number, as :class:`~cdc.store.formats.state.TableNumbers` does."""

    names: list[str]

    def number(self, name: str) -> int: ...


class StatementFilter:
    """Filters table maps and statements for the captured tables."""

    def __init__(self, tables: TablesConfig, numbers: Numbers) -> None:
        self._tables = tables
        self._numbers = numbers
        self._databases: dict[str, str] = {}  # databases of the tables seen so far, by ``db.table``
        self.engine_of: Callable[[str], str | None] = lambda _: None
        """Returns the storage engine of a captured table, by ``db.table``; None if it is not known."""
        self.targets: StatementTargets | None = None
        """Tells which tables that are not captured lead to captured ones; None without a server."""
        self.sequences: set[TableName] = set()
        """The known sequences of MariaDB, which have the names of tables, and state that is written as rows."""
        self._temporary: dict[int, set[TableName]] = {}  # temporary tables whose creation is in the binlog, by session

    def table(self, db: str, table: str, event: bytes, *, has_checksum: bool) -> int | None:
        """Returns the number of a captured table, by its TABLE_MAP event; None for another table, and for a sequence.
        Raises UnsupportedEventError for a second table of the same name."""
        db, table = self._tables.name(db), self._tables.name(table)
        if not self._tables.includes(db, table):
            return None
        if may_be_sequence(event, has_checksum, is_sequence=(db, table) in self.sequences):
            self.sequences.add((db, table))
            return None
        return self._numbers.number(self._name(db, table))

    def _name(self, db: str, table: str) -> str:
        """Returns ``db.table``, the table's name in the store, the schemas and the lake.

        Raises UnsupportedEventError if two tables share it, since either part may contain a dot.
        """
        name = f"{db}.{table}"
        owner = self._databases.setdefault(name, db)
        if owner != db:
            other = name[len(owner) + 1 :]
            raise UnsupportedEventError(
                f"`{db}`.`{table}` and `{owner}`.`{other}` share the name {name}, which must identify one table",
                place=f"table {name}",
                remedy="Nothing was skipped. Rename one of the two, and start a new destination after this event.",
            )
        return name

    def server_started(self) -> None:
        """Forgets the sessions of before, which ended with their temporary tables."""
        self._temporary.clear()

    def statement(self, query: QueryEvent, where: str) -> tuple[Decision, bool]:
        """Returns the decision, and whether the statement ends its transaction without effect (ROLLBACK).

        ``where`` is the event's position for errors. Raises UnsupportedEventError.
        """
        statement = classify(query.sql, query.db, query.sql_mode, ignores_case=self._tables.ignores_case)
        if statement.kind == "transaction":
            if statement.verb.startswith("XA"):
                raise _stop("an unexpected XA statement", query, where, "Report it with the server's version.")
            return transaction_decision(statement), statement.verb == "ROLLBACK"
        if self.targets is not None and statement.kind in ("ddl", "other"):
            self.targets.forget()
        if self._is_on_temporary_tables(statement, query) or self._is_on_sequences(statement):
            return Decision(False), False
        if statement.kind == "ddl" and not self._deletes_rows(statement):
            self._require_no_merge_table(statement, query, where)
            return self._ddl(statement), False
        if statement.kind == "other" and not statement.any_table:
            return Decision(False), False
        temporary = self._temporary.get(query.thread_id, ())
        named = [
            self._name(db, table)
            for db, table in statement.tables
            if self._tables.includes(db, table) and (db, table) not in temporary
        ]
        if named:
            raise _stop(
                f"the statement changes {', '.join(named)}, and the binlog has its text instead of row events",
                query,
                where,
                _ROW_FORMAT,
            )
        if statement.any_table:
            raise _stop("the tables that the statement changes cannot be determined", query, where, _ROW_FORMAT)
        self._require_harmless([table for table in statement.tables if table not in temporary], query, where)
        return Decision(False), False

    def _require_no_merge_table(self, statement: Statement, query: QueryEvent, where: str) -> None:
        """Raises UnsupportedEventError for a statement that makes a captured table a MERGE table, or a part of one: the
        binlog has rows of the one as rows of the other."""
        is_merge = statement.verb == "ALTER TABLE" or _MERGE.search(query.sql) is not None
        if not is_merge or statement.verb not in ("CREATE TABLE", "ALTER TABLE") or "union" not in query.sql.lower():
            return
        below = union_of(query.sql, query.db)
        captured = [
            f"{db}.{name}" for db, name in (*statement.tables, *below) if below and self._tables.includes(db, name)
        ]
        if captured:
            raise _stop(
                f"the rows of {', '.join(captured)} change through a MERGE table, and the binlog has them as rows of "
                "another table then",
                query,
                where,
                "Exclude them (tables.exclude), and capture goes on. Once the MERGE table is dropped, include them "
                "again and load them by `cdc snapshot`.",
            )

    def _require_harmless(self, tables: list[TableName], query: QueryEvent, where: str) -> None:
        """Raises UnsupportedEventError if a change of these tables, which are not captured, may change captured ones.
        ``tables``: those of an UPDATE or DELETE over several tables have their aliases among them."""
        if self.targets is None:
            return
        dangers = [(table, self.targets.danger(*table)) for table in tables]
        exists = any(danger is None or not danger.is_missing for _, danger in dangers)
        for (db, table), danger in dangers:
            if danger is None or (danger.is_missing and exists):
                continue
            raise _stop(
                f"the statement may change captured tables, because {db}.{table} {danger.reason}, and the binlog has "
                "its text instead of row events",
                query,
                where,
                danger.remedy or _ROW_FORMAT,
            )

    def _is_on_sequences(self, statement: Statement) -> bool:
        """Whether a statement is about sequences only. Notes what it does to them."""
        sequences = self.sequences
        if statement.verb == "CREATE SEQUENCE":
            sequences.update(statement.objects)
        elif statement.verb == "DROP SEQUENCE":
            sequences.difference_update(statement.objects)
        if not sequences or statement.kind != "ddl":
            return False
        renames = [change for change in statement.changes if isinstance(change, RenameTable)]
        moved = {change.to: change.table for change in renames if change.table in sequences}
        is_on_sequences = all(name in sequences or name in moved for name in statement.tables) and bool(
            statement.tables
        )
        if statement.verb in ("CREATE TABLE", "DROP TABLE"):
            sequences.difference_update(statement.tables)
            return is_on_sequences and statement.verb == "DROP TABLE"
        sequences.difference_update(moved.values())
        sequences.update(moved)
        return is_on_sequences

    def _deletes_rows(self, statement: Statement) -> bool:
        """Whether a DELETE as a server writes it for a MEMORY table after a restart is one of another table."""
        return statement.verb == "DELETE" and any(
            self._tables.includes(*table) and self.engine_of(self._name(*table)) not in ("memory", "heap")
            for table in statement.tables
        )

    def _ddl(self, statement: Statement) -> Decision:
        names = [self._name(db, table) for db, table in statement.tables if self._tables.includes(db, table)]
        for database in statement.databases:
            if statement.verb.startswith("DROP"):
                names += [
                    name
                    for name in self._numbers.names
                    if self._databases.get(name, name.partition(".")[0]) == database
                ]
        mask = 0
        for name in names:
            mask |= 1 << (self._numbers.number(name) & 63)
        # A table without a listed change may have changed, such as the new name of a RENAME.
        same = (NoEffect, SetDefault, DropPartitions, MovePartition)
        harmless = {table_of(change) for change in statement.changes if isinstance(change, same)}
        harmless -= {table_of(change) for change in statement.changes if not isinstance(change, same)}
        kept = {f"{table[0]}.{table[1]}" for table in harmless if table is not None}
        altered = frozenset() if statement.verb.startswith(("TRUNCATE", "DELETE")) else frozenset(names) - kept
        return Decision(bool(names), ddl=True, table_mask=mask, altered=altered, named=frozenset(names))

    def _is_on_temporary_tables(self, statement: Statement, query: QueryEvent) -> bool:
        """Whether a statement is about temporary tables only, which may have the names of captured ones. Notes what it
        does to those of its session.

        All servers mark ALTER TABLE, TRUNCATE, CREATE INDEX and DROP INDEX of a temporary table as thread-specific; on
        another table only CONNECTION_ID() does that. MariaDB's RENAME TABLE has no mark.
        """
        temporary = self._temporary.setdefault(query.thread_id, set())
        if statement.verb == "CREATE TEMPORARY TABLE":
            temporary.update(statement.objects)
        elif statement.verb == "DROP TEMPORARY TABLE":
            temporary.difference_update(statement.objects)
        if not temporary:
            del self._temporary[query.thread_id]
        is_temporary = query.thread_specific and statement.verb in _ON_ONE_TABLE
        if is_temporary and not temporary.issuperset(statement.tables):
            is_temporary = not any(token.is_word("CONNECTION_ID") for token in tokenize(query.sql, query.sql_mode))
        if statement.verb == "RENAME TABLE":
            is_temporary = bool(temporary) and set(statement.tables[::2]) <= temporary
        if is_temporary:
            for change in statement.changes:
                if isinstance(change, RenameTable) and change.table in temporary:
                    temporary.discard(change.table)
                    temporary.add(change.to)
        return is_temporary


def transaction_decision(statement: Statement) -> Decision:
    """Returns the decision about SAVEPOINT, ROLLBACK and others that are not kept, and may take back rows."""
    return Decision(False, savepoint=statement.savepoint, undoes=statement.verb in ("ROLLBACK", "ROLLBACK TO"))


def _stop(what: str, query: QueryEvent, where: str, remedy: str) -> UnsupportedEventError:
    text = " ".join(query.sql.split())
    shown = text if len(text) <= 200 else f"{text[:200]}…"
    return UnsupportedEventError(f"{what}: {shown}", place=where, remedy=remedy)
