"""The entries of statements: DDL, and those of XA transactions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from cdc.binlog.events import Header, QueryEvent
from cdc.binlog.sql.changes import RenameTable
from cdc.binlog.sql.statements import classify
from cdc.canal.fields import data, number, pair

INSERT, UPDATE, DELETE, CREATE, ALTER, ERASE, QUERY, TRUNCATE, RENAME, CINDEX, DINDEX = range(1, 12)
XA_COMMIT, XA_ROLLBACK = 13, 14
"""Canal's event types."""
TRANSACTION_BEGIN, ROW_DATA, TRANSACTION_END = 1, 2, 3
"""Canal's entry types."""

_VERBS = {
    "CREATE TABLE": CREATE,
    "DROP TABLE": ERASE,
    "DROP TABLES": ERASE,
    "TRUNCATE TABLE": TRUNCATE,
    "TRUNCATE": TRUNCATE,
    "RENAME TABLE": RENAME,
    "RENAME TABLES": RENAME,
    "CREATE INDEX": CINDEX,
    "DROP INDEX": DINDEX,
}
_ADD_INDEX = re.compile(r"ADD\s+(UNIQUE\b|FULLTEXT\b|SPATIAL\b|INDEX\b|KEY\b)", re.IGNORECASE)
_DROP_INDEX = re.compile(r"DROP\s+(INDEX|KEY)\b", re.IGNORECASE)
_XA = re.compile(r"XA\s+(START|BEGIN|END|COMMIT|ROLLBACK)\b(.*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class EventPlace:
    """The part of an entry's header that tells where its event comes from."""

    head: bytes
    """The fields of version and file, encoded."""
    offset: int
    header: Header
    gtid: str


def statement_entry(
    query: QueryEvent, place: EventPlace, is_wanted: Callable[[str], bool], *, ignores_case: bool = False
) -> bytes | None:
    """Returns the entry of a statement, encoded; None for one that clients do not get: it defines no table, or none
    that is wanted. ``ignores_case``: as for :func:`~cdc.binlog.sql.statements.classify`."""
    xa = _XA.match(query.sql.lstrip())
    if xa is not None:
        return _xa_entry(xa[1].upper(), xa[2], query, place)
    statement = classify(query.sql, query.db, query.sql_mode, ignores_case=ignores_case)
    if statement.kind != "ddl":
        return None
    if statement.tables and not any(is_wanted(f"{db}.{table}") for db, table in statement.tables):
        return None
    change = _VERBS.get(statement.verb, QUERY)
    clause = statement.changes[0].clause if statement.changes else ""
    if statement.verb == "ALTER TABLE":
        change = ALTER
        if isinstance(statement.changes[0] if statement.changes else None, RenameTable):
            change = RENAME
        elif _ADD_INDEX.match(clause):
            change = CINDEX
        elif _DROP_INDEX.match(clause):
            change = DINDEX
    db, table = _named(statement.tables, statement.databases, query.db, change)
    value = number(2, change) + number(10, 1) + data(11, query.sql) + data(14, query.db)
    return entry(place, ROW_DATA, value, change=change, db=db, table=table)


def _named(tables: tuple[tuple[str, str], ...], databases: tuple[str, ...], db: str, change: int) -> tuple[str, str]:
    """The table that the header names: the first one; the new name of a renamed one."""
    if not tables:
        return (databases[0] if databases else db), ""
    return tables[1] if change == RENAME and len(tables) > 1 else tables[0]


def _xa_entry(verb: str, xid: str, query: QueryEvent, place: EventPlace) -> bytes:
    verb = "START" if verb == "BEGIN" else verb
    props = pair(3, "XA_TYPE", f"XA {verb}") + pair(3, "XA_XID", xid)
    if verb == "START":
        return entry(place, TRANSACTION_BEGIN, props + number(4, query.thread_id))
    if verb == "END":
        return entry(place, TRANSACTION_END, data(2, "0") + props)
    change = XA_COMMIT if verb == "COMMIT" else XA_ROLLBACK
    props = pair(13, "XA_TYPE", f"XA {verb}") + pair(13, "XA_XID", xid)
    return entry(place, ROW_DATA, number(2, change) + data(11, query.sql) + props, change=change)


def entry(place: EventPlace, kind: int, value: bytes, *, change: int = 0, db: str = "", table: str = "") -> bytes:
    """Encodes an entry."""
    header = (
        place.head
        + number(3, place.offset)
        + number(4, place.header.server_id)
        + data(5, "UTF-8")
        + number(6, place.header.timestamp * 1000)
        + number(7, 2)
        + data(8, db)
        + data(9, table)
        + number(10, place.header.length)
        + number(11, change)
        + (pair(12, "curtGtid", place.gtid) if place.gtid else b"")
        + data(13, place.gtid)
    )
    return data(1, header) + number(2, kind) + data(3, value)
