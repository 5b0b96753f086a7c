"""The errors that stop capture at unsupported events. Each names the tables, the position and a remedy.

``where`` is the position for messages. :func:`with_end` adds the position behind the event once it is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdc.base.errors import DamagedError, UnsupportedEventError
from cdc.binlog.constants import EventType, type_name
from cdc.binlog.event_types import stop_reason


def with_end(error: UnsupportedEventError, file: str, pos: int) -> UnsupportedEventError:
    """The error with the position at which a new destination can start in its remedy."""
    before = "" if error.remedy is None else f"{error.remedy} "
    remedy = (
        f"{before}Nothing was skipped: all earlier changes are in the store. To continue without this one, write a "
        f"new destination that starts behind it (source.start: {{file: {file}, pos: {pos}}})."
    )
    return UnsupportedEventError(error.message, place=error.place, remedy=remedy)


def partial_rows(table: str, kind: int, where: str) -> UnsupportedEventError:
    return UnsupportedEventError(
        f"rows of {table} ({type_name(kind)}) hold only some of its columns: the session that wrote them had another "
        "binlog_row_image than FULL",
        place=where,
        remedy="Set binlog_row_image=FULL for every session of the source, or leave the table out (tables.exclude). "
        "Only generated columns may be missing.",
    )


def mixed_rollback(sql: str, tables: Sequence[str], where: str) -> UnsupportedEventError:
    return UnsupportedEventError(
        f"{' '.join(sql.split())} follows rows of {', '.join(tables)}, whose engine is not known to take them back",
        place=where,
        remedy="Only the server knows which of the rows it kept. Rebuild these tables after this transaction, and "
        "change their engine to InnoDB.",
    )


def unknown_savepoint(sql: str, tables: Sequence[str], where: str) -> UnsupportedEventError:
    return UnsupportedEventError(
        f"{' '.join(sql.split())} names a savepoint that the binlog does not have, and follows rows of "
        f"{', '.join(tables)}",
        place=where,
        remedy="Rebuild these tables after this transaction. Report it with the server's version.",
    )


def prepared_xa(xid: str, tables: Sequence[str], where: str) -> UnsupportedEventError:
    """The error of those that read a file without a store, and cannot follow the transaction to its XA COMMIT."""
    return UnsupportedEventError(
        f"the XA transaction {xid} is prepared here with rows of {', '.join(tables) or 'captured tables'}; whether "
        "they were committed is told by a later XA COMMIT or XA ROLLBACK, perhaps in another file",
        place=where,
        remedy="Capture follows prepared XA transactions: read the store of a destination instead of this file.",
    )


def unknown_xa(xid: str, searched: Sequence[str], where: str) -> UnsupportedEventError:
    """The error for the XA COMMIT of a transaction whose XA PREPARE is not known. ``searched`` are the binlog files
    that the source still has, oldest first."""
    files = f"{searched[0]} to {searched[-1]}" if len(searched) > 1 else "".join(searched) or "none"
    return UnsupportedEventError(
        f"the XA transaction {xid} is committed here, and its XA PREPARE is neither in the store nor in the binlog "
        f"files that the source still has ({files}), so that its rows and tables are not known",
        place=where,
        remedy="Its XA PREPARE was purged before capture read it. If it is known that the transaction changed no "
        "captured table, or if the tables that it changed are loaded anew afterwards, let capture pass it: "
        f'source.ignore_xa: ["{xid}"].',
    )


def damaged_prepared(xid: str, why: str) -> DamagedError:
    """The error for rows of a prepared XA transaction in the store that cannot be read."""
    return DamagedError(
        f"the rows of the prepared XA transaction {xid} are damaged: {why}",
        place="prepared",
        remedy="Restore the folder `prepared` of the store from a copy, or remove the transaction's file from it: "
        "capture then looks for the transaction in the source's binlog.",
    )


def incident(message: str, where: str) -> UnsupportedEventError:
    return UnsupportedEventError(
        f"{type_name(EventType.INCIDENT)}: the server says that it lost events here ({message})",
        place=where,
        remedy="Changes are missing in the server's binlog: load the tables anew from behind it.",
    )


def refused_type(kind: int, where: str) -> UnsupportedEventError:
    """The error for an event of a type that always stops capture."""
    reason = stop_reason(kind)
    return UnsupportedEventError(
        f"{type_name(kind)}, {reason or 'which Towpath does not know'}",
        place=where,
        remedy=None if reason else "Report it with the server's version.",
    )
