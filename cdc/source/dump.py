"""The replication protocol: request a binlog dump, and read its packets.

The packets are read as raw bytes. Creating an object per event would make reading slow.
"""

from __future__ import annotations

import socket
import ssl
import struct
from types import TracebackType
from typing import Any, Protocol, Self

from pymysql.constants import COMMAND

from cdc.base.closing import Closing
from cdc.base.errors import CdcError, SourceUnavailableError
from cdc.binlog.positions import BinlogPosition
from cdc.config import SourceConfig
from cdc.source.connection import connect, explain, mapped, place_of
from cdc.source.driver import close_now, read_packet, send_command, socket_of
from cdc.source.server import Connection, read_uuid

MAX_POSITION = 2**32 - 1
"""The largest offset that a dump request can name, since the protocol has 32 bits for it."""
MAX_LABEL_BYTES = 60
"""The longest replica label that every server accepts (MySQL 5.6 refuses longer ones)."""
_MAX_HEARTBEAT_S = 4294967
_MISSED_HEARTBEATS = 3
_NON_BLOCKING = 1
_SILENCE_S = 60.0
_AT_ONCE_BYTES = 1 << 18

# --- requests


def open_dump(source: SourceConfig, position: BinlogPosition, label: str) -> Any:
    """Connects, registers as the replica ``label`` and requests the binlog from ``position`` on.

    The server answers with one packet per event, without end. Reads on the connection have no time limit. Raises
    SourceUnavailableError, SourceRefusedError and ConfigError; if the server rejects the position itself, its first
    packet is an error packet. Returns PyMySQL's connection; :mod:`cdc.source.driver` reads
    from it.
    """
    register = register_request(source.server_id, label, source.port)
    dump = dump_request(source.server_id, position)
    connection: Any = connect(source, compression=source.compression, read_timeout=None, write_timeout=30)
    try:
        _require_same_server(source, connection)
        with mapped(connection):
            _set_session(connection, source.heartbeat_s)
            send_command(connection, COMMAND.COM_REGISTER_SLAVE, register)
            read_packet(connection)
            send_command(connection, COMMAND.COM_BINLOG_DUMP, dump)
    except CdcError:
        connection.close()
        raise
    return connection


def open_short_dump(source: SourceConfig, position: BinlogPosition) -> Any:
    """Requests the binlog from ``position`` to its present end, anonymously: with server id 0 and without
    registration, as mysqlbinlog does. So no server mistakes it for a running capture and disconnects that one.

    Returns and raises what :func:`open_dump` does. The server sends an EOF packet at the end.
    """
    connection: Any = connect(source, write_timeout=30)
    try:
        _require_same_server(source, connection)
        with mapped(connection):
            _set_session(connection, _MAX_HEARTBEAT_S)
            send_command(connection, COMMAND.COM_BINLOG_DUMP, dump_request(0, position, flags=_NON_BLOCKING))
    except CdcError:
        connection.close()
        raise
    return connection


def _require_same_server(source: SourceConfig, connection: Connection) -> None:
    """Raises SourceUnavailableError if the address leads to another server than before: its positions are other ones.
    An address that follows the master may change between two connections."""
    if source.server_uuid is not None and read_uuid(connection) != source.server_uuid:
        raise SourceUnavailableError(
            "another server answers at this address than a moment ago",
            place=f"source {place_of(source)}",
            remedy="Capture connects again, and looks whether it can go on there.",
        )


def _set_session(connection: Connection, heartbeat_s: float) -> None:
    """Sets the session variables that the dump thread reads, under the names of all servers."""
    heartbeat_ns = int(min(heartbeat_s, _MAX_HEARTBEAT_S) * 1e9)
    with connection.cursor() as cursor:
        # Request events with the checksums that the binlog has. A future MySQL may drop the older name.
        cursor.execute(
            "SET @master_binlog_checksum = @@global.binlog_checksum, @source_binlog_checksum = @@global.binlog_checksum"
        )
        cursor.execute("SET @master_heartbeat_period = %s, @source_heartbeat_period = %s", (heartbeat_ns, heartbeat_ns))
        # MariaDB replaces GTID events by dummies for a replica that does not claim to know them. MySQL ignores it.
        cursor.execute("SET @mariadb_slave_capability = 4")


def register_request(server_id: int, label: str, port: int) -> bytes:
    """Returns the body of COM_REGISTER_SLAVE with an empty user and password. SHOW REPLICAS lists ``label`` and
    ``port``.

    Raises ValueError if the label is too long.
    """
    name = label.encode()
    if len(name) > MAX_LABEL_BYTES:
        raise ValueError(f"the label {label!r} has {len(name)} bytes; servers accept {MAX_LABEL_BYTES}")
    rank, master_id = 0, 0
    return struct.pack(f"<IB{len(name)}sBBHII", server_id, len(name), name, 0, 0, port, rank, master_id)


