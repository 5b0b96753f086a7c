"""Runs the server in this process until SIGTERM or SIGINT, which let it answer what it has begun."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from cdc.base.log import get_logger
from cdc.server.embedded import EmbeddedServer

_log = get_logger(__name__)


def serve(
    folder: Path,
    names: Sequence[str] = (),
    port: int | None = None,
    ready: Callable[[EmbeddedServer], object] = lambda server: None,
    *,
    canal_port: int | None = None,
    options: Sequence[str] = (),
) -> None:
    """Serves destinations until the process is told to stop: see :class:`~cdc.server.embedded.EmbeddedServer`.
    ``ready`` is called once the process listens. Raises ConfigError."""

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, stop.set)
        async with EmbeddedServer(folder, names, http=port, canal_port=canal_port, options=options) as server:
            _log.info("serving", address=server.url, destinations=", ".join(server.live.names()))
            ready(server)
            await stop.wait()

    asyncio.run(run())
