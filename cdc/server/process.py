"""Runs the server in this process until SIGTERM or SIGINT, which let it answer what it has begun."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from cdc.errors import ConfigError
from cdc.log import get_logger
from cdc.server.destinations import Listening, ServedDestination, listening

if TYPE_CHECKING:
    import uvicorn

    from cdc.config import DestinationConfig
    from cdc.server.canal_listener import CanalListener

_MOST_CONNECTIONS = 500
_IDLE_S = 30
_STOP_S = 30
"""How long requests may take to end when the server is stopped."""
_log = get_logger(__name__)


def serve(
    configs: Sequence[DestinationConfig],
    port: int | None = None,
    ready: Callable[[str, str | None], object] = lambda url, canal: None,
    *,
    canal_port: int | None = None,
) -> None:
    """Serves destinations until the process is told to stop. ``port`` and ``canal_port``: instead of the configured
    ones; 0: any that is free. ``ready`` is called with the addresses for HTTP and for Canal's clients (None: there is
    no such port) once the process listens.

    Raises ConfigError if a package, a token or a certificate is missing, or the port cannot be had.
    """
    try:
        import uvicorn

        from cdc.server.app import Server
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the package {error.name} is not installed", place="cdc server", remedy="Install towpath[server]."
        ) from None
    where = listening(configs, port)
    served = [ServedDestination(config) for config in configs]
    server: uvicorn.Server

    answers = Server(served, stopping=lambda: server.should_exit)
    settings = uvicorn.Config(
        answers.application(),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=_STOP_S,
        ws="none",
        ssl_certfile=where.certificate,
        ssl_keyfile=where.key,
    )
    try:
        settings.load()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the certificate or its key cannot be used: {error}",
            place="server.certificate",
            remedy="Give both in PEM format, the key without a password.",
        ) from None
    listener = _listen(where)
    of_canal = [one for one in served if one.config.server.canal.enabled]
    canal = None
    if of_canal:
        from cdc.server.canal_listener import CanalListener

        canal = CanalListener(of_canal, answers.counters, canal_port)
    server = uvicorn.Server(settings)
    url = Listening(where.host, listener.getsockname()[1], where.certificate, where.key).url
    _log.info("serving", address=url, destinations=", ".join(one.name for one in served))
    if canal is not None:
        _log.info("serving Canal's clients", address=canal.address, destinations=", ".join(o.name for o in of_canal))
    for one in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises the signal that ended it once more
        signal.signal(one, lambda *_: None)
    try:
        asyncio.run(
            _run(
                server,
                answers.expire_locks,
                listener,
                canal,
                lambda: ready(url, None if canal is None else canal.address),
            )
        )
    finally:
        if canal is not None:
            canal.close()
        answers.close()
        listener.close()


async def _run(
    server: uvicorn.Server,
    expire: Callable[[], Awaitable[None]],
    listener: socket.socket,
    canal: CanalListener | None,
    ready: Callable[[], object],
) -> None:
    expiry = asyncio.ensure_future(expire())
    try:
        if canal is not None:
            await canal.start()
        ready()
        await server.serve(sockets=[listener])
    finally:
        if canal is not None:
            await canal.stop()
        expiry.cancel()
        with suppress(asyncio.CancelledError):
            await expiry


def _listen(where: Listening) -> socket.socket:
    try:
        family = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((where.host, where.port), family=family, backlog=256)
    except OSError as error:
        raise ConfigError(
            f"cannot listen at {where.host}, port {where.port}: {error.strerror or error}",
            place="server.http",
            remedy="Choose another port, with --http or server.http, or another server.host.",
        ) from None
