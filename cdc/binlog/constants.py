"""Event types and flags of the binary log, MySQL's and MariaDB's.

Sources: MySQL's ``mysql::binlog::event::Log_event_type``, MariaDB's ``log_event.h``.
"""

from __future__ import annotations

import enum

MAGIC = b"\xfebin"
HEADER_SIZE = 19
"""timestamp 4, type 1, server id 4, event length 4, end_log_pos 4, flags 2."""
CHECKSUM_SIZE = 4

FLAG_IN_USE = 0x0001
FLAG_ARTIFICIAL = 0x0020
ROWS_STMT_END = 0x0001


class EventType(enum.IntEnum):
    """The event types that Towpath knows by name."""

    START_V3 = 1
    QUERY = 2
    STOP = 3
    ROTATE = 4
    INTVAR = 5
    SLAVE = 7
    APPEND_BLOCK = 9
    DELETE_FILE = 11
    RAND = 13
    USER_VAR = 14
    FORMAT_DESCRIPTION = 15
    XID = 16
    BEGIN_LOAD_QUERY = 17
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    PRE_GA_WRITE_ROWS = 20
    PRE_GA_UPDATE_ROWS = 21
    PRE_GA_DELETE_ROWS = 22
    WRITE_ROWS_V1 = 23
    UPDATE_ROWS_V1 = 24
    DELETE_ROWS_V1 = 25
    INCIDENT = 26
    HEARTBEAT = 27
    IGNORABLE = 28
    ROWS_QUERY = 29
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    GTID = 33
    ANONYMOUS_GTID = 34
    PREVIOUS_GTIDS = 35
    TRANSACTION_CONTEXT = 36
    VIEW_CHANGE = 37
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_V2 = 41
    GTID_TAGGED = 42
    MARIADB_ANNOTATE_ROWS = 160
    MARIADB_BINLOG_CHECKPOINT = 161
    MARIADB_GTID = 162
    MARIADB_GTID_LIST = 163
    MARIADB_START_ENCRYPTION = 164
    MARIADB_QUERY_COMPRESSED = 165
    MARIADB_WRITE_ROWS_COMPRESSED_V1 = 166
    MARIADB_UPDATE_ROWS_COMPRESSED_V1 = 167
    MARIADB_DELETE_ROWS_COMPRESSED_V1 = 168
    MARIADB_WRITE_ROWS_COMPRESSED = 169
    MARIADB_UPDATE_ROWS_COMPRESSED = 170
    MARIADB_DELETE_ROWS_COMPRESSED = 171


ROW_EVENTS = frozenset({23, 24, 25, 30, 31, 32, 39})

SKIPPED = {
    EventType.STOP: "the server shut down cleanly",
    EventType.INTVAR: "belongs to the statement after it, which Towpath reads",
    EventType.RAND: "belongs to the statement after it, which Towpath reads",
    EventType.USER_VAR: "belongs to the statement after it, which Towpath reads",
    EventType.BEGIN_LOAD_QUERY: "belongs to the LOAD DATA statement after it, which Towpath reads",
    EventType.APPEND_BLOCK: "belongs to the LOAD DATA statement after it, which Towpath reads",
    EventType.DELETE_FILE: "belongs to a LOAD DATA statement that failed",
    EventType.HEARTBEAT: "says that the connection is alive",
    EventType.HEARTBEAT_V2: "says that the connection is alive",
    EventType.IGNORABLE: "marked by its server as safe to ignore",
    EventType.ROWS_QUERY: "a comment: the text of the statement whose rows follow",
    EventType.PREVIOUS_GTIDS: "a summary of earlier files",
    EventType.TRANSACTION_CONTEXT: "bookkeeping of group replication",
    EventType.VIEW_CHANGE: "bookkeeping of group replication",
    EventType.MARIADB_ANNOTATE_ROWS: "a comment: the text of the statement whose rows follow",
    EventType.MARIADB_BINLOG_CHECKPOINT: "bookkeeping of the server's own recovery",
    EventType.MARIADB_GTID_LIST: "a summary of earlier files",
    EventType.MARIADB_START_ENCRYPTION: "the server decrypts what it sends",
}
"""The types that are skipped on purpose, each with the reason why nothing is lost."""

PASSED_OVER = {
    EventType.TRANSACTION_PAYLOAD: (
        "a compressed transaction: it is unpacked, and skipped if it changes no captured table; else capture stops"
    ),
    EventType.XA_PREPARE: (
        "ends an XA transaction: one that was committed in one phase is kept as any other; a prepared one is skipped "
        "if it changes no captured table; else capture stops"
    ),
    EventType.MARIADB_WRITE_ROWS_COMPRESSED_V1: "skipped for tables that are not captured; else capture stops",
    EventType.MARIADB_UPDATE_ROWS_COMPRESSED_V1: "skipped for tables that are not captured; else capture stops",
    EventType.MARIADB_DELETE_ROWS_COMPRESSED_V1: "skipped for tables that are not captured; else capture stops",
    EventType.MARIADB_WRITE_ROWS_COMPRESSED: "skipped for tables that are not captured; else capture stops",
    EventType.MARIADB_UPDATE_ROWS_COMPRESSED: "skipped for tables that are not captured; else capture stops",
    EventType.MARIADB_DELETE_ROWS_COMPRESSED: "skipped for tables that are not captured; else capture stops",
}
"""The types that are not captured yet, and that stop capture only if they change captured tables."""

REFUSED = {
    EventType.START_V3: "comes from a server older than MySQL 5.0",
    EventType.PRE_GA_WRITE_ROWS: "comes from a server older than MySQL 5.1.18",
    EventType.PRE_GA_UPDATE_ROWS: "comes from a server older than MySQL 5.1.18",
    EventType.PRE_GA_DELETE_ROWS: "comes from a server older than MySQL 5.1.18",
    EventType.INCIDENT: "the server reports that it lost events here; the tables have to be loaded again",
}
"""The types that always stop capture, each with the reason."""

MARIADB_GTID_STANDALONE = 1
MARIADB_GTID_PREPARED_XA = 64
MARIADB_GTID_COMPLETED_XA = 128


def type_name(number: int) -> str:
    """The name of an event type for messages, such as ``TABLE_MAP (19)``."""
    try:
        return f"{EventType(number).name} ({number})"
    except ValueError:
        return f"event type {number}"
