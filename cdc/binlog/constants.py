"""Event types and flags of the binary log, MySQL's and MariaDB's.

Sources: MySQL's ``mysql::binlog::event::Log_event_type``, MariaDB's ``log_event.h``.
"""

from __future__ import annotations

import enum

MAGIC = b"\xfebin"
HEADER_SIZE = 19
"""timestamp 4, type 1, server id 4, event length 4, end_log_pos 4, flags 2."""
CHECKSUM_SIZE = 4
FULL_PACKET = 0xFFFFFF
"""The payload of a packet that another one continues, in bytes."""
LARGEST_EVENT = (1 << 30) + (1 << 20)
"""The protocol limits an event to 1 GiB (``max_allowed_packet``), plus its headers, in bytes."""

FLAG_IN_USE = 0x0001
FLAG_THREAD_SPECIFIC = 0x0004
FLAG_ARTIFICIAL = 0x0020
ROWS_STMT_END = 0x0001


class EventType(enum.IntEnum):
    """The event types that Towpath knows by name."""

    UNKNOWN = 0
    START_V3 = 1
    QUERY = 2
    STOP = 3
    ROTATE = 4
    INTVAR = 5
    LOAD = 6
    SLAVE = 7
    CREATE_FILE = 8
    APPEND_BLOCK = 9
    EXEC_LOAD = 10
    DELETE_FILE = 11
    NEW_LOAD = 12
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
    MARIADB_PARTIAL_ROW_DATA = 172


COMPRESSED_ROW_EVENTS = frozenset(range(166, 172))
"""MariaDB's, with ``log_bin_compress``."""
ROW_EVENTS = frozenset({23, 24, 25, 30, 31, 32, 39, *COMPRESSED_ROW_EVENTS})

MARIADB_GTID_FLAGS_AT = HEADER_SIZE + 12
"""Offset of the flags in MariaDB's GTID event, behind number and domain."""
MARIADB_GTID_STANDALONE = 1
MARIADB_GTID_PREPARED_XA = 64
MARIADB_GTID_COMPLETED_XA = 128


def type_name(number: int) -> str:
    """The name of an event type for messages, such as ``TABLE_MAP (19)``."""
    try:
        return f"{EventType(number).name} ({number})"
    except ValueError:
        return f"event type {number}"
