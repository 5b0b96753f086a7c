"""An ensemble of ZooKeepers, which serves as long as most of its members run.

>>> with ZooKeeperEnsemble() as ensemble:
...     leader = ensemble.leader()
...     leader.kill()
...     ensemble.wait()
"""

from __future__ import annotations

import socket
import time
from typing import Self

from cdc.base.errors import SourceUnavailableError
from cdc.testing.servers.kinds import HOST
from cdc.testing.servers.server import Server, ServerSet, free_port

_WAIT_S = 60.0
_LEADS = ("leader", "standalone")


class ZooKeeperEnsemble(ServerSet):
    """ZooKeepers that elect a leader among themselves. Its members are stopped, killed and restarted one by one."""

    def __init__(self, count: int = 3, options: tuple[str, ...] = ()) -> None:
        """``options``: further lines of each member's ``zoo.cfg``."""
        ports = [free_port() for _ in range(3 * count)]
        clients, between = ports[:count], ports[count:]
        lines = [
            f"server.{number}={HOST}:{between[2 * number - 2]}:{between[2 * number - 1]};{HOST}:{port}"
            for number, port in enumerate(clients, start=1)
        ]
        # In ticks of half a second: how long a member may take to follow the leader, and to answer it.
        common = (*lines, "initLimit=20", "syncLimit=4", *options)
        self.members = [Server("zookeeper", port=port, options=common) for port in clients]

    @property
    def url(self) -> str:
        """All members, as ``host:port,host:port``."""
        return ",".join(member.url for member in self.members)

    def start(self) -> Self:
        """Starts all members, and returns when they serve clients. Raises SourceUnavailableError."""
        try:
            for member in self.members:
                member.start()
            self.wait()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stops all members."""
        for member in self.members:
            member.stop()

    def leader(self) -> Server | None:
        """Returns the member that leads the others; None if none does now."""
        return next((member for member in self.members if member.alive and role_of(member) in _LEADS), None)

    def wait(self) -> Server:
        """Waits until all members that run serve clients, and returns their leader. Raises SourceUnavailableError."""
        end = time.monotonic() + _WAIT_S
        while time.monotonic() < end:
            roles = {member.port: role_of(member) for member in self.members if member.alive}
            leads = [member for member in self.members if roles.get(member.port) in _LEADS]
            if len(leads) == 1 and all(roles.values()):
                return leads[0]
            time.sleep(0.05)
        raise SourceUnavailableError(f"the ensemble at {self.url} did not elect a leader within {_WAIT_S:g} s")


def role_of(member: Server) -> str | None:
    """Returns whether a member is the ``leader`` or a ``follower``; None while it serves no clients."""
    try:
        with socket.create_connection((HOST, member.port), timeout=5) as connection:
            connection.sendall(b"srvr")
            answer = b""
            while part := connection.recv(4096):
                answer += part
    except OSError:
        return None
    lines = answer.decode(errors="replace").splitlines()
    return next((line.removeprefix("Mode: ") for line in lines if line.startswith("Mode: ")), None)
