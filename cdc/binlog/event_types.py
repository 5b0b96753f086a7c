"""The answer to every event type of MySQL and MariaDB: stored, read, skipped, or a stop.

The framing kernel's array of types is made from this table, and so is ``docs/reference/events.md``. A type that is not
in it stops capture.

Sources: MySQL's ``Log_event_type``, MariaDB's ``log_event.h``, and the length of the list of types in the format
description that a server writes at the start of each file.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from cdc.binlog.constants import EventType


class Treatment(enum.StrEnum):
    """Capture's action for an event. The value is the word in messages and in the documentation."""

    STORED = "stored"
    """Kept as received if its transaction changes a captured table or, for DDL, names one."""
    READ = "read"
    """Describes the file or the stream. Its content is used, and the segment has its own instead."""
    SKIPPED = "skipped"
    """Left out on purpose; nothing of a captured table is lost."""
    UNPACKED = "unpacked"
    """Left out itself; each event in it is treated as if it had come alone."""
    CONDITIONAL = "stops for captured tables"
    """Skipped if it changes no captured table. Otherwise capture stops, because it cannot store the change yet."""
    STOPS = "stops"
    """Capture stops, whatever table it concerns."""


@dataclass(frozen=True)
class EventTypeInfo:
    """An event type: which servers write it, and what capture does with it."""

    type: EventType
    mysql: str
    """Versions that write it, or empty."""
    mariadb: str
    treatment: Treatment
    reason: str
    """Why; a clause that continues "it is skipped: …"."""


_STORED, _READ, _SKIPPED = Treatment.STORED, Treatment.READ, Treatment.SKIPPED
_UNPACKED, _CONDITIONAL, _STOPS = Treatment.UNPACKED, Treatment.CONDITIONAL, Treatment.STOPS
_OLD_LOAD = "LOAD DATA of a server older than MySQL 5.0.3"
_ROWS_V2 = "rows of one table"
_ROWS_V1 = "rows of one table, in the older layout"
_COMPRESSED = "rows of one table, compressed by log_bin_compress; stored as received, and unpacked to decode them"
_STATEMENT = "belongs to the statement after it, which Towpath reads"
_LOAD_DATA = "belongs to the LOAD DATA statement after it, which Towpath reads"

_XA_PREPARE = (
    "the end of an XA transaction. One that was committed in one phase is stored like any other; the rows of a "
    "prepared one are put aside until its XA COMMIT"
)

