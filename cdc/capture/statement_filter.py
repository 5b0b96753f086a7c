"""What becomes of a statement in the log: the closed world for QUERY events.

Kept: DDL of captured tables. Left out: what cannot change a captured table's rows or columns. Everything else stops
capture with an error that names it.
"""

from __future__ import annotations

from cdc.binlog.events import QueryEvent
from cdc.binlog.framer import Decision
from cdc.config import TablesConfig
from cdc.errors import UnsupportedEventError
from cdc.sql.statements import Statement, classify
from cdc.store.formats.state import TableNumbers

_ROW_FORMAT = "Set binlog_format=ROW for every session of the source, and rebuild the table from behind this statement."


class StatementFilter:
    """Judges statements for the captured tables. ``where`` names the place in errors."""

    def __init__(self, tables: TablesConfig, numbers: TableNumbers) -> None:
        self._tables = tables
        self._numbers = numbers
        self._databases: dict[str, str] = {}  # of the tables that were met, by name

    def table(self, db: str, table: str) -> int | None:
        """The number of a captured table, None for another. Raises UnsupportedEventError for a second table of the
        same name."""
        return self._numbers.number(self._name(db, table)) if self._tables.includes(db, table) else None

    def _name(self, db: str, table: str) -> str:
        """``db.table``, which the store, the schemas and the lake know the table by: it must stand for one table."""
        name = f"{db}.{table}"
        known = self._databases.setdefault(name, db)
        if known != db:
            other = name[len(known) + 1 :]
            raise UnsupportedEventError(
                f"`{db}`.`{table}` and `{known}`.`{other}` share the name {name}, by which Towpath knows tables",
                place=f"table {name}",
                remedy="Nothing was skipped. Rename one of the two, and begin a new destination behind this place.",
            )
        return name

    def statement(self, query: QueryEvent, where: str, *, rows_before: bool) -> tuple[Decision, bool]:
        """What becomes of it, and whether it ends its transaction with nothing done (ROLLBACK). ``rows_before``: the
        transaction has changed captured rows already."""
        found = classify(query.sql, query.db, query.sql_mode)
        if found.kind == "transaction":
            return Decision(False), self._transaction(found, query, where, rows_before)
        if found.kind == "ddl":
            return self._ddl(found), False
        if found.kind == "other" and not found.any_table:
            return Decision(False), False
        named = [self._name(db, table) for db, table in found.tables if self._tables.includes(db, table)]
        if named:
            raise _stop(f"the statement changes {', '.join(named)} by its text, not by rows", query, where, _ROW_FORMAT)
        if found.any_table:
            raise _stop("it cannot be told which tables the statement changes", query, where, _ROW_FORMAT)
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
        # A table that no effect is told of, as the new name of a RENAME, may be another one afterwards.
        harmless = {effect.table for effect in found.effects if effect.kind == "none"}
        harmless -= {effect.table for effect in found.effects if effect.kind != "none"}
        kept = {f"{table[0]}.{table[1]}" for table in harmless if table is not None}
        altered = frozenset() if found.verb.startswith("TRUNCATE") else frozenset(names) - kept
        return Decision(bool(names), ddl=True, table_mask=mask, altered=altered)

    def _transaction(self, found: Statement, query: QueryEvent, where: str, rows_before: bool) -> bool:
        if found.verb in ("XA COMMIT", "XA ROLLBACK"):
            return True  # of rows that came before with XA PREPARE, which stopped capture if they were captured ones
        if found.verb.startswith("XA"):
            raise _stop(
                "an XA statement that does not belong here", query, where, "Report it with the server's version."
            )
        if found.verb != "ROLLBACK":
            return False
        if rows_before:
            raise _stop(
                "a ROLLBACK behind rows of captured tables, as a mix of transactional and other engines leaves it",
                query,
                where,
                "Only the server knows which of the rows stayed: rebuild the tables from behind this transaction.",
            )
        return " TO " not in f" {' '.join(query.sql.upper().split())} "


def _stop(what: str, query: QueryEvent, where: str, remedy: str) -> UnsupportedEventError:
    text = " ".join(query.sql.split())
    shown = text if len(text) <= 200 else f"{text[:200]}…"
    return UnsupportedEventError(f"{what}: {shown}", place=where, remedy=remedy)
