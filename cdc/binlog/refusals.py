"""The errors that stop capture at unsupported events. Each names the tables, the position and a remedy.

``where`` is the position for messages. :func:`with_end` adds the position behind the event once it is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdc.binlog.constants import EventType, type_name
from cdc.binlog.event_types import stop_reason
from cdc.errors import UnsupportedEventError


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


def prepared_xa(xid: str, tables: Sequence[str], where: str) -> UnsupportedEventError:
    return UnsupportedEventError(
        f"the XA transaction {xid} is prepared here with rows of {', '.join(tables) or 'captured tables'}; following "
        "it to its XA COMMIT is not supported yet",
        place=where,
        remedy="End it on the source by XA COMMIT or XA ROLLBACK, and load the tables anew: a destination that starts "
        "behind it does not have its rows. XA COMMIT … ONE PHASE is supported.",
    )


def incident(message: str, where: str) -> UnsupportedEventError:
    return UnsupportedEventError(
        f"{type_name(EventType.INCIDENT)}: the server says that it lost events here ({message})",
        place=where,
        remedy="Changes are missing in the server's binlog: load the tables anew from behind it.",
    )


def refused_type(kind: int, where: str) -> UnsupportedEventError:
    """The error for an event of a type that always stops capture."""
    known = stop_reason(kind)
    return UnsupportedEventError(
        f"{type_name(kind)}, {known or 'which Towpath does not know'}",
        place=where,
        remedy=None if known else "Report it with the server's version.",
    )
