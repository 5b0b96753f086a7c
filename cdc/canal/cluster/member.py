"""A server's session with ZooKeeper: it shows that the server is up, and proves how long its leaderships hold."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from cdc.base.errors import ConfigError, MetaUnavailableError
from cdc.base.log import get_logger
from cdc.canal.cluster.candidacy import Candidacy
from cdc.canal.cluster.nodes import ServerNode, Tree, render_member
from cdc.meta.zookeeper_connection import new_client

_BEATS = 12
"""The number of times that the session is proved within its time-out."""
_SURE = 2 / 3
"""The part of that time for which a proof counts. ZooKeeper's leader hears of a session through the member that the
server is connected to, late by up to half a tick; a session lasts two ticks at least, and proofs come in its twelfth
parts. So ZooKeeper cannot end a session before three quarters of the time have passed since the last proof but one."""
_LOOK_S = 2.0
"""The interval at which nodes are read, besides each change that ZooKeeper reports."""
_log = get_logger(__name__)


def boot_clock() -> float:
    """Seconds since this machine was started, those included in which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Member:
    """This process among the servers of a cluster, with one session for all its destinations. Safe in any thread."""

    def __init__(
        self,
        hosts: str,
        tree: Tree,
        server: ServerNode,
        *,
        session_timeout_s: float,
        wait_s: float = 10.0,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        """Opens the session. Raises MetaUnavailableError if ZooKeeper does not answer within ``wait_s``, ConfigError
        if kazoo is missing."""
        self.hosts, self.tree, self.server = hosts, tree, server
        self.clock = clock
        self._asked_timeout_s = session_timeout_s
        self._mutex = threading.Lock()
        self._candidacies: dict[str, Candidacy] = {}
        self._sure: tuple[int, float, float] = (0, 0.0, 0.0)
        """A session, until when it cannot have ended, and from when it may be considered lost."""
        self._ended = threading.Event()
        self._wake = threading.Event()
        self.client = new_client(hosts, session_timeout_s)
        self.client.add_listener(self._on_state)
        _start(self.client, hosts, wait_s)
        self._threads = [
            threading.Thread(target=run, name=f"cluster-{name}", daemon=True)
            for name, run in (("beat", self._beat), ("look", self._look))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def session_timeout_s(self) -> float:
        """The time of silence after which ZooKeeper ends the session, as it has granted it."""
        granted_ms = getattr(self.client, "_session_timeout", None)
        return float(granted_ms) / 1000 if granted_ms else self._asked_timeout_s

    @property
    def session(self) -> int:
        """The id of the current session; 0 if there is none."""
        client_id = self.client.client_id
        return int(client_id[0]) if client_id else 0

    def is_sure(self, session: int) -> bool:
        """Whether a session cannot have ended yet, by this machine's clock alone."""
        sure_session, until, _ = self._sure
        return session == sure_session != 0 and self.clock() < until

    def may_have_ended(self, session: int) -> bool:
        """Whether ZooKeeper may have ended a session, and another server may lead."""
        sure_session, _, ends = self._sure
        return session != sure_session or self.clock() >= ends

    def campaign(self, destination: str, on_change: Callable[[], object]) -> Candidacy:
        """Begins to compete for a destination. ``on_change`` is called in a thread whenever its leadership, or that of
        another server, may have changed; it must not wait."""
        candidacy = Candidacy(self, destination, on_change)
        with self._mutex:
            if destination in self._candidacies:
                raise AssertionError(f"{destination} is competed for already")
            self._candidacies[destination] = candidacy
        self.wake()
        return candidacy

    def withdraw(self, candidacy: Candidacy) -> None:
        """Ends a candidacy, and its leadership if it has one. Called when nothing uses it any more."""
        with self._mutex:
            withdrawn = self._candidacies.pop(candidacy.destination, None)
        if withdrawn is not None and not self._ended.is_set():
            candidacy.leave()

    def wake(self, *_: object) -> None:
        """Has all nodes looked at soon. Also a watch of kazoo."""
        self._wake.set()

    def close(self) -> None:
        """Ends the session, and with it all leaderships. Closing twice does nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._wake.set()
        for thread in self._threads:
            thread.join(5)
        self._sure = (0, 0.0, 0.0)
        self.client.stop()
        self.client.close()

    # --- the session

    def _on_state(self, state: str) -> None:
        """Called in a thread of kazoo, which must not wait."""
        _log.info("connection to ZooKeeper", state=str(state).lower(), place=f"zookeeper://{self.hosts}")
        if state == "LOST":
            self._sure = (0, 0.0, 0.0)
        self._wake.set()

    def _beat(self) -> None:
        """Proves the session again and again. Only an answer that went through ZooKeeper's leader counts: a member
        that is cut off from it answers reads for a while."""
        from kazoo.exceptions import KazooException
        from kazoo.handlers.threading import KazooTimeoutError

        pause_s = self.session_timeout_s / _BEATS
        while not self._ended.wait(pause_s):
            began, session, timeout_s = self.clock(), self.session, self.session_timeout_s
            pause_s = timeout_s / _BEATS
            try:
                self.client.sync_async(self.tree.root).get(timeout=timeout_s)
            except (KazooException, KazooTimeoutError):
                continue
            if session and session == self.session:
                was_sure = self.is_sure(session)
                self._sure = (session, began + _SURE * timeout_s, began + timeout_s)
                if not was_sure:
                    self._wake.set()

    # --- the nodes

    def _look(self) -> None:
        from kazoo.exceptions import KazooException
        from kazoo.handlers.threading import KazooTimeoutError

        looked_at = -_LOOK_S
        while not self._ended.is_set():
            woken = self._wake.wait(min(_LOOK_S, self.session_timeout_s / _BEATS))
            self._wake.clear()
            with self._mutex:
                candidacies = list(self._candidacies.values())
            for candidacy in candidacies:
                candidacy.notice_loss()
            is_due = woken or time.monotonic() - looked_at >= _LOOK_S
            if self._ended.is_set() or not is_due or not self.client.connected or not self.is_sure(self.session):
                continue
            looked_at = time.monotonic()
            try:
                self.show(self.tree.server(self.server.address))
                for candidacy in candidacies:
                    candidacy.step()
            except (KazooException, KazooTimeoutError) as error:
                _log.debug("nodes could not be looked at", reason=type(error).__name__)
            except Exception:  # noqa: BLE001 - the thread has to go on: without it nobody takes over
                _log.exception("election failed")
                self._ended.wait(_LOOK_S)

    def show(self, path: str) -> None:
        """Makes an ephemeral node that names this server, unless this session has made it already. A node of another
        session is that of a process before this one, and goes by itself."""
        from kazoo.exceptions import NodeExistsError

        if self.get(self.client.exists_async(path)) is not None:
            return
        try:
            self.get(self.client.create_async(path, render_member(self.server), ephemeral=True, makepath=True))
        except NodeExistsError:
            return

    def get(self, asked: Any) -> Any:
        """Waits for an answer of ZooKeeper, for one session at most. Raises KazooException, KazooTimeoutError."""
        return asked.get(timeout=self.session_timeout_s)


def _start(client: Any, hosts: str, wait_s: float) -> None:
    from kazoo.exceptions import KazooException
    from kazoo.handlers.threading import KazooTimeoutError

    try:
        client.start(timeout=wait_s)
    except KazooTimeoutError:
        client.stop()
        client.close()
        raise MetaUnavailableError(
            f"does not answer within {wait_s:g} s",
            place=f"zookeeper://{hosts}",
            remedy="Start ZooKeeper, or correct meta.hosts.",
        ) from None
    except KazooException as error:
        raise ConfigError(f"refuses the session: {error}", place=f"zookeeper://{hosts}") from error
