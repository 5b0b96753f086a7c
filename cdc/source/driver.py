"""The names of PyMySQL without a promise that Towpath uses, all of them here.

PyMySQL has no public way to send a command that is not SQL, to leave an answer unread, to compress a connection, or to
close one without a word. A test names the one that a new version has removed.
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Any

import pymysql

from cdc.source.compressed_socket import FLAGS, ZSTD_LEVEL, Algorithm, CompressedSocket

PRIVATE_NAMES = (
    "_create_ssl_ctx",
    "_current_timeout",
    "_execute_command",
    "_force_close",
    "_read_packet",
    "_request_authentication",
    "_rfile",
    "_sock",
)
"""The names, all of ``pymysql.connections.Connection``."""
_TLS_REQUEST_BYTES = 32
"""The length of the packet that asks for TLS, before the one that logs in."""

if TYPE_CHECKING:
    _BaseConnection = pymysql.connections.Connection[pymysql.cursors.Cursor]
else:
    _BaseConnection = pymysql.connections.Connection


def send_command(connection: Any, command: int, content: str | bytes) -> None:
    """Sends a command. Its answer is not read."""
    connection._execute_command(command, content)


def read_packet(connection: Any) -> None:
    """Reads one packet of an answer, and raises the error that it holds."""
    connection._read_packet()


def socket_of(connection: Any) -> socket.socket:
    """Returns the socket of a connection, for answers that are read without PyMySQL."""
    return connection._sock  # type: ignore[no-any-return]


def forget_timeout(connection: Any) -> None:
    """Has PyMySQL set the socket's timeout again before its next read or write, since a caller has changed it."""
    connection._current_timeout = -1


def close_now(connection: Any) -> None:
    """Closes the connection at once, whatever it is doing; the server ends the query.

    Closing the socket object is not enough, because PyMySQL's buffered reader keeps the descriptor open. The server
    would go on writing to it, and MariaDB would let the next dump with the same server_id wait for that.
    """
    connection._force_close()


class NotOfferedError(Exception):
    """The server does not offer this compression."""


class CompressibleConnection(_BaseConnection):
    """PyMySQL's connection, which may be compressed. Where no certificate is verified it does not load the system's
    certificate authorities, which takes longer than connecting. Raises NotOfferedError."""

    def __init__(self, compression: Algorithm | None, **arguments: Any) -> None:
        self._compression = compression
        self._logs_in = False
        super().__init__(**arguments)

    def _request_authentication(self) -> None:
        this: Any = self
        algorithm = self._compression
        if algorithm is not None:
            if not this.server_capabilities & FLAGS[algorithm]:
                raise NotOfferedError(f"compression by {algorithm}")
            this.client_flag |= FLAGS[algorithm]
            self._logs_in = algorithm == "zstd"
        super()._request_authentication()  # type: ignore[misc]
        if algorithm is not None:  # begins behind the login
            this._sock = CompressedSocket(this._sock, algorithm)
            this._rfile = this._sock.makefile("rb")

    def write_packet(self, payload: bytes) -> None:
        if self._logs_in and len(payload) > _TLS_REQUEST_BYTES:
            self._logs_in, payload = False, payload + ZSTD_LEVEL
        super().write_packet(payload)

    def _create_ssl_ctx(self, sslp: ssl.SSLContext | dict[str, Any]) -> ssl.SSLContext:
        return sslp if isinstance(sslp, ssl.SSLContext) else unverified()


def unverified() -> ssl.SSLContext:
    """Returns how a connection uses TLS without verifying a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
