"""The connection to ZooKeeper: opened on first use, opened again when it was lost, with a limit on every wait.

kazoo (the extra ``zookeeper``) is imported when a connection is opened.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cdc.base.errors import ConfigError, MetaUnavailableError
from cdc.base.log import get_logger

_log = get_logger(__name__)
_GONE = ("CLOSED", "AUTH_FAILED")
_TRIES = 4
"""The least number of times that the list of servers is tried within a session time-out.

kazoo waits for the answer to a connect request for the session time-out divided by the number of servers in its list. A
server that is starting can accept a request and never answer it (seen in one of fifteen restarts of 3.9), and a single
server would cost the whole session time-out. So each server is listed several times."""


class ZooKeeperConnection:
    """One session with ZooKeeper for all threads of a process.

    ZooKeeper keeps the session of a silent client for ``session_timeout_s``. All calls fail after ``wait_s`` without
    an answer.
    """

    def __init__(self, hosts: str, session_timeout_s: float, wait_s: float) -> None:
        self.hosts = hosts
        self.wait_s = wait_s
        self.session_timeout_s = session_timeout_s
        self._lock = threading.Lock()
        self._client: Any = None
        self._pid = 0
        self._stop: weakref.finalize[..., ZooKeeperConnection] | None = None

    def client(self) -> Any:
        """Returns a started KazooClient. Raises MetaUnavailableError if ZooKeeper does not answer in time."""
        with self._lock:
            if self._client is not None and (self._pid != os.getpid() or self._client.client_state in _GONE):
                self._drop()  # after a fork, the client of the parent has no threads
            if self._client is None:
                self._start()
            return self._client

    def drop(self, client: Any = None) -> None:
        """Ends the session (if it is this client's), and with it all its locks; the next use opens another."""
        with self._lock:
            if client is None or client is self._client:
                self._drop()

    def _drop(self) -> None:
        self._client = None
        if self._stop is not None:
            self._stop()
            self._stop = None

    def _start(self) -> None:
        client = new_client(self.hosts, self.session_timeout_s, self.wait_s)
        from kazoo.handlers.threading import KazooTimeoutError

        try:
            client.start(timeout=self.wait_s)
        except KazooTimeoutError:
            raise MetaUnavailableError(
                f"does not answer within {self.wait_s:g} s",
                place=f"zookeeper://{self.hosts}",
                remedy="Start ZooKeeper, or correct meta.hosts.",
            ) from None
        self._client, self._pid = client, os.getpid()
        self._stop = weakref.finalize(self, _end, client, self._pid)

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Translates the errors of kazoo: raises ConfigError, MetaUnavailableError."""
        from kazoo.exceptions import AuthFailedError, KazooException, NoAuthError
        from kazoo.handlers.threading import KazooTimeoutError

        try:
            yield
        except (NoAuthError, AuthFailedError) as error:
            raise ConfigError(
                f"refused to {doing}: {_name(error)}",
                place=f"zookeeper://{self.hosts}",
                remedy="Give this client the right to create, read, write and delete below meta.root.",
            ) from error
        except (KazooException, KazooTimeoutError) as error:
            raise MetaUnavailableError(
                f"could not {doing}: {_name(error)}",
                place=f"zookeeper://{self.hosts}",
                remedy="Nothing was changed; try again when ZooKeeper answers.",
            ) from error


def new_client(hosts: str, session_timeout_s: float, wait_s: float | None = None) -> Any:
    """Returns a KazooClient that is not started. Requests and connecting end after ``wait_s`` without an answer; None:
    they go on. Raises ConfigError if kazoo is missing."""
    try:
        from kazoo.client import KazooClient
    except ImportError:
        raise ConfigError(
            "ZooKeeper needs the package kazoo", remedy="Install it: pip install 'towpath[zookeeper]'."
        ) from None
    # Requests wait for a connection; the deadline ends the wait.
    retry = {"max_tries": -1, "delay": 0.05, "max_delay": 1.0, **({} if wait_s is None else {"deadline": wait_s})}
    return KazooClient(_repeated(hosts), timeout=session_timeout_s, connection_retry=retry, command_retry=dict(retry))


def _repeated(hosts: str) -> str:
    """Repeats the servers of ``h1:2181,h2:2181/root`` until there are at least ``_TRIES``."""
    servers, slash, root = hosts.partition("/")
    count = servers.count(",") + 1
    return ",".join([servers] * -(-_TRIES // count)) + slash + root


def _name(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}, {text}" if text and text != "()" else type(error).__name__


def _end(client: Any, pid: int) -> None:
    if pid != os.getpid():  # a forked child must not end its parent's session
        return
    from kazoo.exceptions import KazooException

    try:
        client.stop()
        client.close()
    except (KazooException, OSError) as error:
        _log.warning("session with ZooKeeper could not be closed; it will expire", reason=_name(error))
