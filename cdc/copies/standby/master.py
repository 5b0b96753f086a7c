"""The master: listens for standbys, and lets a put wait until one of them has it. After RocketMQ's ``HAService``."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from cdc.base.addresses import Address
from cdc.base.errors import CdcError, ConfigError, PeerUnavailableError
from cdc.base.log import get_logger
from cdc.copies.standby.connection import StandbyConnection
from cdc.copies.standby.protocol import Channel
from cdc.copies.standby.role import LeadershipEpoch, PeerStatus, RoleStatus, write_status
from cdc.copies.standby.settings import MasterSettings
from cdc.store.writer.durability import PutStatus

log = get_logger(__name__)

_MAX_CONNECTIONS = 16
_STATUS_EVERY_S = 1.0


class Master:
    """Serves the standbys of a store that is open for writing; it is the relay log's ``replication``.

    Several standbys may follow. A put is confirmed by the first one that has it.
    """

    def __init__(self, store: Path, *, destination: str, epoch: LeadershipEpoch, settings: MasterSettings) -> None:
        """Starts to listen; :attr:`address` says where. Raises ConfigError if it cannot listen there."""
        self._store = store
        self._destination = destination
        self._epoch = epoch
        self._settings = settings
        self._changed = threading.Condition()
        self._connections: list[StandbyConnection] = []
        self._seen: set[str] = set()
        """The small files that the store has had since this start."""
        self._confirmed = 0
        self._closing = False
        listen = settings.listen
        try:
            family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
            self._socket = socket.create_server(tuple(listen), family=family, backlog=_MAX_CONNECTIONS)
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {listen}: {error.strerror or error}",
                place="standby.listen",
                remedy="Name an address of this machine and a free port.",
            ) from None
        if settings.secret is None and not listen.host.startswith(("127.", "::1", "localhost")):
            log.warning(
                "anyone who can reach this port can read the store: set standby.secret_env or standby.secret_file",
                listen=str(listen),
            )
        host, port = self._socket.getsockname()[:2]
        self.address = Address(host, port)
        self._socket.settimeout(0.2)
        self._thread = threading.Thread(target=self._accept, name="standbys", daemon=True)
        self._thread.start()

    # --- for the store's writer

    def wait(self, segment_name: str, end_offset: int, seq: int, timeout_s: float | None) -> PutStatus:
        """Waits until a standby has confirmed ``seq``; see :class:`cdc.event_store.transaction_log.Replication`.

        Waits for ``timeout_s`` or the configured time, whichever is shorter. An asynchronous master never waits.
        """
        with self._changed:
            self._wake_connections()
            if self._settings.role == "async_master":
                return PutStatus.PUT_OK
            longest_s = self._settings.timeout_s
            deadline = time.monotonic() + min(longest_s, longest_s if timeout_s is None else max(0.0, timeout_s))
            while self._confirmed < seq:
                if self._closing or not self._is_available():
                    return PutStatus.SLAVE_NOT_AVAILABLE
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return PutStatus.FLUSH_SLAVE_TIMEOUT
                self._changed.wait(left_s)
        return PutStatus.PUT_OK

    def moved(self) -> None:
        """Tells the connections that more is visible; add it to the relay log's ``on_moved``.

        Without this call the standbys get new entries a few milliseconds later.
        """
        with self._changed:
            self._wake_connections()

    # --- for everyone else

    def standbys(self) -> list[PeerStatus]:
        """Returns the status of each connection."""
        with self._changed:
            snapshots = [connection.progress for connection in self._connections]
        return [
            PeerStatus(progress.peer, progress.following, progress.seq, progress.behind_bytes) for progress in snapshots
        ]

    def wait_until(self, seq: int, timeout_s: float) -> bool:
        """Waits until a standby has confirmed everything up to ``seq``, whatever the role; False after the time-out."""
        with self._changed:
            self._wake_connections()
            return self._changed.wait_for(lambda: self._confirmed >= seq or self._closing, timeout_s) and (
                self._confirmed >= seq
            )

    def close(self) -> None:
        """Closes all connections and stops listening. The standbys try to connect again until a master answers."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._socket.close()
        for connection in list(self._connections):  # the accepting thread has ended: none is added any more
            connection.stop()
        self._write_status()

    # --- the accepting thread

    def _accept(self) -> None:
        written_at = 0.0
        while not self._closing:
            now = time.monotonic()
            if now - written_at >= _STATUS_EVERY_S:
                written_at = now
                self._write_status()
            try:
                accepted, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError as error:
                log.warning("a standby could not connect", error=error.strerror or str(error))
                time.sleep(0.2)
                continue
            with self._changed:
                self._connections = [connection for connection in self._connections if not connection.ended]
                is_full = len(self._connections) >= _MAX_CONNECTIONS
            if is_full:
                log.warning("standby refused: too many connections", limit=_MAX_CONNECTIONS)
                accepted.close()
                continue
            try:
                channel = Channel(accepted, send_timeout_s=self._settings.timing.dead_s)
            except PeerUnavailableError as error:
                log.warning("a standby could not connect", error=str(error))
                continue
            connection = StandbyConnection(
                self._store,
                channel,
                destination=self._destination,
                epoch=self._epoch,
                settings=self._settings,
                seen=self._seen,
                on_change=self._progressed,
            )
            with self._changed:
                self._connections.append(connection)
            connection.start()

    # --- inside

    def _is_available(self) -> bool:
        most = self._settings.max_behind_bytes
        return any(
            connection.progress.following and connection.progress.behind_bytes <= most
            for connection in self._connections
        )

    def _wake_connections(self) -> None:
        for connection in self._connections:
            connection.wake()

    def _progressed(self, connection: StandbyConnection) -> None:
        with self._changed:
            self._confirmed = max(self._confirmed, connection.progress.seq)
            self._changed.notify_all()

    def _write_status(self) -> None:
        peers = tuple(standby for standby in self.standbys() if standby.connected)
        status = RoleStatus(self._settings.role, self._epoch.number, os.getpid(), time.time_ns() // 1000, peers)
        with suppress(FileNotFoundError):  # the store's folder was removed, as tests do
            try:
                write_status(self._store, status)
            except CdcError as error:
                log.warning("the master's status could not be written", error=str(error))
