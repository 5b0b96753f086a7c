"""The connector to one server, at a fixed address."""

from __future__ import annotations

import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from cdc.base.addresses import Address, parse_address
from cdc.base.errors import BatchError, BatchOrderError, UsageError
from cdc.base.log import get_logger
from cdc.connector.base import FETCH_SIZE, Batch, Connector
from cdc.connector.link import Link, Login, LostError, RefusedError, refused, unavailable

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_T = TypeVar("_T")
_log = get_logger(__name__)


class TcpConnector(Connector):
    """A client of one server. A connection that is lost is opened again within ``retry_for_s``, with the subscription;
    what was not acked then comes again."""

    def __init__(self, address: str, login: Login, *, retry_for_s: float = 60.0) -> None:
        """``address``: ``host:port``. Raises ConfigError."""
        self._login = login
        self._retry_for_s = retry_for_s
        self._address = parse_address(address) if address else None
        self._link: Link | None = None
        self._filter: str | None = None
        self._held: deque[int] = deque()
        """The batches that are not acked."""

    # --- connection

    @property
    def place(self) -> str:
        """The destination, for messages."""
        return f"canal://{self._address}/{self._login.destination}"

    def connect(self) -> None:
        if self._link is None:
            self._retried(lambda _: None)

    def close(self) -> None:
        self._drop()

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        self._held.clear()

    def _find(self, left_s: float) -> Address:
        """Returns the server's address, which may take so long to find. Raises LostError."""
        assert self._address is not None
        return self._address

    def _opened(self, left_s: float) -> Link:
        if self._link is None:
            self._address = self._find(left_s)
            link = Link(self._address, self._login)
            try:
                link.rollback(0)  # ignored without a subscription
                if self._filter is not None:
                    link.subscribe(self._filter)
            except BaseException:
                link.close()
                raise
            self._link = link
        return self._link

    def _retried(self, ask: Callable[[Link], _T]) -> _T:
        """Asks the server, over a new connection if the old one is lost. Raises PeerUnavailableError when
        ``retry_for_s`` has passed, UsageError if the server refuses.

        If a server let all this time pass without an answer and leads no more, the new leader is asked once.
        """
        deadline = time.monotonic() + self._retry_for_s
        pause_s, followed = _FIRST_PAUSE_S, False
        while True:
            try:
                return ask(self._opened(max(0.0, deadline - time.monotonic())))
            except RefusedError as error:
                link = self._link
                # A server that starts again refuses subscriptions that it will accept a moment later.
                is_starting = link is None and self._filter is not None
                again = is_starting or (link is not None and link.doubtful) or self._moves_on()
                if link is not None and (again or link.unanswered):
                    self._drop()  # which answer belongs to which request is not known any more
                if not again or time.monotonic() >= deadline:
                    raise refused(self.place, error) from None
                _log.warning("connection given up", place=self.place, reason=str(error))
            except LostError as lost:
                was_open = self._link is not None
                self._drop()
                if time.monotonic() >= deadline:
                    if followed or not was_open or not self._moves_on():
                        raise unavailable(self.place, lost) from None
                    followed = True
                _log.debug("connection lost", place=self.place, reason=str(lost))
            time.sleep(min(pause_s, max(0.0, deadline - time.monotonic())))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _moves_on(self) -> bool:
        """Whether to look for the server anew after a refusal, or when there was no answer in time."""
        return False

    # --- requests

    def subscribe(self, table_filter: str = "") -> None:
        def ask(link: Link) -> None:
            link.subscribe(table_filter)
            link.rollback(0)

        self._retried(ask)
        self._filter = table_filter
        self._held.clear()

    def unsubscribe(self) -> None:
        self._retried(lambda link: link.unsubscribe())
        self._filter = None
        self._held.clear()

    def get_without_ack(self, size: int = FETCH_SIZE, timeout_s: float | None = None) -> Batch:
        if timeout_s is not None and timeout_s <= 0:
            raise UsageError(f"timeout_s is {timeout_s}", remedy="Give seconds, or None in order not to wait.")
        batch = self._retried(lambda link: link.get(size, timeout_s))
        if batch:
            self._held.append(batch.id)
        return batch

    def holds(self, batch: int) -> bool:
        return batch in self._held

    def ack(self, batch: int, *, confirm: bool = False) -> None:
        """Acks a batch. ``confirm``: waits for the server's answer, which takes a round trip; not with Canal's server.
        Without it, the next call finds out that an ack was refused or lost; its entries come again. Raises as
        :meth:`Connector.ack`."""
        self._require(batch)
        if self._held[0] != batch:
            raise BatchOrderError(
                f"batch {batch} cannot be acked: batch {self._held[0]} is due first",
                place=self.place,
                remedy=f"Ack batch {self._held[0]} first.",
            )
        self._sent(lambda link: link.ack(batch), confirm=confirm)
        self._held.popleft()

    def rollback(self, batch: int | None = None, *, confirm: bool = False) -> None:
        """Rolls back. ``confirm`` as in :meth:`ack`."""
        if batch is not None:
            self._require(batch)
        if self._link is None:
            self.connect()  # which rolls back all
            return
        self._sent(lambda link: link.rollback(batch or 0), confirm=confirm)
        while self._held and self._held[-1] != batch:
            self._held.pop()
        if self._held:
            self._held.pop()

    def _require(self, batch: int) -> None:
        if batch not in self._held:
            raise BatchError(
                f"batch {batch} is not there: it was acked or rolled back, or its connection was lost",
                place=self.place,
                remedy="Get again: its entries come again unless they were acked.",
            )

    def _sent(self, send: Callable[[Link], None], *, confirm: bool) -> None:
        link = self._link
        assert link is not None  # there are no batches without one
        try:
            send(link)
            if confirm:
                link.settle()
        except RefusedError as error:
            raise BatchError(f"the server refuses: {error}", place=self.place) from None
        except LostError as lost:
            self._drop()
            raise BatchError(
                f"the connection was lost: {lost}",
                place=self.place,
                remedy="Get again: what the server has not acked comes again.",
            ) from None


def connect(
    address: str,
    destination: str,
    *,
    client_id: int = 1001,
    user: str = "",
    password: str | None = None,
    tls: ssl.SSLContext | None = None,
    answer_timeout_s: float = 60.0,
    retry_for_s: float = 60.0,
) -> TcpConnector:
    """Connects to ``cdc server``, or to Canal's server, at ``host:port``; see :class:`TcpConnector`.

    Raises PeerUnavailableError, ConfigError.
    """
    login = Login(destination, client_id, user, password, tls, answer_timeout_s=answer_timeout_s)
    connector = TcpConnector(address, login, retry_for_s=retry_for_s)
    connector.connect()
    return connector
