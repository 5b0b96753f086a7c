"""Three MySQL servers in one group, for tests of group replication.

>>> with ReplicationGroup() as group:
...     group.primary.execute("CREATE DATABASE shop")
...     group.switch_to(group.secondaries[0])
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Self, TypeVar

import pymysql

from cdc.base.errors import SourceUnavailableError
from cdc.testing.servers.kinds import HOST, PASSWORD, USER
from cdc.testing.servers.server import Server, ServerSet, free_port

T = TypeVar("T")

_MEMBERS = 3
_WAIT_S = 90
_STATES = (
    "SELECT member_id AS uuid, member_port AS port, member_state AS state, member_role AS role "
    "FROM performance_schema.replication_group_members"
)


class ReplicationGroup(ServerSet):
    """Three servers of MySQL 9 with one primary. Their transactions have the group's name as their UUID."""

    def __init__(self) -> None:
        self.name = str(uuid.uuid4())
        ports = [free_port() for _ in range(_MEMBERS)]
        seeds = ",".join(f"{HOST}:{port}" for port in ports)
        self.members = [
            Server(
                "mysql9",
                options=(
                    "--plugin-load-add=group_replication.so",
                    f"--report-host={HOST}",
                    "--group-replication-start-on-boot=OFF",
                    f"--group-replication-group-name={self.name}",
                    f"--group-replication-local-address={HOST}:{port}",
                    f"--group-replication-group-seeds={seeds}",
                    "--group-replication-recovery-get-public-key=ON",
                    "--group-replication-member-expel-timeout=0",  # a killed member is expelled at once
                ),
            )
            for port in ports
        ]

    def start(self) -> Self:
        """Starts the servers and the group; the first one is the primary. Raises SourceUnavailableError."""
        for number, server in enumerate(self.members):
            server.start()
            self.join(server, first=number == 0)
        return self

    def stop(self) -> None:
        """Stops all servers."""
        for server in self.members:
            server.stop()

    @property
    def primary(self) -> Server:
        """The member that takes writes, as the living members say. Waits while they elect one."""
        return self._wait("has no primary", lambda: self._with_role("PRIMARY"))[0]

    @property
    def secondaries(self) -> list[Server]:
        """The living members that follow the primary."""
        return self._with_role("SECONDARY")

    def join(self, server: Server, *, first: bool = False) -> None:
        """Lets a running server join the group, and waits until it has all transactions."""
        server.execute(
            f"SET GLOBAL group_replication_bootstrap_group = {'ON' if first else 'OFF'}",
            f"START GROUP_REPLICATION USER='{USER}', PASSWORD='{PASSWORD}'",
            "SET GLOBAL group_replication_bootstrap_group = OFF",
        )
        self._wait("has a member that does not come online", lambda: self._state(server) == "ONLINE")

    def leave(self, server: Server) -> None:
        """Lets a member leave the group; it goes on as a server that takes no writes."""
        server.execute("STOP GROUP_REPLICATION")

    def switch_to(self, server: Server) -> None:
        """Makes a member the primary, in order."""
        server.execute(f"SELECT group_replication_set_as_primary('{_uuid(server)}')")

    def renew(self, server: Server) -> None:
        """Starts a killed member again, which rejoins the group."""
        server.restart()
        self.join(server)

    def _with_role(self, role: str) -> list[Server]:
        for server in self.members:
            rows = _members(server)
            if any(state == "ONLINE" and member_role == "PRIMARY" for _, state, member_role in rows):
                ports = {port for port, state, member_role in rows if state == "ONLINE" and member_role == role}
                return [member for member in self.members if member.port in ports and member.alive]
        return []

    def _state(self, server: Server) -> str:
        return next((state for port, state, _ in _members(server) if port == server.port), "OFFLINE")

    def _wait(self, what: str, find: Callable[[], T]) -> T:
        until = time.monotonic() + _WAIT_S
        while not (result := find()):
            if time.monotonic() > until:
                states = {server.port: _members(server) for server in self.members}
                raise SourceUnavailableError(f"the group {what} after {_WAIT_S} s: {states}")
            time.sleep(0.1)
        return result


def _members(server: Server) -> list[tuple[int, str, str]]:
    """Returns port, state and role of the members of the group as a server sees them; none if it is down."""
    if not server.alive:
        return []
    try:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(_STATES)
            return [(int(row[1]), str(row[2]), str(row[3])) for row in cursor.fetchall() if row[1] is not None]
    except pymysql.MySQLError:
        return []


def _uuid(server: Server) -> str:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@server_uuid")
        row = cursor.fetchone()
    assert row is not None
    return str(row[0])
