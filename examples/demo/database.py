"""The demo's own MariaDB server, when no other is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cdc.testing.servers import HOST, PASSWORD, USER, Server
from examples.demo.shop import Account


def start_database(work: Path) -> tuple[Account, Callable[[], None]]:
    """A fresh server with its data in the work folder, and what stops it. Raises SourceUnavailableError."""
    server = Server("mariadb10", folder=work / "mariadb")
    server.start()
    return Account("mariadb", HOST, server.port, USER, PASSWORD), server.stop