TABLE: tuple[EventTypeInfo, ...] = tuple(
    EventTypeInfo(kind, mysql, mariadb, treatment, reason)
    for kind, mysql, mariadb, treatment, reason in (
        (EventType.UNKNOWN, "", "", _STOPS, "no server writes it"),
        (EventType.START_V3, "", "", _STOPS, "comes from a server older than MySQL 5.0"),
        (
            EventType.QUERY,
            "all",
            "all",
            _STORED,
            "BEGIN, COMMIT, XA statements and DDL; the text of DML on a captured table stops capture",
        ),
        (EventType.STOP, "all", "all", _SKIPPED, "the server shut down cleanly"),
        (EventType.ROTATE, "all", "all", _READ, "names the next file"),
        (EventType.INTVAR, "all", "all", _SKIPPED, _STATEMENT),
        (EventType.LOAD, "", "", _STOPS, _OLD_LOAD),
        (EventType.SLAVE, "", "", _STOPS, "no server writes it"),
        (EventType.CREATE_FILE, "", "", _STOPS, _OLD_LOAD),
        (EventType.APPEND_BLOCK, "all", "all", _SKIPPED, _LOAD_DATA),
        (EventType.EXEC_LOAD, "", "", _STOPS, _OLD_LOAD),
        (EventType.DELETE_FILE, "all", "all", _SKIPPED, "belongs to a LOAD DATA statement that failed"),
        (EventType.NEW_LOAD, "", "", _STOPS, _OLD_LOAD),
        (EventType.RAND, "all", "all", _SKIPPED, _STATEMENT),
        (EventType.USER_VAR, "all", "all", _SKIPPED, _STATEMENT),
        (EventType.FORMAT_DESCRIPTION, "all", "all", _READ, "describes the file's events; it begins every segment"),
        (EventType.XID, "all", "all", _STORED, "the commit of a transaction"),
        (EventType.BEGIN_LOAD_QUERY, "all", "all", _SKIPPED, _LOAD_DATA),
        (
            EventType.EXECUTE_LOAD_QUERY,
            "all",
            "all",
            _CONDITIONAL,
            "LOAD DATA as a statement, of a session whose binlog_format is not ROW",
        ),
        (EventType.TABLE_MAP, "all", "all", _STORED, "names the table of the row events after it, and its columns"),
        (EventType.PRE_GA_WRITE_ROWS, "", "", _STOPS, "comes from a server older than MySQL 5.1.18"),
        (EventType.PRE_GA_UPDATE_ROWS, "", "", _STOPS, "comes from a server older than MySQL 5.1.18"),
        (EventType.PRE_GA_DELETE_ROWS, "", "", _STOPS, "comes from a server older than MySQL 5.1.18"),
        (EventType.WRITE_ROWS_V1, "5.6–8.0, by a setting", "all", _STORED, _ROWS_V1),
        (EventType.UPDATE_ROWS_V1, "5.6–8.0, by a setting", "all", _STORED, _ROWS_V1),
        (EventType.DELETE_ROWS_V1, "5.6–8.0, by a setting", "all", _STORED, _ROWS_V1),
        (
            EventType.INCIDENT,
            "all",
            "all",
            _STOPS,
            "the server reports that it lost events here; the tables have to be loaded again",
        ),
        (EventType.HEARTBEAT, "all", "all", _SKIPPED, "says that the connection is alive"),
        (EventType.IGNORABLE, "all", "", _SKIPPED, "marked by its server as safe to ignore"),
        (
            EventType.ROWS_QUERY,
            "all, by a setting",
            "",
            _SKIPPED,
            "a comment: the text of the statement whose rows follow",
        ),
        (EventType.WRITE_ROWS, "all", "", _STORED, _ROWS_V2),
        (EventType.UPDATE_ROWS, "all", "", _STORED, _ROWS_V2),
        (EventType.DELETE_ROWS, "all", "", _STORED, _ROWS_V2),
        (EventType.GTID, "all", "", _STORED, "the beginning of a transaction, and its GTID"),
        (EventType.ANONYMOUS_GTID, "5.7–9.x", "", _STORED, "the beginning of a transaction without a GTID"),
        (EventType.PREVIOUS_GTIDS, "all", "", _SKIPPED, "a summary of earlier files"),
        (EventType.TRANSACTION_CONTEXT, "5.7–9.x", "", _SKIPPED, "bookkeeping of group replication"),
        (EventType.VIEW_CHANGE, "5.7–9.x", "", _SKIPPED, "bookkeeping of group replication"),
        (
            EventType.XA_PREPARE,
            "5.7–9.x",
            "10.5–11.8",
            _STORED,
            _XA_PREPARE,
        ),
        (
            EventType.PARTIAL_UPDATE_ROWS,
            "8.0–9.x",
            "",
            _STORED,
            "rows of one table, with changes of JSON documents instead of whole ones",
        ),
        (
            EventType.TRANSACTION_PAYLOAD,
            "8.0–9.x",
            "",
            _UNPACKED,
            "a compressed transaction. Capture unpacks it and treats its events like any others",
        ),
        (EventType.HEARTBEAT_V2, "8.0–9.x", "", _SKIPPED, "says that the connection is alive"),
        (EventType.GTID_TAGGED, "8.3–9.x", "", _STORED, "the beginning of a transaction, and its GTID with a tag"),
        (
            EventType.MARIADB_ANNOTATE_ROWS,
            "",
            "all",
            _SKIPPED,
            "a comment: the text of the statement whose rows follow",
        ),
        (EventType.MARIADB_BINLOG_CHECKPOINT, "", "all", _SKIPPED, "bookkeeping of the server's own recovery"),
        (EventType.MARIADB_GTID, "", "all", _STORED, "the beginning of a transaction, and its GTID"),
        (EventType.MARIADB_GTID_LIST, "", "all", _SKIPPED, "a summary of earlier files"),
        (EventType.MARIADB_START_ENCRYPTION, "", "10.1–11.8", _SKIPPED, "the server decrypts what it sends"),
        (
            EventType.MARIADB_QUERY_COMPRESSED,
            "",
            "10.2–11.8",
            _STORED,
            "a compressed statement; it is unpacked to read it, and stored as received",
        ),
        (EventType.MARIADB_WRITE_ROWS_COMPRESSED_V1, "", "10.2–11.8", _STORED, _COMPRESSED),
        (EventType.MARIADB_UPDATE_ROWS_COMPRESSED_V1, "", "10.2–11.8", _STORED, _COMPRESSED),
        (EventType.MARIADB_DELETE_ROWS_COMPRESSED_V1, "", "10.2–11.8", _STORED, _COMPRESSED),
        (EventType.MARIADB_WRITE_ROWS_COMPRESSED, "", "10.2–11.8", _STORED, _COMPRESSED),
        (EventType.MARIADB_UPDATE_ROWS_COMPRESSED, "", "10.2–11.8", _STORED, _COMPRESSED),
        (EventType.MARIADB_DELETE_ROWS_COMPRESSED, "", "10.2–11.8", _STORED, _COMPRESSED),
        (
            EventType.MARIADB_PARTIAL_ROW_DATA,
            "",
            "12.3",
            _STOPS,
            "a piece of a very large row event; MariaDB 12.3 is not supported yet",
        ),
    )
)
"""Every known event type, in the order of their numbers."""

BY_TYPE: dict[int, EventTypeInfo] = {int(info.type): info for info in TABLE}


def types_treated(treatment: Treatment) -> frozenset[EventType]:
    """Returns the event types that are treated so."""
    return frozenset(info.type for info in TABLE if info.treatment is treatment)


SKIPPED = types_treated(Treatment.SKIPPED)
"""The types that are skipped on purpose."""


def stop_reason(number: int) -> str | None:
    """Returns why an event type always stops capture; None if the table does not have it, or it does not always stop
    capture."""
    info = BY_TYPE.get(number)
    return info.reason if info is not None and info.treatment is Treatment.STOPS else None
