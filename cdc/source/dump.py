"""The requests with which a replica asks a server for its binlog: session variables, registration, dump.

Afterwards the connection carries the dump's packets and nothing else; :mod:`cdc.source.stream` reads them.
"""

from __future__ import annotations

import struct
from typing import Any

from pymysql.constants import COMMAND

from cdc.config import SourceConfig
from cdc.errors import CdcError
from cdc.positions import BinlogPosition
from cdc.source.connection import connect, mapped
from cdc.source.server import Connection

MAX_POSITION = 2**32 - 1
"""The last offset that a dump request can name: it has 32 bits for it."""
MAX_LABEL_BYTES = 60
"""The longest replica label that every server accepts (MySQL 5.6 refuses longer ones)."""
_MAX_HEARTBEAT_S = 4294967
_NON_BLOCKING = 1


def open_dump(source: SourceConfig, position: BinlogPosition, label: str) -> Any:
    """Connects, registers as the replica ``label`` and asks for the binlog from ``position`` on.

    The server answers with one packet per event, without end. Reads on the connection have no time limit. Raises
    SourceUnavailableError, SourceRefusedError and ConfigError; an error that the server has with the position itself
    comes as the first packet. Returns PyMySQL's connection, of which callers need what has no public name.
    """
    register = register_request(source.server_id, label, source.port)
    dump = dump_request(source.server_id, position)
    connection: Any = connect(source, read_timeout=None, write_timeout=30)
    try:
        with mapped(connection):
            _set_session(connection, source.heartbeat_s)
            # PyMySQL has no public way to send a command that is not SQL.
            connection._execute_command(COMMAND.COM_REGISTER_SLAVE, register)
            connection._read_packet()
            connection._execute_command(COMMAND.COM_BINLOG_DUMP, dump)
    except CdcError:
        connection.close()
        raise
    return connection


def open_short_dump(source: SourceConfig, position: BinlogPosition) -> Any:
    """Asks for the binlog from ``position`` to its present end, as nobody: with server id 0 and without registration,
    as mysqlbinlog does, so that no server takes it for a capture that runs and cuts that one's connection.

    Answers and errors are those of :func:`open_dump`, but that the server sends an EOF packet at the end.
    """
    connection: Any = connect(source, write_timeout=30)
    try:
        with mapped(connection):
            _set_session(connection, _MAX_HEARTBEAT_S)
            connection._execute_command(COMMAND.COM_BINLOG_DUMP, dump_request(0, position, flags=_NON_BLOCKING))
    except CdcError:
        connection.close()
        raise
    return connection


def _set_session(connection: Connection, heartbeat_s: float) -> None:
    """Sets what the dump thread reads from the session, under the names of all servers."""
    heartbeat_ns = int(min(heartbeat_s, _MAX_HEARTBEAT_S) * 1e9)
    with connection.cursor() as cursor:
        # Events come with the checksums that the binlog has. MySQL will drop the older name one day.
        cursor.execute(
            "SET @master_binlog_checksum = @@global.binlog_checksum, @source_binlog_checksum = @@global.binlog_checksum"
        )
        cursor.execute("SET @master_heartbeat_period = %s, @source_heartbeat_period = %s", (heartbeat_ns, heartbeat_ns))
        # MariaDB replaces GTID events by dummies for a replica that does not claim to know them. MySQL ignores it.
        cursor.execute("SET @mariadb_slave_capability = 4")


def register_request(server_id: int, label: str, port: int) -> bytes:
    """The body of COM_REGISTER_SLAVE. ``label`` and ``port`` are what SHOW REPLICAS lists; user and password are empty.

    Raises ValueError for a label that is too long.
    """
    name = label.encode()
    if len(name) > MAX_LABEL_BYTES:
        raise ValueError(f"the label {label!r} has {len(name)} bytes; servers accept {MAX_LABEL_BYTES}")
    rank, master_id = 0, 0
    return struct.pack(f"<IB{len(name)}sBBHII", server_id, len(name), name, 0, 0, port, rank, master_id)


def dump_request(server_id: int, position: BinlogPosition, *, flags: int = 0) -> bytes:
    """The body of COM_BINLOG_DUMP. Without flags the server waits for new events at the binlog's end, and MariaDB
    sends no ANNOTATE_ROWS events."""
    return struct.pack("<IHI", position.pos, flags, server_id) + position.file.encode()
