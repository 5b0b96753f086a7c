"""The meta in ZooKeeper, for several machines: Canal's ZooKeeperMetaManager, with our leases and their guarantees.

A change is one multi-transaction below ``{root}/destinations/{destination}``. It is made under kazoo's lock, and it
checks in ZooKeeper itself that the lock is still held and that nobody changed anything since the state was read: a
holder that was thought dead cannot write. Nodes: ``docs/formats/meta.md``.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cdc.errors import LeaseHeldError, MetaUnavailableError, UsageError
from cdc.log import get_logger
from cdc.meta import zookeeper_nodes as nodes
from cdc.meta.base import DurableMeta
from cdc.meta.state import State
from cdc.meta.zookeeper_connection import Connection
from cdc.meta.zookeeper_nodes import Address, Nodes

DEFAULT_ROOT = "/otter/canal"
_LOCK, _HOLDER = f"{nodes.OURS}/lock", f"{nodes.OURS}/holder"
_PAUSE_S = 0.05
# The checks of a change that fail when somebody else was there in the meantime, or the session ended.
_LOST = {
    "BadVersionError",
    "ConnectionClosedError",
    "NodeExistsError",
    "NoNodeError",
    "NotEmptyError",
    "SessionExpiredError",
}
_log = get_logger(__name__)


@dataclass(frozen=True)
class _Loaded:
    state: State
    nodes: Nodes
    versions: dict[str, int]
    foreign: dict[str, frozenset[str]]
    """What of somebody else lies in a subscriber's node."""


