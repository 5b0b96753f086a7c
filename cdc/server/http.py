"""The HTTP side of a server: the application with operations, instances, page and alarms, in a server of uvicorn.

Its packages are in the extra ``server``. :mod:`cdc.server.embedded` loads this module when the server starts, and names
a package that is missing.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import jinja2  # noqa: F401 - the page loads it when it is asked for
import uvicorn

from cdc.base.errors import ConfigError
from cdc.config.server import RolesConfig
from cdc.server.alarms import ServerAlarms
from cdc.server.app import ServerApp
from cdc.server.connections import of_one_server
from cdc.server.destinations import Listening
from cdc.server.instances import Instances
from cdc.server.live import LiveDestinations
from cdc.server.operators import Operators
from cdc.server.page import AdminPage
from cdc.server.roles import Roles

_IDLE_S = 30
_STOP_S = 30
"""The time that requests may take to end when the server is stopped."""


class HttpSide:
    """Answers requests about destinations and instances."""

    def __init__(self, live: LiveDestinations, instances: Instances, roles: Roles, where: Listening) -> None:
        self.answers = ServerApp(live, stopping=lambda: self.server.should_exit)
        self.answers.operators = Operators(instances, roles, self.answers.counters)
        self.answers.page = AdminPage(self.answers.operators, is_secure=where.certificate is not None)
        self.alarms = ServerAlarms(instances)
        self.answers.alarms = self.alarms.watches
        self.server = _QuietServer(
            uvicorn.Config(
                self.answers.application(),
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                http=of_one_server(),
                timeout_keep_alive=_IDLE_S,
                timeout_graceful_shutdown=_STOP_S,
                ws="none",
                ssl_certfile=where.certificate,
                ssl_keyfile=where.key,
            )
        )

    @classmethod
    async def open(cls, live: LiveDestinations, instances: Instances, roles: RolesConfig, where: Listening) -> Self:
        """Reads the tokens of the roles and the certificate. Raises ConfigError."""
        side = cls(live, instances, await asyncio.to_thread(Roles, roles), where)
        try:
            await asyncio.to_thread(side.server.config.load)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the certificate or its key cannot be used: {error}",
                place="server.certificate",
                remedy="Give both in PEM format, the key without a password.",
            ) from None
        return side


class _QuietServer(uvicorn.Server):
    """A server that leaves the signals of the process to the program."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
