"""Elects the one client that works among several with the same id of a destination, as Canal's ClientRunningMonitor
does: who creates the ephemeral node ``running`` works, and the others wait until it vanishes."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from cdc.base.errors import LeaseHeldError, MetaUnavailableError
from cdc.canal.cluster.nodes import DEFAULT_ROOT, Tree, parse_running, render_client
from cdc.meta.zookeeper_connection import ZooKeeperConnection

_LOOK_S = 1.0


class ClientElection:
    """The part of one client in the election of its id. Java clients of Canal take part in the same election.

    The client calls :meth:`acquire` before it connects to a server, and :meth:`is_running` from time to time, at least
    before each ack. If that says False it disconnects, and acquires again. Two clients may work for a moment, if the
    first one is cut off and does not look; the server's batches belong to one connection's id all the same, so that an
    ack of the wrong one is refused there.
    """

    def __init__(
        self,
        hosts: str,
        destination: str,
        client_id: int,
        address: str,
        *,
        root: str = DEFAULT_ROOT,
        session_timeout_s: float = 10.0,
        wait_s: float = 10.0,
    ) -> None:
        """``address``: what others are shown of this client, like ``10.0.0.9:51234``."""
        self._connection = ZooKeeperConnection(hosts, session_timeout_s, wait_s)
        self._wait_s = wait_s
        tree = Tree(root.rstrip("/"))
        self._path = tree.client_running(destination, client_id)
        self._shown = f"{tree.client_members(destination, client_id)}/{address}"
        self._what = f"client {client_id} of {destination}"
        self._data = render_client(address, client_id)
        self._changed = threading.Event()
        self._session = 0

    def acquire(self, timeout_s: float) -> None:
        """Waits until this client is the one that works. Raises LeaseHeldError, which names the one that does, after
        ``timeout_s``; MetaUnavailableError."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._changed.clear()
            other = self._try()
            if other is None:
                return
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise LeaseHeldError(
                    f"{self._what} works at {other}, and only one of an id does",
                    place=f"zookeeper://{self._connection.hosts}{self._path}",
                    remedy="Wait until it ends, or end it; or use another client id, which gets all changes of its "
                    "own.",
                )
            self._changed.wait(min(left_s, _LOOK_S))

    def is_running(self) -> bool:
        """Whether this client still is the one that works. Raises MetaUnavailableError if that is not known; treat it
        as no."""
        from kazoo.exceptions import NoNodeError

        with self._connection.errors("look for the running client"):
            client = self._connection.client()
            if not self._session or client.client_id is None or client.client_id[0] != self._session:
                return False
            try:
                self._get(client.sync_async(self._path))
                _, stat = self._get(client.get_async(self._path))
            except NoNodeError:
                return False
            return bool(stat.ephemeralOwner == self._session)

    def release(self) -> None:
        """Lets another client work. Releasing twice does nothing."""
        self._session = 0
        self._connection.drop()  # both nodes go with the session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _try(self) -> str | None:
        """Makes the node; returns who has it if that is another client."""
        from kazoo.exceptions import NodeExistsError, NoNodeError

        with self._connection.errors("become the running client"):
            client = self._connection.client()
            session = client.client_id[0] if client.client_id else 0
            with suppress(NodeExistsError):  # of an earlier try, or of a process before this one
                self._get(client.create_async(self._shown, b"", ephemeral=True, makepath=True))
            try:
                self._get(client.create_async(self._path, self._data, ephemeral=True))
            except NodeExistsError:
                try:
                    data, stat = self._get(client.get_async(self._path, watch=self._notice))
                except NoNodeError:
                    return "an address that is not known"
                if stat.ephemeralOwner != session:
                    return parse_running(data, self._path) or "an address that is not known"
            if client.client_id is None or client.client_id[0] != session:
                raise MetaUnavailableError("the session was lost", place=self._path, remedy="Try again.")
            self._session = session
            return None

    def _notice(self, _event: object) -> None:
        self._changed.set()

    def _get(self, asked: Any) -> Any:
        return asked.get(timeout=self._wait_s)
