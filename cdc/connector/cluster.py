"""The connector to whichever server leads the destination, by ZooKeeper. Needs ``towpath[zookeeper]``."""

from __future__ import annotations

import os
import socket
import ssl
from dataclasses import dataclass
from typing import Any

from cdc.base.addresses import Address
from cdc.base.errors import BatchError, MetaUnavailableError, PeerUnavailableError
from cdc.canal.cluster.client_election import ClientElection
from cdc.canal.cluster.discovery import Discovery
from cdc.canal.cluster.nodes import DEFAULT_ROOT, address_of
from cdc.connector.link import Login, LostError
from cdc.connector.tcp import TcpConnector


@dataclass(frozen=True)
class ZooKeeper:
    """The address of a cluster in ZooKeeper."""

    hosts: str
    """``h1:2181,h2:2181``."""
    root: str = DEFAULT_ROOT
    session_timeout_s: float = 10.0
    """The time after this program's death when another one with its client id may go on."""


class ClusterConnector(TcpConnector):
    """A client of a cluster. Of several with the same client id one works; the others wait in :meth:`connect`.

    When the server dies or another one leads, the next call connects to that one, with the subscription; what was not
    acked comes again. Canal's own clusters and clients have the same nodes, and can be mixed with it.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        login: Login,
        *,
        elect_for_s: float = 3600.0,
        retry_for_s: float = 60.0,
    ) -> None:
        """``elect_for_s``: how long to wait while another client of
        this id works; LeaseHeldError afterwards."""
        super().__init__("", login, retry_for_s=retry_for_s)
        self._elect_for_s = elect_for_s
        options: dict[str, Any] = {"root": zookeeper.root, "session_timeout_s": zookeeper.session_timeout_s}
        self._discovery = Discovery(zookeeper.hosts, login.destination, **options)
        me = f"{socket.gethostname()}:{os.getpid()}"
        self._election = ClientElection(zookeeper.hosts, login.destination, login.client_id, me, **options)
        self._is_elected = False

    @property
    def place(self) -> str:
        return self._discovery.place

    def connect(self) -> None:
        """Waits until this client is the one that works, and connects. Raises also LeaseHeldError,
        MetaUnavailableError."""
        self._elect()
        super().connect()

    def close(self) -> None:
        super().close()
        self._is_elected = False
        self._election.release()
        self._discovery.close()

    def ack(self, batch: int, *, confirm: bool = False) -> None:
        """Acks a batch. Raises BatchError, too, if another client with this id works now: it gets the entries."""
        if not self._still_elected():
            self._drop()
            self._is_elected = False
            raise BatchError(
                f"batch {batch} cannot be acked: another client with this id may work now",
                place=self.place,
                remedy="Get again, which waits until this client works again.",
            )
        super().ack(batch, confirm=confirm)

    def _elect(self) -> None:
        if not self._is_elected:
            self._election.acquire(self._elect_for_s)
            self._is_elected = True

    def _still_elected(self) -> bool:
        try:
            return self._is_elected and self._election.is_running()
        except MetaUnavailableError:
            return False

    def _find(self, left_s: float) -> Address:
        if not self._still_elected():
            self._is_elected = False
        self._elect()
        try:
            return address_of(self._discovery.wait(left_s).address)
        except (PeerUnavailableError, MetaUnavailableError) as error:
            raise LostError(str(error)) from None

    def _moves_on(self) -> bool:
        """A server refuses what it does not lead, and does not say so in a way that all versions share."""
        try:
            leader = self._discovery.leader()
        except MetaUnavailableError:
            return False
        return leader is None or address_of(leader.address) != self._address


def connect_cluster(
    zookeeper: ZooKeeper | str,
    destination: str,
    *,
    client_id: int = 1001,
    user: str = "",
    password: str | None = None,
    tls: ssl.SSLContext | None = None,
    elect_for_s: float = 3600.0,
    retry_for_s: float = 60.0,
) -> ClusterConnector:
    """Connects to the server that leads a destination; see :class:`ClusterConnector`. ``zookeeper``: also its hosts
    alone."""
    login = Login(destination, client_id, user, password, tls)
    where = ZooKeeper(zookeeper) if isinstance(zookeeper, str) else zookeeper
    connector = ClusterConnector(where, login, elect_for_s=elect_for_s, retry_for_s=retry_for_s)
    try:
        connector.connect()
    except BaseException:
        connector.close()
        raise
    return connector
