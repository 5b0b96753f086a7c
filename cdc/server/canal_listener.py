"""Accepts the connections of Canal's clients."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

from cdc.base.errors import ConfigError
from cdc.base.log import get_logger
from cdc.canal.encoder import warm_up
from cdc.config.secrets import canal_password
from cdc.server.canal_clients import Clients
from cdc.server.canal_connection import CanalConnection
from cdc.server.destinations import ServerCounters

if TYPE_CHECKING:
    from cdc.config import ServerConfig
    from cdc.server.live import LiveDestinations

_BACKLOG = 128
_READ_BYTES = 1 << 16
"""A connection holds twice as much that it has not read yet, at most. Longer packets are read in parts."""
_MOST_UNKNOWN = 256
"""Connections that have not logged in."""
_log = get_logger(__name__)


class CanalListener:
    """The port of Canal's clients."""

    def __init__(
        self, server: ServerConfig, live: LiveDestinations, counters: ServerCounters, port: int | None = None
    ) -> None:
        """``server``: what the destinations agree on. ``live``: those that clients get; the listener disconnects the
        clients of each that is closed. ``port``: instead of the configured one; 0: any that is free.

        Raises ConfigError if a secret or certificate is missing, or the port cannot be had.
        """
        self._config = server.canal
        self._password = canal_password(self._config)
        self._tls: ssl.SSLContext | None = None
        if self._config.tls:
            self._tls = _tls(server.certificate, server.key)
        self._clients = Clients(server.canal, live, counters)
        live.when_closed(self._clients.drop)
        self._tasks: set[asyncio.Task[None]] = set()
        self._unknown: dict[asyncio.Task[None], None] = {}
        """Connections that have not logged in, oldest first. The oldest one gives way to a new one."""
        self._server: asyncio.Server | None = None
        self._upkeep: list[asyncio.Task[None]] = []
        self._socket = _listen(self._config.host, self._config.port if port is None else port)
        self.port: int = self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        host = f"[{self._config.host}]" if ":" in self._config.host else self._config.host
        return f"{host}:{self.port}"

    async def start(self) -> None:
        """Begins to accept connections, once the kernels are loaded."""
        await asyncio.to_thread(warm_up)
        self._server = await asyncio.start_server(
            self._accept,
            sock=self._socket,
            ssl=self._tls,
            limit=_READ_BYTES,
            backlog=_BACKLOG,
            ssl_handshake_timeout=10.0 if self._tls else None,
        )
        _log.info("serving Canal's clients", address=self.address)
        self._upkeep = [asyncio.create_task(self._clients.watch()), asyncio.create_task(self._clients.keep())]

    async def stop(self) -> None:
        """Disconnects all clients, and keeps what they have acked."""
        if self._server is not None:
            self._server.close()
        for task in [*self._upkeep, *self._tasks]:
            task.cancel()
        for task in [*self._upkeep, *self._tasks]:
            with suppress(asyncio.CancelledError, Exception):
                await task
        await self._clients.close()

    def close(self) -> None:
        self._socket.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = CanalConnection(
            reader, writer, self._clients, self._password, lambda: self._unknown.pop(task, None)
        )
        self._tasks.add(task)
        try:
            if self._clients.is_full:
                await connection.refuse()
                return
            self._unknown[task] = None
            if len(self._unknown) > _MOST_UNKNOWN:
                oldest = next(iter(self._unknown))
                del self._unknown[oldest]
                oldest.cancel()
            with suppress(asyncio.CancelledError):  # its destination is closed, or the server stops
                await connection.run()
        finally:
            self._tasks.discard(task)
            self._unknown.pop(task, None)
            writer.close()
            with suppress(Exception):
                await asyncio.wait_for(writer.wait_closed(), 5)


def _tls(certificate: object, key: object) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(str(certificate), str(key))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the certificate or its key cannot be used: {error}",
            place="server.certificate",
            remedy="Give both in PEM format, the key without a password.",
        ) from None
    return context


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen at {host}, port {port}: {error.strerror or error}",
            place="server.canal.port",
            remedy="Choose another port, with --port or server.canal.port, or another server.canal.host.",
        ) from None