def dump_request(server_id: int, position: BinlogPosition, *, flags: int = 0) -> bytes:
    """Returns the body of COM_BINLOG_DUMP. Without flags the server waits for new events at the binlog's end, and
    MariaDB sends no ANNOTATE_ROWS events."""
    return struct.pack("<IHI", position.pos, flags, server_id) + position.file.encode()


# --- streams of packets


class DumpStream:
    """The packets of an endless dump, from a position on.

    :meth:`recv_into` returns 0 if nothing arrived within ``poll_s``. It raises SourceUnavailableError after three
    missed heartbeats.
    """

    def __init__(self, source: SourceConfig, position: BinlogPosition, label: str, *, poll_s: float = 0.5) -> None:
        """Connects and requests the dump; the server lists the replica as ``label``. Raises SourceUnavailableError,
        SourceRefusedError, ConfigError."""
        self._source = source
        self._poll_s = poll_s
        self._silent_s = 0.0
        self._failure: OSError | None = None
        """An error that came behind bytes; the bytes are handed over first."""
        # The request cannot name an offset beyond 4 GiB. Begin at the file's start; stored transactions are skipped.
        pos = position.pos if position.pos <= MAX_POSITION else 4
        self.position = BinlogPosition(position.file, pos)
        self._connection: Any = open_dump(source, self.position, label)
        self._socket: socket.socket = socket_of(self._connection)
        self._socket.settimeout(poll_s)
        self.thread_id = int(self._connection.thread_id())

    def recv_into(self, buffer: memoryview) -> int:
        """Reads the bytes that are available, up to the buffer's size, and returns their number; 0 if none arrived.
        Raises SourceUnavailableError, SourceRefusedError."""
        try:
            if self._failure is not None:
                raise self._failure
            n = self._socket.recv_into(buffer)
            if n and isinstance(self._socket, ssl.SSLSocket):
                n += self._further_records(buffer[n:_AT_ONCE_BYTES])
        except TimeoutError:
            self._silent_s += self._poll_s
            if self._silent_s > _MISSED_HEARTBEATS * self._source.heartbeat_s:
                raise SourceUnavailableError(
                    f"the connection is dead: the server missed {_MISSED_HEARTBEATS} heartbeats of "
                    f"{self._source.heartbeat_s:g} s",
                    place=f"source {place_of(self._source)}",
                    remedy="Check that the server runs and that the network to it is sound.",
                ) from None
            return 0
        except OSError as error:
            raise explain(error, place_of(self._source), self._source.user) from error
        if n == 0:
            raise SourceUnavailableError(
                "the server closed the connection",
                place=f"source {place_of(self._source)}",
                remedy="The server was shut down, or another replica connected with the same source.server_id.",
            )
        self._silent_s = 0.0
        return n

    def _further_records(self, buffer: memoryview) -> int:
        """Reads the records that have arrived. TLS hands over one record of at most 16 KiB at a time, so that the work
        for each read would be most of all work."""
        n = 0
        self._socket.settimeout(0)
        try:
            while n < len(buffer) and (more := self._socket.recv_into(buffer[n:])):
                n += more
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            self._failure = error
        finally:
            self._socket.settimeout(self._poll_s)
        return n

    def close(self) -> None:
        """Closes the connection; the server ends its dump thread."""
        close_now(self._connection)


class DumpBytes(Protocol):
    """The packets of a dump from a position to the present end of the binlog. A context manager."""

    def recv_into(self, buffer: memoryview) -> int:
        """Reads the bytes that are available, at least one, and returns their number. Raises SourceUnavailableError."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def short_dump(source: SourceConfig, position: BinlogPosition) -> DumpBytes:
    """Opens a dump that disturbs nobody: an anonymous one of a server, or the files of a folder. Raises
    SourceUnavailableError, SourceRefusedError, ConfigError."""
    if source.folder is not None:
        from cdc.source.folder_dump import FolderDump  # it imports this module's readers

        return FolderDump(source, position, follow=False)
    return ShortDump(source, position)


class ShortDump(Closing):
    """The packets of an anonymous dump from ``position`` to the present end of the binlog."""

    def __init__(self, source: SourceConfig, position: BinlogPosition) -> None:
        """Connects and requests the dump. Raises SourceUnavailableError, SourceRefusedError, ConfigError."""
        self._source = source
        self._connection = open_short_dump(source, position)
        self._socket: socket.socket = socket_of(self._connection)
        self._socket.settimeout(_SILENCE_S)

    def recv_into(self, buffer: memoryview) -> int:
        """Reads the bytes that are available, at least one, and returns their number. Raises SourceUnavailableError."""
        try:
            n = self._socket.recv_into(buffer)
        except OSError as error:
            raise explain(error, place_of(self._source), self._source.user) from error
        if n == 0:
            raise SourceUnavailableError("the server closed the connection", place=f"source {place_of(self._source)}")
        return n

    def close(self) -> None:
        """Closes the connection."""
        close_now(self._connection)
