"""Whether a statement that the binlog has as text changes other tables than those that it names: through a view, a
trigger or a foreign key."""

from __future__ import annotations

from dataclasses import dataclass

from cdc.binlog.sql.schemas import CHANGES_ROWS
from cdc.config import SYSTEM_SCHEMAS, TablesConfig
from cdc.source.connection import query
from cdc.source.privileges import Grants, read_grants
from cdc.source.server import Connection
from cdc.source.table_checks import ENGINES_OF_OTHERS

_OBJECT = """
SELECT TABLE_TYPE AS kind, ENGINE AS engine FROM information_schema.TABLES
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s
"""
_TRIGGERS = """
SELECT TRIGGER_NAME AS name FROM information_schema.TRIGGERS
WHERE EVENT_OBJECT_SCHEMA = %s AND EVENT_OBJECT_TABLE = %s ORDER BY TRIGGER_NAME
"""
_CHILDREN = """
SELECT DISTINCT k.TABLE_SCHEMA AS db, k.TABLE_NAME AS tab, r.DELETE_RULE AS on_delete, r.UPDATE_RULE AS on_update
FROM information_schema.KEY_COLUMN_USAGE k
LEFT JOIN information_schema.REFERENTIAL_CONSTRAINTS r ON r.CONSTRAINT_SCHEMA = k.CONSTRAINT_SCHEMA
    AND r.CONSTRAINT_NAME = k.CONSTRAINT_NAME AND r.TABLE_NAME = k.TABLE_NAME
WHERE k.REFERENCED_TABLE_SCHEMA = %s AND k.REFERENCED_TABLE_NAME = %s
"""


@dataclass(frozen=True)
class Danger:
    """Why a change of a table may change others."""

    reason: str
    """A clause whose subject is the table: ``has the trigger audit``."""
    remedy: str | None = None
    """The way out, if it is a privilege."""
    is_missing: bool = False
    """Whether the table was not found at all."""


class StatementTargets:
    """Asks the server about tables that are not captured, and keeps the answers until :meth:`forget`.

    The answers are those of the present: a trigger that was dropped since the statement is not seen.
    """

    def __init__(self, conn: Connection, tables: TablesConfig) -> None:
        self._conn = conn
        self._tables = tables
        self._grants: Grants | None = None
        self._dangers: dict[tuple[str, str], Danger | None] = {}

    def forget(self) -> None:
        """Forgets what a statement may have changed: definitions and privileges."""
        self._dangers.clear()
        self._grants = None

    def danger(self, db: str, table: str) -> Danger | None:
        """Returns why a change of this table may change captured ones; None if it does not. Raises
        SourceUnavailableError, SourceRefusedError."""
        if db in SYSTEM_SCHEMAS:  # they have no triggers, and servers write to them by themselves
            return None
        if (db, table) not in self._dangers:
            self._dangers[db, table] = self._ask(db, table)
        return self._dangers[db, table]

    def _ask(self, db: str, table: str) -> Danger | None:
        rows = query(self._conn, _OBJECT, (db, table))
        if not rows:
            return Danger(
                "does not exist any more, or the user may not see it",
                f"GRANT SELECT, TRIGGER ON `{db}`.* to the user if it exists, and start capture again.",
                is_missing=True,
            )
        kind, engine = str(rows[0]["kind"]), str(rows[0]["engine"] or "").lower()
        if "VIEW" in kind:
            return Danger("is a view")
        if engine in ENGINES_OF_OTHERS:
            return Danger(f"has the engine {engine}, whose rows belong to other tables")
        if self._grants is None:
            self._grants = read_grants(self._conn)
        if not self._grants.may("TRIGGER", db):
            return Danger(
                "may have triggers, which the user may not see",
                f"GRANT TRIGGER ON `{db}`.* to the user, and start capture again.",
            )
        triggers = [str(row["name"]) for row in query(self._conn, _TRIGGERS, (db, table))]
        if triggers:
            return Danger(f"has the trigger {triggers[0]}")
        child = self._captured_child(db, table)
        return None if child is None else Danger(f"is referenced by a foreign key of {child}, which is captured")

    def _captured_child(self, db: str, table: str) -> str | None:
        """Returns a captured table that foreign keys may change, through tables between, if rows of this one change."""
        seen, todo = {(db, table)}, [(db, table)]
        while todo:
            for row in query(self._conn, _CHILDREN, todo.pop()):
                child = self._tables.name(str(row["db"])), self._tables.name(str(row["tab"]))
                rules = {row["on_delete"], row["on_update"]}  # None: hidden from the user
                if rules.isdisjoint(CHANGES_ROWS | {None}) or child in seen:
                    continue
                if self._tables.includes(*child):
                    return ".".join(child)
                seen.add(child)
                todo.append(child)
        return None
