"""Decides about the statements in the binlog (QUERY events): keep, drop or stop.

DDL of captured tables is kept. Statements that cannot change a captured table's rows or columns are dropped.
Everything else stops capture with an error that names the statement.
"""

from __future__ import annotations

from typing import Protocol

from cdc.binlog.events import QueryEvent
from cdc.binlog.framer import Decision
from cdc.config import TablesConfig
from cdc.errors import UnsupportedEventError
from cdc.sql.changes import KEEPS_COLUMNS, table_of
from cdc.sql.statements import Statement, classify

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

    def table(self, db: str, table: str) -> int | None:
        """Returns the number of a captured table, None for another table. Raises UnsupportedEventError for a second
        table of the same name."""
        return self._numbers.number(self._name(db, table)) if self._tables.includes(db, table) else None

    def _name(self, db: str, table: str) -> str:
        """Returns ``db.table``, the table's name in the store, the schemas and the lake.

        Raises UnsupportedEventError if two tables share it, since either part may contain a dot.
        """
        name = f"{db}.{table}"
        known = self._databases.setdefault(name, db)
        if known != db:
            other = name[len(known) + 1 :]
            raise UnsupportedEventError(
                f"`{db}`.`{table}` and `{known}`.`{other}` share the name {name}, which must identify one table",
                place=f"table {name}",
                remedy="Nothing was skipped. Rename one of the two, and start a new destination after this event.",
            )
        return name

    def statement(self, query: QueryEvent, where: str, *, rows_before: bool) -> tuple[Decision, bool]:
        """Returns the decision, and whether the statement ends its transaction without effect (ROLLBACK).

        ``rows_before`` says that the transaction has changed captured rows already, ``where`` is the event's position
        for errors. Raises UnsupportedEventError.
        """
        found = classify(query.sql, query.db, query.sql_mode)
        if found.kind == "transaction":
            return Decision(False), self._transaction(found, query, where, rows_before)
        if found.kind == "ddl":
            return self._ddl(found), False
        if found.kind == "other" and not found.any_table:
            return Decision(False), False
        named = [self._name(db, table) for db, table in found.tables if self._tables.includes(db, table)]
        if named:
            raise _stop(
                f"the statement changes {', '.join(named)}, and the binlog has its text instead of row events",
                query,
                where,
                _ROW_FORMAT,
            )
        if found.any_table:
            raise _stop("the tables that the statement changes cannot be determined", query, where, _ROW_FORMAT)
        return Decision(False), False

    def _ddl(self, found: Statement) -> Decision:
        names = [self._name(db, table) for db, table in found.tables if self._tables.includes(db, table)]
        for database in found.databases:
            if found.verb.startswith("DROP"):
                names += [
                    name
                    for name in self._numbers.names
                    if self._databases.get(name, name.partition(".")[0]) == database
                ]
        mask = 0
        for name in names:
            mask |= 1 << (self._numbers.number(name) & 63)
        # A table without a listed change may have changed, such as the new name of a RENAME.
        harmless = {table_of(change) for change in found.changes if isinstance(change, KEEPS_COLUMNS)}
        harmless -= {table_of(change) for change in found.changes if not isinstance(change, KEEPS_COLUMNS)}
        kept = {f"{table[0]}.{table[1]}" for table in harmless if table is not None}
        altered = frozenset() if found.verb.startswith("TRUNCATE") else frozenset(names) - kept
        return Decision(bool(names), ddl=True, table_mask=mask, altered=altered)

    def _transaction(self, found: Statement, query: QueryEvent, where: str, rows_before: bool) -> bool:
        if found.verb.startswith("XA"):
            raise _stop("an unexpected XA statement", query, where, "Report it with the server's version.")
        if found.verb != "ROLLBACK":
            return False
        if rows_before:
            raise _stop(
                "a ROLLBACK follows rows of captured tables, as happens when a transaction mixes transactional and "
                "other engines",
                query,
                where,
                "Only the server knows which of the rows it kept. Rebuild the tables after this transaction.",
            )
        return " TO " not in f" {' '.join(query.sql.upper().split())} "


def _stop(what: str, query: QueryEvent, where: str, remedy: str) -> UnsupportedEventError:
    text = " ".join(query.sql.split())
    shown = text if len(text) <= 200 else f"{text[:200]}…"
    return UnsupportedEventError(f"{what}: {shown}", place=where, remedy=remedy)