class ZooKeeperMeta(DurableMeta):
    """Meta of one destination below ``{root}/destinations/{destination}``.

    ``hosts``: ``h1:2181,h2:2181``. ``source_address``: host and port of the source, which Canal's tools show beside a
    position. ``session_timeout_s``: a holder of the lock that is silent for so long loses it. ``wait_s``: so long a
    call waits for ZooKeeper, ``lock_wait_s``: and so long :meth:`change` for another holder.
    """

    def __init__(
        self,
        hosts: str,
        destination: str,
        *,
        root: str = DEFAULT_ROOT,
        source_address: tuple[str, int] | None = None,
        session_timeout_s: float = 10.0,
        wait_s: float = 10.0,
        lock_wait_s: float = 30.0,
    ) -> None:
        if not destination or "/" in destination or destination in (".", ".."):
            raise UsageError(f"{destination!r} cannot be the name of a destination: it is the name of a node")
        self._destination = destination
        self._base = f"{root.rstrip('/')}/destinations/{destination}"
        self._address = None if source_address is None else Address(*source_address)
        self._lock_wait_s = lock_wait_s
        self._connection = Connection(hosts, session_timeout_s, wait_s)
        self._holder = f"{_who()} ({secrets.token_hex(4)})"

    @property
    def place(self) -> str:
        return self._name("")

    def read(self) -> State:
        return self._load(self._connection.client()).state

    @contextmanager
    def change(self) -> Iterator[State]:
        client = self._connection.client()
        with self._locked(client) as lock:
            loaded = self._load(client)
            before = nodes.render(loaded.state, self._address, "")
            yield loaded.state
            if loaded.nodes.get(nodes.OURS) and nodes.render(loaded.state, self._address, "") == before:
                return
            self._commit(client, lock, loaded)

    def hold(self, wait_s: float) -> None:
        from kazoo.exceptions import NodeExistsError, NoNodeError

        client, deadline = self._connection.client(), time.monotonic() + wait_s
        with self._connection.errors("become the holder"):
            while True:
                try:
                    client.create(self._path(_HOLDER), self._holder.encode(), ephemeral=True, makepath=True)
                    return
                except NodeExistsError:
                    try:
                        data, stat = client.get(self._path(_HOLDER))
                    except NoNodeError:
                        continue
                if stat.ephemeralOwner == client.client_id[0]:
                    return
                if data == self._holder.encode():  # of a session of ours that was lost
                    client.delete(self._path(_HOLDER), stat.version)
                    continue
                if time.monotonic() >= deadline:
                    raise LeaseHeldError(
                        f"{data.decode(errors='replace')} keeps this meta in memory",
                        place=self._name(_HOLDER),
                        remedy="Wait until it ends, or end it; what it held is free when its session has expired.",
                    )
                time.sleep(_PAUSE_S)

    def close(self) -> None:
        self._connection.drop()

    # names ------------------------------------------------------------------------------------------------------

    def _path(self, path: str) -> str:
        return f"{self._base}/{path}"

    def _name(self, path: str) -> str:
        return f"zookeeper://{self._connection.hosts}{self._base}{path and '/'}{path}"

    # reading ----------------------------------------------------------------------------------------------------

    def _load(self, client: Any) -> _Loaded:
        deadline = time.monotonic() + self._lock_wait_s
        while True:
            with self._connection.errors("read the meta"):
                found: _Loaded | None = client.retry(self._look, client)
            if found is not None:
                return found
            if time.monotonic() >= deadline:
                raise MetaUnavailableError(
                    "is changed so fast that it cannot be read", place=self.place, remedy="Try again."
                )

    def _look(self, client: Any) -> _Loaded | None:
        """All nodes at one moment; None where they changed meanwhile. Each change touches our node, and ZooKeeper
        shows changes in their order: so nothing changed when that node is the same before and after."""
        from kazoo.exceptions import NoNodeError

        client.sync(self._base)  # a member of the ensemble may be behind
        at_first = self._get_ours(client)
        children: dict[str, frozenset[str]] = {}
        try:
            subscribers = [name for name in client.get_children(self._base) if name not in nodes.RESERVED]
            waiting = [(name, client.get_children_async(self._path(name))) for name in subscribers]
            children = {name: frozenset(answer.get()) for name, answer in waiting}
            ours = [name for name in subscribers if nodes.OURS in children[name]]
            paths = [f"{name}/{child}" for name in ours for child in children[name] & nodes.OWN]
            marks = [(path, client.get_children_async(self._path(path))) for path in paths if path.endswith("/mark")]
            paths += [f"{path}/{mark}" for path, answer in marks for mark in answer.get()]
            found = self._get_all(client, [*ours, *paths])
        except NoNodeError:
            if at_first is not None:
                return None
            ours, found = [], {}  # nothing was stored here yet
        at_last = self._get_ours(client)
        if _moment(at_first) != _moment(at_last):
            return None
        if at_last is not None:
            found[nodes.OURS] = at_last
        data = {path: content for path, (content, _) in found.items()}
        return _Loaded(
            state=nodes.parse(data, self._destination, self._name),
            nodes=data,
            versions={path: stat.version for path, (_, stat) in found.items()},
            foreign={name: held - nodes.OWN if name in ours else held for name, held in children.items()},
        )

    def _get_all(self, client: Any, paths: list[str]) -> dict[str, tuple[bytes, Any]]:
        """Content and stat. Raises NoNodeError where one has vanished."""
        waiting = [(path, client.get_async(self._path(path))) for path in paths]
        return {path: answer.get() for path, answer in waiting}

    def _get_ours(self, client: Any) -> tuple[bytes, Any] | None:
        from kazoo.exceptions import NoNodeError

        try:
            return self._get_all(client, [nodes.OURS])[nodes.OURS]
        except NoNodeError:
            return None

    # changing ---------------------------------------------------------------------------------------------------

    def _commit(self, client: Any, lock: str, loaded: _Loaded) -> None:
        """All or nothing; where the answer is lost, look whether it was done. Raises MetaUnavailableError."""
        from kazoo.exceptions import ConnectionLoss, KazooException, OperationTimeoutError

        change = secrets.token_hex(8)
        after = nodes.render(loaded.state, self._address, change)
        strangers = {name: held for name, held in loaded.foreign.items() if name not in loaded.nodes}
        nodes.refuse_foreign(loaded.state, strangers, self._name)
        unsure = False
        while True:
            try:
                refused = self._write(client, lock, loaded, after)
                break
            except (ConnectionLoss, OperationTimeoutError):
                unsure = True  # the next try finds either its checks right or the change done
            except KazooException as error:
                refused = error
                break
        if refused is None or (unsure and self._was_made(change)):
            return
        if type(refused).__name__ in _LOST:
            raise MetaUnavailableError(
                f"was changed by another, or the lock on it was lost with the session ({type(refused).__name__})",
                place=self.place,
                remedy="Nothing was changed; try again.",
            ) from refused
        with self._connection.errors("write the meta"):
            raise refused

    def _write(self, client: Any, lock: str, loaded: _Loaded, after: Nodes) -> Exception | None:
        """None when it was done, else the first check that failed."""
        from kazoo.exceptions import RolledBackError

        transaction = client.transaction()
        transaction.check(lock, 0)
        for path in sorted(loaded.nodes, reverse=True):  # what lies in a node goes before it
            if path not in after and not loaded.foreign.get(path):
                transaction.delete(self._path(path), loaded.versions[path])
        for path, data in sorted(after.items()):
            if path in loaded.nodes:
                if data != loaded.nodes[path] and not nodes.only_holds_others(path):
                    transaction.set_data(self._path(path), data, loaded.versions[path])
            elif path not in loaded.foreign:
                transaction.create(self._path(path), data)
        results = transaction.commit()
        failed = [result for result in results if isinstance(result, Exception)]
        return next((error for error in failed if not isinstance(error, RolledBackError)), None)

    def _was_made(self, change: str) -> bool:
        """Raises MetaUnavailableError where that cannot be found out."""
        try:
            client = self._connection.client()
            with self._connection.errors("look"):
                client.retry(client.sync, self._base)
                found = client.retry(self._get_ours, client)
        except MetaUnavailableError as error:
            raise MetaUnavailableError(
                f"the connection was lost in a change, and whether it was made is not known: {error.message}",
                place=self.place,
                remedy="It was made whole or not at all; try again when ZooKeeper answers.",
            ) from error
        return found is not None and change.encode() in found[0]

    # the lock ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _locked(self, client: Any) -> Iterator[str]:
        """Yields the path of the node that is there as long as the lock is ours."""
        lock = client.Lock(self._path(_LOCK), _who())
        self._acquire(client, lock)
        try:
            yield f"{lock.path}/{lock.node}"
        finally:
            self._leave(client, lock)

    def _acquire(self, client: Any, lock: Any) -> None:
        from kazoo.exceptions import LockTimeout

        got = False
        try:
            with self._connection.errors("lock the meta"):
                try:
                    got = lock.acquire(timeout=self._lock_wait_s)
                except LockTimeout:
                    got = False
                if not got:
                    others = lock.contenders()
        finally:
            if not got:
                self._leave(client, lock)
        if not got:
            raise LeaseHeldError(
                f"{others[0] if others else 'another process'} changes it and does not let go",
                place=self.place,
                remedy="Wait until it ends, or end it; the lock is released with its session.",
            )

    def _leave(self, client: Any, lock: Any) -> None:
        """Take back our place in the queue for the lock. A node that stayed there would stop everybody as long as the
        session lives: so where it cannot be deleted, the session ends."""
        from kazoo.exceptions import KazooException, NoNodeError, SessionExpiredError
        from kazoo.handlers.threading import KazooTimeoutError

        try:
            for node in client.get_children(lock.path):
                if node.startswith(lock.prefix):
                    client.delete(f"{lock.path}/{node}")
        except (NoNodeError, SessionExpiredError):
            return  # the node goes with its session
        except (KazooException, KazooTimeoutError) as error:
            _log.warning("lock not released; the session ends", place=self.place, reason=type(error).__name__)
            self._connection.drop(client)


def _moment(node: tuple[bytes, Any] | None) -> int | None:
    """ZooKeeper's number of the change that a node's content is from."""
    return None if node is None else int(node[1].mzxid)


def _who() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
