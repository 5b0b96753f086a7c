"""Finds the server that leads a destination, for clients: as Canal's ClusterNodeAccessStrategy does, with watches."""

from __future__ import annotations

import threading
import time
from typing import Any

from cdc.base.closing import Closing
from cdc.base.errors import CdcError, MetaUnavailableError, PeerUnavailableError
from cdc.canal.cluster.nodes import DEFAULT_ROOT, ServerNode, Tree, parse_leader, parse_member, parse_running
from cdc.meta.zookeeper_connection import ZooKeeperConnection


class Discovery(Closing):
    """Finds the servers of one destination. Each call asks ZooKeeper, which must answer within ``wait_s``. The
    session is opened on first use and ends with :meth:`close`. Safe in any thread.

    Canal's own servers are found, too; they have no URL for HTTP.
    """

    def __init__(
        self,
        hosts: str,
        destination: str,
        *,
        root: str = DEFAULT_ROOT,
        session_timeout_s: float = 10.0,
        wait_s: float = 10.0,
    ) -> None:
        """``hosts``: like ``h1:2181,h2:2181``."""
        self._connection = ZooKeeperConnection(hosts, session_timeout_s, wait_s)
        self._wait_s = wait_s
        self._tree = Tree(root.rstrip("/"))
        self._destination = destination
        self._running = self._tree.running(destination)
        self._changed = threading.Event()

    @property
    def place(self) -> str:
        """The destination in ZooKeeper, for messages."""
        return f"zookeeper://{self._connection.hosts}{self._tree.destination(self._destination)}"

    def leader(self) -> ServerNode | None:
        """Returns the server that leads; None if there is none now. Raises MetaUnavailableError, DamagedError."""
        from kazoo.exceptions import NoNodeError

        with self._connection.errors("look for the leader"):
            client = self._connection.client()
            try:
                data, _ = self._get(client.get_async(self._running, watch=self._notice))
            except NoNodeError:
                self._get(client.exists_async(self._running, watch=self._notice))
                return None
            address = parse_running(data, self._running)
            try:
                data, _ = self._get(client.get_async(self._tree.leader(self._destination)))
            except NoNodeError:
                data = b""
        if address is None:
            return None
        record = parse_leader(data, self._tree.leader(self._destination))
        return record.server if record is not None and record.server.address == address else ServerNode(address)

    def epoch(self) -> int:
        """Returns the epoch of the newest leadership; 0 if there was none."""
        from kazoo.exceptions import NoNodeError

        path = self._tree.leader(self._destination)
        with self._connection.errors("look for the epoch"):
            try:
                data, _ = self._get(self._connection.client().get_async(path))
            except NoNodeError:
                return 0
        record = parse_leader(data, path)
        return 0 if record is None else record.epoch

    def members(self) -> list[ServerNode]:
        """Returns all servers that have the destination and are up, by address."""
        from kazoo.exceptions import NoNodeError

        parent = self._tree.members(self._destination)
        servers = []
        with self._connection.errors("list the servers"):
            client = self._connection.client()
            try:
                names = self._get(client.get_children_async(parent))
            except NoNodeError:
                return []
            waiting = [(name, client.get_async(f"{parent}/{name}")) for name in sorted(names)]
            for name, asked in waiting:
                try:
                    servers.append(parse_member(name, self._get(asked)[0]))
                except NoNodeError:
                    continue
        return servers

    def wait(self, timeout_s: float, *, other_than: ServerNode | None = None) -> ServerNode:
        """Returns the leader once there is one, and it is not ``other_than``, which has just failed. After
        ``timeout_s`` it returns that one too. Raises PeerUnavailableError if nobody leads until then, and what
        :meth:`leader` raises then."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._changed.clear()
            failed: CdcError | None = None
            leader = None
            try:
                leader = self.leader()
            except MetaUnavailableError as error:
                failed = error
            left_s = deadline - time.monotonic()
            if leader is not None and (leader != other_than or left_s <= 0):
                return leader
            if left_s <= 0:
                raise failed or PeerUnavailableError(
                    f"no server leads the destination, and none did for {timeout_s:g} s",
                    place=self.place,
                    remedy="Start `cdc server` on a machine of the cluster, or look at the servers' logs.",
                )
            self._changed.wait(min(left_s, 1.0))

    def close(self) -> None:
        """Ends the session."""
        self._connection.drop()

    def _notice(self, _event: object) -> None:
        self._changed.set()

    def _get(self, asked: Any) -> Any:
        return asked.get(timeout=self._wait_s)
