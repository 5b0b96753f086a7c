"""The master's side: listens for standbys, and answers a put that waits for them. RocketMQ's ``HAService``."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from cdc.errors import CdcError, ConfigError, PeerUnavailableError
from cdc.log import get_logger
from cdc.replication.connection import Link
from cdc.replication.epoch import Term
from cdc.replication.frames import Channel
from cdc.replication.report import PeerReport, RoleReport, write_report
from cdc.replication.settings import DEFAULT_TIMING, Address, Timing
from cdc.store.writer.durability import PutStatus

log = get_logger(__name__)

_MAX_LINKS = 16
_REPORT_EVERY_S = 1.0


class Master:
    """Serves the standbys of a store that is open for writing, and is its relay log's ``replication``.

    A put is confirmed by the first standby that has it. Several may follow.
    """

    def __init__(
        self,
        store: Path,
        *,
        destination: str,
        term: Term,
        listen: Address,
        role: Literal["sync_master", "async_master"] = "sync_master",
        timeout_s: float = 5.0,
        max_behind_bytes: int = 268435456,
        secret: bytes | None = None,
        timing: Timing = DEFAULT_TIMING,
    ) -> None:
        """Listen. Port 0 takes a free one: :attr:`address` says which. Raises ConfigError where that cannot be."""
        self._store = store
        self._destination = destination
        self._term = term
        self._role = role
        self._timeout_s = timeout_s
        self._max_behind_bytes = max_behind_bytes
        self._secret = secret
        self._timing = timing
        self._changed = threading.Condition()
        self._links: list[Link] = []
        self._confirmed = 0
        self._closing = False
        try:
            family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
            self._socket = socket.create_server(tuple(listen), family=family, backlog=_MAX_LINKS)
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {listen}: {error.strerror or error}",
                place="standby.listen",
                remedy="Name an address of this machine and a free port.",
            ) from None
        if secret is None and not listen.host.startswith(("127.", "::1", "localhost")):
            log.warning(
                "whoever reaches this port can read the store: set standby.secret_env or standby.secret_file",
                listen=str(listen),
            )
        host, port = self._socket.getsockname()[:2]
        self.address = Address(host, port)
        self._socket.settimeout(0.2)
        self._thread = threading.Thread(target=self._accept, name="standbys", daemon=True)
        self._thread.start()

    # --- what a put asks

    def wait(self, segment_name: str, end_offset: int, seq: int, timeout_s: float | None) -> PutStatus:
        """Waits as :class:`cdc.event_store.transaction_log.Replication` says, for ``timeout_s`` or the configured time,
        whichever is shorter. An asynchronous master never waits."""
        with self._changed:
            for link in self._links:
                link.wake()
            if self._role == "async_master":
                return PutStatus.PUT_OK
            deadline = time.monotonic() + min(
                self._timeout_s, self._timeout_s if timeout_s is None else max(0.0, timeout_s)
            )
            while self._confirmed < seq:
                if self._closing or not self._is_available():
                    return PutStatus.SLAVE_NOT_AVAILABLE
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return PutStatus.FLUSH_SLAVE_TIMEOUT
                self._changed.wait(left_s)
        return PutStatus.PUT_OK

    def _is_available(self) -> bool:
        return any(
            link.progress.following and link.progress.behind_bytes <= self._max_behind_bytes for link in self._links
        )

    def moved(self) -> None:
        """More is visible: for the relay log's ``on_moved``. Without it the standbys get it some milliseconds later."""
        with self._changed:
            for link in self._links:
                link.wake()

    # --- what others ask

    def standbys(self) -> list[PeerReport]:
        with self._changed:
            found = [link.progress for link in self._links]
        return [PeerReport(one.peer, one.following, one.seq, one.behind_bytes) for one in found]

    def wait_until(self, seq: int, timeout_s: float) -> bool:
        """Has a standby confirmed everything up to ``seq``? Waits for it, whatever the role."""
        with self._changed:
            for link in self._links:
                link.wake()
            return self._changed.wait_for(lambda: self._confirmed >= seq or self._closing, timeout_s) and (
                self._confirmed >= seq
            )

    def close(self) -> None:
        """Cut the connections; the standbys try again until somebody answers."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._socket.close()
        for link in list(self._links):  # nobody adds to them any more
            link.stop()
        self._report()

    # --- the thread

    def _accept(self) -> None:
        reported_at = 0.0
        while not self._closing:
            now = time.monotonic()
            if now - reported_at >= _REPORT_EVERY_S:
                reported_at = now
                self._report()
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError as error:
                log.warning("a standby could not connect", error=error.strerror or str(error))
                time.sleep(0.2)
                continue
            with self._changed:
                self._links = [link for link in self._links if not link.ended]
                full = len(self._links) >= _MAX_LINKS
            if full:
                log.warning("too many standby connections", most=_MAX_LINKS)
                connection.close()
                continue
            try:
                channel = Channel(connection, send_timeout_s=self._timing.dead_s)
            except PeerUnavailableError as error:
                log.warning("a standby could not connect", error=str(error))
                continue
            link = Link(
                self._store,
                channel,
                destination=self._destination,
                term=self._term,
                secret=self._secret,
                timing=self._timing,
                on_change=self._moved,
            )
            with self._changed:
                self._links.append(link)
            link.start()

    def _moved(self, link: Link) -> None:
        with self._changed:
            self._confirmed = max(self._confirmed, link.progress.seq)
            self._changed.notify_all()

    def _report(self) -> None:
        peers = tuple(one for one in self.standbys() if one.connected)
        report = RoleReport(self._role, self._term.term, os.getpid(), time.time_ns() // 1000, peers)
        with suppress(FileNotFoundError):  # the folder went with a test
            try:
                write_report(self._store, report)
            except CdcError as error:
                log.warning("the master's state could not be written", error=str(error))
